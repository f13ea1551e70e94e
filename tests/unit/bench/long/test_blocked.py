"""The consumer that the benchmark of blocked keys measures."""

import socket
import time

import pytest
from pamqp import body, commands, frame, header

from bench import direct
from bench.long.blocked import Consumer, Publisher, message


def delivery(tag: int, due: float) -> bytes:
    """Return the frames of a delivery, with the body of a message that is due at a time."""
    at = -direct.SIZE - 1
    content = message("orders", "key", due)[at:-1]
    frames = commands.Basic.Deliver("tag", tag, False, "orders", "key"), header.ContentHeader(0, len(content))
    return b"".join(frame.marshal(each, 1) for each in (*frames, body.ContentBody(content)))


def answers(data: bytes) -> list[tuple[str, int, bool]]:
    """Return the name, the delivery tag and the requeue flag of each answer to a delivery."""
    found = []
    while data:
        size, _, method = frame.unmarshal(data)
        assert isinstance(method, commands.Basic.Ack | commands.Basic.Nack)
        assert not method.multiple
        requeued = isinstance(method, commands.Basic.Nack) and method.requeue
        found.append((method.name, method.delivery_tag or 0, requeued))
        data = data[size:]
    return found


@pytest.mark.parametrize("each", [7, 1 << 16])
def test_a_message_that_is_to_fail_is_returned_and_the_others_are_acked_and_timed(each: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        consumer = Consumer(ours)
        due = time.perf_counter() - 0.5
        data = delivery(1, due) + delivery(2, 0.0) + delivery(3, due)
        for at in range(0, len(data), each):
            theirs.sendall(data[at : at + each])
            consumer.receive()
        theirs.setblocking(False)
        answered = answers(theirs.recv(1 << 16))
    assert answered == [("Basic.Ack", 1, False), ("Basic.Nack", 2, True), ("Basic.Ack", 3, False)]
    assert consumer.returned == 1
    assert len(consumer.took) == 2
    assert min(consumer.took) >= 0.5


def test_each_message_is_published_once_and_confirmed() -> None:
    ours, theirs = socket.socketpair()
    messages = [message("orders", key, 0.0) for key in "abc"]
    with ours, theirs:
        theirs.sendall(frame.marshal(commands.Basic.Ack(2, True), 1) + frame.marshal(commands.Basic.Ack(3, False), 1))
        Publisher(ours).publish(messages)
        theirs.setblocking(False)
        assert theirs.recv(1 << 16) == b"".join(messages)
