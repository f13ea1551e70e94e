"""Decide when each exchange is read: in turn, at its first publish, after a declaration or a returned message."""

import asyncio
import functools
import logging
import math
import random
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from proxy.settings.patterns import Mode
from proxy.topology.bindings import RING_TYPES, TopologyError
from proxy.topology.cluster import ASK_DISTANCE
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
from proxy.topology.management import ManagementError
from proxy.topology.reader import IN_TURN, ExchangeState, Reader, absent
from proxy.topology.reading import VhostNotListedError
from proxy.topology.table import NEVER, Entry, Name, Router
from ring.destination import Destination

log = logging.getLogger(__name__)

BETWEEN_READINGS = 0.1
"""The least seconds between two readings of one exchange, whoever asks for them."""

BETWEEN_READINGS_DECLARED = 0.02
"""The least seconds between two readings of an exchange with a declaration to read back, so that a program can bind and
publish by turns."""

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


@dataclass
class _Tracked:
    """When one exchange was read last and is to be read next. All times are monotonic seconds.

    Tracked are the exchanges that a setting names, and all those that are in the router's table.
    """

    state: ExchangeState
    """The state that the reader hands on from one reading to the next."""
    due: float = 0.0
    """When the exchange is to be read next."""
    wanted_by: float = math.inf
    """When it is to be read at the latest, whatever the reading under way finds; infinity if that does not matter."""
    tried: float = NEVER
    """When the last reading that has ended started, whether it succeeded or not."""
    failures: int = 0
    """The number of readings that have failed since the last good one."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held during a reading, so that readings of one exchange never overlap."""


class Scheduler:
    """Decides when the reader reads which exchange, for as long as the process lives.

    One task runs `run`. Sessions and HTTP requests call `look_up`, `read_again`, `declared` and `want`.
    """

    def __init__(self, reader: Reader, router: Router, *, interval: float, named: Collection[Name] = ()) -> None:
        """Read the `named` exchanges from the start of `run`, and never forget them.

        `interval` is the setting `sync_interval`, in seconds.
        """
        self._reader, self._router, self._interval = reader, router, interval
        self._overlays, self._identity = reader.overlays, reader.identity
        self._identity.on_change.append(self._identified)
        self._named = frozenset(named)
        """The exchanges that a setting names."""
        self._required = self._named
        """The exchanges among these that settings have named since the start."""
        self._tracked = {name: self._new(name) for name in self._named}
        """The exchanges that are read in turn."""
        self._wake = asyncio.Event()
        """Set when a reading may be due sooner than `run` knows."""
        self._identify_due = 0.0
        """When the management API is to be asked again for its cluster's name, in monotonic seconds."""
        self._look_ups = LookUps(router, functools.partial(self._read, why="first use"), self._looked_up)
        self._has_restored = False
        """Whether this start, without an answer of the management API, has restored the rings kept on disk."""
        self._turns = asyncio.Semaphore(READINGS_AT_ONCE)
        self._running: dict[Name, asyncio.Task[None]] = {}
        """The tasks of the readings under way that `run` started, by exchange."""
        self._again_under_way: set[asyncio.Task[None]] = set()
        """The tasks under way that `read_again` and `found_missing` started."""
        self._wanted: dict[Name, asyncio.Task[None]] = {}
        """The tasks that `want` started, by exchange."""

    def _new(self, name: Name) -> _Tracked:
        return _Tracked(ExchangeState(is_named=name in self._named))

    @property
    def faults(self) -> Mapping[Name, str]:
        """The fault of each exchange whose last reading failed."""
        return {name: str(t.state.fault) for name, t in self._tracked.items() if t.state.fault}

    @property
    def vhost_not_listed(self) -> set[Name]:
        """The exchanges whose virtual hosts do not exist, or which the management user may not see."""
        return {name for name, t in self._tracked.items() if isinstance(t.state.fault, VhostNotListedError)}

    def pending(self) -> list[Name]:
        """Return the exchanges that settings have named since the start and that have not been read yet."""
        return self._unread(self._required)

    def pending_of_reload(self) -> list[Name]:
        """Return the exchanges that a reload has named and that have not been read yet."""
        return self._unread(self._named - self._required)

    def _unread(self, names: Collection[Name]) -> list[Name]:
        return sorted(name for name in names if self._tracked[name].state.read_started == NEVER)

    def missing(self) -> dict[Name, bool]:
        """Return each exchange that a setting names and that has been read, and whether it is absent."""
        unread = self._unread(self._named)
        return {name: name not in self._router.entries for name in sorted(self._named.difference(unread))}

    async def run(self) -> None:
        """Read each tracked exchange again and again, after random times of up to the interval, until cancelled.

        Asks for the cluster's name as often. Readings that cannot be started are logged, and tried again. At its end
        it cancels what is under way, and closes the reader.
        """
        try:
            while True:
                self._wake.clear()
                try:
                    self._start_due()
                except Exception:
                    # An unexpected error must not end the readings, or every ring would become stale in silence.
                    log.exception("readings could not be started; the next try follows")
                waiting = [t.due for name, t in self._tracked.items() if name not in self._running]
                # The pause is never 0, so that an exchange which cannot be read does not make this a busy loop.
                pause = max(min([self._identify_due, *waiting]) - time.monotonic(), 0.01)
                # Not asyncio.wait_for: that of Python 3.11 loses a cancellation that comes together with the wake-up.
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._wake.wait()
        finally:
            for task in (*self._running.values(), *self._again_under_way, *self._wanted.values()):
                task.cancel()
            self._look_ups.close()
            self._reader.close()

    def _start_due(self) -> None:
        """Start the readings that are due, each in a task of its own, so that a slow one does not hold
        up the others.
        """
        now = time.monotonic()
        self._forget_idle(now)
        self._forget_declared(now)
        self._reader.listings.forget_old(now)
        if now >= self._identify_due:
            self._identify_due = now + random.uniform(0, self._interval)
            self._start(_IDENTITY, self._identify)
        for name, tracked in self._tracked.items():
            if tracked.due <= now:
                self._start(name, functools.partial(self._in_turn, name))

    def _start(self, what: Name, reading: Callable[[], Coroutine[None, None, None]]) -> None:
        if what in self._running:
            return
        task = self._running[what] = asyncio.create_task(reading())
        task.add_done_callback(functools.partial(self._done, what))

    def _done(self, what: Name, task: "asyncio.Task[None]") -> None:
        del self._running[what]
        self._wake.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            # An unexpected error must not end the other readings.
            log.error("unexpected error of a reading", exc_info=error)

    async def _identify(self) -> None:
        """Ask for the cluster's name. If the first answer takes longer than `PATIENCE`, restore the
        rings kept on disk.
        """
        if self._identity.asked or self._has_restored:
            await self._identity.watch()
            return
        asking = asyncio.create_task(self._identity.watch())
        try:
            await asyncio.wait({asking}, timeout=PATIENCE)
            if not self._identity.asked:
                self._has_restored = True
                await self._restore_all()
            await asking
        finally:
            asking.cancel()

    async def _restore_all(self) -> None:
        """Restore every exchange that is kept on disk and not known, until the management API answers."""
        for name in await self._reader.kept.names():
            if self._identity.asked:
                return
            tracked = self._tracked.get(name) or self._new(name)
            is_usable = await self._reader.restore(name, tracked.state)
            self._track(name, tracked)
            if is_usable:
                self._look_ups.known(name)

    def _identified(self) -> None:
        """Forget the rings that were restored of another cluster, after the names of the API's cluster have changed."""
        for name in self._reader.kept.of_another_cluster():
            self._reader.forget(name, self._tracked[name].state)
            self._track(name, self._tracked[name])
        self._router.notify()

    async def _in_turn(self, name: Name) -> None:
        async with self._turns:
            if name in self._tracked:
                await self._again(name)

    async def _read(self, name: Name, why: str) -> None:
        """Read an exchange and update the table, or share the result of a reading that started after this call.

        Raises Absent, ManagementError or TopologyError. `why` is the reason for the reading, in words.
        """
        tracked = self._tracked.get(name) or self._new(name)
        asked = time.monotonic()
        async with tracked.lock:
            if tracked.tried >= asked:
                if tracked.state.fault is not None:
                    raise tracked.state.fault
                if name not in self._router.entries:
                    raise absent(name)
                return
            distance = BETWEEN_READINGS_DECLARED if self._router.awaits_read_back(name) else BETWEEN_READINGS
            await asyncio.sleep(tracked.tried + distance - time.monotonic())
            started, known = time.monotonic(), name in self._router.entries
            tracked.wanted_by = math.inf
            try:
                look_again_at = await self._reader.read(name, tracked.state, started, why)
            except Exception:
                self._ended(name, tracked, started, math.inf)
                raise
            self._ended(name, tracked, started, look_again_at)
        entry = self._router.entries.get(name)
        if not known and entry is not None and entry.exchange_type in RING_TYPES and tracked.state.fault is None:
            # This is often the first publish of a new session. Asking for the cluster's name again, after its broker
            # has reported it, confirms that name for the session if the cluster is renamed later.
            self._identify_due = min(self._identify_due, self._identity.asked_until + ASK_DISTANCE)

    def _ended(self, name: Name, tracked: _Tracked, started: float, look_again_at: float) -> None:
        """Set when an exchange is to be read next, after a reading that started at `started` has ended."""
        tracked.tried, fault = started, tracked.state.fault
        if fault is None:
            tracked.failures = 0
            tracked.due = min(started + random.uniform(0, self._interval), look_again_at, tracked.wanted_by)
        else:
            tracked.failures += 1
            longest = min(self._interval, 0.5 * 2 ** min(tracked.failures, 10))
            now, least = time.monotonic(), max(fault.retry_after, RETRY_WANTED)
            tracked.due = now + max(fault.retry_after, random.uniform(0, longest))
            tracked.due = min(tracked.due, max(tracked.wanted_by, now + least))
        self._track(name, tracked)

    def _track(self, name: Name, tracked: _Tracked) -> None:
        """Read an exchange in turn as long as it is in the table or a setting names it."""
        if name in self._named or name in self._router.entries:
            self._tracked.setdefault(name, tracked)
            self._wake.set()
        else:
            self._tracked.pop(name, None)

    def _being_read(self) -> set[Name]:
        locked = (name for name, tracked in self._tracked.items() if tracked.lock.locked())
        return {*self._look_ups.under_way, *locked}

    def known(self) -> set[Name]:
        """Return the exchanges that are in the table, or are being read."""
        return {*self._router.entries, *self._being_read()}

    def reselect(self, named: Collection[Name], changed: Collection[Name], passed: Collection[Name]) -> None:
        """Read exchanges anew after a reload: `named` are those that settings name now, in place of the former ones.

        `changed` are known ones of which the settings say something else now: their next publish waits for one reading.
        `passed` are others of the kind, whose publishes pass until now. If that reading fails, publishes go on the way
        they did before, until one succeeds.
        """
        now, self._named = time.monotonic(), frozenset(named)
        self._required &= self._named
        for name in self._named.difference(self._tracked):
            self._tracked[name] = self._new(name)
        for name, tracked in list(self._tracked.items()):
            tracked.state.is_named = name in self._named
            if not tracked.lock.locked():
                self._track(name, tracked)
        for name in passed:
            self._reader.pass_until_read(name)
            self._track(name, self._new(name))
        # The ring behind an upstream exchange need not be known, as long as settings did not say to route it.
        upstream = {name for name, entry in self._router.entries.items() if entry.upstream is not None}
        for name in {*changed, *passed, *upstream}:
            # While readings fail, a publish that waited for one would go the former way after all.
            if self._is_readable(name):
                self._router.mark_declared(name, now, certain=False)
            if name in self._tracked:
                self._hasten(self._tracked[name], now)
        self._wake.set()
        self._router.notify()

    def declared(self, vhost: str, declaration: Declaration) -> None:
        """Take a declaration that the broker has just confirmed.

        If the entry of an exchange shows it already, as it usually does, nothing is read and no publish waits.
        Otherwise the overlay keeps it until a reading shows it, and the exchange's next publishes wait for a reading.
        """
        now, entries = time.monotonic(), self._router.entries
        being_read = self._being_read()
        for name in self._overlays.touched(vhost, declaration, entries, being_read):
            entry = entries.get(name)
            news = entry is None or is_news(name, entry, declaration)
            unsettled = self._router.awaits_read_back(name) or name in self._overlays
            if entry is not None and not news and not unsettled and not self._undoes_return(name, declaration):
                self._watch_shadow(name, entry, declaration, now)
                if name not in being_read or isinstance(declaration, BindingAdded | ExchangeDeclared):
                    # The entry shows the declaration already, so nothing is read and no publish waits. A program that
                    # declares all it needs each time it connects thus costs the management API nothing.
                    continue
            self._overlays.add(name, laid_over(entry, declaration), now)
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
                tracked = self._tracked.get(name)
                returned = tracked is not None and confirmed in tracked.state.confirmed_removals
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
        if self._overlays.of((vhost, exchange)).has_deleted(now):
            return
        for name in self._overlays.touched(vhost, deleted, self._router.entries, ()):
            self._overlays.add(name, deleted, now)
            if name not in self._router.entries:
                continue
            if self._is_readable(name):
                self._router.mark_declared(name, now, certain=False)
            else:
                self._in_background(self._reader.leave_out_missing(name, self._tracked[name].state))

    def _undoes_return(self, name: Name, declaration: Declaration) -> bool:
        """Return whether a declaration binds a destination that a return has shown to be gone since the
        last reading.
        """
        tracked = self._tracked.get(name)
        return (
            isinstance(declaration, BindingAdded)
            and tracked is not None
            and declaration.destination in tracked.state.confirmed_removals
        )

    def _is_readable(self, name: Name) -> bool:
        """Return whether the last reading of an exchange did not fail."""
        tracked = self._tracked.get(name)
        return tracked is None or tracked.state.fault is None

    def _watch_shadow(self, name: Name, entry: Entry, declaration: Declaration, now: float) -> None:
        """Read a shadowed exchange again soon if a declaration changes its ring; no publish waits for that."""
        tracked = self._tracked.get(name)
        changes = entry.mode is Mode.SHADOW and is_news(name, replace(entry, mode=Mode.ROUTE), declaration)
        if changes and tracked is not None and tracked.state.fault is None:
            self._hasten(tracked, now + BETWEEN_READINGS)

    def _hasten(self, tracked: _Tracked, due: float) -> None:
        """Have an exchange read in turn at this time at the latest."""
        tracked.due, tracked.wanted_by = min(tracked.due, due), min(tracked.wanted_by, due)
        self._wake.set()

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

    async def read_again(self, name: Name, why: str, confirmed_removals: Collection[Destination] = ()) -> None:
        """Read an exchange again because something, such as a returned message, showed that it changed.

        The removal of the destinations in `confirmed_removals` need not settle. The call returns after a reading that
        started after it, shared by all calls at the same time, and never raises. If the exchange's last reading failed,
        it returns at once, since the next would probably fail, too; `run` then tries again soon. Cancelling a caller
        does not cancel the reading.
        """
        tracked = self._tracked.get(name)
        if tracked is None:
            return
        self._reader.confirm_removals(name, tracked.state, confirmed_removals)
        fault = tracked.state.fault
        if fault is not None:
            self._hasten(tracked, tracked.tried + max(fault.retry_after, RETRY_WANTED))
        else:
            await asyncio.shield(self._in_background(self._again(name, why)))

    def _in_background(self, work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        """Return a task that does some work, and ends with `run` at the latest."""
        task = asyncio.create_task(work)
        self._again_under_way.add(task)
        task.add_done_callback(self._again_under_way.discard)
        return task

    async def _again(self, name: Name, why: str = IN_TURN) -> None:
        """Read an exchange; a fault does not raise."""
        # Faults are logged and counted where they arise.
        with suppress(Absent, ManagementError, TopologyError):
            await self._read(name, why)

    def _forget_idle(self, now: float) -> None:
        """Forget the exchanges that nothing has used for `IDLE_INTERVALS` and no setting names.

        An exchange that is being read is not forgotten, or a second reading of it could begin beside the first, and the
        older one win.
        """
        for name, tracked in list(self._tracked.items()):
            if tracked.lock.locked():
                continue
            state = tracked.state
            used = self._router.used_at.get(name, state.read_started)
            # An exchange that cannot be read now could not be looked up again, so its last good ring stays, unless its
            # virtual host is not listed.
            readable = state.fault is None or isinstance(state.fault, VhostNotListedError)
            idle = now - used > IDLE_INTERVALS * self._interval and readable
            if idle and name not in self._named:
                del self._tracked[name]
                self._router.drop(name)
                if state.fault is not None:
                    self._reader.kept.forget(name)

    def _forget_declared(self, now: float) -> None:
        """Forget the declarations of exchanges that nothing has read for `OVERLAY_KEPT` seconds."""
        for name in self._overlays.idle(now):
            known = name in self._router.entries
            expected = self._router.awaits_read_back(name)
            if name not in self._look_ups.under_way and not (known and expected):
                self._overlays.forget(name)
                if expected:
                    self._router.drop(name)
