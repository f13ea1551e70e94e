"""The judgement of the demo on its pool of workers."""

import math
from dataclasses import replace

import pytest

from testbed.demo.series_oracle import Figures, Order, Tried, figures, judge_series

FAILING: Order = ("bad", 1)
SENT = {(key, number): 0.0 for key in ("bad", "good") for number in (1, 2)}


def tries() -> list[Tried]:
    """The first order of `bad` fails once and is done at 5.5, and `good` goes on meanwhile."""
    return [
        Tried(0.0, 1.0, "bad", 1, succeeded=False),
        Tried(0.5, 1.5, "good", 1, succeeded=True),
        Tried(2.0, 3.0, "good", 2, succeeded=True),
        Tried(5.0, 5.5, "bad", 1, succeeded=True),
        Tried(6.0, 7.0, "bad", 2, succeeded=True),
    ]


def changed(index: int, **fields: float) -> list[Tried]:
    return [replace(each, **fields) if number == index else each for number, each in enumerate(tries())]  # type: ignore[arg-type]


def test_a_key_that_waits_for_its_failing_order_while_others_go_on_has_no_faults() -> None:
    assert judge_series(SENT, tries(), FAILING, 1) == []
    assert judge_series(SENT, reversed(tries()), FAILING, 1) == []


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        (tries()[:4], "order 2 of bad was confirmed, and not done"),
        (changed(4, began=3.5, ended=4.0), "order 1 of bad was done behind a later one"),
        (changed(4, began=5.2), "order 2 of bad began beside another one of it"),
        (tries()[1:], "order 1 of bad was tried 1 times, and not 2"),
        (changed(2, began=5.6, ended=5.9), "good stood still while order 1 of bad was to be tried again"),
        (changed(4, began=3.5, ended=4.0), "bad went on while order 1 of bad was to be tried again"),
    ],
)
def test_each_fault_is_found(wrong: list[Tried], fault: str) -> None:
    assert fault in judge_series(SENT, wrong, FAILING, 1)


def test_figures_are_of_the_keys_alone_and_waits_are_from_the_publish() -> None:
    assert figures(SENT, tries(), ["bad"]) == Figures(3, 6.25, 7.0, 0, 0)
    assert figures(SENT, changed(4, began=5.2), ["bad"]).at_once == 1
    assert figures(SENT, tries(), ["good"]) == Figures(2, 2.25, 3.0, 0, 0)


def test_a_run_in_which_no_order_is_done_has_figures_for_the_judge_to_follow() -> None:
    assert figures(SENT, tries()[:1], ["bad"]) == Figures(1, math.inf, math.inf, 0, 0)
