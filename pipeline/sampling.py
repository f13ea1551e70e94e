"""What a sampled journal says of everything that was published, with intervals.

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
"""A drawn slot is heavy where it exceeds this many standard errors of the sum of all lighter ones.

So many standard errors do not come of chance: one such slot would alone decide what all slots that were not drawn are
expected to have. Lower limits take the heaviest of many heavy-tailed keys out too, and then the rest is estimated too
low: for Pareto sizes of exponent 1.5 a limit of 1 has the truth within the interval in 71% of draws, of 4 in 87%.
"""

MOST_HEAVY = 32
"""More slots than can be heavy at once: each leaves a 17th of the sum of squares, and counts are longs."""


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


@dataclass(frozen=True)
class Sample:
    """The messages of the slots that were drawn: `Sample.of` makes it of their sums."""

    slots: int
    """How many slots were drawn, those without a message included: `slots_of`."""
    heavy: dict[int, float]
    """The messages of each heavy slot, by its number: they count as they are, and stand for no other slot."""
    messages: float
    """The messages of all other drawn slots."""
    squares: float
    """The sum over those slots of their messages squared."""

    @classmethod
    def of(cls, slots: int, messages: float, squares: float, heaviest: Iterable[tuple[int, float]]) -> "Sample":
        """Make it of the sums over all drawn slots of their messages and of those squared.

        `heaviest` are pairs (slot, its messages) of the MOST_HEAVY heaviest slots, or more, in any order. Where every
        slot was drawn, none is heavy, since nothing is estimated.
        """
        heavy: dict[int, float] = {}
        ranked = sorted(heaviest, key=lambda pair: -pair[1]) if slots < SLOTS else []
        for slot, count in ranked:
            below = max(0.0, squares - count**2)
            if count**2 <= HEAVY**2 * below or count <= 0:
                break
            heavy[slot] = count
            messages, squares = messages - count, below
        return cls(slots, heavy, max(0.0, messages), squares)

    @classmethod
    def of_slots(cls, slots: int, numbers: NDArray[Any], messages: NDArray[Any]) -> "Sample":
        """Make it of the numbers and the messages of all drawn slots that have any, each slot once."""
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

    def total(self) -> Estimate:
        """Return how many messages were published to all slots."""
        return Estimate(*(self.seen + count for count in self._unseen()))

    def key_share(self, messages: float, slot: int) -> Estimate:
        """Return the share that a key of this slot has of everything published; its `messages` are all in the sample.

        What all other keys have is estimated from the sample without that key, since it is of the question, and no
        random draw: k / (k + (m - k) / s) of m messages in a sample s where no other slot is heavy.
        """
        return self.keys_share([(messages, slot)])

    def keys_share(self, keys: Iterable[tuple[float, int]]) -> Estimate:
        """Return the share that several keys have together, of which each is a pair (messages, slot)."""
        rest, together = self, 0.0
        for messages, slot in keys:
            together += messages
            rest = rest if slot in self.heavy else rest._without(messages)
        others = max(0.0, self.seen - together)
        value, low, high = (others + count for count in rest._unseen())
        return Estimate(*(_part(together, of) for of in (value, high, low)))

    def shares(self, seen: NDArray[Any], unseen: NDArray[Any], confidence: float = CONFIDENCE) -> Estimates:
        """Return each destination's share of everything published.

        Of each destination: `seen`, the messages in its drawn slots, heavy ones too; `unseen`, how many of the slots
        that were not drawn it owns. What it has got is `seen` and what so many slots are expected to have. The interval
        has the share where the hash lays messages evenly over slots, whoever owns them, as it does.
        """
        z = _z(confidence)
        value, low, high = self._unseen(z)
        part: F64 = unseen / max(1, self.unseen_slots)
        if np.isinf(high):
            return Estimates(
                (seen + part * value) / max(1.0, self.seen + value), np.zeros(len(seen)), np.ones(len(seen))
            )

        def share_if(count: float) -> F64:
            everything = self.seen + count
            return (seen + part * count) / everything if everything else part

        middle, ends = share_if(value), (share_if(low), share_if(high))
        # How what is in the slots that were not drawn falls among their owners; the ends are of how much it is in all.
        spread = self._variance * self.unseen_slots * part * (1 - part)
        falls = z * np.sqrt(spread) / max(1.0, self.seen + value)
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

    def _without(self, messages: float) -> "Sample":
        """Return the sample without a key that is the only one of its slot."""
        rest = max(0.0, self.messages - messages), max(0.0, self.squares - messages**2)
        return Sample(self.slots, self.heavy, *rest)

    @property
    def _light(self) -> int:
        return self.slots - len(self.heavy)

    @property
    def _variance(self) -> float:
        """The variance of the messages of a slot that is not heavy, empty ones included; infinite of less than two."""
        if self._light < 2:
            return math.inf
        return max(0.0, self.squares - self.messages**2 / self._light) / (self._light - 1)

    def _unseen(self, z: float | None = None) -> tuple[float, float, float]:
        """What the slots that were not drawn have: the estimate, and the ends of its interval.

        The variance of its error is N^2 (1 - n/N) s^2 / n of n slots of N. The interval is not that to either side but
        has every count for which the estimate is within z standard errors, if the variance grows as the count does (a
        score interval of overdispersed counts): sums of few heavy keys are skewed, and so it must be.
        """
        z = _z(CONFIDENCE) if z is None else z
        unseen = self.unseen_slots
        if not unseen:
            return 0.0, 0.0, 0.0
        if self._light < 2:
            return self.messages * unseen / max(1, self._light), 0.0, math.inf
        value = self.messages / self._light * unseen
        growth = 1 + unseen / self._light
        # Variance by message; where there is none to tell it by, as if each were of a key of its own.
        each = self._variance * unseen * growth / value if value else growth
        middle, half = value + z**2 * each / 2, z * math.sqrt(each * value + (z * each / 2) ** 2)
        return value, max(0.0, middle - half), middle + half


def _part(messages: float, others: float) -> float:
    """A share, where the others may be infinitely many; nothing is of nothing."""
    return float(messages / (messages + others)) if messages else 0.0


def _z(confidence: float) -> float:
    return NormalDist().inv_cdf((1 + confidence) / 2)
