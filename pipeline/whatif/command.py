"""Says what a change of queues or weights would move, what each queue would get, and which weights would be better.

It changes nothing. The exit status is 1 over a limit, unless --fail-on says otherwise.
"""

import argparse
from dataclasses import asdict

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pipeline import PipelineError
from pipeline.data import period
from pipeline.data.folder import Folder
from pipeline.data.journal import read_records, set_aside
from pipeline.data.landed import NOTHING_ASIDE, Aside
from pipeline.data.rings import RingSpec, read_ring, to_json
from pipeline.data.tables import TEXT, WHOLE, read_table
from pipeline.page import about
from pipeline.session import spark_session
from pipeline.stats.sampling import slots_of
from pipeline.verdict import Verdict, add_verdict_arguments, conclude, paths, results
from pipeline.whatif.demand import by_slot, moved_keys, of_exchange, of_journal, of_table
from pipeline.whatif.findings import LOAD_SCHEMA, Findings, find
from pipeline.whatif.inputs import Inputs, inputs_of_journal, inputs_of_table
from pipeline.whatif.present import add_arguments as add_ring_arguments
from pipeline.whatif.present import given
from pipeline.whatif.published import Published
from pipeline.whatif.report import answer, limits, report
from pipeline.whatif.topology import checked, edited
from pipeline.whatif.verdict import Limits, judged, verdict

MOST_TOLD = 20
"""The most keys that the report lists; the Parquet folder has all."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `whatif` to a parser."""
    parser.add_argument(
        "--journal",
        metavar="DIR",
        help="the journal, or the table that land has made of it; needs --vhost and --exchange",
    )
    parser.add_argument("--vhost", metavar="NAME", help="virtual host of the exchange")
    parser.add_argument("--exchange", metavar="NAME", help="exchange whose ring would change")
    period.add_arguments(parser)
    parser.add_argument("--table", metavar="FILE", help="a table of keys instead of a journal: .parquet, .csv or .json")
    parser.add_argument("--key", metavar="COLUMN", help="column of the table with the keys: text or binary")
    parser.add_argument(
        "--count", metavar="COLUMN", help="column of the table with the messages of a row (default: 1 message a row)"
    )
    parser.add_argument("--bytes", metavar="COLUMN", help="column of the table with the bytes of a row's messages")
    add_ring_arguments(parser)
    parser.add_argument(
        "--proposed", metavar="FILE", help="file of the proposed ring, instead of --add, --remove, --weight"
    )
    parser.add_argument(
        "--add",
        metavar="queue:NAME=WEIGHT",
        action="append",
        default=[],
        help="bind one more destination; may be given several times",
    )
    parser.add_argument(
        "--remove",
        metavar="queue:NAME",
        action="append",
        default=[],
        help="unbind a destination; may be given several times",
    )
    parser.add_argument(
        "--weight",
        metavar="queue:NAME=WEIGHT",
        action="append",
        default=[],
        help="change the weight of a destination; may be given several times",
    )
    parser.add_argument(
        "--max-moved", metavar="SHARE", type=float, help="limit: the share of the messages that may move, 0 to 1"
    )
    parser.add_argument(
        "--max-over-fair",
        metavar="RATIO",
        type=float,
        help="limit: how many times its fair share the busiest queue may get, 1 or more",
    )
    parser.add_argument(
        "--out", metavar="DIR", required=True, help="folder or URL for moved/, load/, verdict.json and report.html"
    )
    add_verdict_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Write the tables, the verdict and the report; return the exit status.

    Raises PipelineError for a wrong option, and where there is no message.
    """
    _check(options)
    given_limits, within = Limits(options.max_moved, options.max_over_fair), period.period_of(options)
    asked = given(options)  # before the work, not after it
    if options.proposed:
        read_ring(options.proposed)
    with spark_session("whatif") as spark, results(spark, options, within.as_json()) as out:
        if options.journal:
            records = of_exchange(read_records(spark, options.journal, within), options.vhost, options.exchange)
            every = of_journal(records).persist()
            inputs = inputs_of_journal(records, every, asked, options, within)
        else:
            every = _of_table(spark, options).persist()
            inputs = inputs_of_table(every, asked, options)
        present = inputs.present.spec
        proposed = _proposed(options, present)
        keys = inputs.keys.where(F.col("slot") < slots_of(inputs.sample))
        demand = by_slot(keys, options.journal or options.table)
        if not demand.messages.any():
            raise PipelineError(f"{options.journal or options.table}: no messages, so nothing can be predicted")
        found = find(present, proposed, Published.of(demand, inputs.sample))
        moved, heaviest = _write(keys, found, out)
        every.unpersist()
        told = verdict(found, given_limits, sample=inputs.sample, with_bytes=bool(options.journal or options.bytes))
        told |= {"present_from": inputs.present.source}
        told |= {**within.as_json(), "left_out": {"hashed": inputs.hashed_otherwise, "ring": inputs.without_ring}}
        aside = set_aside(spark, options.journal, within) if options.journal else NOTHING_ASIDE
        told |= {"set_aside": asdict(aside)}
        findings = judged(found, told, aside)
        page = report(
            found, told, findings, moved, heaviest, inputs.present.said, _about(options, within, inputs, aside)
        )
        out.write("report.html", page.html())
        figures = {"records": told["counted"]["messages"], "messages": told["messages"]}
        written = {**paths("moved", "load"), "advised": "advised.json"}
        status = conclude(Verdict("whatif", findings, figures, written, told), out, options)
    unreadable = [f"{aside}."] if aside else []
    print("\n".join([*answer(found), limits(told), *unreadable, f"{out}/report.html"]))
    return status


def _check(options: argparse.Namespace) -> None:
    if (options.journal is None) == (options.table is None):
        raise PipelineError("give either --journal or --table")
    if options.journal is not None and (options.vhost is None or options.exchange is None):
        raise PipelineError("--journal needs --vhost and --exchange")
    if options.journal is None and (options.since or options.until or options.day):
        raise PipelineError("--from, --until and --day need --journal")
    if options.table is not None and (options.key is None or not (options.ring or options.management_url)):
        raise PipelineError("--table needs --key, and either --ring or --management-url")
    if bool(options.proposed) == bool(options.add or options.remove or options.weight):
        raise PipelineError("give either --proposed, or edits: --add, --remove, --weight")
    if options.max_moved is not None and not 0 <= options.max_moved <= 1:
        raise PipelineError(f"--max-moved {options.max_moved:g}: a share is between 0 and 1")
    if options.max_over_fair is not None and not options.max_over_fair >= 1:
        raise PipelineError(f"--max-over-fair {options.max_over_fair:g}: it must be 1 or more")


def _about(options: argparse.Namespace, within: period.Period, inputs: Inputs, aside: Aside) -> about.About:
    """Return the head of the page."""
    names = ("vhost", "exchange", "key", "count", "bytes", "ring", "proposed", "add", "remove", "weight")
    given = {f"--{name.replace('_', '-')}": vars(options)[name] for name in (*names, "max_moved", "max_over_fair")}
    if options.journal is None:
        return about.of_table(options.table, given)
    return about.of_journal(options.journal, within, inputs.times, given, aside)


def _of_table(spark: SparkSession, options: argparse.Namespace) -> DataFrame:
    wanted = {options.key: TEXT} | {name: WHOLE for name in (options.count, options.bytes) if name}
    return of_table(read_table(spark, options.table, wanted), options.key, options.count, options.bytes)


def _proposed(options: argparse.Namespace, present: RingSpec) -> RingSpec:
    if options.proposed:
        return checked(present, read_ring(options.proposed, present))
    return checked(present, edited(present, options.add, options.remove, options.weight))


def _write(keys: DataFrame, found: Findings, out: Folder) -> tuple[list[Row], Row]:
    """Write the Parquet folders; return the moved keys with the most messages, and the heaviest key of all."""
    spark = keys.sparkSession
    in_slot = keys.where(F.col("slot") == found.published.heaviest_slot)
    heaviest = in_slot.orderBy(F.desc("messages")).limit(1).collect()[0]
    out.remove_verdict()
    out.write("advised.json", to_json(found.advised))
    spark.createDataFrame(found.rows(), LOAD_SCHEMA).coalesce(1).write.mode("overwrite").parquet(f"{out}/load")
    moved = moved_keys(keys, found.present.ring, found.proposed.ring)
    moved.write.mode("overwrite").parquet(f"{out}/moved")
    written = spark.read.schema(moved.schema).parquet(f"{out}/moved")
    return written.orderBy(F.desc("messages"), "slot").limit(MOST_TOLD).collect(), heaviest
