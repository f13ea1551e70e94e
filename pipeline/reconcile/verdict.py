"""The verdict of `reconcile`: what its numbers come to."""

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import Row

from pipeline.data.gaps import Missing
from pipeline.data.landed import Aside
from pipeline.findings import MOST_LISTED, Finding
from pipeline.reconcile.messages import FLAWS
from pipeline.verdict import of_records

MEANINGS = {
    "lost": "confirmed, and not seen",
    "duplicated": "seen more than once, and more often than confirmed",
    "out_of_order": "seen after a later one of its key",
    "wrong_queue": "seen in another queue than the journal says",
    "unexpected": "seen, and not in the journal, or of a sidecar killed before its first file",
    "undetermined": "unclear: the journal has a gap, begins later or is a sample, or another message has that id",
    "unconfirmed": "not seen, and its publisher got no confirm",
}
"""The meaning of each of FLAWS, for people."""

_HIDES = {
    "repeated": "repeated message ids",
    "anywhere": "messages that may be in any queue",
    "records_without_message_id": "records without a message id",
    "records_missing": "missing records",
    "records_before_oldest": "records before the oldest kept",
    "lines_set_aside": "unreadable lines",
    "files_set_aside": "unreadable files",
}
"""By field of verdict.json: the things that may hide a lost message if the field is not 0."""


def verdict(told: Mapping[str, Any]) -> str:
    """Return the verdict in words, from the numbers of verdict.json.

    If no message was lost or misplaced, it names the things that may hide a loss.
    """
    if told["lost"] or told["wrong_queue"]:
        return "lost or misplaced"
    hides = _hides(told)
    said = "nothing lost or misplaced"
    if not told["confirmed"]:
        said = "nothing misplaced; no message was confirmed, so none can be lost"
    if not hides:
        return said
    listed = " and ".join(filter(None, (", ".join(hides[:-1]), hides[-1])))
    return f"{said}, but for what {listed} may hide"


def judged(told: Mapping[str, Any], where: Mapping[str, str], queues: Sequence[Row] = ()) -> list[Finding]:
    """Return the findings that the numbers of verdict.json come to.

    `where` has the virtual host and the exchange, and `queues` the rows of the summary, whose queues a finding of a
    flaw names, with the number of messages in each.
    """
    missing = Missing(told["records_missing"], told["records_before_oldest"])
    found = of_records(missing, Aside(told["lines_set_aside"], told["files_set_aside"]))
    for name in FLAWS:
        if count := told[name]:
            worst = sorted((row for row in queues if row[name]), key=lambda row: -row[name])[:MOST_LISTED]
            by_queue = {row.queue or "none": row[name] for row in worst}
            said = f"{count:,} {'message' if count == 1 else 'messages'}: {MEANINGS[name]}."
            found.append(Finding(name, said, where, by_queue, count))
    for name, words in _HIDES.items():
        if told[name] and name not in ("records_missing", "lines_set_aside", "files_set_aside"):
            found.append(Finding("may_hide_loss", f"{told[name]:,} {words} may hide a loss.", where, count=told[name]))
    if told["sample"] < 1:
        said = "Keys outside the sample may hide a loss."
        found.append(Finding("may_hide_loss", said, where, {"sample": told["sample"]}))
    if not told["confirmed"]:
        found.append(Finding("may_hide_loss", "No message was confirmed, so none can be lost.", where))
    return found


def _hides(told: Mapping[str, Any]) -> list[str]:
    return [words for name, words in _HIDES.items() if told[name]] + ["keys outside the sample"] * (told["sample"] < 1)
