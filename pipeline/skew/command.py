"""Says which keys are hot, whether keys or the ring make a load uneven, and which keys no weight can fix.

It judges every exchange as a whole, and then each of its rings: every change of the bindings makes another ring.
"""

import argparse

from pipeline import PipelineError
from pipeline.data import gaps, period
from pipeline.data.journal import read_records, read_rings, set_aside
from pipeline.page import about
from pipeline.session import spark_session
from pipeline.skew import words
from pipeline.skew.finder import EXACT, find
from pipeline.skew.findings import DESTINATIONS, KEYS, RINGS
from pipeline.skew.keys import TRACKED
from pipeline.skew.report import report
from pipeline.skew.verdict import judged
from pipeline.verdict import Verdict, add_verdict_arguments, conclude, paths, results

LEAST_TOP, MOST_TOP = 10, TRACKED


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this job."""
    period.add_journal_arguments(parser, required=True)
    parser.add_argument(
        "--out",
        required=True,
        metavar="DIR",
        help="folder or URL for keys/, destinations/, rings/, verdict.json and report.html",
    )
    parser.add_argument(
        "--top",
        type=int,
        default=20,
        metavar="N",
        help="how many hot keys of each exchange and ring to list, 10 to 10,000 (default: 20)",
    )
    parser.add_argument(
        "--approximate",
        action="store_true",
        help=f"estimate hot keys, which the job always does above {EXACT:,} records",
    )
    add_verdict_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Write the tables, the report and the verdict; return the exit status.

    Raises PipelineError, as for a journal without records.
    """
    if not LEAST_TOP <= options.top <= MOST_TOP:
        raise PipelineError(f"--top: {options.top} is outside {LEAST_TOP} to {MOST_TOP}")
    within = period.period_of(options)
    with spark_session("skew") as spark, results(spark, options, within.as_json()) as out:
        rings, records = read_rings(spark, options.journal), read_records(spark, options.journal, within)
        with gaps.found(options.journal, records, within) as missing_rows:
            missing = gaps.counted(missing_rows)
        found = find(spark, records, rings, options.journal, options.top, approximate=options.approximate)
        if not found:
            raise period.no_record(options.journal, within)
        out.remove_verdict()
        for name, rows, schema in (
            ("rings", [one.row() for one in found], RINGS),
            ("destinations", [row for one in found for row in one.destination_rows()], DESTINATIONS),
            ("keys", [row for one in found for row in one.key_rows()], KEYS),
        ):
            spark.createDataFrame(rows, schema).coalesce(1).write.mode("overwrite").parquet(f"{out}/{name}")
        first, last = min(one.scope.since for one in found), max(one.scope.until for one in found)
        parameters = {"--top": options.top, "--approximate": options.approximate}
        aside = set_aside(spark, options.journal, within)
        head = about.of_journal(options.journal, within, (first, last), parameters, aside)
        page = report(found, missing, head, aside)
        out.write("report.html", page.html())
        exchanges = [one for one in found if one.scope.across]
        figures = {"records": sum(one.scope.records for one in exchanges), "exchanges": len(exchanges)}
        tables = paths("keys", "destinations", "rings")
        told = Verdict("skew", judged(found, missing, aside), figures, tables, within.as_json())
        status = conclude(told, out, options)
    for one in exchanges:
        print(words.of_all([one]))
    unreadable = f", {aside}" if aside else ""
    print(f"{missing.records:,} records missing{unreadable}: {out}/report.html")
    return status
