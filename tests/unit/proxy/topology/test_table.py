"""The entries of the router: what is known of each exchange, whether it may be used, and who is told of changes."""

from collections.abc import Callable
from dataclasses import replace
from math import inf
from unittest.mock import Mock

import pytest

from proxy.settings.patterns import Mode
from proxy.topology.bindings import CONSISTENT_HASH, Bindings
from proxy.topology.table import (
    CHANGES_KEPT,
    Change,
    Entry,
    KnownRing,
    Name,
    PassReason,
    Router,
    Unread,
    with_change,
)
from ring.destination import Destination
from ring.hashed import HashedValue
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
    assert router.look(X) == Unread(X, "not read yet")
    assert X not in router.used_at


def test_virtual_hosts_are_apart(router: Router) -> None:
    router.put(X, entry(TWO))
    assert isinstance(router.look(("v", "x")), Unread)


def test_the_fingerprint_is_of_ring_type_and_hashed_value() -> None:
    hashed = HashedValue("header", "h")
    assert TWO.fingerprint == fingerprint({queue("a"): 1, queue("b"): 1}, CONSISTENT_HASH, "routing_key")
    assert ring(queue("a"), hashed=hashed).fingerprint == fingerprint({queue("a"): 1}, CONSISTENT_HASH, "header:h")


def test_put_replaces_and_drop_forgets(router: Router) -> None:
    router.put(X, entry(TWO))
    only = entry(ring(queue("c")))
    router.put(X, only)
    assert router.look(X) is only
    router.drop(X)
    assert isinstance(router.look(X), Unread)
    assert (dict(router.entries), router.used_at) == ({}, {})
    router.drop(X)


def test_a_stale_ring_serves_unless_told_otherwise(clock: Clock) -> None:
    serving, refusing = (Router(MAX_AGE, refuse_stale=refuse, clock=clock) for refuse in (False, True))
    for router in (serving, refusing):
        router.put(X, entry(TWO, read_at=clock.now))
    clock.now += MAX_AGE
    for router in (serving, refusing):
        assert isinstance(router.look(X), Entry)
        assert not router.stale(router.entries[X])
    clock.now += 0.001
    assert isinstance(serving.look(X), Entry)
    assert serving.stale(serving.entries[X])
    refused = refusing.look(X)
    assert isinstance(refused, Unread)
    assert refused.name == X
    assert "300 s" in refused.why
    refusing.put(X, entry(TWO, read_at=clock.now))
    assert isinstance(refusing.look(X), Entry)


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
    assert isinstance(router.look(X), Unread) is refused


def test_changes_are_kept_up_to_a_number() -> None:
    kept = entry(TWO)
    for i in range(CHANGES_KEPT + 3):
        kept = with_change(kept, Change(i, "why", "what", 0.1, "f"))
    assert [change.at for change in kept.changes] == list(range(3, CHANGES_KEPT + 3))
    assert kept.known is TWO


# Declarations that were not read back yet

Y: Name = ("/", "y")


@pytest.fixture
def changed(router: Router) -> Mock:
    """Called whenever the router tells of a change."""
    told = Mock()
    router.on_change.append(told)
    return told


def test_what_was_declared_on_is_unknown_until_it_was_read_after_that(router: Router) -> None:
    router.put(X, entry(TWO, read_at=1000.0))
    router.mark_declared(X, 1001.0, certain=True)
    assert router.awaits_read_back(X)
    assert router.look(X) == Unread(X, "the management API does not show a declaration yet")
    # The reading was under way when the -ok came.
    router.put(X, entry(TWO, read_at=1000.9))
    assert isinstance(router.look(X), Unread)
    router.put(X, entry(TWO, read_at=1001.0))
    assert isinstance(router.look(X), Entry)
    assert router.look(X) is router.entries[X]
    assert not router.awaits_read_back(X)


def test_an_exchange_that_was_never_read_can_be_declared_on(router: Router) -> None:
    router.mark_declared(X, 1001.0, certain=True)
    assert router.awaits_read_back(X)
    router.put(X, entry(TWO, read_at=1000.0))
    assert isinstance(router.look(X), Unread)
    router.drop(X)
    assert not router.awaits_read_back(X)
    router.put(X, entry(TWO, read_at=1000.0))
    assert isinstance(router.look(X), Entry)


def test_a_publish_waits_for_what_was_declared_before_it_only(router: Router) -> None:
    """Else a stream of declarations would hold it up for as long as it lasts."""
    router.put(X, entry(TWO, read_at=1000.0))
    router.mark_declared(X, 1001.0, certain=True)
    assert isinstance(router.look(X, 1000.0), Entry)
    assert isinstance(router.look(X, 1000.1), Unread)
    assert not router.awaits_read_back(X, 1000.0)
    assert router.awaits_read_back(X, 1000.1)
    router.mark_declared(Y, 1001.0, certain=True)
    assert router.awaits_read_back(Y, 0.0), "there is no entry that could do"


def test_a_failed_reading_lifts_only_what_is_not_certain_and_came_before_it(router: Router) -> None:
    router.put(X, entry(TWO))
    router.mark_declared(X, 1001.0, certain=False)
    assert isinstance(router.look(X), Unread)
    assert not router.release_uncertain(X, 1000.9)
    assert router.awaits_read_back(X)
    assert router.release_uncertain(X, 1001.0)
    assert isinstance(router.look(X), Entry)
    assert not router.release_uncertain(X, 1002.0)
    router.mark_declared(X, 1003.0, certain=True)
    assert not router.release_uncertain(X, 1004.0)
    assert router.awaits_read_back(X)


@pytest.mark.parametrize("certain", [(True, False), (False, True)])
def test_of_several_declarations_the_latest_time_counts_and_certain_is_what_any_is(
    router: Router, certain: tuple[bool, bool]
) -> None:
    router.put(X, entry(TWO))
    for at, sure in zip((1001.0, 1002.0), certain, strict=True):
        router.mark_declared(X, at, certain=sure)
    assert not router.release_uncertain(X, 1003.0)
    router.put(X, entry(TWO, read_at=1001.5))
    assert router.awaits_read_back(X)
    router.put(X, entry(TWO, read_at=1002.0))
    assert not router.awaits_read_back(X)


def test_an_earlier_time_does_not_take_the_place_of_a_later_one(router: Router) -> None:
    router.put(X, entry(TWO))
    router.mark_declared(X, 1002.0, certain=False)
    router.mark_declared(X, 1001.0, certain=False)
    router.put(X, entry(TWO, read_at=1001.5))
    assert router.awaits_read_back(X)


def test_a_stream_of_declarations_that_change_nothing_does_not_hold_up_publishes_while_nothing_can_be_read(
    router: Router,
) -> None:
    router.put(X, entry(TWO))
    router.mark_declared(X, 1001.0, certain=False)
    router.mark_declared(X, 1003.0, certain=False)
    assert not router.release_uncertain(X, 1000.9)
    assert router.release_uncertain(X, 1001.0)
    assert isinstance(router.look(X), Entry)


def test_use_shows_also_where_a_declaration_is_waited_for(router: Router, clock: Clock) -> None:
    router.put(X, entry(TWO))
    router.mark_declared(X, 1001.0, certain=True)
    router.look(X)
    assert router.used_at == {X: clock.now}


# Who is told.


def test_changes_are_told_and_readings_that_change_nothing_are_not(router: Router, changed: Mock) -> None:
    first = entry(TWO, read_at=1000.0)
    router.put(X, first)
    assert changed.call_count == 1
    router.put(X, replace(first, read_at=1001.0, bindings=Bindings({queue("a"): 1}), queues={"a": ""}))
    assert changed.call_count == 1, "as before, but for what routes nothing"
    router.mark_declared(X, 1002.0, certain=False)
    assert changed.call_count == 2
    router.mark_declared(X, 1003.0, certain=True)
    router.put(X, replace(first, read_at=1002.5))
    assert not router.release_uncertain(X, 1004.0)
    assert changed.call_count == 2, "it was unknown, and is"
    router.put(X, replace(first, read_at=1003.0))
    assert changed.call_count == 3, "a mark was lifted"
    router.mark_declared(Y, 1003.0, certain=False)
    router.release_uncertain(Y, 1003.0)
    router.release_uncertain(Y, 1003.0)
    assert changed.call_count == 5
    router.drop(X)
    assert changed.call_count == 6


@pytest.mark.parametrize(
    "change",
    [
        lambda e: replace(e, known=ring(queue("a"), queue("b"))),
        lambda e: replace(e, known=None),
        lambda e: replace(e, passed=PassReason.DEAD_LETTER),
        lambda e: replace(e, mode=Mode.SHADOW),
        lambda e: replace(e, internal=True),
    ],
)
def test_every_change_that_matters_is_told(router: Router, changed: Mock, change: Callable[[Entry], Entry]) -> None:
    router.put(X, entry(TWO))
    router.put(X, change(entry(TWO)))
    assert changed.call_count == 2


def test_all_who_want_to_know_are_told(router: Router, changed: Mock) -> None:
    also = Mock()
    router.on_change.append(also)
    router.notify()
    assert changed.call_count == also.call_count == 1


def test_a_reading_of_what_was_refused_as_stale_is_a_change(clock: Clock) -> None:
    for refuse, told in ((True, 2), (False, 1)):
        router, changed = Router(MAX_AGE, refuse_stale=refuse, clock=clock), Mock()
        router.on_change.append(changed)
        router.put(X, entry(TWO, read_at=clock.now))
        clock.now += MAX_AGE + 1
        router.put(X, entry(TWO, read_at=clock.now))
        assert changed.call_count == told


def test_how_long_an_entry_is_served(clock: Clock) -> None:
    serving, refusing = (Router(MAX_AGE, refuse_stale=refuse, clock=clock) for refuse in (False, True))
    assert serving.fresh_until(entry(TWO)) == inf
    assert refusing.fresh_until(entry(TWO, read_at=1000.0)) == 1000.0 + MAX_AGE
    assert refusing.fresh_until(entry(None, PassReason.TYPE)) == inf
    assert refusing.fresh_until(entry(TWO, PassReason.SHADOW, mode=Mode.SHADOW)) == inf
