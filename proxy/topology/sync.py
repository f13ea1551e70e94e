"""Keeps the router's table true: when each exchange is read, in turn and when asked."""

import asyncio
import functools
import logging
import random
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace

from proxy.settings.config import OnDeadLetter
from proxy.settings.patterns import Mode, Selection
from proxy.topology.bindings import TopologyError
from proxy.topology.declarations import BindingAdded, Declaration, ExchangeDeclared, is_news
from proxy.topology.lookups import Absent, LookUps, NotReadable
from proxy.topology.management import Management, ManagementError
from proxy.topology.reading import VhostNotListedError
from proxy.topology.ring_cache import RingCache
from proxy.topology.table import NEVER, Entry, Name, Router
from proxy.topology.updater import IN_TURN, MIN_REFRESH, TableUpdater
from ring.destination import Destination

log = logging.getLogger(__name__)

IDLE_INTERVALS = 40
"""An exchange that nobody used for so many sync intervals, and no setting names, is forgotten."""

READINGS_AT_ONCE = 4

RETRY_WANTED = 1.0
"""Seconds between the tries to read an exchange that cannot be read, while messages come back from its queues."""

MOST_WANTED = 100
"""Exchanges that are read at once, or have failed to be, without anybody waiting for them."""

WANTED_EVERY = 1.0
"""Seconds after which an exchange that nobody waits for, and that could not be read, may be tried again."""

PATIENCE = 1.0
"""Seconds for which a start waits for the management API's first answer before rings that were kept are restored."""

_IDENTITY: Name = ("", "")
"""Stands for the question whose API it is, among the readings."""


class Sync:
    """Readings of all the exchanges in use. One task runs `run`; publishes call `look_up` and `refresh`."""

    def __init__(
        self,
        api: Management,
        router: Router,
        selection: Selection,
        *,
        interval: float,
        settle_time: float,
        on_dead_letter: OnDeadLetter = "pass",
        named: Collection[Name] = (),
        cache: RingCache | None = None,
        max_age: float = float("inf"),
    ) -> None:
        """`interval` and `settle_time` in seconds; `named` exchanges are read from the start and never forgotten.

        What is read is kept in `cache`, for a start while it cannot be read; `max_age` is `ring_max_age`.
        """
        self._router = router
        self._interval = interval
        self._named = frozenset(named)
        self._updater = TableUpdater(
            api,
            router,
            selection,
            interval=interval,
            settle_time=settle_time,
            on_dead_letter=on_dead_letter,
            named=self._named,
            cache=cache,
            max_age=max_age,
        )
        self.identity = self._updater.identity
        self._look_ups = LookUps(router, functools.partial(self._updater.read, why="first use"))
        self.results = self._updater.results
        """Readings by result: ok, absent, failed."""
        self.changes = self._updater.changes
        """Changes of each exchange's ring."""
        self.moved = self._updater.moved
        """Shares of the slots that changes moved, summed."""
        self._has_restored = False
        """Whether a start without the management API has restored what is kept."""
        self._turns = asyncio.Semaphore(READINGS_AT_ONCE)
        self._running: dict[Name, asyncio.Task[None]] = {}
        """The readings under way that `run` started."""
        self._refreshes: set[asyncio.Task[None]] = set()
        """Those that `refresh` started."""
        self._wanted: dict[Name, asyncio.Task[None]] = {}
        """Those that `want` started."""

    @property
    def look_up_fault(self) -> tuple[str, str] | None:
        """The virtual host, and how it failed, of the last failed look-up, until one there succeeds."""
        return self._updater.look_up_fault

    @property
    def faults(self) -> Mapping[Name, str]:
        """Of each exchange whose last reading failed: why."""
        return {name: str(t.fault) for name, t in self._updater.tracked.items() if t.fault}

    @property
    def vhost_not_listed(self) -> set[Name]:
        """Those of virtual hosts that are not there, or not for the management user to see."""
        return {name for name, t in self._updater.tracked.items() if isinstance(t.fault, VhostNotListedError)}

    def pending(self) -> list[Name]:
        """Named exchanges that have not been read yet."""
        return sorted(name for name in self._named if self._updater.tracked[name].read_started == NEVER)

    def missing(self) -> dict[Name, bool]:
        """Return of each named exchange that has been read whether it does not exist."""
        read = [name for name in sorted(self._named) if self._updater.tracked[name].read_started != NEVER]
        return {name: name not in self._router.entries for name in read}

    async def run(self) -> None:
        """Reads each tracked exchange again after a random time of up to the interval, until cancelled."""
        try:
            while True:
                self._updater.wake.clear()
                try:
                    self._start_due()
                except Exception:
                    # A defect of ours: ended, the readings would leave every ring to age in silence.
                    log.exception("readings could not be started; the next try follows")
                waiting = [t.due for name, t in self._updater.tracked.items() if name not in self._running]
                # A floor, so that an exchange which can't be read never turns this into a busy loop.
                pause = max(min([self._updater.identify_due, *waiting]) - time.monotonic(), 0.01)
                # Not wait_for: Python 3.11's loses a cancellation that comes with the wake-up.
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._updater.wake.wait()
        finally:
            for task in (*self._running.values(), *self._refreshes, *self._wanted.values()):
                task.cancel()
            self._look_ups.close()
            self._updater.close()

    def _start_due(self) -> None:
        """Starts the readings that are due, each by itself: a slow one holds up no other's."""
        now = time.monotonic()
        self._forget_idle(now)
        self._forget_declared(now)
        self._updater.listings.forget_old(now)
        if now >= self._updater.identify_due:
            self._updater.identify_due = now + random.uniform(0, self._interval)
            self._start(_IDENTITY, self._identify)
        for name, tracked in self._updater.tracked.items():
            if tracked.due <= now:
                self._start(name, functools.partial(self._in_turn, name))

    def _start(self, what: Name, reading: Callable[[], Coroutine[None, None, None]]) -> None:
        if what in self._running:
            return
        task = self._running[what] = asyncio.create_task(reading())
        task.add_done_callback(functools.partial(self._ended, what))

    def _ended(self, what: Name, task: "asyncio.Task[None]") -> None:
        del self._running[what]
        self._updater.wake.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            # A defect of ours, which must not end the other readings.
            log.error("a reading ended with a defect", exc_info=error)

    async def _identify(self) -> None:
        """Asks whose the management API is. Where a first answer does not come soon, what is kept is restored."""
        if self.identity.asked or self._has_restored:
            await self.identity.watch()
            return
        asking = asyncio.create_task(self.identity.watch())
        try:
            await asyncio.wait({asking}, timeout=PATIENCE)
            if not self.identity.asked:
                self._has_restored = True
                await self._updater.restore_all(self._look_ups.known)
            await asking
        finally:
            asking.cancel()

    async def _in_turn(self, name: Name) -> None:
        async with self._turns:
            if name in self._updater.tracked:
                await self._again(name)

    def declared(self, vhost: str, declaration: Declaration) -> None:
        """The broker has just confirmed this: what it touches is read again before anything is published there."""
        now, entries = time.monotonic(), self._router.entries
        being_read = {
            *self._look_ups.under_way,
            *(name for name, tracked in self._updater.tracked.items() if tracked.lock.locked()),
        }
        for name in self._updater.overlays.touched(vhost, declaration, entries, being_read):
            entry = entries.get(name)
            news = entry is None or is_news(name, entry, declaration)
            unsettled = self._router.awaits_read_back(name) or name in self._updater.overlays
            if entry is not None and not news and not unsettled and not self._undoes_return(name, declaration):
                self._watch_shadow(name, entry, declaration, now)
                if name not in being_read or isinstance(declaration, BindingAdded | ExchangeDeclared):
                    # What it says is known already: no publish waits for a reading, and none is made. A program that
                    # declares all it needs each time it connects costs the management API nothing.
                    continue
            self._updater.overlays.add(name, declaration, now)
            if (entry is not None or name in being_read) and (news or unsettled or self._is_readable(name)):
                # (A reading under way may show what is gone by now; while none succeeds, none can.)
                self._router.mark_declared(name, now, certain=news)

    def _undoes_return(self, name: Name, declaration: Declaration) -> bool:
        """Whether it binds a destination again which a return has shown to be gone, and no reading yet."""
        tracked = self._updater.tracked.get(name)
        return (
            isinstance(declaration, BindingAdded)
            and tracked is not None
            and declaration.destination in tracked.confirmed_removals
        )

    def _is_readable(self, name: Name) -> bool:
        tracked = self._updater.tracked.get(name)
        return tracked is None or tracked.fault is None

    def _watch_shadow(self, name: Name, entry: Entry, declaration: Declaration, now: float) -> None:
        """Has a shadowed exchange read again soon where its bindings change: no publish waits for that reading."""
        tracked = self._updater.tracked.get(name)
        changes = entry.mode is Mode.SHADOW and is_news(name, replace(entry, mode=Mode.ROUTE), declaration)
        if changes and tracked is not None and tracked.fault is None:
            tracked.due = min(tracked.due, now + MIN_REFRESH)
            self._updater.wake.set()

    def want(self, name: Name) -> None:
        """Has an exchange read that is not in the table, without anybody waiting for it; publishes to it go on.

        Names are the clients' choice, so few are read at once, and one that cannot be read is not tried again for
        WANTED_EVERY seconds.
        """
        if name not in self._wanted and len(self._wanted) < MOST_WANTED:
            self._wanted[name] = asyncio.create_task(self._fetch(name))

    async def _fetch(self, name: Name) -> None:
        try:
            try:
                await self.look_up(name, WANTED_EVERY)
            except (Absent, NotReadable):
                await asyncio.sleep(WANTED_EVERY)
        finally:
            del self._wanted[name]

    async def look_up(self, name: Name, within: float) -> None:
        """Returns once the exchange is in the table and fresh. Raises Absent, or NotReadable after `within` seconds.

        All who ask at once share one reading; it is tried again, with pauses, while somebody waits.
        """
        await self._look_ups.look_up(name, within)

    async def refresh(self, name: Name, why: str, confirmed_removals: Collection[Destination] = ()) -> None:
        """Reads an exchange because something showed that it changed; `confirmed_removals` need not settle.

        Returns after a reading that started after this call; never raises. Calls at one time share one. Where the
        exchange's last reading failed it returns at once: `run` tries again, and until that succeeds nobody is made to
        wait for what most likely fails too. A caller that is cancelled leaves the reading to the others.
        """
        tracked = self._updater.tracked.get(name)
        if tracked is None:
            return
        tracked.confirmed_removals.update(confirmed_removals)
        self._updater.overlays.of(name).withdraw_additions(confirmed_removals)
        if tracked.fault is not None:
            retry_after = tracked.fault.retry_after if isinstance(tracked.fault, ManagementError) else 0.0
            tracked.due = min(tracked.due, tracked.tried + max(retry_after, RETRY_WANTED))
            self._updater.wake.set()
        else:
            task = asyncio.create_task(self._again(name, why))
            self._refreshes.add(task)
            task.add_done_callback(self._refreshes.discard)
            await asyncio.shield(task)

    async def _again(self, name: Name, why: str = IN_TURN) -> None:
        # Told of and counted where they arose.
        with suppress(Absent, ManagementError, TopologyError):
            await self._updater.read(name, why)
        self._updater.wake.set()

    def _forget_idle(self, now: float) -> None:
        for name in list(self._updater.tracked):
            tracked = self._updater.tracked[name]
            used = self._router.used_at.get(name, tracked.read_started)
            # What cannot be read now could not be looked up again either: its last good state stays; but not that of a
            # virtual host which is not there.
            readable = tracked.fault is None or isinstance(tracked.fault, VhostNotListedError)
            idle = now - used > IDLE_INTERVALS * self._interval and readable
            if idle and name not in self._named:
                del self._updater.tracked[name]
                self._router.drop(name)
                if tracked.fault is not None:
                    self._updater.forget_kept(name)

    def _forget_declared(self, now: float) -> None:
        for name in self._updater.overlays.idle(now):
            known = name in self._router.entries
            expected = self._router.awaits_read_back(name)
            if name not in self._look_ups.under_way and not (known and expected):
                self._updater.overlays.forget(name)
                if expected:
                    self._router.drop(name)
