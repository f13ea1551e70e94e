"""The faults of a chaos run: drawn from its seed, of every kind, on tracks."""

from collections import Counter

import pytest

from tests.chaos.schedule import ALONE, CHURN, DECK, DECK_OF_GROUPS, MEMBERS, TRACKS, TRACKS_OF_GROUPS, Kind, schedule


def test_a_seed_gives_the_same_schedule_and_another_another() -> None:
    assert schedule(1, 100) == schedule(1, 100)
    assert schedule(1, 100) != schedule(2, 100)
    assert schedule(1, 100)[:40] == schedule(1, 40)


@pytest.mark.parametrize(("deck", "twice"), [(DECK, CHURN), (DECK_OF_GROUPS, MEMBERS)])
def test_every_round_has_every_kind(deck: tuple[Kind, ...], twice: tuple[Kind, ...]) -> None:
    counts = Counter(fault.kind for fault in schedule(7, 2 * len(deck), deck))
    assert counts == {kind: 4 if kind in twice else 2 for kind in deck}


def test_every_kind_is_of_publishers_or_of_members() -> None:
    assert {*DECK, *MEMBERS} == {*Kind}
    assert not {*DECK} & {*MEMBERS}


def test_every_kind_has_one_track_or_happens_alone() -> None:
    assert sorted(kind for kinds in (*TRACKS, ALONE) for kind in kinds) == sorted({*DECK})
    assert sorted(kind for kinds in TRACKS_OF_GROUPS for kind in kinds) == sorted({*DECK_OF_GROUPS})
