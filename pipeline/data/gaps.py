"""Which records of a journal are missing, and which are there twice: each proxy numbers its own, 1, 2, 3, ..."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Window, WindowSpec
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pipeline import PipelineError
from pipeline.data.journal import read_records
from pipeline.data.period import ALWAYS, Period

SEQUENCES = "proxy string, first long, last long, since long, until long, records long, file string"
"""The columns that `sequences` returns, as a Spark schema."""

_MOST_HELD = 1_000_000
"""How many records of one file a task holds at a time, in 20 bytes each and 60 more while it sorts them.

A run of consecutive numbers that goes on behind them is returned in two rows.
"""

_AROUND = timedelta(hours=1)
"""How far beyond a period's ends records are looked for: a clock that was set by no more than this hides none."""

_NAMED = r"/([0-9a-f]{16})-([0-9]{12,18})\.jsonl\.gz$"
"""The name of a journal file (docs/reference/journal.md): the sidecar, and the number of the file's first record."""


@dataclass(frozen=True)
class Missing:
    """The counts of the records that a journal lacks."""

    records: int
    """How many numbers are missing behind a proxy's oldest kept record, or were dropped, as its oldest file says."""
    before: int
    """How many numbers are before the oldest kept record of their proxy: these have expired, or were never written."""

    def __str__(self) -> str:
        """Return a sentence on the numbers before the oldest kept records; empty if there are none."""
        if not self.before:
            return ""
        return (
            f"{self.before:,} more numbers are before the oldest kept record of their sidecar: those records have"
            " expired, or were never written; the journal cannot tell."
        )


NONE_MISSING = Missing(0, 0)


def sequences(records: DataFrame) -> DataFrame:
    """Return the runs of consecutive numbers in each file: few rows next to the records, a row for each file and gap.

    The columns are those of SEQUENCES: of each run its `proxy`, its `first` and `last` number and the times of those
    two records (`since` and `until`, microseconds since 1970); how many `records` it has, which are more than numbers
    where one is in the file twice; and the `file`, null for records without that column, such as a stream queue's.
    """
    file = F.col("file") if "file" in records.columns else F.lit(None).cast("string")
    return records.select("proxy", "seq", "time", file.alias("file")).mapInArrow(_runs, SEQUENCES)


def check_once(rows: DataFrame, journal: str) -> None:
    """Raise PipelineError if a record is in the `sequences` of a journal twice; it names the files."""
    before = _ordered().rowsBetween(Window.unboundedPreceding, -1)
    reached = rows.select(
        "*", F.max("last").over(before).alias("reached"), F.max_by("file", "last").over(before).alias("other")
    )
    within = F.col("records") > F.col("last") - F.col("first") + 1
    told = reached.where((F.col("first") <= F.col("reached")) | within).orderBy("proxy", "first").limit(1).collect()
    for row in told:
        if row.reached is None or row["first"] > row.reached:
            some, last, where = "some of the ", row["last"], f"twice in {row.file}"
        else:
            some = "some of the " if row.records < row["last"] - row["first"] + 1 else ""
            last = min(row["last"], row.reached)
            where = f"in {row.other} and again in {row.file}" if row.file != row.other else f"twice in {row.file}"
        said = f"{some}records {row.proxy}-{row['first']} to {row.proxy}-{last} are {where}"
        raise PipelineError(f"{journal}: {said}: leave one copy of each")


def gaps(rows: DataFrame, within: Period = ALWAYS) -> DataFrame:
    """Return what is missing from `sequences`; nothing can be seen after a proxy's last number.

    Columns: `proxy`; the `first` and `last` number that is not there; how many are `missing`, or `before` the oldest
    kept record (one of the two is 0); and `since` (null for none) and `until`, the times of the records right before
    and right after them. The name of a sidecar's file says from which number on it has the records, so that what was
    dropped at a proxy's start is missing; other numbers before its oldest record are `before`, and are told only where
    the period has no beginning.

    Rows with a column `inside` that is false are of records outside the period: they are there, and no more.
    """
    inside = F.col("inside") if "inside" in rows.columns else F.lit(True)
    whole, order = Window.partitionBy("proxy"), _ordered()
    before = order.rowsBetween(Window.unboundedPreceding, -1)
    is_own = F.regexp_extract("file", _NAMED, 1) == F.col("proxy")
    named = F.when(is_own, F.regexp_extract("file", _NAMED, 2).cast("long"))
    placed = rows.select(
        "proxy",
        F.col("first").alias("next"),
        F.col("since").alias("until"),
        # Files written before that was so, and copies under another name, tell of no record before their first.
        F.least(F.coalesce(named, F.col("first")), F.col("first")).alias("claimed"),
        F.coalesce(F.max("last").over(before), F.lit(0)).alias("reached"),
        F.max_by("until", "last").over(before).alias("since"),
        F.min(F.when(inside, F.col("first"))).over(whole).alias("least"),
        F.max(F.when(inside, F.col("last"))).over(whole).alias("largest"),
    )
    following = F.col("reached") + 1
    claimed = F.greatest(following, "claimed")
    if within.since is None:
        start = F.when(F.col("reached") == 0, claimed).otherwise(following)
        expired = F.when(F.col("reached") == 0, F.col("claimed") - 1)
    else:
        # A sidecar begins a file with each hour: what the name claims was not written before that.
        at_least = claimed if within.begins_an_hour else F.col("next")
        start = F.when(F.col("next") == F.col("least"), at_least).when(F.col("next") > F.col("least"), following)
        expired = F.lit(None).cast("long")
    none = F.lit(0).cast("long")
    count = F.col("next") - F.col("start")
    expired_row = F.struct(F.lit(1).cast("long").alias("first"), F.col("expired").alias("last"), none.alias("missing"))
    missing_row = F.struct(F.col("start").alias("first"), (F.col("next") - 1).alias("last"), count.alias("missing"))
    told = placed.select("*", start.alias("start"), expired.alias("expired")).where(F.col("next") <= F.col("largest"))
    found = told.select("proxy", F.explode(F.array(expired_row, missing_row)).alias("gap"), "since", "until")
    found = found.select("proxy", "gap.first", "gap.last", "gap.missing", "since", "until").where("first <= last")
    not_kept = F.when(F.col("missing") == 0, F.col("last")).otherwise(none)
    return found.select(
        *("proxy", "first", "last", "missing", not_kept.alias("before")),
        *(F.timestamp_micros(name).alias(name) for name in ("since", "until")),
    )


@contextmanager
def found(journal: str, records: DataFrame, within: Period) -> Iterator[DataFrame]:
    """Yield the `gaps` of a journal's records in a period. Raises PipelineError for a record that is there twice.

    Records count by their time, and a clock that is set puts some on the other side of the period's ends. Where
    something is missing in the period, the hour before and the hour after it are read as well, and only then.
    """
    rows = sequences(records).persist()
    try:
        check_once(rows, journal)
        missing = gaps(rows, within)
        if not within.is_limited or missing.isEmpty():
            yield missing
            return
        suspects = F.broadcast(missing.select("proxy").distinct())
        beyond = [read_records(records.sparkSession, journal, part) for part in within.beside(_AROUND)]
        around = [sequences(part.join(suspects, "proxy", "left_semi")) for part in beyond]
        everything = rows.withColumn("inside", F.lit(True))
        for part in around:
            everything = everything.unionByName(part.withColumn("inside", F.lit(False)))
        everything = everything.persist()
        try:
            check_once(everything, journal)
            yield gaps(everything, within)
        finally:
            everything.unpersist()
    finally:
        rows.unpersist()


def counted(gaps: DataFrame) -> Missing:
    """Return how many records the `gaps` come to."""
    told = gaps.agg(*(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in ("missing", "before"))).collect()[0]
    return Missing(told.missing, told.before)


def _ordered() -> WindowSpec:
    return Window.partitionBy("proxy").orderBy("first", "last")


def _runs(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `sequences` of a task's records, which come file by file."""
    held: list[pa.RecordBatch] = []
    count, file = 0, None
    for batch in batches:
        of_files, start = pc.run_end_encode(batch["file"]), 0
        for end, name in zip(of_files.run_ends.to_pylist(), of_files.values.to_pylist(), strict=True):
            if held and (name != file or count >= _MOST_HELD):
                yield _runs_of(held, file)
                held, count = [], 0
            held.append(_numbers(batch.slice(start, end - start)))
            count, file, start = count + end - start, name, end
    if held:
        yield _runs_of(held, file)


def _numbers(records: pa.RecordBatch) -> pa.RecordBatch:
    """Return what `_runs_of` needs of some records, in 20 bytes each: the names of files alone take 90 and more."""
    # Copies: the columns of a batch that comes from Spark are parts of one buffer, which any of them keeps as a whole.
    copies = {name: np.array(records[name]) for name in ("seq", "time")}
    return pa.RecordBatch.from_pydict({"proxy": records["proxy"].dictionary_encode(), **copies})


def _runs_of(held: list[pa.RecordBatch], file: str | None) -> pa.RecordBatch:
    """Return the rows that `sequences` has for some records of one file: one for each run of consecutive numbers."""
    table = pa.Table.from_batches(held)
    proxies = table["proxy"].unify_dictionaries().combine_chunks()
    owners, numbers, times = proxies.indices.to_numpy(), table["seq"].to_numpy(), table["time"].to_numpy()
    if len(proxies.dictionary) > 1 or (np.diff(numbers) < 0).any():
        order = np.lexsort((numbers, owners))
        owners, numbers, times = owners[order], numbers[order], times[order]
    apart = np.flatnonzero((np.diff(numbers) > 1) | (np.diff(owners) != 0))
    firsts, lasts = np.concatenate(([0], apart + 1)), np.concatenate((apart, [len(numbers) - 1]))
    columns = [
        proxies.dictionary.take(pa.array(owners[firsts])),
        *(pa.array(part, pa.int64()) for part in (numbers[firsts], numbers[lasts], times[firsts], times[lasts])),
        pa.array(lasts - firsts + 1, pa.int64()),
        pa.array([file] * len(firsts), pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, [field.split()[0] for field in SEQUENCES.split(", ")])
