"""Deliveries through a group beside deliveries of the same shards straight from the broker."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pika
from pika.adapters.blocking_connection import BlockingChannel

from bench import delivered, direct, wire
from bench.delivered import Acks
from bench.long.scene import PERSISTENT, await_ring, remove
from bench.messages import KEYS
from bench.process import cpu_seconds
from bench.rounds import Spread, in_turn, told
from bench.tables import Goal, at_least, goal_table, median, shown, table
from bench.world import World, declare, running_compiled
from testbed.sidecar import Sidecar

STRAIGHT, RELAYED, GROUP = "straight from the shards", "HAProxy, from the shards", "this, compiled, from the group"

_LANED, _PLAIN = "bench.group.laned", "bench.group.plain"
"""The exchanges that are consumed by group: one has a lane before each shard, the other one has none."""
_SHARDS = {exchange: [f"{exchange}.{number}" for number in range(12)] for exchange in (_LANED, _PLAIN)}
_ARGUMENTS = {"x-queue-type": "quorum", "x-single-active-consumer": True}
_ROUNDS, _SECONDS = 9, 1.0


class Scene(NamedTuple):
    """How the shards are filled, and how the consumer takes their messages."""

    prefetch: int
    acks: Acks
    size: int = direct.SIZE
    exchange: str = _LANED
    relayed: bool = False
    """Whether HAProxy is compared as well."""

    @property
    def title(self) -> str:
        """The scene in words."""
        acks = f"an ack for {self.prefetch // 2}" if self.acks is Acks.MULTIPLE else "an ack for each"
        more = ", no lanes" if self.exchange == _PLAIN else ""
        return f"prefetch {self.prefetch:,}, {acks}, {self.size:,} B{more}"


_SCENES = (
    Scene(100, Acks.MULTIPLE, relayed=True),
    Scene(100, Acks.SINGLE),
    Scene(10, Acks.SINGLE),
    Scene(1000, Acks.MULTIPLE),
    Scene(100, Acks.MULTIPLE, size=1024),
    Scene(100, Acks.MULTIPLE, exchange=_PLAIN),
)


class Emptied(NamedTuple):
    """The figures of one round: the shards were filled, and emptied in one way."""

    rate: float
    """Messages a second, from the first delivery to the last one."""
    broker: float
    """CPU time of the broker for a message, in microseconds."""
    proxy: float | None
    """CPU time of the sidecar or HAProxy for a message, in microseconds; None where there is neither."""
    consumer: float
    """CPU time of the consumer for a message, in microseconds."""
    load: float
    """The load average of the machine."""

    @property
    def all(self) -> float:
        """CPU time of all three for a message, in microseconds."""
        return self.broker + (self.proxy or 0.0) + self.consumer


def groups(world: World) -> str:
    """Fill 12 quorum queues with single active consumer again and again, and empty them in each way in turn."""
    goals, rows, loads = [], [], []
    with running_compiled(world.node, {"groups": ",".join(_SHARDS)}) as sidecar, _declared(world, sidecar):
        for scene in _SCENES:
            found = in_turn(_ways(world, sidecar, scene), _ROUNDS, _SECONDS)
            goals.append(_goal(scene, found))
            rows += _rows(scene, found)
            loads += [one.load for rounds in found.values() for one in rounds]
    heads = ["", "", "messages/s", "least to most", "÷ straight", "least to most"]
    heads += [f"{who} CPU, µs a message" for who in ("broker's", "sidecar's or relay's", "consumer's", "all")]
    heads.append("all CPU ÷ straight")
    load = f"The load average was {median(loads)} in the median round, and {min(loads):.1f} to {max(loads):.1f} in all."
    return f"{goal_table(goals)}\n\n{table(heads, rows)}\n\n{told(_ROUNDS, _SECONDS)} {load}"


@contextmanager
def _declared(world: World, sidecar: Sidecar) -> Iterator[None]:
    """Declare the exchanges, their shards and lanes, and wait until the sidecar has their rings."""
    amqp_url = world.node.amqp_url
    declare(amqp_url, _PLAIN, _SHARDS[_PLAIN], arguments=_ARGUMENTS)
    try:
        with laned(amqp_url, sidecar, _LANED):
            await_ring(sidecar.http_url, _PLAIN)
            yield
    finally:
        remove(amqp_url, _PLAIN, _SHARDS[_PLAIN])


@contextmanager
def laned(amqp_url: str, sidecar: Sidecar, *exchanges: str) -> Iterator[None]:
    """Declare exchanges with 12 shards and a lane before each, and wait until the sidecar has their rings."""
    with channel_of(amqp_url) as channel:
        for exchange in exchanges:
            channel.exchange_declare(exchange, "x-consistent-hash", durable=True)
            for number in range(12):
                shard, lane = f"{exchange}.{number}", f"{exchange}.lane.{number}"
                channel.queue_declare(shard, durable=True, arguments=_ARGUMENTS)
                channel.exchange_declare(lane, "fanout", durable=True)
                channel.queue_bind(shard, lane)
                channel.exchange_bind(lane, exchange, routing_key="1")
    try:
        for exchange in exchanges:
            await_ring(sidecar.http_url, exchange)
        yield
    finally:
        for exchange in exchanges:
            remove(amqp_url, exchange, [f"{exchange}.{number}" for number in range(12)])
        with channel_of(amqp_url) as channel:
            for exchange in exchanges:
                for number in range(12):
                    channel.exchange_delete(f"{exchange}.lane.{number}")


@contextmanager
def channel_of(amqp_url: str) -> Iterator[BlockingChannel]:
    """Yield a channel on a connection of its own."""
    connection = pika.BlockingConnection(pika.URLParameters(amqp_url))
    yield connection.channel()
    connection.close()


def _ways(world: World, sidecar: Sidecar, scene: Scene) -> dict[str, Callable[[float], Emptied]]:
    """Return the ways in which a scene's shards are emptied, by title."""
    shards = _SHARDS[scene.exchange]
    file = world.folder / "group"
    wire.save(file, [direct.message(key, PERSISTENT, scene.exchange, scene.size) for key in KEYS])
    ways: dict[str, tuple[str, Sequence[str], int | None]] = {STRAIGHT: (world.node.amqp_url, shards, None)}
    if scene.relayed:
        ways[RELAYED] = (world.relay.amqp_url, shards, world.relay.pid)
    ways[GROUP] = (sidecar.amqp_url, [scene.exchange], sidecar.process.pid)
    return {title: partial(emptied, world, sidecar, scene, file, *way) for title, way in ways.items()}


def emptied(
    world: World,
    sidecar: Sidecar,
    scene: Scene,
    file: Path,
    amqp_url: str,
    names: Sequence[str],
    proxy: int | None,
    seconds: float,
) -> Emptied:
    """Fill the shards through the sidecar for some seconds, and measure how fast they are emptied in one way."""
    _, count = direct.messages_per_second(sidecar.amqp_url, file, seconds)
    pids = [world.node.pid] if proxy is None else [world.node.pid, proxy]
    before = [cpu_seconds(pid) for pid in pids]
    found = delivered.consumed(amqp_url, count, names, scene.prefetch, scene.acks)
    spent = [(cpu_seconds(pid) - begun) / count * 1e6 for pid, begun in zip(pids, before, strict=True)]
    by_proxy = spent[1] if proxy is not None else None
    return Emptied(count / found.seconds, spent[0], by_proxy, found.cpu / count * 1e6, os.getloadavg()[0])


def _ratio(rounds: Sequence[Emptied], others: Sequence[Emptied]) -> Spread:
    return Spread.of([one.rate / other.rate for one, other in zip(rounds, others, strict=True)])


def _goal(scene: Scene, found: dict[str, list[Emptied]]) -> Goal:
    return at_least(f"group ÷ straight, messages/s: {scene.title}", 0.8, _ratio(found[GROUP], found[STRAIGHT]))


def _rows(scene: Scene, found: dict[str, list[Emptied]]) -> list[list[str]]:
    return [
        [
            scene.title,
            title,
            *shown(Spread.of([one.rate for one in rounds]), ",.0f"),
            *shown(_ratio(rounds, found[STRAIGHT]), ".2f"),
            median([one.broker for one in rounds]),
            median([one.proxy for one in rounds], ".2f"),
            median([one.consumer for one in rounds], ".2f"),
            median([one.all for one in rounds]),
            median([one.all / other.all for one, other in zip(rounds, found[STRAIGHT], strict=True)], ".2f"),
        ]
        for title, rounds in found.items()
    ]
