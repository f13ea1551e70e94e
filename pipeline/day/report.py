"""The report of `day`."""

from collections.abc import Mapping, Sequence
from datetime import date, timedelta

from pipeline import FAULT, FINDINGS, FINE, NO_RECORD
from pipeline.day.growth import DAYS, SHARE, TIMES, Grown
from pipeline.findings import MOST_LISTED, Finding
from pipeline.page.about import About
from pipeline.page.formats import count
from pipeline.page.report import Grade, Report, grade

WORDS = {FINE: "fine", FINDINGS: "findings", FAULT: "fault", NO_RECORD: "no record"}
"""The exit statuses in words."""


def report(
    day: date,
    jobs: Mapping[str, int],
    findings: Sequence[Finding],
    every: Sequence[Grown],
    before: Sequence[date],
    head: About,
) -> Report:
    """Return the page.

    `jobs` has the exit statuses of the jobs, `findings` those of all jobs and of the day, `every` the keys, tenants and
    queues that have grown, and `before` the days that were compared.
    """
    statuses = set(jobs.values())
    judged = Grade.BAD if FAULT in statuses else Grade.LOOK if statuses == {NO_RECORD} else grade(findings)
    told = ", ".join(f"{job}: {WORDS[status]}" for job, status in jobs.items())
    page = Report(f"Day {day}: what did the jobs find?", judged, f"{told[0].upper()}{told[1:]}.", head)
    page.heading("What was found?")
    others = [one for one in findings if one.kind != "grown"]
    if others:
        page.table(["kind", "count", "finding"], [(one.kind, one.count, one.sentence) for one in others])
    else:
        page.text("Nothing.")
    if reports := [
        f"{job}/report.html" for job, status in jobs.items() if job != "land" and status in (FINE, FINDINGS)
    ]:
        page.text(f"The details are beside this page: {', '.join(reports)}.")
    page.heading("What has grown?")
    if not before:
        page.text(f"Nothing can be said: no result of the {DAYS} days before is kept.")
        return page
    for what, title in (("key", "Keys"), ("tenant", "Tenants"), ("queue", "Queues")):
        some = [one for one in every if one.subject.what == what]
        if not some:
            page.text(f"{title}: none.")
            continue
        page.text(f"{title}: {count(len(some))}.")
        page.table(
            [what, "exchange", "messages", "grown since", "then", "the day before", "7 days before"],
            [_row(one, day) for one in some[:MOST_LISTED]],
        )
    page.text(
        f"The day is compared with each of the {DAYS} days before of which results are kept, {len(before)} here. A key,"
        f" tenant or queue is listed if it has {TIMES} times the messages of one of them, more by at least"
        f" {SHARE:.0%} of the exchange's messages, and by more than chance explains. The newest such day is the"
        " one since when it has grown. A dash stands for a day without results that can be compared."
    )
    return page


def _row(one: Grown, day: date) -> Sequence[object]:
    subject = one.subject
    exchange = f"{subject.exchange} (virtual host {subject.vhost})"
    earlier = (one.on(one.since), one.on(day - timedelta(days=1)), one.on(day - timedelta(days=7)))
    return (subject.name, exchange, one.messages, str(one.since), *earlier)
