"""Read one exchange at a time into the router's table: its bindings, what is behind them, and what is in force."""

import logging
import math
import time
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from proxy.settings.config import OnDeadLetter
from proxy.settings.patterns import Mode, Selection
from proxy.topology.bindings import RING_TYPES, Behind, Binding, Bindings, Leads, TopologyError, promises_of, weigh
from proxy.topology.changes import log_absent, log_change, log_missing, title
from proxy.topology.cluster import ClusterIdentity
from proxy.topology.entry_builder import FIRST, EntryBuilder
from proxy.topology.generations import Current, current, divided
from proxy.topology.kept_rings import KeptRings
from proxy.topology.lanes import NOTHING_READ, Lanes, gone_behind
from proxy.topology.lookups import Absent
from proxy.topology.management import Management, ManagementError, NotAskableError
from proxy.topology.overlay_store import OverlayStore
from proxy.topology.reading import Reading, RecentListings, VhostNotListedError, read_exchange_and_bindings
from proxy.topology.removals import WeightsInForce
from proxy.topology.ring_cache import RingCache
from proxy.topology.switching import known_shards, of_ring, others_bound, stays, to_read
from proxy.topology.table import NEVER, Change, Entry, Name, PassReason, Router, Unread
from proxy.topology.upstreams import Upstreams
from ring.destination import Destination

log = logging.getLogger(__name__)

LONGEST_DOUBT = 1.0
"""The most seconds between the two readings of an exchange that is not known yet and shows no bindings, or of a lane of
such an exchange."""

IN_TURN = "a regular reading"
"""The reason for a reading that nobody asked for, as log lines name it."""


@dataclass
class ExchangeState:
    """The state that one reading of an exchange hands on to the next."""

    is_named: bool = False
    """Whether a setting names the exchange."""
    in_force: WeightsInForce[Destination] = field(default_factory=WeightsInForce)
    """The weights to route by after the last reading."""
    bound: WeightsInForce[Binding] = field(default_factory=WeightsInForce)
    """The bindings of an upstream exchange that are in force after the last reading, each with the weight 1."""
    logged_missing: Collection[Destination] = ()
    """The missing destinations that the log has named."""
    fault: ManagementError | TopologyError | None = None
    """How the last reading failed; None if it did not."""
    confirmed_removals: set[Destination] = field(default_factory=set)
    """Destinations whose removal a returned message has confirmed since the last reading."""
    others: WeightsInForce[tuple[int, Destination]] = field(default_factory=WeightsInForce)
    """The destinations of the generations that are not the ring, by their numbers, each with the weight 1."""
    lanes_read: bool = True
    """Whether the last good reading looked for lanes, which it does for an exchange whose ring is of use.

    Otherwise its weights have lanes for destinations, and none of them may be in force with the queues behind."""
    read_started: float = NEVER
    """When the last good reading started, in monotonic seconds; NEVER before the first."""


class Reader:
    """Reads an exchange when it is told to, and puts what follows from the reading into the router's table.

    It lives as long as the process. The scheduler decides when to read, and never reads an exchange twice at a time.
    """

    def __init__(
        self,
        api: Management,
        router: Router,
        selection: Selection,
        *,
        settle_time: float,
        on_dead_letter: OnDeadLetter = "pass",
        cache: RingCache | None = None,
        max_age: float = math.inf,
    ) -> None:
        """Read nothing yet. `settle_time` and `max_age` are the settings `settle_time` and `ring_max_age`, in seconds.

        Entries are kept on disk in `cache`, if there is one, and restored from it when a reading fails.
        """
        self._api, self._router, self._selection, self._settle_time = api, router, selection, settle_time
        self.identity = ClusterIdentity(api)
        self._entry_builder = EntryBuilder(api, selection, on_dead_letter)
        self.kept = KeptRings(cache, self._entry_builder, router, self.identity, max_age)
        self.overlays = OverlayStore()
        self.listings = RecentListings()
        self._lanes = Lanes(api, self.overlays, min(settle_time, LONGEST_DOUBT))
        self._upstreams = Upstreams(api, selection, self.overlays, settle_time)
        self.results: Counter[str] = Counter()
        """The number of readings by result: ok, absent, failed."""
        self.changes: Counter[Name] = Counter()
        """The number of changes of each exchange's ring."""
        self.moved: dict[Name, float] = {}
        """The sum of the shares of slots that changes of each exchange's ring moved."""
        self.look_up_fault: tuple[str, str] | None = None
        """The virtual host of the last failed look-up and its fault; None once a reading in that virtual host has
        succeeded."""

    def close(self) -> None:
        """End the threads: the one that builds rings once its ring is finished, the cache's once its
        files are written.
        """
        self._entry_builder.close()
        self.kept.close()

    async def read(self, name: Name, state: ExchangeState, started: float, why: str) -> float:
        """Read an exchange, which starts at the monotonic time `started`, and update the table.

        If it cannot be read, it may be restored from disk instead. Returns when to read it again at the latest,
        infinity if that does not matter. Raises Absent, ManagementError or TopologyError. `why` is the reason for the
        reading, in words.
        """
        # An exchange that was declared exists, though a recent list lacks it: it is read, or publishes would be passed.
        declared = name in self.overlays or self.overlays.incomplete_for(name, started)
        if not (declared or self._is_known(name, state)):
            declared_at = self.overlays.of(name).declared_at
            if self.listings.lacks(name, declared_at, started):
                raise VhostNotListedError(name[0]) if self.listings.lacks_vhost(name[0]) else absent(name)
        try:
            return await self._read(name, state, started, why)
        except Absent:
            raise
        except Exception as error:
            fault: ManagementError | TopologyError
            if isinstance(error, ManagementError | TopologyError):
                fault = error
                await self.leave_out_missing(name, state)
                self._failed(name, state, why, started, fault)
            else:
                # A defect in this program must end neither this exchange's readings nor the others'.
                fault = ManagementError(f"unexpected {type(error).__name__}: {error}")
                self._failed(name, state, why, started, fault, error)
            # The exchange cannot exist, or nothing can be asked of it, so nothing is restored.
            if isinstance(fault, VhostNotListedError | NotAskableError) or not await self.restore(name, state):
                raise fault from None
            return math.inf

    async def restore(self, name: Name, state: ExchangeState) -> bool:
        """Put an exchange that cannot be read into the table as it is kept on disk, with the age of the kept reading.

        Returns whether the exchange was restored and publishes can use its entry now. It then counts as one whose last
        reading failed.
        """
        if name in self._router.entries or name in self.overlays:
            return False
        entry = await self.kept.entry(name)
        if entry is None or name in self._router.entries:
            return False
        state.in_force = WeightsInForce(entry.known.ring.as_weights() if entry.known is not None else {})
        self._router.put(name, entry)
        if isinstance(self._router.look(name), Unread):
            return False
        state.fault = state.fault or ManagementError("the management API has not answered yet")
        return True

    def forget(self, name: Name, state: ExchangeState) -> None:
        """Take an exchange out of the table, and its weights out of force, also for a reading under way."""
        self._router.drop(name)
        state.in_force = WeightsInForce()

    def pass_until_read(self, name: Name) -> None:
        """Put an exchange that is not known into the table as one whose publishes pass, as they did until now."""
        now = time.monotonic()
        passed = PassReason.MODE_PASS
        self._router.put(name, Entry(Mode.PASS, "", None, passed, Bindings(), read_at=now))
        self._router.used_at[name] = now

    def _is_known(self, name: Name, state: ExchangeState) -> bool:
        """Return whether the exchange is read in turn, so that no client has just chosen its name."""
        return state.is_named or name in self._router.entries

    async def leave_out_missing(self, name: Name, state: ExchangeState) -> None:
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
        if self._router.entries.get(name) is not before:
            return  # The exchange was read or forgotten meanwhile.
        state.in_force = WeightsInForce({d: w for d, w in state.in_force.weights.items() if d not in gone})
        self._put(name, before, entry, change)

    def _put(self, name: Name, before: Entry | None, entry: Entry, change: Change | None) -> None:
        """Replace an exchange's entry, unless that is of a newer reading, and count and log how the new one differs.

        Two readings overlap if a reload names an exchange during its first one.
        """
        present = self._router.entries.get(name)
        if present is not None and present.read_at > entry.read_at:
            return
        self._router.put(name, entry)
        if change:
            self.changes[name] += 1
            self.moved[name] = self.moved.get(name, 0.0) + change.moved
        log_change(name, before, entry, change)

    def _failed(
        self,
        name: Name,
        state: ExchangeState,
        why: str,
        started: float,
        fault: ManagementError | TopologyError,
        defect: Exception | None = None,
    ) -> None:
        """Count a failed reading, and log it unless the last one failed alike."""
        self.results["failed"] += 1
        if self._is_known(name, state):
            news = str(fault) != str(state.fault)
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
        state.fault = fault
        state.in_force, state.bound = state.in_force.after_failure(), state.bound.after_failure()
        state.others = state.others.after_failure()
        self._router.release_uncertain(name, started)
        if isinstance(fault, VhostNotListedError):
            self._may_be_deleted(name, why, started)

    def _may_be_deleted(self, name: Name, why: str, started: float) -> None:
        """Have a publish read the exchange first, since its virtual host is not listed and may have been deleted.

        If the virtual host is made again, no earlier declaration or ring may be used. If only the management user may
        not see it, that reading fails, too, and the last good ring serves on.
        """
        if self.overlays.of(name).declared_at < started:
            self.overlays.forget(name)
        if why == IN_TURN and name in self._router.entries:
            self._router.mark_declared(name, time.monotonic(), certain=False)

    async def _read(self, name: Name, state: ExchangeState, started: float, why: str) -> float:
        """Make one reading, and update the table, the weights in force and the overlay by it.

        Returns when to read again at the latest. Raises Absent, ManagementError or TopologyError.
        """
        # Asked once: a reload may change them during the requests, and then has the exchange read again.
        mode, _, has_ring = self._selection.says(*name)
        if has_ring and not state.lanes_read:
            state.in_force = WeightsInForce()
        confirmed_removals = frozenset(state.confirmed_removals)
        if not self.identity.asked:
            # Without the cluster's name, the first messages could go to another cluster than the one that is read.
            await self.identity.ask()
        pause = 0.0 if name in self._router.entries else min(self._settle_time, LONGEST_DOUBT)
        reading = await read_exchange_and_bindings(
            self._api,
            name,
            pause,
            lambda vhost, names: self.listings.note(vhost, names, started),
            self._upstreams.types(name),
        )
        exchange, overlay = reading.exchange, self.overlays.of(name)
        shown_type = exchange.type if exchange is not None else None
        if self.overlays.incomplete_for(name, started):
            raise ManagementError("too many declarations wait until a reading shows them")
        if overlay.misses_exchange(shown_type, started):
            raise ManagementError("it was declared, and the management API does not show it yet")
        before = self._router.entries.get(name)
        # Corrected once: an exchange that a declaration binds during the next request has not been read.
        corrected = overlay.apply(reading.bindings, started)
        read_behind, known = NOTHING_READ, known_shards(name[1], before)
        # A virtual host that was not listed was deleted and made again, or was hidden: only what shows now exists.
        only_shown = isinstance(state.fault, VhostNotListedError)
        upstream, bound = await self._upstreams.read(
            name, reading, corrected, before, state.bound, started, confirmed_removals, only_shown=only_shown
        )
        if upstream is None and has_ring:
            bound_to = {*to_read(corrected, before, known), *state.in_force.weights}
            promises = promises_of(corrected)
            read_behind = await self._lanes.read(name[0], bound_to, promises, before, confirmed_removals, started)
            if torn := _newly_unpromised(read_behind.behind, before):
                # While a group is added, the ring's binding comes to name the shard, and then its lane to lead to the
                # fan only. A reading that has the one from before and the other from after would pass the exchange.
                promises = promises_of(overlay.apply(await self._api.bindings(*name), started))
                doubted = confirmed_removals | torn
                read_behind = await self._lanes.read(name[0], bound_to, promises, before, doubted, started)
        bindings, in_force, found = Bindings(), WeightsInForce[Destination](), Current(FIRST)
        if upstream is None and (exchange is None or exchange.type in RING_TYPES):
            bindings, in_force, found = self._in_force(
                name, state, reading, corrected, read_behind.behind, started, confirmed_removals
            )
        behind = of_ring(read_behind.behind, found, before)
        others, others_in_force = others_bound(
            name[1],
            # Without a ring, no lane is read that would tell of a shard.
            found if has_ring else Current(FIRST),
            read_behind.behind,
            known,
            before,
            state.others,
            started,
            time.monotonic(),
            self._settle_time,
        )
        if exchange is None and (before is None or not (in_force.weights or bound.weights)):
            self.results["absent"] += 1
            state.in_force, state.bound, state.others = WeightsInForce(), WeightsInForce(), WeightsInForce()
            self.overlays.settle(name, shown_type, reading.bindings, started)
            self._succeeded(name, state, confirmed_removals)
            self._drop(name, state, before)
            raise absent(name)
        entry, change = await self._entry_builder.entry(
            name,
            mode,
            exchange,
            bindings,
            behind,
            in_force.weights,
            before,
            started,
            why,
            upstream,
            found.ring,
            others,
        )
        self._put(name, before, entry, change)
        missing = in_force.missing.keys() - bindings.weights.keys()
        log_missing(name, state.logged_missing, missing)
        state.logged_missing = missing
        # Set only here, so that a reading which failed half-way (its queues were not readable, say) changes nothing.
        state.in_force, state.bound, state.lanes_read = in_force, bound, has_ring
        state.others = others_in_force
        self.overlays.settle(name, shown_type, reading.bindings, started)
        for lane, lane_shown in read_behind.shown.items():
            self.overlays.settle((name[0], lane), lane_shown.exchange_type, lane_shown.bindings, started)
        self._router.used_at.setdefault(name, started)
        self.results["ok"] += 1
        self.kept.keep(name, entry)
        self._succeeded(name, state, confirmed_removals)
        state.read_started = started
        look_again_at = (
            in_force.look_again_at(self._settle_time),
            bound.look_again_at(self._settle_time),
            others_in_force.look_again_at(self._settle_time),
            self.overlays.of(name).ends_at(),
            math.inf,
        )
        return min(at for at in look_again_at if at is not None)

    def _succeeded(self, name: Name, state: ExchangeState, confirmed_removals: Collection[Destination]) -> None:
        """Note that a reading has not failed; it has taken these removals into account."""
        if state.fault is not None:
            log.info("%s can be read again", title(name))
        state.fault = None
        state.confirmed_removals.difference_update(confirmed_removals)
        if self.look_up_fault is not None and self.look_up_fault[0] == name[0]:
            self.look_up_fault = None

    def _in_force(
        self,
        name: Name,
        state: ExchangeState,
        reading: Reading,
        corrected: Collection[Binding],
        behind: Mapping[str, Behind],
        started: float,
        confirmed_removals: Collection[Destination],
    ) -> tuple[Bindings, WeightsInForce[Destination], Current]:
        """Return a hash exchange's bindings, the weights in force after a reading, and the bindings by generation.

        `corrected` are the bindings, corrected by declarations. Those of the generation that is the ring give weights.
        """
        exchange_type = reading.exchange.type if reading.exchange is not None else ""
        if isinstance(state.fault, VhostNotListedError):
            # The virtual host was deleted and made again, or was hidden: only what shows now exists.
            confirmed_removals = state.in_force.weights.keys()
        if reading.exchange is None:
            # A listing that lacks the ring exchange may lack its lanes for the same reason. Their absence counts once
            # it lasts, unless a declaration or a refused publish says the same.
            vhost, proved = name[0], self.overlays
            behind = {
                lane: found
                for lane, found in behind.items()
                if found.leads is not Leads.ABSENT or (vhost, lane) in proved
            }
        removed = self._removed(name, state.in_force.weights, behind, confirmed_removals)

        def weighed(found: Current, until_now: WeightsInForce[Destination]) -> WeightsInForce[Destination]:
            shown = divided(reading.bindings, found.ring.number).ring.bindings
            return until_now.after(
                weigh(found.bindings, exchange_type, behind).weights,
                started,
                time.monotonic(),
                self._settle_time,
                removed,
                weigh(shown, exchange_type, behind).weights,
            )

        before, newest = self._router.entries.get(name), current(corrected)
        number = before.generation if before is not None and state.in_force.weights else None
        if number is not None and number != newest.ring.number:
            found = divided(corrected, number)
            if before is not None:
                found = found._replace(ring=found.ring._replace(of=max(found.ring.of, before.made_with)))
            in_force = weighed(found, state.in_force)
            if in_force.weights and stays(found.ring, in_force, newest.ring, behind):
                return weigh(found.bindings, exchange_type, behind), in_force, found
            # The former ring's bindings are not gone, and count no more: nothing of it is to settle.
            return weigh(newest.bindings, exchange_type, behind), weighed(newest, WeightsInForce()), newest
        return weigh(newest.bindings, exchange_type, behind), weighed(newest, state.in_force), newest

    def confirm_removals(self, name: Name, state: ExchangeState, gone: Collection[Destination]) -> None:
        """Let only readings tell whether destinations are bound that a returned message has shown to be gone.

        The next reading need not wait to take those as removed that it does not show.
        The return of a message to a lane shows that no queue is bound to the lane, whatever the lane is bound to.
        """
        state.confirmed_removals.update(gone)
        entry = self._router.entries.get(name)
        lanes = {lane: queue for queue, lane in entry.lanes.items()} if entry is not None else {}
        for destination in gone:
            queue = lanes.get(destination.name) if destination.kind == "exchange" else None
            if queue is None:
                self.overlays.of(name).withdraw_additions([destination])
            else:
                found = entry.behind.get(destination.name) if entry is not None else None
                fan = [Destination("exchange", found.fan)] if found is not None and found.fan else []
                self.overlays.of((name[0], destination.name)).withdraw_additions([queue, *fan])

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

    def _drop(self, name: Name, state: ExchangeState, before: Entry | None) -> None:
        """Forget an exchange that does not exist."""
        if state.is_named and (before is not None or state.read_started == NEVER):
            log_absent(name)
        elif before is not None:
            log.info("%s: gone", title(name))
        self._router.drop(name)
        self.kept.forget(name)
        state.read_started = time.monotonic()


def absent(name: Name) -> Absent:
    """Return the error that an exchange does not exist."""
    return Absent(f"there is no exchange {name[1]!r} in virtual host {name[0]!r}")


def _newly_unpromised(behind: Mapping[str, Behind], before: Entry | None) -> frozenset[Destination]:
    """Return the exchanges that are no lanes for want of a promise alone, and were or may have been lanes before."""
    known = before.behind if before is not None else {}
    return frozenset(
        Destination("exchange", lane)
        for lane, found in behind.items()
        if found.leads is Leads.ASIDE and found.fan and (lane not in known or known[lane].leads is not Leads.ASIDE)
    )
