"""Sessions that publish at once end when every message of every session is confirmed."""

import contextlib
import socket
import threading

import pytest
from pamqp import commands, frame

from bench import direct
from bench.long.many import Session, publish

CHUNK, SIZE, EACH = b"12345678", 4, 2


def confirm(sock: socket.socket) -> None:
    """A broker that confirms every message, each time it has read some."""
    got, said = 0, 0
    with sock, contextlib.suppress(ConnectionError):
        while data := sock.recv(EACH):
            got += len(data)
            if got // EACH > said:
                said = got // EACH
                sock.sendall(frame.marshal(commands.Basic.Ack(said, True), 1))


def test_all_that_was_sent_is_confirmed_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [socket.socketpair() for _ in range(3)]
    ours = iter(pairs)
    monkeypatch.setattr(direct, "connect", lambda url: next(ours)[0])
    brokers = [threading.Thread(target=confirm, args=(theirs,)) for _, theirs in pairs]
    for broker in brokers:
        broker.start()
    made = [Session("amqp://", CHUNK, SIZE) for _ in pairs]
    count, took = publish(made, 0.2)
    assert all(session.done for session in made)
    assert took >= 0.2
    assert count == sum(session.sent for session in made)
    assert min(session.sent for session in made) > 2 * SIZE
    for session in made:
        session.sock.close()
    for broker in brokers:
        broker.join()
