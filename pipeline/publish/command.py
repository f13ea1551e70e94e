"""Publishes the rows of Parquet or JSON files straight to the queues that an exchange's ring chooses, with confirms.

It takes the files that are in the folder now. Started again with the same --checkpoint and --out, it goes on where it
stopped. A row is published at least once: OUT/report.html says how many messages may be there twice. The page of a dry
run is OUT/dry-run.html.
"""

import argparse
import functools
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, MapType, StringType, StructField, StructType

from pipeline import PipelineError
from pipeline.data.files import found
from pipeline.data.rings import RingSpec, to_json
from pipeline.page import about
from pipeline.publish.commits import CommitLog, read_commits, unfinished
from pipeline.publish.messages import check_columns, check_rows
from pipeline.publish.options import CONNECTION, OWN, Options, parse
from pipeline.publish.order import prepared
from pipeline.publish.pinned import pinned, pinned_again, pinned_in_time
from pipeline.publish.report import write_report
from pipeline.publish.routes import hashed_value
from pipeline.publish.source import QUERY, RingProxy
from pipeline.session import spark_session

_FOR_EACH_BATCH = {"ring", "batch", "run", "commit_log", "task_attempts", "dry_run"}
"""Options of the Data Source that the command sets itself for each batch."""

_JSON = {
    "key": StringType(),
    "body": StringType(),
    "headers": MapType(StringType(), StringType()),
    "message_id": StringType(),
    "correlation_id": StringType(),
    "timestamp": LongType(),
    "expiration": LongType(),
}
"""The types of columns in JSON files, which Spark would otherwise infer from their values."""

_FILES_PER_BATCH = 100
"""The default number of files in a batch; with --order all files are one batch, as Spark chooses the order of files."""

_READ = {"mode": "FAILFAST", "mergeSchema": "true", "maxFileAge": "36500d"}
"""Options of Spark's file readers. A JSON value of another type than its column's ends the job, instead of becoming
null; Parquet files may differ in their columns; a file is taken however old it is.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--input", required=True, metavar="PATH", help="folder or URL of files with a row for each message"
    )
    parser.add_argument(
        "--format", default="parquet", choices=["parquet", "json"], help="format of the files (default parquet)"
    )
    parser.add_argument(
        "--checkpoint", required=True, metavar="DIR", help="folder or URL that remembers which files were published"
    )
    parser.add_argument(
        "--out",
        required=True,
        metavar="DIR",
        help="folder of this machine for report.html and commits.jsonl, or dry-run.*",
    )
    parser.add_argument(
        "--order", metavar="COLUMN", help="publish the rows of a key in the order of this column, within each batch"
    )
    parser.add_argument(
        "--files-per-batch",
        type=int,
        metavar="N",
        help=f"files in one batch (default {_FILES_PER_BATCH}; with --order all files)",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="count what would go to which queue, and publish nothing"
    )
    for name, text in (CONNECTION | OWN).items():
        if name not in _FOR_EACH_BATCH:
            default = "4" if name == "connections" else None
            more = " (default 4)" if default else ""
            parser.add_argument(f"--{name.replace('_', '-')}", default=default, metavar="VALUE", help=text + more)


def run(options: argparse.Namespace) -> int:
    """Publish the rows of all files that are there, write the report, and return the exit status 0.

    Raises PipelineError for a wrong option, and if a row was not confirmed.
    """
    names = [name for name in CONNECTION | OWN if name not in _FOR_EACH_BATCH]
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    if options.order:
        given["id_columns"] = ",".join(filter(None, [given.get("id_columns"), options.order]))
    if options.files_per_batch is not None and options.files_per_batch < 1:
        raise PipelineError(f"--files-per-batch: {options.files_per_batch} is less than 1")
    if re.match(r"[A-Za-z][\w+.-]*:/", options.out):
        raise PipelineError(f"--out: {options.out} is not a folder of this machine, where the log must be")
    log = Path(options.out) / ("dry-run.jsonl" if options.dry_run else "commits.jsonl")
    given |= {"commit_log": str(log.absolute()), "dry_run": str(options.dry_run).lower()}
    parsed = parse(given)
    if not parsed.connections:
        raise PipelineError("--connections: 0 would publish nothing")
    # Here already: what fails, fails before Spark has started.
    pinned(parsed)
    if options.dry_run:
        with _out_usable():
            log.unlink(missing_ok=True)
    before = len(read_commits(log)) if log.exists() else 0
    try:
        _run(options, given, parsed)
    except BaseException:
        if log.exists():
            # The report of an earlier run is not complete any more.
            _report(options, log, before, failed=True)
        raise
    _report(options, log, before, failed=False)
    return 0


def _run(options: argparse.Namespace, given: dict[str, str], parsed: Options) -> None:
    """Publish all files of the input, batch by batch; with `--dry-run` only say what one batch of them would do.

    `given` are the data source's options as text, and `parsed` the same options with their types.
    """
    with spark_session("publish") as spark:
        spark.dataSource.register(RingProxy)
        given["task_attempts"] = str(task_attempts(spark))
        if options.dry_run:
            _publish(_table(spark, options), "", given, parsed, options.order)
        else:
            _stream(spark, options, given, parsed)


def _report(options: argparse.Namespace, log: Path, before: int, *, failed: bool) -> None:
    writes, open_tries = (read_commits(log), unfinished(log)) if log.exists() else ([], 0)
    with _out_usable():
        page = log.with_name("dry-run.html" if options.dry_run else "report.html")
        names = ("exchange", "format", "order", "connections", "window", "rate", "max_depth", "dry_run")
        parameters = {f"--{name.replace('_', '-')}": getattr(options, name, None) for name in names}
        head = {"Rows": options.input, **about.of_parameters(parameters)}
        write_report(page, head, writes, before, open_tries, failed=failed)


@contextmanager
def _out_usable() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PipelineError(f"--out: {error.filename}: {error.strerror}") from None


def task_attempts(spark: SparkSession) -> int:
    """Return how often Spark tries each task before a job fails: spark.task.maxFailures, or a local master's own
    number.
    """
    if found := re.fullmatch(r"local(?:\[[^,\]]*(?:, *(\d+))?\])?", spark.sparkContext.master or ""):
        return int(found[1] or 1)
    return int(spark.sparkContext.getConf().get("spark.task.maxFailures", "4") or 4)


def _table(spark: SparkSession, options: argparse.Namespace) -> DataFrame:
    return spark.read.schema(_schema(spark, options)).format(options.format).options(**_READ).load(options.input)


def _schema(spark: SparkSession, options: argparse.Namespace) -> StructType:
    """Return the schema of the files that are there now. Raises PipelineError if there is none."""
    if not found(spark, options.input):
        raise PipelineError(f"--input: {options.input} does not exist")
    schema = spark.read.format(options.format).options(**_READ).load(options.input).schema
    if options.format == "parquet":
        return schema
    return StructType([StructField(field.name, _JSON.get(field.name, field.dataType)) for field in schema])


def _stream(spark: SparkSession, options: argparse.Namespace, given: Mapping[str, str], parsed: Options) -> None:
    stream = spark.readStream.schema(_schema(spark, options)).format(options.format).options(**_READ)
    if (files := files_per_batch(options)) is not None:
        stream = stream.option("maxFilesPerTrigger", files)
    rows = stream.load(options.input)

    @functools.cache
    def begun_before(whose: str) -> Mapping[str, RingSpec]:
        return CommitLog(parsed.log.path, whose).pinned()

    def publish(batch: DataFrame, number: int) -> None:
        whose = batch.sparkSession.sparkContext.getLocalProperty(QUERY) or options.checkpoint
        kept = begun_before(whose).get(str(number))
        _publish(batch, str(number), {**given, "run": whose}, parsed, options.order, kept)

    query = (
        rows.writeStream.foreachBatch(publish)
        .option("checkpointLocation", options.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def files_per_batch(options: argparse.Namespace) -> int | None:
    """Return how many files make one batch; None for all that are there, so that rows are in order across files."""
    if options.files_per_batch is None and not options.order:
        return _FILES_PER_BATCH
    given: int | None = options.files_per_batch
    return given


def _publish(
    rows: DataFrame,
    batch: str,
    given: Mapping[str, str],
    parsed: Options,
    order: str | None,
    kept: RingSpec | None = None,
) -> None:
    """Publish one batch, by the ring `kept` with which it was begun before or else the present one.

    Nothing is published, and PipelineError is raised, if a row makes no message.
    """
    # The broker was there when the command began: a batch in between waits for it.
    spec = pinned_in_time(parsed)
    if kept is not None:
        spec = pinned_again(kept, spec)
    try:
        check_columns(rows.schema, parsed.ids, hashed_value(spec.hashed))
        check_rows(rows)
    except PipelineError as error:
        raise PipelineError(f"--input: {error}{f' (batch {batch})' if batch else ''}: nothing was published") from None
    # The tasks are no more than the queues: each setting that is divided among the connections is divided among the
    # tasks.
    tasks = min(parsed.connections, len(spec.weights))
    told = {**given, "connections": str(tasks), "ring": to_json(spec), "batch": batch}
    prepared(rows, spec, tasks, order).write.format("ringproxy").options(**told).mode("append").save()
