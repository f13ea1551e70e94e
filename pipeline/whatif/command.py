"""Says what a change of queues or weights would move, what each queue would get, and which weights would be better.

It changes nothing. The exit status is 1 over a limit, unless --fail-on says otherwise.
"""

import argparse
import math
from dataclasses import asdict

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pipeline import PipelineError
from pipeline.data import period
from pipeline.data.folder import Folder
from pipeline.data.journal import read_records, set_aside
from pipeline.data.landed import NOTHING_ASIDE, Aside
from pipeline.data.rings import read_ring, to_json
from pipeline.data.tables import TEXT, WHOLE, read_table
from pipeline.page import about
from pipeline.session import spark_session
from pipeline.stats.sampling import slots_of
from pipeline.verdict import Verdict, add_verdict_arguments, conclude, paths, results
from pipeline.whatif.demand import by_slot, moved_keys, of_exchange, of_journal, of_table
from pipeline.whatif.findings import LOAD_SCHEMA, Findings, find
from pipeline.whatif.inputs import Inputs, inputs_of_journal, inputs_of_table
from pipeline.whatif.peak import Peak, peak_of
from pipeline.whatif.present import add_arguments as add_ring_arguments
from pipeline.whatif.present import given
from pipeline.whatif.proposal import as_json, hot_keys, propose
from pipeline.whatif.published import Published
from pipeline.whatif.report import answer, enough_for, limits, report
from pipeline.whatif.topology_file import NAME, read_topology, to_toml
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
        "--max-per-hour",
        metavar="MESSAGES",
        type=float,
        help="limit: the most messages that a queue may get in the busiest hour, times its weight; with --topology and"
        " no change, the job proposes the least number of shards within it",
    )
    parser.add_argument(
        "--growth",
        metavar="FACTOR",
        type=float,
        help="how many times as many messages there will be in 90 days (default: as the journal's weeks tell)",
    )
    parser.add_argument(
        "--topology",
        metavar="FILE",
        help="the exchange's topology file: write topology.toml, for `ring-proxy topology apply --ordered`",
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
    given_limits, within = (
        Limits(options.max_moved, options.max_over_fair, options.max_per_hour),
        period.period_of(options),
    )
    asked = given(options)  # before the work, not after it
    if options.proposed:
        read_ring(options.proposed)
    exchange = read_topology(options.topology, options.vhost, options.exchange) if options.topology else None
    with spark_session("whatif") as spark, results(spark, options, within.as_json()) as out:
        if options.journal:
            records = of_exchange(read_records(spark, options.journal, within), options.vhost, options.exchange)
            every = of_journal(records).persist()
            inputs = inputs_of_journal(records, every, asked, options, within)
        else:
            every = _of_table(spark, options).persist()
            inputs = inputs_of_table(every, asked, options)
        present = inputs.present.spec
        drawn = F.col("slot") < slots_of(inputs.sample)
        keys = inputs.keys.where(drawn)
        demand = by_slot(keys, options.journal or options.table)
        if not demand.messages.any():
            raise PipelineError(f"{options.journal or options.table}: no messages, so nothing can be predicted")
        peak: Peak | None = None
        if inputs.records is not None and options.max_per_hour is not None:
            peak = peak_of(inputs.records.where(drawn), inputs.sample, options.journal)
        proposal = propose(options, exchange, present, peak)
        busiest = peak.published if peak is not None else None
        found = find(present, proposal.spec, Published.of(demand, inputs.sample), busiest)
        hot = hot_keys(peak, proposal.enough) if peak is not None and proposal.enough is not None else []
        moved, heaviest = _write(keys, found, out)
        out.delete(NAME)
        if proposal.exchange is not None:
            out.write(NAME, to_toml(proposal.exchange))
        every.unpersist()
        told = verdict(found, given_limits, sample=inputs.sample, with_bytes=bool(options.journal or options.bytes))
        told |= {"present_from": inputs.present.source}
        told |= {**within.as_json(), "left_out": {"hashed": inputs.hashed_otherwise, "ring": inputs.without_ring}}
        told |= as_json(peak, proposal.enough, hot, found)
        aside = set_aside(spark, options.journal, within) if options.journal else NOTHING_ASIDE
        told |= {"set_aside": asdict(aside)}
        findings = judged(found, told, aside)
        page = report(
            found, told, findings, moved, heaviest, inputs.present.said, _about(options, within, inputs, aside)
        )
        out.write("report.html", page.html())
        figures = {"records": told["counted"]["messages"], "messages": told["messages"]}
        written = {**paths("moved", "load"), "advised": "advised.json"}
        written |= {"topology": NAME} if proposal.exchange is not None else {}
        status = conclude(Verdict("whatif", findings, figures, written, told), out, options)
    unreadable = [f"{aside}."] if aside else []
    apply = [f"ring-proxy topology apply --ordered {out}/{NAME}"] if proposal.exchange is not None else []
    print("\n".join([*answer(found), *enough_for(told), limits(told), *unreadable, f"{out}/report.html", *apply]))
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
    _check_limits(options)
    _check_proposal(options)


def _check_proposal(options: argparse.Namespace) -> None:
    ways = bool(options.proposed) + bool(options.add or options.remove or options.weight)
    if ways > 1 or not (ways or (options.topology and options.max_per_hour)):
        raise PipelineError(
            "give either --proposed, or edits: --add, --remove, --weight, or for the number of shards --topology and"
            " --max-per-hour"
        )
    if options.journal is None and (options.max_per_hour is not None or options.topology):
        raise PipelineError("--max-per-hour and --topology need --journal")
    if ways and options.growth is not None:
        raise PipelineError("--growth is for the number of shards: give --topology and --max-per-hour, and no change")


def _check_limits(options: argparse.Namespace) -> None:
    if options.max_moved is not None and not 0 <= options.max_moved <= 1:
        raise PipelineError(f"--max-moved {options.max_moved:g}: a share is between 0 and 1")
    if options.max_over_fair is not None and not options.max_over_fair >= 1:
        raise PipelineError(f"--max-over-fair {options.max_over_fair:g}: it must be 1 or more")
    for name in ("max_per_hour", "growth"):
        if (value := vars(options)[name]) is not None and not 0 < value < math.inf:
            raise PipelineError(f"--{name.replace('_', '-')} {value:g}: it must be more than 0")


def _about(options: argparse.Namespace, within: period.Period, inputs: Inputs, aside: Aside) -> about.About:
    """Return the head of the page."""
    names = ("vhost", "exchange", "key", "count", "bytes", "ring", "proposed", "add", "remove", "weight", "topology")
    figures = ("growth", "max_moved", "max_over_fair", "max_per_hour")
    given = {f"--{name.replace('_', '-')}": vars(options)[name] for name in (*names, *figures)}
    if options.journal is None:
        return about.of_table(options.table, given)
    return about.of_journal(options.journal, within, inputs.times, given, aside)


def _of_table(spark: SparkSession, options: argparse.Namespace) -> DataFrame:
    wanted = {options.key: TEXT} | {name: WHOLE for name in (options.count, options.bytes) if name}
    return of_table(read_table(spark, options.table, wanted), options.key, options.count, options.bytes)


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
