"""Copies the journal from a stream queue into files, for the jobs that read a folder.

A second run adds what has come since the first.
"""

import argparse

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pipeline import PipelineError
from pipeline.data.folder import Folder
from pipeline.data.journal import read_rings
from pipeline.data.rings import to_json
from pipeline.session import spark_session
from pipeline.stream import arguments, messages
from pipeline.stream.queue import StreamQueue
from pipeline.stream.source import queue_records

_EVENTS = "event string, batch long"
"""The columns that are read of the files which earlier batches have written."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `collect` to a parser."""
    arguments.add_arguments(parser)
    parser.add_argument(
        "--out", required=True, metavar="DIR", help="folder or URL for the journal: records/ and rings/"
    )


def run(options: argparse.Namespace) -> int:
    """Write the records and rings of the queue as files, and return the exit status 0.

    Raises PipelineError, as where no queue is named.
    """
    queue = arguments.queue_of(options)
    if queue is None:
        raise PipelineError("give --amqp-url and --queue: where the records are")
    with spark_session("collect") as spark:
        collect(queue_records(spark, queue, arguments.source_options(options)), queue, options.out)
    return 0


def collect(records: DataFrame, queue: StreamQueue, out: str) -> None:
    """Write the records that have come since the last run; a batch that Spark repeats replaces its own files."""
    spark = records.sparkSession
    folder, known = Folder(spark, out), set(read_rings(spark, out))

    def add(batch: DataFrame, number: int) -> None:
        at = F.timestamp_micros("time")
        parts = {"dt": F.date_format(at, "yyyy-MM-dd"), "hour": F.hour(at), "batch": F.lit(number)}
        # A sidecar in doubt sends a message again.
        rows = batch.dropDuplicates(["event"]).withColumns(parts).cache()
        try:
            write(rows, number, parts)
        finally:
            rows.unpersist()

    def write(rows: DataFrame, number: int, parts: dict[str, Column]) -> None:
        named = {row.ring for row in rows.select("ring").where("ring is not null").distinct().collect()}
        if not named <= known:
            # Before the records that name them, so that these are nowhere without them.
            for fingerprint, ring in messages.read_rings(queue).items():
                folder.write(f"rings/{fingerprint}.json", to_json(ring))
            # One that retention has removed is not looked for again in this run.
            known.update(named)
        # Not cached: Spark forgets what it has cached of a folder that it writes to.
        new = _without_copies(rows, folder, number).localCheckpoint()
        written = new.repartition("dt", "hour").write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
        written.partitionBy(*parts).option("compression", "gzip").json(f"{out}/records")
        print(f"{new.count():,} records: {out}", flush=True)

    stream = records.writeStream.foreachBatch(add).option("checkpointLocation", f"{out}/checkpoint")
    stream.trigger(availableNow=True).start().awaitTermination()


def _without_copies(rows: DataFrame, folder: Folder, number: int) -> DataFrame:
    """Return the rows that no batch with a lower number has written.

    Later batches are not looked at, so that a batch that is repeated gives the same files. A record's copies have one
    time, so only the folders of the rows' hours are read.
    """
    if not number:
        return rows
    hours = [f"records/dt={row.dt}/hour={row.hour}" for row in rows.select("dt", "hour").distinct().collect()]
    written = [f"{folder}/{hour}" for hour in hours if folder.holds(hour)]
    if not written:
        return rows
    there = rows.sparkSession.read.option("basePath", f"{folder}/records").schema(_EVENTS).json(written)
    earlier = there.where(F.col("batch") < number)
    return rows.join(earlier, rows["event"] == earlier["event"], "left_anti")
