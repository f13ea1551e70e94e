"""How a member gives a shard up to the next one, frame by frame: nothing is put out of order, or acked for another."""

import pytest
from pamqp import commands

from proxy.groups.consuming import settle
from proxy.groups.consuming.events import Left
from proxy.groups.model import MOST_UNDER_WAY, LinkState, Member
from proxy.session import client_loop
from tests.unit.proxy.groups.consuming.grouping import FIRST, Grouping, closed, deliver, is_close, opened, seen
from tests.unit.proxy.session.wire import ack, close_channel, made, nack, short, split

A, B = FIRST + 1, FIRST + 2
"""The hidden channels of the member's links to the shards q1 and q2."""


def holding(**more: object) -> Grouping:
    """The client holds 1 and 3 of q1, and 2 of q2."""
    wire = Grouping()
    wire.join(**more)  # type: ignore[arg-type]
    wire.broker(deliver(A, 1) + deliver(B, 1) + deliver(A, 2))
    return wire


def sent(wire: Grouping, data: bytes = b"") -> list[tuple[int, tuple[int, int]]]:
    """The channel and method of each frame that goes to the broker, after these bytes of the client."""
    if data:
        client_loop.from_client(wire.c, data)
    return [(each.channel, each.id) for each in split(wire.to_broker())]


ACK, CLOSE, OPEN = (60, 80), (20, 40), (20, 10)


def test_a_link_that_is_let_go_ends_behind_the_last_ack_of_what_the_client_has_got() -> None:
    wire = holding()
    (member,) = wire.consuming.consumers
    wire.actions.let_go(member, "q1")
    assert sent(wire) == []
    assert (member.links["q1"].state, member.links["q1"].unacked) == (LinkState.LEAVING, 2)
    # A delivery that the broker sends until then is not the client's: the next member gets it. The other shard goes on.
    assert wire.broker(deliver(A, 3) + deliver(B, 2)) == seen(4, exchange=b"x")
    assert sent(wire, ack(1, 1)) == [(A, ACK)]
    assert sent(wire, ack(1, 3)) == [(A, ACK), (A, CLOSE)]
    assert wire.broker(deliver(A, 4) + closed(A)) == b""
    assert (list(member.links), member.links["q2"].unacked) == (["q2"], 2)


def test_what_the_client_returns_of_a_link_that_is_let_go_goes_back_as_that_ends() -> None:
    wire = holding()
    (member,) = wire.consuming.consumers
    wire.actions.let_go(member, "q1")
    assert sent(wire, made(1, commands.Basic.Nack(3, False, True))) == []
    assert sent(wire, ack(1, 1)) == [(A, ACK), (A, CLOSE)]


def test_a_link_of_which_the_client_holds_nothing_ends_at_once_and_may_come_back_once_it_has() -> None:
    wire = Grouping()
    member = wire.join()
    wire.actions.let_go(member, "q1")
    assert sent(wire) == [(A, CLOSE)]
    wire.actions.open(member, "q1")
    assert sent(wire) == []
    wire.broker(closed(A))
    assert list(member.links) == ["q2"]
    wire.actions.open(member, "q1")
    assert sent(wire)[0][1] == OPEN


def test_a_link_that_is_opening_ends_at_once() -> None:
    wire = Grouping()
    member = wire.begin(["q1"])
    sent(wire)
    wire.to_client()
    wire.actions.let_go(member, "q1")
    assert sent(wire) == [(A, CLOSE)]
    assert wire.both(opened(A) + deliver(A, 1)) == (b"", b"")
    wire.broker(closed(A))
    assert member.links == {}


def test_a_shard_without_acks_is_given_up_by_a_cancel_behind_which_nothing_is_lost() -> None:
    wire = holding(no_ack=True)
    (member,) = wire.consuming.consumers
    wire.actions.let_go(member, "q1")
    assert wire.to_broker() == made(A, commands.Basic.Cancel("c"))
    assert wire.broker(deliver(A, 3)) == seen(4, exchange=b"x")
    to_broker, _ = wire.both(made(A, commands.Basic.CancelOk("c")))
    assert [each.channel for each in split(to_broker) if is_close(each)] == [A]
    wire.broker(closed(A))
    assert list(member.links) == ["q2"]


@pytest.mark.parametrize("end", ["not acked in time", "the client cancels"])
def test_a_link_that_is_let_go_ends_though_the_client_does_not_ack(end: str) -> None:
    wire = holding()
    (member,) = wire.consuming.consumers
    wire.actions.let_go(member, "q1")
    assert set(wire.actions.oldest_unacked(member)) == {"q1", "q2"}
    if end == "not acked in time":
        wire.actions.give_up(member, "q1")
        assert sent(wire) == [(A, CLOSE)]
        assert wire.client(ack(1, 1) + nack(1, 3)) == b""
    else:
        assert sent(wire, made(1, commands.Basic.Cancel("c"))) == []
        assert {link.shard for link in member.links.values() if link.state == LinkState.LEAVING} == {"q1", "q2"}
        assert sent(wire, ack(1, 3, True)) == [(A, ACK), (B, ACK), (A, CLOSE), (B, CLOSE)]


def test_nobody_lets_go_what_it_does_not_have() -> None:
    wire = holding()
    (member,) = wire.consuming.consumers
    wire.actions.let_go(member, "q1")
    wire.actions.let_go(member, "q1")
    wire.actions.let_go(member, "other")
    assert (sent(wire), len(member.links)) == ([], 2)


CONSUME, CANCEL = (60, 20), (60, 30)
MANY = MOST_UNDER_WAY + 1
"""As many deliveries that RabbitMQ may keep back an ack of them, if each is acked by itself."""


def second_ok(wire: Grouping, member: Member, channel: int = A) -> tuple[bytes, bytes]:
    return wire.both(made(channel, commands.Basic.ConsumeOk(f"flush-{member.id}")))


def flushing() -> tuple[Grouping, Member]:
    """The client has acked all of q1, one by one, as that is let go, and holds one delivery of q2."""
    wire = Grouping()
    member = wire.join(arguments={"app": "billing"})
    wire.broker(b"".join(deliver(A, tag) for tag in range(1, MANY + 1)) + deliver(B, 1))
    wire.actions.let_go(member, "q1")
    frames = split(wire.client(b"".join(ack(1, tag) for tag in range(1, MANY + 1))))
    assert [(each.channel, each.id) for each in frames] == [(A, ACK)] * MANY + [(A, CONSUME)]
    assert member.links["q1"].state == LinkState.FLUSHING
    return wire, member


@pytest.mark.parametrize("count", [MOST_UNDER_WAY, MANY])
def test_a_link_behind_whose_acks_the_broker_may_end_too_early_ends_once_a_second_consumer_is_there(count: int) -> None:
    wire = Grouping()
    member = wire.join()
    wire.broker(b"".join(deliver(A, tag) for tag in range(1, count + 1)))
    assert sent(wire, b"".join(ack(1, tag) for tag in range(1, count))) == [(A, ACK)] * (count - 1)
    wire.actions.let_go(member, "q1")
    assert sent(wire, ack(1, count)) == [(A, ACK), (A, CONSUME if count == MANY else CLOSE)]


def test_the_second_consumer_is_as_the_first_and_is_cancelled_with_its_channel() -> None:
    wire = Grouping()
    member = wire.begin(["q1"], arguments={"app": "billing"}, no_ack=False)
    (first,) = [each for each in wire.frames() if each.channel == A and each.id == CONSUME]
    wire.to_client()
    wire.broker(opened(A) + b"".join(deliver(A, tag) for tag in range(1, MANY + 1)))
    wire.actions.let_go(member, "q1")
    *_, second = split(wire.client(b"".join(ack(1, tag) for tag in range(1, MANY + 1))))
    tag = f"flush-{member.id}"
    assert second.payload == first.payload.replace(short("c"), short(tag))
    # A delivery that comes meanwhile is not the client's, and gets no ack: the next member has it.
    assert wire.both(deliver(A, MANY + 1)) == (b"", b"")
    to_broker, to_client = second_ok(wire, member)
    cancel, close = split(to_broker)
    assert cancel.whole == made(A, commands.Basic.Cancel(tag))
    assert (close.id, to_client) == (CLOSE, b"")
    assert wire.both(made(A, commands.Basic.CancelOk(tag)) + deliver(A, MANY + 2) + closed(A)) == (b"", b"")
    assert member.links == {}


def test_what_the_client_returned_of_a_link_goes_back_as_that_ends_and_not_before() -> None:
    wire = Grouping()
    member = wire.join()
    wire.broker(b"".join(deliver(A, tag) for tag in range(1, MANY + 2)))
    wire.actions.let_go(member, "q1")
    wire.client(made(1, commands.Basic.Nack(1, False, True)) + b"".join(ack(1, tag) for tag in range(2, MANY + 2)))
    assert member.links["q1"].state == LinkState.FLUSHING
    settle.hand_back(wire.consuming, float("inf"), float("inf"))
    assert sent(wire) == []
    assert [each.id for each in split(second_ok(wire, member)[0])] == [CANCEL, CLOSE]


def test_a_cancel_is_answered_once_the_acks_before_it_have_reached_their_queues() -> None:
    wire, member = flushing()
    assert wire.both(b"") == (b"", b"")
    client_loop.from_client(wire.c, made(1, commands.Basic.Cancel("c")))
    assert (wire.to_broker(), wire.to_client()) == (b"", b"")
    # The client may ack the delivery of q2 behind the answer: it does not wait for that.
    to_broker, to_client = second_ok(wire, member)
    assert ([each.id for each in split(to_broker)], to_client) == (
        [CANCEL, CLOSE],
        made(1, commands.Basic.CancelOk("c")),
    )
    wire.broker(closed(A))
    assert sent(wire, ack(1, MANY + 1)) == [(B, ACK), (B, CLOSE)]


def test_a_cancel_that_wants_no_answer_gets_none() -> None:
    wire, member = flushing()
    client_loop.from_client(wire.c, made(1, commands.Basic.Cancel("c", True)))
    assert second_ok(wire, member)[1] == b""


def test_a_session_that_drains_does_not_close_before_the_acks_have_reached_their_queues() -> None:
    wire, member = flushing()
    wire.client(ack(1, MANY + 1))
    assert wire.consuming.unacked == 1
    second_ok(wire, member)
    assert wire.consuming.unacked == 0


def test_the_acks_reach_the_queue_though_the_client_closes_its_channel() -> None:
    wire, member = flushing()
    assert (A, CLOSE) not in sent(wire, made(1, commands.Channel.Close(200, "", 0, 0)))
    wire.broker(closed(1) + closed(B))
    wire.client(made(1, commands.Channel.Open()))
    wire.broker(made(1, commands.Channel.OpenOk()))
    assert wire.both(deliver(A, MANY + 1)) == (b"", b"")
    assert [each.id for each in split(second_ok(wire, member)[0])] == [CANCEL, CLOSE]
    wire.broker(closed(A))
    assert member.links == {}


def test_a_broker_that_refuses_the_second_consumer_ends_the_link_and_that_is_no_news() -> None:
    wire, member = flushing()
    wire.told()
    client_loop.from_client(wire.c, made(1, commands.Basic.Cancel("c")))
    _, to_client = wire.both(close_channel(A, 404, b"NOT_FOUND - no queue 'q1'", CONSUME))
    assert to_client == made(1, commands.Basic.CancelOk("c"))
    assert [type(event) for event in wire.told()] == [Left]
    assert set(member.links) == {"q2"}


def test_a_link_in_series_sends_its_acks_before_the_second_consumer() -> None:
    wire = Grouping()
    member = wire.join(["q1"], arguments={"x-ring-in-series": True})
    # Out of order, so that each ack is one of its own.
    wire.broker(b"".join(deliver(A, tag, key=b"%d" % tag) for tag in range(1, 2 * MANY + 1)))
    wire.actions.let_go(member, "q1")
    evens = b"".join(ack(1, tag) for tag in range(2, 2 * MANY + 1, 2))
    odds = b"".join(ack(1, tag) for tag in range(1, 2 * MANY + 1, 2))
    got = sent(wire, evens + odds)
    assert (got[-1], set(got[:-1])) == ((A, CONSUME), {(A, ACK)})
    assert [each.id for each in split(second_ok(wire, member)[0])] == [CANCEL, CLOSE]
