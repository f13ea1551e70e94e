"""Says which queue is hot and when, by window, exchange and destination, and which records of the journal are missing.

A second run writes the same again. With --stream it adds what has come since the first.
"""

import argparse
from collections.abc import Callable
from datetime import UTC, datetime

from pyspark.sql import DataFrame

from pipeline import NO_RECORD, PipelineError
from pipeline.data import gaps, period
from pipeline.data.folder import Folder
from pipeline.data.journal import read_records, set_aside, stream_records
from pipeline.data.landed import NOTHING_ASIDE
from pipeline.page import about
from pipeline.session import setting, spark_session
from pipeline.stream import arguments
from pipeline.stream.queue import StreamQueue
from pipeline.stream.source import queue_records
from pipeline.usage.findings import find
from pipeline.usage.report import report
from pipeline.usage.tables import Tables, Written
from pipeline.usage.verdict import judged
from pipeline.verdict import Verdict, add_verdict_arguments, conclude, paths, results

_MOST_KEPT = 5
"""The most hours that the line on kept hours names."""


SORTED_FROM = "spark.sql.objectHashAggregate.sortBased.fallbackThreshold"
MOST_SKETCHES = 65_536
"""The setting of how many groups with a sketch a task adds up in memory before it sorts its rows, and its value.

Spark's own 128 is less than a file of an hour has: one for each window, destination and bucket of latencies. Sorting
takes all rows to disk. A sketch takes what its keys take, at most 4 kB, and the records of a file make up few large
ones: 65,536 take some 100 MB.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `usage` to a parser."""
    period.add_journal_arguments(parser, required=False)
    arguments.add_arguments(parser)
    parser.add_argument(
        "--out", required=True, metavar="DIR", help="folder or URL for usage/, gaps/, verdict.json and report.html"
    )
    parser.add_argument(
        "--window", type=int, default=5, metavar="MINUTES", help="width of a window, which must divide 60 (default: 5)"
    )
    parser.add_argument("--stream", action="store_true", help="read only what has come since the last run")
    parser.add_argument(
        "--every", type=int, metavar="SECONDS", help="with --stream: do not end, and look for new records every SECONDS"
    )
    parser.add_argument(
        "--overwrite-fewer",
        action="store_true",
        help="overwrite an hour even if an earlier run read more records of it; not with --stream",
    )
    add_verdict_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Write the tables, the report and the verdict; return the exit status.

    Raises PipelineError, as for a wrong option, and NoRecordError.
    """
    if options.every is not None and (not options.stream or options.every < 1):
        raise PipelineError(f"--every: {options.every}: it needs --stream, and must be 1 or more")
    if options.overwrite_fewer and options.stream:
        raise PipelineError("--overwrite-fewer cannot be used with --stream")
    within = period.period_of(options)
    if within.is_limited and options.stream:
        raise PipelineError("--from and --until cannot be used with --stream")
    if not within.has_whole_hours:
        raise PipelineError(f"--from and --until must be whole hours, since OUT/usage is by the hour, not {within}")
    queue = _queue(options)
    with (
        spark_session("usage") as spark,
        setting(spark, SORTED_FROM, str(MOST_SKETCHES)),
        results(spark, options, within.as_json()) as out,
    ):
        tables = Tables(spark, options.out, options.window)
        tables.check()
        out.remove_verdict()

        def tell_now(written: Written | None = None) -> int:
            return tell(tables, out, options, within, written)

        if queue is not None:
            follow(
                queue_records(spark, queue, arguments.source_options(options)),
                tables,
                options.every,
                tell_now,
                doubled=True,
            )
        elif options.stream:
            follow(stream_records(spark, options.journal), tables, options.every, tell_now)
        else:
            records = read_records(spark, options.journal, within)
            with gaps.found(options.journal, records, within) as missing:
                written = tables.write(records, missing, within, overwrite_fewer=options.overwrite_fewer)
            if written is None:
                raise period.no_record(options.journal, within)
            return tell_now(written)
        return tell_now()


def _queue(options: argparse.Namespace) -> StreamQueue | None:
    """Return the stream queue that the options name, None for a folder. Raises PipelineError where options do not
    fit.
    """
    queue = arguments.queue_of(options)
    if queue is None and options.journal is None:
        raise PipelineError("give --journal, or --amqp-url and --queue: where the records are")
    if queue is not None and (options.journal is not None or not options.stream):
        raise PipelineError("--amqp-url and --queue need --stream, and cannot be used with --journal")
    return queue


def follow(
    records: DataFrame, tables: Tables, every: int | None, tell_now: Callable[[], object], *, doubled: bool = False
) -> None:
    """Add the records that have come since the last run to the tables.

    With `every`, a number of seconds, go on with what comes, and call `tell_now` after each batch. Where records may
    be `doubled`, one of each is counted in a batch.
    """

    def add(batch: DataFrame, number: int) -> None:
        if doubled:
            batch = batch.dropDuplicates(["event"]).cache()  # The queue is read once, not for each table.
        try:
            tables.add(batch, number)
        finally:
            batch.unpersist()
        if every is not None:
            tell_now()

    stream = records.writeStream.foreachBatch(add).option("checkpointLocation", tables.checkpoint)
    trigger = stream.trigger(availableNow=True) if every is None else stream.trigger(processingTime=f"{every} seconds")
    trigger.start().awaitTermination()


def tell(
    tables: Tables, out: Folder, options: argparse.Namespace, within: period.Period, written: Written | None
) -> int:
    """Write the report and the verdict, and the first lines to stdout; return the exit status.

    They are of the time of a batch, or else of all that is in the tables. `within` is the time that the command line
    names.
    """
    usage = tables.usage(written.within if written else period.ALWAYS)
    if usage is None:
        print("no records")
        return conclude(Verdict("usage", (), {"records": 0}, {}, within.as_json()), out, options, NO_RECORD)
    kept = written.kept if written else []
    found = find(usage, tables.gaps())
    where = options.journal or f"stream queue {options.queue}"
    last = found.windows[-1].window + found.minutes * 60_000_000
    parameters = {"--window": options.window, "--stream": options.stream, "--every": options.every}
    parameters["--overwrite-fewer"] = options.overwrite_fewer
    aside = set_aside(out.spark, options.journal, within) if options.journal else NOTHING_ASIDE
    head = about.of_journal(where, within, (found.windows[0].window, last), parameters, aside)
    out.write("report.html", report(found, head, within, kept, aside).html())
    figures = {
        "records": found.whole.messages,
        "messages": found.whole.messages_scaled,
        "bytes": found.whole.bytes_scaled,
    }
    told = Verdict("usage", judged(found, aside), figures, paths("usage", "gaps"), within.as_json())
    status = conclude(told, out, options)
    if kept:
        hours = [
            f"{datetime.fromtimestamp(row.hour // 1_000_000, UTC):%Y-%m-%dT%H} (has {row.written:,}, read {row.read:,})"
            for row in kept[:_MOST_KEPT]
        ]
        more = f" and {len(kept) - _MOST_KEPT} more" if len(kept) > _MOST_KEPT else ""
        print(f"kept, as they have rows of which fewer records were read now: {', '.join(hours)}{more}")
    unreadable = f", {aside}" if aside else ""
    print(
        f"{found.whole.messages:,} records, {found.missing.records:,} missing{unreadable}: {out}/report.html",
        flush=True,
    )
    return status
