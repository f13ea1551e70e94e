"""Lands all that is new, runs usage, skew and reconcile for a day, and keeps the results of each day in its own folder.

A second run for the same day does it again. Older days whose hours have got records since then are named. The exit
status is 2 if a job ended with an error, else 1 if one has findings, else 3 if there is no record, else 0.
"""

import argparse
import json
from collections.abc import Sequence
from datetime import datetime, timedelta

from pipeline import PipelineError
from pipeline.__main__ import main
from pipeline.data import period
from pipeline.data.files import GoneError, content, found
from pipeline.data.folder import Folder
from pipeline.data.landed import Landed
from pipeline.session import spark_session

FINE, FINDINGS, FAULT, NO_RECORD = 0, 1, 2, 3
"""The exit statuses of jobs."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `day` to a parser."""
    parser.add_argument(
        "--journal", required=True, metavar="DIR", help="folder of the journal: the sidecars' journal_dir, or a copy"
    )
    parser.add_argument(
        "--day",
        type=period.day_of,
        default="yesterday",
        metavar="DAY",
        help="yesterday (default), today, or a date such as 2026-11-21, in UTC",
    )
    parser.add_argument(
        "--out", required=True, metavar="DIR", help="folder or URL for landed/ and a folder of each day"
    )
    parser.add_argument("--vhost", metavar="NAME", help="virtual host for reconcile, which needs --seen")
    parser.add_argument("--exchange", metavar="NAME", help="exchange for reconcile (default: any)")
    parser.add_argument("--seen", metavar="FILE", help="table of what consumers saw, for reconcile; needs --vhost")
    parser.add_argument(
        "--skip-unreadable", action="store_true", help="do not count lines and files that are set aside as a finding"
    )


def run(options: argparse.Namespace) -> int:
    """Run the jobs, write OUT/DAY/verdict.json, and return the exit status."""
    if (options.vhost is None) != (options.seen is None) or (options.exchange and not options.seen):
        raise PipelineError("--vhost, --exchange and --seen are for reconcile: give --vhost and --seen, or none")
    at: datetime = options.day
    day = f"{at:%Y-%m-%d}"
    table, folder = f"{options.out}/landed", f"{options.out}/{day}"
    statuses: dict[str, int] = {}
    told: dict[str, object] = {"v": 1, "day": day}
    again: list[str] = []
    with spark_session("day") as spark:
        out, landed = Folder(spark, folder), Landed(spark, table)
        out.remove_verdict()
        # Without --day: the jobs look at the hours around a day, and records come late.
        statuses["land"] = main(["land", "--journal", options.journal, "--out", table, "--skip-unreadable"])
        if statuses["land"] == FINE:
            if not options.skip_unreadable and landed.aside(period.Period(at, at + timedelta(days=1))):
                statuses["land"] = FINDINGS
            again = late(landed, options.out, day)
            told |= {"changes": landed.changes(day), "late": again}
            of_table = ("--journal", table, "--day", day)
            for job in ("usage", "skew", "reconcile") if options.seen else ("usage", "skew"):
                more = _of_reconcile(options) if job == "reconcile" else ()
                statuses[job] = main([job, *of_table, "--out", f"{folder}/{job}", *more])
        status = worst(list(statuses.values()))
        out.write_verdict({**told, "status": status, "jobs": statuses})
    if again:
        print(f"records came late: run day again for {', '.join(again)}")
    print(f"{day}: status {status}: {folder}")
    return status


def late(table: Landed, out: str, day: str) -> list[str]:
    """Return the days before `day` whose hours have changed in the table since their results were made."""
    days = []
    for file in found(table.spark, f"{out}/[0-9]*/verdict.json"):
        older = file.split("/")[-2]
        try:
            changes = json.loads(content(table.spark, file))["changes"]
        except (GoneError, ValueError, TypeError, KeyError):
            continue  # A run is at it, or had nothing to look at.
        if older < day and table.changes(older) != changes:
            days.append(older)
    return days


def worst(statuses: Sequence[int]) -> int:
    """Return the exit status that says the most: an error before findings before no record."""
    return next((status for status in (FAULT, FINDINGS, NO_RECORD) if status in statuses), FINE)


def _of_reconcile(options: argparse.Namespace) -> Sequence[str]:
    exchange = ("--exchange", options.exchange) if options.exchange else ()
    return ("--vhost", options.vhost, "--seen", options.seen, *exchange)
