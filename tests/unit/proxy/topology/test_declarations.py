"""Which declarations of clients may change where publishes go."""

from dataclasses import replace

import pytest

from proxy.settings.patterns import Mode
from proxy.topology.bindings import CONSISTENT_HASH, MODULUS_HASH, Binding, weigh
from proxy.topology.declarations import (
    BindingAdded,
    BindingRemoved,
    Declaration,
    ExchangeDeclared,
    ExchangeDeleted,
    QueueDeleted,
    is_news,
)
from proxy.topology.generations import OtherGeneration, OtherShard
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
        (BindingAdded("x", A, "3"), ROUTED, False),
        (BindingAdded("x", A, "1"), ROUTED, False),
        (BindingAdded("x", A, "4"), ROUTED, True),
        (BindingAdded("x", A, "4", plain=False), ROUTED, True),
        (BindingAdded("x", A, "abc"), ROUTED, False),
        (BindingAdded("x", B, "1"), ROUTED, True),
        (BindingAdded("x", OLD, "1"), ROUTED, True),
        (BindingAdded("x", C, "1"), ROUTED, True),
        (BindingAdded("x", C, "10001"), ROUTED, False),
        (BindingAdded("x", A, "7"), entry(Binding(A, "1"), kind=MODULUS_HASH), True),
        (BindingAdded("x", C, "abc"), entry(Binding(A, "1"), kind=MODULUS_HASH), True),
        (BindingRemoved("x", A, "3"), ROUTED, True),
        (BindingRemoved("x", OLD, "3"), ROUTED, True),
        (BindingRemoved("x", C, "3"), ROUTED, False),
        # Publishes pass whatever the bindings are.
        (BindingAdded("x", C, "1"), entry(A3, known=KNOWN, passed=PassReason.SHADOW, mode=Mode.SHADOW), False),
        (BindingRemoved("x", A, "3"), entry(A3, known=KNOWN, passed=PassReason.SHADOW, mode=Mode.SHADOW), False),
        (QueueDeleted("a"), entry(A3, known=KNOWN, passed=PassReason.SHADOW, mode=Mode.SHADOW), False),
        (ExchangeDeleted("e"), entry(E1, known=KNOWN, passed=PassReason.SHADOW, mode=Mode.SHADOW), False),
        (BindingAdded("x", A, "1"), entry(passed=PassReason.NO_BINDINGS), True),
        (BindingRemoved("x", A, "3"), entry(A3, known=KNOWN, passed=PassReason.DEAD_LETTER), True),
    ],
)
def test_whether_a_declaration_may_change_where_publishes_go(
    declaration: Declaration, known: Entry, news: bool
) -> None:
    assert is_news(X, known, declaration) is news


def test_a_lane_of_another_generation_that_is_declared_again_is_no_news() -> None:
    """A program that declares all it needs each time it connects costs the management API nothing."""
    lane = Destination("exchange", "lane.1")
    former = OtherGeneration(1, 0, {lane: OtherShard("a", (("x", "a"),))})
    known = replace(entry(A3, known=KNOWN), generation=2, others=(former,))
    assert not is_news(X, known, BindingAdded("x", lane, "1"))
    assert is_news(X, known, BindingAdded("x", lane, "1", plain=False)), "it may open the shard to a group"
    assert is_news(X, known, BindingAdded("x", Destination("exchange", "lane.2"), "1"))
