"""The consumer that the benchmark of groups measures."""

import socket
import threading
from collections.abc import Iterator

import pytest
from pamqp import body, commands, frame, header

from bench import BenchError
from bench.delivered import Acks, Deliveries, consume


def delivery(tag: int) -> bytes:
    method = frame.marshal(commands.Basic.Deliver("tag", tag, False, "orders", "key"), 1)
    return method + frame.marshal(header.ContentHeader(0, 3), 1) + frame.marshal(body.ContentBody(b"abc"), 1)


@pytest.mark.parametrize("each", [1, 7, 1 << 16])
def test_deliveries_are_counted_in_any_chunking(each: int) -> None:
    deliveries, data = Deliveries(), b"".join(delivery(tag) for tag in range(1, 6))
    for at in range(0, len(data), each):
        deliveries.feed(data[at : at + each])
    assert (deliveries.seen, deliveries.tag, deliveries.ended) == (5, 5, False)
    deliveries.feed(frame.marshal(commands.Connection.CloseOk(), 0))
    assert deliveries.ended


def test_a_close_of_the_brokers_is_an_error() -> None:
    with pytest.raises(BenchError):
        Deliveries().feed(frame.marshal(commands.Channel.Close(404, "no queue", 0, 0), 1))


def frames(sock: socket.socket) -> Iterator[frame.FrameTypes]:
    data = b""
    while piece := sock.recv(1 << 16):
        data += piece
        while len(data) >= 8 and (size := frame.unmarshal(data)[0]) > 0:
            yield frame.unmarshal(data)[2]
            data = data[size:]


@pytest.mark.parametrize(
    ("acks", "expected"), [(Acks.MULTIPLE, [(3, True), (5, True)]), (Acks.SINGLE, [(n, False) for n in range(1, 6)])]
)
def test_all_is_acked_and_the_consumer_ends_with_the_close_ok(acks: Acks, expected: list[tuple[int, bool]]) -> None:
    ours, theirs = socket.socketpair()
    acked: list[tuple[int, bool]] = []

    def broker() -> None:
        for part in frames(theirs):
            if isinstance(part, commands.Basic.Consume):
                theirs.sendall(b"".join(delivery(tag) for tag in range(1, 4)))
            elif isinstance(part, commands.Basic.Ack):
                acked.append((part.delivery_tag, part.multiple))
                if part.delivery_tag == 3:
                    theirs.sendall(b"".join(delivery(tag) for tag in range(4, 6)))
            elif isinstance(part, commands.Connection.Close):
                # As RabbitMQ does, it leaves the socket open.
                theirs.sendall(frame.marshal(commands.Connection.CloseOk(), 0))

    thread = threading.Thread(target=broker)
    thread.start()
    with ours:
        consume(ours, 5, ["orders"], 6, acks)
    thread.join()
    theirs.close()
    assert acked == expected
