import pytest

from proxy.settings.patterns import Mode
from proxy.topology import overlays as overlays_module
from proxy.topology.bindings import CONSISTENT_HASH, MODULUS_HASH, Binding, weigh
from proxy.topology.declarations import (
    OVERLAY_TIME,
    Bound,
    Declaration,
    ExchangeDeclared,
    ExchangeDeleted,
    QueueDeleted,
    Unbound,
)
from proxy.topology.overlays import OVERLAY_KEPT, Overlays, is_news
from proxy.topology.table import Entry, KnownRing, Name, PassReason
from ring.destination import Destination
from ring.hashed import HashedValue
from ring.ring import Ring

X: Name = ("/", "x")
A, B, C, E = (
    Destination("queue", "a"),
    Destination("queue", "b"),
    Destination("queue", "c"),
    Destination("exchange", "e"),
)
OLD = Destination("queue", "old")
A3, B_ABC, E1 = Binding(A, "3"), Binding(B, "abc"), Binding(E, "1")
KNOWN = KnownRing.of(Ring.build({A: 3, E: 1, OLD: 1}), HashedValue(), CONSISTENT_HASH)


def entry(
    *bindings: Binding,
    known: KnownRing | None = None,
    passed: PassReason | None = None,
    mode: Mode = Mode.ROUTE,
    kind: str = CONSISTENT_HASH,
) -> Entry:
    return Entry(mode, kind, known, passed, weigh(bindings, kind), 0.0)


ROUTED = entry(A3, B_ABC, E1, known=KNOWN)
"""Its last destination is unbound, and that has not settled."""


@pytest.fixture
def overlays() -> Overlays:
    return Overlays()


# Which exchanges are touched.


@pytest.mark.parametrize(
    ("declaration", "names"),
    [
        (Bound("x", A, "1"), [X]),
        (Unbound("new", A, "1"), [("/", "new")]),
        (ExchangeDeclared("x", CONSISTENT_HASH), [X]),
        (ExchangeDeleted("x"), [X]),
        (ExchangeDeleted("e"), [("/", "e"), X, ("/", "y")]),
        (QueueDeleted("a"), [X]),
        (QueueDeleted("old"), [X]),
        (QueueDeleted("e"), []),
        # No weight: it routes nothing.
        (QueueDeleted("b"), []),
        (Bound("", A, "a"), []),
        (Unbound("", A, "a"), []),
        (ExchangeDeclared("", "direct"), []),
        (ExchangeDeleted(""), []),
    ],
)
def test_a_declaration_touches_its_exchange_and_those_that_lead_to_what_is_deleted(
    overlays: Overlays, declaration: Declaration, names: list[Name]
) -> None:
    entries = {X: ROUTED, ("/", "y"): entry(E1), ("/", "z"): entry(), ("v", "x"): ROUTED}
    assert overlays.touched("/", declaration, entries, []) == names


def test_a_deleted_queue_touches_what_it_was_bound_to_before_that_was_read(overlays: Overlays) -> None:
    overlays.add(X, Bound("x", A, "1"), 100.0)
    overlays.add(("v", "x"), Bound("x", A, "1"), 100.0)
    assert overlays.touched("/", QueueDeleted("a"), {}, []) == [X]
    assert overlays.touched("/", QueueDeleted("b"), {}, []) == []


def test_a_deleted_queue_touches_readings_under_way_which_may_show_it(overlays: Overlays) -> None:
    being_read = [X, ("v", "x")]
    assert overlays.touched("/", QueueDeleted("a"), {}, being_read) == [X]
    assert overlays.touched("/", ExchangeDeleted("e"), {}, being_read) == [("/", "e"), X]
    assert overlays.touched("/", Bound("y", A, "1"), {}, being_read) == [("/", "y")]


# Whether they may change anything.


@pytest.mark.parametrize(
    ("declaration", "known", "news"),
    [
        (ExchangeDeclared("x", CONSISTENT_HASH), ROUTED, False),
        (ExchangeDeclared("x", MODULUS_HASH), ROUTED, True),
        (ExchangeDeclared("x", "fanout"), entry(kind="fanout", passed=PassReason.TYPE), False),
        (ExchangeDeclared("x", CONSISTENT_HASH), entry(kind="fanout", passed=PassReason.TYPE), True),
        (ExchangeDeleted("x"), ROUTED, True),
        (ExchangeDeleted("x"), entry(kind="fanout", passed=PassReason.TYPE), True),
        (ExchangeDeleted("e"), ROUTED, True),
        (ExchangeDeleted("a"), ROUTED, False),
        (QueueDeleted("a"), ROUTED, True),
        (QueueDeleted("old"), ROUTED, True),
        (QueueDeleted("c"), ROUTED, False),
        (Bound("x", A, "3"), ROUTED, False),
        (Bound("x", A, "1"), ROUTED, False),
        (Bound("x", A, "4"), ROUTED, True),
        (Bound("x", A, "4", plain=False), ROUTED, True),
        (Bound("x", A, "abc"), ROUTED, False),
        (Bound("x", B, "1"), ROUTED, True),
        (Bound("x", OLD, "1"), ROUTED, True),
        (Bound("x", C, "1"), ROUTED, True),
        (Bound("x", C, "10001"), ROUTED, False),
        (Bound("x", A, "7"), entry(Binding(A, "1"), kind=MODULUS_HASH), False),
        (Bound("x", C, "abc"), entry(Binding(A, "1"), kind=MODULUS_HASH), True),
        (Unbound("x", A, "3"), ROUTED, True),
        (Unbound("x", OLD, "3"), ROUTED, True),
        (Unbound("x", C, "3"), ROUTED, False),
        # Publishes pass whatever the bindings are.
        (Bound("x", C, "1"), entry(A3, known=KNOWN, passed=PassReason.SHADOW, mode=Mode.SHADOW), False),
        (Unbound("x", A, "3"), entry(A3, known=KNOWN, passed=PassReason.SHADOW, mode=Mode.SHADOW), False),
        (QueueDeleted("a"), entry(A3, known=KNOWN, passed=PassReason.SHADOW, mode=Mode.SHADOW), False),
        (ExchangeDeleted("e"), entry(E1, known=KNOWN, passed=PassReason.SHADOW, mode=Mode.SHADOW), False),
        (Bound("x", A, "1"), entry(passed=PassReason.NO_BINDINGS), True),
        (Unbound("x", A, "3"), entry(A3, known=KNOWN, passed=PassReason.DEAD_LETTER), True),
    ],
)
def test_whether_a_declaration_may_change_where_publishes_go(
    declaration: Declaration, known: Entry, news: bool
) -> None:
    assert is_news(X, known, declaration) is news


# How long they are kept.


def test_an_overlay_is_of_one_exchange_and_kept_until_a_reading_shows_it(overlays: Overlays) -> None:
    assert overlays.of(X).empty
    assert X not in overlays
    overlays.add(X, Bound("x", A, "3"), 100.0)
    overlays.add(("v", "x"), Bound("x", B, "1"), 100.0)
    assert overlays.of(X).apply([], 100.0) == (A3,)
    overlays.settle(X, CONSISTENT_HASH, [], 101.0)
    assert X in overlays
    overlays.settle(X, CONSISTENT_HASH, [A3], 102.0)
    assert X not in overlays
    assert ("v", "x") in overlays
    overlays.settle(X, CONSISTENT_HASH, [A3], 103.0)


def test_one_that_lays_nothing_over_is_kept_until_a_reading_that_started_after_it(overlays: Overlays) -> None:
    overlays.add(X, Bound("x", A, "3", plain=False), 100.0)
    overlays.settle(X, CONSISTENT_HASH, [], 99.0)
    assert X in overlays
    overlays.settle(X, CONSISTENT_HASH, [], 100.0)
    assert X not in overlays


def test_what_nothing_reads_is_idle_after_a_time(overlays: Overlays) -> None:
    overlays.add(X, Bound("x", A, "3"), 100.0)
    overlays.add(("/", "y"), Bound("y", A, "3"), 100.0)
    overlays.add(X, Bound("x", B, "3"), 101.0)
    assert overlays.idle(100.0 + OVERLAY_KEPT) == []
    assert overlays.idle(101.0 + OVERLAY_KEPT) == [("/", "y")]
    overlays.forget(("/", "y"))
    overlays.forget(("/", "y"))
    assert overlays.idle(102.0 + OVERLAY_KEPT) == [X]


def test_the_overlays_of_a_virtual_host_have_a_limit(overlays: Overlays, monkeypatch: pytest.MonkeyPatch) -> None:
    """The least recently declared on is forgotten; a reading that might need it is not to be believed."""
    monkeypatch.setattr(overlays_module, "MOST_OVERLAYS", 2)
    overlays.add(("v", "other"), Bound("other", A, "1"), 99.0)
    for at, name in enumerate("xyzx", 100):
        overlays.add(("/", name), Bound(name, A, "1"), float(at))
    assert [name for name in "xyz" if ("/", name) in overlays] == ["x", "z"]
    assert overlays.touched("/", QueueDeleted("a"), {}, []) == [X, ("/", "z")]
    for name in ("x", "never"):
        assert overlays.lacks(("/", name), 101.0 + OVERLAY_TIME)
        assert not overlays.lacks(("/", name), 101.1 + OVERLAY_TIME)
    assert not overlays.lacks(("v", "other"), 101.0)


def test_the_statements_of_a_virtual_host_have_a_limit(overlays: Overlays, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlays_module, "MOST_SAID_IN_ALL", 10)
    for n in range(30):
        overlays.add(("/", f"x{n % 3}"), Bound("x", Destination("queue", f"q{n}"), "1"), 100.0 + n)
    kept = [overlays.of(("/", f"x{n}")).size for n in range(3)]
    assert sum(kept) <= 10
    assert overlays.lacks(X, 130.0)


def test_what_leads_to_a_destination_is_found_whatever_was_forgotten(overlays: Overlays) -> None:
    """The index of destinations is made anew now and then: it never grows beyond what is kept, and misses nothing."""
    kept: dict[str, float] = {}
    for n in range(5000):
        at = 100.0 + n * 0.1
        overlays.add(X, Bound("x", Destination("queue", f"q{n}"), "1"), at)
        kept[f"q{n}"] = at
    there = overlays._of_vhosts["/"]
    assert there._noted <= 2 * there.said + 1001
    for queue, at in kept.items():
        found = overlays.touched("/", QueueDeleted(queue), {}, [])
        assert found == ([X] if at >= 100.0 + 4999 * 0.1 - OVERLAY_KEPT else []), queue


def test_a_virtual_host_that_nothing_is_kept_of_is_forgotten(overlays: Overlays) -> None:
    overlays.add(X, Bound("x", A, "1"), 100.0)
    assert overlays.idle(101.0 + OVERLAY_KEPT) == [X]
    overlays.forget(X)
    overlays.idle(101.0 + OVERLAY_KEPT)
    assert not overlays._of_vhosts
