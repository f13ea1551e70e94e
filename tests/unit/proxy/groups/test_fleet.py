"""A large fleet, in modelled time: its beats grow with the number of sidecars, and a killed one is found as soon."""

import pytest

from proxy.groups.peers import WATCHED
from proxy.groups.timing import HEARD_A_SECOND, LATE
from tests.unit.proxy.groups.fleet import Fleet, Phase, life

SIDECARS, SHARDS, REST = 40, 80, 10.0


@pytest.fixture(scope="module")
def lived() -> tuple[Fleet, dict[str, Phase]]:
    phases: dict[str, Phase] = {}
    fleet = life(SIDECARS, SHARDS, REST, phases.__setitem__)
    return fleet, phases


def test_nothing_goes_wrong(lived: tuple[Fleet, dict[str, Phase]]) -> None:
    fleet, _ = lived
    assert fleet.faults == []


def test_at_rest_each_hears_no_more_than_so_many_beats_a_second(lived: tuple[Fleet, dict[str, Phase]]) -> None:
    """With a beat a second of each sidecar, the broker would deliver four times as many."""
    counts = lived[1]["at rest"].counts
    assert counts.delivered / REST <= 1.1 * SIDECARS * HEARD_A_SECOND
    assert 0 < counts.questions / REST <= SIDECARS * WATCHED / LATE
    assert counts.opened == 0


def test_one_that_joins_makes_each_tell_once(lived: tuple[Fleet, dict[str, Phase]]) -> None:
    """Without a reading or a link more than it needs."""
    joins = lived[1]["one joins"]
    assert joins.seconds < 2.5
    assert joins.counts.beats < 2 * SIDECARS
    assert joins.counts.opened <= 2 * (1 + SHARDS // SIDECARS)


@pytest.mark.parametrize("title", ["one is killed", "ten are killed"])
def test_what_is_killed_is_found_as_soon_as_in_a_small_fleet(lived: tuple[Fleet, dict[str, Phase]], title: str) -> None:
    killed = lived[1][title]
    assert 0.5 < killed.still < 3.0
    assert killed.seconds < 3.0


@pytest.mark.parametrize("title", ["all start", "ten join"])
def test_many_that_join_at_once_are_balanced_soon(lived: tuple[Fleet, dict[str, Phase]], title: str) -> None:
    many = lived[1][title]
    assert many.seconds < 2.5
    assert many.counts.beats < 8 * (SIDECARS + 10)
