"""Keep the router's table up to date: decide when each exchange is read, in turn and on demand."""

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
from proxy.topology.declarations import (
    BindingAdded,
    BindingRemoved,
    Declaration,
    ExchangeDeclared,
    ExchangeDeleted,
    changes_lane,
    is_news,
    laid_over,
)
from proxy.topology.lookups import Absent, LookUps, NotReadable
from proxy.topology.management import Management, ManagementError
from proxy.topology.reading import VhostNotListedError
from proxy.topology.ring_cache import RingCache
from proxy.topology.table import NEVER, Entry, Name, Router
from proxy.topology.updater import IN_TURN, MIN_REFRESH, TableUpdater
from ring.destination import Destination

log = logging.getLogger(__name__)

IDLE_INTERVALS = 40
"""The number of sync intervals after which an unused exchange that no setting names is forgotten."""

READINGS_AT_ONCE = 4
"""The most exchanges that are read in turn at the same time."""

RETRY_WANTED = 1.0
"""Seconds between the tries to read an exchange that cannot be read, while messages routed by its ring are returned."""

MOST_WANTED = 100
"""The most exchanges that are read for `want`, or have failed to be read for it within `WANTED_EVERY`."""

WANTED_EVERY = 1.0
"""Seconds after which an exchange that `want` could not have read may be tried again."""

PATIENCE = 1.0
"""Seconds for which a start waits for the management API's first answer before it restores rings from disk."""

_IDENTITY: Name = ("", "")
"""The key, among the readings under way, of the request for the cluster's name."""


class Sync:
    """Schedules the readings of all exchanges in use, for as long as the process lives.

    One task runs `run`. Sessions and HTTP requests call `look_up`, `refresh`, `declared` and `want`.
    """

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
        """Read the `named` exchanges from the start of `run`, and never forget them.

        `interval`, `settle_time` and `max_age` are the settings `sync_interval`, `settle_time` and `ring_max_age`, in
        seconds. Rings are kept in `cache`, if there is one, for a start while the management API does not answer.
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
        self._look_ups = LookUps(router, functools.partial(self._updater.read, why="first use"), self._looked_up)
        self.results = self._updater.results
        """The number of readings by result: ok, absent, failed."""
        self.changes = self._updater.changes
        """The number of changes of each exchange's ring."""
        self.moved = self._updater.moved
        """The sum of the shares of slots that changes of each exchange's ring moved."""
        self._has_restored = False
        """Whether this start, without an answer of the management API, has restored the rings kept on disk."""
        self._turns = asyncio.Semaphore(READINGS_AT_ONCE)
        self._running: dict[Name, asyncio.Task[None]] = {}
        """The tasks of the readings under way that `run` started, by exchange."""
        self._refreshes: set[asyncio.Task[None]] = set()
        """The tasks under way that `refresh` and `found_missing` started."""
        self._wanted: dict[Name, asyncio.Task[None]] = {}
        """The tasks that `want` started, by exchange."""

    @property
    def look_up_fault(self) -> tuple[str, str] | None:
        """The virtual host of the last failed look-up and its fault; None once a reading in that virtual host has
        succeeded.
        """
        return self._updater.look_up_fault

    @property
    def faults(self) -> Mapping[Name, str]:
        """The fault of each exchange whose last reading failed."""
        return {name: str(t.fault) for name, t in self._updater.tracked.items() if t.fault}

    @property
    def vhost_not_listed(self) -> set[Name]:
        """The exchanges whose virtual hosts do not exist, or which the management user may not see."""
        return {name for name, t in self._updater.tracked.items() if isinstance(t.fault, VhostNotListedError)}

    def pending(self) -> list[Name]:
        """Return the exchanges that a setting names and that have not been read yet."""
        return sorted(name for name in self._named if self._updater.tracked[name].read_started == NEVER)

    def missing(self) -> dict[Name, bool]:
        """Return each exchange that a setting names and that has been read, and whether it is absent."""
        read = [name for name in sorted(self._named) if self._updater.tracked[name].read_started != NEVER]
        return {name: name not in self._router.entries for name in read}

    async def run(self) -> None:
        """Read each tracked exchange again and again, after random times of up to the interval, until cancelled."""
        try:
            while True:
                self._updater.wake.clear()
                try:
                    self._start_due()
                except Exception:
                    # A defect in this program must not end the readings, or every ring would become stale in silence.
                    log.exception("readings could not be started; the next try follows")
                waiting = [t.due for name, t in self._updater.tracked.items() if name not in self._running]
                # The pause is never 0, so that an exchange which cannot be read does not make this a busy loop.
                pause = max(min([self._updater.identify_due, *waiting]) - time.monotonic(), 0.01)
                # Not asyncio.wait_for: that of Python 3.11 loses a cancellation that comes together with the wake-up.
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._updater.wake.wait()
        finally:
            for task in (*self._running.values(), *self._refreshes, *self._wanted.values()):
                task.cancel()
            self._look_ups.close()
            self._updater.close()

    def _start_due(self) -> None:
        """Start the readings that are due, each in a task of its own, so that a slow one does not hold
        up the others.
        """
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
            # A defect in this program, which must not end the other readings.
            log.error("a reading ended with a defect", exc_info=error)

    async def _identify(self) -> None:
        """Ask for the cluster's name. If the first answer takes longer than `PATIENCE`, restore the
        rings kept on disk.
        """
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
        """Take a declaration that the broker has just confirmed: what it changes is read before anything is published
        there.
        """
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
                    # The entry shows the declaration already, so nothing is read and no publish waits. A program that
                    # declares all it needs each time it connects thus costs the management API nothing.
                    continue
            self._updater.overlays.add(name, laid_over(entry, declaration), now)
            if (entry is not None or name in being_read) and (news or unsettled or self._is_readable(name)):
                # A reading under way may still show what was deleted. While readings fail, none can.
                self._router.mark_declared(name, now, certain=news)
        if isinstance(declaration, BindingAdded | BindingRemoved):
            self._lane_declared((vhost, declaration.source), declaration, being_read, now)

    def _lane_declared(self, lane: Name, declaration: Declaration, being_read: Collection[Name], now: float) -> None:
        """Have the exchanges read again whose rings may have the declaration's source for a lane."""
        entries, confirmed = self._router.entries, Destination("exchange", lane[1])
        for name, entry in entries.items():
            if name[0] == lane[0] and lane[1] in entry.behind:
                tracked = self._updater.tracked.get(name)
                returned = tracked is not None and confirmed in tracked.confirmed_removals
                if returned or name in being_read or changes_lane(entry, declaration):
                    self._router.mark_declared(name, now, certain=changes_lane(entry, declaration))
        for name in being_read:
            if name[0] == lane[0] and name not in entries and name != lane:
                self._router.mark_declared(name, now, certain=False)

    def found_missing(self, vhost: str, exchange: str) -> None:
        """Take it that the broker has just refused a publish to an exchange because the exchange does not exist.

        The next publishes to the rings that led to the exchange wait for a reading, but not for one that succeeds. If
        the last one failed, they do not wait: the last good rings serve on, without what was reached through the
        exchange. A second call changes nothing while readings are corrected by the first.
        """
        now, deleted = time.monotonic(), ExchangeDeleted(exchange)
        if self._updater.overlays.of((vhost, exchange)).has_deleted(now):
            return
        for name in self._updater.overlays.touched(vhost, deleted, self._router.entries, ()):
            self._updater.overlays.add(name, deleted, now)
            if name not in self._router.entries:
                continue
            if self._is_readable(name):
                self._router.mark_declared(name, now, certain=False)
            else:
                self._in_background(self._updater.leave_out_missing(name))

    def _undoes_return(self, name: Name, declaration: Declaration) -> bool:
        """Return whether a declaration binds a destination that a return has shown to be gone since the
        last reading.
        """
        tracked = self._updater.tracked.get(name)
        return (
            isinstance(declaration, BindingAdded)
            and tracked is not None
            and declaration.destination in tracked.confirmed_removals
        )

    def _is_readable(self, name: Name) -> bool:
        """Return whether the last reading of an exchange did not fail."""
        tracked = self._updater.tracked.get(name)
        return tracked is None or tracked.fault is None

    def _watch_shadow(self, name: Name, entry: Entry, declaration: Declaration, now: float) -> None:
        """Read a shadowed exchange again soon if a declaration changes its ring; no publish waits for that."""
        tracked = self._updater.tracked.get(name)
        changes = entry.mode is Mode.SHADOW and is_news(name, replace(entry, mode=Mode.ROUTE), declaration)
        if changes and tracked is not None and tracked.fault is None:
            tracked.due = min(tracked.due, now + MIN_REFRESH)
            self._updater.wake.set()

    def want(self, name: Name) -> None:
        """Start a reading of an exchange that is not in the table, for which no publish waits.

        Clients choose the names, so only `MOST_WANTED` are read at a time, and one that cannot be read is not tried
        again for `WANTED_EVERY` seconds.
        """
        if name not in self._wanted and len(self._wanted) < MOST_WANTED:
            self._wanted[name] = asyncio.create_task(self._fetch(name))

    async def _fetch(self, name: Name) -> None:
        """Read an exchange for `want`, and block further tries for a while if that fails."""
        try:
            try:
                await self.look_up(name, WANTED_EVERY)
            except (Absent, NotReadable):
                await asyncio.sleep(WANTED_EVERY)
        finally:
            del self._wanted[name]

    async def look_up(self, name: Name, within: float) -> None:
        """Return once the exchange is in the table and fresh. Raises Absent, or NotReadable after `within` seconds.

        All callers at the same time share one reading, which is tried again, with pauses, while any of them waits.
        """
        await self._look_ups.look_up(name, within)

    def _looked_up(self, name: Name) -> None:
        """Forget the declarations during a look-up that found nothing, unless the exchange is also read in turn."""
        if name not in self._named:
            self._router.forget_unknown(name)

    async def refresh(self, name: Name, why: str, confirmed_removals: Collection[Destination] = ()) -> None:
        """Read an exchange again because something, such as a returned message, showed that it changed.

        The removal of the destinations in `confirmed_removals` need not settle. The call returns after a reading that
        started after it, shared by all calls at the same time, and never raises. If the exchange's last reading failed,
        it returns at once, since the next would probably fail, too; `run` then tries again soon. Cancelling a caller
        does not cancel the reading.
        """
        tracked = self._updater.tracked.get(name)
        if tracked is None:
            return
        tracked.confirmed_removals.update(confirmed_removals)
        self._updater.withdraw_additions(name, confirmed_removals)
        if tracked.fault is not None:
            retry_after = tracked.fault.retry_after if isinstance(tracked.fault, ManagementError) else 0.0
            tracked.due = min(tracked.due, tracked.tried + max(retry_after, RETRY_WANTED))
            self._updater.wake.set()
        else:
            await asyncio.shield(self._in_background(self._again(name, why)))

    def _in_background(self, work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        """Return a task that does some work, and ends with `run` at the latest."""
        task = asyncio.create_task(work)
        self._refreshes.add(task)
        task.add_done_callback(self._refreshes.discard)
        return task

    async def _again(self, name: Name, why: str = IN_TURN) -> None:
        """Read an exchange that is tracked, and let `run` look for what is due next."""
        # Faults are logged and counted where they arise.
        with suppress(Absent, ManagementError, TopologyError):
            await self._updater.read(name, why)
        self._updater.wake.set()

    def _forget_idle(self, now: float) -> None:
        """Forget the exchanges that nothing has used for `IDLE_INTERVALS` and no setting names."""
        for name in list(self._updater.tracked):
            tracked = self._updater.tracked[name]
            used = self._router.used_at.get(name, tracked.read_started)
            # An exchange that cannot be read now could not be looked up again, so its last good ring stays, unless its
            # virtual host is not listed.
            readable = tracked.fault is None or isinstance(tracked.fault, VhostNotListedError)
            idle = now - used > IDLE_INTERVALS * self._interval and readable
            if idle and name not in self._named:
                del self._updater.tracked[name]
                self._router.drop(name)
                if tracked.fault is not None:
                    self._updater.forget_kept(name)

    def _forget_declared(self, now: float) -> None:
        """Forget the declarations of exchanges that nothing has read for `OVERLAY_KEPT` seconds."""
        for name in self._updater.overlays.idle(now):
            known = name in self._router.entries
            expected = self._router.awaits_read_back(name)
            if name not in self._look_ups.under_way and not (known and expected):
                self._updater.overlays.forget(name)
                if expected:
                    self._router.drop(name)
