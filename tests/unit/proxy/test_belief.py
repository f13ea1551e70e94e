from hypothesis import given
from hypothesis import strategies as st

from proxy.belief import Belief
from ring.destination import Destination

A, B, C = (Destination("queue", name) for name in "abc")
SETTLE = 2.0


def test_additions_and_new_weights_count_at_once() -> None:
    belief = Belief().after({A: 1}, 0, SETTLE)
    assert belief.weights == {A: 1}
    belief = belief.after({A: 5, B: 2}, 0.1, SETTLE)
    assert belief.weights == {A: 5, B: 2}
    assert belief.settles_at(SETTLE) is None


def test_a_removal_must_last_and_show_in_a_second_reading() -> None:
    belief = Belief({A: 1, B: 2}).after({A: 1}, 10, SETTLE)
    assert belief.weights == {A: 1, B: 2}
    assert belief.settles_at(SETTLE) == 12
    belief = belief.after({A: 1}, 11.9, SETTLE)
    assert belief.weights == {A: 1, B: 2}
    assert belief.settles_at(SETTLE) == 12
    belief = belief.after({A: 1}, 12, SETTLE)
    assert belief.weights == {A: 1}
    assert belief.settles_at(SETTLE) is None


def test_one_reading_never_settles_however_late() -> None:
    """The time since the reading before says nothing: the removal may be a moment old."""
    belief = Belief().after({A: 1, B: 2}, 0, SETTLE).after({A: 1}, 1000, SETTLE)
    assert belief.weights == {A: 1, B: 2}


def test_an_unbind_followed_by_a_bind_moves_nothing() -> None:
    belief = Belief({A: 1, B: 2}).after({A: 1}, 0, SETTLE).after({A: 1, B: 3}, 1, SETTLE)
    assert belief.weights == {A: 1, B: 3}
    assert belief.missing_since == {}
    # And the clock starts anew with the next removal.
    belief = belief.after({A: 1}, 2.5, SETTLE)
    assert belief.weights == {A: 1, B: 3}
    assert belief.settles_at(SETTLE) == 4.5


def test_a_vouched_removal_counts_at_once_and_only_that() -> None:
    belief = Belief({A: 1, B: 2, C: 3}).after({A: 1}, 0, SETTLE, {B})
    assert belief.weights == {A: 1, C: 3}
    # Also where it was missing before.
    assert belief.after({A: 1}, 1, SETTLE, [C]).weights == {A: 1}


def test_what_the_reading_shows_is_stronger_than_a_voucher() -> None:
    assert Belief({A: 1}).after({A: 2}, 0, SETTLE, {A, B}).weights == {A: 2}


def test_several_removals_settle_each_in_its_time() -> None:
    belief = Belief({A: 1, B: 2, C: 3}).after({A: 1, B: 2}, 0, SETTLE).after({A: 1}, 1.5, SETTLE)
    assert belief.weights == {A: 1, B: 2, C: 3}
    assert belief.settles_at(SETTLE) == 2
    belief = belief.after({A: 1}, 2, SETTLE)
    assert belief.weights == {A: 1, B: 2}
    assert belief.settles_at(SETTLE) == 3.5
    assert belief.after({A: 1}, 4, SETTLE).weights == {A: 1}


def test_everything_gone_settles_too() -> None:
    belief = Belief({A: 1}).after({}, 0, SETTLE)
    assert belief.weights == {A: 1}
    assert belief.after({}, 2, SETTLE).weights == {}


def test_without_a_settle_time_readings_are_believed_as_they_are() -> None:
    assert Belief({A: 1, B: 2}).after({A: 1}, 0, 0).weights == {A: 1}


weights = st.dictionaries(st.sampled_from([A, B, C, Destination("exchange", "a")]), st.integers(1, 10_000))
readings = st.lists(
    st.tuples(weights, st.floats(0.001, 3), st.sets(st.sampled_from([A, B, C]))), min_size=1, max_size=8
)


@given(readings)
def test_the_last_reading_is_always_in_and_nothing_comes_from_nowhere(
    steps: list[tuple[dict[Destination, int], float, set[Destination]]],
) -> None:
    belief, now = Belief(), 0.0
    for reading, later, vouched in steps:
        now += later
        before, belief = belief, belief.after(reading, now, SETTLE, vouched)
        assert {d: belief.weights[d] for d in reading} == reading
        for destination in belief.weights.keys() - reading.keys():
            assert belief.weights[destination] == before.weights[destination]
            assert destination not in vouched
        assert belief.missing_since.keys() == belief.weights.keys() - reading.keys()


@given(readings)
def test_no_unvouched_removal_counts_before_it_was_missing_for_the_settle_time(
    steps: list[tuple[dict[Destination, int], float, set[Destination]]],
) -> None:
    belief, now = Belief(), 0.0
    absent_since: dict[Destination, float] = {}
    for reading, later, vouched in steps:
        now += later
        before, belief = belief, belief.after(reading, now, SETTLE, vouched)
        absent_since = {d: absent_since.get(d, now) for d in before.weights if d not in reading}
        for destination, since in absent_since.items():
            if destination not in vouched:
                assert (destination in belief.weights) is (since == now or now - since < SETTLE)
