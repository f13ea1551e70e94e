"""Estimates of all that was published, from a journal that has a sample of it, with intervals.

A journal with `sample` s has the slots below s * 2^20, whole: each key is either in it with all of its messages, or
not at all. Keys fall into slots by a hash, so the slots that are in it are a random draw of all, without replacement.
What was counted in them is certain; each slot that was not drawn is expected to have what the drawn ones have in the
mean, and how much slots differ says how far off that may be.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ring.hashing import SLOTS

F64 = NDArray[np.float64]

CONFIDENCE = 0.95
"""How often an interval has the true figure within it, over all ways in which the hash may lay keys into slots."""

HEAVY = 4.0
"""A drawn slot may be heavy where it exceeds this many standard errors of the sum of all lighter ones.

So many standard errors do not come of chance: one such slot would alone decide what all slots that were not drawn are
expected to have. Lower limits take the heaviest of many heavy-tailed keys out too, and then the rest is estimated too
low: for Pareto sizes of exponent 1.5 a limit of 1 has the truth within the interval in 71% of draws, of 4 in 87%.
"""

MOST_HEAVY = 3
"""Slots that are heavy at once: more than so many are no chance, but stand for others like them that were not drawn."""

ENOUGH = 16.0
"""Drawn keys, by their effective number, that tell how much those differ that were not drawn."""


class Estimate(NamedTuple):
    """A figure of all that was published, and the 95% interval around it; all three are equal where it is certain.

    All are Python's own floats, never numpy's, which Spark puts into no table.
    """

    value: float
    low: float
    high: float


class Estimates(NamedTuple):
    """An Estimate for each of several destinations, as arrays of one length."""

    value: F64
    low: F64
    high: F64


def slots_of(sample: float) -> int:
    """Return how many slots a journal with this `sample` has, the first of the 2^20: at least one."""
    return max(1, round(sample * SLOTS))


class _Drawn(NamedTuple):
    """Drawn slots that stand for those that were not drawn: each of these is expected to have their mean."""

    slots: int
    messages: float
    squares: float
    """The sum over the slots of their messages squared."""

    @property
    def effective(self) -> float:
        """The effective number of keys (Kish): how many keys of equal size would give as precise an estimate.

        It is (sum of messages)^2 / sum of squares, and 0 without messages.
        """
        return self.messages**2 / self.squares if self.messages > 0 and self.squares > 0 else 0.0

    @property
    def enough(self) -> bool:
        """Whether the drawn slots tell how much slots differ that were not drawn."""
        return self.effective >= ENOUGH

    @property
    def each(self) -> float:
        """The variance of a slot's messages divided by their mean, empty slots included.

        It is at least 1, that of single messages, and infinite for fewer than two slots.
        """
        if self.slots < 2:
            return math.inf
        mean = self.messages / self.slots
        return max(1.0, (self.squares - self.messages * mean) / (self.slots - 1) / mean) if mean else 1.0

    def others(self, slots: int, z: float, each: float = 1.0) -> Estimate:
        """Return the messages of so many slots that were not drawn, with the interval of z standard errors.

        The variance of the error is N^2 (1 - n/N) s^2 / n of n slots of N. The interval is not that to either side but
        has every count for which the estimate is within z standard errors, if the variance grows as the count does (a
        score interval of overdispersed counts): sums of few heavy keys are skewed, and so it must be. The variance of
        a slot over its mean is taken to be `each` at least.
        """
        if not slots:
            return Estimate(0.0, 0.0, 0.0)
        if self.slots < 2:
            return Estimate(self.messages * slots / max(1, self.slots), 0.0, math.inf)
        value = self.messages / self.slots * slots
        by = max(each, self.each) * (1 + slots / self.slots)
        high = value + z**2 * by / 2 + z * math.sqrt(by * value + (z * by / 2) ** 2)
        return Estimate(value, value**2 / high, high)


@dataclass(frozen=True)
class Sample:
    """The messages of the slots that were drawn: `Sample.of` makes it of their sums."""

    slots: int
    """How many slots were drawn, those without a message included: `slots_of`."""
    heavy: dict[int, float]
    """The messages of each heavy slot, by its number."""
    only: bool
    """Whether the heavy slots are taken for the only ones of their kind, and so stand for no other slot."""
    messages: float
    """The messages of all drawn slots that are not in `heavy`."""
    squares: float
    """The sum of the squared messages of each drawn slot that is not in `heavy`."""

    @classmethod
    def of(cls, slots: int, messages: float, squares: float, heaviest: Iterable[tuple[int, float]]) -> "Sample":
        """Make a sample of the sums, over all drawn slots, of their messages and of their messages squared.

        `heaviest` are pairs (slot, its messages) of the MOST_HEAVY heaviest slots, or more, in any order. Heavy are as
        many of them as are each, with all that are heavier, far above what is left, so that two hot ones do not hide
        one another. One such slot beside enough others is the only one. Of several, or of few others, no sample tells
        whether slots like them were not drawn. Where every slot was drawn, none is heavy, since nothing is estimated.
        """
        ranked = sorted(heaviest, key=lambda pair: -pair[1]) if slots < SLOTS else []
        heavy, light = 0, _Drawn(slots, messages, squares)
        left = light
        for n, (_, count) in enumerate(ranked[:MOST_HEAVY], 1):
            left = _Drawn(slots - n, max(0.0, left.messages - count), max(0.0, left.squares - count**2))
            stands_out = count > 0 and count**2 > HEAVY**2 * left.squares
            if stands_out and (left.enough or not light.enough or not heavy):
                heavy, light = n, left
        return cls(slots, dict(ranked[:heavy]), heavy == 1 and light.enough, light.messages, light.squares)

    @classmethod
    def of_slots(cls, slots: int, numbers: NDArray[Any], messages: NDArray[Any]) -> "Sample":
        """Make a sample of the numbers and the messages of all drawn slots that have messages, each slot once."""
        counts = messages.astype(np.float64)
        first = np.argsort(-counts, kind="stable")[:MOST_HEAVY]
        heaviest = zip(numbers[first].tolist(), counts[first].tolist(), strict=True)
        return cls.of(slots, float(counts.sum()), float((counts**2).sum()), heaviest)

    @property
    def seen(self) -> float:
        """The messages that were counted."""
        return self.messages + sum(self.heavy.values())

    @property
    def unseen_slots(self) -> int:
        """How many slots were not drawn."""
        return SLOTS - self.slots

    @property
    def alone(self) -> dict[int, float]:
        """The messages of the heavy slots that no other slot is expected to be like, by number."""
        return self.heavy if self._ways()[0].slots < self.slots else {}

    def total(self) -> Estimate:
        """Return how many messages were published to all slots; nobody knows of a sample without one."""
        if not self.seen and self.unseen_slots:
            return Estimate(0.0, 0.0, math.inf)
        return Estimate(*(float(self.seen + count) for count in self._unseen(1.0)))

    def key_share(self, messages: float, slot: int) -> Estimate:
        """Return the share that a key of this slot has of everything published; its `messages` are all in the sample.

        What all other keys have is estimated from the sample without that key, since it is of the question, and no
        random draw: k / (k + (m - k) / s) of m messages in a sample s where no other slot is heavy.
        """
        return self.keys_share([(messages, slot)])

    def keys_share(self, keys: Iterable[tuple[float, int]]) -> Estimate:
        """Return the share that several keys have together, of which each is a pair (messages, slot).

        Where too few other keys are in the sample to tell how large keys are, there may be others as large as these.
        """
        if not self.seen and self.unseen_slots:
            return Estimate(0.0, 0.0, 1.0)
        rest, together, largest = self, 0.0, 1.0
        for messages, slot in keys:
            together, largest = together + messages, max(largest, messages)
            rest = rest._without(messages, slot)
        value, low, high = (max(0.0, self.seen - together) + count for count in rest._unseen(largest))
        return Estimate(*(_part(together, of) for of in (value, high, low)))

    def shares(self, seen: NDArray[Any], unseen: NDArray[Any], confidence: float = CONFIDENCE) -> Estimates:
        """Return each destination's share of everything published.

        The arrays have one entry for each destination: `seen`, the messages in its drawn slots, heavy ones too, and
        `unseen`, how many slots it owns that were not drawn. A destination's messages are taken to be `seen` and the
        expected messages of so many slots. The interval is right if the hash lays messages evenly over slots,
        whoever owns them, as it does. For a sample without a message every interval is 0 to 1.
        """
        part: F64 = unseen / max(1, self.unseen_slots)
        if not self.seen:
            return Estimates(part, np.zeros(len(part)), np.ones(len(part)))
        ways = [self._shares(way, seen, part, _z(confidence)) for way in self._ways()]
        low, high = (np.array([getattr(way, end) for way in ways]) for end in ("low", "high"))
        return Estimates(ways[0].value, low.min(axis=0), high.max(axis=0))

    def _shares(self, way: _Drawn, seen: NDArray[Any], part: F64, z: float) -> Estimates:
        value, low, high = way.others(self.unseen_slots, z)
        middle: F64 = (seen + part * value) / (self.seen + value)
        if math.isinf(high):
            return Estimates(middle, np.zeros(len(seen)), np.ones(len(seen)))
        ends = [(seen + part * count) / (self.seen + count) for count in (low, high)]
        # How what is in the slots that were not drawn falls among their owners; the ends are of how much it is in all.
        falls = z * np.sqrt(way.each * value * part * (1 - part)) / (self.seen + value)
        down, up = (np.hypot(middle - extreme(*ends), falls) for extreme in (np.minimum, np.maximum))
        return Estimates(middle, np.clip(middle - down, 0, 1), np.clip(middle + up, 0, 1))

    def max_over_fair(self, seen: NDArray[Any], unseen: NDArray[Any], fair: NDArray[Any]) -> Estimate:
        """Return the greatest load for its weight of all destinations, over the mean: 1 where loads are as weights.

        `seen` and `unseen` are as `shares` takes them, `fair` the share that each destination's weight promises it. The
        interval is as wide as it must be for whichever destination is the greatest (Bonferroni).
        """
        value = (self.shares(seen, unseen).value / fair).max()
        sure = self.shares(seen, unseen, 1 - (1 - CONFIDENCE) / len(seen))
        low = max(1.0, (sure.low / fair).max())  # which the greatest is at least, whatever the loads are
        return Estimate(float(value), float(min(value, low)), float((sure.high / fair).max()))

    def _without(self, messages: float, slot: int) -> "Sample":
        """Return the sample without a key of this slot."""
        if slot not in self.heavy:
            light = max(0.0, self.messages - messages), max(0.0, self.squares - messages**2)
            return Sample(self.slots, self.heavy, self.only, *light)
        left = self.heavy | {slot: self.heavy[slot] - messages}
        heavy = {one: count for one, count in left.items() if count > 0}
        return Sample(self.slots, heavy, self.only, self.messages, self.squares)

    def _ways(self) -> list[_Drawn]:
        """Return the sets of drawn slots that may stand for those that were not drawn, the expected one first.

        Where the heavy slots are not taken for the only ones, they may be, or there are more of them; that is expected
        where the others, by their effective number, are no more than they.
        """
        light = _Drawn(self.slots - len(self.heavy), self.messages, self.squares)
        if self.only or not self.heavy:
            return [light]
        squares = self.squares + sum(count**2 for count in self.heavy.values())
        both = [light, _Drawn(self.slots, self.seen, squares)]
        return both if light.effective > len(self.heavy) else both[::-1]

    def _unseen(self, largest: float) -> Estimate:
        """Return the messages of the slots that were not drawn, which may have keys of so many, as far as is known."""
        z = _z(CONFIDENCE)
        ways = [way.others(self.unseen_slots, z, 1.0 if way.enough else largest) for way in self._ways()]
        return Estimate(ways[0].value, min(way.low for way in ways), max(way.high for way in ways))


def _part(messages: float, others: float) -> float:
    """Return the share of some messages among these and the others, which may be infinitely many; 0 for none."""
    return float(messages / (messages + others)) if messages else 0.0


def _z(confidence: float) -> float:
    return NormalDist().inv_cdf((1 + confidence) / 2)
