"""What the report of `usage` tells, collected from its tables."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import and_

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pipeline.usage.windows import merged, told

MOST_ROWS = 50
"""Of a table in the report: the Parquet tables have all."""

MOST_LINES = 8
"""Destinations that a plot tells apart."""

MOST_WINDOWS = 300
"""In the report: above it they are told by wider ones."""

_WIDER = (10, 15, 20, 30, 60, 180, 360, 720)
"""Minutes; above them whole days."""
_DAY = 1440

_DESTINATION = ("vhost", "exchange", "kind", "destination")


@dataclass(frozen=True)
class Findings:
    """All that the report needs, small whatever the journal is.

    Times are microseconds since 1970: of a timestamp PySpark makes one of the machine's time zone.
    """

    whole: Row
    """Everything added up."""
    destinations: Sequence[Row]
    """The busiest first, MOST_ROWS at most."""
    minutes: int
    """The width of `windows`: the table's, or so much wider that they are no more than MOST_WINDOWS."""
    windows: Sequence[Row]
    """In order, each over all destinations."""
    busy: Sequence[Row]
    """By window, `messages_scaled` of `line`: the n-th of the destinations, of MOST_LINES; null for all others."""
    gaps: Sequence[Row]
    """The largest first, MOST_ROWS at most."""
    missing: int
    """Records that are in no file."""

    @cached_property
    def names(self) -> Sequence[str]:
        """Of each of the destinations, as people read it; those that would be equal are told in full."""
        short = [
            f"{row.exchange} > {'passed' if row.destination is None else row.destination}" for row in self.destinations
        ]
        counted = Counter(short)
        return [
            name if counted[name] == 1 else f"{name} ({row.kind or 'no destination'}, virtual host {row.vhost})"
            for name, row in zip(short, self.destinations, strict=True)
        ]


def find(usage: DataFrame, gaps: DataFrame) -> Findings:
    """From the two tables, of which the first has rows, all of one width."""
    whole = _told(usage, "minutes").collect()[0]
    ranked = _told(usage, *_DESTINATION).orderBy(F.desc("messages_scaled"), *_DESTINATION)
    destinations = ranked.limit(MOST_ROWS).collect()
    first, last = usage.agg(F.unix_micros(F.min("window")), F.unix_micros(F.max("window"))).collect()[0]
    minutes = wider(whole.minutes, first // 60_000_000, last // 60_000_000)
    start = F.unix_micros("window")
    wide = usage.withColumn("window", start - start % (60_000_000 * minutes))
    windows = _told(wide, "window").orderBy("window").collect()
    # By the columns: names may be equal of several.
    line = F.coalesce(*(F.when(_is(row), n) for n, row in enumerate(destinations[:MOST_LINES])))
    busy = (
        wide.groupBy("window", line.alias("line"))
        .agg(F.sum("messages_scaled").alias("messages_scaled"))
        .orderBy("window")
        .collect()
    )
    missing = gaps.agg(F.coalesce(F.sum("missing"), F.lit(0))).collect()[0][0]
    largest = gaps.orderBy(F.desc("missing"), "proxy", "first").limit(MOST_ROWS)
    largest = largest.withColumns({name: F.unix_micros(name) for name in ("since", "until")})
    return Findings(whole, destinations, minutes, windows, busy, largest.collect(), missing)


def wider(minutes: int, first: int, last: int) -> int:
    """The least width, made of windows of so many `minutes`, of which MOST_WINDOWS hold all from `first` to `last`.

    These are the starts of two windows, in minutes since 1970.
    """

    def fits(width: int) -> bool:
        return width % minutes == 0 and last // width - first // width < MOST_WINDOWS

    days = range(_DAY, last + 2 * _DAY, _DAY)
    widths: list[int] = [minutes, *_WIDER, *days]
    return next(filter(fits, widths))


def _told(usage: DataFrame, *by: str) -> DataFrame:
    """Without the sketches, which are large and of no use in a report."""
    return told(merged(usage, by)).drop("keys_sketch")


def _is(row: Row) -> Column:
    """Whether a row of the table is of this destination."""
    return reduce(and_, (F.col(name).eqNullSafe(F.lit(row[name])) for name in _DESTINATION))
