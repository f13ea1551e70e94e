"""The text of a verdict, by its numbers alone."""

from collections.abc import Mapping
from typing import Any

from pipeline.page.report import Grade
from pipeline.page.report import grade as grade_of
from pipeline.reconcile.messages import FLAWS
from pipeline.reconcile.verdict import judged, verdict


def grade(told: Mapping[str, Any]) -> Grade:
    return grade_of(judged(told, {"vhost": "/"}))


def test_a_verdict_says_what_may_hide_a_loss() -> None:
    """No number of a verdict but these may make it weaker, and each of them makes the page one to look at."""
    names = (
        *FLAWS,
        *("messages", "repeated", "anywhere", "seen", "copies", "copies_before", "copies_elsewhere", "lost_elsewhere"),
        *("records_without_message_id", "records_without_key", "seen_without_message_id"),
        *("records_missing", "records_before_oldest", "lines_set_aside", "files_set_aside"),
    )
    clean = dict.fromkeys(names, 0) | {"confirmed": 9, "sample": 1.0}
    good = "nothing lost or misplaced"
    assert (verdict(clean), grade(clean)) == (good, Grade.GOOD)
    of_no_loss = {"messages": 9, "seen": 9, "copies": 9, "copies_elsewhere": 9, "records_without_key": 9}
    assert (verdict(clean | of_no_loss), grade(clean | of_no_loss)) == (good, Grade.GOOD)
    for told, hides in (
        ({"repeated": 1}, "repeated message ids"),
        ({"anywhere": 1}, "messages that may be in any queue"),
        ({"records_without_message_id": 1}, "records without a message id"),
        ({"records_missing": 1}, "missing records"),
        ({"records_before_oldest": 1}, "records before the oldest kept"),
        ({"lines_set_aside": 1}, "unreadable lines"),
        ({"files_set_aside": 1}, "unreadable files"),
        ({"sample": 0.5}, "keys outside the sample"),
        ({"repeated": 1, "records_missing": 1}, "repeated message ids and missing records"),
        (
            {"repeated": 1, "records_missing": 1, "sample": 0.5},
            "repeated message ids, missing records and keys outside the sample",
        ),
    ):
        assert (verdict(clean | told), grade(clean | told)) == (f"{good}, but for what {hides} may hide", Grade.LOOK)
    none = clean | {"confirmed": 0}
    assert (verdict(none), grade(none)) == (
        "nothing misplaced; no message was confirmed, so none can be lost",
        Grade.LOOK,
    )
    for flaw in ("lost", "wrong_queue"):
        bad = clean | {flaw: 1, "repeated": 1}
        assert (verdict(bad), grade(bad)) == ("lost or misplaced", Grade.BAD)
    for name in ("duplicated", "out_of_order", "unexpected", "undetermined", "unconfirmed"):
        assert (verdict(clean | {name: 1}), grade(clean | {name: 1})) == (good, Grade.LOOK)
