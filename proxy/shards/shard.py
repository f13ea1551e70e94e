"""The exchanges that a topology file wants, and their shards: what they are called, and how many there are. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from proxy.topology.bindings import CONSISTENT_HASH, Promise
from proxy.topology.generations import prefix_of, queue_of

QueueType = Literal["quorum", "classic", "stream"]
Value = str | int | float | bool
"""The value of an argument of a queue or an exchange."""
Arguments = Mapping[str, Value]

MAX_SHARDS = 10_000
"""The most shards of one exchange, and the greatest number of a shard."""


class Shard(NamedTuple):
    """One shard as a file wants it: a queue, the lane that leads to it, and its weight on the ring."""

    number: int
    queue: str
    lane: str | None
    """The name of the fanout exchange in front of the queue; None if the ring's exchange is bound to the queue."""
    weight: int
    type: QueueType
    arguments: Arguments
    """The queue's arguments as the file has them, without those that are set by default."""
    fan: str | None = None
    """The name of the fanout exchange that gives each group a copy; None if there is only the exchange's own group."""
    promise: Promise | None = None
    """The arguments of the ring's binding to the lane; None without a fan."""

    @property
    def place(self) -> str:
        """The name of the shard on the ring: that of its queue in the exchange's first generation."""
        return self.promise.shard if self.promise is not None else self.queue

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues of the shard, that of the exchange's own group first."""
        further = self.promise.queues - {self.queue} if self.promise is not None else ()
        return (self.queue, *sorted(further))


@dataclass(frozen=True)
class OwnTerms:
    """One `[[exchange.shard]]` of a file. A field is None if the shard has what its exchange says."""

    queue: str | None = None
    lane: str | Literal[False] | None = None
    """The lane's name; False for a shard without a lane."""
    weight: int | None = None
    queue_type: QueueType | None = None
    arguments: Arguments | None = None


@dataclass(frozen=True)
class Sharded:
    """One `[[exchange]]` of a file."""

    place: str
    """The place in the file, as messages name it: ``[[exchange]] 2, "orders"``."""
    name: str
    vhost: str = "/"
    type: str = CONSISTENT_HASH
    arguments: Arguments = field(default_factory=dict)
    """The exchange's arguments, such as `hash-header`."""
    numbers: tuple[int, ...] | None = None
    """The numbers of the wanted shards, ascending; None if `per_node` says how many there are."""
    per_node: int | None = None
    """The number of shards for each node of the cluster; None if `numbers` names them."""
    retiring: frozenset[int] = frozenset()
    """The numbers of shards that are being retired: nothing is done to them."""
    lanes: bool = True
    groups: tuple[str, ...] = ()
    """The names of the groups beside the exchange's own, sorted."""
    queue_type: QueueType = "quorum"
    queue_arguments: Arguments = field(default_factory=dict)
    own: Mapping[int, OwnTerms] = field(default_factory=dict)
    """The terms of the shards that have an `[[exchange.shard]]`, by the number of the shard."""
    generation: int = 1
    """The generation of the shards, which no file says: queues and lanes of a later one have it in their names."""
    made_with: int = 0
    """How many shards a later generation was made with; 0 for the first one."""

    @property
    def has_own_names(self) -> bool:
        """Whether every shard has the names that a later generation gives it: none has a queue or a lane of its own."""
        return self.lanes and all(terms.queue is None and terms.lane is None for terms in self.own.values())

    def label(self, number: int) -> str:
        """Return the end of the names of a shard's queue and lane, such as `3`, or `g2.3` in the generation 2."""
        return f"{prefix_of(self.generation)}{number}"

    def shard(self, number: int) -> Shard:
        """Return the shard with this number."""
        own, label = self.own.get(number, OwnTerms()), self.label(number)
        lane = self.lanes if own.lane is None else own.lane
        place = own.queue or f"{self.name}.{number}"
        queue = queue_of(place, self.generation)
        copies = {f"{self.name}/{group}": f"{self.name}.{group}.{label}" for group in self.groups}
        promise = None
        if copies or self.generation > 1:
            groups = tuple(sorted({self.name: queue, **copies}.items()))
            promise = Promise(place, groups, self.generation, self.made_with)
        return Shard(
            number,
            queue,
            f"{self.name}.lane.{label}" if lane is True else lane or None,
            own.weight or 1,
            own.queue_type or self.queue_type,
            self.queue_arguments if own.arguments is None else own.arguments,
            f"{self.name}.fan.{label}" if copies else None,
            promise,
        )

    def number_of(self, queue: str) -> int | None:
        """Return the number of the shard that has this name on the ring; None if no shard of this exchange can."""
        for number, own in self.own.items():
            if own.queue == queue:
                return number
        found = _number_after(f"{self.name}.", queue)
        return found if found is not None and self.shard(found).place == queue else None

    def number_of_lane(self, lane: str) -> int | None:
        """Return the number of the shard whose lane has this name; None if no shard of this exchange can have it."""
        for number, own in self.own.items():
            if own.lane == lane:
                return number
        found = _number_after(f"{self.name}.lane.{prefix_of(self.generation)}", lane)
        return found if found is not None and self.shard(found).lane == lane else None

    def shards(self, existing: Iterable[int], nodes: int) -> tuple[Shard, ...]:
        """Return the wanted shards, ascending by number.

        `existing` are the numbers of shards that are there and `nodes` is the number of running nodes. Both count only
        for `shards_per_node`: there are never fewer shards than exist, so a node that leaves takes none away.
        """
        if self.numbers is not None:
            return tuple(self.shard(number) for number in self.numbers if number not in self.retiring)
        wanted = set(existing) - self.retiring
        number = 1
        while len(wanted) < min((self.per_node or 0) * nodes, MAX_SHARDS):
            if number not in self.retiring:
                wanted.add(number)
            number += 1
        return tuple(map(self.shard, sorted(wanted)))


def _number_after(prefix: str, name: str) -> int | None:
    """Return the number of a shard that follows a prefix in a name; None if none does."""
    digits = name.removeprefix(prefix)
    if digits == name or not (digits.isascii() and digits.isdigit()) or digits.startswith("0"):
        return None
    number = int(digits) if len(digits) <= len(str(MAX_SHARDS)) else MAX_SHARDS + 1
    return number if number <= MAX_SHARDS else None
