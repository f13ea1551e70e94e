import pytest

from proxy.router import (
    CHANGES_KEPT,
    MAX_HOPS,
    Change,
    Entry,
    KnownRing,
    Message,
    Name,
    Passed,
    PassReason,
    Routed,
    Router,
    Unknown,
    with_change,
)
from proxy.selection import Mode
from proxy.topology import CONSISTENT_HASH, Bindings
from ring.destination import Destination
from ring.hashed import HashedValue
from ring.hashing import slot_of
from ring.ring import Ring, fingerprint

X: Name = ("/", "x")
ROUTING_KEY = HashedValue()
MAX_AGE = 300.0


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def router(clock: Clock) -> Router:
    return Router(MAX_AGE, refuse_stale=False, clock=clock)


def queue(name: str) -> Destination:
    return Destination("queue", name)


def exchange(name: str) -> Destination:
    return Destination("exchange", name)


def ring(*destinations: Destination, hashed: HashedValue = ROUTING_KEY) -> KnownRing:
    return KnownRing.of(Ring.build(dict.fromkeys(destinations, 1)), hashed, CONSISTENT_HASH)


def entry(
    known: KnownRing | None, passed: PassReason | None = None, read_at: float = 1000.0, mode: Mode = Mode.ROUTE
) -> Entry:
    return Entry(mode, CONSISTENT_HASH, known, passed, Bindings(), read_at)


TWO = ring(queue("a"), queue("b"))


def test_an_exchange_that_was_never_read_is_unknown(router: Router) -> None:
    decision = router.decide(X, Message(b"k"))
    assert isinstance(decision, Unknown)
    assert decision.exchange == X
    assert X not in router.used_at


def test_a_ring_routes(router: Router, clock: Clock) -> None:
    router.put(X, entry(TWO))
    owners = set()
    for i in range(50):
        key = f"k{i}".encode()
        decision = router.decide(X, Message(key))
        assert decision == Routed(TWO.ring.owner_of(key), slot_of(key), TWO)
        owners.add(TWO.ring.owner_of(key))
    assert owners == {queue("a"), queue("b")}
    assert router.used_at == {X: clock.now}


def test_virtual_hosts_are_apart(router: Router) -> None:
    router.put(X, entry(TWO))
    assert isinstance(router.decide(("v", "x"), Message(b"k")), Unknown)


def test_the_fingerprint_is_of_ring_type_and_hashed_value() -> None:
    hashed = HashedValue("header", "h")
    assert TWO.fingerprint == fingerprint({queue("a"): 1, queue("b"): 1}, CONSISTENT_HASH, "routing_key")
    assert ring(queue("a"), hashed=hashed).fingerprint == fingerprint({queue("a"): 1}, CONSISTENT_HASH, "header:h")


@pytest.mark.parametrize("reason", [reason for reason in PassReason if reason is not PassReason.SHADOW])
@pytest.mark.parametrize("known", [None, TWO])
def test_passed_is_passed_with_its_reason(router: Router, reason: PassReason, known: KnownRing | None) -> None:
    router.put(X, entry(known, reason))
    assert router.decide(X, Message(b"k")) == Passed(reason)


def test_no_ring_and_no_reason_never_routes(router: Router) -> None:
    router.put(X, entry(None))
    assert router.decide(X, Message(b"k")) == Passed(PassReason.NO_BINDINGS)


def test_shadow_passes_and_tells_what_the_ring_would_do(router: Router) -> None:
    router.put(X, entry(TWO, PassReason.SHADOW))
    decision = router.decide(X, Message(b"k"))
    assert decision == Passed(PassReason.SHADOW, Routed(TWO.ring.owner_of(b"k"), slot_of(b"k"), TWO))
    router.put(X, entry(None, PassReason.SHADOW))
    assert router.decide(X, Message(b"k")) == Passed(PassReason.SHADOW)


def test_put_replaces_and_drop_forgets(router: Router) -> None:
    router.put(X, entry(TWO))
    only = ring(queue("c"))
    router.put(X, entry(only))
    assert router.decide(X, Message(b"k")) == Routed(queue("c"), slot_of(b"k"), only)
    router.drop(X)
    assert isinstance(router.decide(X, Message(b"k")), Unknown)
    assert (dict(router.entries), router.used_at) == ({}, {})
    router.drop(X)


def test_rings_behind_rings(router: Router, clock: Clock) -> None:
    router.put(X, entry(ring(exchange("y"))))
    inner = ring(queue("deep"))
    router.put(("/", "y"), entry(inner))
    decision = router.decide(X, Message(b"k"))
    assert decision == Routed(queue("deep"), slot_of(b"k"), inner)
    # Both are in use, so both stay fresh.
    assert router.used_at == {X: clock.now, ("/", "y"): clock.now}


def test_a_ring_behind_a_ring_is_of_the_same_virtual_host(router: Router) -> None:
    router.put(("v", "x"), entry(ring(exchange("y"))))
    router.put(("/", "y"), entry(ring(queue("wrong"))))
    decision = router.decide(("v", "x"), Message(b"k"))
    assert isinstance(decision, Unknown)
    assert decision.exchange == ("v", "y")


@pytest.mark.parametrize("reason", [PassReason.TYPE, PassReason.NO_BINDINGS, PassReason.MODE_PASS, PassReason.SHADOW])
def test_an_exchange_behind_a_ring_that_routes_by_itself_gets_the_message(router: Router, reason: PassReason) -> None:
    outer = ring(exchange("y"))
    router.put(X, entry(outer))
    router.put(("/", "y"), entry(TWO, reason))
    assert router.decide(X, Message(b"k")) == Routed(exchange("y"), slot_of(b"k"), outer)


def test_only_the_ring_that_a_message_meets_needs_to_be_known(router: Router) -> None:
    known = ring(exchange("y"), queue("q"))
    router.put(X, entry(known))
    for i in range(40):
        key = f"k{i}".encode()
        decision = router.decide(X, Message(key))
        if known.ring.owner_of(key) == queue("q"):
            assert isinstance(decision, Routed)
        else:
            assert isinstance(decision, Unknown)
            assert decision.exchange == ("/", "y")


def test_a_cycle_is_passed(router: Router) -> None:
    router.put(X, entry(ring(exchange("y"))))
    router.put(("/", "y"), entry(ring(exchange("x"))))
    assert router.decide(X, Message(b"k")) == Passed(PassReason.CYCLE)
    router.put(X, entry(ring(exchange("x"))))
    assert router.decide(X, Message(b"k")) == Passed(PassReason.CYCLE)


@pytest.mark.parametrize(("hops", "reached"), [(1, True), (MAX_HOPS, True), (MAX_HOPS + 1, False)])
def test_a_chain_of_rings_has_a_longest_length(router: Router, hops: int, reached: bool) -> None:
    for i in range(hops):
        router.put(("/", f"x{i}"), entry(ring(exchange(f"x{i + 1}") if i + 1 < hops else queue("end"))))
    decision = router.decide(("/", "x0"), Message(b"k"))
    assert (isinstance(decision, Routed) and decision.destination == queue("end")) is reached
    assert isinstance(decision, Routed) or decision == Passed(PassReason.CYCLE)


def test_a_stale_ring_serves_unless_told_otherwise(clock: Clock) -> None:
    serving, refusing = (Router(MAX_AGE, refuse_stale=refuse, clock=clock) for refuse in (False, True))
    for router in (serving, refusing):
        router.put(X, entry(TWO, read_at=clock.now))
    clock.now += MAX_AGE
    for router in (serving, refusing):
        assert isinstance(router.decide(X, Message(b"k")), Routed)
        assert not router.stale(router.entries[X])
    clock.now += 0.001
    assert isinstance(serving.decide(X, Message(b"k")), Routed)
    assert serving.stale(serving.entries[X])
    refused = refusing.decide(X, Message(b"k"))
    assert isinstance(refused, Unknown)
    assert refused.exchange == X
    assert "300 s" in refused.why
    refusing.put(X, entry(TWO, read_at=clock.now))
    assert isinstance(refusing.decide(X, Message(b"k")), Routed)


def test_a_stale_ring_behind_a_fresh_one_is_what_must_be_read(clock: Clock) -> None:
    router = Router(MAX_AGE, refuse_stale=True, clock=clock)
    router.put(X, entry(ring(exchange("y")), read_at=clock.now))
    router.put(("/", "y"), entry(TWO, read_at=clock.now - MAX_AGE - 1))
    decision = router.decide(X, Message(b"k"))
    assert isinstance(decision, Unknown)
    assert decision.exchange == ("/", "y")


@pytest.mark.parametrize("known", [None, TWO])
@pytest.mark.parametrize(
    ("mode", "reason", "refused"),
    [
        (Mode.SHADOW, PassReason.SHADOW, False),
        (Mode.PASS, PassReason.MODE_PASS, False),
        (Mode.ROUTE, PassReason.TYPE, False),
        (Mode.ROUTE, PassReason.DEAD_LETTER, True),
        (Mode.ROUTE, PassReason.NO_BINDINGS, True),
    ],
)
def test_what_is_passed_for_its_bindings_is_refused_once_stale_and_what_is_passed_anyway_is_not(
    clock: Clock, mode: Mode, reason: PassReason, refused: bool, known: KnownRing | None
) -> None:
    """Keys placed natively by accident are worse than an error."""
    router = Router(MAX_AGE, refuse_stale=True, clock=clock)
    router.put(X, entry(known, reason, read_at=clock.now - MAX_AGE - 1, mode=mode))
    decision = router.decide(X, Message(b"k"))
    assert isinstance(decision, Unknown) is refused
    assert refused or (isinstance(decision, Passed) and decision.reason is reason)


BY_HEADER = ring(queue("a"), queue("b"), queue("c"), hashed=HashedValue("header", "customer"))
BY_PROPERTY = ring(queue("a"), queue("b"), queue("c"), hashed=HashedValue("property", "timestamp"))


@pytest.mark.parametrize(
    ("known", "message", "key"),
    [
        (BY_HEADER, Message(b"rk", {"customer": "é"}), "é".encode()),
        (BY_HEADER, Message(b"rk", {"customer": b"\xff"}), b"\xff"),
        (BY_HEADER, Message(b"rk", {"customer": 42}), b"42"),
        (BY_HEADER, Message(b"rk", {"customer": ""}, {"customer": "p"}), b""),
        (BY_PROPERTY, Message(b"rk", {"timestamp": "h"}, {"timestamp": 17}), b"17"),
    ],
)
def test_the_hashed_value_is_the_one_that_the_exchange_names(
    router: Router, known: KnownRing, message: Message, key: bytes
) -> None:
    router.put(X, entry(known))
    assert router.decide(X, message) == Routed(known.ring.owner_of(key), slot_of(key), known)


@pytest.mark.parametrize("known", [BY_HEADER, BY_PROPERTY])
@pytest.mark.parametrize("headers", [{}, {"customer": True}, {"customer": None}, {"Customer": "x"}])
def test_without_the_hashed_value_a_message_goes_where_the_empty_value_goes(
    router: Router, known: KnownRing, headers: dict[str, object]
) -> None:
    router.put(X, entry(known))
    for routing_key in (b"one", b"other"):
        decision = router.decide(X, Message(routing_key, headers))
        assert decision == Routed(known.ring.owner_of(b""), slot_of(b""), known, value_missing=True)


def test_a_question_about_a_key_takes_it_for_whatever_is_hashed(router: Router) -> None:
    for known in (TWO, BY_HEADER, BY_PROPERTY):
        router.put(X, entry(known))
        for key in (b"", b"k1", b"\xff"):
            decision = router.decide(X, Message(b"rk", {"customer": "c"}, {"timestamp": 3}, key=key))
            assert decision == Routed(known.ring.owner_of(key), slot_of(key), known)


def test_changes_are_kept_up_to_a_number() -> None:
    kept = entry(TWO)
    for i in range(CHANGES_KEPT + 3):
        kept = with_change(kept, Change(i, "why", "what", 0.1, "f"))
    assert [change.at for change in kept.changes] == list(range(3, CHANGES_KEPT + 3))
    assert kept.known is TWO
