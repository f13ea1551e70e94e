"""Estimates of `usage` for all publishes, from a sampled journal, with their 95% intervals (pipeline.stats.sampling).

A sample draws slots, each with all messages of its keys, so how far a total may be off depends on how unlike slots are.
A row of `usage` cannot keep the messages of every slot, and a slot has messages in many rows. Slots are therefore dealt
out to GROUPS groups, whose sums add up where rows merge, as all other sums do. A group is one unit of the sample: how
much the sums of groups differ tells the variance of their total (Wolter, Introduction to Variance Estimation, chapter
2), and a group with a hot key stands out as the key's slot would.

A record stands for 1 / sample - 1 others that were not drawn. A group's sum is of these, so that records of sidecars
with different samples add up; it is 0 where all slots were drawn.
"""

from collections.abc import Iterable
from math import sqrt
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import DoubleType, StructField, StructType

from pipeline.stats.sampling import Estimate, Sample, quantile

GROUPS = 64
"""A group has the slots with one remainder by it: slots are hashes, so that is a random part of them."""

ESTIMATED = ("messages", "bytes")
"""The columns of which a sample's estimate gets an interval by groups."""

_Z, _SKETCH = 1.959964, 0.016
"""97.5% quantile of the normal distribution; and the standard error of the sketch of keys, of its estimate."""

_PARTS = 1024

_ENDS = ("scaled", "low", "high")
_udf: Any = arrow_udf  # whose stubs only know the call that it warns of


def drawn() -> dict[str, Column]:
    """Return two columns of a record: `part`, its group, null where all slots were drawn, and `beyond`.

    `beyond` is how many publishes it stands for beside itself, rounded to 1/1024: sums of such are exact, and equal in
    whichever order they are made.
    """
    part = F.when(F.col("sample") < 1, F.col("slot") % GROUPS)
    return {"part": part, "beyond": scale() - 1}


def scale() -> Column:
    """Return 1 / `sample`, rounded to 1/1024."""
    # Not `round`, which makes a BigDecimal of each double.
    return F.floor(_PARTS / F.col("sample") + 0.5) / _PARTS


def groups() -> list[Column]:
    """Return for each of ESTIMATED the aggregate of rows with a `part` and NAME_beyond: NAME_groups, GROUPS sums."""
    return [
        _array(name, (f"sum(CASE WHEN part = {n} THEN {name}_beyond ELSE 0D END)" for n in range(GROUPS)))
        for name in ESTIMATED
    ]


def merged() -> list[Column]:
    """Return the aggregates of rows that have the columns of `groups`, to the same of all their records."""
    return [_array(name, (f"sum({name}_groups[{n}])" for n in range(GROUPS))) for name in ESTIMATED]


def beyond() -> Column:
    """Return how many publishes the records of a row stand for beside themselves."""
    return F.expr("aggregate(messages_groups, 0D, (a, b) -> a + b)")


def with_limits(rows: DataFrame) -> DataFrame:
    """Return rows with each estimate and the ends of its interval: NAME_scaled, NAME_low and NAME_high.

    They are of ESTIMATED, and equal to the figure itself where there is no sample. The ends are also of `keys`, where
    the error of the sketch counts too, and the number of keys in so many slots is binomial.
    """
    for name in ESTIMATED:
        estimate = _udf(_estimates, _SCHEMA)(F.col(name), F.col(f"{name}_groups"))
        rows = rows.withColumn("_found", estimate)
        rows = rows.withColumns({f"{name}_{end}": F.col(f"_found.{end}") for end in _ENDS})
    return _with_keys(rows.drop("_found"))


_SCHEMA = StructType([StructField(end, DoubleType()) for end in _ENDS])


def _estimates(counted: pa.Array, its_groups: pa.Array) -> pa.Array:
    rows = zip(counted.to_pylist(), its_groups.to_pylist(), strict=True)
    found = np.array([estimated(count, sums)[0] for count, sums in rows], np.float64).reshape(-1, 3)
    return pa.StructArray.from_arrays([pa.array(column) for column in found.T], list(_ENDS))


def estimated(counted: float, sums: Iterable[float]) -> tuple[Estimate, Sample | None]:
    """Return the estimate of what was counted, with sums of `groups`, and its sample; None where all slots were drawn.

    The groups that were drawn are units of the size that the records of the whole say.
    """
    listed = list(sums)
    if not (others := sum(listed)):
        return Estimate(*[float(counted)] * 3), None
    ratio = others / counted
    sample = Sample.of_groups([one / ratio for one in listed], ratio * GROUPS)
    return sample.total(), sample


def sample_of(whole: Row) -> Sample | None:
    """Return the sample of a row's messages; None where all slots were drawn."""
    return estimated(whole.messages, whole.messages_groups)[1]


def part(of: Row, whole: Row, name: str = "messages") -> Estimate:
    """Return the estimate of a row's messages or bytes, by the heavy groups of another row, which it is in.

    Parts then add up to the whole, and a part of few records is not judged by those alone.
    """
    counted, sample = float(of[name]), estimated(whole[name], whole[f"{name}_groups"])[1]
    if sample is None:
        return Estimate(counted, counted, counted)
    return sample.part(counted, _units(of, whole, name))


def share(of: Row, whole: Row) -> Estimate:
    """Return the share that a row's messages have of those of another, which they are in.

    The interval has every share that would put the estimate within so many standard errors (Wilson's score interval),
    each error as of a draw of so many keys that are alike. Three figures tell how many those are, of which the least
    counts: how the groups' shares differ, which says little where a destination has few keys, and nothing where it has
    all; how the groups' sums of all messages differ; and how many keys there are. The interval then has a width
    wherever a key may have been left out. A heavy group counts as it is.
    """
    sample = sample_of(whole)
    if sample is None:
        return Estimate(*[of.messages / whole.messages] * 3)
    sums, its = (np.array(_units(row, whole, "messages")) for row in (whole, of))
    # Keys may not be journalled, or those of some exchanges only: each has a message at least.
    keys = whole["keys"] if whole.with_key == whole.messages else whole.messages
    found = []
    for way in sample.ways:
        which, ratio = sample.of_way(way), sample.unseen / way.units
        total = whole.messages + ratio * float(sums[which].sum())
        value = (of.messages + ratio * float(its[which].sum())) / total
        apart = its[which] - value * sums[which]
        by_share = float(apart.var(ddof=1)) * way.units if way.units > 1 else 0.0
        by_share, by_sum = (one * ratio * (1 + ratio) / total**2 for one in (by_share, way.each * way.messages))
        alike = max(by_share / (value * (1 - value)) if 0 < value < 1 else 0.0, by_sum, ratio / (1 + ratio) / keys)
        found.append(_wilson(value, quantile(way.units) ** 2 * alike))
    return Estimate(found[0].value, min(one.low for one in found), max(one.high for one in found))


def _wilson(value: float, wide: float) -> Estimate:
    middle, half = value + wide / 2, sqrt(wide * value * (1 - value) + wide**2 / 4)
    low, high = (end / (1 + wide) for end in (middle - half, middle + half))
    # Rounded, an end may be beyond what it ends at.
    return Estimate(value, max(0.0, min(value, low)), min(1.0, max(value, high)))


def _units(of: Row, whole: Row, name: str) -> list[float]:
    """Return a row's messages or bytes in each group, in the units of another row that it is in."""
    ratio = sum(whole[f"{name}_groups"]) / whole[name]
    return [one / ratio for one in of[f"{name}_groups"]]


def _array(name: str, sums: Iterable[str]) -> Column:
    return F.expr(f"array({', '.join(sums)}) AS {name}_groups")


def _with_keys(rows: DataFrame) -> DataFrame:
    """Return rows with keys_low and keys_high around keys_scaled, a score interval of overdispersed counts."""
    variance = f"(keys * (1 - sample) + power({_SKETCH}D * keys, 2)) / power(sample, 2)"
    each = "CASE WHEN keys_scaled > keys THEN _variance / (keys_scaled - keys) ELSE 0D END"
    rows = rows.withColumn("_variance", F.expr(variance)).withColumn("_half", F.expr(f"{_Z}D * ({each}) / 2"))
    low = f"greatest(keys * {1 - _Z * _SKETCH}D, keys_scaled - {_Z}D * sqrt(_variance))"
    high = f"keys_scaled + {_Z}D * (_half + sqrt(_variance + power(_half, 2)))"
    # Keys may be null, and `greatest` leaves a null out.
    ends = {
        f"keys_{end}": F.expr(f"CASE WHEN keys_scaled IS NOT NULL THEN {text} END")
        for end, text in (("low", low), ("high", high))
    }
    return rows.withColumns(ends).drop("_variance", "_half")
