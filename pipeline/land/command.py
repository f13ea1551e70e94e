"""Lands a journal: makes a table in Parquet of it, by day and hour, each record once, for all jobs that read a journal.

A second run adds what has come since, and what came late. Lines and files that cannot be read are set aside. The exit
status is 0, or 1 if something was set aside, 2 for an error, and 3 if there is no record.
"""

import argparse
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession

from pipeline import NoRecordError, PipelineError
from pipeline.data import period
from pipeline.data.folder import Folder
from pipeline.data.journal import read_rings
from pipeline.data.landed import MARK, VERSION, Landed, Manifest, Source
from pipeline.data.rings import to_json
from pipeline.land import leftovers
from pipeline.land.landing import Counts, Landing
from pipeline.land.lines import lines_of, lines_of_queue
from pipeline.land.merging import merge
from pipeline.land.sources import File, broken, listed, name_of, new_ones, portions
from pipeline.session import ERRORS, spark_session
from pipeline.stream import arguments, messages
from pipeline.stream.queue import StreamQueue
from pipeline.stream.source import queue_records


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `land` to a parser."""
    period.add_journal_arguments(parser, required=False)
    arguments.add_arguments(parser)
    parser.add_argument(
        "--out", required=True, metavar="DIR", help="folder or URL for the table: records/, rings/, hours/, quarantine/"
    )
    parser.add_argument(
        "--every", type=int, metavar="SECONDS", help="do not end, and look for new records every SECONDS"
    )
    parser.add_argument(
        "--skip-unreadable", action="store_true", help="exit with 0 even if lines or files were set aside"
    )


def run(options: argparse.Namespace) -> int:
    """Land what is new; return 1 if something was set aside, unless the options allow it, and else 0.

    Raises PipelineError, as for a wrong option, and NoRecordError for a journal without files in the period.
    """
    queue = arguments.queue_of(options)
    if (queue is None) == (options.journal is None):
        raise PipelineError("give either --journal, or --amqp-url and --queue: where the records are")
    if options.every is not None and options.every < 1:
        raise PipelineError(f"--every: {options.every} is less than 1")
    within = period.period_of(options)
    if queue is not None and within.is_limited:
        raise PipelineError("--from, --until and --day need --journal")
    with spark_session("land") as spark:
        folder, table = Folder(spark, options.out), Landed(spark, options.out)
        begin(folder, table)
        leftovers.remove(table, folder)
        if queue is not None:
            lines = queue_records(spark, queue, {**arguments.source_options(options), "set_aside": "true"})
            counts = land_queue(lines, queue, table, folder, options.every)
        else:
            landed = land_journal(spark, options.journal, table, folder, within)
            while options.every is not None:
                time.sleep(options.every)
                land_journal(spark, options.journal, table, folder, within)
            if landed is None:
                raise NoRecordError(f"{options.journal}: no file of records{f' {within}' if within.is_limited else ''}")
            counts = landed
    return int(bool(counts.unreadable or counts.files) and not options.skip_unreadable)


def begin(folder: Folder, table: Landed) -> None:
    """Mark the folder as a landed table, unless it is one.

    Raises PipelineError for a folder with other records, and where nothing can be written.
    """
    if table.exists():
        return
    if folder.holds("records"):
        raise PipelineError(f"--out: {folder}: it has records, and is no landed table: give a new folder")
    folder.create(MARK, json.dumps({"v": VERSION, "format": "parquet"}))


def land_journal(
    spark: SparkSession, journal: str, table: Landed, folder: Folder, within: period.Period
) -> Counts | None:
    """Land the files of a journal's folder that are new in a period; return None if it has no file in it."""
    files = listed(spark, journal, within)
    if not files:
        return None
    for fingerprint, ring in read_rings(spark, journal).items():
        folder.create(f"rings/{fingerprint}.json", to_json(ring))
    landing, total = Landing(table, folder), Counts()
    for portion in portions(new_ones(files, table, within)):
        counts, hours = _land_files(spark, portion, landing, table, folder)
        _merge(table, folder, hours)
        total += counts
    _tell(total, folder)
    return total


def _land_files(
    spark: SparkSession, files: list[File], landing: Landing, table: Landed, folder: Folder
) -> tuple[Counts, Iterable[str]]:
    """Land files, but for those that cannot be unpacked; return the counts, and the hours that have got records."""
    reasons: Mapping[str, str] = {}
    try:
        counts, unreadable, hours = landing.land(lines_of(spark, [file.path for file in files]))
    except ERRORS:
        reasons = broken(spark, files)
        if not reasons:
            raise
        landing.set_files_aside(reasons)
        readable = [file.path for file in files if file.name not in reasons]
        counts, unreadable, hours = Counts(), {}, frozenset()
        if readable:
            counts, unreadable, hours = landing.land(lines_of(spark, readable))
        counts += Counts(files=len(reasons))
    lines = {name_of(file): number for file, number in unreadable.items() if file is not None}
    for hour in sorted({file.hour for file in files}):
        sources = {
            file.name: Source(file.size, lines.get(file.name, 0), reasons.get(file.name, ""))
            for file in files
            if file.hour == hour
        }

        def note(manifest: Manifest, sources: Mapping[str, Source] = sources) -> Manifest:
            return replace(manifest, sources={**manifest.sources, **sources})

        table.change(folder, hour, note)
    return counts, hours


def land_queue(lines: DataFrame, queue: StreamQueue, table: Landed, folder: Folder, every: int | None) -> Counts:
    """Land what has come into a stream queue since the last run; with `every`, go on with what comes."""
    total, known = Counts(), set(read_rings(table.spark, table.path))

    def want_rings(named: set[str]) -> None:
        if not named <= known:
            for fingerprint, ring in messages.read_rings(queue).items():
                folder.create(f"rings/{fingerprint}.json", to_json(ring))
            # One that retention has removed is not looked for again in this run.
            known.update(named)

    landing = Landing(table, folder, want_rings)

    def add(batch: DataFrame, number: int) -> None:
        nonlocal total
        counts, _, hours = landing.land(lines_of_queue(batch))
        if counts.unreadable:
            now = f"{time.strftime('dt=%Y-%m-%d/hour=%H', time.gmtime())}"
            table.change(folder, now, lambda one: replace(one, unreadable=one.unreadable + counts.unreadable))
        _merge(table, folder, hours)
        _tell(counts, folder)
        total += counts

    stream = lines.writeStream.foreachBatch(add).option("checkpointLocation", f"{folder}/checkpoint")
    trigger = stream.trigger(availableNow=True) if every is None else stream.trigger(processingTime=f"{every} seconds")
    trigger.start().awaitTermination()
    return total


def _merge(table: Landed, folder: Folder, hours: Iterable[str]) -> None:
    for hour in sorted(hours):
        merge(table, folder, hour)


def _tell(counts: Counts, folder: Folder) -> None:
    """Print the counts of a run or batch; with what was set aside only where something was."""
    copies = f", {counts.copies:,} copies left out" if counts.copies else ""
    aside = ""
    if counts.unreadable or counts.files:
        aside = f", {counts.unreadable:,} lines and {counts.files:,} files set aside in {folder}/quarantine"
    print(f"{counts.records:,} records{copies}{aside}: {folder}", flush=True)
