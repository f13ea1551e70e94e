"""The client at a fixed rate counts the time that a request had to wait to be sent."""

import socket
import threading
import time

import pytest

from bench import BenchError, wire
from bench.latency import connect, latencies

STALL = 0.1
REQUEST = wire.post("/", b"", {})
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


def serve(listener: socket.socket, answer: bytes) -> None:
    """Answers one connection, the first request after a while."""
    sock, _ = listener.accept()
    with sock:
        pause = STALL
        while sock.recv(65536):
            time.sleep(pause)
            sock.sendall(answer)
            pause = 0


def measured(answer: bytes, count: int) -> list[float]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve, args=(listener, answer))
        server.start()
        connection = connect(f"http://127.0.0.1:{listener.getsockname()[1]}")
        try:
            return latencies([connection], [REQUEST], count)
        finally:
            connection.close()
            server.join()


def test_requests_behind_a_slow_one_are_late_by_what_they_waited() -> None:
    found = measured(OK, 51)
    assert found[0] >= STALL
    assert found[50] >= STALL - 0.050


def test_a_refusal_ends_the_measurement() -> None:
    with pytest.raises(BenchError, match="503"):
        measured(OK.replace(b"200 OK", b"503 Service Unavailable"), 1)
