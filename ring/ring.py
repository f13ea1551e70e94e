"""The ring: an immutable table of which destination owns each of 2^20 slots."""

import hashlib
from collections.abc import Mapping, Sequence, Set
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ring.contest import challenge, contest, won
from ring.destination import MAX_DESTINATIONS, MAX_WEIGHT, Destination
from ring.hashing import RING_FORMAT, SLOTS, hash64, index_at, slot_of
from ring.scores import U16, U64, draws, neg_log2, ranking, slot_streams

_NO_QUEUES: Mapping[str, str] = MappingProxyType({})

FEW_SLOTS = 100
"""The least slots that a destination should expect. One with fewer is flagged, as its share is too coarse to trust."""


class Ring:
    """The owner of each slot, as a pure function of the set of (destination, weight) pairs.

    Neither the order nor the history of bindings matters, so two machines with equal bindings route equally. A ring
    takes about 2 MiB. It is never changed, so threads may share it.
    """

    __slots__ = ("destinations", "owner_index", "table", "weights")

    destinations: tuple[Destination, ...]
    """The destinations, sorted; the table's entries are indices into them."""
    weights: tuple[int, ...]
    """The weight of each destination, in the order of `destinations`."""
    table: U16
    """The index of each slot's owner; a read-only array of shape (SLOTS,)."""
    owner_index: bytes
    """The table as little-endian bytes, in the same memory, for `hashing.index_at`."""

    def __init__(self, destinations: tuple[Destination, ...], weights: tuple[int, ...], table: U16) -> None:
        """Take a finished table, as `Ring.build` and `Ring.changed` make it."""
        self.destinations, self.weights = destinations, weights
        self.owner_index = table.astype("<u2").tobytes()
        self.table = np.frombuffer(self.owner_index, "<u2")

    @classmethod
    def build(cls, weights: Mapping[Destination, int]) -> "Ring":
        """Return the ring of these weights. It takes 2 to 6 ms of CPU for each destination, nearly all without the GIL.

        Raises ValueError for no destination, for more than MAX_DESTINATIONS, or for a weight out of range.
        """
        destinations, values = _checked(weights)
        return cls(destinations, values, contest(_seeds(destinations), np.array(values, np.uint64)))

    def changed(self, weights: Mapping[Destination, int]) -> "Ring":
        """Return the ring of other weights, computed from this ring at the cost of what differs.

        Destinations that are new or heavier challenge the owner of every slot. Those that are gone or lighter give up
        their slots, which all destinations then contest. The result equals `Ring.build(weights)`.
        """
        destinations, values = _checked(weights)
        before, after = self.as_weights(), dict(zip(destinations, values, strict=True))
        risers = [i for i, d in enumerate(destinations) if after[d] > before.get(d, 0)]
        lost = [i for i, d in enumerate(self.destinations) if after.get(d, 0) < before[d]]
        if not risers and not lost:
            return self
        if len(risers) + len(lost) > len(destinations) // 2:
            return Ring.build(weights)
        seeds, heft = _seeds(destinations), np.array(values, np.uint64)
        position = {d: i for i, d in enumerate(destinations)}
        table = np.array([position.get(d, 0) for d in self.destinations], dtype=np.uint16).take(self.table)
        if risers:
            table = challenge(seeds, heft, table, risers)
        if lost:
            is_lost = np.zeros(len(self.destinations), dtype=np.bool_)
            is_lost[lost] = True
            freed = np.flatnonzero(is_lost.take(self.table))
            table[freed] = contest(seeds, heft, freed)
        return Ring(destinations, values, table)

    def as_weights(self) -> dict[Destination, int]:
        """Return the weight of each destination."""
        return dict(zip(self.destinations, self.weights, strict=True))

    def owner(self, slot: int) -> Destination:
        """Return the destination that owns a slot."""
        return self.destinations[index_at(self.owner_index, slot)]

    def owner_of(self, key: bytes) -> Destination:
        """Return the destination that owns a key."""
        return self.owner(slot_of(key))

    def runner_up(self, slot: int) -> Destination | None:
        """Return the destination that would own a slot if its owner were gone; None if there is no other
        destination.
        """
        if len(self.destinations) == 1:
            return None
        stream = slot_streams(np.array([slot], dtype=np.int64))[0]
        order = ranking(stream, _seeds(self.destinations), np.array(self.weights, np.uint64))
        return self.destinations[int(order[1])]

    def slots(self) -> dict[Destination, int]:
        """Return the number of slots that each destination owns."""
        counts = np.bincount(self.table, minlength=len(self.destinations))
        return dict(zip(self.destinations, counts.tolist(), strict=True))

    def too_light(self) -> tuple[Destination, ...]:
        """Return the destinations whose weights let them expect fewer than FEW_SLOTS slots."""
        total = sum(self.weights)
        return tuple(d for d, w in self.as_weights().items() if SLOTS * w < FEW_SLOTS * total)

    def moved_from(self, other: "Ring") -> float:
        """Return the share of all slots, 0 to 1, that this ring gives to another destination than `other` does."""
        position = {d: i for i, d in enumerate(self.destinations)}
        absent = len(self.destinations)
        theirs = np.array([position.get(d, absent) for d in other.destinations], dtype=np.uint32)[other.table]
        return float(np.count_nonzero(theirs != self.table)) / SLOTS


def owners(weights: Mapping[Destination, int], slots: NDArray[np.int64]) -> U16:
    """Return the index of each given slot's owner, without building the whole ring.

    Indices are into the sorted destinations. Raises ValueError for weights of which no ring can be built.
    """
    destinations, values = _checked(weights)
    return contest(_seeds(destinations), np.array(values, np.uint64), slots)


def scores_of(destinations: Sequence[Destination], slots: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the score that each destination has for each slot at weight 1, an array of shape (slots, destinations).

    By any weights, the owner of a slot has the least score divided by its weight; scores are rounded to floats.
    """
    streams = slot_streams(slots)
    columns = [neg_log2(draws(streams, seed)).astype(np.float64) for seed in _seeds(tuple(destinations))]
    return np.stack(columns, axis=1)


class Changes(NamedTuple):
    """The slots that change their owner between two rings; the three arrays have an entry for each such slot."""

    slots: NDArray[np.int64]
    """The slots, in ascending order."""
    sources: U16
    """The owner before, as an index into the sorted destinations of the ring before."""
    targets: U16
    """The owner after, as an index into the sorted destinations of the ring after."""


def changes(before: Mapping[Destination, int], after: Mapping[Destination, int]) -> Changes:
    """Return the slots that change their owner between the rings of these weights, without building the two rings.

    A slot can only change to a destination that gains weight, or from one that loses weight. If these are few among
    many, only their slots are contested by all. Raises ValueError for weights of which no ring can be built.
    """
    gaining = {d for d, weight in after.items() if weight > before.get(d, 0)}
    losing = {d for d, weight in before.items() if weight > after.get(d, 0)}
    if len(gaining) + len(losing) > len(after) // 2:
        slots = np.arange(SLOTS)
    else:
        slots = np.union1d(_won(after, gaining), _won(before, losing))
    sources, targets = owners(before, slots), owners(after, slots)
    old, new = sorted(before), sorted(after)
    index = {destination: at for at, destination in enumerate(new)}
    stays = np.array([index.get(destination, -1) for destination in old])[sources] == targets
    return Changes(slots[~stays], sources[~stays], targets[~stays])


def _won(weights: Mapping[Destination, int], some: Set[Destination]) -> NDArray[np.int64]:
    """Return the slots that any of some destinations owns on the ring of these weights, in ascending order."""
    if not some:
        return np.empty(0, np.int64)
    destinations, values = _checked(weights)
    chosen = [at for at, destination in enumerate(destinations) if destination in some]
    return won(_seeds(destinations), np.array(values, np.uint64), chosen)


def fingerprint(
    weights: Mapping[Destination, int], exchange_type: str, hashed: str, queues: Mapping[str, str] = _NO_QUEUES
) -> str:
    """Return sixteen hex digits of a ring: rings with equal ones route equally.

    The digits cover the ring format, the hashed value (as `HashedValue` prints it), the exchange type and the sorted
    destinations with their weights. Each field is preceded by its length, so that no two inputs yield the same bytes.
    Lanes do not count. The journal's fingerprints cover `queues`, too: by destination the queue behind it where that
    has another name. Two generations of equal shards are therefore two rings in a journal, whose records name their
    rings by fingerprint. Operators compare the digits of sidecars, and `retire` those of a fleet.
    """
    digest = hashlib.blake2b(digest_size=8)
    fields = [str(RING_FORMAT), hashed, exchange_type]
    for destination in sorted(weights):
        fields += [destination.kind, destination.name, str(weights[destination])]
    for place in sorted(queues):
        fields += ["behind", place, queues[place]]
    for field in fields:
        data = field.encode()
        digest.update(len(data).to_bytes(4, "big") + data)
    return digest.hexdigest()


def _checked(weights: Mapping[Destination, int]) -> tuple[tuple[Destination, ...], tuple[int, ...]]:
    """Return the sorted destinations and their weights. Raises ValueError if no ring can be built of them."""
    destinations = tuple(sorted(weights))
    if not 1 <= len(destinations) <= MAX_DESTINATIONS:
        raise ValueError(f"a ring has 1 to {MAX_DESTINATIONS} destinations, not {len(destinations)}")
    for destination, weight in weights.items():
        if not 1 <= weight <= MAX_WEIGHT:
            raise ValueError(f"weight of {destination}: {weight} is outside 1 to {MAX_WEIGHT}")
    return destinations, tuple(weights[d] for d in destinations)


def _seeds(destinations: tuple[Destination, ...]) -> U64:
    """Return the seed of each destination: the hash of its kind and name."""
    return np.array([hash64(f"{d.kind}\0{d.name}".encode()) for d in destinations], dtype=np.uint64)
