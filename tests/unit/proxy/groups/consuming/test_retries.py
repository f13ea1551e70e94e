"""A session with messages in series that were tried as often as they may, and its memory of tries."""

import logging
import time
from struct import pack

import pytest

from proxy.groups.blocked import Backlog
from proxy.groups.consuming import settle
from proxy.groups.consuming.events import DeadLetterDue
from proxy.groups.consuming.retries import fingerprint
from proxy.groups.consuming.rules import Rules, spread
from proxy.groups.consuming.series import LEAVES_WITHIN, Held, HeldState
from proxy.groups.model import Member
from proxy.session import client_loop
from proxy.settings.tries import LONGEST_SPREAD
from proxy.wire import table
from tests.unit.proxy.groups.consuming.grouping import FIRST, Grouping, closed, deliver, opened, seen
from tests.unit.proxy.session.wire import ack, headers, long_string, method

A = FIRST + 1
LIMITED = Rules(200, 0.1, 0.5, 1, dead_letters=True)


class Limited(Grouping):
    """A session with one member in series, which is linked to the shard q1."""

    def __init__(self, rules: Rules = LIMITED) -> None:
        super().__init__()
        self.consuming.rules = rules
        self.member: Member = self.join(("q1",), arguments={"x-ring-in-series": True})
        self.c.now = time.monotonic() - 60.0  # so that what counts after a second counts as a link ends

    def returned(self, tag: int = 1) -> None:
        """Have the client return a message, and its delay be over."""
        self.client(method(1, 60, 120, pack(">QB", tag, 2)))
        self.wait(LEAVES_WITHIN)

    def wait(self, seconds: float) -> None:
        self.c.now += seconds
        settle.try_again(self.consuming)

    def due(self) -> Held:
        """Return the message whose dead letter is due, which is all that has happened."""
        (event,) = [event for event in self.told() if isinstance(event, DeadLetterDue)]
        return event.held

    @property
    def size(self) -> int:
        (consumer,) = self.consuming.consumers.values()
        assert consumer.series is not None
        return consumer.series.size


def test_a_confirmed_dead_letter_is_acked_and_the_next_of_its_key_is_its_turn() -> None:
    wire = Limited()
    wire.broker(deliver(A, 1) + deliver(A, 2))
    wire.returned()
    held = wire.due()
    assert wire.to_broker() == b"", "the broker has an ack before the dead letter is confirmed"
    settle.dead_lettered(wire.consuming, held, is_confirmed=True)
    assert wire.to_broker() == ack(A, 1)
    assert wire.to_client() == seen(2)
    assert wire.member.links["q1"].unacked == 1
    assert wire.member.attempts.shards == {}


def test_a_dead_letter_that_is_not_confirmed_is_not_acked_and_comes_again() -> None:
    wire = Limited()
    wire.broker(deliver(A, 1))
    wire.returned()
    settle.dead_lettered(wire.consuming, wire.due(), is_confirmed=False)
    assert wire.both(b"") == (b"", b"")
    assert wire.member.links["q1"].unacked == 0
    wire.wait(LEAVES_WITHIN)
    assert wire.due().state == HeldState.DEAD


def test_a_link_that_is_let_go_ends_once_its_dead_letter_is_confirmed() -> None:
    wire = Limited()
    wire.broker(deliver(A, 1))
    wire.returned()
    held = wire.due()
    wire.actions.let_go(wire.member, "q1")
    assert wire.to_broker() == b""
    settle.dead_lettered(wire.consuming, held, is_confirmed=True)
    sent = wire.frames()
    assert [frame.id for frame in sent] == [(60, 80), (20, 40)]


@pytest.mark.parametrize("is_confirmed", [True, False])
def test_a_dead_letter_whose_link_is_gone_frees_its_memory_and_keeps_its_tries(is_confirmed: bool) -> None:
    """The broker delivers its message again, and it is not tried anew then."""
    wire = Limited()
    wire.broker(deliver(A, 1))
    wire.returned()
    held = wire.due()
    wire.actions.give_up(wire.member, "q1")
    wire.to_broker()
    wire.broker(closed(A))
    assert wire.size > 0
    settle.dead_lettered(wire.consuming, held, is_confirmed=is_confirmed)
    assert wire.size == 0
    assert wire.to_broker() == b""
    assert [each.tries for each in wire.member.attempts.shards["q1"].values()] == [1]


def test_an_answer_behind_the_end_of_a_link_keeps_the_tries() -> None:
    """The broker does not get it, and delivers the message again."""
    wire = Limited(Rules(200, 0.1, 0.5, 3, dead_letters=True))
    wire.broker(deliver(A, 1))
    wire.returned()
    wire.to_client()
    wire.actions.give_up(wire.member, "q1")
    wire.to_broker()
    assert wire.client(ack(1, 2)) == b""
    assert [each.tries for each in wire.member.attempts.shards["q1"].values()] == [1]


def test_the_last_try_counts_only_if_the_client_goes_on_for_a_second() -> None:
    """A client that stops returns what it was just sent, however short the delay."""
    wire = Limited()
    wire.broker(deliver(A, 1))
    wire.client(method(1, 60, 120, pack(">QB", 1, 2)))
    wire.wait(LEAVES_WITHIN - 0.01)
    assert wire.told() == []
    wire.wait(0.02)
    assert wire.due().tries == 1


def test_a_message_that_was_not_delivered_before_has_no_tries_behind_it() -> None:
    """Two equal ones without an id of their own have one fingerprint."""
    wire = Limited()
    wire.broker(deliver(A, 1))
    wire.returned()
    settle.dead_lettered(wire.consuming, wire.due(), is_confirmed=False)
    wire.actions.give_up(wire.member, "q1")
    wire.to_broker()
    wire.broker(closed(A))
    assert wire.member.attempts.shards["q1"]
    assert wire.actions.open(wire.member, "q1") == ""
    number = wire.member.links["q1"].channel
    wire.to_broker()
    wire.broker(opened(number))
    wire.c.now = time.monotonic()
    assert wire.broker(deliver(number, 1)) == seen(2)
    assert wire.client(ack(1, 2)) == ack(number, 1)
    wire.forget()
    # One that was delivered before is dead-lettered, and not tried.
    assert wire.broker(deliver(number, 2, redelivered=True)) == b""
    wire.wait(LEAVES_WITHIN)
    assert wire.due().tag == 2


def test_two_deliveries_of_a_message_have_one_fingerprint_though_its_headers_are_sorted() -> None:
    """RabbitMQ 3.10 sorts the headers as it adds a count to them; 4.3 has the count in front."""
    ring, key = long_string(b"x-ring-exchange", b"orders"), long_string(b"x-key", b"k")
    count = table.integer_field(b"x-delivery-count", 1)
    came = [ring + key, count + key + ring, ring + key + count]
    assert len({fingerprint(b"k", headers(1, 4, entries), b"body") for entries in came}) == 1
    assert fingerprint(b"k", headers(1, 4, ring), b"body") != fingerprint(b"k", headers(1, 4, key), b"body")


def test_the_keys_that_wait_and_how_much() -> None:
    wire = Limited(Rules(2, 5.0, 5.0, 2))
    entries = long_string(b"h", b"v")
    first = deliver(A, 1, head=headers(A, 5, entries))
    wire.broker(first + deliver(A, 2, head=headers(A, 5, entries)) + deliver(A, 3, head=headers(A, 5, entries)))
    (key,) = wire.actions.blocked_keys(wire.member, "q1")
    assert (key.shard, key.state, key.tries, key.due, key.waiting) == ("q1", "with the client", 0, None, 2)
    assert (key.size, key.message_id, len(key.key_hash), len(key.fingerprint)) == (5, "", 32, 32)
    assert wire.actions.backlog(wire.member) == Backlog(0, 0, 0.0, 1)

    wire.client(method(1, 60, 120, pack(">QB", 1, 2)))
    returned_at = wire.c.now
    (again,) = wire.actions.blocked_keys(wire.member, "q1")
    assert (again.state, again.tries) == ("to be tried again", 1)
    assert again.due == returned_at + 5.0 * spread(bytes.fromhex(key.key_hash))
    assert (again.key_hash, again.fingerprint) == (key.key_hash, key.fingerprint)
    wire.wait(5.0 * LONGEST_SPREAD)
    wire.to_client()
    assert wire.actions.backlog(wire.member) == Backlog(1, 0, returned_at, 1)
    assert wire.actions.blocked_keys(wire.member, "q1")[0].state == "with the client"

    wire.client(method(1, 60, 120, pack(">QB", 2, 2)))
    wire.wait(5.0 * LONGEST_SPREAD)
    assert wire.actions.backlog(wire.member) == Backlog(1, 1, returned_at, 1)
    assert wire.actions.blocked_keys(wire.member, "q1")[0].state == "stopped"
    assert wire.member.returns == 2

    assert wire.actions.fingerprints(wire.member, "q1") == {key.fingerprint}
    wire.actions.give_up(wire.member, "q1")
    assert wire.actions.fingerprints(wire.member, "q1") == set()
    assert wire.actions.backlog(wire.member) == Backlog(0, 0, 0.0, 0)
    assert wire.actions.blocked_keys(wire.member, "q1") == []


def test_a_key_that_is_settled_waits_no_more() -> None:
    wire = Limited(Rules(2, 5.0, 5.0))
    wire.broker(deliver(A, 1) + deliver(A, 2))
    wire.client(method(1, 60, 120, pack(">QB", 1, 2)))
    wire.wait(5.0 * LONGEST_SPREAD)
    wire.to_client()
    client_loop.from_client(wire.c, ack(1, 2))
    assert (wire.to_broker(), wire.to_client()) == (ack(A, 1), seen(3))
    assert wire.actions.backlog(wire.member) == Backlog(0, 0, 0.0, 0)
    assert wire.actions.blocked_keys(wire.member, "q1") == []


def test_a_key_that_stands_still_is_told_and_does_not_make_its_member_late(caplog: pytest.LogCaptureFixture) -> None:
    wire = Limited(LIMITED._replace(dead_letters=False))
    wire.broker(deliver(A, 1, head=headers(A, 5, b"")) + deliver(A, 2))
    assert wire.actions.is_with_client(wire.member, "q1")
    with caplog.at_level(logging.WARNING):
        wire.returned()
    assert "a message of shard 'q1' was tried 1 times, and its key stands still" in caplog.text
    assert wire.actions.oldest_unacked(wire.member) == {"q1": wire.c.now - LEAVES_WITHIN}
    assert not wire.actions.is_with_client(wire.member, "q1")
    assert wire.both(b"") == (b"", b"")
