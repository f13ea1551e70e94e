"""The tables of `usage` on disk, from a batch or rolled up from a stream; made again, they are the same."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pipeline import PipelineError
from pipeline.data import files as hours
from pipeline.data import gaps
from pipeline.data.files import found
from pipeline.data.period import ALWAYS, Period
from pipeline.usage.windows import GROUP, merged, usage, with_estimates, with_hour

_HOUR = ("dt", "hour")
_NOTHING_THERE = ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA")


@dataclass(frozen=True)
class Written:
    """The result of writing the tables from a journal's folder."""

    within: Period
    """The time that it was of: at an end that was not asked for, from the first or to the last window of a record."""
    kept: Sequence[Row]
    """The hours that stay as they were, in order: `hour` (microseconds since 1970), `written` and `read`, the records
    in the table and in the journal."""


@dataclass(frozen=True)
class Tables:
    """The tables in the folder `out`: `usage`, partitioned by `dt` and `hour`, and `gaps`, with windows of
    `minutes`.
    """

    spark: SparkSession
    out: str
    minutes: int

    def check(self) -> None:
        """Check that the folder has windows of `minutes` and the present columns. Raises PipelineError if not.

        One file is enough to look at, since no run adds to a folder whose rows are unlike those it writes.
        """
        file = self._newest()
        if file is None:
            return
        rows = self.spark.read.parquet(file)
        if missing := [name for name in (*GROUP, "messages_groups") if name not in rows.columns]:
            raise PipelineError(
                f"--out: {self.out}: its table usage has no column {missing[0]!r}, as an earlier release wrote it: "
                "give a new folder, or remove this one"
            )
        if (one := rows.select("minutes").head()) and one.minutes != self.minutes:
            raise PipelineError(f"--window: {self.minutes}: {self.out} has windows of {one.minutes} minutes")

    def usage(self, within: Period = ALWAYS) -> DataFrame | None:
        """Return the table `usage` in a period of whole hours, from all runs so far; None if it has no row."""
        root = f"{self.out}/usage"
        return self._written(root, *hours.folders(self.spark, root, within))

    def gaps(self) -> DataFrame:
        """Return the table `gaps` as the last run wrote it."""
        return self.spark.read.parquet(f"{self.out}/gaps")

    def write(
        self, records: DataFrame, missing: DataFrame, within: Period = ALWAYS, *, overwrite_fewer: bool = False
    ) -> Written | None:
        """Write both tables of a journal's records, all of a period of whole hours; return None if it has none.

        `missing` has their gaps (`pipeline.data.gaps.gaps`).
        The hours that it has are overwritten, others stay; and those stay, unless `overwrite_fewer`, of which a row
        that is written has more records than were read now.
        """
        rows = usage(records, self.minutes).persist()
        try:
            span = _span(rows, within)
            if span is None:
                return None
            kept = [] if overwrite_fewer else self._fuller(rows, span)
            starts = [row.hour for row in kept]
            self._write_usage(rows.where(~F.unix_micros(F.date_trunc("hour", "window")).isin(starts)))
            self._write_gaps(missing)
        finally:
            rows.unpersist()
        return Written(span, kept)

    def _fuller(self, rows: DataFrame, within: Period) -> list[Row]:
        """Return the hours in which the table has a row with more records than `rows` have, as in `Written.kept`."""
        written = self.usage(within)
        if written is None:
            return []
        there, now = (
            table.select(*GROUP, *(amount.cast("long").alias(name) for name, amount in counts.items()))
            for table, counts in (
                (written, {"written": F.col("messages"), "read": F.lit(0)}),
                (rows, {"written": F.lit(0), "read": F.col("messages")}),
            )
        )
        # By GROUP: as many records of one exchange may be new in a window as have expired of another.
        both = there.unionByName(now).groupBy(*GROUP).agg(*(F.sum(name).alias(name) for name in ("written", "read")))
        by_hour = both.groupBy(F.unix_micros(F.date_trunc("hour", "window")).alias("hour")).agg(
            F.sum("written").alias("written"),
            F.sum("read").alias("read"),
            F.bool_or(F.col("written") > F.col("read")).alias("fewer"),
        )
        return by_hour.where("fewer").drop("fewer").orderBy("hour").collect()

    def add(self, records: DataFrame, batch: int) -> None:
        """Add a batch of a stream to the tables; adding it again changes nothing.

        Raises PipelineError if a record is in two files, or twice in one: in both batches' rows it would count.
        Each batch's own rows are kept under its number, and the hours that it has records of are made of all of
        those. Nothing is held back: a record that comes late changes its hour.
        """
        number = F.lit(batch).alias("batch")
        new = gaps.sequences(records).select("*", number).persist()
        try:
            if "file" in records.columns:  # Records from a stream queue may be there twice.
                self._check_once(new, batch)
            own = with_hour(usage(records, self.minutes)).select("*", number)
            _overwrite(own, self._part("usage"), *_HOUR, "batch")
            _overwrite(new, self._part("sequences"), "batch")
        finally:
            new.unpersist()
        parts, sequences = (self._written(part, part) for part in (self._part("usage"), self._part("sequences")))
        if parts is None or sequences is None:  # No batch had a record so far.
            return
        hours = parts.where(F.col("batch") == batch).select(*_HOUR).distinct()
        self._write_usage(merged(parts.join(F.broadcast(hours), list(_HOUR), "left_semi")))
        self._write_gaps(gaps.gaps(sequences))

    def _check_once(self, new: DataFrame, batch: int) -> None:
        """Raise PipelineError if a record of a batch is there twice, or in an earlier batch too.

        It is called before anything of the batch is written, so that the batch can come again with one copy of each.
        From the earlier batches it looks only at the sequences that end behind the batch's first number of a proxy.
        """
        sequences = self._written(self._part("sequences"), self._part("sequences"))
        if sequences is not None:
            least = F.broadcast(new.groupBy("proxy").agg(F.min("first").alias("least")))
            earlier = sequences.where(F.col("batch") != batch).join(least, "proxy").where("last >= least")
            new = new.unionByName(earlier.select(new.columns))
        gaps.check_once(new, self.out)

    @property
    def checkpoint(self) -> str:
        """The folder of the stream's checkpoint, inside that of its tables, so that neither exists without the
        other.
        """
        return f"{self.out}/checkpoint"

    def _newest(self) -> str | None:
        """The path of a file of the table `usage`, without a look at all of its folders; None if it has none."""
        for day in reversed(found(self.spark, f"{self.out}/usage/dt=*")):
            for file in reversed(found(self.spark, f"{day}/hour=*/*.parquet")):
                return file
        return None

    def _written(self, table: str, *folders: str) -> DataFrame | None:
        """Return these folders of a partitioned table; None if they do not exist or have no file yet."""
        if not folders:
            return None
        try:
            return self.spark.read.option("basePath", table).parquet(*folders)
        except AnalysisException as error:
            if error.getCondition() in _NOTHING_THERE:
                return None
            raise

    def _part(self, name: str) -> str:
        return f"{self.checkpoint}/parts/{name}"

    def _write_usage(self, rows: DataFrame) -> None:
        _overwrite(with_hour(with_estimates(rows)), f"{self.out}/usage", *_HOUR)

    def _write_gaps(self, missing: DataFrame) -> None:
        _overwrite(missing.orderBy("proxy", "first").coalesce(1), f"{self.out}/gaps")


def _overwrite(rows: DataFrame, path: str, *by: str) -> None:
    """Write rows in place of the table, or in a partitioned table in place of the partitions that they are of."""
    if by:
        rows = rows.repartition(*by)
    rows.write.mode("overwrite").option("partitionOverwriteMode", "dynamic").partitionBy(*by).parquet(path)


def _span(rows: DataFrame, within: Period) -> Period | None:
    """Return the period with both ends, taken from the first or last window where it lacks one; None without rows."""
    first, last = rows.agg(F.unix_micros(F.min("window")), F.unix_micros(F.max("window"))).collect()[0]
    if first is None:
        return None
    start, end = (datetime.fromtimestamp(micros // 1_000_000, UTC) for micros in (first, last))
    return Period(within.since or start, within.until or end + timedelta(microseconds=1))
