"""The demand of all slots, estimated from the counted ones: figures, with the intervals that a sample leaves."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from pipeline.stats.sampling import Estimate, Sample, slots_of
from pipeline.whatif.prediction import Demand, Load, least_over_fair
from ring.destination import Destination
from ring.hashing import SLOTS
from ring.ring import Ring


@dataclass(frozen=True)
class Share:
    """A part of all that was published, and what of all it is, 0 to 1 (0 of none)."""

    messages: int
    bytes: int
    of_messages: Estimate
    of_bytes: Estimate


@dataclass(frozen=True)
class Counts:
    """The messages, or the bytes, that were published: counted in the drawn slots, estimated in the others."""

    slots: NDArray[np.int64]
    """The slots in which some were counted, each once."""
    counted: NDArray[np.int64]
    """How many messages were counted in each of `slots`."""
    sample: Sample
    """The sample that estimates all slots from these."""

    @property
    def mean(self) -> float:
        """The estimate for each slot that was not drawn."""
        unseen = self.sample.unseen
        return (self.sample.total().value - self.sample.seen) / unseen if unseen else 0.0

    @property
    def total(self) -> int:
        """The estimate for all slots together."""
        return int(self.counted.sum()) + round(self.mean * self.sample.unseen)

    def expected(self) -> NDArray[np.float64]:
        """Return the messages of each slot: the count of a counted slot, the mean for a slot beyond the sample."""
        entries = np.zeros(SLOTS)
        entries[self.slots] = self.counted
        entries[self.sample.drawn :] = self.mean
        return entries

    def part(self, which: NDArray[np.bool_]) -> tuple[int, Estimate]:
        """Return how many messages fall on the slots of a mask, and the estimate of their share of all."""
        unseen = np.array([which[self.sample.drawn :].sum(), (~which[self.sample.drawn :]).sum()])
        its = which[self.slots]
        seen = np.array([self.counted[its].sum(), self.counted[~its].sum()])
        if not self.total:
            return 0, _sure(0.0)
        shares = self.sample.shares(seen, unseen)
        return int(seen[0]) + round(self.mean * int(unseen[0])), Estimate(*(float(bounds[0]) for bounds in shares))


@dataclass(frozen=True)
class Published:
    """The demand of all slots: a counted slot has its own counts, each slot beyond the sample has the mean."""

    messages: Counts
    bytes: Counts
    demand: Demand
    """The demand by slot, counted or expected; it has only the counted slots if all slots were drawn."""

    @classmethod
    def of(cls, counted: Demand, sample: float = 1.0) -> Self:
        """Take what was counted in the first slots, which are a share `sample` of all: those that have any messages."""
        slots = slots_of(sample)
        messages, size = (
            Counts(counted.slots, part, Sample.of_slots(slots, counted.slots, part))
            for part in (counted.messages, counted.bytes)
        )
        whole = slots == SLOTS
        return cls(messages, size, counted if whole else Demand(np.arange(SLOTS), messages.expected(), size.expected()))

    def share(self, which: NDArray[np.bool_]) -> Share:
        """Return the share of the demand in the slots that the mask `which` selects, of all slots."""
        (messages, of_messages), (size, of_bytes) = self.messages.part(which), self.bytes.part(which)
        return Share(messages, size, of_messages, of_bytes)

    def share_of(self, part: float) -> Share:
        """Return the share that is a part, 0 to 1, of everything."""
        messages, size = self.messages.total, self.bytes.total
        return Share(
            round(part * messages), round(part * size), _sure(part if messages else 0.0), _sure(part if size else 0.0)
        )

    def max_over_fair(self, ring: Ring, load: Load) -> Estimate:
        """Return `load.max_over_fair` with its interval; `load` must be the load of `demand` by `ring`."""
        return self.messages.sample.max_over_fair(*self._of(ring), load.fair)

    def gets(self, ring: Ring) -> dict[Destination, Estimate]:
        """Return the messages of each destination of a ring, with their intervals."""
        shares = [part * self.messages.total for part in self.messages.sample.shares(*self._of(ring))]
        found = [Estimate(*ends) for ends in zip(*(part.tolist() for part in shares), strict=True)]
        return dict(zip(ring.destinations, found, strict=True))

    def per_weight(self, ring: Ring, wanted: Mapping[Destination, int]) -> Estimate:
        """Return the most messages that a destination of a ring gets for each unit of its wanted weight."""
        each = [Estimate(*(end / wanted[d] for end in got)) for d, got in self.gets(ring).items()]
        return Estimate(*(max(ends) for ends in zip(*each, strict=True)))

    def _of(self, ring: Ring) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return of each of a ring's destinations the messages in its drawn slots, and how many it owns beside them."""
        each = {"minlength": len(ring.destinations)}
        seen: NDArray[Any] = np.bincount(ring.table[self.messages.slots], self.messages.counted, **each)
        unseen: NDArray[Any] = np.bincount(ring.table[self.messages.sample.drawn :], **each)
        return seen, unseen

    def least_over_fair(self, load: Load) -> Estimate:
        """Return the least `max_over_fair` that any weights of the load's destinations can reach, with its interval.

        It is more than 1 if one slot, which moves whole, outweighs even the largest fair share.
        """
        heaviest, (value, low, high) = int(self.messages.counted.max()), self.messages.sample.total()
        return Estimate(*(least_over_fair(load, heaviest, total) for total in (value, high, low)))

    @property
    def heaviest_slot(self) -> int:
        """The slot with the most messages of those that were counted."""
        return int(self.messages.slots[np.argmax(self.messages.counted)])

    def heaviest_share(self) -> Estimate:
        """Return the share of all messages that the heaviest slot has."""
        return self.messages.sample.share_of(float(self.messages.counted.max()))


def _sure(value: float) -> Estimate:
    return Estimate(value, value, value)
