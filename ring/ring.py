"""The ring: an immutable table of which destination owns each of 2^20 slots."""

import hashlib
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ring.contest import challenge, contest
from ring.destination import MAX_WEIGHT, Destination
from ring.hashing import RING_FORMAT, SLOTS, hash64, index_at, slot_of
from ring.scores import U16, U64, ranking, slot_streams

MAX_DESTINATIONS = 1 << 16
"""The table holds 16-bit indices."""

FEW_SLOTS = 100
"""A destination that expects fewer slots than this is flagged: its share is too coarse to trust."""


class Ring:
    """Which destination owns each slot: a pure function of the set of (destination, weight).

    Neither the order nor the history of bindings matters, so two machines with equal bindings route equally. About
    2 MiB; the table is read-only and safe to share between threads.
    """

    __slots__ = ("destinations", "owner_index", "table", "weights")

    destinations: tuple[Destination, ...]
    """Sorted; the table's entries index them."""
    weights: tuple[int, ...]
    """Of each destination, in the same order."""
    table: U16
    """Shape (SLOTS,): the index of each slot's owner."""
    owner_index: bytes
    """The same memory, for `hashing.index_at`."""

    def __init__(self, destinations: tuple[Destination, ...], weights: tuple[int, ...], table: U16) -> None:
        """Takes a finished table; `Ring.build` and `Ring.changed` make one."""
        self.destinations, self.weights = destinations, weights
        self.owner_index = table.astype("<u2").tobytes()
        self.table = np.frombuffer(self.owner_index, "<u2")

    @classmethod
    def build(cls, weights: Mapping[Destination, int]) -> "Ring":
        """Return the ring of these weights: 2 to 6 ms of CPU a destination, nearly all without the GIL.

        Raises ValueError for no destination at all, for more than MAX_DESTINATIONS, or for a weight out of range.
        """
        destinations, values = _checked(weights)
        return cls(destinations, values, contest(_seeds(destinations), np.array(values, np.uint64)))

    def changed(self, weights: Mapping[Destination, int]) -> "Ring":
        """`Ring.build(weights)`, computed from this ring: the cost is that of what changed.

        What came or got heavier challenges the owner of every slot; what left or got lighter frees its slots, which
        everyone contests anew.
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
        """The (destination, weight) pairs that this ring is a function of."""
        return dict(zip(self.destinations, self.weights, strict=True))

    def owner(self, slot: int) -> Destination:
        """The destination of a slot."""
        return self.destinations[index_at(self.owner_index, slot)]

    def owner_of(self, key: bytes) -> Destination:
        """The destination of a key."""
        return self.owner(slot_of(key))

    def runner_up(self, slot: int) -> Destination | None:
        """Where the slot's keys would go if their owner left; None where nobody else is bound."""
        if len(self.destinations) == 1:
            return None
        stream = slot_streams(np.array([slot], dtype=np.int64))[0]
        order = ranking(stream, _seeds(self.destinations), np.array(self.weights, np.uint64))
        return self.destinations[int(order[1])]

    def slots(self) -> dict[Destination, int]:
        """How many slots each destination owns."""
        counts = np.bincount(self.table, minlength=len(self.destinations))
        return dict(zip(self.destinations, counts.tolist(), strict=True))

    def too_light(self) -> tuple[Destination, ...]:
        """Destinations that expect fewer than FEW_SLOTS slots."""
        total = sum(self.weights)
        return tuple(d for d, w in self.as_weights().items() if SLOTS * w < FEW_SLOTS * total)

    def moved_from(self, other: "Ring") -> float:
        """The share of all slots, 0 to 1, that this ring gives to another destination than `other` does."""
        position = {d: i for i, d in enumerate(self.destinations)}
        absent = len(self.destinations)
        theirs = np.array([position.get(d, absent) for d in other.destinations], dtype=np.uint32)[other.table]
        return float(np.count_nonzero(theirs != self.table)) / SLOTS


def owners(weights: Mapping[Destination, int], slots: NDArray[np.int64]) -> U16:
    """Who owns each of these slots, as in `Ring.build(weights).table`, of which it takes no more time than its share.

    Raises ValueError as that does.
    """
    destinations, values = _checked(weights)
    return contest(_seeds(destinations), np.array(values, np.uint64), slots)


def fingerprint(weights: Mapping[Destination, int], exchange_type: str, hashed: str) -> str:
    """Sixteen hex digits that two rings share exactly if they route equally.

    Covers the ring format, what is hashed (as `HashedValue` prints it), the exchange type and the sorted
    destinations with their weights; each field with its length in front, so no two inputs read alike.
    """
    digest = hashlib.blake2b(digest_size=8)
    fields = [str(RING_FORMAT), hashed, exchange_type]
    for destination in sorted(weights):
        fields += [destination.kind, destination.name, str(weights[destination])]
    for field in fields:
        data = field.encode()
        digest.update(len(data).to_bytes(4, "big") + data)
    return digest.hexdigest()


def _checked(weights: Mapping[Destination, int]) -> tuple[tuple[Destination, ...], tuple[int, ...]]:
    destinations = tuple(sorted(weights))
    if not 1 <= len(destinations) <= MAX_DESTINATIONS:
        raise ValueError(f"a ring has 1 to {MAX_DESTINATIONS} destinations, not {len(destinations)}")
    for destination, weight in weights.items():
        if not 1 <= weight <= MAX_WEIGHT:
            raise ValueError(f"weight of {destination}: {weight} is outside 1 to {MAX_WEIGHT}")
    return destinations, tuple(weights[d] for d in destinations)


def _seeds(destinations: tuple[Destination, ...]) -> U64:
    return np.array([hash64(f"{d.kind}\0{d.name}".encode()) for d in destinations], dtype=np.uint64)
