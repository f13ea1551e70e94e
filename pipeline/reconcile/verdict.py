"""The verdict of `reconcile`: what its numbers come to."""

from collections.abc import Mapping
from typing import Any

from pipeline.page.report import Grade
from pipeline.reconcile.messages import FLAWS

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
    if is_against(told):
        return "lost or misplaced"
    hides = _hides(told)
    said = "nothing lost or misplaced"
    if not told["confirmed"]:
        said = "nothing misplaced; no message was confirmed, so none can be lost"
    if not hides:
        return said
    listed = " and ".join(filter(None, (", ".join(hides[:-1]), hides[-1])))
    return f"{said}, but for what {listed} may hide"


def grade(told: Mapping[str, Any]) -> Grade:
    """Return how the numbers of verdict.json are to be taken."""
    if is_against(told):
        return Grade.BAD
    is_doubtful = not told["confirmed"] or bool(_hides(told)) or any(told[name] for name in FLAWS)
    return Grade.LOOK if is_doubtful else Grade.GOOD


def is_against(told: Mapping[str, Any]) -> bool:
    """Return whether a message was lost or in the wrong queue."""
    return bool(told["lost"] or told["wrong_queue"])


def _hides(told: Mapping[str, Any]) -> list[str]:
    return [words for name, words in _HIDES.items() if told[name]] + ["keys outside the sample"] * (told["sample"] < 1)
