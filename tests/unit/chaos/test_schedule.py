"""The faults of a chaos run: drawn from its seed, of every kind, in lanes."""

from collections import Counter

from tests.chaos.schedule import ALONE, CHURN, LANES, Kind, schedule


def test_a_seed_gives_the_same_schedule_and_another_another() -> None:
    assert schedule(1, 100) == schedule(1, 100)
    assert schedule(1, 100) != schedule(2, 100)
    assert schedule(1, 100)[:40] == schedule(1, 40)


def test_every_round_has_every_kind() -> None:
    rounds = len(Kind) + len(CHURN)
    counts = Counter(fault.kind for fault in schedule(7, 2 * rounds))
    assert counts == {kind: 4 if kind in CHURN else 2 for kind in Kind}


def test_every_kind_has_one_lane_or_happens_alone() -> None:
    assert sorted(kind for kinds in (*LANES, ALONE) for kind in kinds) == sorted(Kind)
