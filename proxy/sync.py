"""Keeps the router's table true: reads exchanges in turn and when asked, and swaps what follows in."""

import asyncio
import functools
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from proxy.assembly import Assembly
from proxy.belief import Belief
from proxy.changes import tell, tell_absent, tell_missing, title
from proxy.config import OnDeadLetter
from proxy.declared import Bound, Declaration, ExchangeDeclared
from proxy.identity import ASK_DISTANCE, Identity
from proxy.listings import Listings
from proxy.lookups import Absent, LookUps, NotReadable
from proxy.management import Management, ManagementError
from proxy.overlays import Overlays, is_news
from proxy.reading import Reading, VhostNotListedError, read
from proxy.router import Entry, Name, Router
from proxy.selection import Mode, Selection
from proxy.topology import RING_TYPES, Bindings, TopologyError, weigh
from ring.destination import Destination

log = logging.getLogger(__name__)

IDLE_INTERVALS = 40
"""An exchange that nobody used for so many sync intervals, and no setting names, is forgotten."""

MIN_REFRESH = 0.1
"""Seconds between the readings of one exchange, whoever asks for them."""

MIN_REFRESH_DECLARED = 0.02
"""The same where something was declared on it, so that a program may bind and publish by turns."""

LONGEST_DOUBT = 1.0
"""Seconds, at most, after which an exchange that is new and has no bindings is looked at again."""

READINGS_AT_ONCE = 4

RETRY_WANTED = 1.0
"""Seconds between the tries to read an exchange that cannot be read, while messages come back from its queues."""

MOST_WANTED = 100
"""Exchanges that are read at once, or have failed to be, without anybody waiting for them."""

WANTED_EVERY = 1.0
"""Seconds after which an exchange that nobody waits for, and that could not be read, may be tried again."""

NEVER = float("-inf")

IN_TURN = "sync"
"""Why an exchange is read that nobody asked for."""

_IDENTITY: Name = ("", "")
"""Stands for the question whose API it is, among the readings."""


@dataclass
class _Tracked:
    """What one exchange's readings need to know of the ones before."""

    belief: Belief = field(default_factory=Belief)
    told: Collection[Destination] = ()
    """Of what is missing: what the log has said."""
    due: float = 0.0
    tried: float = NEVER
    """When the last reading that came to an end started, whatever the end."""
    failures: int = 0
    fault: ManagementError | TopologyError | None = None
    """How that reading failed; None where it did not."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    vouched: set[Destination] = field(default_factory=set)
    """Removals that a second source told of since the last reading."""
    read_started: float = NEVER
    """When the last good reading started."""


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
    ) -> None:
        """`interval` and `settle_time` in seconds; `named` exchanges are read from the start and never forgotten."""
        self._api, self._router = api, router
        self.identity = Identity(api, router.tell)
        self._assembly = Assembly(api, selection, on_dead_letter)
        self._interval, self._settle_time = interval, settle_time
        self._named = frozenset(named)
        self._tracked: dict[Name, _Tracked] = {name: _Tracked() for name in named}
        self._look_ups = LookUps(router, functools.partial(self._read, why="first use"))
        self._overlays = Overlays()
        self._listings = Listings()
        self._wake = asyncio.Event()
        self.results: Counter[str] = Counter()
        """Readings by result: ok, absent, failed."""
        self.changes: Counter[Name] = Counter()
        self.moved: dict[Name, float] = {}
        """Shares of the slots that changes moved, summed."""
        self.look_up_fault: tuple[str, str] | None = None
        """The virtual host, and how it failed, of the last failed look-up, until one there succeeds."""
        self._identify_due = 0.0
        self._turns = asyncio.Semaphore(READINGS_AT_ONCE)
        self._running: dict[Name, asyncio.Task[None]] = {}
        """The readings under way that `run` started."""
        self._refreshes: set[asyncio.Task[None]] = set()
        """Those that `refresh` started."""
        self._wanted: dict[Name, asyncio.Task[None]] = {}
        """Those that `want` started."""

    @property
    def faults(self) -> Mapping[Name, str]:
        """Of each exchange whose last reading failed: why."""
        return {name: str(t.fault) for name, t in self._tracked.items() if t.fault}

    @property
    def homeless(self) -> set[Name]:
        """Those of virtual hosts that are not there, or not for the management user to see."""
        return {name for name, t in self._tracked.items() if isinstance(t.fault, VhostNotListedError)}

    def pending(self) -> list[Name]:
        """Named exchanges that have not been read yet."""
        return sorted(name for name in self._named if self._tracked[name].read_started == NEVER)

    def missing(self) -> dict[Name, bool]:
        """Return of each named exchange that has been read whether it does not exist."""
        read = [name for name in sorted(self._named) if self._tracked[name].read_started != NEVER]
        return {name: name not in self._router.entries for name in read}

    async def run(self) -> None:
        """Reads each tracked exchange again after a random time of up to the interval, until cancelled."""
        try:
            while True:
                self._wake.clear()
                try:
                    self._start_due()
                except Exception:
                    # A defect of ours: ended, the readings would leave every ring to age in silence.
                    log.exception("readings could not be started; the next try follows")
                waiting = [t.due for name, t in self._tracked.items() if name not in self._running]
                # A floor, so that an exchange which can't be read never turns this into a busy loop.
                pause = max(min([self._identify_due, *waiting]) - time.monotonic(), 0.01)
                # Not wait_for: Python 3.11's loses a cancellation that comes with the wake-up.
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._wake.wait()
        finally:
            for task in (*self._running.values(), *self._refreshes, *self._wanted.values()):
                task.cancel()
            self._look_ups.close()
            self._assembly.close()

    def _start_due(self) -> None:
        """Starts the readings that are due, each by itself: a slow one holds up no other's."""
        now = time.monotonic()
        self._forget_idle(now)
        self._forget_declared(now)
        self._listings.forget_old(now)
        if now >= self._identify_due:
            self._identify_due = now + random.uniform(0, self._interval)
            self._start(_IDENTITY, self.identity.watch)
        for name, tracked in self._tracked.items():
            if tracked.due <= now:
                self._start(name, functools.partial(self._in_turn, name))

    def _start(self, what: Name, reading: Callable[[], Coroutine[None, None, None]]) -> None:
        if what in self._running:
            return
        task = self._running[what] = asyncio.create_task(reading())
        task.add_done_callback(functools.partial(self._ended, what))

    def _ended(self, what: Name, task: "asyncio.Task[None]") -> None:
        del self._running[what]
        self._wake.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            # A defect of ours, which must not end the other readings.
            log.error("a reading ended with a defect", exc_info=error)

    async def _in_turn(self, name: Name) -> None:
        async with self._turns:
            if name in self._tracked:
                await self._again(name)

    def declared(self, vhost: str, declaration: Declaration) -> None:
        """The broker has just confirmed this: what it touches is read again before anything is published there."""
        now, entries = time.monotonic(), self._router.entries
        being_read = {
            *self._look_ups.under_way,
            *(name for name, tracked in self._tracked.items() if tracked.lock.locked()),
        }
        for name in self._overlays.touched(vhost, declaration, entries, being_read):
            entry = entries.get(name)
            news = entry is None or is_news(name, entry, declaration)
            unsettled = self._router.expected(name) or name in self._overlays
            if entry is not None and not news and not unsettled:
                self._watch_shadow(name, entry, declaration, now)
                if name not in being_read or isinstance(declaration, Bound | ExchangeDeclared):
                    # What it says is known already: no publish waits for a reading, and none is made. A program that
                    # declares all it needs each time it connects costs the management API nothing.
                    continue
            self._overlays.add(name, declaration, now)
            if (entry is not None or name in being_read) and (news or unsettled or self._is_readable(name)):
                # (A reading under way may show what is gone by now; while none succeeds, none can.)
                self._router.expect(name, now, certain=news)

    def _is_readable(self, name: Name) -> bool:
        tracked = self._tracked.get(name)
        return tracked is None or tracked.fault is None

    def _watch_shadow(self, name: Name, entry: Entry, declaration: Declaration, now: float) -> None:
        """Has a shadowed exchange read again soon where its bindings change: no publish waits for that reading."""
        tracked = self._tracked.get(name)
        changes = entry.mode is Mode.SHADOW and is_news(name, replace(entry, mode=Mode.ROUTE), declaration)
        if changes and tracked is not None and tracked.fault is None:
            tracked.due = min(tracked.due, now + MIN_REFRESH)
            self._wake.set()

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

    async def refresh(self, name: Name, why: str, vouched: Collection[Destination] = ()) -> None:
        """Reads an exchange because something showed that it changed; `vouched` removals need not settle.

        Returns after a reading that started after this call; never raises. Calls at one time share one. Where the
        exchange's last reading failed it returns at once: `run` tries again, and until that succeeds nobody is made to
        wait for what most likely fails too. A caller that is cancelled leaves the reading to the others.
        """
        tracked = self._tracked.get(name)
        if tracked is None:
            return
        tracked.vouched.update(vouched)
        self._overlays.of(name).doubt(vouched)
        if tracked.fault is not None:
            retry_after = tracked.fault.retry_after if isinstance(tracked.fault, ManagementError) else 0.0
            tracked.due = min(tracked.due, tracked.tried + max(retry_after, RETRY_WANTED))
            self._wake.set()
        else:
            task = asyncio.create_task(self._again(name, why))
            self._refreshes.add(task)
            task.add_done_callback(self._refreshes.discard)
            await asyncio.shield(task)

    async def _again(self, name: Name, why: str = IN_TURN) -> None:
        # Told of and counted where they arose.
        with suppress(Absent, ManagementError, TopologyError):
            await self._read(name, why)
        self._wake.set()

    async def _read(self, name: Name, why: str) -> None:
        """One reading and what follows from it, or what came of one that started after this call.

        Raises Absent, ManagementError or TopologyError.
        """
        tracked = self._tracked.get(name) or _Tracked()
        asked = time.monotonic()
        async with tracked.lock:
            if tracked.tried < asked:
                distance = MIN_REFRESH_DECLARED if self._router.expected(name) else MIN_REFRESH
                await asyncio.sleep(tracked.tried + distance - time.monotonic())
                await self._try(name, tracked, why)
            elif tracked.fault is not None:
                raise tracked.fault
            elif name not in self._router.entries:
                raise _absent(name)

    async def _try(self, name: Name, tracked: _Tracked, why: str) -> None:
        started, vouched = time.monotonic(), frozenset(tracked.vouched)
        # What was declared here and does not show yet exists: it is asked for, or publishes would pass by its ring.
        declared = name in self._overlays or self._overlays.lacks(name, started)
        if name not in self._tracked and not declared:
            declared_at = self._overlays.of(name).told_at
            if self._listings.lacks(name, declared_at, started):
                raise VhostNotListedError(name[0]) if self._listings.lacks_vhost(name[0]) else _absent(name)
        absent: Absent | None = None
        try:
            if not self.identity.asked:
                # Or the first messages could go to another cluster than the one whose bindings are read.
                await self.identity.ask()
            known = name in self._router.entries
            pause = 0.0 if known else min(self._settle_time, LONGEST_DOUBT)
            reading = await read(
                self._api, name, pause, lambda vhost, names: self._listings.note(vhost, names, started)
            )
            await self._apply(name, tracked, reading, started, why, vouched)
        except Absent as error:
            absent = error
        except (ManagementError, TopologyError) as error:
            self._failed(name, tracked, why, started, error)
            raise
        except Exception as error:
            # A defect of ours: it may end neither this exchange's readings nor the others'.
            fault = ManagementError(f"unexpected {type(error).__name__}: {error}")
            self._failed(name, tracked, why, started, fault, error)
            raise fault from None
        if tracked.fault is not None:
            log.info("%s can be read again", title(name))
        tracked.tried, tracked.fault, tracked.failures = started, None, 0
        tracked.vouched -= vouched
        if self.look_up_fault is not None and self.look_up_fault[0] == name[0]:
            self.look_up_fault = None
        if absent is not None:
            raise absent

    def _failed(
        self,
        name: Name,
        tracked: _Tracked,
        why: str,
        started: float,
        fault: ManagementError | TopologyError,
        defect: Exception | None = None,
    ) -> None:
        """Counts a failed reading, logs the first of equal faults in a row, and says when to try again."""
        self.results["failed"] += 1
        if name in self._tracked:
            news = str(fault) != str(tracked.fault)
        elif isinstance(fault, VhostNotListedError):
            news = False  # the mistake of whoever asked
        else:
            # Once a virtual host: clients choose the names.
            news = self.look_up_fault is None or self.look_up_fault[0] != name[0]
            self.look_up_fault = (name[0], str(fault))
        if news or defect:
            entry = self._router.entries.get(name)
            kept = f"; its last good state, {time.monotonic() - entry.read_at:.0f} s old, stays" if entry else ""
            log.warning("cannot read %s: %s%s", title(name), fault, kept, exc_info=defect)
        tracked.tried, tracked.fault, tracked.belief = started, fault, tracked.belief.after_failure()
        tracked.failures += 1
        self._router.relent(name, started)
        if isinstance(fault, VhostNotListedError):
            self._may_be_deleted(name, why, started)
        longest = min(self._interval, 0.5 * 2 ** min(tracked.failures, 10))
        retry_after = fault.retry_after if isinstance(fault, ManagementError) else 0.0
        tracked.due = time.monotonic() + max(retry_after, random.uniform(0, longest))

    def _may_be_deleted(self, name: Name, why: str, started: float) -> None:
        """The virtual host did not show: if it is deleted and comes back, nothing of before may be used.

        Where it is only the management user who may not see it, the last good ring serves on.
        """
        if self._overlays.of(name).told_at < started:
            self._overlays.forget(name)
        if why == IN_TURN and name in self._router.entries:
            # The next publish waits for a reading of its own, and goes on without it if that finds no more.
            self._router.expect(name, time.monotonic(), certain=False)

    async def _apply(
        self,
        name: Name,
        tracked: _Tracked,
        reading: Reading,
        started: float,
        why: str,
        vouched: Collection[Destination],
    ) -> None:
        exchange, overlay = reading.exchange, self._overlays.of(name)
        shown_type = exchange.type if exchange is not None else None
        if self._overlays.lacks(name, started):
            raise ManagementError("more was declared than is kept until a reading shows it")
        if overlay.missing(shown_type, started):
            raise ManagementError("it was declared and does not show yet")
        bindings, belief, shown = Bindings(), Belief(), Bindings().weights
        if exchange is not None and exchange.type in RING_TYPES:
            bindings = weigh(overlay.apply(reading.bindings, started), exchange.type)
            shown = weigh(reading.bindings, exchange.type).weights
        if exchange is None or exchange.type in RING_TYPES:
            if isinstance(tracked.fault, VhostNotListedError):
                # It was deleted, and nothing of it is left; or out of sight: what shows now is all there is.
                vouched = tracked.belief.weights.keys()
            vouched = {*vouched, *overlay.vouched(tracked.belief.weights)}
            belief = tracked.belief.after(
                bindings.weights, started, time.monotonic(), self._settle_time, vouched, shown
            )
        before = self._router.entries.get(name)
        if exchange is None and (before is None or not belief.weights):
            self.results["absent"] += 1
            tracked.belief = Belief()
            self._overlays.settle(name, shown_type, reading.bindings, started)
            self._drop(name, before)
            raise _absent(name)
        entry, change = await self._assembly.entry(name, exchange, bindings, belief.weights, before, started, why)
        self._router.put(name, entry)
        if before is None and entry.exchange_type in RING_TYPES:
            # This is often a new session's first publish: an answer that is newer than the name its broker gave vouches
            # for that session, should the cluster be renamed.
            self._identify_due = min(self._identify_due, self.identity.asked_until + ASK_DISTANCE)
        if change:
            self.changes[name] += 1
            self.moved[name] = self.moved.get(name, 0.0) + change.moved
        tell(name, before, entry, change)
        missing = belief.missing.keys() - bindings.weights.keys()
        tell_missing(name, tracked.told, missing)
        tracked.told = missing
        # Only now: half a reading, its queues say not readable, leaves no trace.
        tracked.belief = belief
        self._overlays.settle(name, shown_type, reading.bindings, started)
        self._router.used_at.setdefault(name, started)
        self.results["ok"] += 1
        tracked.read_started = started
        look_again_at = belief.look_again_at(self._settle_time), self._overlays.of(name).ends_at()
        in_turn = started + random.uniform(0, self._interval)
        tracked.due = min(in_turn, *(at if at is not None else in_turn for at in look_again_at))
        if self._tracked.setdefault(name, tracked) is tracked:
            self._wake.set()

    def _drop(self, name: Name, before: Entry | None) -> None:
        named = self._tracked[name] if name in self._named else None
        if named is not None and (before is not None or named.read_started == NEVER):
            tell_absent(name)
        elif before is not None:
            log.info("%s: gone", title(name))
        self._router.drop(name)
        if named is not None:
            named.read_started = time.monotonic()
            named.due = named.read_started + random.uniform(0, self._interval)
        else:
            self._tracked.pop(name, None)

    def _forget_idle(self, now: float) -> None:
        for name in list(self._tracked):
            tracked = self._tracked[name]
            used = self._router.used_at.get(name, tracked.read_started)
            # What cannot be read now could not be looked up again either: its last good state stays; but not that of a
            # virtual host which is not there.
            readable = tracked.fault is None or isinstance(tracked.fault, VhostNotListedError)
            idle = now - used > IDLE_INTERVALS * self._interval and readable
            if idle and name not in self._named:
                del self._tracked[name]
                self._router.drop(name)

    def _forget_declared(self, now: float) -> None:
        for name in self._overlays.idle(now):
            known = name in self._router.entries
            expected = self._router.expected(name)
            if name not in self._look_ups.under_way and not (known and expected):
                self._overlays.forget(name)
                if expected:
                    self._router.drop(name)


def _absent(name: Name) -> Absent:
    return Absent(f"there is no exchange {name[1]!r} in virtual host {name[0]!r}")
