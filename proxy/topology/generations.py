"""Tell the generations of an exchange's shards apart, and which of them is the exchange's ring. Pure: no I/O.

To change the number of shards with each key's order kept, an exchange gets a new generation of shards beside the one
that it has. All its bindings stand in the broker, so that every sidecar finds the same ring without asking another:

- A binding belongs to the generation that its argument `x-ring-generation` names, and to generation 1 without one.
- A generation is complete once lanes of as many shards are bound as it was made with (`x-ring-shards`); generation 1
  always is.
- The highest complete generation is the ring. Where none is complete, the lowest one is.

A generation is bound lane by lane, and by that rule nothing changes until its last lane is. A sidecar that routes by an
older one takes it once it has read that each of the lanes is one. It goes back to a lower one only once the lanes that
are missing count as removed, so that no passing lie of the management API takes it there. The bindings of the other
generations give no weight; members of groups consume the queues that they promise.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from proxy.topology.bindings import UNREADABLE, Behind, Binding, Leads, Promise, promises_of
from ring.destination import Destination


class Generation(NamedTuple):
    """The bindings of one exchange that belong to one generation."""

    number: int = 1
    bindings: tuple[Binding, ...] = ()
    of: int = 0
    """The number of shards that the generation was made with, by its bindings; 0 for generation 1."""

    @property
    def bound(self) -> int:
        """The number of the generation's shards that have a lane bound; of generation 1, whose bindings need not name
        their shards, the number of destinations.
        """
        if self.number == 1:
            return len({binding.destination for binding in self.bindings})
        lanes = (binding for binding in self.bindings if binding.destination.kind == "exchange")
        return len({promise.shard for _, _, promise in lanes if promise is not None and promise.shard})

    @property
    def complete(self) -> bool:
        """Whether all shards of the generation are bound."""
        return self.number == 1 or self.bound >= self.of


class Current(NamedTuple):
    """The generation that is the ring of an exchange, and the others."""

    ring: Generation
    """The ring's generation; generation 1 without bindings if the exchange has none."""
    others: tuple[Generation, ...] = ()
    """The other generations that have bindings, the lowest first."""
    unreadable: tuple[Binding, ...] = ()
    """The bindings that name a generation by arguments of another form, and belong to none."""

    @property
    def bindings(self) -> tuple[Binding, ...]:
        """The bindings that give weights, and those that need an operator's attention."""
        return (*self.ring.bindings, *self.unreadable)


def generations(bindings: Iterable[Binding]) -> tuple[Generation, ...]:
    """Return the generations that bindings belong to, the lowest first.

    A binding that promises nothing belongs to the generation of the other bindings to its lane.
    """
    bindings = tuple(bindings)
    promised = promises_of(bindings)
    found: dict[int, list[Binding]] = {}
    for binding in bindings:
        promise = binding.promise
        if promise is None and binding.destination.kind == "exchange":
            promise = promised[binding.destination.name]
        if promise != UNREADABLE:
            found.setdefault(promise.generation if promise is not None else 1, []).append(binding)
    return tuple(
        Generation(number, tuple(each), max((b.promise.of for b in each if b.promise is not None), default=0))
        for number, each in sorted(found.items())
    )


def current(bindings: Iterable[Binding]) -> Current:
    """Return which generation is the ring by the bindings alone, as for a sidecar that knew nothing before."""
    bindings = tuple(bindings)
    found = generations(bindings)
    complete = [each.number for each in found if each.complete]
    return _divided(bindings, found, complete[-1] if complete else found[0].number if found else 1)


def divided(bindings: Iterable[Binding], number: int) -> Current:
    """Return bindings by generation, with the one of this number as the ring, even if none of the bindings is of it."""
    bindings = tuple(bindings)
    return _divided(bindings, generations(bindings), number)


def _divided(bindings: tuple[Binding, ...], found: tuple[Generation, ...], number: int) -> Current:
    ring = next((each for each in found if each.number == number), Generation(number))
    unreadable = tuple(binding for binding in bindings if binding.promise == UNREADABLE)
    return Current(ring, tuple(each for each in found if each.number != number), unreadable)


def queue_of(place: str, generation: int) -> str:
    """Return the queue of the exchange's own group that a generation has for a shard: `orders.g2.3` for the place
    `orders.3`. The binding of its lane names it only once it is open.
    """
    exchange, _, number = place.rpartition(".")
    return f"{exchange}.{prefix_of(generation)}{number}" if exchange else place


def prefix_of(generation: int) -> str:
    """Return the text before the number of a shard in the names of its queues, lane and fan: `g2.` in generation 2."""
    return f"g{generation}." if generation > 1 else ""


def queues_behind(places: Iterable[str], generation: int) -> dict[str, str]:
    """Return by place the queue of `queue_of`, of those places whose queues have other names."""
    named = ((place, queue_of(place, generation)) for place in places)
    return {place: queue for place, queue in named if queue != place}


class OtherShard(NamedTuple):
    """A shard of a generation that is not the ring."""

    name: str
    """The name by which the shard is placed on the ring of its generation; empty if it is not known."""
    groups: tuple[tuple[str, str], ...] = ()
    """The queue of each group that consumes the shard, with the name by which clients consume the group before it."""


class OtherGeneration(NamedTuple):
    """A generation that is bound and is not the ring."""

    number: int
    of: int
    """The number of shards that the generation was made with; 0 for generation 1."""
    shards: Mapping[Destination, OtherShard]
    """The generation's shards, by the destination that the exchange is bound to."""
    misfits: tuple[str, ...] = ()
    """The lanes that are none, for which a complete generation is not the ring yet."""


def other(
    generation: Generation, exchange: str, behind: Mapping[str, Behind], known: Mapping[Destination, OtherShard]
) -> OtherGeneration:
    """Return a generation of an exchange as its bindings tell it.

    `behind` says where exchanges lead that were read. `known` has shards as they were known before: the binding to a
    lane of generation 1 need not name the shard, and the lane leads to its queue no more from a point of a change on.
    """
    promised = promises_of(generation.bindings)
    shards = {}
    for destination in dict.fromkeys(binding.destination for binding in generation.bindings):
        promise = promised.get(destination.name) if destination.kind == "exchange" else None
        shards[destination] = (
            _unpromised(destination, exchange, behind, known)
            if generation.number == 1 and promise is None
            else _promised(promise, exchange, generation.number)
        )
    return OtherGeneration(generation.number, generation.of, shards)


def _promised(promise: Promise | None, exchange: str, number: int) -> OtherShard:
    """Return a shard by the promise of its lane's bindings; one of a later generation may be open to no group yet."""
    if promise is None:
        return OtherShard("")
    own = ((exchange, promise.shard),) if number == 1 and promise.shard else ()
    return OtherShard(promise.shard, promise.groups or own)


def _unpromised(
    destination: Destination, exchange: str, behind: Mapping[str, Behind], known: Mapping[Destination, OtherShard]
) -> OtherShard:
    """Return a shard of generation 1 of which nothing is promised: the exchange's own group consumes its queue."""
    queue = destination.name
    if destination.kind == "exchange":
        found = behind.get(destination.name)
        if found is None or not found.queue:
            return known.get(destination, OtherShard(""))
        queue = found.queue
    return OtherShard(queue, ((exchange, queue),))


def unread_lanes(generation: Generation, known: Mapping[Destination, OtherShard]) -> set[Destination]:
    """Return the lanes that must be read to know the shards of a generation which is not the ring."""
    promised = promises_of(generation.bindings)
    return {
        Destination("exchange", lane)
        for lane, promise in promised.items()
        if generation.number == 1 and promise is None and Destination("exchange", lane) not in known
    }


def misfits(generation: Generation, behind: Mapping[str, Behind]) -> tuple[str, ...]:
    """Return the exchanges that a generation is bound to and that are not known to be lanes, sorted."""
    bound = {binding.destination.name for binding in generation.bindings if binding.destination.kind == "exchange"}
    return tuple(sorted(name for name in bound if name not in behind or behind[name].leads is not Leads.TO_QUEUE))
