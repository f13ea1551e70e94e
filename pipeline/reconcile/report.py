"""The report of `reconcile`."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from pyspark.sql import Row

from pipeline.data.gaps import Missing
from pipeline.findings import Finding
from pipeline.page import plots
from pipeline.page.about import About
from pipeline.page.formats import busiest, natural, percent
from pipeline.page.report import Report, grade
from pipeline.reconcile.messages import FLAWS
from pipeline.reconcile.verdict import MEANINGS

_COLOURS = ("#c62f2f", "#e2a23b", "#7a5bd0", "#b8336a", "#2a78d6", "#b0b7bf")


def report(
    told: Mapping[str, Any],
    findings: Sequence[Finding],
    missing: Missing,
    queues: Sequence[Row],
    worst: Sequence[Row],
    about: About,
) -> Report:
    """Return the page.

    `told` has the fields of verdict.json, `findings` what they come to, `queues` the rows of the summary, `worst` some
    of the messages with a flaw, and `about` is the head of the page.
    """
    queues = sorted(queues, key=lambda row: natural(row.queue or ""))
    page = Report(
        "Reconcile: did every message arrive?",
        grade(findings),
        f"{told['verdict'].capitalize()}: {told['lost']:,} of {told['confirmed']:,} confirmed messages were not seen;"
        f" {told['wrong_queue']:,} were in the wrong queue, {told['duplicated']:,} seen too often,"
        f" {told['out_of_order']:,} out of order.",
        about,
    )
    page.text(_what_is_not_known(told, missing))
    page.table(
        ["finding", "messages", "meaning"], [(name.replace("_", " "), told[name], MEANINGS[name]) for name in FLAWS]
    )
    page.heading("Which queues are affected?")
    if any(row[name] for row in queues for name in FLAWS[:-1]):
        page.figure(_flaws(queues), "Messages with a finding, by queue")
    names = ("messages", "repeated", "confirmed", "seen", "copies", "copies_before", "copies_elsewhere", *FLAWS)
    page.table(
        ["queue", *(name.replace("_", " ") for name in names)],
        [(row.queue or "none", *(row[name] for name in names)) for row in queues],
    )
    page.heading("Which messages are affected?")
    if worst:
        page.table(
            ["message id", "findings", "belongs in", "seen in", "copies"],
            [
                (row.message_id, _flaws_of(row), ", ".join(row.queues), ", ".join(row.seen_queues), row.copies)
                for row in worst
            ],
        )
        page.text(f"These are {len(worst):,} of them, the lost first. The folder messages has all.")
    else:
        page.text("None.")
    return page


def _what_is_not_known(told: Mapping[str, Any], missing: Missing) -> str:
    limits = {
        "repeated": "{:,} message ids are not unique: one message with that id was confirmed, and another has arrived,"
        " or may have. The number of lost ones is the least that it may be, since a copy of another, or one that was"
        " delivered again, hides a lost one.",
        "anywhere": "{:,} messages went to an exchange, or were left to RabbitMQ to route, and may be in any queue, or"
        " in several. One copy is enough for each confirm, so that a copy that is lost beside it is not found.",
        "copies_before": "Copies that were seen more than an hour before the first judged record, and do not count:"
        " {:,}. Either older messages had the same ids, or a clock or time zone is wrong.",
        "copies_elsewhere": "{:,} copies were seen in queues that are none of the rings', and do not count; of the lost"
        f" messages {told['lost_elsewhere']:,} may be among them, as after dead-lettering.",
        "records_missing": "{:,} records are missing from the journal.",
        "lines_set_aside": "{:,} lines of the journal could not be read.",
        "files_set_aside": "{:,} files of the journal could not be read.",
        "records_before_oldest": f"{missing} Nor can it tell whether one of those had the id of another message.",
        "records_without_message_id": "{:,} records have no message id, and are left out.",
        "seen_without_message_id": "{:,} rows of what was seen have no message id, and are left out.",
        "records_without_key": "{:,} records have no key: their order is not judged.",
    }
    said = [sentence.format(told[name]) for name, sentence in limits.items() if told[name]]
    if told["sample"] < 1:
        said.append(f"The journal is a sample of {percent(told['sample'])} of the keys.")
    return " ".join(said) or "No record is missing in between, and every message has an id."


def _flaws_of(row: Row) -> str:
    return ", ".join(name.replace("_", " ") for name in FLAWS if row[name])


def _flaws(queues: Sequence[Row]) -> Figure:
    names = FLAWS[:-1]
    rows = busiest(queues, lambda row: sum(row[name] for name in names), lambda row: row.queue or "", plots.MOST_BARS)
    figure, axes = plots.new(1.2 + 0.3 * len(rows))
    left = [0] * len(rows)
    for name, colour in zip(names, _COLOURS, strict=True):
        counts = [row[name] for row in rows]
        label = name.replace("_", " ")
        axes.barh(range(len(rows)), counts, 0.6, left, color=colour, label=label)
        left = [a + b for a, b in zip(left, counts, strict=True)]
    plots.names(axes, [row.queue or "none" for row in rows])
    plots.counts(axes.xaxis)
    axes.set_xlabel("messages")
    plots.legend(axes)
    return figure
