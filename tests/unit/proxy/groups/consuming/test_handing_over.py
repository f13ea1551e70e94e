"""How a member gives a shard up to the next one, frame by frame: nothing is put out of order, or acked for another."""

import pytest
from pamqp import commands

from proxy.groups.model import LinkState
from proxy.session import client_loop
from tests.unit.proxy.groups.consuming.grouping import FIRST, Grouping, closed, deliver, is_close, opened, seen
from tests.unit.proxy.session.wire import ack, made, nack, split

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
