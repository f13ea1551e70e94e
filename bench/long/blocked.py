"""How long deliveries take at a steady rate, while the consumer returns some messages at each try.

`python -m bench.long.blocked AMQP_URL EXCHANGE RATE SECONDS` publishes by one connection and consumes by another one.
It prints the median and the 99th percentile in milliseconds, and how many messages it has returned. A message's time
counts from when it was due until the consumer has it.
"""

import gc
import select
import socket
import statistics
import sys
import time
from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from bench import BenchError, apart, delivered, direct
from bench.long.scene import PERSISTENT
from proxy.wire.frames import BASIC_ACK, BASIC_DELIVER, BASIC_NACK, BODY, FRAME, METHOD, REQUEUE, U32, U64, method_frame

_KEYS = 10_000
_PREFETCH = 100
_SETTLED = 3.0
"""The seconds of messages before the measurement begins."""
_WITHIN = 20.0
_DUE = Struct(">d")
"""The first bytes of a body: when the message was due, by time.perf_counter; 0 for a message that is to fail."""


class Times(NamedTuple):
    """The figures of one turn."""

    p50: float
    """Milliseconds."""
    p99: float
    """Milliseconds."""
    returned: float
    """The messages that the consumer has returned meanwhile."""


def measured(amqp_url: str, exchange: str, rate: float, seconds: float) -> Times:
    """Measure in a process of its own. Raises BenchError where messages do not come."""
    return Times(*apart.figures("bench.long.blocked", amqp_url, exchange, rate, seconds))


def message(exchange: str, key: str, due: float) -> bytes:
    """Return the frames of a message with the time when it is due."""
    frames = direct.message(key, PERSISTENT, exchange)
    at = len(frames) - direct.SIZE - 1
    return frames[:at] + _DUE.pack(due) + frames[at + _DUE.size :]


class Publisher:
    """A connection with confirms on which messages are published."""

    def __init__(self, sock: socket.socket) -> None:
        """Take an open connection."""
        self.sock = sock
        self._sent, self._confirmed = 0, direct.Confirmed()

    def send(self, message: bytes) -> None:
        """Publish one message."""
        self.sock.sendall(message)
        self._sent += 1

    def receive(self) -> None:
        """Read the confirms that have come."""
        self._confirmed.feed(direct.received(self.sock))

    def publish(self, messages: Sequence[bytes]) -> None:
        """Publish messages, each once, and wait until all are confirmed."""
        for start in range(0, len(messages), direct.CHUNK):
            chunk = messages[start : start + direct.CHUNK]
            self.sock.sendall(b"".join(chunk))
            self._sent += len(chunk)
            while self._confirmed.upto < self._sent:
                self.receive()


class Consumer:
    """A connection that consumes from a group, acks what it gets, and returns what is to fail."""

    def __init__(self, sock: socket.socket) -> None:
        """Take an open connection that consumes."""
        self.sock = sock
        self.took: list[float] = []
        """The seconds of each message that was acked."""
        self.returned = 0
        self._rest, self._tag = b"", 0

    def receive(self) -> None:
        """Read what has come, and answer it. Raises BenchError where the broker closes."""
        answers, now = [], time.perf_counter()
        data, at = self._rest + direct.received(self.sock), 0
        while len(data) - at >= FRAME.size:
            kind, _, size = FRAME.unpack_from(data, at)
            end = at + FRAME.size + size + 1
            if end > len(data):
                break
            if kind == METHOD and U32.unpack_from(data, at + FRAME.size) == (BASIC_DELIVER,):
                (self._tag,) = U64.unpack_from(data, at + 12 + data[at + 11])
            elif kind == BODY:
                (due,) = _DUE.unpack_from(data, at + FRAME.size)
                answers.append(self._answer(due, now))
            at = end
        self._rest = data[at:]
        if answers:
            self.sock.sendall(b"".join(answers))

    def _answer(self, due: float, now: float) -> bytes:
        tag = U64.pack(self._tag)
        if due:
            self.took.append(now - due)
            return method_frame(1, BASIC_ACK, tag + b"\0")
        self.returned += 1
        return method_frame(1, BASIC_NACK, tag + bytes((REQUEUE,)))


def delivery_times(publisher: Publisher, consumer: Consumer, exchange: str, rate: float, count: int) -> list[float]:
    """Return the seconds of each of `count` messages, due evenly over time."""
    ready = [message(exchange, f"customer-{number}", 1.0) for number in range(_KEYS)]
    at = -direct.SIZE - 1  # a body is the same number of bytes before the end of each
    number, begun = 0, time.perf_counter()
    while len(consumer.took) < count:
        while number < count and time.perf_counter() >= (due := begun + number / rate):
            frames = ready[number % _KEYS]
            publisher.send(frames[:at] + _DUE.pack(due) + frames[at + _DUE.size :])
            number += 1
        pause = begun + number / rate - time.perf_counter() if number < count else _WITHIN
        readable, _, _ = select.select([publisher.sock, consumer.sock], [], [], max(pause, 0))
        if consumer.sock in readable:
            consumer.receive()
        if publisher.sock in readable:
            publisher.receive()
        if not readable and number == count:
            raise BenchError(f"{count - len(consumer.took)} messages have not come within {_WITHIN:g} s")
    return consumer.took


def main() -> None:
    """Run the command `python -m bench.long.blocked`."""
    amqp_url, exchange, rate, seconds = sys.argv[1:]
    gc.disable()
    with direct.connect(amqp_url) as publishing, direct.connect(amqp_url) as consuming:
        publisher, consumer = Publisher(publishing), Consumer(consuming)
        consuming.sendall(delivered.consume_frames([exchange], _PREFETCH))
        # The member has all shards, and what is to fail has come and was returned, before the measurement.
        delivery_times(publisher, consumer, exchange, float(rate), int(float(rate) * _SETTLED))
        consumer.took, consumer.returned = [], 0
        found = delivery_times(publisher, consumer, exchange, float(rate), int(float(rate) * float(seconds)))
    percentiles = statistics.quantiles(found, n=100)
    print(percentiles[49] * 1000, percentiles[98] * 1000, consumer.returned)


if __name__ == "__main__":
    main()
