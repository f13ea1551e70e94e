"""Lands a journal: makes a table in Parquet of it, by day and hour, each record once, for all jobs that read a journal.

A second run adds what has come since, and what came late. Lines and files that cannot be read are set aside. The exit
status is 1 while something is set aside, unless --fail-on or --skip-unreadable says otherwise.
"""

import argparse
import hashlib
import json
import time
from collections.abc import Iterable, Mapping, Set
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession

from pipeline import NoRecordError, PipelineError
from pipeline.data import period
from pipeline.data.folder import Folder
from pipeline.data.journal import read_rings
from pipeline.data.landed import MARK, NO_HOUR, VERSION, Aside, Landed, Manifest, Source
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
from pipeline.verdict import Verdict, add_verdict_arguments, conclude, of_records, results

_TABLES = {name: name for name in ("records", "rings", "hours", "quarantine")}
"""The parts of the table, as a verdict names them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `land` to a parser."""
    period.add_journal_arguments(parser, required=False)
    arguments.add_arguments(parser)
    parser.add_argument(
        "--out",
        required=True,
        metavar="DIR",
        help="folder or URL for the table (records/, rings/, hours/, quarantine/) and verdict.json",
    )
    parser.add_argument(
        "--every", type=int, metavar="SECONDS", help="do not end, and look for new records every SECONDS"
    )
    parser.add_argument(
        "--skip-unreadable", action="store_true", help="exit with 0 even if lines or files are set aside"
    )
    add_verdict_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Land what is new, and write the verdict; return the exit status.

    A file that is set aside counts as long as the journal has a file of its hour. With --every the verdict of a folder
    is written after each round.

    Raises PipelineError, as for a wrong option, and NoRecordError for a journal without files in the period.
    """
    within, queue = period.period_of(options), _queue(options)
    if options.skip_unreadable:
        options.fail_on -= {"unreadable"}
    with spark_session("land") as spark, results(spark, options, within.as_json()) as folder:
        table = Landed(spark, options.out)
        begin(folder, table)

        def tell(counts: Counts, hours: Set[str]) -> int:
            aside = Aside.of(table.manifests_of({*hours, NO_HOUR}).values())
            figures = {"records": counts.records, "copies": counts.copies}
            told = Verdict("land", of_records(aside=aside), figures, _TABLES, within.as_json())
            return conclude(told, folder, options)

        if queue is not None:
            lines = queue_records(spark, queue, {**arguments.source_options(options), "set_aside": "true"})
            return tell(land_queue(lines, queue, table, folder, options.every), frozenset())
        remove_leftovers = leftovers.Remover(table, folder)
        while True:
            remove_leftovers()
            counts, hours = land_journal(spark, options.journal, table, folder, within)
            if hours:
                status = tell(counts, hours)
            if options.every is None:
                break
            time.sleep(options.every)
        if not hours:
            raise NoRecordError(f"{options.journal}: no file of records{f' {within}' if within.is_limited else ''}")
    return status


def _queue(options: argparse.Namespace) -> StreamQueue | None:
    """Return the stream queue that the options name, None for a folder. Raises PipelineError for a wrong option."""
    queue = arguments.queue_of(options)
    if (queue is None) == (options.journal is None):
        raise PipelineError("give either --journal, or --amqp-url and --queue: where the records are")
    if options.every is not None and options.every < 1:
        raise PipelineError(f"--every: {options.every} is less than 1")
    if queue is not None and (options.since or options.until or options.day):
        raise PipelineError("--from, --until and --day need --journal")
    return queue


def begin(folder: Folder, table: Landed) -> None:
    """Mark the folder as a landed table, unless it is one.

    Raises PipelineError for a folder with other records, and where nothing can be written.
    """
    if table.exists():
        return
    if folder.holds("records"):
        raise PipelineError(f"--out: {folder}: it has records, and is no landed table: give a new folder")
    folder.make_private()
    folder.create(MARK, json.dumps({"v": VERSION, "format": "parquet"}))


def land_journal(
    spark: SparkSession, journal: str, table: Landed, folder: Folder, within: period.Period
) -> tuple[Counts, frozenset[str]]:
    """Land the files of a journal's folder that are new in a period.

    Return the counts of what was new, and the hours in which the journal has files.
    """
    files = listed(spark, journal, within)
    if not files:
        return Counts(), frozenset()
    landing, bad = Landing(table, folder), dict[str, str]()
    rings = read_rings(spark, journal, lambda file, error: bad.update({file: str(error)}))
    for fingerprint, ring in rings.items():
        folder.create(f"rings/{fingerprint}.json", to_json(ring))
    total = _set_rings_aside(landing, table, folder, bad, set(rings))
    for portion in portions(new_ones(files, table)):
        counts, hours = _land_files(spark, portion, landing, table, folder)
        _merge(table, folder, hours)
        total += counts
    _tell(total, folder)
    return total, frozenset(file.hour for file in files)


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
            file.name: Source(file.size, file.modified, lines.get(file.name, 0), reasons.get(file.name, ""))
            for file in files
            if file.hour == hour
        }

        def note(manifest: Manifest, sources: Mapping[str, Source] = sources) -> Manifest:
            return replace(manifest, sources={**manifest.sources, **sources})

        table.change(folder, hour, note)
    return counts, hours


def _set_rings_aside(
    landing: Landing, table: Landed, folder: Folder, bad: Mapping[str, str], good: Set[str] = frozenset()
) -> Counts:
    """Note rings that cannot be read, by place with the reasons, and that those of `good` fingerprints can now."""
    known = table.manifest(NO_HOUR).sources
    new = {f"rings/{place.rpartition('/')[2]}": reason for place, reason in bad.items()}
    new = {name: reason for name, reason in new.items() if name not in known}
    mended = {name for fingerprint in good if (name := f"rings/{fingerprint}.json") in known}
    if new:
        landing.set_files_aside(new)

    def note(manifest: Manifest) -> Manifest:
        others = {name: source for name, source in manifest.sources.items() if name not in mended}
        return replace(manifest, sources={**others, **{name: Source(0, 0, reason=why) for name, why in new.items()}})

    if new or mended:
        table.change(folder, NO_HOUR, note)
    return Counts(files=len(new))


def land_queue(lines: DataFrame, queue: StreamQueue, table: Landed, folder: Folder, every: int | None) -> Counts:
    """Land what has come into a stream queue since the last run, and return the counts of it.

    With `every`, a number of seconds, go on with what comes.
    """
    known, remove_leftovers = set(read_rings(table.spark, table.path)), leftovers.Remover(table, folder)
    of_rings, total = Counts(), Counts()

    def want_rings(named: set[str]) -> None:
        nonlocal of_rings
        if not named <= known:
            bad: dict[str, str] = {}
            rings = messages.read_rings(queue, lambda place, error: bad.update({place: str(error)}))
            for fingerprint, ring in rings.items():
                folder.create(f"rings/{fingerprint}.json", to_json(ring))
            # One that retention has removed is not looked for again in this run.
            known.update(named)
            of_rings = _set_rings_aside(landing, table, folder, bad)

    landing = Landing(table, folder, want_rings)

    def add(batch: DataFrame, number: int) -> None:
        nonlocal of_rings, total
        remove_leftovers()
        of_rings = Counts()
        counts, _, hours = landing.land(lines_of_queue(batch))
        if counts.unreadable:
            table.change(folder, NO_HOUR, lambda one: replace(one, unreadable=one.unreadable + counts.unreadable))
        _merge(table, folder, hours)
        total += counts + of_rings
        _tell(counts + of_rings, folder)

    # The offsets of another queue mean nothing here.
    name = hashlib.sha256(json.dumps(queue.place).encode()).hexdigest()[:16]
    stream = lines.writeStream.foreachBatch(add).option("checkpointLocation", f"{folder}/checkpoint/{name}")
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
