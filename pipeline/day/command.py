"""Lands all that is new, runs usage, skew and reconcile for a day, and keeps the results of each day in its own folder.

A second run for the same day does it again. Older days whose hours have got records since then are named. The report
says which keys, tenants and queues have grown since the days before. The exit status is 2 if a job ended with an error,
else 1 if one has findings of a kind that --fail-on names, else 3 if there is no record, else 0.
"""

import argparse
import json
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from typing import Any

from pyspark.sql import SparkSession

from pipeline import FAULT, FINDINGS, FINE, NO_RECORD, PipelineError
from pipeline.__main__ import main
from pipeline.data import period
from pipeline.data.files import GoneError, content, found
from pipeline.data.folder import Folder
from pipeline.data.journal import read_records
from pipeline.data.landed import Landed
from pipeline.day import growth
from pipeline.day.report import WORDS, report
from pipeline.findings import Finding, listed
from pipeline.page import about
from pipeline.session import spark_session
from pipeline.verdict import Verdict, add_verdict_arguments, as_argument, conclude, of_records, paths


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
        "--tenant", metavar="SEPARATOR", help="count messages by tenant, too: the part of a key before SEPARATOR"
    )
    parser.add_argument(
        "--skip-unreadable", action="store_true", help="do not count lines and files that are set aside as a finding"
    )
    add_verdict_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Run the jobs, write the report and OUT/DAY/verdict.json, and return the exit status."""
    if (options.vhost is None) != (options.seen is None) or (options.exchange and not options.seen):
        raise PipelineError("--vhost, --exchange and --seen are for reconcile: give --vhost and --seen, or none")
    if options.tenant == "":
        raise PipelineError("--tenant: '' ends no tenant: give the text that stands behind it in keys, such as /")
    if options.skip_unreadable:
        options.fail_on -= {"unreadable"}
    at: datetime = options.day
    day, within = f"{at:%Y-%m-%d}", period.Period(at, at + timedelta(days=1))
    table, folder = f"{options.out}/landed", f"{options.out}/{day}"
    with spark_session("day") as spark:
        out, landed = Folder(spark, folder), Landed(spark, table)
        out.remove_verdict()
        out.delete(growth.FILE)
        # Without --day: the jobs look at the hours around a day, and records come late.
        statuses = {"land": main(["land", "--journal", options.journal, "--out", table, "--fail-on", "none"])}
        findings: list[Finding] = []
        more: dict[str, object] = {"day": day, **within.as_json()}
        again: list[str] = []
        every: list[growth.Grown] = []
        before: dict[date, growth.Counts] = {}
        records = 0
        if statuses["land"] == FINE:
            again = late(landed, options.out, day)
            more |= {"changes": landed.changes(day), "late": again}
            for job in ("usage", "skew", "reconcile") if options.seen else ("usage", "skew"):
                given = ["--journal", table, "--day", day, "--out", f"{folder}/{job}"]
                statuses[job] = main([job, *given, *_of_job(job, options)])
            told = [_verdict(spark, f"{folder}/{job}") for job in statuses if job != "land" and statuses[job] != FAULT]
            records = max((one["figures"]["records"] for one in told), default=0)
            findings = of_records(aside=landed.aside(within)) + _united(told)
            findings += [
                Finding("late", f"Records of {one} came late: run that day again.", {"day": one}) for one in again
            ]
            if statuses["skew"] in (FINE, FINDINGS):
                now = growth.counted(spark, f"{folder}/skew", read_records(spark, table, within), options.tenant)
                before = growth.kept(spark, options.out, at.date())
                every = growth.grown(now, before)
                out.write(growth.FILE, now.to_json())
                findings += _of_growth(every, at.date())
        own = [FINDINGS] if any(finding.kind in options.fail_on for finding in findings) else []
        status = worst([*statuses.values(), *own])
        head = about.of_journal(options.journal, within, None, {"--seen": options.seen, "--tenant": options.tenant})
        out.write("report.html", report(at.date(), statuses, findings, every, list(before), head).html())
        written = {**paths(), **{job: job for job in statuses if job != "land"}}
        conclude(
            Verdict("day", findings, {"records": records}, written, {**more, "jobs": statuses}), out, options, status
        )
    if again:
        print(f"records came late: run day again for {', '.join(again)}")
    print(f"{day}: {WORDS[status]}: {folder}/report.html")
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


def _of_job(job: str, options: argparse.Namespace) -> Sequence[str]:
    given = ("--fail-on", as_argument(options.fail_on))
    if job == "skew":
        return (*given, "--top", str(growth.KEPT))
    if job == "usage":
        return given
    exchange = ("--exchange", options.exchange) if options.exchange else ()
    return (*given, "--vhost", options.vhost, "--seen", options.seen, *exchange)


def _verdict(spark: SparkSession, folder: str) -> Any:
    return json.loads(content(spark, f"{folder}/verdict.json"))


def _united(verdicts: Sequence[Any]) -> list[Finding]:
    """Return the findings of several jobs; of two that are equal, one."""
    told = [Finding(**finding) for one in verdicts for finding in one["findings"]]
    first: dict[tuple[str, str, str], Finding] = {}
    for finding in told:
        if finding.kind != "unreadable":  # The day's own.
            first.setdefault((finding.kind, json.dumps(finding.subject), finding.sentence), finding)
    return list(first.values())


def _of_growth(every: Sequence[growth.Grown], day: date) -> list[Finding]:
    return [
        finding
        for what in ("key", "tenant", "queue")
        for finding in listed(growth.findings([one for one in every if one.subject.what == what], day))
    ]
