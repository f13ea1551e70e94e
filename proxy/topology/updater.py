"""One exchange's readings: what each makes of the entry, of the weights in force, and of when the next one is due."""

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from proxy.settings.config import OnDeadLetter
from proxy.settings.patterns import Selection
from proxy.topology.bindings import RING_TYPES, Bindings, TopologyError, weigh
from proxy.topology.changes import log_absent, log_change, log_missing, title
from proxy.topology.cluster import ASK_DISTANCE, ClusterIdentity
from proxy.topology.entry_builder import EntryBuilder
from proxy.topology.lookups import Absent
from proxy.topology.management import Management, ManagementError, NotAskableError
from proxy.topology.overlay_store import OverlayStore
from proxy.topology.reading import Reading, VhostNotListedError, read
from proxy.topology.recent_listings import RecentListings
from proxy.topology.removals import WeightsInForce
from proxy.topology.restoring import EntryRestorer
from proxy.topology.ring_cache import RingCache
from proxy.topology.table import NEVER, Entry, Name, Router, Unread
from ring.destination import Destination

log = logging.getLogger(__name__)

MIN_REFRESH = 0.1
"""Seconds between the readings of one exchange, whoever asks for them."""

MIN_REFRESH_DECLARED = 0.02
"""The same where something was declared on it, so that a program may bind and publish by turns."""

LONGEST_DOUBT = 1.0
"""Seconds, at most, after which an exchange that is new and has no bindings is looked at again."""

IN_TURN = "sync"
"""Why an exchange is read that nobody asked for."""


@dataclass
class TrackedExchange:
    """What one exchange's readings need to know of the ones before."""

    in_force: WeightsInForce = field(default_factory=WeightsInForce)
    logged_missing: Collection[Destination] = ()
    """Of what is missing: what the log has said."""
    due: float = 0.0
    tried: float = NEVER
    """When the last reading that came to an end started, whatever the end."""
    failures: int = 0
    fault: ManagementError | TopologyError | None = None
    """How that reading failed; None where it did not."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    confirmed_removals: set[Destination] = field(default_factory=set)
    """Removals that a second source has confirmed since the last reading: a return, or a declaration."""
    read_started: float = NEVER
    """When the last good reading started."""


class TableUpdater:
    """The readings of all exchanges: each takes one turn here, and what follows from it is swapped into the router.

    Nothing here decides when to read: `Sync` does, by what `TrackedExchange.due` and `identify_due` say.
    """

    def __init__(
        self,
        api: Management,
        router: Router,
        selection: Selection,
        *,
        interval: float,
        settle_time: float,
        on_dead_letter: OnDeadLetter,
        named: frozenset[Name],
        cache: RingCache | None,
        max_age: float,
    ) -> None:
        """`interval` and `settle_time` in seconds; `named` exchanges are tracked from the start and for ever.

        Good readings are kept in `cache`, and restored from it where one fails; `max_age` is `ring_max_age`.
        """
        self._api, self._router = api, router
        self.identity = ClusterIdentity(api, self._identified)
        self._entry_builder = EntryBuilder(api, selection, on_dead_letter)
        self._cache = cache
        self._restoring = EntryRestorer(cache, self._entry_builder, router, self.identity, max_age) if cache else None
        self._interval, self._settle_time = interval, settle_time
        self._named = named
        self.tracked: dict[Name, TrackedExchange] = {name: TrackedExchange() for name in named}
        """What is known of the readings of each exchange in use."""
        self.overlays = OverlayStore()
        self.listings = RecentListings()
        self.wake = asyncio.Event()
        """Set once something may be due sooner than it was."""
        self.identify_due = 0.0
        """When the management API is to be asked again whose it is; monotonic."""
        self.results: Counter[str] = Counter()
        """Readings by result: ok, absent, failed."""
        self.changes: Counter[Name] = Counter()
        """Changes of each exchange's ring."""
        self.moved: dict[Name, float] = {}
        """Shares of the slots that changes moved, summed."""
        self._restored_of = self.identity.names
        """The cluster of what was restored."""
        self.look_up_fault: tuple[str, str] | None = None
        """The virtual host, and how it failed, of the last failed look-up, until one there succeeds."""

    def close(self) -> None:
        """Ends the thread that builds rings, once it is done with the one it may be building."""
        self._entry_builder.close()
        if self._restoring is not None:
            self._restoring.close()

    def _identified(self) -> None:
        """The cluster's names have changed: what was restored of another cluster is forgotten."""
        restored = [name for name, entry in self._router.entries.items() if entry.restored]
        if self.identity.asked and restored and not self.identity.is_of(*self._restored_of):
            log.warning("%d rings that were restored are of another cluster, and are forgotten", len(restored))
            for name in restored:
                self._router.drop(name)
                # A reading under way may hold it.
                self.tracked[name].in_force = WeightsInForce()
                if name not in self._named:
                    del self.tracked[name]
        self._router.notify()

    def _keep(self, name: Name, entry: Entry) -> None:
        """Keeps what was read on disk, where a setting says so."""
        if self._cache is not None:
            self._cache.keep(name, entry, self.identity.names, self._router.clock() - entry.read_at)

    def forget_kept(self, name: Name) -> None:
        """Removes from disk what is kept of an exchange that is gone."""
        if self._cache is not None:
            self._cache.forget(name)

    async def restore_all(self, restored: Callable[[Name], None]) -> None:
        """Restores what is kept of every exchange that is not known; `restored` is told of each.

        For a start while the management API does not answer.
        """
        if self._restoring is None:
            return
        for name in await self._restoring.names():
            if self.identity.asked:
                return
            tracked = self.tracked.get(name) or TrackedExchange()
            if await self._restore(name, tracked):
                tracked.fault = tracked.fault or ManagementError("the management API has not answered yet")
                restored(name)

    async def _restore(self, name: Name, tracked: TrackedExchange) -> bool:
        """Puts an exchange that cannot be read into the table as it was kept, if it was, as a stale ring.

        Returns whether publishes need not wait for a reading now.
        """
        if self._restoring is None or name in self._router.entries or name in self.overlays:
            return False
        asked = self.identity.asked
        entry = await self._restoring.entry(name)
        if entry is None or name in self._router.entries or self.identity.asked is not asked:
            return False  # nothing is kept, or the API has answered meanwhile
        self._restored_of = self.identity.names
        tracked.in_force = WeightsInForce(entry.known.ring.as_weights() if entry.known is not None else {})
        self.tracked.setdefault(name, tracked)
        self._router.put(name, entry)
        self.wake.set()
        return not isinstance(self._router.look(name), Unread)

    async def read(self, name: Name, why: str) -> None:
        """Makes one reading and all that follows from it, or takes what came of one that started after this call.

        Raises Absent, ManagementError or TopologyError.
        """
        tracked = self.tracked.get(name) or TrackedExchange()
        asked = time.monotonic()
        async with tracked.lock:
            if tracked.tried < asked:
                distance = MIN_REFRESH_DECLARED if self._router.awaits_read_back(name) else MIN_REFRESH
                await asyncio.sleep(tracked.tried + distance - time.monotonic())
                try:
                    await self._try(name, tracked, why)
                except (VhostNotListedError, NotAskableError):
                    raise  # which is an answer
                except (ManagementError, TopologyError):
                    if not await self._restore(name, tracked):
                        raise
            elif tracked.fault is not None:
                raise tracked.fault
            elif name not in self._router.entries:
                raise _absent(name)

    async def _try(self, name: Name, tracked: TrackedExchange, why: str) -> None:
        started, confirmed_removals = time.monotonic(), frozenset(tracked.confirmed_removals)
        # What was declared here and does not show yet exists: it is asked for, or publishes would pass by its ring.
        declared = name in self.overlays or self.overlays.incomplete_for(name, started)
        if name not in self.tracked and not declared:
            declared_at = self.overlays.of(name).declared_at
            if self.listings.lacks(name, declared_at, started):
                raise VhostNotListedError(name[0]) if self.listings.lacks_vhost(name[0]) else _absent(name)
        absent: Absent | None = None
        try:
            if not self.identity.asked:
                # Or the first messages could go to another cluster than the one whose bindings are read.
                await self.identity.ask()
            known = name in self._router.entries
            pause = 0.0 if known else min(self._settle_time, LONGEST_DOUBT)
            reading = await read(self._api, name, pause, lambda vhost, names: self.listings.note(vhost, names, started))
            await self._apply(name, tracked, reading, started, why, confirmed_removals)
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
        tracked.confirmed_removals -= confirmed_removals
        if self.look_up_fault is not None and self.look_up_fault[0] == name[0]:
            self.look_up_fault = None
        if absent is not None:
            raise absent

    def _failed(
        self,
        name: Name,
        tracked: TrackedExchange,
        why: str,
        started: float,
        fault: ManagementError | TopologyError,
        defect: Exception | None = None,
    ) -> None:
        """Counts a failed reading, logs the first of equal faults in a row, and says when to try again."""
        self.results["failed"] += 1
        if name in self.tracked:
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
        tracked.tried, tracked.fault, tracked.in_force = started, fault, tracked.in_force.after_failure()
        tracked.failures += 1
        self._router.release_uncertain(name, started)
        if isinstance(fault, VhostNotListedError):
            self._may_be_deleted(name, why, started)
        longest = min(self._interval, 0.5 * 2 ** min(tracked.failures, 10))
        retry_after = fault.retry_after if isinstance(fault, ManagementError) else 0.0
        tracked.due = time.monotonic() + max(retry_after, random.uniform(0, longest))

    def _may_be_deleted(self, name: Name, why: str, started: float) -> None:
        """The virtual host did not show: if it is deleted and comes back, nothing of before may be used.

        Where it is only the management user who may not see it, the last good ring serves on.
        """
        if self.overlays.of(name).declared_at < started:
            self.overlays.forget(name)
        if why == IN_TURN and name in self._router.entries:
            # The next publish waits for a reading of its own, and goes on without it if that finds no more.
            self._router.mark_declared(name, time.monotonic(), certain=False)

    async def _apply(
        self,
        name: Name,
        tracked: TrackedExchange,
        reading: Reading,
        started: float,
        why: str,
        confirmed_removals: Collection[Destination],
    ) -> None:
        exchange, overlay = reading.exchange, self.overlays.of(name)
        shown_type = exchange.type if exchange is not None else None
        if self.overlays.incomplete_for(name, started):
            raise ManagementError("more was declared than is kept until a reading shows it")
        if overlay.misses_exchange(shown_type, started):
            raise ManagementError("it was declared and does not show yet")
        bindings, in_force, shown = Bindings(), WeightsInForce(), Bindings().weights
        if exchange is not None and exchange.type in RING_TYPES:
            bindings = weigh(overlay.apply(reading.bindings, started), exchange.type)
            shown = weigh(reading.bindings, exchange.type).weights
        if exchange is None or exchange.type in RING_TYPES:
            if isinstance(tracked.fault, VhostNotListedError):
                # It was deleted, and nothing of it is left; or out of sight: what shows now is all there is.
                confirmed_removals = tracked.in_force.weights.keys()
            confirmed_removals = {*confirmed_removals, *overlay.confirmed_removals(tracked.in_force.weights)}
            in_force = tracked.in_force.after(
                bindings.weights, started, time.monotonic(), self._settle_time, confirmed_removals, shown
            )
        before = self._router.entries.get(name)
        if exchange is None and (before is None or not in_force.weights):
            self.results["absent"] += 1
            tracked.in_force = WeightsInForce()
            self.overlays.settle(name, shown_type, reading.bindings, started)
            self._drop(name, before)
            raise _absent(name)
        entry, change = await self._entry_builder.entry(
            name, exchange, bindings, in_force.weights, before, started, why
        )
        self._router.put(name, entry)
        if before is None and entry.exchange_type in RING_TYPES:
            # This is often a new session's first publish: an answer that is newer than the name its broker gave vouches
            # for that session, should the cluster be renamed.
            self.identify_due = min(self.identify_due, self.identity.asked_until + ASK_DISTANCE)
        if change:
            self.changes[name] += 1
            self.moved[name] = self.moved.get(name, 0.0) + change.moved
        log_change(name, before, entry, change)
        missing = in_force.missing.keys() - bindings.weights.keys()
        log_missing(name, tracked.logged_missing, missing)
        tracked.logged_missing = missing
        # Only now: half a reading, its queues say not readable, leaves no trace.
        tracked.in_force = in_force
        self.overlays.settle(name, shown_type, reading.bindings, started)
        self._router.used_at.setdefault(name, started)
        self.results["ok"] += 1
        self._keep(name, entry)
        tracked.read_started = started
        look_again_at = in_force.look_again_at(self._settle_time), self.overlays.of(name).ends_at()
        in_turn = started + random.uniform(0, self._interval)
        tracked.due = min(in_turn, *(at if at is not None else in_turn for at in look_again_at))
        if self.tracked.setdefault(name, tracked) is tracked:
            self.wake.set()

    def _drop(self, name: Name, before: Entry | None) -> None:
        named = self.tracked[name] if name in self._named else None
        if named is not None and (before is not None or named.read_started == NEVER):
            log_absent(name)
        elif before is not None:
            log.info("%s: gone", title(name))
        self._router.drop(name)
        self.forget_kept(name)
        if named is not None:
            named.read_started = time.monotonic()
            named.due = named.read_started + random.uniform(0, self._interval)
        else:
            self.tracked.pop(name, None)


def _absent(name: Name) -> Absent:
    return Absent(f"there is no exchange {name[1]!r} in virtual host {name[0]!r}")
