"""What the report of `usage` tells, collected from its tables."""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pipeline.usage.windows import merged, told

MOST_ROWS = 50
"""Of a table in the report: the Parquet tables have all."""

MOST_LINES = 8
"""Destinations that a plot tells apart."""

_DESTINATION = ("vhost", "exchange", "kind", "destination")


@dataclass(frozen=True)
class Findings:
    """All that the report needs, small whatever the journal is."""

    whole: Row
    """Everything added up."""
    destinations: Sequence[Row]
    """The busiest first, MOST_ROWS at most."""
    windows: Sequence[Row]
    """In order, each over all destinations."""
    busy: Sequence[Row]
    """The first of the destinations by window: `window`, `name`, `messages_scaled`."""
    gaps: Sequence[Row]
    """The largest first, MOST_ROWS at most."""
    missing: int
    """Records that are in no file."""


def find(usage: DataFrame, gaps: DataFrame) -> Findings:
    """From the two tables, of which the first has rows, all of one width."""
    whole = told(merged(usage, ("minutes",))).collect()[0]
    ranked = told(merged(usage, _DESTINATION)).orderBy(F.desc("messages_scaled"), *_DESTINATION)
    destinations = ranked.limit(MOST_ROWS).collect()
    windows = told(merged(usage, ("window",))).orderBy("window").collect()
    names = [row_name(row) for row in destinations[:MOST_LINES]]
    name = F.concat_ws(" > ", "exchange", F.coalesce("destination", F.lit("passed")))
    lines = usage.groupBy("window", F.when(name.isin(names), name).otherwise("others").alias("name"))
    busy = lines.agg(F.sum("messages_scaled").alias("messages_scaled")).orderBy("window").collect()
    missing = gaps.agg(F.coalesce(F.sum("missing"), F.lit(0))).collect()[0][0]
    largest = gaps.orderBy(F.desc("missing"), "proxy", "first").limit(MOST_ROWS).collect()
    return Findings(whole, destinations, windows, busy, largest, missing)


def row_name(row: Row) -> str:
    """A destination as the report calls it."""
    return f"{row.exchange} > {row.destination or 'passed'}"
