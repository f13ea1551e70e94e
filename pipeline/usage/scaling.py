"""What a sampled journal's figures say of all publishes: 95% intervals, by the method of random groups.

A journal with `sample` s has the slots below s * 2^20, each with all messages of its keys, so what was drawn are slots
and not messages: how far a total may be off depends on how unlike slots are. Slots are dealt out to GROUPS groups, and
how much the sums of groups differ tells the variance of their total (Wolter, Introduction to Variance Estimation,
chapter 2). The sums of groups add up where rows merge, as all other sums do.
"""

from collections.abc import Iterable, Sequence
from math import sqrt

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

GROUPS = 8
"""A group has the slots with one remainder by it: slots are hashes, so that is a random part of them."""

SPREAD = ("messages", "bytes")
"""The figures that have an interval."""

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

    The share is that of two totals, of this row and of all others, which have no slot in common. The ends are those of
    the ratio of both by the interval of each (method of variance estimates recovery, MOVER-R: Donner and Zou, 2012).
    So one hot key in the sample, with which a total may be far too high, makes the interval wide, not the share sure.
    """
    value = part.messages_scaled / whole.messages_scaled
    rest = whole.messages - part.messages, whole.messages_scaled - part.messages_scaled
    groups = [all_ - one for one, all_ in zip(part.messages_groups, whole.messages_groups, strict=True)]
    if not rest[0] or not any(whole.messages_groups):
        return value, value, value
    a, (a_low, a_high) = part.messages_scaled, _limits(part.messages, part.messages_scaled, part.messages_groups)
    b, (b_low, b_high) = rest[1], _limits(*rest, groups)
    root = sqrt(max(0.0, (a * b) ** 2 - a_low * b_high * (2 * a - a_low) * (2 * b - b_high)))
    low = a_low * (2 * a - a_low) / (a * b + root)
    root = sqrt(max(0.0, (a * b) ** 2 - a_high * b_low * (2 * a - a_high) * (2 * b - b_low)))
    high = (a * b + root) / (b_low * (2 * b - b_low))
    return value, low / (1 + low), high / (1 + high)


def _limits(counted: int, scaled: float, groups: Sequence[float]) -> tuple[float, float]:
    """Return the ends of the interval of a total, as `with_limits` has them of rows."""
    variance = max(0.0, sum(one**2 for one in groups) - sum(groups) ** 2 / GROUPS) * GROUPS / (GROUPS - 1)
    half = _T * variance / (scaled - counted) / 2 if scaled > counted else 0.0
    return max(counted, scaled - _T * sqrt(variance)), scaled + _T * (half + sqrt(variance + half**2))


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
