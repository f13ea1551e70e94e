"""The tables of `usage` on disk, from a batch or rolled up from a stream; made again, they are the same."""

from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pipeline import PipelineError, gaps
from pipeline.usage.windows import merged, told, usage, with_hour

_HOUR = ("dt", "hour")
_NOTHING_THERE = ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA")


@dataclass(frozen=True)
class Tables:
    """In the folder `out`: `usage`, partitioned by `dt` and `hour`, and `gaps`."""

    spark: SparkSession
    out: str
    minutes: int

    def check(self) -> None:
        """Raises PipelineError where the folder has windows of another width."""
        written = self.usage()
        if written is not None and (other := written.where(F.col("minutes") != self.minutes).select("minutes").head()):
            raise PipelineError(f"--window: {self.minutes}: {self.out} has windows of {other[0]} minutes")

    def usage(self) -> DataFrame | None:
        """What this run and those before it have written; None for nothing."""
        return self._written(f"{self.out}/usage")

    def gaps(self) -> DataFrame:
        """As of the last run."""
        return self.spark.read.parquet(f"{self.out}/gaps")

    def write(self, records: DataFrame, *, from_start: bool = True) -> None:
        """Writes both of whole hours of a journal: those that it has are overwritten, others stay."""
        sequences = gaps.sequences(records).persist()
        sequences.count()  # A bad field of those that only this looks at ends the job before it has written anything.
        self._write_usage(usage(records, self.minutes))
        self._write_gaps(sequences, from_start=from_start)
        sequences.unpersist()

    def add(self, records: DataFrame, batch: int) -> None:
        """Adds a stream's batch; the same batch again changes nothing.

        Each batch's own rows are kept under its number, and the hours that it has records of are made of all of those.
        Nothing is held back: a record that comes late changes its hour.
        """
        number = F.lit(batch).alias("batch")
        _overwrite(with_hour(usage(records, self.minutes)).select("*", number), self._part("usage"), *_HOUR, "batch")
        _overwrite(gaps.sequences(records).select("*", number), self._part("sequences"), "batch")
        parts, sequences = self._written(self._part("usage")), self._written(self._part("sequences"))
        if parts is None or sequences is None:  # No batch had a record so far.
            return
        hours = parts.where(F.col("batch") == batch).select(*_HOUR).distinct()
        self._write_usage(merged(parts.join(F.broadcast(hours), list(_HOUR), "left_semi")))
        self._write_gaps(gaps.merged(sequences))

    @property
    def checkpoint(self) -> str:
        """The stream's: with the tables that it is of, so that neither is there without the other."""
        return f"{self.out}/checkpoint"

    def _written(self, path: str) -> DataFrame | None:
        """A partitioned table, which has no file, or is not there, before it has a row."""
        try:
            return self.spark.read.parquet(path)
        except AnalysisException as error:
            if error.getCondition() in _NOTHING_THERE:
                return None
            raise

    def _part(self, name: str) -> str:
        return f"{self.checkpoint}/parts/{name}"

    def _write_usage(self, rows: DataFrame) -> None:
        _overwrite(with_hour(told(rows)), f"{self.out}/usage", *_HOUR)

    def _write_gaps(self, sequences: DataFrame, *, from_start: bool = True) -> None:
        found = gaps.gaps(sequences, from_start=from_start)
        _overwrite(found.orderBy("proxy", "first").coalesce(1), f"{self.out}/gaps")


def _overwrite(rows: DataFrame, path: str, *by: str) -> None:
    """Replaces the table, or of a partitioned one the partitions that there are rows of."""
    if by:
        rows = rows.repartition(*by)
    rows.write.mode("overwrite").option("partitionOverwriteMode", "dynamic").partitionBy(*by).parquet(path)
