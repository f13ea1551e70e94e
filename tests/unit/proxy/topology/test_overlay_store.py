"""The overlays of a virtual host: which exchanges they are of, how long they are kept, and how many."""

import pytest

from proxy.topology import overlay_store
from proxy.topology.bindings import CONSISTENT_HASH
from proxy.topology.declarations import (
    BindingAdded,
    BindingRemoved,
    Declaration,
    ExchangeDeclared,
    ExchangeDeleted,
    QueueDeleted,
)
from proxy.topology.overlay import OVERLAY_TIME
from proxy.topology.overlay_store import OVERLAY_KEPT, OverlayStore
from proxy.topology.table import Name
from ring.destination import Destination
from tests.unit.proxy.topology.test_declarations import A3, E1, ROUTED, A, B, X, entry


@pytest.fixture
def overlays() -> OverlayStore:
    return OverlayStore()


# Which exchanges are touched.


@pytest.mark.parametrize(
    ("declaration", "names"),
    [
        (BindingAdded("x", A, "1"), [X]),
        (BindingRemoved("new", A, "1"), [("/", "new")]),
        (ExchangeDeclared("x", CONSISTENT_HASH), [X]),
        (ExchangeDeleted("x"), [X]),
        (ExchangeDeleted("e"), [("/", "e"), X, ("/", "y")]),
        (QueueDeleted("a"), [X]),
        (QueueDeleted("old"), [X]),
        (QueueDeleted("e"), []),
        # No weight: it routes nothing.
        (QueueDeleted("b"), []),
        (BindingAdded("", A, "a"), []),
        (BindingRemoved("", A, "a"), []),
        (ExchangeDeclared("", "direct"), []),
        (ExchangeDeleted(""), []),
    ],
)
def test_a_declaration_touches_its_exchange_and_those_that_lead_to_what_is_deleted(
    overlays: OverlayStore, declaration: Declaration, names: list[Name]
) -> None:
    entries = {X: ROUTED, ("/", "y"): entry(E1), ("/", "z"): entry(), ("v", "x"): ROUTED}
    assert overlays.touched("/", declaration, entries, []) == names


def test_a_deleted_queue_touches_what_it_was_bound_to_before_that_was_read(overlays: OverlayStore) -> None:
    overlays.add(X, BindingAdded("x", A, "1"), 100.0)
    overlays.add(("v", "x"), BindingAdded("x", A, "1"), 100.0)
    assert overlays.touched("/", QueueDeleted("a"), {}, []) == [X]
    assert overlays.touched("/", QueueDeleted("b"), {}, []) == []


def test_a_deleted_queue_touches_readings_under_way_which_may_show_it(overlays: OverlayStore) -> None:
    being_read = [X, ("v", "x")]
    assert overlays.touched("/", QueueDeleted("a"), {}, being_read) == [X]
    assert overlays.touched("/", ExchangeDeleted("e"), {}, being_read) == [("/", "e"), X]
    assert overlays.touched("/", BindingAdded("y", A, "1"), {}, being_read) == [("/", "y")]


# How long they are kept.


def test_an_overlay_is_of_one_exchange_and_kept_until_a_reading_shows_it(overlays: OverlayStore) -> None:
    assert overlays.of(X).empty
    assert X not in overlays
    overlays.add(X, BindingAdded("x", A, "3"), 100.0)
    overlays.add(("v", "x"), BindingAdded("x", B, "1"), 100.0)
    assert overlays.of(X).apply([], 100.0) == (A3,)
    overlays.settle(X, CONSISTENT_HASH, [], 101.0)
    assert X in overlays
    overlays.settle(X, CONSISTENT_HASH, [A3], 102.0)
    assert X not in overlays
    assert ("v", "x") in overlays
    overlays.settle(X, CONSISTENT_HASH, [A3], 103.0)


def test_one_that_lays_nothing_over_is_kept_until_a_reading_that_started_after_it(overlays: OverlayStore) -> None:
    overlays.add(X, BindingAdded("x", A, "3", plain=False), 100.0)
    overlays.settle(X, CONSISTENT_HASH, [], 99.0)
    assert X in overlays
    overlays.settle(X, CONSISTENT_HASH, [], 100.0)
    assert X not in overlays


def test_what_nothing_reads_is_idle_after_a_time(overlays: OverlayStore) -> None:
    overlays.add(X, BindingAdded("x", A, "3"), 100.0)
    overlays.add(("/", "y"), BindingAdded("y", A, "3"), 100.0)
    overlays.add(X, BindingAdded("x", B, "3"), 101.0)
    assert overlays.idle(100.0 + OVERLAY_KEPT) == []
    assert overlays.idle(101.0 + OVERLAY_KEPT) == [("/", "y")]
    overlays.forget(("/", "y"))
    overlays.forget(("/", "y"))
    assert overlays.idle(102.0 + OVERLAY_KEPT) == [X]


def test_the_overlays_of_a_virtual_host_have_a_limit(overlays: OverlayStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The least recently declared on is forgotten; a reading that might need it is not to be believed."""
    monkeypatch.setattr(overlay_store, "MOST_OVERLAYS", 2)
    overlays.add(("v", "other"), BindingAdded("other", A, "1"), 99.0)
    for at, name in enumerate("xyzx", 100):
        overlays.add(("/", name), BindingAdded(name, A, "1"), float(at))
    assert [name for name in "xyz" if ("/", name) in overlays] == ["x", "z"]
    assert overlays.touched("/", QueueDeleted("a"), {}, []) == [X, ("/", "z")]
    for name in ("x", "never"):
        assert overlays.incomplete_for(("/", name), 101.0 + OVERLAY_TIME)
        assert not overlays.incomplete_for(("/", name), 101.1 + OVERLAY_TIME)
    assert not overlays.incomplete_for(("v", "other"), 101.0)


def test_the_statements_of_a_virtual_host_have_a_limit(overlays: OverlayStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlay_store, "MOST_STATEMENTS_PER_VHOST", 10)
    for n in range(30):
        overlays.add(("/", f"x{n % 3}"), BindingAdded("x", Destination("queue", f"q{n}"), "1"), 100.0 + n)
    kept = [overlays.of(("/", f"x{n}")).statement_count for n in range(3)]
    assert sum(kept) <= 10
    assert overlays.incomplete_for(X, 130.0)


def test_what_leads_to_a_destination_is_found_whatever_was_forgotten(overlays: OverlayStore) -> None:
    """The index of destinations is made anew now and then: it never grows beyond what is kept, and misses nothing."""
    kept: dict[str, float] = {}
    for n in range(5000):
        at = 100.0 + n * 0.1
        overlays.add(X, BindingAdded("x", Destination("queue", f"q{n}"), "1"), at)
        kept[f"q{n}"] = at
    there = overlays._vhosts["/"]
    assert there._noted <= 2 * there.statement_count + 1001
    for queue, at in kept.items():
        found = overlays.touched("/", QueueDeleted(queue), {}, [])
        assert found == ([X] if at >= 100.0 + 4999 * 0.1 - OVERLAY_KEPT else []), queue


def test_a_virtual_host_that_nothing_is_kept_of_is_forgotten(overlays: OverlayStore) -> None:
    overlays.add(X, BindingAdded("x", A, "1"), 100.0)
    assert overlays.idle(101.0 + OVERLAY_KEPT) == [X]
    overlays.forget(X)
    overlays.idle(101.0 + OVERLAY_KEPT)
    assert not overlays._vhosts
