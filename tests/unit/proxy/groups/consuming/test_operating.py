"""Orders of operators: what they do to the first message of a key, and when they are refused."""

from struct import pack

import pytest

from proxy.groups.blocked import Backlog, BlockedKey
from proxy.groups.consuming import settle
from proxy.groups.consuming.events import DeadLetterDue
from proxy.groups.consuming.rules import Rules, spread
from proxy.groups.operators import MAX_BYTES, Act, Order, OrderError, decode
from proxy.settings.tries import LONGEST_SPREAD
from tests.unit.proxy.groups.consuming.grouping import closed, deliver, seen
from tests.unit.proxy.groups.consuming.test_retries import A, Limited
from tests.unit.proxy.session.wire import ack, method

RULES = Rules(200, 5.0, 5.0, 1, buries=True)


def returned(wire: Limited, tag: int) -> None:
    wire.client(method(1, 60, 120, pack(">QB", tag, 2)))


def stopped(rules: Rules = RULES) -> tuple[Limited, BlockedKey]:
    """Return a session with a message that was tried as often as it may, and one that waits for it."""
    wire = Limited(rules)
    wire.broker(deliver(A, 1) + deliver(A, 2))
    returned(wire, 1)
    wire.wait(5.0 * LONGEST_SPREAD)
    (key,) = wire.actions.blocked_keys(wire.member, "q1")
    assert key.state == "stopped"
    return wire, key


def operate(wire: Limited, key: BlockedKey, act: Act) -> str:
    return wire.actions.operate(wire.member, Order(act, key.shard, key.key_hash, key.fingerprint))


def test_a_released_message_is_tried_at_once_and_has_all_its_tries_again() -> None:
    wire, key = stopped()
    assert operate(wire, key, Act.RELEASE) == ""
    wire.wait(0.0)
    assert wire.to_client()
    assert wire.actions.backlog(wire.member) == Backlog(0, 0, 0.0, 0)
    assert wire.member.attempts.shards == {}
    returned(wire, 2)
    (again,) = wire.actions.blocked_keys(wire.member, "q1")
    assert (again.state, again.tries) == ("to be tried again", 1)
    assert again.due == wire.c.now + 5.0 * spread(bytes.fromhex(again.key_hash))


def test_a_message_that_was_released_and_returned_keeps_its_new_delay() -> None:
    wire = Limited(RULES._replace(limit=0))
    wire.broker(deliver(A, 1))
    returned(wire, 1)
    wire.c.now += 4.9
    (key,) = wire.actions.blocked_keys(wire.member, "q1")
    before = wire.c.now
    assert operate(wire, key, Act.RELEASE) == ""
    wire.c.now = before
    wire.wait(0.0)
    wire.to_client()
    wire.c.now += 0.5
    returned(wire, 2)
    wire.wait(1.0)
    assert wire.to_client() == b"", "the message was tried when its first delay was over"
    wire.wait(5.0 * LONGEST_SPREAD - 1.0)
    assert wire.to_client()


def test_a_message_that_is_skipped_is_acked_and_its_key_goes_on() -> None:
    wire, key = stopped()
    assert operate(wire, key, Act.SKIP) == ""
    assert wire.to_broker() == ack(A, 1)
    wire.wait(0.0)
    assert wire.to_client() == seen(2)
    assert wire.actions.backlog(wire.member) == Backlog(0, 0, 0.0, 0)


def test_a_message_that_is_dead_lettered_is_acked_once_that_is_confirmed() -> None:
    wire, key = stopped()
    wire.told()
    wire.member.group = "x/audit"  # of the exchange x
    assert operate(wire, key, Act.DEAD_LETTER) == ""
    (event,) = [event for event in wire.told() if isinstance(event, DeadLetterDue)]
    assert (event.letter.group, event.letter.reason, event.letter.tries) == ("x/audit", "operator", 1)
    assert wire.to_broker() == b""
    assert operate(wire, key, Act.SKIP) == "the message is a dead letter already, whose confirm is awaited"
    settle.dead_lettered(wire.consuming, event.held, is_confirmed=True)
    assert wire.to_broker() == ack(A, 1)
    assert wire.to_client() == seen(2)


@pytest.mark.parametrize("limit", [0, 1, 5])
def test_a_dead_letter_that_an_operator_ordered_and_nobody_confirmed_is_published_again(limit: int) -> None:
    wire = Limited(RULES._replace(limit=limit))
    wire.broker(deliver(A, 1) + deliver(A, 2))
    returned(wire, 1)
    since = wire.c.now
    (key,) = wire.actions.blocked_keys(wire.member, "q1")
    wire.told()
    assert operate(wire, key, Act.DEAD_LETTER) == ""
    (event,) = [event for event in wire.told() if isinstance(event, DeadLetterDue)]
    assert wire.actions.backlog(wire.member) == Backlog(1, 0, since, 0)
    settle.dead_lettered(wire.consuming, event.held, is_confirmed=False)
    assert wire.actions.backlog(wire.member) == Backlog(1, 0, since, 0)
    wire.wait(5.0)
    (again,) = [event for event in wire.told() if isinstance(event, DeadLetterDue)]
    assert again.letter.reason == "operator"
    assert wire.both(b"") == (b"", b""), "the client or the broker has got something of it"
    settle.dead_lettered(wire.consuming, again.held, is_confirmed=True)
    assert wire.to_broker() == ack(A, 1)
    assert wire.to_client() == seen(2)
    assert wire.actions.backlog(wire.member) == Backlog(0, 0, 0.0, 0)


@pytest.mark.parametrize("act", Act)
def test_an_order_that_cannot_be_done_does_nothing_and_says_why(act: Act) -> None:
    wire, key = stopped(RULES._replace(buries=False))
    if act is Act.DEAD_LETTER:
        assert operate(wire, key, act) == "groups_dead_letter of its sidecar names no exchange"
    assert operate(wire, key._replace(fingerprint="0" * 32), act) == "another message is the first of its key by now"
    assert operate(wire, key._replace(key_hash="0" * 32), act) == "no message of the key is here"
    assert operate(wire, key._replace(shard="q2"), act) == "its shard is about to move"
    assert wire.to_broker() == b""
    assert len(wire.actions.blocked_keys(wire.member, "q1")) == 1
    wire.actions.give_up(wire.member, "q1")
    assert operate(wire, key, act) == "no message of the key is here"
    wire.to_broker()
    wire.both(closed(A))
    assert operate(wire, key, act) == "its shard is about to move"


@pytest.mark.parametrize("act", Act)
def test_a_message_on_which_a_client_works_is_left_to_it(act: Act) -> None:
    wire = Limited(RULES)
    wire.broker(deliver(A, 1) + deliver(A, 2))
    (key,) = wire.actions.blocked_keys(wire.member, "q1")
    assert operate(wire, key, act) == "its client works on the message now"
    assert wire.to_broker() == b""
    assert wire.actions.blocked_keys(wire.member, "q1") == [key]


ORDER = b'{"act":"skip","shard":"q1","key_hash":"%s","fingerprint":"%s"}' % (b"a" * 32, b"b" * 32)


def test_an_order_is_decoded() -> None:
    assert decode(ORDER) == Order(Act.SKIP, "q1", "a" * 32, "b" * 32)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        ORDER.replace(b"skip", b"x"),
        ORDER.replace(b"aa", b"a"),
        ORDER.replace(b'a"', b'a\\n"'),
        ORDER[:-1] + b',"x":1}',
    ],
)
def test_a_message_that_is_no_order_is_refused(body: bytes) -> None:
    with pytest.raises(OrderError):
        decode(body)


def test_a_long_message_is_no_order() -> None:
    with pytest.raises(OrderError, match="more than 4096 bytes"):
        decode(ORDER + b" " * MAX_BYTES)
