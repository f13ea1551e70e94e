"""Removals of bindings: each must last before it counts."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.topology.removals import WeightsInForce
from ring.destination import Destination

A, B, C = (Destination("queue", name) for name in "abc")
SETTLE = 2.0


def test_additions_and_new_weights_count_at_once() -> None:
    in_force = WeightsInForce[Destination]().after({A: 1}, 0, 0, SETTLE)
    assert in_force.weights == {A: 1}
    in_force = in_force.after({A: 5, B: 2}, 0.1, 0.1, SETTLE)
    assert in_force.weights == {A: 5, B: 2}
    assert in_force.look_again_at(SETTLE) is None


def test_a_removal_must_last_and_is_looked_at_three_times_more() -> None:
    in_force = WeightsInForce({A: 1, B: 2}).after({A: 1}, 10, 10, SETTLE)
    looks = []
    while (at := in_force.look_again_at(3)) is not None:
        assert in_force.weights == {A: 1, B: 2}
        looks.append(at)
        in_force = in_force.after({A: 1}, at, at, 3)
    assert in_force.weights == {A: 1}
    assert looks == [11, 12, 13]


def test_one_reading_never_settles_however_late() -> None:
    """The time since the reading before says nothing: the removal may be a moment old."""
    in_force = WeightsInForce[Destination]().after({A: 1, B: 2}, 0, 0, SETTLE).after({A: 1}, 1000, 1000, SETTLE)
    assert in_force.weights == {A: 1, B: 2}


def test_nor_do_two_that_are_far_apart() -> None:
    """Nobody saw what was there between them; but a management API that is slow for good is believed in the end."""
    in_force = WeightsInForce({A: 1, B: 2}).after({A: 1}, 0, 0, SETTLE).after({A: 1}, 1000, 1000, SETTLE)
    assert in_force.weights == {A: 1, B: 2}
    assert in_force.after({A: 1}, 2000, 2000, SETTLE).weights == {A: 1}


def test_an_absence_begins_once_the_first_reading_that_shows_it_has_come_back() -> None:
    """A slow one, that a lie met at its end, and then one within the same lie (docs/development/chaos.md)."""
    in_force = WeightsInForce({A: 1, B: 2}).after({}, 0, SETTLE, SETTLE).after({}, SETTLE + 0.1, SETTLE + 0.2, SETTLE)
    assert in_force.weights == {A: 1, B: 2}
    assert set(in_force.missing.values()) == {SETTLE}


def test_slow_readings_settle_too() -> None:
    in_force, now = WeightsInForce({A: 1, B: 2}), 0.0
    for _ in range(3):
        assert in_force.weights == {A: 1, B: 2}
        in_force = in_force.after({A: 1}, now, now + 5 * SETTLE, SETTLE)
        now = in_force.look_again_at(SETTLE) or 0.0
    assert in_force.weights == {A: 1}


def test_readings_without_a_pause_settle_as_soon_as_others() -> None:
    in_force, now = WeightsInForce({A: 1, B: 2}), 0.0
    while in_force.weights == {A: 1, B: 2} and now < 10 * SETTLE:
        in_force = in_force.after({A: 1}, now, now + 0.1, SETTLE)
        now += 0.1
    assert now == pytest.approx(SETTLE + 0.2, abs=0.11)


def test_two_short_lies_with_readings_that_fail_between_them_remove_nothing() -> None:
    in_force = WeightsInForce({A: 1, B: 2})
    for begins in (0.0, 3.0):
        for now in (begins, begins + SETTLE / 2):
            in_force = in_force.after({}, now, now, SETTLE)
            assert in_force.weights == {A: 1, B: 2}
        in_force = in_force.after_failure()
        assert in_force.weights == {A: 1, B: 2}


def test_an_unbind_followed_by_a_bind_moves_nothing() -> None:
    in_force = WeightsInForce({A: 1, B: 2}).after({A: 1}, 0, 0, SETTLE).after({A: 1, B: 3}, 1, 1, SETTLE)
    assert in_force.weights == {A: 1, B: 3}
    assert in_force.missing == {}
    # And the clock starts anew with the next removal.
    in_force = in_force.after({A: 1}, 2.5, 2.5, SETTLE)
    assert in_force.weights == {A: 1, B: 3}
    assert in_force.missing == {B: 2.5}


def test_a_vouched_removal_counts_at_once_and_only_that() -> None:
    in_force = WeightsInForce({A: 1, B: 2, C: 3}).after({A: 1}, 0, 0, SETTLE, {B})
    assert in_force.weights == {A: 1, C: 3}
    # The rule holds for a destination that was missing before, too.
    assert in_force.after({A: 1}, 1, 1, SETTLE, [C]).weights == {A: 1}


def test_what_the_reading_shows_is_stronger_than_a_voucher() -> None:
    assert WeightsInForce({A: 1}).after({A: 2}, 0, 0, SETTLE, {A, B}).weights == {A: 2}


def test_several_removals_settle_each_in_its_time() -> None:
    in_force = WeightsInForce({A: 1, B: 2, C: 3}).after({A: 1, B: 2}, 0, 0, SETTLE).after({A: 1}, 1, 1, SETTLE)
    assert in_force.weights == {A: 1, B: 2, C: 3}
    assert in_force.missing == {B: 1, C: 0}
    assert in_force.look_again_at(SETTLE) == 1 + SETTLE / 3
    in_force = in_force.after({A: 1}, 2, 2, SETTLE)
    assert in_force.weights == {A: 1, B: 2}
    assert in_force.missing == {B: 1}
    assert in_force.after({A: 1}, 3, 3, SETTLE).weights == {A: 1}


def test_everything_gone_settles_too() -> None:
    in_force = WeightsInForce({A: 1}).after({}, 0, 0, SETTLE).after({}, 1, 1, SETTLE)
    assert in_force.weights == {A: 1}
    assert in_force.after({}, 2, 2, SETTLE).weights == {}


def test_without_a_settle_time_readings_are_believed_as_they_are() -> None:
    assert WeightsInForce({A: 1, B: 2}).after({A: 1}, 0, 0, 0).weights == {A: 1}


weights = st.dictionaries(st.sampled_from([A, B, C, Destination("exchange", "a")]), st.integers(1, 10_000))
readings = st.lists(
    st.tuples(weights, st.floats(0.001, 3), st.sets(st.sampled_from([A, B, C]))), min_size=1, max_size=8
)


@given(readings)
def test_the_last_reading_is_always_in_and_nothing_comes_from_nowhere(
    steps: list[tuple[dict[Destination, int], float, set[Destination]]],
) -> None:
    in_force, now = WeightsInForce[Destination](), 0.0
    for reading, later, confirmed_removals in steps:
        now += later
        before, in_force = in_force, in_force.after(reading, now, now, SETTLE, confirmed_removals)
        assert {d: in_force.weights[d] for d in reading} == reading
        for destination in in_force.weights.keys() - reading.keys():
            assert in_force.weights[destination] == before.weights[destination]
            assert destination not in confirmed_removals
        assert in_force.missing.keys() == in_force.weights.keys() - reading.keys()


@given(readings)
def test_no_unvouched_removal_counts_before_it_was_missing_for_the_settle_time(
    steps: list[tuple[dict[Destination, int], float, set[Destination]]],
) -> None:
    in_force, now = WeightsInForce[Destination](), 0.0
    looked: dict[Destination, list[float]] = {}
    for reading, later, confirmed_removals in steps:
        now += later
        before, in_force = in_force, in_force.after(reading, now, now, SETTLE, confirmed_removals)
        looked = {d: [*looked.get(d, []), now] for d in before.weights if d not in reading}
        for destination, at in looked.items():
            if destination in confirmed_removals:
                continue
            if destination not in in_force.weights:
                assert len(at) >= 3
                assert at[-1] - at[0] >= SETTLE
            else:
                # Kept no longer than it takes a management API that is never slower than half the settle time.
                assert at[-1] - at[0] < SETTLE or max(b - a for a, b in pairwise(at)) > SETTLE / 2


def test_a_removal_settles_while_a_declaration_hides_it() -> None:
    in_force = WeightsInForce({A: 1, B: 2}).after({A: 1, B: 2}, 0, 0, SETTLE, shown={A})
    assert in_force.look_again_at(SETTLE) is not None
    in_force = in_force.after({A: 1, B: 2}, SETTLE / 2, SETTLE / 2, SETTLE, shown={A})
    in_force = in_force.after({A: 1, B: 2}, SETTLE, SETTLE, SETTLE, shown={A})
    assert (in_force.weights, in_force.look_again_at(SETTLE)) == ({A: 1, B: 2}, None)
    # However long it takes until it is read again.
    assert in_force.after({A: 1}, 100, 100, SETTLE).weights == {A: 1}
    # Shown in between, it was there.
    seen = in_force.after({A: 1, B: 2}, 3, 3, SETTLE, shown={A, B})
    assert seen.after({A: 1}, 4, 4, SETTLE).weights == {A: 1, B: 2}
