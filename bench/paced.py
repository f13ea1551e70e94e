"""How long a confirm takes at a fixed rate of messages over one connection, whether or not earlier ones are confirmed.

`python -m bench.paced AMQP_URL RATE SECONDS FILE` prints the median and the 99th percentile in milliseconds; FILE holds
the messages (bench/wire.py, save), each of which is a write of its own. A message's time counts from when it was due,
so one that had to wait to be written is late by what it waited.
"""

import gc
import select
import socket
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench import BenchError, apart, direct, wire
from bench.latency import Latency

CONFIRMED_WITHIN = 20.0


def confirm_latency(amqp_url: str, rate: float, messages: Path, seconds: float) -> Latency:
    """Publish a file's messages from a process of its own. Raises BenchError for anything but acks."""
    return Latency(*apart.figures("bench.paced", amqp_url, rate, seconds, messages))


class Waiting:
    """The messages that wait for their confirm, and how long those took that have it."""

    def __init__(self) -> None:
        """No message was sent."""
        self.took: list[float] = []
        """Seconds."""
        self._due: dict[int, float] = {}
        """By delivery tag, in their order."""

    def sent(self, tag: int, due: float) -> None:
        """The next message."""
        self._due[tag] = due

    def confirm(self, tag: int, multiple: int, now: float) -> None:
        """An ack came."""
        if not multiple:
            self.took.append(now - self._due.pop(tag))
            return
        while self._due and (first := next(iter(self._due))) <= tag:
            self.took.append(now - self._due.pop(first))


def confirm_times(sock: socket.socket, messages: Sequence[bytes], rate: float, count: int) -> list[float]:
    """Return the seconds of each of `count` messages, due evenly over time."""
    waiting, acks, number = Waiting(), direct.Acks(), 0
    begun = time.perf_counter()
    while len(waiting.took) < count:
        while number < count and time.perf_counter() >= (due := begun + number / rate):
            number += 1
            waiting.sent(number, due)
            sock.sendall(messages[number % len(messages)])
        pause = begun + number / rate - time.perf_counter() if number < count else CONFIRMED_WITHIN
        readable, _, _ = select.select([sock], [], [], max(pause, 0))
        if readable:
            data, now = direct.received(sock), time.perf_counter()
            for tag, multiple in acks.feed(data):
                waiting.confirm(tag, multiple, now)
        elif number == count:
            raise BenchError(f"no confirm within {CONFIRMED_WITHIN:g} s")
    return waiting.took


def main() -> None:
    """Publish at a steady rate, as the command line says, and print the 50th and 99th percentile of confirms in ms."""
    amqp_url, rate, seconds, file = sys.argv[1:]
    messages = wire.load(Path(file))
    gc.disable()
    with direct.connect(amqp_url) as sock:
        found = confirm_times(sock, messages, float(rate), int(float(rate) * float(seconds)))
    percentiles = statistics.quantiles(found, n=100)
    print(percentiles[49] * 1000, percentiles[98] * 1000)


if __name__ == "__main__":
    main()
