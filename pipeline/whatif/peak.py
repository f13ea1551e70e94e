"""The busiest hour of an exchange, and the growth of its messages from week to week."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pipeline.whatif.demand import by_slot, of_all_rings
from pipeline.whatif.published import Published

HOUR = 3_600_000_000
"""An hour in microseconds."""

DAYS = 90
"""How far ahead growth is told."""

_WEEK = 7 * 24
"""A week in hours: weeks are compared, as days of a week differ."""


class Peak(NamedTuple):
    """The hour with the most messages of an exchange."""

    begin: int
    """Its begin, in microseconds since 1970."""
    published: Published
    """The messages that were published in it."""
    keys: DataFrame
    """Its keys, as `of_all_rings` has them."""
    growth: float | None
    """How many times the last week's messages a week will have in DAYS; None if there are less than two weeks."""


def peak_of(records: DataFrame, sample: float, where: str) -> Peak:
    """Return the busiest hour of records that have any; of equally busy ones the first.

    `sample` is the share of the slots that the records have, and `where` says where they are from.
    """
    hours = records.groupBy(F.expr(f"time div {HOUR}").alias("hour")).count().collect()
    counts = {int(row["hour"]): int(row["count"]) for row in hours}
    hour = min(counts, key=lambda one: (-counts[one], one))
    its = records.where(f"time div {HOUR} = {hour}").select("slot", "key", F.lit(1).alias("messages"), "bytes")
    keys = of_all_rings(its)
    return Peak(hour * HOUR, Published.of(by_slot(keys, where), sample), keys, growth(counts))


def growth(counts: Mapping[int, int]) -> float | None:
    """Return how many times the last week's messages a week will have in DAYS, by a straight line through all weeks.

    `counts` has the messages of each hour, numbered since 1970. Whole weeks are counted back from the last hour.
    Returns None for less than two of them, or where the last one has no message.
    """
    end = max(counts) + 1
    weeks = (end - min(counts)) // _WEEK
    totals = [sum(n for hour, n in counts.items() if 0 < end - hour - week * _WEEK <= _WEEK) for week in range(weeks)]
    if weeks < 2 or not totals[0]:
        return None
    slope, _ = np.polyfit(range(weeks), totals[::-1], 1)
    return max(0.0, float(1 + slope * DAYS * 24 / _WEEK / totals[0]))
