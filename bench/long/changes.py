"""A hundred binding changes a second while messages are published.

`python -m bench.long.changes AMQP_URL EXCHANGE QUEUE` binds and unbinds at that rate, or as fast as it is
answered, until it is terminated; then it says how many a second it were.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pika

from bench import BenchError
from bench.amqp import Way, contender
from bench.long.scene import Scene, raced, rows
from bench.rounds import Contender, Spread
from bench.tables import shown
from bench.world import EXCHANGE, QUEUES, World

RATE = 100
EXTRA = f"{EXCHANGE}.changing"
"""The queue that comes and goes."""


def changes(world: World) -> str:
    """Measure throughput while bindings change, at the broker or through the sidecar; return the section."""
    scene = Scene("", f"{EXCHANGE}.changed", [f"{EXCHANGE}.changed.q{n}" for n in range(len(QUEUES))])
    with scene.set(world), _queue(world.node.amqp_url):
        straight, native, ours = scene.ways(world)
        quiet = [contender(world, way) for way in (straight, native, ours)]
        by_broker, by_sidecar = world.node.amqp_url, world.sidecar.amqp_url
        ways, rates = (straight, native, ours), list[float]()
        at_broker = [_while_changing(world, way, scene.exchange, by_broker, rates) for way in ways]
        through = [_while_changing(world, way, scene.exchange, by_sidecar, rates) for way in ways]
        found = {
            "none": raced(quiet),
            f"{RATE} a second, at the broker": raced(at_broker),
            f"{RATE} a second, through the sidecar": raced(through),
        }
    middle, spread = shown(Spread.of(rates), ".0f")
    return f"{rows(found, 'changes')}\n\nChanges that were answered, a second: {middle} ({spread})."


def _while_changing(world: World, way: Way, exchange: str, amqp_url: str, rates: list[float]) -> Contender:
    """Return a contender that publishes while bindings change; the changes a second are added to `rates`."""
    undisturbed = contender(world, way)

    def run(seconds: float) -> tuple[float, int]:
        command = [sys.executable, "-m", "bench.long.changes", amqp_url, exchange, EXTRA]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as changing:
            try:
                assert changing.stdout
                changing.stdout.readline()
                found = undisturbed.run(seconds)
                if changing.poll() is not None:
                    raise BenchError(f"the changes ended: {changing.communicate()[1]}")
            finally:
                changing.terminate()
            rates.append(float(changing.communicate()[0].split()[-1]))
            return found

    return Contender(undisturbed.title, run, undisturbed.broker, undisturbed.server)


@contextmanager
def _queue(amqp_url: str) -> Iterator[None]:
    """Declare the queue that comes and goes for the length of the block; it drops its oldest messages, as others do."""
    connection = pika.BlockingConnection(pika.URLParameters(amqp_url))
    channel = connection.channel()
    channel.queue_declare(EXTRA, durable=True, arguments={"x-max-length": 1000})
    try:
        yield
    finally:
        channel.queue_delete(EXTRA)
        connection.close()


def main() -> None:
    """Bind and unbind a queue until SIGTERM; say so once it has begun."""
    amqp_url, exchange, queue = sys.argv[1:]
    channel = pika.BlockingConnection(pika.URLParameters(amqp_url)).channel()
    begun, number = time.monotonic(), 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    try:
        while True:
            (channel.queue_unbind if number % 2 else channel.queue_bind)(queue, exchange, "1")
            number += 1
            if number == 1:
                print("begun", flush=True)
            time.sleep(max(0.0, begun + number / RATE - time.monotonic()))
    finally:
        print(number / (time.monotonic() - begun), flush=True)


if __name__ == "__main__":
    main()
