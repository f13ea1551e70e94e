"""The findings that the report of `usage` shows, collected from its tables."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import and_
from typing import NamedTuple

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pipeline.data.gaps import Missing, counted
from pipeline.stats.sampling import Estimate
from pipeline.usage.scaling import part
from pipeline.usage.windows import sums, with_estimates

MOST_ROWS = 50
"""The most rows of a table in the report; the Parquet tables have all."""

MOST_LINES = 8
"""The most destinations that a plot tells apart."""

MOST_WINDOWS = 300
"""The most windows in the report; where there are more, it shows wider ones."""

_WIDER = (10, 15, 20, 30, 60, 180, 360, 720)
"""The widths, in minutes, to which windows are merged; above them come whole days."""
_DAY = 1440

_DESTINATION = ("vhost", "exchange", "kind", "destination")


class Bar(NamedTuple):
    """The messages of one window, of all destinations or of one that a plot tells apart."""

    window: int
    line: int | None
    """An index in `destinations` below MOST_LINES; None for all others."""
    messages: Estimate


@dataclass(frozen=True)
class Findings:
    """All that the report needs, small whatever the journal is.

    Times are microseconds since 1970: of a timestamp PySpark makes one of the machine's time zone.
    """

    whole: Row
    """The row of all records, of whose sample every estimate is made."""
    ingresses: Sequence[Row]
    """A row of all records for each `ingress` that has some, since latencies differ between ingresses."""
    destinations: Sequence[Row]
    """A row for each destination, the busiest first, at most MOST_ROWS."""
    answers: Mapping[tuple[int, str], Row]
    """The rows with `p50` and `p99`, by the index in `destinations` and the ingress."""
    minutes: int
    """The width of `windows` in minutes: the table's, or so much wider that there are at most MOST_WINDOWS."""
    windows: Sequence[Row]
    """A row for each window and `ingress` over all destinations, in order of time."""
    busy: Sequence[Bar]
    """The messages of each window by destination, in order of time."""
    tops: Sequence[Bar]
    """The messages of each window over all destinations, in order of time."""
    gaps: Sequence[Row]
    """A row for each gap, the largest first, at most MOST_ROWS."""
    missing: Missing
    """The counts of missing records."""

    @cached_property
    def names(self) -> Sequence[str]:
        """The name of each of `destinations` for people; names that would be equal have kind and virtual host as
        well.
        """
        short = [
            f"{row.exchange} > {'passed' if row.destination is None else row.destination}" for row in self.destinations
        ]
        counted = Counter(short)
        return [
            name if counted[name] == 1 else f"{name} ({row.kind or 'no destination'}, virtual host {row.vhost})"
            for name, row in zip(short, self.destinations, strict=True)
        ]


def find(usage: DataFrame, gaps: DataFrame) -> Findings:
    """Return the findings of the two tables; `usage` must have rows, all with windows of one width."""
    whole, *ranked = _ranked(usage)
    destinations = sorted(ranked, key=lambda row: -part(row, whole).value)
    numbered = _numbered(usage, destinations)
    minutes = wider(whole.minutes, whole.first // 60_000_000, whole.last // 60_000_000)
    start = F.unix_micros("window")
    shown = F.when(F.col("line") < MOST_LINES, F.col("line"))
    wide = numbered.withColumns({"window": start - start % (60_000_000 * minutes), "shown": shown})
    # In one pass, by a number for each: Spark takes longer to plan these sums than to make them.
    sets = [["ingress"], ["window", "ingress"], ["line", "ingress"], ["window"], ["window", "shown"]]
    columns = ("ingress", "window", "line", "shown")
    grouped = wide.groupingSets([[F.col(name) for name in one] for one in sets], *columns)
    rows = with_estimates(sums(grouped, F.grouping_id().alias("of"))).drop("keys_sketch").orderBy(*columns).collect()
    ingresses, windows, lines, tops, busy = ([row for row in rows if row.of == _number(one, columns)] for one in sets)
    answers = {(row.line, row.ingress): row for row in lines if row.line is not None}
    of_line, of_all = ([Bar(row.window, row.shown, part(row, whole)) for row in some] for some in (busy, tops))
    missing = counted(gaps)
    largest = gaps.where("missing > 0").orderBy(F.desc("missing"), "proxy", "first").limit(MOST_ROWS)
    largest = largest.withColumns({name: F.unix_micros(name) for name in ("since", "until")})
    return Findings(
        whole, ingresses, destinations, answers, minutes, windows, of_line, of_all, largest.collect(), missing
    )


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


def _ranked(usage: DataFrame) -> list[Row]:
    """Return the row of all records, and then a row for each of the busiest destinations, at most MOST_ROWS.

    The rows also have the `minutes` of the windows, and the starts of the `first` and the `last` one.
    """
    grouped = usage.groupingSets([[], [F.col(name) for name in _DESTINATION]], *_DESTINATION)
    ends = (F.unix_micros(F.min("window")).alias("first"), F.unix_micros(F.max("window")).alias("last"))
    added = sums(grouped, F.grouping_id().alias("of"), F.max("minutes").alias("minutes"), *ends)
    # Without sketches, which are large.
    rows = with_estimates(added).drop("keys_sketch")
    return rows.orderBy(F.desc("of"), F.desc("messages_scaled"), *_DESTINATION).limit(1 + MOST_ROWS).collect()


def _numbered(usage: DataFrame, destinations: Sequence[Row]) -> DataFrame:
    """Return the table with a column `line`, the index of the row's destination in `destinations`, null for others."""
    names = [(n, *(row[name] for name in _DESTINATION)) for n, row in enumerate(destinations)]
    columns = ", ".join(f"_{name} string" for name in _DESTINATION)
    lines = F.broadcast(usage.sparkSession.createDataFrame(names, f"line int, {columns}"))
    # By the columns: names may be equal of several.
    equal = reduce(and_, (usage[name].eqNullSafe(lines[f"_{name}"]) for name in _DESTINATION))
    return usage.join(lines, equal, "left").drop(*(f"_{name}" for name in _DESTINATION))
