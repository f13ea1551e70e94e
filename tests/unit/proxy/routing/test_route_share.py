"""Where keys go if the ring of an exchange routes a share of the slots only."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.routing.route import Choice
from proxy.topology.table import Entry, KnownRing, PassReason
from ring.hashed import HashedValue
from ring.hashing import SLOTS, slot_of
from ring.share import rank_of, slots_in
from tests.unit.proxy.routing.test_routes import EMPTY, Tables
from tests.unit.proxy.session.wire import (
    QUEUES,
    VHOST,
    exchange,
    headers,
    known,
    laned,
    long_string,
    queue,
    ring,
    selecting,
    upstream,
)

HALF = 50.0
IN = next(key for key in (b"%d" % i for i in range(99)) if rank_of(slot_of(key)) < slots_in(HALF))
OUT = next(key for key in (b"%d" % i for i in range(99)) if rank_of(slot_of(key)) >= slots_in(HALF))


def sharing(percent: float, entries: dict[str, Entry | KnownRing]) -> Tables:
    selection = selecting(entries)
    selection.take_share(percent)
    return Tables(entries, selection)


def chosen(t: Tables, key: bytes, header: bytes = EMPTY, name: str = "x") -> Choice | None:
    return t.route(name).choose(key, header, 0, len(header))


def test_a_share_of_all_is_no_share() -> None:
    route = sharing(100, {"x": QUEUES}).route("x")
    assert (route.native, route.plain, route.routed_slots) == (None, True, SLOTS)


def test_by_a_share_of_nothing_all_go_as_in_shadow() -> None:
    t, shadow = sharing(0, {"x": QUEUES}), Tables({"x": known(QUEUES, PassReason.SHADOW)})
    for key in (b"%d" % i for i in range(50)):
        ours, theirs = chosen(t, key), chosen(shadow, key)
        assert ours is not None
        assert theirs is not None
        assert (ours.by.shadowed, ours.by.reason) == (True, PassReason.SHARE)
        assert (ours.target.destination, ours.slot) == (theirs.target.destination, theirs.slot)


@given(st.floats(0, 100), st.binary(max_size=20))
def test_a_key_follows_the_ring_if_its_slot_is_in_the_share(percent: float, key: bytes) -> None:
    t = sharing(percent, {"x": QUEUES})
    choice = chosen(t, key)
    assert choice is not None
    assert choice.target.destination == QUEUES.ring.owner_of(key)
    assert choice.by.shadowed == (rank_of(slot_of(key)) >= slots_in(percent))
    assert choice.by is (t.route("x").native if choice.by.shadowed else t.route("x"))


@given(st.floats(0, 100), st.floats(0, 100), st.binary(max_size=20))
def test_no_key_comes_back_where_the_share_is_raised(one: float, other: float, key: bytes) -> None:
    less, more = (chosen(sharing(p, {"x": QUEUES}), key) for p in sorted((one, other)))
    assert less is not None
    assert more is not None
    assert more.by.shadowed <= less.by.shadowed


@pytest.mark.parametrize("entry", [QUEUES, laned()])
def test_what_is_native_is_counted_apart(entry: Entry | KnownRing) -> None:
    t = sharing(HALF, {"x": entry})
    inside, outside = chosen(t, IN), chosen(t, OUT)
    assert inside is not None
    assert outside is not None
    assert inside.by.counters is t.counter_table.of((VHOST, "x"), None)
    assert outside.by.counters is t.counter_table.of((VHOST, "x"), PassReason.SHARE)


def test_the_value_that_is_hashed_decides() -> None:
    t = sharing(HALF, {"x": ring(queue("a"), queue("b"), hashed=HashedValue("header", "h"))})
    for key, value, native in ((IN, OUT, True), (OUT, IN, False)):
        choice = chosen(t, key, headers(1, 0, long_string(b"h", value))[7:-1])
        assert choice is not None
        assert (choice.by.shadowed, choice.value) == (native, value)


def test_an_exchange_behind_a_ring_gets_the_keys_that_its_own_ring_leaves_to_it() -> None:
    """By the same value the same slot decides, in both; here the two hash different ones."""
    inner = ring(queue("a"), queue("b"), hashed=HashedValue("header", "h"))
    t = sharing(HALF, {"x": ring(exchange("y")), "y": inner})
    by_header = {value: headers(1, 0, long_string(b"h", value))[7:-1] for value in (IN, OUT)}
    found = {(key, value): chosen(t, key, by_header[value]) for key in (IN, OUT) for value in (IN, OUT)}
    went = {pair: (c.by.name[1], c.by.shadowed, c.target.destination) for pair, c in found.items() if c is not None}
    assert went == {
        (IN, IN): ("y", False, inner.ring.owner_of(IN)),
        (IN, OUT): ("x", False, exchange("y")),
        (OUT, IN): ("x", True, exchange("y")),
        (OUT, OUT): ("x", True, exchange("y")),
    }


@pytest.mark.parametrize("internal", [False, True])
def test_an_upstream_exchange_gets_the_keys_that_the_ring_behind_it_leaves(internal: bool) -> None:
    t = sharing(HALF, {"u": upstream({"#": "x"}), "x": known(QUEUES, internal=internal)})
    inside = chosen(t, IN, name="u")
    assert inside is not None
    assert (inside.by.name[1], inside.by.shadowed) == ("x", False)
    assert chosen(t, OUT, name="u") is None
    assert t.why_passed("u", OUT) is PassReason.SHARE
    # A circle of rings is told from a share even if there is one.
    circle = sharing(HALF, {"u": upstream({"#": "x"}), "x": ring(exchange("x"))})
    assert chosen(circle, IN, name="u") is None
    assert circle.why_passed("u", IN) is PassReason.CYCLE


@pytest.mark.parametrize("reason", [PassReason.TYPE, PassReason.DEAD_LETTER, PassReason.SHADOW, PassReason.MODE_PASS])
def test_what_is_passed_has_no_share(reason: PassReason) -> None:
    assert sharing(HALF, {"x": known(QUEUES, reason)}).route("x").native is None


def test_an_exchange_is_in_use_if_all_its_publishes_are_native() -> None:
    t = sharing(0, {"x": QUEUES})
    choice = chosen(t, OUT)
    assert choice is not None
    t.router.used_at.clear()
    t.table.touch()
    t.router.used_at.clear()
    choice.by.counters.published += 1
    t.table.touch()
    assert (VHOST, "x") in t.router.used_at
