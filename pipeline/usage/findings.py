"""What the report of `usage` tells, collected from its tables."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import and_

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pipeline.gaps import Missing, counted
from pipeline.usage.windows import merged, sums, with_estimates

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
    ingresses: Sequence[Row]
    """Everything added up by `ingress`, of those that have a record: a latency of one is not like one of another."""
    destinations: Sequence[Row]
    """The busiest first, MOST_ROWS at most."""
    answers: Mapping[tuple[int, str], Row]
    """`p50` and `p99` of the n-th of the destinations, by an ingress."""
    minutes: int
    """The width of `windows`: the table's, or so much wider that they are no more than MOST_WINDOWS."""
    windows: Sequence[Row]
    """In order, each over all destinations, by `ingress`."""
    busy: Sequence[Row]
    """By window, `messages_scaled` of `line`: the n-th of the destinations, of MOST_LINES; null for all others."""
    gaps: Sequence[Row]
    """The largest first, MOST_ROWS at most."""
    missing: Missing
    """How many records are in no file."""

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
    ranked = _told(usage, *_DESTINATION).orderBy(F.desc("messages_scaled"), *_DESTINATION)
    destinations = ranked.limit(MOST_ROWS).collect()
    numbered = _numbered(usage, destinations)
    own, first, last = usage.agg(F.max("minutes"), *(F.unix_micros(f("window")) for f in (F.min, F.max))).collect()[0]
    minutes = wider(own, first // 60_000_000, last // 60_000_000)
    start = F.unix_micros("window")
    wide = numbered.withColumn("window", start - start % (60_000_000 * minutes))
    # In one pass, by a number for each: Spark takes longer to plan these sums than to make them.
    sets: list[list[str]] = [["minutes"], ["ingress"], ["window", "ingress"], ["line", "ingress"]]
    columns = ("minutes", "ingress", "window", "line")
    grouped = wide.groupingSets([[F.col(name) for name in one] for one in sets], *columns)
    rows = with_estimates(sums(grouped, F.grouping_id().alias("of"))).drop("keys_sketch").orderBy(*columns).collect()
    (whole,), ingresses, windows, lines = ([row for row in rows if row.of == _number(one, columns)] for one in sets)
    answers = {(row.line, row.ingress): row for row in lines if row.line is not None}
    busy = (
        wide.groupBy("window", F.when(F.col("line") < MOST_LINES, F.col("line")).alias("line"))
        .agg(F.sum("messages_scaled").alias("messages_scaled"))
        .orderBy("window")
        .collect()
    )
    missing = counted(gaps)
    largest = gaps.where("missing > 0").orderBy(F.desc("missing"), "proxy", "first").limit(MOST_ROWS)
    largest = largest.withColumns({name: F.unix_micros(name) for name in ("since", "until")})
    return Findings(whole, ingresses, destinations, answers, minutes, windows, busy, largest.collect(), missing)


def wider(minutes: int, first: int, last: int) -> int:
    """The least width, made of windows of so many `minutes`, of which MOST_WINDOWS hold all from `first` to `last`.

    These are the starts of two windows, in minutes since 1970.
    """

    def fits(width: int) -> bool:
        return width % minutes == 0 and last // width - first // width < MOST_WINDOWS

    days = range(_DAY, last + 2 * _DAY, _DAY)
    widths: list[int] = [minutes, *_WIDER, *days]
    return next(filter(fits, widths))


def _number(names: Sequence[str], columns: Sequence[str]) -> int:
    """Return the `grouping_id` of the set of these names: a bit for each column, 1 where it is not in the set."""
    return sum(2**n for n, name in enumerate(reversed(columns)) if name not in names)


def _told(usage: DataFrame, *by: str) -> DataFrame:
    """Without the sketches, which are large and of no use in a report."""
    return with_estimates(merged(usage, by)).drop("keys_sketch")


def _numbered(usage: DataFrame, destinations: Sequence[Row]) -> DataFrame:
    """The table with the column `line`: which of these destinations a row is of; null for any other."""
    names = [(n, *(row[name] for name in _DESTINATION)) for n, row in enumerate(destinations)]
    columns = ", ".join(f"_{name} string" for name in _DESTINATION)
    lines = F.broadcast(usage.sparkSession.createDataFrame(names, f"line int, {columns}"))
    # By the columns: names may be equal of several.
    equal = reduce(and_, (usage[name].eqNullSafe(lines[f"_{name}"]) for name in _DESTINATION))
    return usage.join(lines, equal, "left").drop(*(f"_{name}" for name in _DESTINATION))
