"""Lanes on the ring: what makes an exchange one, and that the ring is the one of the queues behind them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.topology.bindings import (
    CONSISTENT_HASH,
    MODULUS_HASH,
    Behind,
    Binding,
    Exchange,
    Leads,
    TopologyError,
    behind_of,
    parse_alternate_policies,
    parse_applied_policies,
    parse_exchange,
    weigh,
)
from proxy.topology.table import KnownRing
from ring.destination import Destination
from ring.hashed import HashedValue
from ring.ring import Ring


def encoded(answer: object) -> bytes:
    return json.dumps(answer).encode()


def queue(name: str) -> Destination:
    return Destination("queue", name)


def exchange(name: str) -> Destination:
    return Destination("exchange", name)


TO_Q = [Binding(queue("q"), "")]
FANOUT = Exchange("fanout")
LANE = Behind(Leads.TO_QUEUE, "q")


@pytest.mark.parametrize(
    ("found", "bindings", "expected"),
    [
        (None, TO_Q, Behind(Leads.ABSENT)),
        (Exchange("topic"), TO_Q, Behind(Leads.ELSEWHERE)),
        (Exchange(CONSISTENT_HASH, internal=True), [], Behind(Leads.ELSEWHERE, internal=True)),
        (FANOUT, TO_Q, LANE),
        (FANOUT, [Binding(queue("q"), "any key")], Behind(Leads.TO_QUEUE, "q", "any key")),
        (Exchange("fanout", policy="other"), TO_Q, LANE),
        (FANOUT, [], Behind(Leads.NOWHERE)),
    ],
)
def test_where_an_exchange_leads(found: Exchange | None, bindings: list[Binding], expected: Behind) -> None:
    assert behind_of(found, bindings, {"ae"}) == expected


@pytest.mark.parametrize(
    ("found", "bindings", "why"),
    [
        (FANOUT, TO_Q * 2, "it has 2 bindings"),
        (FANOUT, [*TO_Q, Binding(queue("q"), "again")], "it has 2 bindings"),
        (FANOUT, [Binding(exchange("e"), "")], "it is bound to exchange 'e'"),
        (Exchange("fanout", has_alternate=True), TO_Q, "its arguments name an alternate exchange"),
        (Exchange("fanout", has_alternate=True), [], "its arguments name an alternate exchange"),
        (Exchange("fanout", policy="ae"), TO_Q, "policy 'ae' gives it an alternate exchange"),
        (Exchange("fanout", auto_delete=True), TO_Q, "it is an auto-delete exchange"),
    ],
)
def test_what_is_no_lane(found: Exchange, bindings: list[Binding], why: str) -> None:
    assert behind_of(found, bindings, {"ae"}) == Behind(Leads.ASIDE, why=why)


def test_an_internal_fanout_is_told_as_internal() -> None:
    assert behind_of(Exchange("fanout", internal=True), TO_Q, ()).internal


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, Exchange("fanout")),
        ({"auto_delete": True}, Exchange("fanout", auto_delete=True)),
        ({"policy": "p"}, Exchange("fanout", policy="p")),
        ({"policy": None}, Exchange("fanout")),
        ({"arguments": {"alternate-exchange": "ae"}}, Exchange("fanout", has_alternate=True)),
    ],
)
def test_what_is_read_of_a_fanout(fields: dict[str, Any], expected: Exchange) -> None:
    answer = {"name": "x", "type": "fanout", "internal": False, "auto_delete": False, "arguments": {}} | fields
    assert parse_exchange(encoded(answer)) == expected


def test_policies_that_give_an_alternate_exchange() -> None:
    answer = [
        {"name": "ae", "definition": {"alternate-exchange": "x"}},
        {"name": "ttl", "definition": {"message-ttl": 1}},
    ]
    assert parse_alternate_policies(encoded(answer)) == {"ae"}
    assert parse_alternate_policies(encoded([])) == set()


@pytest.mark.parametrize(
    "answer", [None, {}, [1], [{"name": "p"}], [{"definition": {}}], [{"name": 1, "definition": {}}]]
)
def test_malformed_policies(answer: object) -> None:
    with pytest.raises(TopologyError):
        parse_alternate_policies(encoded(answer))


def test_the_policies_that_apply_to_exchanges() -> None:
    answer = [{"name": "x", "policy": "ae"}, {"name": ""}, {"name": "y", "policy": None}]
    assert parse_applied_policies(encoded(answer)) == {"x": "ae"}


@pytest.mark.parametrize("answer", [None, {}, [1], [{"policy": "p"}], [{"name": "x", "policy": 1}]])
def test_malformed_exchanges_with_policies(answer: object) -> None:
    with pytest.raises(TopologyError):
        parse_applied_policies(encoded(answer))


names = st.text("abcé.", min_size=1, max_size=4)


@given(
    st.dictionaries(names, st.integers(1, 50), min_size=1, max_size=6),
    st.sets(names),
    st.sets(names),
    st.sampled_from([CONSISTENT_HASH, MODULUS_HASH]),
)
def test_putting_lanes_under_an_exchange_moves_no_key(
    weights: dict[str, int], laned: set[str], unbound: set[str], kind: str
) -> None:
    """At each step: without lanes, with some beside the direct bindings, with some in their stead."""
    behind = {f"lane.{name}": Behind(Leads.TO_QUEUE, name) for name in weights}
    direct = {name: Binding(queue(name), str(weight)) for name, weight in weights.items()}
    lanes = {name: Binding(exchange(f"lane.{name}"), str(weight)) for name, weight in weights.items()}
    before = weigh(direct.values(), kind)
    bindings = [
        *(binding for name, binding in direct.items() if name not in laned & unbound),
        *(binding for name, binding in lanes.items() if name in laned),
    ]
    after = weigh(bindings, kind, behind)
    assert after.weights == before.weights
    rings = [KnownRing.of(Ring.build(each.weights), HashedValue(), kind) for each in (before, after)]
    assert rings[0].fingerprint == rings[1].fingerprint
    assert rings[0].ring.owner_index == rings[1].ring.owner_index
    assert after.lanes == {queue(name): f"lane.{name}" for name in weights.keys() & laned}
    assert set(after.duplicates) == {queue(name) for name in weights.keys() & laned - unbound}


def test_two_lanes_to_one_queue_count_once() -> None:
    behind = {"a": LANE, "b": LANE}
    for order in (("a", "b"), ("b", "a")):
        found = weigh([Binding(exchange(name), {"a": "2", "b": "7"}[name]) for name in order], CONSISTENT_HASH, behind)
        assert (found.weights, found.lanes) == ({queue("q"): 7}, {queue("q"): "a"})
        assert found.duplicates == (queue("q"),)


def test_a_lane_whose_key_is_no_weight_is_not_used() -> None:
    found = weigh(
        [Binding(exchange("a"), "none"), Binding(exchange("b"), "3")], CONSISTENT_HASH, {"a": LANE, "b": LANE}
    )
    assert (found.weights, found.lanes) == ({queue("q"): 3}, {queue("q"): "b"})
    (ignored,) = found.ignored
    assert (ignored.destination, ignored.reason) == (exchange("a"), "not a whole number")


@pytest.mark.parametrize(
    ("leads", "reason"),
    [(Leads.NOWHERE, "no queue is bound to this lane"), (Leads.ABSENT, "the exchange does not exist")],
)
def test_what_leads_nowhere_gets_no_slot_and_is_listed(leads: Leads, reason: str) -> None:
    bindings = [Binding(exchange("a"), "3"), Binding(queue("q"), "1")]
    found = weigh(bindings, CONSISTENT_HASH, {"a": Behind(leads)})
    assert found.weights == {queue("q"): 1}
    (ignored,) = found.ignored
    assert (ignored.destination, ignored.key, ignored.reason) == (exchange("a"), "3", reason)


@pytest.mark.parametrize("leads", [Leads.ASIDE, Leads.ELSEWHERE])
def test_other_exchanges_are_on_the_ring_themselves(leads: Leads) -> None:
    found = weigh([Binding(exchange("a"), "3")], CONSISTENT_HASH, {"a": Behind(leads, why="w")})
    assert (found.weights, found.lanes) == ({exchange("a"): 3}, {})
