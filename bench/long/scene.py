"""Scenes: an exchange with its queues, and the ways of a publish compared on it."""

import time
import urllib.error
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import quote

import pika

from bench import BenchError, direct, wire
from bench.amqp import COMPILED, CONSISTENT, LANES, RELAYED, STRAIGHT, Way, contender
from bench.messages import KEYS
from bench.rounds import Contender, Spread, Throughput, in_turn, told
from bench.tables import median, shown, table
from bench.world import BOUNDED, World, declare
from testbed.readiness import DIRECT

ROUNDS, SECONDS = 3, 2.0

TRANSIENT, PERSISTENT = 1, 2

_RING_WITHIN = 120.0
"""Seconds until a ring must be there, however large."""


@dataclass(frozen=True)
class Scene:
    """An exchange of type x-consistent-hash, its queues, and the messages to it."""

    title: str
    exchange: str
    queues: Sequence[str]
    weights: Sequence[int] = (1,)
    """The weights of the queues, in turn."""
    mode: int = TRANSIENT
    size: int = direct.SIZE
    arguments: Mapping[str, object] | None = None
    """The arguments of the queues; None for the usual ones."""
    relayed: bool = False
    """Whether HAProxy is compared as well."""

    @contextmanager
    def set(self, world: World) -> Iterator[None]:
        """Declare it and wait until the sidecar has its ring; take it away at the end."""
        declare(world.node.amqp_url, self.exchange, self.queues, self.weights, self.arguments or BOUNDED)
        try:
            await_ring(world.sidecar.http_url, self.exchange)
            yield
        finally:
            remove(world.node.amqp_url, self.exchange, self.queues)

    def ways(self, world: World) -> list[Way]:
        """Straight to its queues, by the bare relay if asked for, natively, and through the compiled sidecar."""
        straight, hashed = (world.folder / f"{self.exchange}-{kind}" for kind in ("straight", "hashed"))
        # No more messages than fill 8 MiB, of which one is there at least.
        keys = KEYS[: max(1, (8 << 20) // self.size)]
        queues = self.queues[: len(keys)]
        wire.save(straight, [direct.message(queue, self.mode, size=self.size) for queue in queues])
        wire.save(hashed, [direct.message(key, self.mode, self.exchange, self.size) for key in keys])
        relayed = [Way(RELAYED, world.relay.amqp_url, straight, world.relay.pid)] if self.relayed else []
        return [
            Way(STRAIGHT, world.node.amqp_url, straight, None),
            *relayed,
            Way(CONSISTENT, world.node.amqp_url, hashed, None),
            Way(COMPILED, world.sidecar.amqp_url, hashed, world.sidecar.process.pid),
        ]


def compared(world: World, scenes: Sequence[Scene], about: str) -> str:
    """Every scene in turn, its ways interleaved; `about` heads the scenes' column."""
    found = {}
    for scene in scenes:
        with scene.set(world):
            found[scene.title] = raced([contender(world, way) for way in scene.ways(world)])
    return rows(found, about)


def raced(contenders: Sequence[Contender], rounds: int = ROUNDS) -> dict[str, list[Throughput]]:
    """Measure contenders in turn, and return their figures by title."""
    return in_turn({one.title: one.measure for one in contenders}, rounds, SECONDS)


def rows(found: Mapping[str, Mapping[str, Sequence[Throughput]]], about: str, rounds: int = ROUNDS) -> str:
    """Return a table of contenders within scenes, with their ratios to the first of their scene and to the native
    exchange, where that is one of them.
    """
    cells = []
    for scene, ways in found.items():
        first, native = next(iter(ways.values())), ways.get(CONSISTENT)
        for title, those in ways.items():
            rates = shown(Spread.of([r.rate for r in those]), ",.0f")
            costs = median([r.broker for r in those]), median([r.server for r in those], ".2f")
            to_native = _ratio(those, native) if native and title in (COMPILED, LANES) else ("", "")
            cells.append([scene, title, *rates, *_ratio(those, first), *to_native, *costs])
    heads = [about, "", "messages/s", "least to most", "÷ the first", "least to most", "÷ native", "least to most"]
    heads += ["broker CPU, µs a message", "sidecar's or relay's CPU, µs a message"]
    return f"{table(heads, cells)}\n\n{told(rounds, SECONDS)}"


def _ratio(rounds: Sequence[Throughput], others: Sequence[Throughput]) -> tuple[str, str]:
    """Return the ratio of the rates within each round: its median, and its range."""
    ratio = Spread.of([one.rate / other.rate for one, other in zip(rounds, others, strict=True)])
    return shown(ratio, ".4f" if ratio.median < 0.1 else ".2f" if ratio.median < 10 else ".0f")


@contextmanager
def virtual_host(world: World, name: str) -> Iterator[None]:
    """Add a virtual host, and delete it at the end with all that is in it."""
    world.node.control("add_vhost", name)
    try:
        world.node.control("set_permissions", "-p", name, "guest", ".*", ".*", ".*")
        yield
    finally:
        world.node.control("delete_vhost", name)


def await_ring(http_url: str, exchange: str, vhost: str = "/") -> None:
    """Wait until a sidecar routes the exchange. Raises BenchError where that takes too long."""
    deadline = time.monotonic() + _RING_WITHIN
    url = f"{http_url}/v1/exchanges/{quote(exchange)}/route?key=any&vhost={quote(vhost, safe='')}"
    while True:
        try:
            with DIRECT.open(url, timeout=30) as response:
                if b'"destination"' in response.read():
                    return
        except urllib.error.HTTPError as error:
            error.close()
        if time.monotonic() > deadline:
            raise BenchError(f"no ring for {exchange} within {_RING_WITHIN:g} s")
        time.sleep(0.2)


def remove(amqp_url: str, exchange: str, queues: Sequence[str]) -> None:
    """Delete an exchange and its queues."""
    connection = pika.BlockingConnection(pika.URLParameters(amqp_url))
    channel = connection.channel()
    channel.exchange_delete(exchange)
    for queue in queues:
        channel.queue_delete(queue)
    connection.close()
