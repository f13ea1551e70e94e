"""A probe gets one message, and the broker gets the client's answer to it only once that is safe."""

import pytest
from pamqp import commands

from proxy.groups.member import LinkState, Member
from proxy.session import client_loop, settling
from proxy.session.events import LinkEnded
from tests.unit.proxy.session.grouping import FIRST, Grouping, closed, deliver, is_close, opened, seen
from tests.unit.proxy.session.wire import ack, close_channel, made, nack, split

A = FIRST + 1
"""The hidden channel of the link that the probe replaces."""

OPENS = [(20, 10), (60, 10), (60, 20)]
"""What opens a link: channel.open, basic.qos and basic.consume."""


def probing(hidden: int = 20, **more: object) -> tuple[Grouping, Member, int]:
    """A member of priority 5 whose link to its only shard has become a probe; its hidden channel."""
    wire = Grouping(hidden)
    member = wire.join(["q1"], **more)  # type: ignore[arg-type]
    wire.actions.subscribe(member, "q1", 5, is_probe=True)
    (close,) = wire.frames()
    assert (close.channel, is_close(close)) == (A, True)
    sent = split(wire.both(closed(A))[0])
    number = member.links["q1"].channel
    assert [(each.channel, each.id) for each in sent] == [(number, each) for each in OPENS]
    assert sent[1].payload[-3:-1] == b"\0\1"  # its prefetch
    assert sent[2].payload.endswith(bytes([*bytes(7), 5]))  # its priority
    wire.both(opened(number))
    return wire, member, number


def widened(wire: Grouping, member: Member, sent: bytes) -> int:
    """Return the hidden channel of the link of the next priority that these frames open."""
    number = member.links["q1"].channel
    frames = split(sent)
    assert [(each.channel, each.id) for each in frames] == [(number, each) for each in OPENS]
    assert frames[1].payload[-3:-1] == (200).to_bytes(2, "big")
    assert frames[2].payload.endswith(b"\0\0\0\0\0\0\0\6")
    return number


def ends(wire: Grouping, number: int, probe: int, answer: bytes) -> None:
    """Let the next link open: the broker gets the answer, and then the end of the probe."""
    to_broker, to_client = wire.both(opened(number))
    assert to_broker.startswith(answer)
    (close,) = split(to_broker.removeprefix(answer))
    assert (close.channel, is_close(close), to_client) == (probe, True, b"")
    wire.both(closed(probe))


def nacked(number: int, tag: int = 1) -> bytes:
    """What returns the message of a probe."""
    return made(number, commands.Basic.Nack(tag, False, True))


def test_a_message_that_comes_for_the_first_time_goes_back_and_comes_by_an_ordinary_link() -> None:
    """A client that acks several messages at once must get several."""
    for piece in (4096, 2):
        wire, member, probe = probing()
        assert member.links["q1"].is_open
        to_broker, to_client = wire.both(deliver(probe, 1, piece=piece))
        assert to_client == b""
        number = widened(wire, member, to_broker)
        ends(wire, number, probe, nacked(probe))
        assert member.links["q1"].state == LinkState.OPEN
        assert wire.broker(deliver(number, 1, redelivered=True) + deliver(number, 2)) == (
            seen(1, redelivered=True) + seen(2)
        )
        assert wire.client(ack(1, 1)) == ack(number, 1)
        assert (len(wire.consuming.free), wire.c.events) == (19, [])


def test_the_answer_to_a_redelivered_message_waits_until_the_groups_say_that_it_is_safe() -> None:
    wire, member, probe = probing()
    assert wire.broker(deliver(probe, 1, redelivered=True)) == seen(1, redelivered=True)
    assert wire.client(nack(1, 1, multiple=True)) == b""
    link = member.links["q1"]
    assert (link.unacked, bool(link.withheld)) == (0, True)
    # Neither a raise nor another probe takes its place: its end would put the message behind others that come back.
    wire.actions.subscribe(member, "q1", 80)
    wire.actions.subscribe(member, "q1", 5, is_probe=True)
    assert wire.to_broker() == b""
    wire.actions.widen(member, "q1")
    number = widened(wire, member, wire.to_broker())
    assert member.links["q1"].delivered_at == link.delivered_at
    ends(wire, number, probe, nack(probe, 1, multiple=True))


@pytest.mark.parametrize("keeps", [True, False])
def test_what_the_client_has_not_answered_when_that_is_safe_comes_again(keeps: bool) -> None:
    """The client may wait for more messages before it acks. No other member gets the message in between."""
    wire, member, probe = probing()
    wire.c.handshake.keeps_consumers = keeps
    wire.broker(deliver(probe, 1, redelivered=True))
    wire.actions.widen(member, "q1")
    number = widened(wire, member, wire.to_broker())
    wire.actions.widen(member, "q1")
    assert wire.to_broker() == b""
    ends(wire, number, probe, made(probe, commands.Basic.Nack(0, True, True)) if keeps else b"")
    assert wire.client(ack(1, 1)) == b""
    assert wire.broker(deliver(number, 1, redelivered=True)) == seen(2, redelivered=True)


def test_what_the_client_answers_while_the_next_link_is_opened_is_sent_once_that_is_open() -> None:
    wire, member, probe = probing()
    wire.broker(deliver(probe, 1, redelivered=True))
    wire.actions.widen(member, "q1")
    number = widened(wire, member, wire.to_broker())
    assert wire.client(ack(1, 1)) == b""
    ends(wire, number, probe, ack(probe, 1))


def test_a_session_that_ends_sends_the_answers_that_are_safe() -> None:
    for is_safe in (True, False):
        wire, member, probe = probing()
        wire.broker(deliver(probe, 1, redelivered=True))
        wire.client(ack(1, 1))
        if is_safe:
            wire.actions.widen(member, "q1")
            wire.to_broker()
        client_loop.from_client(wire.c, made(0, commands.Connection.Close(200, "", 0, 0)))
        assert wire.to_broker().startswith(ack(probe, 1)) is is_safe


def test_an_answer_of_a_client_whose_member_has_left_goes_back_unless_it_is_safe() -> None:
    """The message comes again, to the next member. For an ack the broker would give the link a newer one."""
    wire, _, probe = probing()
    wire.broker(deliver(probe, 1, redelivered=True))
    client_loop.from_client(wire.c, made(1, commands.Basic.Cancel("c")))
    assert wire.to_broker() == b""
    assert wire.to_client() == made(1, commands.Basic.CancelOk("c"))
    (close,) = split(wire.client(ack(1, 1)))
    assert (close.channel, is_close(close)) == (probe, True)


@pytest.mark.parametrize("redelivered", [False, True])
def test_a_member_that_leaves_has_what_is_safe_sent(redelivered: bool) -> None:
    """Other messages come again: after an answer the broker would give newer ones before those it awaits."""
    wire, _, probe = probing()
    wire.both(deliver(probe, 1, redelivered=redelivered))
    if redelivered:
        assert wire.client(ack(1, 1)) == b""
    client_loop.from_client(wire.c, made(1, commands.Basic.Cancel("c")))
    sent = [(each.channel, each.id) for each in split(wire.to_broker()) if each.channel == probe]
    assert sent == [*([] if redelivered else [(probe, (60, 120))]), (probe, (20, 40))]


def test_a_next_link_that_is_refused_leaves_the_probe_in_its_place() -> None:
    wire, member, probe = probing()
    to_broker, _ = wire.both(deliver(probe, 1))
    number = widened(wire, member, to_broker)
    to_broker, _ = wire.both(close_channel(number, 405, b"RESOURCE_LOCKED", (60, 20)))
    assert [each.id for each in split(to_broker)] == [(20, 41)]
    assert wire.c.events == [LinkEnded(member, "q1", 405, "RESOURCE_LOCKED")]
    assert member.links["q1"].channel == probe
    wire.actions.widen(member, "q1")
    number = widened(wire, member, wire.to_broker())
    ends(wire, number, probe, nacked(probe))


def test_a_probe_that_the_broker_ends_has_nothing_to_send_any_more() -> None:
    wire, member, probe = probing()
    to_broker, _ = wire.both(deliver(probe, 1))
    number = widened(wire, member, to_broker)
    wire.both(close_channel(probe, 406, b"PRECONDITION_FAILED", (0, 0)))
    assert wire.both(opened(number)) == (b"", b"")
    assert member.links["q1"].state == LinkState.OPEN


def test_a_message_that_the_client_returns_goes_back_at_once_and_comes_again() -> None:
    wire, member, probe = probing()
    wire.broker(deliver(probe, 1, redelivered=True))
    assert wire.client(made(1, commands.Basic.Reject(1, True))) == b""
    settling.hand_back(wire.c, wire.c.now, wire.c.now)
    assert wire.to_broker() == made(probe, commands.Basic.Reject(1, True))
    assert wire.broker(deliver(probe, 2, redelivered=True)) == seen(2, redelivered=True)
    assert wire.client(ack(1, 2)) == b""
    wire.actions.widen(member, "q1")
    ends(wire, widened(wire, member, wire.to_broker()), probe, ack(probe, 2))


def test_a_probe_and_the_link_in_its_place_wait_for_a_free_number() -> None:
    wire = Grouping(hidden=2)
    member = wire.join(["q1"])
    wire.actions.subscribe(member, "q2", 0)
    wire.to_broker()
    wire.both(opened(member.links["q2"].channel))
    wire.actions.subscribe(member, "q1", 5, is_probe=True)
    assert wire.to_broker() == b""
    wire.both(close_channel(member.links["q2"].channel, 404, b"NOT_FOUND", (0, 0)))
    wire.both(closed(A))
    assert member.links["q1"].is_probe

    wire, member, probe = probing(hidden=3)
    for shard in ("q2", "q3"):
        wire.actions.subscribe(member, shard, 0)
        wire.to_broker()
        wire.both(opened(member.links[shard].channel))
    assert wire.both(deliver(probe, 1)) == (b"", b"")
    gone = member.links["q2"].channel
    to_broker, _ = wire.both(close_channel(gone, 404, b"NOT_FOUND", (0, 0)))
    answer = made(gone, commands.Channel.CloseOk())
    assert to_broker.startswith(answer)
    ends(wire, widened(wire, member, to_broker.removeprefix(answer)), probe, nacked(probe))


def test_a_probe_without_acks_is_an_ordinary_link() -> None:
    """RabbitMQ counts a message as acked once it is sent, whatever the prefetch."""
    wire = Grouping()
    member = wire.join(["q1"], no_ack=True)
    wire.actions.subscribe(member, "q1", 5, is_probe=True)
    number = member.links["q1"].channel
    wire.to_broker()
    wire.both(opened(number) + made(A, commands.Basic.CancelOk("c")) + closed(A))
    assert wire.broker(deliver(number, 1) + deliver(number, 2)) == seen(1) + seen(2)


def test_a_release_while_the_next_link_is_opened_ends_the_probe_as_well() -> None:
    """Its message would stay unacked otherwise, and the shard would stand still."""
    wire, member, probe = probing()
    wire.broker(deliver(probe, 1, redelivered=True))
    wire.actions.widen(member, "q1")
    number = widened(wire, member, wire.to_broker())
    wire.actions.release(member, "q1")
    assert [each.channel for each in split(wire.to_broker()) if is_close(each)] == [probe, number]
    assert member.links["q1"].channel not in (probe, number)
