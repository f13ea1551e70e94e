"""The goals of a sidecar whose broker is frozen, met and missed."""

from collections import Counter

import pytest

from bench.freeze import LIMIT, Frozen, goals


def frozen(statuses: dict[int, int], slowest: float, recovery: float | None, peak: int) -> Frozen:
    return Frozen(60, Counter(statuses), slowest, recovery, 50 << 20, peak)


def test_a_freeze_that_went_well_meets_every_goal() -> None:
    good = frozen({200: 10, 429: 1, 503: 1, 504: 1}, LIMIT, 0.0, (256 << 20) - 1)
    assert all(goal.met for goal in goals(good))


@pytest.mark.parametrize("status", [0, 400, 500, 502])
def test_any_other_answer_misses_its_goal_and_is_named(status: int) -> None:
    (missed,) = [goal for goal in goals(frozen({200: 1, status: 1}, 1, 0, 1)) if not goal.met]
    assert str(status) in missed.reached


def test_memory_time_and_recovery_are_goals() -> None:
    assert [goal.met for goal in goals(frozen({200: 1}, LIMIT + 0.1, None, 256 << 20))] == [False, True, False, False]
