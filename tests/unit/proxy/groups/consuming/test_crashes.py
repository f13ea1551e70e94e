"""Clients in series that are lost: what counts as a crash of a message, and which message is taken for the culprit."""

import logging
import time
from struct import pack

import pytest
from pamqp import commands

from proxy.groups.attempts import Attempt, Attempts
from proxy.groups.consuming import crashes, links, settle
from proxy.groups.consuming.crashes import Crashes
from proxy.groups.consuming.events import DeadLetterDue
from proxy.groups.consuming.hidden import HiddenChannel
from proxy.groups.consuming.rules import Rules
from proxy.groups.consuming.series import Held, HeldState
from proxy.groups.model import Member
from proxy.session import client_loop
from tests.unit.proxy.groups.consuming.grouping import FIRST, Grouping, bodies, consume, deliver, seen
from tests.unit.proxy.session.wire import ack, entry, headers, made

A, B = FIRST + 1, FIRST + 2
SERIAL: dict[str, dict[str, bool]] = {"arguments": {"x-ring-in-series": True}}
FIRST_TRY = entry(b"x-ring-attempt", b"l", pack(">q", 1))
RULES = Rules(200, 0.1, 0.5, 0, dead_letters=True, buries=True)


class Crashing(Grouping):
    """A session of a client in series with the shards q1 and q2, of a sidecar that knows of earlier clients."""

    def __init__(self, attempts: Attempts | None = None, crashes_: Crashes | None = None, rules: Rules = RULES) -> None:
        super().__init__()
        self.attempts, self.crashes = attempts or Attempts(), crashes_ or Crashes()
        self.consuming.rules = rules
        self.member = self.joined(("q1", "q2"), "c")

    def joined(self, shards: tuple[str, ...], tag: str, channel: int = 1) -> Member:
        member = self.join(shards, channel, tag, **SERIAL)
        member.attempts = self.attempts
        return member

    def lost(self) -> None:
        """Have the client be lost without a close."""
        self.crashes.note(self.consuming)
        links.lose_all(self.consuming)

    def next(self, **more: Rules) -> "Crashing":
        """Return the session of the next client, much later."""
        self.crashes._at = float("-inf")
        return Crashing(self.attempts, self.crashes, **more)

    def comes_again(self, number: int, *tags: int, key: bytes = b"k%d") -> bytes:
        """Have the broker deliver messages again, each of a key of its own; return what the client gets of them."""
        came = b"".join(deliver(number, tag, b"%d" % tag, key=key % tag, redelivered=True) for tag in tags)
        return self.broker(came) + self.wait()

    def both_ways(self, data: bytes) -> bytes:
        """Feed bytes of the client, which gets an answer; return what it gets."""
        client_loop.from_client(self.c, data)
        self.to_broker()
        return self.to_client()

    def second_member(self) -> int:
        """Have another member join on channel 2, with the shard q3; return the number of its link."""
        self.client(made(2, commands.Channel.Open()))
        self.both(made(2, commands.Channel.OpenOk()))
        return self.joined(("q3",), "d", 2).links["q3"].channel

    def wait(self, seconds: float = 1.0) -> bytes:
        self.c.now += seconds
        settle.go_on_by_turns(self.consuming)
        settle.try_again(self.consuming)
        return self.to_client()

    def answers(self, number: int) -> bytes:
        """Have the client ack a message; return what it gets then."""
        client_loop.from_client(self.c, ack(1, number))
        return self.to_client() + self.wait()

    def counts(self) -> list[int]:
        return sorted(each.crashes for known in self.attempts.shards.values() for each in known.values())


def after_crashes(count: int, rules: Rules = RULES, more: bytes = b"") -> Crashing:
    """Return the session of a client before which so many were lost, each with one message, and `more` behind it."""
    wire = Crashing(rules=rules)
    for crash in range(count):
        assert bodies(wire.comes_again(A, 1)) == [b"1"], f"crash {crash}"
        wire.broker(more)
        wire.wait()
        wire.lost()
        wire = wire.next(rules=rules)
    return wire


def test_what_was_held_at_two_crashes_comes_alone_and_is_no_suspect_any_more_once_it_is_acked() -> None:
    wire = Crashing()
    wire.broker(b"".join(deliver(A, tag, b"%d" % tag, key=b"k%d" % tag) for tag in (1, 2, 3)))
    wire.lost()
    wire = wire.next()
    assert bodies(wire.comes_again(A, 1, 2, 3)) == [b"1", b"2", b"3"], "one crash makes no suspect"
    wire.lost()
    assert (wire.counts(), wire.member.crashes) == ([2, 2, 2], 1)
    wire = wire.next()
    assert bodies(wire.comes_again(A, 1, 2, 3)) == [b"1"]
    assert wire.both(deliver(B, 1, b"new", key=b"other")) == (b"", b""), "a message beside a suspect"
    assert bodies(wire.answers(1)) == [b"2"]
    assert bodies(wire.answers(2)) == [b"3"]
    assert bodies(wire.answers(3)) == [b"new"]
    assert wire.attempts.shards == {}


def test_a_suspect_waits_until_the_client_holds_nothing() -> None:
    wire = after_crashes(2)
    assert bodies(wire.broker(deliver(B, 1, b"other"))) == [b"other"]
    assert wire.comes_again(A, 1) == b""
    assert bodies(wire.answers(1)) == [b"1"]


def test_a_message_that_ends_its_client_three_times_alone_at_last_is_a_dead_letter() -> None:
    wire = Crashing()
    for number in range(3):
        assert bodies(wire.comes_again(A, 1, 2)) == ([b"1"] if number == 2 else [b"1", b"2"])
        wire.lost()
        wire = wire.next()
    assert wire.counts() == [2, 3]
    assert bodies(wire.comes_again(A, 1, 2)) == [b"2"]
    (due,) = [event for event in wire.told() if isinstance(event, DeadLetterDue)]
    assert (due.letter.reason, due.letter.tries, due.letter.body[-2:-1]) == ("crash", 3, b"1")
    settle.dead_lettered(wire.consuming, due.held, is_confirmed=True)
    assert wire.to_broker() == ack(A, 1)
    assert wire.counts() == [2]


def test_a_culprit_stands_still_where_there_are_no_dead_letters(caplog: pytest.LogCaptureFixture) -> None:
    wire = after_crashes(3, Rules())
    assert wire.comes_again(A, 1) == b""
    (key,) = wire.actions.blocked_keys(wire.member, "q1")
    assert (key.state, key.tries, key.crashes) == ("stopped", 0, 3)
    assert "with 3 clients that crashed, the last time alone: its key stands still" in caplog.text
    wire.c.now += 3600
    backlog = wire.actions.backlog(wire.member)
    assert backlog is not None
    assert backlog.stopped == 1
    assert bodies(wire.broker(deliver(B, 1, b"other"))) == [b"other"]


def test_by_default_a_culprit_is_tried_again_alone_after_the_longest_delay() -> None:
    rules = Rules(longest=60.0, spares=True)
    wire = after_crashes(3, rules)
    assert wire.comes_again(A, 1) == b""
    wire.broker(deliver(B, 1, b"other", key=b"other"))
    assert bodies(wire.answers(1)) == []
    assert wire.wait(57.0) == b""
    assert bodies(wire.wait(1.0)) == [b"1"]
    assert wire.to_broker() == ack(B, 1)
    assert wire.broker(deliver(B, 2, b"later", key=b"other")) == b"", "a message beside a suspect"


def test_a_limit_of_tries_that_is_higher_holds_for_crashes_too() -> None:
    wire = after_crashes(4, RULES._replace(crashes=5))
    assert bodies(wire.comes_again(A, 1)) == [b"1"]


def test_clients_that_are_lost_together_have_no_culprit_each() -> None:
    """A process with two connections: each of them had one message, and one of these ended the process."""
    attempts, known = Attempts(), Crashes()
    for _ in range(3):
        first, second = (Crashing(attempts, known) for _ in range(2))
        assert bodies(first.comes_again(A, 1)) == [b"1"]
        assert bodies(second.comes_again(B, 2)) == [b"2"]
        known._at = float("-inf")
        first.lost()
        second.lost()
    assert {(each.crashes, each.is_alone) for told in attempts.shards.values() for each in told.values()} == {
        (3, False)
    }
    first = Crashing(attempts, known)
    assert bodies(first.comes_again(A, 1)) == [b"1"]
    known._at = float("-inf")
    first.lost()
    assert {(each.crashes, each.is_alone) for each in attempts.shards["q1"].values()} == {(4, True)}


@pytest.mark.parametrize("is_earlier", [True, False], ids=["its channel, before it is a member", "another channel"])
@pytest.mark.parametrize("holds", [True, False])
def test_a_message_beside_an_ordinary_delivery_is_not_alone(is_earlier: bool, holds: bool) -> None:
    wire = Grouping()
    if is_earlier:
        ordinary(wire, 1, holds)
    member = wire.join(("q1",), 1, "c", **SERIAL)
    if not is_earlier:
        wire.client(made(2, commands.Channel.Open()))
        wire.both(made(2, commands.Channel.OpenOk()))
        ordinary(wire, 2, holds)
    (link,) = member.links.values()
    assert bodies(wire.broker(deliver(link.channel, 1, b"1"))) == [b"1"]
    Crashes().note(wire.consuming)
    (attempt,) = member.attempts.shards["q1"].values()
    assert (attempt.crashes, attempt.is_alone) == (1, not holds)


def ordinary(wire: Grouping, channel: int, holds: bool) -> None:
    """Have the client get two messages of a queue, and ack them unless it `holds` the first one."""
    wire.client(consume(channel, "o", "queue"))
    wire.both(made(channel, commands.Basic.ConsumeOk("o")))
    wire.broker(deliver(channel, 1, consumer="o") + deliver(channel, 2, consumer="o"))
    wire.client(ack(channel, 2) + (b"" if holds else ack(channel, 1)))


@pytest.mark.parametrize("lost", ["_lost", "crowded"])
def test_a_message_is_not_alone_where_it_is_not_known_what_its_client_holds(lost: str) -> None:
    wire = Crashing()
    wire.broker(deliver(A, 1, b"1"))
    (consumer,) = wire.consuming.consumers.values()
    setattr(consumer.numbering, lost, True)
    wire.lost()
    assert [each.is_alone for each in wire.attempts.shards["q1"].values()] == [False]


def test_a_message_that_ends_one_client_right_after_another_is_alone_with_both() -> None:
    wire = Crashing()
    for _ in range(3):
        wire.comes_again(A, 1)
        wire.lost()
        wire = Crashing(wire.attempts, wire.crashes)
    assert wire.comes_again(A, 1) == b""
    assert isinstance(wire.told()[0], DeadLetterDue)


def test_a_suspect_is_alone_over_all_members_of_its_client() -> None:
    wire = after_crashes(2)
    number = wire.second_member()
    assert bodies(wire.broker(deliver(number, 1, b"held", consumer="d"))) == [b"held"]
    assert wire.comes_again(A, 1) == b"", "the other member's client holds a message"
    assert bodies(wire.both_ways(ack(2, 1)) + wire.wait()) == [b"1"]
    assert wire.broker(deliver(number, 2, b"later", consumer="d")) == b""
    assert bodies(wire.answers(1)) == [b"later"]


@pytest.mark.parametrize("tag", [1, 9])
def test_a_client_that_hangs_on_a_message_gets_those_of_its_other_shards(tag: int) -> None:
    """Be it on a suspect, or on a message before one."""
    other = deliver(B, 1, b"other", key=b"other", redelivered=True)
    wire = after_crashes(2, more=other)
    assert bodies(wire.comes_again(A, tag)) == [b"%d" % tag]
    assert wire.broker(other) == b""
    assert wire.wait() == b""
    wire.actions.let_go(wire.member, "q1")
    wire.to_broker()
    assert wire.wait() == b"", "the client may yet answer"
    wire.actions.give_up(wire.member, "q1")
    wire.to_broker()
    assert bodies(wire.wait()) == [b"other"]
    assert bodies(wire.answers(1)) == [], "an answer that comes too late"
    assert wire.consuming.hands.with_client == 1
    assert bodies(wire.broker(deliver(B, 2, b"later", key=b"later"))) == []
    assert bodies(wire.answers(2)) == [b"later"]


def test_a_suspect_goes_with_its_channel() -> None:
    wire = after_crashes(2)
    number = wire.second_member()
    assert bodies(wire.comes_again(A, 1)) == [b"1"]
    assert wire.broker(deliver(number, 1, b"other", consumer="d")) == b""
    client_loop.from_client(wire.c, made(1, commands.Channel.Close(200, "", 0, 0)))
    assert bodies(wire.wait()) == [b"other"]
    assert not wire.consuming.hands.suspects


@pytest.mark.parametrize("how", ["a cancel", "no key", "a link that has ended"])
def test_what_is_no_crash(how: str) -> None:
    wire = Crashing()
    wire.broker(deliver(A, 1, b"1"))
    if how == "a cancel":
        wire.both_ways(made(1, commands.Basic.Cancel("c")))
    elif how == "a link that has ended":
        wire.actions.give_up(wire.member, "q1")
    else:
        (held,) = [each for hidden in wire.consuming.sources.values() for each in held_of(hidden)]
        held.key = b""
    wire.lost()
    assert wire.attempts.shards == {}


def held_of(source: object) -> list[Held]:
    window = source.window if isinstance(source, HiddenChannel) else None
    return list(window.held.values()) if window is not None else []


def test_an_operator_who_releases_a_suspect_has_it_passed_with_others() -> None:
    wire = after_crashes(2)
    wire.broker(deliver(B, 1, b"other"))
    wire.comes_again(A, 1)
    (held,) = wire.consuming.hands.suspects
    assert held.state == HeldState.READY
    held.window.series.go_on_at_once(held)
    assert bodies(wire.wait()) == [b"1"]


def test_a_crash_does_not_count_as_a_try() -> None:
    wire = Crashing()
    wire.broker(deliver(A, 1))
    wire.lost()
    wire = wire.next()
    wire.broker(deliver(A, 1, redelivered=True))
    assert wire.wait() == seen(1, redelivered=True, head=headers(1, 5, FIRST_TRY))


def test_the_log_tells_of_a_client_that_is_lost_with_suspects(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    wire = Crashing()
    wire.comes_again(A, 1)
    wire.lost()
    assert not caplog.records
    wire = wire.next()
    wire.comes_again(A, 1)
    wire.lost()
    assert "was lost without a close, and held 1 messages that an earlier client was lost with" in caplog.text


def test_only_so_many_messages_of_one_client_have_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crashes, "MOST_ATTEMPTS", 2)
    wire = Crashing()
    wire.comes_again(A, 1, 2, 3)
    wire.lost()
    assert wire.counts() == [1, 1]
    assert all(not each.is_alone for each in wire.attempts.shards["q1"].values())


def test_crashes_are_kept_through_tries_and_told() -> None:
    attempts = Attempts()
    now = time.time()
    assert attempts.note_crash("q", "a", now, is_alone=True) == 1
    attempts.note("q", "a", 2, now + 5)
    assert attempts.of("q", "a") == Attempt(2, now + 5, 1, True)
    attempts.note_company("q", "a")
    attempts.note_company("q", "b")
    attempts.note("q", "a", 0, now)
    assert attempts.told([]) == {"q": {"a": Attempt(0, now, 1, False)}}
    assert attempts.note_crash("q", "a", now, is_alone=False) == 2
