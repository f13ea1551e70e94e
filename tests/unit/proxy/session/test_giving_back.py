"""What a link holds goes back before the link ends, if it gives way: RabbitMQ may keep such a consumer otherwise."""

import pytest
from pamqp import commands

from proxy.session import client_loop, closing, links
from tests.unit.proxy.session.grouping import FIRST, Grouping, deliver, opened
from tests.unit.proxy.session.wire import Frame, close_channel, made, split

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
    for link in member.links.values():
        link.gives_way = gives_way
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


def test_a_link_that_has_just_been_opened_counts() -> None:
    wire = holding()
    wire.both(opened(FIRST + 3))
    assert told(split(links.give_back(wire.c))) == [(A, NACK), (B, NACK), (FIRST + 3, NACK)]
