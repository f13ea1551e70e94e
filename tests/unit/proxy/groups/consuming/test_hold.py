"""Messages in series that are held for too long: they become dead letters, or their shard stands."""

import logging
from struct import pack

import pytest

from proxy.groups.blocked import Backlog
from proxy.groups.consuming import settle
from proxy.groups.consuming.events import DeadLetterDue
from proxy.groups.consuming.rules import MOST_BEHIND, Rules, limits
from proxy.groups.consuming.series import LEAVES_WITHIN, HeldState
from proxy.groups.operators import Act, Order
from proxy.session import client_loop
from proxy.settings.tries import LONGEST_SPREAD
from tests.unit.proxy.groups.consuming.grouping import FIRST, bodies, deliver
from tests.unit.proxy.groups.consuming.test_retries import Limited
from tests.unit.proxy.session.wire import ack, method

A = FIRST + 1
SHORT = 1.0 / LONGEST_SPREAD
"""A delay that is over after a second, whatever the key."""
HOLD = Rules(200, SHORT, SHORT, hold=5.0)


def returned(wire: Limited, tag: int) -> None:
    client_loop.from_client(wire.c, method(1, 60, 120, pack(">QB", tag, 2)))


def backlog(wire: Limited) -> Backlog:
    found = wire.actions.backlog(wire.member)
    assert found is not None
    return found


def held_for_long(rules: Rules) -> tuple[Limited, int]:
    """Return a session whose first message was returned for 5 s, and the client's last delivery tag."""
    wire = Limited(rules)
    wire.broker(deliver(A, 1, b"bad", key=b"a") + deliver(A, 2, b"behind", key=b"a"))
    for number in range(1, 6):
        returned(wire, number)
        wire.to_client()
        wire.wait(1.0)
    return wire, 5


@pytest.mark.parametrize(
    ("given", "version", "hold", "behind"),
    [
        (None, (4, 3), 3600.0, 0),
        (None, (5, 0), 3600.0, 0),
        (None, (4, 2), 600.0, MOST_BEHIND),
        (None, (0, 0), 600.0, MOST_BEHIND),
        (7.0, (4, 3), 7.0, 0),
        (7.0, (3, 13), 7.0, MOST_BEHIND),
        (0.0, (3, 13), 0.0, 0),
    ],
)
def test_the_limits_follow_the_broker(given: float | None, version: tuple[int, int], hold: float, behind: int) -> None:
    found = limits(Rules(hold=given), version)
    assert (found.hold, found.behind) == (hold, behind)


@pytest.mark.parametrize(
    ("rules", "hold"),
    [
        (Rules(limit=20), 1128.75),
        (Rules(limit=8), 600.0),
        (Rules(delay=2.0, longest=1e6, limit=1_000_000), LONGEST_SPREAD * (2.0 * (2.0**19 - 1) + 999_981 * 1e6)),
        (Rules(limit=20, hold=60.0), 60.0),
    ],
)
def test_by_default_a_message_has_all_its_tries(rules: Rules, hold: float) -> None:
    assert limits(rules, (4, 2)).hold == hold


def test_a_message_that_is_held_for_too_long_becomes_a_dead_letter() -> None:
    wire, _ = held_for_long(HOLD._replace(dead_letters=True))
    (due,) = [event for event in wire.told() if isinstance(event, DeadLetterDue)]
    assert (due.letter.reason, due.letter.tries) == ("held-too-long", 5)
    assert wire.to_client() == b""
    settle.dead_lettered(wire.consuming, due.held, is_confirmed=True)
    assert wire.to_broker() == ack(A, 1)
    assert bodies(wire.to_client()) == [b"behind"]


def test_without_dead_letters_its_shard_stands_and_it_is_tried_until_it_is_done(
    caplog: pytest.LogCaptureFixture,
) -> None:
    wire, last = held_for_long(HOLD)
    assert "was returned 5 times, first 5 s ago (groups_hold_max): its shard stands until" in caplog.text
    assert bodies(wire.to_client()) == [b"bad"], "it is tried as before"
    assert wire.broker(deliver(A, 3, b"other", key=b"b")) == b""
    assert backlog(wire).standing == 1
    (key,) = [key for key in wire.actions.blocked_keys(wire.member, "q1") if key.tries]
    assert (key.state, key.stands) == ("with the client", True)
    returned(wire, last + 1)
    wire.wait(0.5)
    assert wire.to_client() == b""
    wire.wait(0.5)
    assert bodies(wire.to_client()) == [b"bad"]
    client_loop.from_client(wire.c, ack(1, last + 2))
    assert bodies(wire.to_client()) == [b"other", b"behind"]
    assert backlog(wire).standing == 0
    assert len([each for each in caplog.records if each.levelno == logging.WARNING]) == 1


def test_what_was_ready_when_its_shard_comes_to_stand_waits_too() -> None:
    wire = Limited(HOLD)
    (consumer,) = wire.consuming.consumers.values()
    assert consumer.series is not None
    consumer.series.room = 1
    assert bodies(wire.broker(deliver(A, 1, b"bad", key=b"a"))) == [b"bad"]
    for number in range(1, 6):
        returned(wire, number)
        wire.wait(1.0)
        wire.to_client()
    wire.broker(deliver(A, 2, b"other", key=b"b"))
    returned(wire, 6)
    assert wire.to_client() == b""


@pytest.mark.parametrize("act", [Act.SKIP, Act.RELEASE, Act.DEAD_LETTER])
def test_a_stopped_message_has_its_shard_stand_until_an_operator_decides(act: Act) -> None:
    wire = Limited(HOLD._replace(limit=1, buries=True))
    wire.broker(deliver(A, 1, b"bad", key=b"a"))
    returned(wire, 1)
    wire.wait(LEAVES_WITHIN)
    assert backlog(wire)[1:] == (1, backlog(wire).since, 0, 0)
    assert bodies(wire.broker(deliver(A, 2, b"other", key=b"b"))) == [b"other"]
    for _ in range(4):
        wire.wait(1.0)
    assert backlog(wire).standing == 1
    assert wire.broker(deliver(A, 3, b"later", key=b"c")) == b""
    (key,) = [key for key in wire.actions.blocked_keys(wire.member, "q1") if key.tries]
    now = wire.c.now
    assert wire.actions.operate(wire.member, Order(act, "q1", key.key_hash, key.fingerprint)) == ""
    wire.c.now = now
    settle.try_again(wire.consuming)
    assert set(bodies(wire.to_client())) == {b"later", *([b"bad"] if act is Act.RELEASE else [])}
    assert backlog(wire).standing == 0


def test_too_many_bytes_behind_it_count_as_too_long_before_rabbitmq_4_3() -> None:
    wire = Limited(HOLD)
    (consumer,) = wire.consuming.consumers.values()
    assert consumer.series is not None
    consumer.series.rules = HOLD._replace(hold=600.0, behind=5000)
    wire.broker(deliver(A, 1, b"bad", key=b"a"))
    returned(wire, 1)
    for tag in range(2, 12):
        assert backlog(wire).standing == 0
        assert bodies(wire.broker(deliver(A, tag, bytes(100), key=b"%d" % tag))) == [bytes(100)]
    wire.wait(1.0)
    assert backlog(wire).standing == 1


def test_a_message_that_comes_by_another_link_is_held_since_its_first_return() -> None:
    wire = Limited(HOLD._replace(dead_letters=True))
    wire.broker(deliver(A, 1, b"bad", key=b"a"))
    returned(wire, 1)
    ((shard, known),) = wire.member.attempts.shards.items()
    ((found, attempt),) = known.items()
    other = Limited(HOLD._replace(dead_letters=True))
    other.member.attempts.note(shard, found, attempt.tries, attempt.due, attempt.since - 6.0)
    other.broker(deliver(A, 1, b"bad", key=b"a", redelivered=True))
    other.wait(0.0)
    assert bodies(other.to_client()) == [b"bad"], "a try after the time that nobody worked on it"
    returned(other, 1)
    other.wait(LEAVES_WITHIN)
    due = other.due()
    assert (due.state, due.tries) == (HeldState.DEAD, 2)
    assert bodies(other.to_client()) == []


def test_a_message_that_is_overdue_as_it_comes_and_has_no_tries_left_gets_none() -> None:
    wire = Limited(HOLD._replace(limit=1))
    wire.broker(deliver(A, 1, b"bad", key=b"a"))
    returned(wire, 1)
    ((shard, known),) = wire.member.attempts.shards.items()
    ((found, attempt),) = known.items()
    other = Limited(HOLD._replace(limit=1))
    other.member.attempts.note(shard, found, attempt.tries, attempt.due, attempt.since - 6.0)
    other.broker(deliver(A, 1, b"bad", key=b"a", redelivered=True))
    other.wait(0.0)
    assert other.to_client() == b""
    assert backlog(other).standing == 1


def test_without_a_limit_a_message_is_held_for_ever() -> None:
    wire, _ = held_for_long(HOLD._replace(hold=0.0))
    assert bodies(wire.to_client()) == [b"bad"]
    assert backlog(wire).standing == 0
    wire.c.now += 10_000
    returned(wire, 6)
    wire.wait(1.0)
    assert bodies(wire.to_client()) == [b"bad"]
    assert backlog(wire).standing == 0
