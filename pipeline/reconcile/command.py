"""The journal against a table of what consumers saw: what was lost, duplicated, out of order or misplaced.

Exit status: 0 nothing lost or in the wrong queue; 1 something is; 2 an error.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import StringType

from pipeline import PipelineError
from pipeline.gaps import gaps, sequences
from pipeline.journal import read_records, read_rings
from pipeline.reconcile.messages import FLAWS, copies, judged, late, published, summary
from pipeline.reconcile.page import report
from pipeline.session import spark_session
from pipeline.tables import TIME, WHOLE, Columns, read_table
from pipeline.verdicts import write_verdict

CLOCKS = 1_000_000
"""Microseconds by which the clocks of sidecars and consumers may differ."""

_MOST_TOLD = 20
"""Messages in the report; the Parquet folder has all."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Of this job."""
    parser.add_argument("--journal", required=True, metavar="DIR", help="the sidecars' journal")
    parser.add_argument("--vhost", required=True, metavar="NAME")
    parser.add_argument("--exchange", metavar="NAME", help="only what was published to it (default: to any)")
    parser.add_argument("--seen", required=True, metavar="FILE", help="what consumers saw: .parquet, .csv or .json")
    parser.add_argument("--message-id", default="message_id", metavar="COLUMN", help="(default: %(default)s)")
    parser.add_argument("--queue", default="queue", metavar="COLUMN", help="(default: %(default)s)")
    parser.add_argument("--time", default="time", metavar="COLUMN", help="timestamp or microseconds (default: time)")
    parser.add_argument("--sequence", metavar="COLUMN", help="the order of what was seen in a queue (default: by time)")
    parser.add_argument("--out", required=True, metavar="DIR", help="messages/, summary/, verdict.json and report.html")


@dataclass(frozen=True)
class _Journal:
    """What may be missing from a journal, and what has no id."""

    missing: int
    sample: float
    without_id: int
    without_key: int
    until: int
    """Microseconds since 1970 up to which no record can be missing, by any consumer's clock; 0 for not known."""


def run(options: argparse.Namespace) -> int:
    """Writes the tables, the verdict and the report."""
    out = Path(options.out)
    with spark_session("reconcile") as spark:
        everything = read_records(spark, options.journal)
        ours = F.col("vhost") == options.vhost
        if options.exchange is not None:
            ours &= F.col("exchange") == options.exchange
        journal = _journal(everything, ours, options)
        rows, unnamed = _seen(spark, options)
        records, of_seen = everything.where(ours), copies(rows).persist()
        elsewhere = everything.where(~ours).select("message_id").distinct()
        messages = judged(published(records), of_seen, late(records, of_seen), elsewhere, journal.until)
        (out / "verdict.json").unlink(missing_ok=True)  # an earlier run's, whose tables go now
        messages.write.mode("overwrite").parquet(str(out / "messages"))
        written = spark.read.schema(messages.schema).parquet(str(out / "messages"))
        queues = summary(written).coalesce(1).orderBy("queue")
        queues.write.mode("overwrite").parquet(str(out / "summary"))
        by_queue = spark.read.schema(queues.schema).parquet(str(out / "summary")).orderBy("queue").collect()
        flawed = " or ".join(name for name in FLAWS if name != "unconfirmed")
        examples = written.where(flawed).orderBy(F.desc("lost"), F.desc("wrong_queue"), "message_id")
        worst = examples.limit(_MOST_TOLD).collect()
        of_seen.unpersist()
    counts = {name: sum(row[name] for row in by_queue) for name in ("messages", "confirmed", "seen", "copies", *FLAWS)}
    against = counts["lost"] + counts["wrong_queue"] > 0
    told = {
        "v": 1,
        "verdict": "lost or misplaced" if against else "nothing lost or misplaced",
        **counts,
        "records_without_message_id": journal.without_id,
        "records_without_key": journal.without_key,
        "seen_without_message_id": unnamed,
        "records_missing": journal.missing,
        "sample": journal.sample,
    }
    report(told, by_queue, worst).write(out / "report.html")
    write_verdict(out, told)
    print(f"{told['verdict']}: {', '.join(f'{counts[name]:,} {name}' for name in FLAWS)}: {out}/report.html")
    return int(against)


def _journal(everything: DataFrame, ours: Column, options: argparse.Namespace) -> _Journal:
    """Gaps and samples are a proxy's, wherever it published."""
    rings = read_rings(everything.sparkSession, options.journal)
    # Their ids may be keys that the journal does not tell.
    hidden = [fingerprint for fingerprint, known in rings.items() if known.hashed == "property:message_id"]
    missing = gaps(sequences(everything)).agg(F.sum("missing").alias("n")).collect()[0].n or 0
    told = everything.agg(
        F.count_if(ours).alias("records"),
        F.min("sample").alias("sample"),
        F.count_if(ours & F.col("message_id").isNull()).alias("without_id"),
        F.count_if(ours & F.col("key").isNull()).alias("without_key"),
        F.count_if(F.col("message_id").isNull() & F.col("ring").isin(hidden)).alias("hidden"),
    ).collect()[0]
    if not told.records:
        where = f"virtual host {options.vhost!r}" + (f", exchange {options.exchange!r}" if options.exchange else "")
        raise PipelineError(f"{options.journal}: no record of {where}")
    whole = told.sample == 1 and not missing and not told.hidden
    until = _until(everything) if whole else 0
    return _Journal(missing, told.sample, told.without_id, told.without_key, until)


def _until(everything: DataFrame) -> int:
    """A killed sidecar's last records are missing without a gap: what was under way at its last one, or came later."""
    by_proxy = everything.groupBy("proxy").agg(F.max("time").alias("time"), F.max("latency").alias("latency"))
    told = by_proxy.agg(F.min("time").alias("time"), F.max("latency").alias("latency")).collect()[0]
    return max(0, int(told.time) - int(told.latency or 0) - CLOCKS)


def _seen(spark: SparkSession, options: argparse.Namespace) -> tuple[DataFrame, int]:
    """Columns `message_id`, `queue`, `position`, `seen_at` (microseconds); and how many rows have no id."""
    wanted: Columns = {options.message_id: (StringType,), options.queue: (StringType,), options.time: TIME}
    ordered: Columns = {} if options.sequence is None else {options.sequence: WHOLE}
    table = read_table(spark, options.seen, {**wanted, **ordered})
    time, position = F.col(options.time), F.col(options.sequence or options.time)
    if not isinstance(table.schema[options.time].dataType, WHOLE):
        time = F.unix_micros(time.cast("timestamp"))
        position = position if options.sequence else time
    told = table.agg(
        F.count_if(F.col(options.message_id).isNull()).alias("unnamed"),
        F.count_if(F.col(options.queue).isNull() | time.isNull() | position.isNull()).alias("bad"),
    ).collect()[0]
    if told.bad:
        what = f"a null {options.queue}, {options.time}" + (f" or {options.sequence}" if options.sequence else "")
        raise PipelineError(f"{options.seen}: {told.bad:,} {'row' if told.bad == 1 else 'rows'} with {what}")
    named = (F.col(options.message_id).alias("message_id"), F.col(options.queue).alias("queue"))
    placed = (position.cast("long").alias("position"), time.cast("long").alias("seen_at"))
    return table.select(*named, *placed), told.unnamed
