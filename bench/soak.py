"""Whether memory grows: `python -m bench.soak [SECONDS]` publishes at full rate, 10 minutes unless told otherwise.

By AMQP, by HTTP, and by HTTP in batches, all at once. The exit status is 1 where memory has grown by 5% or more.
"""

import asyncio
import itertools
import os
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

from bench import BenchError, direct, messages
from bench.load import Client
from bench.process import memory
from bench.wire import Answer
from bench.world import EXCHANGE, declare, running_compiled
from testbed import SetupError
from testbed.broker import installation
from testbed.node import private_node
from testbed.sidecar import Sidecar

MOST_GROWTH = 0.05
SECONDS = 600
SINGLES, BATCHES = 16, 2
"""Connections of each kind of HTTP request, beside one of AMQP."""

_WARM_UP, _END = 0.2, 0.2
"""The shares of the run at its beginning and at its end. Memory that is added after the first counts as growth."""


@dataclass
class Soak:
    """The counts of one run's publishes, and the memory of the sidecar meanwhile."""

    answers: Counter[int] = field(default_factory=Counter)
    """How many HTTP answers came, by status; 0 counts connections that ended without an answer."""
    batches: int = 0
    """How many of the HTTP requests were batches."""
    amqp: int = 0
    """How many messages over AMQP were confirmed."""
    samples: list[tuple[float, int]] = field(default_factory=list)
    """Pairs of seconds since the beginning and resident bytes of the sidecar."""

    def median(self, since: float, until: float) -> float:
        """Return the median of the resident bytes from the second `since` to the second `until`."""
        return statistics.median(size for at, size in self.samples if since <= at < until)

    def growth(self, seconds: float) -> tuple[float, float]:
        """Resident bytes after the warm-up, and at the end."""
        warm = seconds * _WARM_UP
        return self.median(warm, warm + seconds * _END), self.median(seconds * (1 - _END), seconds)

    def count(self, answer: Answer | None, took: float) -> None:
        """Count an answer."""
        self.answers[answer.status if answer else 0] += 1

    def count_batch(self, answer: Answer | None, took: float) -> None:
        """Count the answer to a batch."""
        self.batches += 1
        self.count(answer, took)


async def run(sidecar: Sidecar, seconds: float) -> Soak:
    """Publish for so long. Raises BenchError for anything but confirms."""
    soak, pid = Soak(), sidecar.process.pid
    singles, batches = messages.singles(), messages.json_batches()
    clients = [Client(sidecar.http_url, itertools.cycle(singles), soak.count) for _ in range(SINGLES)]
    clients += [Client(sidecar.http_url, itertools.cycle(batches), soak.count_batch) for _ in range(BATCHES)]
    running = [asyncio.create_task(client.run()) for client in clients]
    by_amqp = asyncio.create_task(asyncio.to_thread(_publish, sidecar, seconds))
    began = time.monotonic()
    while (at := time.monotonic() - began) < seconds:
        soak.samples.append((at, memory(pid)))
        await asyncio.sleep(1)
    for client in clients:
        client.stop()
    await asyncio.wait_for(asyncio.gather(*running), 30)
    soak.amqp = await asyncio.wait_for(by_amqp, 30)
    if soak.answers.keys() - {200}:
        raise BenchError(f"not only confirms: {dict(soak.answers)}")
    return soak


def _publish(sidecar: Sidecar, seconds: float) -> int:
    chunks = direct.Chunks.of([direct.message(f"key-{number}", 1, EXCHANGE) for number in range(direct.CHUNK)])
    with direct.connect(sidecar.amqp_url) as sock:
        return direct.publish(sock, chunks, seconds)[0]


def main() -> int:
    """The exit status."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    try:
        with private_node(installation(os.environ.get("BROKER", ""))) as node:
            version = node.start()
            declare(node.amqp_url)
            with running_compiled(node) as sidecar:
                soak = asyncio.run(run(sidecar, seconds))
    except (BenchError, SetupError) as error:
        print(f"soak: {error}", file=sys.stderr)
        return 1
    before, after = soak.growth(seconds)
    print(f"RabbitMQ {version}, {seconds:g} s: {soak.amqp} messages by AMQP, {soak.batches} HTTP batches of", end=" ")
    print(f"{messages.BATCH}, {soak.answers[200] - soak.batches} single HTTP messages, all confirmed")
    print(f"resident after the warm-up {before / 2**20:.1f} MiB, at the end {after / 2**20:.1f} MiB:", end=" ")
    print(f"{after / before - 1:+.1%}")
    return int(after >= before * (1 + MOST_GROWTH))


if __name__ == "__main__":
    sys.exit(main())
