"""Keeps the router's table true: reads exchanges in turn and when asked, builds rings off the loop, swaps them in."""

import asyncio
import functools
import logging
import random
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from proxy.belief import Belief
from proxy.changes import changed, lost, tell, title
from proxy.management import Management, ManagementError
from proxy.reading import Reading, VhostNotListedError, read
from proxy.router import Entry, KnownRing, Name, PassReason, Router, with_change
from proxy.selection import Mode, Selection
from proxy.topology import RING_TYPES, TopologyError
from ring.destination import Destination
from ring.ring import Ring

log = logging.getLogger(__name__)

IDLE_INTERVALS = 40
"""An exchange that nobody used for so many sync intervals, and no setting names, is forgotten."""

DEAD_LETTER_READS = 8
"""Queues of a ring whose dead-lettering is looked at again with each reading; new ones are looked at in any case."""

MIN_REFRESH = 0.1
"""Seconds between the readings of one exchange, whoever asks for them."""

READINGS_AT_ONCE = 4

NEVER = float("-inf")


class Absent(Exception):  # noqa: N818 - an answer, not a fault
    """The exchange, or its virtual host, does not exist; the message says which."""


class NotReadable(Exception):  # noqa: N818 - the caller turns it into its own answer
    """The exchange could not be read in time; the message says why."""


@dataclass
class _Tracked:
    """What one exchange's readings need to know of the ones before."""

    belief: Belief = field(default_factory=Belief)
    due: float = 0.0
    failures: int = 0
    fault: str = ""
    """The last fault that was logged, so that it is logged once."""
    dead_letters: dict[str, bool] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    vouched: set[Destination] = field(default_factory=set)
    """Removals that a second source told of since the last reading."""
    read_started: float = NEVER


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
        rewrite_dead_letters: bool,
        named: Collection[Name] = (),
    ) -> None:
        """`interval` and `settle_time` in seconds; `named` exchanges are read from the start and never forgotten."""
        self._api, self._router, self._selection = api, router, selection
        self._interval, self._settle_time = interval, settle_time
        self._rewrite_dead_letters = rewrite_dead_letters
        self._named = frozenset(named)
        self._tracked: dict[Name, _Tracked] = {name: _Tracked() for name in named}
        self._looking: dict[Name, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()
        self._builder = ThreadPoolExecutor(1, "ring-builder")
        self.results: Counter[str] = Counter()
        """Readings by result: ok, absent, failed."""
        self.changes: Counter[Name] = Counter()
        self.moved: dict[Name, float] = {}
        """Shares of the slots that changes moved, summed."""
        self.cluster: str | None = None
        """The name of the cluster whose management API answers."""
        self.unreachable = "not asked yet"
        """Why the management API did not say whose it is, when last asked; empty where it did."""
        self._identify_due = 0.0
        self._turns = asyncio.Semaphore(READINGS_AT_ONCE)

    @property
    def faults(self) -> Mapping[Name, str]:
        """Of each exchange whose last reading failed: why."""
        return {name: t.fault for name, t in self._tracked.items() if t.fault}

    def pending(self) -> list[Name]:
        """Named exchanges that have not been read yet."""
        return sorted(name for name in self._named if self._tracked[name].read_started == NEVER)

    async def run(self) -> None:
        """Reads each tracked exchange again after a random time of up to the interval, until cancelled."""
        try:
            while True:
                now = time.monotonic()
                self._forget_idle(now)
                due = [name for name, t in self._tracked.items() if t.due <= now]
                await asyncio.gather(self._identify(now), *(self._in_turn(name) for name in due))
                self._wake.clear()
                nearest = min([self._identify_due, *(t.due for t in self._tracked.values())])
                # A floor, so that an exchange which can't be read never turns this into a busy loop.
                pause = max(nearest - time.monotonic(), 0.01)
                try:
                    await asyncio.wait_for(self._wake.wait(), pause)
                except TimeoutError:
                    continue
        finally:
            self._builder.shutdown(wait=False, cancel_futures=True)

    async def _in_turn(self, name: Name) -> None:
        async with self._turns:
            if name in self._tracked:
                await self._again(name)

    async def _identify(self, now: float) -> None:
        """Asks the management API whose it is, once an interval: shows that it is there where nothing is in use."""
        if now < self._identify_due:
            return
        self._identify_due = now + random.uniform(0, self._interval)
        try:
            self.cluster = await self._api.cluster_name()
        except ManagementError as error:
            if not self.unreachable:
                log.warning("the management API does not answer: %s", error)
            self.unreachable = str(error)
        else:
            if self.unreachable:
                log.info("the management API answers")
            self.unreachable = ""

    async def look_up(self, name: Name, within: float) -> None:
        """Returns once the exchange is in the table and fresh. Raises Absent, or NotReadable after `within` seconds.

        All who ask at once share one reading; it is tried again, with pauses, until the time is over.
        """
        deadline = time.monotonic() + within
        pause = 0.05
        while True:
            task = self._looking.get(name)
            if task is None:
                task = asyncio.create_task(self._read(name, why="first use"))
                self._looking[name] = task
                task.add_done_callback(functools.partial(self._looked_up, name))
            try:
                await asyncio.wait_for(asyncio.shield(task), max(deadline - time.monotonic(), 0.001))
            except TimeoutError:
                raise NotReadable("no answer of the management API in time") from None
            except (ManagementError, TopologyError) as error:
                if isinstance(error, VhostNotListedError):
                    raise Absent(str(error)) from None
                if time.monotonic() + pause >= deadline:
                    raise NotReadable(str(error)) from None
                await asyncio.sleep(random.uniform(0, pause))
                pause *= 2
            else:
                return

    def _looked_up(self, name: Name, task: "asyncio.Task[None]") -> None:
        self._looking.pop(name, None)
        if not task.cancelled():
            task.exception()  # seen, also where everybody who waited has left

    async def refresh(self, name: Name, why: str, vouched: Collection[Destination] = ()) -> None:
        """Reads an exchange because something showed that it changed; `vouched` removals need not settle.

        Returns after a reading that started after this call; never raises. Calls at one time share one.
        """
        if name in self._tracked:
            self._tracked[name].vouched.update(vouched)
            await self._again(name, why)

    async def _again(self, name: Name, why: str = "sync") -> None:
        tracked = self._tracked[name]
        try:
            await self._read(name, why)
        except Absent:
            pass
        except (ManagementError, TopologyError) as error:
            retry_after = error.retry_after if isinstance(error, ManagementError) else 0.0
            tracked.failures += 1
            longest = min(self._interval, 0.5 * 2 ** min(tracked.failures, 10))
            tracked.due = time.monotonic() + max(retry_after, random.uniform(0, longest))
        self._wake.set()

    async def _read(self, name: Name, why: str) -> None:
        """One reading and what follows from it. Raises Absent, ManagementError or TopologyError."""
        tracked = self._tracked.get(name) or _Tracked()
        asked = time.monotonic()
        async with tracked.lock:
            if tracked.read_started >= asked and not tracked.fault:
                return
            await asyncio.sleep(tracked.read_started + MIN_REFRESH - time.monotonic())
            started, vouched = time.monotonic(), frozenset(tracked.vouched)
            with self._faults_told(name, tracked):
                reading = await read(self._api, name)
                await self._apply(name, tracked, reading, started, why, vouched)
            tracked.vouched -= vouched
        tracked.failures = 0

    @contextmanager
    def _faults_told(self, name: Name, tracked: _Tracked) -> Iterator[None]:
        """Logs the first of equal faults in a row, and the recovery."""
        try:
            yield
        except (ManagementError, TopologyError) as error:
            self.results["failed"] += 1
            if str(error) != tracked.fault and name in self._tracked:
                entry = self._router.entries.get(name)
                kept = f"; its last good state, {time.monotonic() - entry.read_at:.0f} s old, stays" if entry else ""
                log.warning("cannot read %s: %s%s", title(name), error, kept)
            tracked.fault = str(error)
            raise
        if tracked.fault:
            tracked.fault = ""
            log.info("%s can be read again", title(name))

    async def _apply(
        self,
        name: Name,
        tracked: _Tracked,
        reading: Reading,
        started: float,
        why: str,
        vouched: Collection[Destination],
    ) -> None:
        exchange = reading.exchange
        if exchange is not None and exchange.type not in RING_TYPES:
            tracked.belief = Belief()
        else:
            tracked.belief = tracked.belief.after(reading.bindings.weights, started, self._settle_time, vouched)
        before = self._router.entries.get(name)
        if exchange is None and not tracked.belief.weights:
            self.results["absent"] += 1
            self._drop(name, before)
            raise Absent(f"there is no exchange {name[1]!r} in virtual host {name[0]!r}")
        self.results["ok"] += 1
        await self._check_dead_letters(name[0], tracked)
        entry = await self._entry(name, tracked, reading, before, started, why)
        self._router.put(name, entry)
        tracked.read_started = started
        settles_at = tracked.belief.settles_at(self._settle_time)
        tracked.due = min(started + random.uniform(0, self._interval), settles_at or float("inf"))
        if self._tracked.setdefault(name, tracked) is tracked:
            self._wake.set()

    async def _entry(
        self, name: Name, tracked: _Tracked, reading: Reading, before: Entry | None, started: float, why: str
    ) -> Entry:
        mode = self._selection.mode(*name)
        weights = tracked.belief.weights
        known, change = before.known if before else None, None
        if reading.exchange is None:
            # Gone, but not settled: the last ring serves on.
            exchange_type = before.exchange_type if before else ""
        else:
            exchange_type = reading.exchange.type
            hashed = reading.exchange.hashed
            if mode is Mode.PASS or not weights:
                known, change = None, lost(known, why)
            elif known is None or (known.ring.as_weights(), known.hashed, known.exchange_type) != (
                weights,
                hashed,
                exchange_type,
            ):
                old = known
                ring = await self._build(known.ring if known else None, weights)
                known = KnownRing.of(ring, hashed, exchange_type)
                change = changed(old, known, why)
        dead_letters = tuple(sorted(q for q, own_name in tracked.dead_letters.items() if own_name))
        entry = Entry(
            mode=mode,
            exchange_type=exchange_type,
            known=known,
            passed=self._pass_reason(exchange_type, mode, known, dead_letters, reading.internal_destinations),
            bindings=reading.bindings,
            dead_letters=dead_letters,
            read_at=started,
            changes=before.changes if before else (),
        )
        if change:
            entry = with_change(entry, change)
            self.changes[name] += 1
            self.moved[name] = self.moved.get(name, 0.0) + change.moved
        tell(name, before, entry, change)
        return entry

    async def _build(self, old: Ring | None, weights: Mapping[Destination, int]) -> Ring:
        """In a thread of its own: numpy lets go of the GIL, so the loop goes on meanwhile."""
        make = old.changed if old is not None else Ring.build
        return await asyncio.get_running_loop().run_in_executor(self._builder, make, weights)

    def _pass_reason(
        self,
        exchange_type: str,
        mode: Mode,
        known: KnownRing | None,
        dead_letters: tuple[str, ...],
        internal: tuple[str, ...],
    ) -> PassReason | None:
        if exchange_type not in RING_TYPES:
            return PassReason.TYPE
        if mode is Mode.PASS:
            return PassReason.MODE_PASS
        if known is None:
            return PassReason.NO_BINDINGS
        if internal:
            return PassReason.INTERNAL_DESTINATION
        if dead_letters and not self._rewrite_dead_letters:
            return PassReason.DEAD_LETTER
        return PassReason.SHADOW if mode is Mode.SHADOW else None

    async def _check_dead_letters(self, vhost: str, tracked: _Tracked) -> None:
        queues = [d.name for d in tracked.belief.weights if d.kind == "queue"]
        known = {q: v for q, v in tracked.dead_letters.items() if q in set(queues)}
        again = list(known)[:DEAD_LETTER_READS]
        for queue in (*(q for q in queues if q not in known), *again):
            answer = await self._api.dead_letters_by_own_name(vhost, queue)
            # Put at the end, so that the others have their turn with the next reading.
            known.pop(queue, None)
            known[queue] = answer
        tracked.dead_letters = known

    def _drop(self, name: Name, before: Entry | None) -> None:
        if before is not None:
            log.info("%s: gone", title(name))
        self._router.drop(name)
        if name in self._named:
            tracked = self._tracked[name]
            tracked.read_started = time.monotonic()
            tracked.due = tracked.read_started + random.uniform(0, self._interval)
        else:
            self._tracked.pop(name, None)

    def _forget_idle(self, now: float) -> None:
        for name in list(self._tracked):
            used = self._router.used_at.get(name, self._tracked[name].read_started)
            if name not in self._named and now - used > IDLE_INTERVALS * self._interval:
                del self._tracked[name]
                self._router.drop(name)
