"""The report of `reconcile`."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from pyspark.sql import Row

from pipeline import plots
from pipeline.about import About
from pipeline.formats import percent
from pipeline.gaps import Missing
from pipeline.names import natural
from pipeline.reconcile.messages import FLAWS
from pipeline.report import Grade, Report

_COLOURS = ("#c62f2f", "#e2a23b", "#7a5bd0", "#b8336a", "#2a78d6", "#b0b7bf")
_MEANINGS = {
    "lost": "confirmed, and not seen",
    "duplicated": "seen more than once, and more often than confirmed",
    "out_of_order": "seen after a later one of its key",
    "wrong_queue": "seen in another queue than the journal says",
    "unexpected": "seen, and not in the journal, or of a sidecar killed before its first file",
    "undetermined": "the journal has a gap, or begins later, or is a sample, and cannot tell",
    "unconfirmed": "neither confirmed nor seen: nothing was promised",
}


def report(
    told: Mapping[str, Any], missing: Missing, queues: Sequence[Row], worst: Sequence[Row], about: About
) -> Report:
    """The HTML file's content; `told` is the verdict, `worst` some of the messages with a flaw, `about` its head."""
    queues = sorted(queues, key=lambda row: natural(row.queue or ""))
    page = Report(
        "Reconciliation",
        _grade(told),
        f"{told['lost']:,} of {told['confirmed']:,} confirmed messages were not seen; {told['wrong_queue']:,} were in"
        f" the wrong queue, {told['duplicated']:,} seen twice or more, {told['out_of_order']:,} out of order.",
        about,
    )
    page.text(_what_is_not_known(told, missing))
    page.table(["", "messages", ""], [(name.replace("_", " "), told[name], _MEANINGS[name]) for name in FLAWS])
    page.heading("Queues")
    if any(row[name] for row in queues for name in FLAWS[:-1]):
        page.figure(_flaws(queues), "Messages with a flaw, by queue")
    names = ("messages", "confirmed", "seen", "copies", "copies_elsewhere", *FLAWS)
    page.table(
        ["queue", *(name.replace("_", " ") for name in names)],
        [(row.queue or "none", *(row[name] for name in names)) for row in queues],
    )
    page.heading("Messages with a flaw")
    if worst:
        page.table(
            ["message id", "flaws", "belongs into", "seen in", "copies"],
            [
                (row.message_id, _flaws_of(row), ", ".join(row.queues), ", ".join(row.seen_queues), row.copies)
                for row in worst
            ],
        )
        page.text(f"{len(worst):,} of them, the lost first; the folder messages has all.")
    else:
        page.text("None.")
    return page


def _grade(told: Mapping[str, Any]) -> Grade:
    if told["lost"] or told["wrong_queue"]:
        return Grade.BAD
    return Grade.LOOK if told["records_missing"] or any(told[name] for name in (*FLAWS, "repeated")) else Grade.GOOD


def _what_is_not_known(told: Mapping[str, Any], missing: Missing) -> str:
    limits = []
    if told["repeated"]:
        limits.append(
            f"{told['repeated']:,} message ids are not unique: more than one message with that id was confirmed. What"
            " was lost of them is the least that it may be, since a copy that was delivered again hides one."
        )
    if told["copies_elsewhere"]:
        limits.append(
            f"{told['copies_elsewhere']:,} copies were seen in queues that are none of the rings', and do not count;"
            f" of the lost messages {told['lost_elsewhere']:,} may be among them, as after dead-lettering."
        )
    if missing.records:
        limits.append(f"{missing.records:,} records are missing from the journal.")
    if missing.before:
        limits.append(str(missing))
    if told["sample"] < 1:
        limits.append(f"The journal is a sample of {percent(told['sample'])} of the keys.")
    for what, where in (
        ("records", "records_without_message_id"),
        ("rows of what was seen", "seen_without_message_id"),
    ):
        if told[where]:
            limits.append(f"{told[where]:,} {what} have no message id, and are left out.")
    if told["records_without_key"]:
        limits.append(f"{told['records_without_key']:,} records have no key: their order is not judged.")
    return " ".join(limits) or "No record is missing in between, and every message has an id."


def _flaws_of(row: Row) -> str:
    return ", ".join(name.replace("_", " ") for name in FLAWS if row[name])


def _flaws(queues: Sequence[Row]) -> Figure:
    names = FLAWS[:-1]
    rows = sorted(queues, key=lambda row: -sum(row[name] for name in names))[: plots.MOST_BARS]
    rows.sort(key=lambda row: natural(row.queue or ""))
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
