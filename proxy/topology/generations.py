"""Tell the generations of an exchange's shards apart, and which of them is the exchange's ring. Pure: no I/O.

To change the number of shards with each key's order kept, an exchange gets a new generation of shards beside the one
that it has. All its bindings stand in the broker, so that every sidecar finds the same ring without asking another:

- A binding belongs to the generation that its argument `x-ring-generation` names, and to generation 1 without one.
- A generation is complete once lanes of as many shards are bound as it was made with (`x-ring-shards`); generation 1
  always is.
- The highest complete generation is the ring. Where none is complete, the lowest one is.

A generation is bound lane by lane, and by that rule nothing changes until its last lane is. The bindings of the others
give no weight; members of groups consume what they promise.
"""

from collections.abc import Iterable
from typing import NamedTuple

from proxy.topology.bindings import UNREADABLE, Binding, promises_of


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
    """Return which generation is the ring by bindings alone, as a sidecar reads them that knew nothing before."""
    bindings = tuple(bindings)
    found = generations(bindings)
    complete = [each.number for each in found if each.complete]
    return divided(bindings, complete[-1] if complete else None)


def divided(bindings: Iterable[Binding], number: int | None) -> Current:
    """Return bindings by generation, with the one of this number as the ring; None stands for the lowest.

    A generation without bindings is the ring as well, if it is the one.
    """
    bindings = tuple(bindings)
    found = generations(bindings)
    if number is None:
        number = found[0].number if found else 1
    ring = next((each for each in found if each.number == number), Generation(number))
    unreadable = tuple(binding for binding in bindings if binding.promise == UNREADABLE)
    return Current(ring, tuple(each for each in found if each.number != number), unreadable)
