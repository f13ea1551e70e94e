"""95% intervals of usage figures for all publishes, from a sampled journal, by the method of random groups.

A journal with `sample` s has the slots below s * 2^20, each with all messages of its keys, so what was drawn are slots
and not messages: how far a total may be off depends on how unlike slots are. Slots are dealt out to GROUPS groups, and
how much the sums of groups differ tells the variance of their total (Wolter, Introduction to Variance Estimation,
chapter 2). The sums of groups add up where rows merge, as all other sums do.
"""

from collections.abc import Iterable
from math import sqrt
from statistics import fmean

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

GROUPS = 8
"""A group has the slots with one remainder by it: slots are hashes, so that is a random part of them."""

SPREAD = ("messages", "bytes")
"""The columns of which a sample's estimate gets an interval by random groups."""

_T = 2.364624
"""97.5% quantile of Student's t with GROUPS - 1 degrees of freedom: so few groups tell their own variance roughly."""

_Z, _SKETCH = 1.959964, 0.016
"""97.5% quantile of the normal distribution; and the standard error of the sketch of keys, of its estimate."""

_PARTS = 1024


def drawn() -> dict[str, Column]:
    """Return two columns of a record: `part`, its group, null where all slots were drawn, and `spread`, its weight.

    The variance of a total of n of N slots, each counted N/n times, is (1 - n/N) (N/n)^2 times that of the drawn ones'
    sum. So with the square root of that as its weight, what all slots have, and no sample, adds no variance.
    """
    part = F.when(F.col("sample") < 1, F.col("slot") % GROUPS)
    return {"part": part, "spread": exact(F.sqrt(1 - F.col("sample")) / F.col("sample"))}


def exact(weight: Column) -> Column:
    """Return a weight rounded to 1/1024: sums of such are exact, and equal in whichever order they are made."""
    # Not `round`, which makes a BigDecimal of each double.
    return F.floor(_PARTS * weight + 0.5) / _PARTS


def groups() -> list[Column]:
    """Return for each of SPREAD the aggregate of rows with a `part` and NAME_spread: NAME_groups, GROUPS sums."""
    return [
        _array(name, (f"sum(CASE WHEN part = {n} THEN {name}_spread ELSE 0D END)" for n in range(GROUPS)))
        for name in SPREAD
    ]


def merged() -> list[Column]:
    """Return the aggregates of rows that have the columns of `groups`, to the same of all their records."""
    return [_array(name, (f"sum({name}_groups[{n}])" for n in range(GROUPS))) for name in SPREAD]


def with_limits(rows: DataFrame) -> DataFrame:
    """Return rows of `windows.told` with the ends of each estimate's interval: NAME_low and NAME_high.

    They are of SPREAD, and equal to the figure itself where there is no sample; and of `keys`, where the error of the
    sketch counts too, and the number of keys in so many slots is binomial.
    """
    for name in SPREAD:
        array = f"{name}_groups"
        total, squares = (f"aggregate({array}, 0D, (a, b) -> a + {of})" for of in ("b", "b * b"))
        variance = f"greatest(0D, {squares} - power({total}, 2) / {GROUPS}) * {GROUPS} / {GROUPS - 1}"
        rows = _between(rows, name, name, variance, _T)
    variance = f"(keys * (1 - sample) + power({_SKETCH}D * keys, 2)) / power(sample, 2)"
    return _between(rows, "keys", f"keys * {1 - _Z * _SKETCH}D", variance, _Z)


def share(part: Row, whole: Row) -> tuple[float, float, float]:
    """Return the share that a row's messages have of those of another, which they are in, and its interval's ends.

    Both are rows of `windows.told`. The interval has every share that would put the estimate within so many standard
    errors (Wilson's score interval), each error as of a draw of so many keys that are alike. Three figures tell how
    many those are, of which the least counts: how the groups' shares differ, which says little where a destination
    has few keys, and nothing where it has all; how the groups' sums of all messages differ; and how many keys there
    are. So one hot key in the sample, with which a total may be far too high, makes the interval wide, not the share
    sure, and the interval has a width wherever a key may have been left out.
    """
    value = part.messages_scaled / whole.messages_scaled
    drawn = whole.messages / whole.messages_scaled
    if drawn >= 1:
        return value, value, value
    sums = whole.messages_groups
    apart = [one - value * all_ for one, all_ in zip(part.messages_groups, sums, strict=True)]
    by_share, by_sum = (_variance(ones) / whole.messages_scaled**2 for ones in (apart, [n - fmean(sums) for n in sums]))
    # Keys may not be journalled, or those of some exchanges only: each has a message at least.
    keys = whole["keys"] if whole.with_key == whole.messages else whole.messages
    alike = max(by_share / (value * (1 - value)) if 0 < value < 1 else 0.0, by_sum, (1 - drawn) / keys)
    wide = _T**2 * alike
    middle, half = value + wide / 2, sqrt(wide * value * (1 - value) + wide**2 / 4)
    low, high = (end / (1 + wide) for end in (middle - half, middle + half))
    # Rounded, an end may be beyond what it ends at.
    return value, max(0.0, min(value, low)), min(1.0, max(value, high))


def _variance(apart: Iterable[float]) -> float:
    """Return the variance of the sum of groups that are so far apart from their mean."""
    return sum(one**2 for one in apart) * GROUPS / (GROUPS - 1)


def _array(name: str, sums: Iterable[str]) -> Column:
    return F.expr(f"array({', '.join(sums)}) AS {name}_groups")


def _between(rows: DataFrame, name: str, least: str, variance: str, quantile: float) -> DataFrame:
    """Return rows with NAME_low and NAME_high around NAME_scaled; `least` is what it cannot be less than.

    Sums of unlike keys are skewed: where the hot ones were drawn the estimate is far too high, else somewhat too low.
    So the low end is as many standard errors off as the quantile says; the high one is the largest figure for which the
    estimate is that near, if the variance grows as the figure does (a score interval of overdispersed counts).
    """
    scaled = f"{name}_scaled"
    rows = rows.withColumn("_variance", F.expr(variance))
    each = f"CASE WHEN {scaled} > {name} THEN _variance / ({scaled} - {name}) ELSE 0D END"
    rows = rows.withColumn("_half", F.expr(f"{quantile}D * ({each}) / 2"))
    low = f"greatest({least}, {scaled} - {quantile}D * sqrt(_variance))"
    high = f"{scaled} + {quantile}D * (_half + sqrt(_variance + power(_half, 2)))"
    # Keys may be null, and `greatest` leaves a null out.
    ends = {
        end: F.expr(f"CASE WHEN {scaled} IS NOT NULL THEN {text} END") for end, text in (("low", low), ("high", high))
    }
    return rows.withColumns({f"{name}_{end}": column for end, column in ends.items()}).drop("_variance", "_half")
