"""The declarations of clients, laid over readings that do not show them yet."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.topology.bindings import CONSISTENT_HASH, Binding
from proxy.topology.declarations import (
    BindingAdded,
    BindingRemoved,
    Declaration,
    ExchangeDeclared,
    ExchangeDeleted,
    QueueDeleted,
)
from proxy.topology.overlay import OVERLAY_TIME, Overlay
from ring.destination import Destination

A, B = Destination("queue", "a"), Destination("queue", "b")
E = Destination("exchange", "e")
A1, A5, B1, E1 = Binding(A, "1"), Binding(A, "5"), Binding(B, "1"), Binding(E, "1")
LATE = 100.0 + OVERLAY_TIME + 0.01


def bound(binding: Binding) -> BindingAdded:
    return BindingAdded("x", binding.destination, binding.key)


def unbound(binding: Binding) -> BindingRemoved:
    return BindingRemoved("x", binding.destination, binding.key)


DECLARED, DELETED = ExchangeDeclared("x", CONSISTENT_HASH), ExchangeDeleted("x")


def told(*declarations: Declaration) -> Overlay:
    """All that was declared at 100."""
    overlay = Overlay("x")
    for declaration in declarations:
        overlay.add(declaration, 100.0)
    return overlay


# One reading that does not show it yet.


@pytest.mark.parametrize(
    ("declarations", "shown", "true"),
    [
        ([], [A1, A5, B1], [A1, A5, B1]),
        ([bound(A1)], [], [A1]),
        ([bound(A1)], [A1], [A1]),
        ([bound(A5)], [A1], [A1, A5]),
        ([unbound(A5)], [A1, A5], [A1]),
        ([unbound(A5), bound(A1)], [A5], [A1]),
        ([unbound(A1), bound(A1)], [A1, B1], [A1, B1]),
        ([bound(A1), unbound(A1)], [B1], [B1]),
        ([bound(A1), unbound(A1)], [A1], []),
        ([QueueDeleted("a")], [A1, A5, B1], [B1]),
        ([QueueDeleted("e"), ExchangeDeleted("a")], [A1, E1], [A1, E1]),
        ([ExchangeDeleted("e")], [A1, E1], [A1]),
        ([bound(A1), QueueDeleted("a")], [A5], []),
        ([unbound(A1), QueueDeleted("a")], [A1], []),
        ([QueueDeleted("a"), bound(A5)], [A1, B1], [B1, A5]),
        ([QueueDeleted("a"), bound(A1)], [A1, A5], [A1]),
        ([DELETED, DECLARED, bound(A1)], [A1, A5, B1], [A1]),
        ([DELETED, DECLARED, unbound(A1)], [A1, B1], []),
        # Not declared again: a reading that shows it is believed.
        ([bound(B1), unbound(A1), QueueDeleted("b"), DELETED], [A1, B1], [A1, B1]),
        ([DECLARED], [A1], [A1]),
    ],
)
def test_what_was_declared_is_laid_over_a_reading_that_does_not_show_it(
    declarations: list[Declaration], shown: list[Binding], true: list[Binding]
) -> None:
    overlay = told(*declarations)
    assert sorted(overlay.apply(shown, 100.0)) == sorted(true)
    # The overlay counts for a reading that was under way when the -ok came, too, and as often as it is asked.
    assert sorted(overlay.apply(shown, 99.0)) == sorted(true)


def test_a_binding_with_arguments_is_never_laid_over() -> None:
    assert told(BindingAdded("x", A, "1", plain=False)).apply([B1], 100.0) == (B1,)
    assert told(BindingRemoved("x", A, "1", plain=False)).apply([A1], 100.0) == (A1,)
    assert told(bound(A1), BindingRemoved("x", A, "1", plain=False)).apply([], 100.0) == (A1,)


def test_a_reading_that_shows_a_binding_twice_still_does() -> None:
    assert told(bound(B1)).apply([A1, A1], 100.0) == (A1, A1, B1)


# Declarations that are forgotten, and when


@pytest.mark.parametrize(
    ("declaration", "behind", "there"),
    [
        (bound(A1), [], [A1]),
        (unbound(A1), [A1, B1], [B1]),
        (QueueDeleted("a"), [A1, A5, B1], [B1]),
        (ExchangeDeleted("e"), [E1, B1], [B1]),
    ],
)
def test_a_change_is_laid_over_until_a_reading_that_started_after_it_shows_it(
    declaration: Declaration, behind: list[Binding], there: list[Binding]
) -> None:
    overlay = told(declaration)
    overlay.settle(CONSISTENT_HASH, there, 99.0)
    assert sorted(overlay.apply(behind, 100.0)) == sorted(there)
    overlay.settle(CONSISTENT_HASH, behind, 101.0)
    assert sorted(overlay.apply(behind, 101.0)) == sorted(there)
    overlay.settle(CONSISTENT_HASH, there, 102.0)
    assert overlay.empty
    # From here on readings are believed, whatever a change made elsewhere did.
    assert overlay.apply(behind, 103.0) == tuple(behind)


@pytest.mark.parametrize("declaration", [bound(A1), unbound(B1), QueueDeleted("b"), ExchangeDeleted("e")])
def test_a_change_that_never_shows_counts_for_a_time(declaration: Declaration) -> None:
    overlay, shown = told(declaration), (B1, E1)
    assert overlay.apply(shown, 100.0 + OVERLAY_TIME) != shown
    assert overlay.apply(shown, LATE) == shown
    overlay.settle(CONSISTENT_HASH, shown, 100.0 + OVERLAY_TIME)
    assert not overlay.empty
    overlay.settle(CONSISTENT_HASH, shown, LATE)
    assert overlay.empty


@pytest.mark.parametrize(
    ("declarations", "first", "second", "true"),
    [
        ([unbound(A1), bound(A1)], [A1], [], [A1]),
        ([bound(A1), unbound(A1)], [], [A1], []),
        ([QueueDeleted("a"), bound(A1)], [A1], [], [A1]),
        ([bound(A1), QueueDeleted("a")], [], [A1], []),
        ([bound(A1), unbound(A1), unbound(A1)], [], [A1], []),
        ([unbound(A1), bound(A1), bound(A1)], [A1], [], [A1]),
        ([bound(A1), unbound(A1), QueueDeleted("a")], [], [A1], []),
        ([bound(A1), DELETED, DECLARED], [], [A1], []),
        ([DELETED, DECLARED, bound(A1)], [A1], [], [A1]),
        ([bound(A1), unbound(A1), DELETED, DECLARED], [], [A1], []),
    ],
)
def test_what_took_the_place_of_its_opposite_is_not_shown_by_a_reading_from_before_both(
    declarations: list[Declaration], first: list[Binding], second: list[Binding], true: list[Binding]
) -> None:
    overlay = told(*declarations)
    for shown in (first, second, true):
        assert sorted(overlay.apply(shown, 101.0)) == sorted(true)
        overlay.settle(CONSISTENT_HASH, shown, 101.0)
    overlay.settle(CONSISTENT_HASH, true, LATE)
    assert overlay.empty


def test_a_deletion_is_seen_in_a_reading_that_has_only_what_was_bound_since() -> None:
    for overlay in (told(QueueDeleted("a"), bound(A1)), told(DELETED, DECLARED, bound(A1))):
        overlay.settle(CONSISTENT_HASH, [A1, A5], 101.0)
        assert overlay.apply([A1, A5], 102.0) == (A1,)
        overlay.settle(CONSISTENT_HASH, [A1], 102.0)
        assert overlay.apply([A1, A5], 103.0) == (A1, A5)


def test_what_does_not_show_the_exchange_settles_nothing_of_it() -> None:
    overlay = told(DECLARED)
    overlay.settle("fanout", (), 101.0)
    assert overlay.misses_exchange("fanout", 101.0)
    overlay = told(DELETED)
    overlay.settle(CONSISTENT_HASH, [A1], 101.0)
    assert overlay.confirmed_removals([A]) == {A}
    overlay.settle(None, (), 102.0)
    assert overlay.empty


def test_what_came_after_the_reading_started_is_not_settled_by_it() -> None:
    overlay = told(bound(A1))
    overlay.add(unbound(B1), 102.0)
    overlay.settle(CONSISTENT_HASH, [A1], 101.0)
    assert overlay.apply([B1], 101.0) == ()


def test_a_removal_seen_elsewhere_outweighs_a_binding_declared_before_it() -> None:
    overlay = told(bound(A1), bound(B1), unbound(E1))
    assert overlay.has_added(A)
    overlay.withdraw_additions([A, E])
    assert not overlay.has_added(A)
    assert overlay.apply([E1], 100.0) == (B1,)


# Whether the exchange must be there.


@pytest.mark.parametrize(
    ("declarations", "missing"),
    [
        ([], False),
        ([DECLARED], True),
        ([bound(A1)], True),
        # The last binding of an exchange that deletes itself takes it along; of what is not there, -oks come too.
        ([unbound(A1)], False),
        ([DECLARED, unbound(A1)], False),
        ([DECLARED, bound(A1), QueueDeleted("a")], False),
        ([DECLARED, bound(A1), bound(B1), QueueDeleted("a")], True),
        ([DECLARED, bound(A1), DELETED], False),
        ([DELETED, DECLARED], True),
        ([DECLARED, DELETED, DECLARED], True),
        ([DECLARED, ExchangeDeleted("e")], False),
    ],
)
def test_an_exchange_that_was_declared_or_bound_must_be_there(declarations: list[Declaration], missing: bool) -> None:
    overlay = told(*declarations)
    assert overlay.misses_exchange(None, 100.0) is missing
    assert not overlay.misses_exchange(CONSISTENT_HASH, 100.0)
    assert overlay.misses_exchange(None, 100.0 + OVERLAY_TIME) is missing
    assert not overlay.misses_exchange(None, LATE)


def test_an_exchange_of_another_type_is_the_one_from_before() -> None:
    assert told(DELETED, DECLARED).misses_exchange("fanout", 100.0)
    assert not told(DELETED, DECLARED).misses_exchange("fanout", LATE)


def test_once_it_was_seen_the_exchange_may_go() -> None:
    overlay = told(DECLARED, bound(A1))
    overlay.settle(CONSISTENT_HASH, [A1], 101.0)
    assert not overlay.misses_exchange(None, 102.0)


def test_once_it_was_seen_to_be_gone_a_new_one_starts_afresh() -> None:
    overlay = told(bound(A1), DELETED)
    overlay.settle(None, (), LATE)
    overlay.add(DECLARED, LATE + 1)
    assert overlay.apply([B1], LATE + 2) == (B1,)


# Removals that the overlay vouches for


@pytest.mark.parametrize(
    ("declarations", "confirmed_removals"),
    [
        ([], set()),
        ([bound(A1)], set()),
        ([unbound(A1)], {A}),
        ([QueueDeleted("a"), ExchangeDeleted("e")], {A, E}),
        ([unbound(A1), QueueDeleted("a"), bound(A1)], {A}),
        ([unbound(A1), bound(A1)], set()),
        ([DELETED], {A, B, E}),
        ([DELETED, DECLARED, bound(B1)], {A, B, E}),
    ],
)
def test_it_vouches_for_what_was_declared_to_be_gone(
    declarations: list[Declaration], confirmed_removals: set[Destination]
) -> None:
    overlay = told(*declarations)
    assert overlay.confirmed_removals([A, B, E]) == confirmed_removals
    # The overlay vouches where the next good reading took long to come, too; then that one knows.
    assert overlay.confirmed_removals([A, B, E]) == confirmed_removals
    overlay.settle(None, (), LATE)
    assert overlay.confirmed_removals([A, B, E]) == set()


# Any sequence.

BINDINGS = [Binding(d, key) for d in (A, B, E) for key in ("1", "5")]
DECLARATIONS: list[Declaration] = [
    *(bound(binding) for binding in BINDINGS),
    *(unbound(binding) for binding in BINDINGS),
    *(QueueDeleted("a"), QueueDeleted("b"), ExchangeDeleted("e"), DECLARED, DELETED),
]
State = frozenset[Binding] | None
"""The bindings of the exchange; None where it is not there."""


def after(state: State, declaration: Declaration) -> State:
    """Return the broker's state after a declaration."""
    match declaration:
        case ExchangeDeclared():
            return state or frozenset()
        case ExchangeDeleted(name="x"):
            return None
        case _ if state is None:
            return None
        case BindingAdded(destination=destination, key=key):
            return state | {Binding(destination, key)}
        case BindingRemoved(destination=destination, key=key):
            return state - {Binding(destination, key)}
        case QueueDeleted(name=name):
            return frozenset(b for b in state if b.destination != Destination("queue", name))
        case ExchangeDeleted(name=name):
            return frozenset(b for b in state if b.destination != Destination("exchange", name))


def check(overlay: Overlay, seen: State, true: State, started: float) -> None:
    """Assert that a reading of the state seen, with the overlay, is the true state."""
    missing = overlay.misses_exchange(None if seen is None else CONSISTENT_HASH, started)
    if true is None:
        assert not missing
    elif seen is None:
        # Empty, it might have deleted itself.
        assert missing or not true
    else:
        assert not missing
        laid = overlay.apply(seen, started)
        assert len(laid) == len(set(laid))
        assert set(laid) == true


states = st.none() | st.frozensets(st.sampled_from(BINDINGS))


@given(states, st.lists(st.sampled_from(DECLARATIONS), max_size=12), st.integers(0, 12))
def test_whatever_was_declared_a_reading_that_lags_shows_the_truth(
    state: State, declarations: list[Declaration], lag: int
) -> None:
    overlay, history = Overlay("x"), [state]
    for declaration in declarations:
        if history[-1] is not None or not isinstance(declaration, BindingAdded):
            overlay.add(declaration, 0.1 * len(history))
            history.append(after(history[-1], declaration))
    check(overlay, history[max(0, len(history) - 1 - lag)], history[-1], 0.1 * len(history))


@given(
    states, st.lists(st.tuples(st.sampled_from(DECLARATIONS), st.lists(st.integers(0, 12), max_size=3)), max_size=12)
)
def test_and_so_do_all_readings_of_a_node_that_catches_up(
    state: State, steps: list[tuple[Declaration, list[int]]]
) -> None:
    overlay, history, seen, now = Overlay("x"), [state], 0, 0.0
    for declaration, lags in steps:
        if history[-1] is None and isinstance(declaration, BindingAdded):
            continue
        now += 0.01
        overlay.add(declaration, now)
        history.append(after(history[-1], declaration))
        for lag in lags:
            now += 0.01
            seen = max(seen, len(history) - 1 - lag)
            check(overlay, history[seen], history[-1], now)
            shown_type = None if history[seen] is None else CONSISTENT_HASH
            if not overlay.misses_exchange(shown_type, now):
                overlay.settle(shown_type, history[seen] or (), now)
