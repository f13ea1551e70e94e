"""Publishes the rows of Parquet or JSON files straight to the queues that an exchange's ring chooses, with confirms.

It runs as a stream over what is in the folder now: started again with the same --checkpoint and --out, it goes on where
it stopped. A row is published at least once; OUT/report.html says how many messages may be there twice.
"""

import argparse
import re
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, MapType, StringType, StructField, StructType

from pipeline import PipelineError
from pipeline.publish.commits import read_commits
from pipeline.publish.options import CONNECTION, OWN, Options, parse
from pipeline.publish.order import prepared
from pipeline.publish.pinned import pinned
from pipeline.publish.report import write_report
from pipeline.publish.source import RingProxy
from pipeline.rings import to_json
from pipeline.session import spark_session

_FOR_EACH_BATCH = {"ring", "batch", "commit_log", "task_attempts", "dry_run"}
"""Options that the command itself sets."""

_JSON = {
    "key": StringType(),
    "body": StringType(),
    "headers": MapType(StringType(), StringType()),
    "message_id": StringType(),
    "correlation_id": StringType(),
    "timestamp": LongType(),
    "expiration": LongType(),
}
"""What columns of JSON files are, whatever their values look like."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of the command, and the Data Source's options."""
    parser.add_argument("--input", required=True, metavar="PATH", help="folder of files with a row for each message")
    parser.add_argument("--format", default="parquet", choices=["parquet", "json"], help="(default parquet)")
    parser.add_argument("--checkpoint", required=True, metavar="DIR", help="where the stream keeps how far it has come")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="for report.html and commits.jsonl")
    parser.add_argument("--order", metavar="COLUMN", help="a key's rows go out in the order of this column")
    parser.add_argument(
        "--files-per-batch", type=int, default=100, metavar="N", help="files of one micro-batch (default 100)"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would go where, and publish nothing")
    for name, text in (CONNECTION | OWN).items():
        if name not in _FOR_EACH_BATCH:
            default = "4" if name == "connections" else None
            more = " (default 4)" if default else ""
            parser.add_argument(f"--{name.replace('_', '-')}", default=default, metavar="VALUE", help=text + more)


def run(options: argparse.Namespace) -> int:
    """Publishes what is there, and writes the report."""
    names = [name for name in CONNECTION | OWN if name not in _FOR_EACH_BATCH]
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    if options.order:
        given["id_columns"] = ",".join(filter(None, [given.get("id_columns"), options.order]))
    if options.files_per_batch < 1:
        raise PipelineError(f"--files-per-batch: {options.files_per_batch} is less than 1")
    log = options.out / ("dry-run.jsonl" if options.dry_run else "commits.jsonl")
    if options.dry_run:
        log.unlink(missing_ok=True)
    given |= {"commit_log": str(log.absolute()), "dry_run": str(options.dry_run).lower()}
    parsed = parse(given)
    # Here already: what fails, fails before Spark has started.
    pinned(parsed)
    before = len(read_commits(log)) if log.exists() else 0
    with spark_session("publish") as spark:
        spark.dataSource.register(RingProxy)
        given["task_attempts"] = str(task_attempts(spark))
        if options.dry_run:
            _publish(_table(spark, options), "", given, parsed, options.order)
        else:
            _stream(spark, options, given, parsed)
    writes = read_commits(log) if log.exists() else []
    write_report(options.out / "report.html", options.exchange, writes, before)
    return 0


def task_attempts(spark: SparkSession) -> int:
    """Attempts of each task before a job fails: spark.task.maxFailures, or what a local master says instead."""
    if found := re.fullmatch(r"local(?:\[[^,\]]*(?:, *(\d+))?\])?", spark.sparkContext.master or ""):
        return int(found[1] or 1)
    return int(spark.sparkContext.getConf().get("spark.task.maxFailures", "4") or 4)


def _table(spark: SparkSession, options: argparse.Namespace) -> DataFrame:
    return spark.read.schema(_schema(spark, options)).format(options.format).load(options.input)


def _schema(spark: SparkSession, options: argparse.Namespace) -> StructType:
    """Of the files that are there now."""
    if "://" not in options.input and not Path(options.input).exists():
        raise PipelineError(f"--input: {options.input} does not exist")
    found = spark.read.format(options.format).load(options.input).schema
    if options.format == "parquet":
        return found
    return StructType([StructField(field.name, _JSON.get(field.name, field.dataType)) for field in found])


def _stream(spark: SparkSession, options: argparse.Namespace, given: Mapping[str, str], parsed: Options) -> None:
    rows = (
        spark.readStream.schema(_schema(spark, options))
        .format(options.format)
        .option("maxFilesPerTrigger", options.files_per_batch)
        .load(options.input)
    )

    def publish(batch: DataFrame, number: int) -> None:
        _publish(batch, str(number), given, parsed, options.order)

    query = (
        rows.writeStream.foreachBatch(publish)
        .option("checkpointLocation", options.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def _publish(rows: DataFrame, batch: str, given: Mapping[str, str], parsed: Options, order: str | None) -> None:
    """One batch, by the ring of now."""
    known = pinned(parsed)
    laid_out = prepared(rows, known, parsed.connections, order)
    laid_out.write.format("ringproxy").options(**given, ring=to_json(known), batch=batch).mode("append").save()
