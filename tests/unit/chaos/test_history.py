"""The history of bindings, and which rings may have been in force when, as the chaos run's judge reckons it."""

import pytest

from tests.chaos.history import Change, Deletion, History, Limits, Rings, Span
from tests.integration.rings import owner

BEFORE, AFTER = {"q1": 1, "q2": 1}, {"q2": 1, "q3": 2}
KEYS = [f"key {number}" for number in range(50)]


@pytest.fixture
def history() -> History:
    return History(BEFORE, [Change(100.0, 101.0, AFTER)])


def test_what_is_bound_now(history: History) -> None:
    assert history.current == AFTER
    assert History(BEFORE).current == BEFORE


@pytest.mark.parametrize(
    ("sent", "latest", "weights"),
    [(98, 99, [BEFORE]), (99, 100, [BEFORE, AFTER]), (102, 102, [BEFORE, AFTER]), (103.1, 104, [AFTER])],
)
def test_owners_on_every_ring_of_the_time(
    history: History, sent: float, latest: float, weights: list[dict[str, int]]
) -> None:
    rings = Rings(history, Limits(grace=2.0, stale_after=10.0, waits=2.0))
    for key in KEYS:
        assert rings.owners(key, sent, latest) == {owner(bound, key) for bound in weights}
    assert rings.queues(sent, latest) == {queue for bound in weights for queue in bound}


def test_what_has_left_may_be_kept_beside_what_is_new(history: History) -> None:
    """A removal must settle, and additions count at once; once that time is over, no more."""
    rings = Rings(history, Limits(grace=2.0, stale_after=10.0, waits=2.0))
    both = {**BEFORE, **AFTER}
    assert {owner(both, key) for key in KEYS} == {"q1", "q2", "q3"}
    for key in KEYS:
        assert rings.kept(key, 102, 102) == {owner(both, key)}
        assert rings.kept(key, 98, 99) == set()
        assert rings.kept(key, 103.1, 104) == set()


def test_a_queue_that_was_deleted_may_have_left_before_what_is_kept(history: History) -> None:
    """A message that comes back tells of it at once; nothing tells of what was only unbound."""
    last = {"q3": 2}
    history.changes.append(Change(101.5, 101.6, last))
    rings = Rings(history, Limits(grace=2.0, stale_after=10.0, waits=2.0))
    without = {"q1": 1, **last}
    assert any(owner(without, key) != owner({**BEFORE, **AFTER}, key) for key in KEYS)
    for key in KEYS:
        kept = {owner({**BEFORE, **AFTER}, key), owner({"q2": 1, **last}, key)}
        assert rings.kept(key, 102, 102) == kept
    history.deletions.append(Deletion("q2", 101.5, 101.6))
    for key in KEYS:
        told = {owner({**BEFORE, **AFTER}, key), owner(without, key), owner({"q2": 1, **last}, key), owner(last, key)}
        assert rings.kept(key, 102, 102) == told


@pytest.mark.parametrize(("at", "left_out"), [(98.9, False), (99.0, True), (115.9, True), (116.1, False)])
def test_a_queue_whose_lane_was_deleted_may_be_left_out_though_it_is_bound_again(at: float, left_out: bool) -> None:
    """A publish to the lane may have been refused until it was made anew: 10 s and the grace time count from then."""
    without = {queue: weight for queue, weight in BEFORE.items() if queue != "q2"}
    again = History(BEFORE, [Change(98.0, 98.1, without), Change(103.5, 104.0, BEFORE)])
    again.lanes_deleted.append(Deletion("q2", 99.0, 99.5))
    rings = Rings(again, Limits(grace=2.0, stale_after=10.0, waits=2.0))
    for key in KEYS:
        if owner(BEFORE, key) == "q2":
            assert ("q1" in rings.kept(key, at, at)) == left_out


def test_spans_that_follow_each_other_closely_put_the_end_off_each_time(history: History) -> None:
    history.impaired += [Span(104.0, 105.0), Span(102.0, 103.0)]
    rings = Rings(history, Limits(grace=2.0, stale_after=10.0, waits=2.0))
    assert "q1" in rings.queues(106.9, 106.9)
    assert "q1" not in rings.queues(107.1, 107.1)


def test_seconds_that_two_spans_share_count_once() -> None:
    assert History(BEFORE, impaired=[Span(5, 8), Span(1, 3), Span(2, 4), Span(6, 7)]).impaired_for() == 6


def test_deletions_that_sidecars_could_read_of(history: History) -> None:
    """A deletion counts if its queue was bound, and not near a time in which nobody could read it."""
    history.changes.append(Change(200.0, 200.5, BEFORE))
    history.deletions += [Deletion("q1", 100.0, 101.0), Deletion("q1", 150.0, 151.0), Deletion("q3", 200.0, 200.5)]
    assert history.seen_deletions(1.0) == 2
    history.impaired += [Span(97.0, 98.9), Span(102.1, 120.0)]
    assert history.seen_deletions(1.0) == 2
    history.impaired.append(Span(90.0, 99.1))
    assert history.seen_deletions(1.0) == 1
    history.impaired.append(Span(201.4, 203.0))
    assert history.seen_deletions(1.0) == 0
