"""What went where, by window, exchange and destination; and which records of the journal are missing.

Run again it writes the same; with --stream it adds what is new.
"""

import argparse
from pathlib import Path

from pyspark.sql import DataFrame

from pipeline import PipelineError
from pipeline.journal import read_records, stream_records
from pipeline.session import spark_session
from pipeline.usage.findings import find
from pipeline.usage.report import report
from pipeline.usage.tables import Tables


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Of this job."""
    parser.add_argument("--journal", required=True, metavar="DIR", help="the sidecars' journal_dir, or a copy of it")
    parser.add_argument("--out", required=True, metavar="DIR", help="where usage/, gaps/ and report.html go")
    parser.add_argument("--window", type=int, default=5, metavar="MINUTES", help="a divisor of 60 (default: 5)")
    parser.add_argument("--stream", action="store_true", help="take in only what has come since the last run")
    parser.add_argument(
        "--every", type=int, metavar="SECONDS", help="with --stream: go on, looking for more every so many seconds"
    )


def run(options: argparse.Namespace) -> int:
    """Writes the tables and the report; 0."""
    if options.every is not None and (not options.stream or options.every < 1):
        raise PipelineError(f"--every: {options.every}: goes with --stream, and is 1 at least")
    with spark_session("usage") as spark:
        tables = Tables(spark, options.out, options.window)
        tables.check()
        if options.stream:
            follow(stream_records(spark, options.journal), tables, options.every)
        else:
            tables.write(read_records(spark, options.journal))
        tell(tables)
    return 0


def follow(records: DataFrame, tables: Tables, every: int | None) -> None:
    """Adds what has come since the last run; with `every`, goes on with what comes, and tells of each batch."""

    def add(batch: DataFrame, number: int) -> None:
        tables.add(batch, number)
        if every is not None:
            tell(tables)

    stream = records.writeStream.foreachBatch(add).option("checkpointLocation", tables.checkpoint)
    trigger = stream.trigger(availableNow=True) if every is None else stream.trigger(processingTime=f"{every} seconds")
    trigger.start().awaitTermination()


def tell(tables: Tables) -> None:
    """Writes the report, and its first lines to stdout."""
    usage = tables.usage()
    if usage is None:
        print("no records")
        return
    found = find(usage, tables.gaps())
    report(found).write(Path(tables.out, "report.html"))
    print(f"{found.whole.messages:,} records, {found.missing:,} missing: {tables.out}/report.html", flush=True)
