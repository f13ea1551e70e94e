"""The publisher at a fixed rate times every message from when it was due, whatever order its confirm comes in."""

import socket
import threading
import time

import pytest
from pamqp import commands, frame

from bench import BenchError, paced
from bench.paced import Waiting, confirm_times

STALL = 0.1


def ack(tag: int, *, multiple: bool) -> bytes:
    return frame.marshal(commands.Basic.Ack(tag, multiple), 1)


def test_each_message_is_timed_once_in_any_order_of_confirms() -> None:
    waiting = Waiting()
    for tag in range(1, 6):
        waiting.sent(tag, float(tag))
    waiting.confirm(3, 0, 10.0)
    assert waiting.took == [7.0]
    waiting.confirm(4, 1, 20.0)
    assert waiting.took == [7.0, 19.0, 18.0, 16.0]
    waiting.confirm(5, 0, 30.0)
    assert waiting.took[4:] == [25.0]


def broker_says(*parts: bytes) -> tuple[socket.socket, threading.Thread]:
    """A connection whose other end says this, the first part after a stall, and then listens until it is closed."""
    ours, theirs = socket.socketpair()

    def serve() -> None:
        with theirs:
            time.sleep(STALL)
            for part in parts:
                theirs.sendall(part)
            while theirs.recv(65536):
                pass

    thread = threading.Thread(target=serve)
    thread.start()
    return ours, thread


def test_a_stall_makes_every_message_of_it_late() -> None:
    ours, thread = broker_says(ack(9, multiple=True)[:5], ack(9, multiple=True)[5:], ack(10, multiple=False))
    with ours:
        found = confirm_times(ours, [b"message"], rate=1000, count=10)
    thread.join()
    assert len(found) == 10
    assert found[0] >= STALL - 0.005  # clocks differ a little
    assert found[8] >= STALL - 0.050


def test_a_confirm_that_never_comes_ends_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paced, "CONFIRMED_WITHIN", 0.2)
    ours, thread = broker_says(ack(1, multiple=False))
    with ours, pytest.raises(BenchError, match="no confirm"):
        confirm_times(ours, [b"message"], rate=1000, count=2)
    thread.join()


def test_a_nack_ends_the_measurement() -> None:
    ours, thread = broker_says(frame.marshal(commands.Basic.Nack(1), 1))
    with ours, pytest.raises(BenchError, match="not only acks"):
        confirm_times(ours, [b"message"], rate=1000, count=1)
    thread.join()
