"""Compares the journal with what consumers saw: which messages were lost, duplicated, out of order or misplaced.

The exit status is 1 if a message is lost or in the wrong queue, unless --fail-on says otherwise.
"""

import argparse
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import StringType

from pipeline import NoRecordError, PipelineError
from pipeline.data import gaps, period
from pipeline.data.folder import Folder
from pipeline.data.journal import read_records, read_rings, set_aside
from pipeline.data.rings import RingSpec
from pipeline.data.tables import TIME, WHOLE, Columns, column, read_table
from pipeline.page import about
from pipeline.reconcile.messages import FLAWS, judged, seen_in, summary, together
from pipeline.reconcile.order import chunks, late
from pipeline.reconcile.report import report
from pipeline.reconcile.verdict import judged as judged_of
from pipeline.reconcile.verdict import verdict
from pipeline.session import spark_session
from pipeline.verdict import Verdict, add_verdict_arguments, conclude, paths, results

CLOCKS = 1_000_000
"""The most microseconds by which the clocks of sidecars and consumers are taken to differ."""

_AROUND = timedelta(hours=1)
"""How far before --from and after --until records are read as well.

A record's time is when its outcome was known, so a message that was seen before --from may have its record after it,
and likewise for --until. A copy that was seen more than this before the first judged record is a copy of no record.
"""

_READ = (
    *("message_id", "proxy", "seq", "time", "file", "ring", "vhost", "exchange", "sample"),
    *("key", "kind", "destination", "outcome", "latency"),
)
"""The columns of records that the job reads."""

_HASHED_KEY = 16
"""The length in bytes of a key in a journal with `journal_key = hash`."""

_MOST_TOLD = 20
"""The most messages that the report lists; the Parquet folder has all."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    period.add_journal_arguments(parser, required=True)
    parser.add_argument("--vhost", required=True, metavar="NAME", help="virtual host of the messages")
    parser.add_argument(
        "--exchange", metavar="NAME", help="judge only messages published to this exchange (default: to any)"
    )
    parser.add_argument(
        "--seen", required=True, metavar="FILE", help="table of what consumers saw: .parquet, .csv or .json"
    )
    parser.add_argument(
        "--message-id", default="message_id", metavar="COLUMN", help="its column of message ids (default: message_id)"
    )
    parser.add_argument("--queue", default="queue", metavar="COLUMN", help="its column of queue names (default: queue)")
    parser.add_argument(
        "--time",
        default="time",
        metavar="COLUMN",
        help="its column of times: timestamps or microseconds since 1970 (default: time)",
    )
    parser.add_argument(
        "--sequence", metavar="COLUMN", help="its column of numbers that grow in each queue (default: order by time)"
    )
    parser.add_argument(
        "--out",
        required=True,
        metavar="DIR",
        help="folder or URL for messages/, summary/, verdict.json and report.html",
    )
    add_verdict_arguments(parser)


@dataclass(frozen=True)
class _Journal:
    """The facts that a journal tells of its completeness, and of the records that are judged."""

    missing: gaps.Missing
    records: int
    """How many records are judged."""
    sample: float
    without_id: int
    without_key: int
    until: int
    """Microseconds since 1970 up to which no record can be missing, by any consumer's clock; 0 for not known."""
    queues: frozenset[str]
    """The queues of the rings that the exchange's records name, in the period and in the hour before and after it."""
    rings: Mapping[str, RingSpec]
    """All rings of the journal by fingerprint, of whatever time and exchange they are."""
    times: tuple[int, int]
    """The times of the first and the last judged record, in microseconds since 1970."""


def run(options: argparse.Namespace) -> int:
    """Write the tables, the verdict and the report; return the exit status."""
    within = period.period_of(options)
    with (
        spark_session("reconcile") as spark,
        results(spark, options, within.as_json()) as out,
        ExitStack() as stack,
    ):

        def kept(rows: DataFrame) -> DataFrame:
            stack.callback(rows.persist().unpersist)
            return rows

        # Read and parsed once, for all that follows. A bad file or field of any of it ends the job here, with nothing
        # written or removed.
        records = kept(read_records(spark, options.journal, within.wider(_AROUND)).select(*_READ))
        ours = F.col("vhost") == options.vhost
        if options.exchange is not None:
            ours &= F.col("exchange") == options.exchange
        journal = _journal(records, ours, options, within)
        rows, unnamed = _seen(spark, options)
        since = journal.times[0] - _AROUND // timedelta(microseconds=1)
        parts = kept(together(_by_queue(records, journal.rings), ours & within.holds(F.col("time")), rows, since))
        queues = journal.queues | _queues_of_other_times(spark, parts, ours, options, within, journal)
        messages = judged(parts, late(chunks(parts)), queues, within, journal.until)
        out.remove_verdict()
        by_queue, worst = _write(messages, out)
        names = ("messages", "repeated", "anywhere", "confirmed", "seen", "copies", "copies_before", "copies_elsewhere")
        counts = {name: sum(row[name] for row in by_queue) for name in (*names, "lost_elsewhere", *FLAWS)}
        aside = set_aside(spark, options.journal, within)
        found = {
            **counts,
            "records_without_message_id": journal.without_id,
            "records_without_key": journal.without_key,
            "seen_without_message_id": unnamed,
            "records_missing": journal.missing.records,
            "records_before_oldest": journal.missing.before,
            "lines_set_aside": aside.lines,
            "files_set_aside": aside.files,
            "sample": journal.sample,
        }
        told = {"verdict": verdict(found), **within.as_json(), **found}
        where = {"vhost": options.vhost} | ({"exchange": options.exchange} if options.exchange else {})
        findings = judged_of(found, where, by_queue)
        given = ("vhost", "exchange", "seen", "message_id", "queue", "time", "sequence")
        parameters = {f"--{name.replace('_', '-')}": vars(options)[name] for name in given}
        head = about.of_journal(options.journal, within, journal.times, parameters, aside)
        page = report(told, findings, journal.missing, by_queue, worst, head)
        if within.is_limited:
            page.text(
                f"This page is about records {within}. A message that was seen at another time counts if it has such a"
                " record. An id that another message has too is noticed if that message has a record in this time or"
                " in the hour before or after."
            )
        out.write("report.html", page.html())
        figures = {"records": journal.records, "messages": counts["messages"]}
        status = conclude(Verdict("reconcile", findings, figures, paths("messages", "summary"), told), out, options)
    counted = ", ".join(f"{counts[name]:,} {name.replace('_', ' ')}" for name in FLAWS)
    print(f"{told['verdict']}: {counted}: {out}/report.html")
    return status


def _queues_of_other_times(
    spark: SparkSession,
    parts: DataFrame,
    ours: Column,
    options: argparse.Namespace,
    within: period.Period,
    journal: _Journal,
) -> frozenset[str]:
    """Return the queues that the exchange's rings have only at other times, if a judged message was seen in one.

    Somebody moved it to a queue that was bound later, or no longer. It is in the wrong queue and not lost. Only records
    say which exchange a ring is of, so those of other times are read, but only where they can matter.
    """
    others = _queues(journal.rings.values()) - journal.queues
    if not within.is_limited or not others or not seen_in(parts, others):
        return frozenset()
    named = read_records(spark, options.journal).where(ours).select("ring").distinct().collect()
    return _queues(journal.rings[row.ring] for row in named if row.ring in journal.rings)


def _queues(rings: Iterable[RingSpec]) -> frozenset[str]:
    """Return the names of the queues behind the destinations of rings."""
    return frozenset(ring.queue_behind(d.name) for ring in rings for d in ring.weights if d.kind == "queue")


def _by_queue(records: DataFrame, rings: Mapping[str, RingSpec]) -> DataFrame:
    """Return records with the queue behind each destination in place of it, where the record's ring tells another name.

    Where several groups get a copy each, it is the queue of the exchange's own group.
    """
    behind = [(ring, place, queue) for ring, spec in rings.items() for place, queue in spec.queues.items()]
    if not behind:
        return records
    names = records.sparkSession.createDataFrame(behind, "ring string, destination string, behind string")
    named = records.join(F.broadcast(names.withColumn("kind", F.lit("queue"))), ["ring", "kind", "destination"], "left")
    return named.withColumn("destination", F.coalesce("behind", "destination")).drop("behind")


def _write(messages: DataFrame, out: Folder) -> tuple[list[Row], list[Row]]:
    """Write the Parquet folders; return the summary's rows and some of the messages with a flaw."""
    spark = messages.sparkSession
    messages.write.mode("overwrite").parquet(f"{out}/messages")
    written = spark.read.schema(messages.schema).parquet(f"{out}/messages")
    queues = summary(written).coalesce(1).orderBy("queue")
    queues.write.mode("overwrite").parquet(f"{out}/summary")
    by_queue = spark.read.schema(queues.schema).parquet(f"{out}/summary").orderBy("queue").collect()
    flawed = " or ".join(f"boolean({name})" for name in FLAWS if name != "unconfirmed")
    examples = written.where(flawed).orderBy(F.desc("lost"), F.desc("wrong_queue"), "message_id")
    return by_queue, examples.limit(_MOST_TOLD).collect()


def _journal(records: DataFrame, ours: Column, options: argparse.Namespace, within: period.Period) -> _Journal:
    """Return the facts that a journal tells of its completeness, from records of the period and the hour around it.

    Gaps and samples are those of all records, since a sidecar's numbers and sample span all exchanges. Raises
    PipelineError if nothing can be judged, or a ring that records name is missing.
    """
    inside = within.holds(F.col("time"))
    with gaps.found(options.journal, records.where(inside), within) as rows:
        missing = gaps.counted(rows)
    every = _facts(records, ours, inside)
    told = [row for row in every if row["all"]]
    known = read_rings(records.sparkSession, options.journal)
    where = f"virtual host {options.vhost!r}" + (f", exchange {options.exchange!r}" if options.exchange else "")
    where += f" {within}" if within.is_limited else ""
    if not any(row.records for row in told):
        raise NoRecordError(f"{options.journal}: no record of {where}")
    without_id, without_key = (sum(row[name] for row in told) for name in ("without_id", "without_key"))
    count = sum(row.records for row in told)
    if without_id == count:
        raise PipelineError(
            f"{options.journal}: none of the {count:,} records of {where} has a message id: nothing can be judged"
        )
    for row in told:
        if row.ring not in known:
            named = sum(other["all"] for other in told if other.ring == row.ring)
            raise PipelineError(
                f"{options.journal}: {named:,} records name ring {row.ring}: rings/{row.ring}.json is missing"
            )
    # Where the message id is hashed, it may be a key that the journal does not tell. Whether a ring before the one that
    # chose hashed it, only the records say: an exchange's have no ids then, and no keys as they were.
    clear = {(row.vhost, row.exchange) for row in told if row.clear}
    hidden = any(
        row.nameless and (known[row.ring].hashed == "property:message_id" or (row.vhost, row.exchange) not in clear)
        for row in told
    )
    sample = min(row.sample for row in told)
    # A message that was published before --from, or before the oldest kept record, has no record here either.
    is_whole = within.since is None and missing == gaps.Missing(0, 0) and sample == 1 and not hidden
    until = _until(told) if is_whole else 0
    queues = _queues(known[row.ring] for row in every if row.is_ours and row.ring in known)
    times = min(row.since for row in told if row.records), max(row["last"] for row in told if row.records)
    return _Journal(missing, count, sample, without_id, without_key, until, queues, known, times)


def _facts(records: DataFrame, ours: Column, inside: Column) -> list[Row]:
    """Return a row for each sidecar, ring and exchange, with the counts and times that `_journal` needs.

    Records that are not `inside` the period count only in whether the row `is_ours`.
    """
    is_judged, plain = ours & inside, F.octet_length("key") != _HASHED_KEY
    is_nameless = F.col("message_id").isNull()
    by_ring = records.groupBy("proxy", "ring", "vhost", "exchange").agg(
        F.bool_or(ours).alias("is_ours"),
        F.count_if(inside).alias("all"),
        F.count_if(is_judged).alias("records"),
        F.min(F.when(inside, F.col("sample"))).alias("sample"),
        F.max(F.when(inside, F.col("time"))).alias("time"),
        F.max(F.when(inside, F.col("latency"))).alias("latency"),
        F.min(F.when(is_judged, F.col("time"))).alias("since"),
        F.max(F.when(is_judged, F.col("time"))).alias("last"),
        F.count_if(is_judged & is_nameless).alias("without_id"),
        F.count_if(is_judged & F.col("key").isNull()).alias("without_key"),
        F.count_if(inside & is_nameless).alias("nameless"),
        F.count_if(inside & (~is_nameless | plain)).alias("clear"),
    )
    return by_ring.orderBy("ring", "vhost", "exchange", "proxy").collect()


def _until(told: Iterable[Row]) -> int:
    """Return the time, in microseconds since 1970, up to which no sidecar can lack records, from `_facts`.

    The last records of a sidecar that was killed are missing without a gap: those of publishes that were under way
    at its last record, or began later.
    """
    last: dict[str, int] = {}
    for row in told:
        last[row.proxy] = max(last.get(row.proxy, 0), row.time)
    return max(0, min(last.values()) - max(row.latency or 0 for row in told) - CLOCKS)


def _seen(spark: SparkSession, options: argparse.Namespace) -> tuple[DataFrame, int]:
    """Return what consumers saw, and how many rows of it have no message id.

    The columns are `message_id`, `queue`, `position` (the sequence or the time) and `seen_at` (microseconds since
    1970). Raises PipelineError for rows without a queue, time or sequence.
    """
    wanted: Columns = {options.message_id: (StringType,), options.queue: (StringType,), options.time: TIME}
    ordered: Columns = {} if options.sequence is None else {options.sequence: WHOLE}
    table = read_table(spark, options.seen, {**wanted, **ordered})
    time, position = column(options.time), column(options.sequence or options.time)
    if not isinstance(table.schema[options.time].dataType, WHOLE):
        time = F.unix_micros(time.cast("timestamp"))
        position = position if options.sequence else time
    told = table.agg(
        F.count_if(column(options.message_id).isNull()).alias("unnamed"),
        F.count_if(column(options.queue).isNull() | time.isNull() | position.isNull()).alias("bad"),
    ).collect()[0]
    if told.bad:
        what = f"a null {options.queue}, {options.time}" + (f" or {options.sequence}" if options.sequence else "")
        raise PipelineError(f"{options.seen}: {told.bad:,} {'row' if told.bad == 1 else 'rows'} with {what}")
    named = (column(options.message_id).alias("message_id"), column(options.queue).alias("queue"))
    placed = (position.cast("long").alias("position"), time.cast("long").alias("seen_at"))
    return table.select(*named, *placed), told.unnamed
