"""Turn each reading of an exchange into weights in force and a router entry, and say when it is to be read next."""

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping

from proxy.settings.config import OnDeadLetter
from proxy.settings.patterns import Selection
from proxy.topology.bindings import RING_TYPES, Behind, Binding, Bindings, Leads, TopologyError, weigh
from proxy.topology.changes import log_absent, log_change, log_missing, title
from proxy.topology.cluster import ASK_DISTANCE, ClusterIdentity
from proxy.topology.entry_builder import EntryBuilder
from proxy.topology.lane_reader import NOTHING_READ, LaneReader, gone_behind
from proxy.topology.lookups import Absent
from proxy.topology.management import Management, ManagementError, NotAskableError
from proxy.topology.overlay_store import OverlayStore
from proxy.topology.reading import Reading, VhostNotListedError, read
from proxy.topology.recent_listings import RecentListings
from proxy.topology.removals import WeightsInForce
from proxy.topology.restoring import EntryRestorer
from proxy.topology.ring_cache import RingCache
from proxy.topology.table import NEVER, Entry, Name, Router, Unread
from proxy.topology.tracked_exchange import TrackedExchange
from proxy.topology.upstream_reader import UpstreamReader
from ring.destination import Destination

log = logging.getLogger(__name__)

MIN_REFRESH = 0.1
"""The least seconds between two readings of one exchange, whoever asks for them."""

MIN_REFRESH_DECLARED = 0.02
"""The least seconds between two readings of an exchange with a declaration to read back, so that a program can bind and
publish by turns."""

LONGEST_DOUBT = 1.0
"""The most seconds between the two readings of an exchange that is not known yet and shows no bindings, or of a lane of
such an exchange."""

IN_TURN = "a regular reading"
"""The reason for a reading that nobody asked for, as log lines name it."""


class TableUpdater:
    """Reads exchanges, one reading at a time for each, and puts what follows from a reading into the router's table.

    It lives as long as the process. It does not decide when to read: `Sync` does, by `TrackedExchange.due` and
    `identify_due`.
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
        """Track the `named` exchanges from the start and for ever; read nothing yet.

        `interval`, `settle_time` and `max_age` are the settings `sync_interval`, `settle_time` and `ring_max_age`, in
        seconds. Entries are kept on disk in `cache`, if there is one, and restored from it when a reading fails.
        """
        self._api, self._router, self._selection = api, router, selection
        self.identity = ClusterIdentity(api, self._identified)
        self._entry_builder = EntryBuilder(api, selection, on_dead_letter)
        self._cache = cache
        self._restoring = EntryRestorer(cache, self._entry_builder, router, self.identity, max_age) if cache else None
        self._interval, self._settle_time = interval, settle_time
        self._named = named
        self.tracked: dict[Name, TrackedExchange] = {name: TrackedExchange() for name in named}
        """The state of each exchange that is read in turn: the named ones, and those in use."""
        self.overlays = OverlayStore()
        self._lane_reader = LaneReader(api, self.overlays, min(settle_time, LONGEST_DOUBT))
        self._upstreams = UpstreamReader(api, selection, self.overlays, settle_time)
        self.listings = RecentListings()
        self.wake = asyncio.Event()
        """Set when a reading may be due sooner than `Sync` knows."""
        self.identify_due = 0.0
        """When the management API is to be asked again for its cluster's name, in monotonic seconds."""
        self.results: Counter[str] = Counter()
        """The number of readings by result: ok, absent, failed."""
        self.changes: Counter[Name] = Counter()
        """The number of changes of each exchange's ring."""
        self.moved: dict[Name, float] = {}
        """The sum of the shares of slots that changes of each exchange's ring moved."""
        self._restored_of = self.identity.names
        """The names and nodes of the cluster that the restored rings belong to."""
        self.look_up_fault: tuple[str, str] | None = None
        """The virtual host of the last failed look-up and its fault; None once a reading in that virtual host has
        succeeded."""

    def close(self) -> None:
        """End the threads: the one that builds rings once its ring is finished, the cache's once its
        files are written.
        """
        self._entry_builder.close()
        if self._restoring is not None:
            self._restoring.close()

    def _identified(self) -> None:
        """Forget the rings that were restored of another cluster, after the names of the API's cluster have changed."""
        restored = [name for name, entry in self._router.entries.items() if entry.restored]
        if self.identity.asked and restored and not self.identity.is_of(*self._restored_of):
            log.warning(
                "%d restored rings belong to another cluster than the management API, and are dropped", len(restored)
            )
            for name in restored:
                self._router.drop(name)
                # A reading under way may hold this object, and must not carry the weights on.
                self.tracked[name].in_force = WeightsInForce()
                if name not in self._named:
                    del self.tracked[name]
        self._router.notify()

    def _keep(self, name: Name, entry: Entry) -> None:
        """Keep an entry on disk, if the setting `ring_cache_dir` is set."""
        if self._cache is not None:
            self._cache.keep(name, entry, self.identity.names, self._router.clock() - entry.read_at)

    def forget_kept(self, name: Name) -> None:
        """Remove an exchange from disk."""
        if self._cache is not None:
            self._cache.forget(name)

    async def restore_all(self, restored: Callable[[Name], None]) -> None:
        """Restore every exchange that is kept on disk and not known, and call `restored` with each.

        It is used at a start while the management API does not answer, and stops once that has answered.
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
        """Put an exchange that cannot be read into the table as it is kept on disk, with the age of the kept reading.

        Returns whether the exchange was restored and publishes can use its entry now.
        """
        if self._restoring is None or name in self._router.entries or name in self.overlays:
            return False
        asked = self.identity.asked
        entry = await self._restoring.entry(name)
        if entry is None or name in self._router.entries or self.identity.asked is not asked:
            return False  # Nothing is kept, or the API has answered meanwhile.
        self._restored_of = self.identity.names
        tracked.in_force = WeightsInForce(entry.known.ring.as_weights() if entry.known is not None else {})
        self.tracked.setdefault(name, tracked)
        self._router.put(name, entry)
        self.wake.set()
        return not isinstance(self._router.look(name), Unread)

    async def read(self, name: Name, why: str) -> None:
        """Read an exchange and update the table, or share the result of a reading that started after this call.

        Raises Absent, ManagementError or TopologyError. `why` is the reason for the reading, in words.
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
                    raise  # The exchange cannot exist, or nothing can be asked of it, so nothing is restored.
                except (ManagementError, TopologyError):
                    if not await self._restore(name, tracked):
                        raise
            elif tracked.fault is not None:
                raise tracked.fault
            elif name not in self._router.entries:
                raise _absent(name)

    async def _try(self, name: Name, tracked: TrackedExchange, why: str) -> None:
        """Make one reading, and note how it ended. Raises Absent, ManagementError or TopologyError."""
        started, confirmed_removals = time.monotonic(), frozenset(tracked.confirmed_removals)
        # An exchange that was declared exists, though a recent list lacks it: it is read, or publishes would be passed.
        declared = name in self.overlays or self.overlays.incomplete_for(name, started)
        if name not in self.tracked and not declared:
            declared_at = self.overlays.of(name).declared_at
            if self.listings.lacks(name, declared_at, started):
                raise VhostNotListedError(name[0]) if self.listings.lacks_vhost(name[0]) else _absent(name)
        absent: Absent | None = None
        try:
            if not self.identity.asked:
                # Without the cluster's name, the first messages could go to another cluster than the one that is read.
                await self.identity.ask()
            known = name in self._router.entries
            pause = 0.0 if known else min(self._settle_time, LONGEST_DOUBT)
            reading = await read(
                self._api,
                name,
                pause,
                lambda vhost, names: self.listings.note(vhost, names, started),
                self._upstreams.types(name),
            )
            await self._apply(name, tracked, reading, started, why, confirmed_removals)
        except Absent as error:
            absent = error
        except (ManagementError, TopologyError) as error:
            await self.leave_out_missing(name)
            self._failed(name, tracked, why, started, error)
            raise
        except Exception as error:
            # A defect in this program must end neither this exchange's readings nor the others'.
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

    async def leave_out_missing(self, name: Name) -> None:
        """Take each destination off a ring that a publish reaches through an exchange which surely does not exist.

        This is for a ring that cannot be read: each publish to that exchange would end its channel. The rest of the
        last good ring serves on. A ring of which nothing would be left stays as it is.
        """
        before, now = self._router.entries.get(name), time.monotonic()
        if before is None or before.known is None:
            return
        weights = before.known.ring.as_weights()
        ways = {d: before.lanes.get(d, d.name if d.kind == "exchange" else "") for d in weights}
        gone = {d for d, way in ways.items() if way and self.overlays.of((name[0], way)).has_deleted(now)}
        if not gone or len(gone) == len(weights):
            return
        entry, change = await self._entry_builder.without(before, gone, "a publish was refused: no such exchange")
        tracked = self.tracked.get(name)
        if tracked is None or self._router.entries.get(name) is not before:
            return  # The exchange was read or forgotten meanwhile.
        tracked.in_force = WeightsInForce({d: w for d, w in tracked.in_force.weights.items() if d not in gone})
        self._router.put(name, entry)
        self.changes[name] += 1
        self.moved[name] = self.moved.get(name, 0.0) + change.moved
        log_change(name, before, entry, change)

    def _failed(
        self,
        name: Name,
        tracked: TrackedExchange,
        why: str,
        started: float,
        fault: ManagementError | TopologyError,
        defect: Exception | None = None,
    ) -> None:
        """Count a failed reading, log it unless the last one failed alike, and set when to try again."""
        self.results["failed"] += 1
        if name in self.tracked:
            news = str(fault) != str(tracked.fault)
        elif isinstance(fault, VhostNotListedError):
            news = False  # The client named a virtual host that does not exist; that is no fault to log.
        else:
            # Logged once for a virtual host, since clients choose the names of exchanges.
            news = self.look_up_fault is None or self.look_up_fault[0] != name[0]
            self.look_up_fault = (name[0], str(fault))
        if news or defect:
            entry = self._router.entries.get(name)
            kept = (
                f"; its last good state, {time.monotonic() - entry.read_at:.0f} s old, stays in force" if entry else ""
            )
            log.warning("cannot read %s: %s%s", title(name), fault, kept, exc_info=defect)
        tracked.tried, tracked.fault = started, fault
        tracked.in_force, tracked.bound = tracked.in_force.after_failure(), tracked.bound.after_failure()
        tracked.failures += 1
        self._router.release_uncertain(name, started)
        if isinstance(fault, VhostNotListedError):
            self._may_be_deleted(name, why, started)
        longest = min(self._interval, 0.5 * 2 ** min(tracked.failures, 10))
        retry_after = fault.retry_after if isinstance(fault, ManagementError) else 0.0
        tracked.due = time.monotonic() + max(retry_after, random.uniform(0, longest))

    def _may_be_deleted(self, name: Name, why: str, started: float) -> None:
        """Have a publish read the exchange first, since its virtual host is not listed and may have been deleted.

        If the virtual host is made again, no earlier declaration or ring may be used. If only the management user may
        not see it, that reading fails, too, and the last good ring serves on.
        """
        if self.overlays.of(name).declared_at < started:
            self.overlays.forget(name)
        if why == IN_TURN and name in self._router.entries:
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
        """Update the table, the weights in force and the overlay by a good reading. Raises Absent or
        ManagementError.
        """
        exchange, overlay = reading.exchange, self.overlays.of(name)
        shown_type = exchange.type if exchange is not None else None
        if self.overlays.incomplete_for(name, started):
            raise ManagementError("too many declarations wait until a reading shows them")
        if overlay.misses_exchange(shown_type, started):
            raise ManagementError("it was declared, and the management API does not show it yet")
        before = self._router.entries.get(name)
        # Corrected once: an exchange that a declaration binds during the next request has not been read.
        corrected = overlay.apply(reading.bindings, started)
        read_behind = NOTHING_READ
        # A virtual host that was not listed was deleted and made again, or was hidden: only what shows now exists.
        only_shown = isinstance(tracked.fault, VhostNotListedError)
        upstream, bound = await self._upstreams.read(
            name, reading, corrected, before, tracked.bound, started, confirmed_removals, only_shown=only_shown
        )
        if upstream is None and self._selection.has_ring(*name):
            bound_to = {*(binding.destination for binding in corrected), *tracked.in_force.weights}
            read_behind = await self._lane_reader.read(name[0], bound_to, before, confirmed_removals, started)
        bindings, in_force = Bindings(), WeightsInForce[Destination]()
        if upstream is None and (exchange is None or exchange.type in RING_TYPES):
            bindings, in_force = self._in_force(
                name, tracked, reading, corrected, read_behind.behind, started, confirmed_removals
            )
        if exchange is None and (before is None or not (in_force.weights or bound.weights)):
            self.results["absent"] += 1
            tracked.in_force, tracked.bound = WeightsInForce(), WeightsInForce()
            self.overlays.settle(name, shown_type, reading.bindings, started)
            self._drop(name, before)
            raise _absent(name)
        entry, change = await self._entry_builder.entry(
            name, exchange, bindings, read_behind.behind, in_force.weights, before, started, why, upstream
        )
        self._router.put(name, entry)
        if before is None and entry.exchange_type in RING_TYPES:
            # This is often the first publish of a new session. Asking for the cluster's name again, after its broker
            # has reported it, confirms that name for the session if the cluster is renamed later.
            self.identify_due = min(self.identify_due, self.identity.asked_until + ASK_DISTANCE)
        if change:
            self.changes[name] += 1
            self.moved[name] = self.moved.get(name, 0.0) + change.moved
        log_change(name, before, entry, change)
        missing = in_force.missing.keys() - bindings.weights.keys()
        log_missing(name, tracked.logged_missing, missing)
        tracked.logged_missing = missing
        # Set only here, so that a reading which failed half-way (its queues were not readable, say) changes nothing.
        tracked.in_force, tracked.bound = in_force, bound
        self.overlays.settle(name, shown_type, reading.bindings, started)
        for lane, lane_shown in read_behind.shown.items():
            self.overlays.settle((name[0], lane), lane_shown.exchange_type, lane_shown.bindings, started)
        self._router.used_at.setdefault(name, started)
        self.results["ok"] += 1
        self._keep(name, entry)
        tracked.read_started = started
        look_again_at = (
            in_force.look_again_at(self._settle_time),
            bound.look_again_at(self._settle_time),
            self.overlays.of(name).ends_at(),
        )
        in_turn = started + random.uniform(0, self._interval)
        tracked.due = min(in_turn, *(at if at is not None else in_turn for at in look_again_at))
        if self.tracked.setdefault(name, tracked) is tracked:
            self.wake.set()

    def _in_force(
        self,
        name: Name,
        tracked: TrackedExchange,
        reading: Reading,
        corrected: Collection[Binding],
        behind: Mapping[str, Behind],
        started: float,
        confirmed_removals: Collection[Destination],
    ) -> tuple[Bindings, WeightsInForce[Destination]]:
        """Return a hash exchange's bindings, `corrected` by declarations, and the weights in force after a reading."""
        exchange_type = reading.exchange.type if reading.exchange is not None else ""
        bindings = weigh(corrected, exchange_type, behind)
        shown = weigh(reading.bindings, exchange_type, behind).weights
        if isinstance(tracked.fault, VhostNotListedError):
            # The virtual host was deleted and made again, or was hidden: only what shows now exists.
            confirmed_removals = tracked.in_force.weights.keys()
        if reading.exchange is None:
            # A listing that lacks the ring exchange may lack its lanes for the same reason. So their absence counts
            # once it lasts, unless a declaration or a refused publish says the same.
            vhost, proved = name[0], self.overlays
            behind = {
                lane: found
                for lane, found in behind.items()
                if found.leads is not Leads.ABSENT or (vhost, lane) in proved
            }
        removed = self._removed(name, tracked.in_force.weights, behind, confirmed_removals)
        return bindings, tracked.in_force.after(
            bindings.weights, started, time.monotonic(), self._settle_time, removed, shown
        )

    def withdraw_additions(self, name: Name, gone: Collection[Destination]) -> None:
        """Let only readings tell whether destinations are bound that a returned message has shown to be gone.

        The return of a message to a lane shows that no queue is bound to the lane, whatever the lane is bound to.
        """
        entry = self._router.entries.get(name)
        lanes = {lane: queue for queue, lane in entry.lanes.items()} if entry is not None else {}
        for destination in gone:
            queue = lanes.get(destination.name) if destination.kind == "exchange" else None
            if queue is None:
                self.overlays.of(name).withdraw_additions([destination])
            else:
                self.overlays.of((name[0], destination.name)).withdraw_additions([queue])

    def _removed(
        self,
        name: Name,
        in_force: Collection[Destination],
        behind: Mapping[str, Behind],
        returned: Collection[Destination],
    ) -> set[Destination]:
        """Return the destinations in force whose removal a second source confirms: a declaration, a returned message,
        or the reading of the lane that led to one.

        `returned` are the destinations that returned messages have shown to be gone.
        """
        before = self._router.entries.get(name)
        lanes = before.lanes if before is not None else {}
        ways = [Destination("exchange", lane) for lane in lanes.values()]
        removed = {*returned, *self.overlays.of(name).confirmed_removals([*in_force, *ways])}
        removed.update(q for q, lane in lanes.items() if self.overlays.of((name[0], lane)).confirmed_removals([q]))
        return removed | gone_behind(in_force, lanes, behind, removed)

    def _drop(self, name: Name, before: Entry | None) -> None:
        """Forget an exchange that does not exist; a named one is read again in turn."""
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
    """Return the error that an exchange does not exist."""
    return Absent(f"there is no exchange {name[1]!r} in virtual host {name[0]!r}")
