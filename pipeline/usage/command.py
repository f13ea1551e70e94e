"""What went where, by window, exchange and destination; and which records of the journal are missing.

Run again it writes the same; with --stream it adds what is new.
"""

import argparse
from pathlib import Path

from pyspark.sql import DataFrame

from pipeline import PipelineError
from pipeline.folder import Folder
from pipeline.journal import read_records, stream_records
from pipeline.session import spark_session
from pipeline.stream.queue import StreamQueue
from pipeline.stream.source import MAX_MESSAGES, check_starting, queue_records
from pipeline.usage.findings import find
from pipeline.usage.report import report
from pipeline.usage.tables import Tables


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Of this job."""
    parser.add_argument(
        "--journal", metavar="DIR", help="the sidecars' journal_dir, or a copy of it; or, with --stream:"
    )
    parser.add_argument(
        "--amqp-url", metavar="URL", help="amqp://user:password@host:port/vhost of their journal_stream"
    )
    parser.add_argument(
        "--amqp-password-file", type=Path, metavar="FILE", help="its first line replaces the password in --amqp-url"
    )
    parser.add_argument("--queue", metavar="NAME", help="their journal_stream")
    parser.add_argument(
        "--starting", metavar="WHERE", help="of the queue, with a new --out: first (default), next, or an offset"
    )
    parser.add_argument(
        "--max-messages", type=int, metavar="N", help=f"of the queue, for each batch (default: {MAX_MESSAGES:,})"
    )
    parser.add_argument(
        "--lossy", action="store_true", help="go on where the queue's retention has removed what was not read yet"
    )
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
    queue = _queue(options)
    with spark_session("usage") as spark:
        out = Folder(spark, options.out)
        tables = Tables(spark, options.out, options.window)
        tables.check()
        if queue is not None:
            follow(queue_records(spark, queue, _of_queue(options)), tables, out, options.every, doubled=True)
        elif options.stream:
            follow(stream_records(spark, options.journal), tables, out, options.every)
        else:
            tables.write(read_records(spark, options.journal))
        tell(tables, out)
    return 0


def _queue(options: argparse.Namespace) -> StreamQueue | None:
    """Where the records come from a stream queue."""
    given = options.amqp_url, options.queue, options.amqp_password_file, *_of_queue(options).values()
    if all(one is None for one in given):
        if options.journal is None:
            raise PipelineError("--journal, or --amqp-url and --queue, says where the records are")
        return None
    if options.amqp_url is None or options.queue is None or options.journal is not None or not options.stream:
        raise PipelineError(
            "--amqp-url and --queue go together, with --stream and without --journal; the queue's options with them"
        )
    if options.starting is not None:
        check_starting(options.starting, "--starting")
    if options.max_messages is not None and options.max_messages < 1:
        raise PipelineError(f"--max-messages: {options.max_messages} is less than 1")
    return StreamQueue.with_password_file(options.amqp_url, options.queue, options.amqp_password_file)


def _of_queue(options: argparse.Namespace) -> dict[str, str]:
    """The data source's options, of those that were given."""
    given = {"starting": options.starting, "max_messages": options.max_messages, "lossy": options.lossy or None}
    return {name: str(value) for name, value in given.items() if value is not None}


def follow(records: DataFrame, tables: Tables, out: Folder, every: int | None, *, doubled: bool = False) -> None:
    """Adds what has come since the last run; with `every`, goes on with what comes, and tells of each batch.

    Of records that are there twice in one batch, one counts where they may be `doubled`.
    """

    def add(batch: DataFrame, number: int) -> None:
        tables.add(batch.dropDuplicates(["event"]) if doubled else batch, number)
        if every is not None:
            tell(tables, out)

    stream = records.writeStream.foreachBatch(add).option("checkpointLocation", tables.checkpoint)
    trigger = stream.trigger(availableNow=True) if every is None else stream.trigger(processingTime=f"{every} seconds")
    trigger.start().awaitTermination()


def tell(tables: Tables, out: Folder) -> None:
    """Writes the report, and its first lines to stdout."""
    usage = tables.usage()
    if usage is None:
        print("no records")
        return
    found = find(usage, tables.gaps())
    out.write("report.html", report(found).html())
    print(f"{found.whole.messages:,} records, {found.missing:,} missing: {out}/report.html", flush=True)
