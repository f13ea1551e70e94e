"""The table of exchanges that publishes are routed by. An entry is never changed, but replaced as a whole."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Final, NamedTuple

from proxy.settings.patterns import Mode
from proxy.topology.bindings import Behind, Bindings, Leads
from proxy.topology.generations import OtherGeneration, queues_behind
from proxy.topology.matching import Upstream
from proxy.topology.names import natural
from ring.destination import Destination
from ring.hashed import HashedValue
from ring.ring import Ring, fingerprint

Name = tuple[str, str]
"""The virtual host and the name of an exchange."""

NEVER: Final = float("-inf")
"""The monotonic time of what has not happened yet."""

CHANGES_KEPT = 16
"""The most changes of its ring that one entry remembers."""

MAX_HOPS = 8
"""The most ring exchanges that one publish goes through; more count as a cycle."""


class PassReason(StrEnum):
    """The reason why a publish is left to the exchange itself, as metrics and the journal name it."""

    TYPE = "type"
    NO_BINDINGS = "no_bindings"
    MODE_PASS = "pass"
    SHADOW = "shadow"
    SHARE = "share"
    DEAD_LETTER = "dead_letter"
    INTERNAL_DESTINATION = "internal_destination"
    NOT_A_LANE = "not_a_lane"
    CYCLE = "cycle"
    NO_RING = "no_ring"
    COPIES = "copies"
    OVERLAP = "overlap"
    INTERNAL = "internal"
    ABSENT = "absent"


WHATEVER_IS_BOUND: Final = frozenset({PassReason.TYPE, PassReason.MODE_PASS})
"""The reasons to pass that no change of the bindings removes."""


KEEPS_FROM_ROUTING: Final = frozenset(
    {PassReason.DEAD_LETTER, PassReason.INTERNAL_DESTINATION, PassReason.NOT_A_LANE, PassReason.OVERLAP}
)
"""The reasons that keep an exchange in mode route from being routed, until an operator mends its topology."""


@dataclass(frozen=True)
class Change:
    """One change of a ring, as the log and `ring-proxy explain` show it."""

    at: float
    """When the ring changed, in seconds since 1970."""
    why: str
    """Why the exchange was read, in words."""
    what: str
    """How the ring differs, in words."""
    moved: float
    """The share of the slots that changed owner, 0 to 1."""
    fingerprint: str
    """The fingerprint of the new ring; empty if there is none any more."""


@dataclass(frozen=True)
class KnownRing:
    """A ring, with what else decides which destination its exchange chooses for a message."""

    ring: Ring
    hashed: HashedValue
    """The part of a message that the exchange hashes."""
    exchange_type: str
    fingerprint: str
    """A short hash of ring, hashed value and exchange type: equal fingerprints route equally."""
    generation: int = 1
    """The number of the generation whose shards are on the ring."""

    @classmethod
    def of(cls, ring: Ring, hashed: HashedValue, exchange_type: str, generation: int = 1) -> "KnownRing":
        """Return the ring with its fingerprint."""
        weights = ring.as_weights()
        return cls(ring, hashed, exchange_type, fingerprint(weights, exchange_type, str(hashed)), generation)

    @property
    def queues(self) -> dict[str, str]:
        """By place, the queue behind it, of those whose queues have other names; empty for generation 1."""
        return queues_behind((d.name for d in self.ring.destinations if d.kind == "queue"), self.generation)

    @cached_property
    def journalled(self) -> str:
        """The fingerprint by which the journal names the ring, which differs between generations of the same shards."""
        if not (queues := self.queues):
            return self.fingerprint
        return fingerprint(self.ring.as_weights(), self.exchange_type, str(self.hashed), queues)


@dataclass(frozen=True)
class Entry:
    """All that is known of one exchange that exists: a ring to route by, a reason to pass, or both.

    An entry lives until the next reading of the exchange makes another one.
    """

    mode: Mode
    """The mode that the settings give the exchange: route, shadow or pass."""
    exchange_type: str
    known: KnownRing | None
    """The ring; None if the exchange has none, by its type, its mode or for want of bindings."""
    passed: PassReason | None
    """Why publishes are passed to the exchange itself; None if `known` or `upstream` routes them."""
    bindings: Bindings
    """The bindings of the last reading, corrected by declarations."""
    read_at: float
    """When the last good reading started, in monotonic seconds."""
    lanes: Mapping[Destination, str] = field(default_factory=dict)
    """By queue of the ring, the lane that publishes to the queue go through; without the queues that have none."""
    behind: Mapping[str, Behind] = field(default_factory=dict)
    """By name, where each exchange leads that the exchange is bound to, or that a lane in `lanes` is.

    The exchange that was asked for longest ago comes first.
    """
    queues: Mapping[str, str | None] = field(default_factory=dict)
    """By bound queue, the argument or policy that makes it dead-letter under its own name.

    The value is empty if the queue does not, and None if the management API does not show it yet. The queue that was
    asked for longest ago comes first.
    """
    changes: tuple[Change, ...] = ()
    """The last changes of the ring, the oldest first."""
    internal: bool = False
    """Whether the exchange takes messages from other exchanges only."""
    balances: str = ""
    """The hash exchange whose consumer group sidecars balance by this exchange; empty for every other exchange.

    Only sidecars publish to it. AMQP clients need the right to write there, as on any exchange."""
    publish_in: int | None = None
    """The number of messages published to the exchange, as the broker last counted them; None if it gave no number."""
    restored: bool = False
    """Whether the entry was kept on disk by an earlier process, and not read by this one."""
    refused: str = ""
    """Why publishes are refused instead of passed; empty if they are not refused."""
    upstream: Upstream | None = None
    """The rule that decides which ring behind the exchange gets a message; None if this is no upstream exchange."""
    generation: int = 1
    """The number of the generation of shards that is the ring."""
    made_with: int = 0
    """The number of shards that the ring's generation was made with; 0 for generation 1."""
    others: tuple[OtherGeneration, ...] = ()
    """The other generations that are bound, the lowest first. Groups consume their shards, too."""

    @property
    def follows_bindings(self) -> bool:
        """Whether the bindings decide if publishes are routed, so that a passed publish, too, depends on a fresh
        reading.
        """
        return self.mode is Mode.ROUTE and self.passed is not PassReason.TYPE

    @property
    def not_lanes(self) -> dict[str, str]:
        """The fanout exchanges that the exchange is bound to and that are not lanes, with the reasons, sorted."""
        return {name: found.why for name, found in sorted(self.behind.items()) if found.leads is Leads.ASIDE}

    @property
    def incomplete(self) -> dict[str, tuple[str, ...]]:
        """The promised queues that get no copies, by the shard whose lane should lead to them."""
        lost = ((shard.name, self.behind.get(lane)) for shard, lane in self.lanes.items())
        return {shard: found.missing for shard, found in sorted(lost) if found is not None and found.missing}

    @property
    def copied(self) -> frozenset[str]:
        """The shards of which several groups get a copy of each message, or will once they are open to these."""
        found = ((shard.name, self.behind.get(lane)) for shard, lane in self.lanes.items())
        return frozenset(
            shard
            for shard, at in found
            if at is not None
            and at.promise is not None
            and (len(at.promise.queues) > 1 or (self.generation > 1 and at.fan))
        )

    def shards_of(self, exchange: str) -> Iterator[tuple[str, tuple[tuple[str, str], ...]]]:
        """Return the shards of the ring of this exchange, by name, with the queue of each group that consumes it.

        A shard of generation 1 of which nothing is promised is consumed by the group without a name of its own.
        """
        weights = self.known.ring.as_weights() if self.known is not None else self.bindings.weights
        for shard in weights:
            if shard.kind == "queue":
                found = self.behind.get(self.lanes.get(shard, ""))
                groups = found.promise.groups if found is not None and found.promise is not None else ()
                yield shard.name, groups or (((exchange, shard.name),) if self.generation == 1 else ())

    def queues_of(self, group: str) -> list[str]:
        """Return the queues of a group by the name that clients consume, sorted; empty if no lane promises it any."""
        return sorted(queue for name, queue in self._promised() if name == group)

    @property
    def groups(self) -> frozenset[str]:
        """The groups that lanes promise copies to, by the names that clients consume."""
        return frozenset(name for name, _ in self._promised())

    def closed_to(self, exchange: str) -> dict[str, list[str]]:
        """Return the shards of this exchange's ring that are not open yet, sorted, by the group that waits for them."""
        if self.generation == 1:
            return {}
        shards = dict(self.shards_of(exchange))
        groups = {name for each in self.others for shard in each.shards.values() for name, _ in shard.groups}
        groups.update(name for opened in shards.values() for name, _ in opened)
        closed = {
            group: sorted((shard for shard, opened in shards.items() if group not in dict(opened)), key=natural)
            for group in groups
        }
        return {group: shards for group, shards in sorted(closed.items()) if shards}

    def _promised(self) -> Iterator[tuple[str, str]]:
        """Return the groups that the lanes of any generation promise something, each with one of its queues."""
        for lane in self.lanes.values():
            found = self.behind.get(lane)
            if found is not None and found.promise is not None:
                yield from found.promise.groups
        for each in self.others:
            for shard in each.shards.values():
                yield from shard.groups

    def placed(self, destination: Destination) -> Destination:
        """Return the destination as the ring has it: for a lane the queue behind it."""
        found = self.behind.get(destination.name) if destination.kind == "exchange" else None
        return Destination("queue", found.queue) if found is not None and found.queue else destination

    @property
    def dead_letters(self) -> tuple[str, ...]:
        """The names of the bound queues that would dead-letter under their own name, sorted."""
        return tuple(sorted(queue for queue, cause in self.queues.items() if cause))


class Unread(NamedTuple):
    """The reason why nothing may be published to an exchange now; mostly that it must be read first."""

    name: Name
    """The exchange that holds up the publish: the one published to, or one that its ring leads to."""
    why: str
    """The reason in words, for answers to clients and for the log."""
    other_cluster: bool = False
    """Whether the broker is not known to be of the management API's cluster. A look-up does not help; asking the API
    for its cluster's name again may."""
    refused: bool = False
    """Whether the exchange is known and its publishes are refused, so that a look-up does not help."""


class _UnreadDeclarations(NamedTuple):
    """Declarations that touch an exchange and came after the reading that its entry was made of."""

    since: float
    """When the first of the declarations was confirmed, in monotonic seconds."""
    at: float
    """When the last of the declarations was confirmed, in monotonic seconds."""
    certain: bool
    """Whether any of the declarations is known to change something."""


class Router:
    """The table of all known exchanges, which lives as long as the process. Only the event loop may use it."""

    def __init__(self, ring_max_age: float, refuse_stale: bool, clock: Callable[[], float] = time.monotonic) -> None:
        """Make an empty table. If `refuse_stale`, rings whose reading is older than `ring_max_age` seconds are not
        used.
        """
        self._entries: dict[Name, Entry] = {}
        self._max_age, self._refuse_stale, self.clock = ring_max_age, refuse_stale, clock
        self.used_at: dict[Name, float] = {}
        """When a publish last asked for each exchange, in monotonic seconds."""
        self._unread: dict[Name, _UnreadDeclarations] = {}
        """The declarations on each exchange that are to be read back before anything is published to it."""
        self.on_change: list[Callable[[], None]] = []
        """The functions that are called each time when publishes to any exchange may go elsewhere than before."""

    @property
    def entries(self) -> Mapping[Name, Entry]:
        """The entry of each known exchange."""
        return self._entries

    def put(self, name: Name, entry: Entry) -> None:
        """Replace an exchange's entry, and call `on_change` if that may change where publishes go."""
        before = self._entries.get(name)
        same = before is not None and _routes_alike(before, entry) and self.clock() <= self.fresh_until(before)
        self._entries[name] = entry
        unread = self._unread.get(name)
        if unread is not None and unread.at <= entry.read_at:
            del self._unread[name]
            same = False
        if not same:
            self.notify()

    def drop(self, name: Name) -> None:
        """Forget an exchange, and call `on_change`."""
        self._entries.pop(name, None)
        self.used_at.pop(name, None)
        self._unread.pop(name, None)
        self.notify()

    def forget_unknown(self, name: Name) -> None:
        """Forget the declarations on an exchange that is not in the table, once no reading of it is under way.

        Its next reading starts after them.
        """
        if name not in self._entries:
            self._unread.pop(name, None)

    def notify(self) -> None:
        """Call every function in `on_change`."""
        for callback in self.on_change:
            callback()

    def mark_declared(self, name: Name, at: float, *, certain: bool) -> None:
        """Note that a declaration on an exchange was confirmed at `at`: it is Unread until a later reading has shown
        it.

        `certain` is false if, as far as is known, the declaration changed nothing.
        """
        unread = self._unread.get(name)
        if unread is None:
            self._unread[name] = _UnreadDeclarations(at, at, certain)
        else:
            self._unread[name] = _UnreadDeclarations(
                min(at, unread.since), max(at, unread.at), certain or unread.certain
            )
        if unread is None:
            self.notify()

    def release_uncertain(self, name: Name, started: float) -> bool:
        """Stop waiting for an exchange's uncertain declarations, after a reading that started at `started` has failed.

        Declarations made since are not waited for, either, or clients that declare one after the other would hold up
        publishes for as long as nothing can be read. Returns whether the exchange was waited for until now.
        """
        unread = self._unread.get(name)
        if unread is None or unread.certain or unread.since > started:
            return False
        del self._unread[name]
        self.notify()
        return True

    def awaits_read_back(self, name: Name, asked: float = math.inf) -> bool:
        """Return whether a declaration on an exchange must be read back, and no reading started at `asked` or later."""
        entry = self._entries.get(name)
        return name in self._unread and (entry is None or entry.read_at < asked)

    def stale(self, entry: Entry) -> bool:
        """Return whether an entry's last good reading is longer ago than `ring_max_age`."""
        return self.clock() - entry.read_at > self._max_age

    def fresh_until(self, entry: Entry) -> float:
        """Return the monotonic time after which an entry is too old to be used; infinity if it never is."""
        return entry.read_at + self._max_age if self._refuse_stale and entry.follows_bindings else math.inf

    def look(self, name: Name, asked: float = math.inf) -> Entry | Unread:
        """Return the entry of an exchange that is published to, or why nothing may be published to it now.

        `asked` is when the publish came, in monotonic seconds. If a reading started after that, its entry is used even
        if more was declared since. Otherwise a stream of declarations would hold up the publish while it lasts.
        """
        entry = self._entries.get(name)
        if entry is None:
            return Unread(name, "not read yet")
        self.used_at[name] = self.clock()
        if self.awaits_read_back(name, asked):
            return Unread(name, "the management API does not show a declaration yet")
        if self.clock() > self.fresh_until(entry):
            return Unread(name, f"its ring is older than {self._max_age:g} s (ring_max_age)")
        if entry.refused:
            return Unread(name, entry.refused, refused=True)
        return entry


def _routes_alike(one: Entry, other: Entry) -> bool:
    """Return whether publishes go the same way by both entries."""
    alike = (one.passed, one.mode, one.internal) == (other.passed, other.mode, other.internal)
    alike = alike and one.upstream == other.upstream
    alike = alike and one.copied == other.copied
    return alike and one.refused == other.refused and one.known is other.known and one.lanes == other.lanes


def with_change(entry: Entry, change: Change) -> Entry:
    """Return the entry with one more change, and without the oldest if there are more than CHANGES_KEPT."""
    return replace(entry, changes=tuple(deque((*entry.changes, change), maxlen=CHANGES_KEPT)))
