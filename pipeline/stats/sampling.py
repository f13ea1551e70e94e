"""Estimates of all that was published, from a journal that has a sample of it, with intervals; every job uses these.

A journal with `sample` s has the slots below s * 2^20, whole: each key is either in it with all of its messages, or
not at all. Keys fall into slots by a hash, so the slots that are in it are a random draw of all, without replacement.
Messages in drawn slots are counted. Each slot that was not drawn is expected to have what the drawn ones have in the
mean. One total is estimated in this way, and a share of it is a count divided by that total.

**The total.** Let n units (slots, or groups of slots) be drawn, and r = 1 + (units not drawn) / n. The error of the
estimate has the variance V = n s^2 r (r - 1), with s^2 the variance of the units. Sums of unequal keys are skewed: a
draw without the few largest keys gives an estimate and a variance that are both too low. An interval of 1.96 standard
errors to either side then misses the truth above it. The end above is therefore the total t that solves (t - v)^2 =
z^2 (V + h (t - v)), where v is the estimate and h = r * (third central moment / s^2). This is the score interval of a
count of units of the size h / r, which has the third moment of the draw as well as the second. The end below is that
of the interval whose variance grows with the total alone.

**No winner's curse.** The hottest keys of a sample are chosen because they are large. If they are taken out of the
sample before the mean is estimated, the keys that are left are smaller than those that were not drawn, the total is
too low, and the share of the hottest keys too high. A share is therefore divided by the one total, in whose mean the
hottest keys are counted like all others.

**Slots that stand alone** are the exception. A key of 19% of all messages is in a sample of 1% by chance; its slot has
95% of the sample's messages, and says nothing about other slots. A slot that exceeds the sum of all lighter ones by
HEAVY standard errors is heavy: it counts as it is, and not in the mean.

**The tail.** The distance of such a sum from the normal distribution is at most 0.56 times its skewness (Berry and
Esseen), which falls as 1 / sqrt(keys) where keys have a variance. Where few keys have most of the messages it does not
fall, and then the sample's own variance is too low, because the largest keys were not drawn. Two figures of the sample
tell that. MOST_SKEW limits the skewness. MOST_TAIL limits Hill's estimate of 1 / a, for sizes of keys whose tail falls
as size^-a: from 1 / a = 0.5 on, they have no variance. Beyond either limit, the drawn units are taken to consist of
keys as large as the largest, which makes intervals wide, and `holds` is false: each page says that its intervals may
miss the truth more often than in 5 of 100 draws.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ring.hashing import SLOTS

F64 = NDArray[np.float64]

CONFIDENCE = 0.95
"""How often an interval has the true figure within it, over all ways in which the hash may lay keys into slots."""

HEAVY = 4.0
"""A drawn slot may be heavy where it exceeds the mean by this many standard errors of the sum of all lighter ones.

A distance of so many standard errors is no chance: one such slot would alone decide what all slots that were not drawn
are expected to have. Lower limits take the heaviest of many heavy-tailed keys out too, and then the rest is estimated
too low.
"""

MOST_HEAVY = 3
"""Slots that are heavy at once: more than so many are no chance, but stand for others like them that were not drawn."""

ENOUGH = 16.0
"""Drawn keys, by their effective number, beside which a heavy slot is taken for the only one."""

MOST_SKEW = 0.25
"""The most skewness of the drawn sum at which an interval holds; the sum of 16 equal keys has so much."""

MOST_TAIL = 0.5
"""The most 1 / a, by Hill's estimate, at which an interval holds."""

_TAIL = 100
"""The most slots of which Hill's estimate is made: the heaviest tenth of those that have messages, or fewer."""
_LEAST_TAIL = 8
"""Fewer slots than so many in the tail tell nothing of it; such a sample's skewness tells enough."""

VAGUE = 3.0
"""The factor between an interval's ends above which a figure is vague."""

_REPLICATES, _MOST_DRAWS, _SEED = 1000, 2_000_000, 1


class Estimate(NamedTuple):
    """A figure of all that was published, and the 95% interval around it; all three are equal where it is certain.

    All are Python's own floats, never numpy's, which Spark puts into no table.
    """

    value: float
    low: float
    high: float

    @property
    def is_vague(self) -> bool:
        """Whether the interval spans more than a factor of three, so that nobody can call it a good answer."""
        return self.high > VAGUE * self.low


class Estimates(NamedTuple):
    """An Estimate for each of several destinations, as arrays of one length."""

    value: F64
    low: F64
    high: F64


def slots_of(sample: float) -> int:
    """Return how many slots a journal with this `sample` has, the first of the 2^20: at least one."""
    return max(1, round(sample * SLOTS))


def score_interval(value: float, variance: float, size: float, z: float) -> tuple[float, float]:
    """Return the ends of the interval of z standard errors around a sum that is estimated as `value`.

    `variance` is that of the estimate's error, and `size` its third central moment divided by its variance.
    """
    each = variance / value if value else 0.0
    high, without_skew = (
        value + z**2 * by / 2 + z * math.sqrt(variance + (z * by / 2) ** 2) for by in (max(size, each), each)
    )
    return (value**2 / without_skew if without_skew else 0.0), high


class _Drawn(NamedTuple):
    """Drawn units that stand for those that were not drawn: each of these is expected to have their mean.

    A unit is a slot, or a group of slots that are counted together.
    """

    units: int
    messages: float
    squares: float
    """The sum over the units of their messages squared."""
    cubes: float
    largest: float
    """The messages of the heaviest unit."""
    tail: float
    """Hill's estimate of 1 / a; 0 where too few units tell."""

    @classmethod
    def of(cls, units: int, values: F64, times: F64) -> "_Drawn":
        """Make it of the values that units have, the largest first, and how many units have each; others have 0."""
        messages, squares, cubes = (float(values**power @ times) for power in (1, 2, 3))
        largest = float(values[0]) if len(values) else 0.0
        return cls(units, messages, squares, cubes, largest, _hill(values, times))

    @property
    def mean(self) -> float:
        return self.messages / self.units

    @property
    def _spread(self) -> float:
        """The sum of the squared deviations from the mean, as of a sample; 0 for fewer than two units."""
        if self.units < 2:
            return 0.0
        return max(0.0, self.squares - self.messages * self.mean) * self.units / (self.units - 1)

    @property
    def counted(self) -> float:
        """The variance of the drawn sum, which is at least that of single messages."""
        return max(self.messages, self._spread)

    @property
    def effective(self) -> float:
        """The effective number of keys (Kish): how many keys of equal size would give as precise an estimate."""
        return self.messages**2 / self.counted if self.messages > 0 else 0.0

    @property
    def _size(self) -> float:
        """The third central moment of the drawn sum divided by its variance: for equal keys, the size of one."""
        each = self.counted / self.messages if self.messages else 1.0
        if not self._spread:
            return each
        third = self.cubes - 3 * self.mean * self.squares + 2 * self.mean**2 * self.messages
        return max(each, third / self._spread)

    @property
    def skewness(self) -> float:
        """The skewness of the drawn sum: 1 / sqrt(n) for n equal keys, 1 where one key has all messages."""
        return self._size / math.sqrt(self.counted) if self.messages else 1.0

    @property
    def holds(self) -> bool:
        """Whether the drawn units tell how much units differ that were not drawn."""
        return self.skewness <= MOST_SKEW and self.tail <= MOST_TAIL

    @property
    def each(self) -> float:
        """The variance of the sum divided by the sum; that of keys as large as the largest where `holds` is false."""
        if self.units < 2:
            return math.inf
        each = self.counted / self.messages if self.messages else 1.0
        return each if self.holds else max(each, self.largest - self.mean)

    @property
    def size(self) -> float:
        """The size of the keys of which a sum is taken to consist; the largest's where `holds` is false."""
        return self._size if self.holds else max(self._size, self.largest - self.mean)

    def others(self, unseen: float, z: float) -> Estimate:
        """Return the messages of so many units that were not drawn, with the interval of z standard errors."""
        if not unseen:
            return Estimate(0.0, 0.0, 0.0)
        value = self.messages * unseen / max(1, self.units)
        if self.units < 2:
            return Estimate(value, 0.0, math.inf)
        times = 1 + unseen / self.units
        low, high = score_interval(value, self.each * times * value, self.size * times, z)
        return Estimate(value, low, high)


@dataclass(frozen=True)
class Sample:
    """The messages of the units that were drawn: `of`, `of_slots` and `of_groups` make it."""

    drawn: int
    """How many units were drawn, those without a message included: `slots_of`, or the number of groups."""
    unseen: float
    """How many units were not drawn."""
    heavy: dict[int, float]
    """The messages of each heavy unit, by its number."""
    only: bool
    """Whether the heavy units are taken for the only ones of their kind, and so stand for no other unit."""
    light: _Drawn
    """All drawn units that are not in `heavy`."""
    every: _Drawn
    """All drawn units."""

    @classmethod
    def of(
        cls, slots: int, spread: Iterable[tuple[float, int]], heaviest: Iterable[tuple[int, float]] = ()
    ) -> "Sample":
        """Make a sample of pairs of a number of messages and how many of the drawn slots have so many.

        `heaviest` are pairs (slot, its messages) of the MOST_HEAVY heaviest slots, or more, in any order.
        """
        pairs = sorted(spread, reverse=True)
        values, times = (np.array([pair[n] for pair in pairs], np.float64) for n in (0, 1))
        return cls._of(slots, SLOTS - slots, values, times, heaviest)

    @classmethod
    def of_slots(cls, slots: int, numbers: NDArray[Any], messages: NDArray[Any]) -> "Sample":
        """Make a sample of the numbers and the messages of all drawn slots that have messages, each slot once."""
        return cls._of_units(slots, SLOTS - slots, numbers, messages)

    @classmethod
    def of_groups(cls, messages: Sequence[float], unseen: float) -> "Sample":
        """Make a sample of the messages of each group of drawn slots, of which so many groups were not drawn."""
        return cls._of_units(len(messages), unseen, np.arange(len(messages)), np.array(messages))

    @classmethod
    def _of_units(cls, units: int, unseen: float, numbers: NDArray[Any], messages: NDArray[Any]) -> "Sample":
        counts = messages.astype(np.float64)
        first = np.argsort(-counts, kind="stable")
        heaviest = zip(numbers[first[:MOST_HEAVY]].tolist(), counts[first[:MOST_HEAVY]].tolist(), strict=True)
        return cls._of(units, unseen, counts[first], np.ones(len(counts)), heaviest)

    @classmethod
    def _of(cls, units: int, unseen: float, values: F64, times: F64, heaviest: Iterable[tuple[int, float]]) -> "Sample":
        """Make a sample of the values of units, the largest first, and how many units have each.

        The first n of `heaviest` are heavy, for the largest n whose last one is far above what is left, so that two hot
        ones do not hide one another. A single one beside enough others is taken for the only one. With several, or
        beside few others, units like them may exist that were not drawn: no sample tells. Where all were drawn, none is
        heavy, since nothing is estimated.
        """
        every = light = _Drawn.of(units, values, times)
        heavy, rest = 0, times.copy()
        ranked = sorted(heaviest, key=lambda pair: -pair[1]) if unseen else []
        for n, (_, count) in enumerate(ranked[:MOST_HEAVY], 1):
            if n == units:
                break
            rest[np.flatnonzero(rest)[0]] -= 1  # the heaviest that is left
            kept = rest > 0
            left = _Drawn.of(units - n, values[kept], rest[kept])
            stands_out = count - left.mean > HEAVY * math.sqrt(left.counted if left.messages else 0.0)
            enough = left.effective >= ENOUGH or light.effective < ENOUGH
            if count > 0 and stands_out and (enough or not heavy):
                heavy, light = n, left
        return cls(units, unseen, dict(ranked[:heavy]), heavy == 1 and light.effective >= ENOUGH, light, every)

    @property
    def seen(self) -> float:
        """The messages that were counted."""
        return self.every.messages

    @property
    def holds(self) -> bool:
        """Whether intervals have the truth within them as often as they say, as far as the drawn units tell."""
        return not self.unseen or self.light.holds

    @property
    def alone(self) -> dict[int, float]:
        """The messages of the heavy units that no other unit is expected to be like, by number."""
        return self.heavy if self.ways[0] is self.light else {}

    @cached_property
    def ways(self) -> list[_Drawn]:
        """The sets of drawn units that may stand for those that were not drawn, the expected one first.

        Where the heavy units are not taken for the only ones, they may be, or there are more of them; that is expected
        where the others, by their effective number, are no more than they.
        """
        if self.only or not self.heavy:
            return [self.light]
        both = [self.light, self.every]
        return both if self.light.effective > len(self.heavy) else both[::-1]

    def total(self) -> Estimate:
        """Return how many messages were published to all slots; nobody knows of a sample without one."""
        if not self.seen and self.unseen:
            return Estimate(0.0, 0.0, math.inf)
        z = quantile(self.drawn)
        ways = [way.others(self.unseen, z) for way in self.ways]
        low, high = min(way.low for way in ways), max(way.high for way in ways)
        return Estimate(*(float(self.seen + count) for count in (ways[0].value, low, high)))

    def part(self, messages: float, units: Sequence[float]) -> Estimate:
        """Return how many messages a part of everything has, such as a destination, with its interval.

        `messages` were counted of it, `units` says how many in each of the units, in their order.
        """
        z, counts = quantile(self.drawn), np.array(units, np.float64)
        found = []
        for way in self.ways:
            its = np.sort(counts[self.of_way(way)])[::-1]
            found.append(_Drawn.of(way.units, its, np.ones(len(its))).others(self.unseen, z))
        low, high = min(one.low for one in found), max(one.high for one in found)
        return Estimate(*(float(messages + count) for count in (found[0].value, low, high)))

    def of_way(self, way: _Drawn) -> NDArray[np.bool_]:
        """Return which of all units may stand for others in this one of `ways`."""
        which = np.ones(self.drawn, np.bool_)
        if way is not self.every:
            which[list(self.heavy)] = False
        return which

    def share_of(self, messages: float) -> Estimate:
        """Return the share of everything published that keys have of which the sample has so many messages."""
        if not self.seen and self.unseen:
            return Estimate(0.0, 0.0, 1.0)
        value, low, high = self.total()
        return Estimate(*(float(messages / of) if messages else 0.0 for of in (value, high, low)))

    def shares(self, seen: NDArray[Any], unseen: NDArray[Any]) -> Estimates:
        """Return each destination's share of everything published.

        The arrays have one entry for each destination: `seen`, the messages in its drawn slots, heavy ones too, and
        `unseen`, how many slots it owns that were not drawn. A destination's messages are taken to be `seen` and the
        expected messages of so many slots. The interval is right if the hash lays messages evenly over slots,
        whoever owns them, as it does. For a sample without a message every interval is 0 to 1.
        """
        part: F64 = unseen / max(1, self.unseen)
        if not self.seen:
            return Estimates(part, np.zeros(len(part)), np.ones(len(part)))
        ways = [self._shares(way, seen, part) for way in self.ways]
        low, high = (np.array([getattr(way, end) for way in ways]) for end in ("low", "high"))
        return Estimates(ways[0].value, low.min(axis=0), high.max(axis=0))

    def _shares(self, way: _Drawn, seen: NDArray[Any], part: F64) -> Estimates:
        z = quantile(self.drawn)
        value, low, high = way.others(self.unseen, z)
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

        `seen` and `unseen` are as `shares` takes them, `fair` the share that each destination's weight promises it.
        The value is that of the destination which is expected to be the greatest. Which one is depends on where the
        messages fall that were not drawn, so the interval has the middle 95% of the greatest loads of as many draws of
        them, each with another total, and the value.
        """
        value = float((self.shares(seen, unseen).value / fair).max())
        if not self.unseen:
            return Estimate(value, value, value)
        if not self.seen or self.drawn < 2:
            return Estimate(value, 1.0, float(1 / fair.min()))
        part: F64 = unseen / self.unseen
        ends = [np.quantile(self._greatest(way, seen, part, fair), (0.025, 0.975)) for way in self.ways]
        low, high = min(float(low) for low, _ in ends), max(float(high) for _, high in ends)
        return Estimate(value, min(value, low), max(value, high))

    def _greatest(self, way: _Drawn, seen: NDArray[Any], part: F64, fair: NDArray[Any]) -> F64:
        """Return the greatest load over fair in each of many draws of what was not seen, the same every time.

        Sums are drawn from gamma distributions that are shifted to the sums' mean, variance and third moment.
        """
        random, ratio = np.random.default_rng(_SEED), self.unseen / way.units
        times = max(100, min(_REPLICATES, _MOST_DRAWS // len(fair)))
        value = way.messages * ratio
        # The expectation of the total, for a sum that was counted, is skewed as much again as such sums are.
        variance, size = way.each * value * ratio, way.size * ratio
        total = _gamma(random, np.full((times, 1), value + size / 2), variance, 2 * size)
        loads = seen + _gamma(random, total * part, way.each * total * part, way.size)
        greatest: F64 = (loads / fair).max(axis=1) / loads.sum(axis=1)
        return greatest


def _gamma(random: np.random.Generator, mean: F64, variance: F64 | float, size: float) -> F64:
    """Return a draw for each mean, of this variance and a third central moment of `size` times it; none is below 0."""
    scale = size / 2
    drawn = random.standard_gamma(np.broadcast_to(variance / scale**2, mean.shape)) * scale
    return np.maximum(0.0, mean + drawn - variance / scale)


def _hill(values: F64, times: F64) -> float:
    """Return Hill's estimate of 1 / a of the heaviest tenth of units that have messages; 0 where those are too few.

    It is the mean logarithm of so many values over the next smaller one.
    """
    many = min(_TAIL, int(times.sum()) // 10)
    if many < _LEAST_TAIL:
        return 0.0
    first = np.repeat(values[: many + 1], times[: many + 1].astype(np.int64))[: many + 1]
    return float(np.log(first[:-1] / first[-1]).mean()) if first[-1] > 0 else 0.0


def quantile(units: int) -> float:
    """Return the 97.5% quantile of Student's t for a variance that so many units tell, to four digits from 8 on."""
    z, freedom = NormalDist().inv_cdf((1 + CONFIDENCE) / 2), max(1, units - 1)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
