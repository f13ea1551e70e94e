"""How long an answer takes at a fixed rate of requests, whether or not earlier ones are answered (an open loop).

`python -m bench.latency URL RATE SECONDS REQUESTS` prints the median and the 99th percentile in milliseconds. The URL
is an HTTP server's, or the broker's: then a request is a publish, and its answer the confirm. The client waits by
select, whose time is in microseconds: asyncio's timers are a millisecond coarse, as much as what is measured.
"""

import gc
import select
import socket
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from bench import BenchError, apart, direct, wire

RATE = 1000
"""The usual rate, in requests a second."""
CONNECTIONS = 32
_ANSWERED_WITHIN = 20.0


class Latency(NamedTuple):
    """Milliseconds from when a request was due to the last byte of its answer."""

    p50: float
    p99: float


def latency(url: str, requests: Path, seconds: float, rate: float = RATE) -> Latency:
    """Send a file's requests in turn from a process of its own. Raises BenchError for any refusal."""
    return Latency(*apart.figures("bench.latency", url, rate, seconds, requests))


class Connection:
    """A connection that stays open, and the time at which its pending request was due."""

    def __init__(self, sock: socket.socket, answered: Callable[[bytes], bool]) -> None:
        """`answered` takes what comes in, and says whether it ends an answer; it raises BenchError for a refusal."""
        self._sock, self._answered = sock, answered
        self._due = 0.0

    def fileno(self) -> int:
        """Return the number of the socket, for select."""
        return self._sock.fileno()

    def send(self, request: bytes, due: float) -> None:
        """Send a request."""
        self._due = due
        self._sock.sendall(request)

    def receive(self) -> float | None:
        """Read what has come; the seconds since the request was due if the answer is whole now."""
        data = self._sock.recv(65536)
        if not data:
            raise BenchError("the server closed a connection")
        return time.perf_counter() - self._due if self._answered(data) else None

    def close(self) -> None:
        """Close it."""
        self._sock.close()


def connect(url: str) -> Connection:
    """Return a connection to an HTTP server or a broker."""
    address = urlsplit(url)
    if address.scheme == "amqp":
        return Connection(direct.connect(url), _confirms(direct.Confirmed()))
    sock = socket.create_connection((address.hostname or "127.0.0.1", address.port or 80))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Connection(sock, _answers(wire.Answers()))


def _answers(answers: wire.Answers) -> Callable[[bytes], bool]:
    def answered(data: bytes) -> bool:
        found = answers.feed(data)
        if any(answer.status // 100 != 2 or answer.closes for answer in found):
            raise BenchError(f"answered {data[:300]!r}")
        return bool(found)

    return answered


def _confirms(confirmed: direct.Confirmed) -> Callable[[bytes], bool]:
    def answered(data: bytes) -> bool:
        before = confirmed.upto
        confirmed.feed(data)
        return confirmed.upto > before

    return answered


def latencies(
    connections: Sequence[Connection], requests: Sequence[bytes], count: int, rate: float = RATE
) -> list[float]:
    """Seconds of each of `count` requests, sent evenly over time, each on the connection that has rested longest."""
    idle, busy, found, number = deque(connections), set[Connection](), list[float](), 0
    begun = time.perf_counter()
    while len(found) < count:
        while idle and number < count and time.perf_counter() >= (due := begun + number / rate):
            connection = idle.popleft()
            connection.send(requests[number % len(requests)], due)
            busy.add(connection)
            number += 1
        pause = begun + number / rate - time.perf_counter() if idle and number < count else _ANSWERED_WITHIN
        readable, _, _ = select.select(busy, [], [], max(pause, 0))
        if not readable and pause == _ANSWERED_WITHIN:
            raise BenchError(f"no answer within {_ANSWERED_WITHIN:g} s")
        for connection in readable:
            if (took := connection.receive()) is not None:
                found.append(took)
                busy.remove(connection)
                idle.append(connection)
    return found


def main() -> None:
    """Run the command `python -m bench.latency`."""
    url, rate, seconds, requests = sys.argv[1:]
    connections = [connect(url) for _ in range(CONNECTIONS)]
    gc.disable()
    found = latencies(connections, wire.load(Path(requests)), int(float(seconds) * float(rate)), float(rate))
    for connection in connections:
        connection.close()
    percentiles = statistics.quantiles(found, n=100)
    print(percentiles[49] * 1000, percentiles[98] * 1000)


if __name__ == "__main__":
    main()
