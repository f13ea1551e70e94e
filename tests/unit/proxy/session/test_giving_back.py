"""What a link holds goes back before the link ends, if it gives way: RabbitMQ may keep such a consumer otherwise."""

import pytest
from pamqp import commands

from proxy.groups.member import Link, LinkState, Member
from proxy.session import client_loop, closing, links
from tests.unit.proxy.session.grouping import FIRST, Grouping, deliver, opened
from tests.unit.proxy.session.wire import Frame, ack, close_channel, made, split

A, B = FIRST + 1, FIRST + 2
"""The hidden channels of the two links of a member."""

NACK, CLOSE, GOODBYE = (60, 120), (20, 40), (10, 50)


def holding(*, keeps_consumers: bool = True, no_ack: bool = False, gives_way: bool = True) -> Grouping:
    """The client has got a message of each link, and a third link is being opened."""
    wire = Grouping()
    member = wire.join(no_ack=no_ack)
    wire.c.handshake.keeps_consumers = keeps_consumers
    wire.broker(deliver(A, 1) + deliver(B, 1))
    wire.actions.subscribe(member, "q3", 0)
    wire.to_broker()
    wire.c.now += 100
    for link in member.links.values():
        link.raised_over_at = wire.c.now - 50 if gives_way else 0.0
    return wire


def told(frames: list[Frame]) -> list[tuple[int, tuple[int, int]]]:
    return [(each.channel, each.id) for each in frames]


def client_sends(wire: Grouping, data: bytes) -> list[Frame]:
    client_loop.from_client(wire.c, data)
    return split(wire.to_broker())


def test_a_client_that_closes_its_connection() -> None:
    sent = client_sends(holding(), made(0, commands.Connection.Close(200, "", 0, 0)))
    assert told(sent) == [(A, NACK), (B, NACK), (0, GOODBYE)]
    # All that it holds, and back into the queue.
    assert sent[0].payload[4:] == bytes(8) + b"\3"


def test_a_client_that_closes_its_channel() -> None:
    sent = told(client_sends(holding(), made(1, commands.Channel.Close(200, "", 0, 0))))
    assert [each for each in sent if each[0] in (A, B)] == [(A, NACK), (A, CLOSE), (B, NACK), (B, CLOSE)]
    assert (FIRST + 3, NACK) not in sent


def test_a_session_that_this_proxy_ends() -> None:
    wire = holding()
    closing.refuse(wire.c, 320, "ringproxy is shutting down")
    assert told(split(wire.to_broker())) == [(A, NACK), (B, NACK), (0, GOODBYE)]


def test_a_client_that_is_gone() -> None:
    """What was closed before is not in it."""
    wire = holding()
    wire.both(close_channel(B, 404, b"NOT_FOUND", (0, 0)))
    assert told(split(links.give_back(wire.c))) == [(A, NACK)]


@pytest.mark.parametrize("otherwise", [{"keeps_consumers": False}, {"no_ack": True}, {"gives_way": False}])
def test_elsewhere_the_end_returns_all(otherwise: dict[str, bool]) -> None:
    """Before 4.3 a nack counts towards the delivery limit, as the end of the channel does.

    An active consumer gets what it returns once more, amid newer messages.
    """
    wire = holding(**otherwise)
    assert told(client_sends(wire, made(0, commands.Connection.Close(200, "", 0, 0)))) == [(0, GOODBYE)]


def test_a_link_that_has_got_nothing_returns_nothing() -> None:
    """The broker may just have chosen it, since the member with the claim is gone: then messages are on their way."""
    wire = holding()
    wire.both(opened(FIRST + 3))
    assert told(split(links.give_back(wire.c))) == [(A, NACK), (B, NACK)]


SINCE = 100.0
"""When another member has claimed the shard, in monotonic seconds."""


@pytest.mark.parametrize(
    ("since", "opened_at", "delivered_at", "unacked", "now", "gives_way"),
    [
        pytest.param(SINCE, 50, 99.5, 3, 102, True, id="it holds what it got before the claim"),
        pytest.param(SINCE, 50, 100.5, 3, 102, True, id="the last came as the broker took the raise"),
        pytest.param(0, 50, 99.5, 3, 102, False, id="nobody else has the claim"),
        pytest.param(SINCE, 50, 99.5, 3, 100.5, False, id="the broker may not have the raise yet"),
        pytest.param(SINCE, 50, 101.5, 3, 102, False, id="it gets messages, as the other one may be gone"),
        pytest.param(SINCE, 101, 101.5, 3, 103, False, id="it was opened later, and chosen since"),
        pytest.param(SINCE, 50, 0, 0, 102, False, id="it has never got anything"),
        pytest.param(SINCE, 50, 99.5, 0, 102, False, id="its client holds nothing"),
    ],
)
def test_when_a_link_surely_gives_way(
    since: float, opened_at: float, delivered_at: float, unacked: int, now: float, gives_way: bool
) -> None:
    link = Link(Member("m", "/", "x", 1, b"c"), "q1", 7, 0, opened_at)
    link.state, link.raised_over_at, link.delivered_at, link.unacked = LinkState.OPEN, since, delivered_at, unacked
    assert link.gives_way(now) is gives_way


def test_a_link_whose_member_has_left_may_hold_what_its_client_has_never_got() -> None:
    """While the broker goes on to send it messages, it is the active one."""
    wire = holding()
    wire.client(ack(1, 1))
    client_loop.from_client(wire.c, made(1, commands.Basic.Cancel("c")))
    wire.to_broker()
    assert wire.to_client() == made(1, commands.Basic.CancelOk("c"))
    (link,) = (hidden.link for hidden in wire.consuming.leaving)
    assert link is not None
    assert (link.channel, link.gives_way(wire.c.now)) == (B, True)
    assert wire.broker(deliver(B, 2)) == b""
    assert not link.gives_way(wire.c.now)
