"""Who is compared with whom by AMQP: the ways of a publish to one of eight queues."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench import direct, wire
from bench.messages import KEYS
from bench.paced import confirm_latency
from bench.process import cpu_seconds, memory
from bench.rounds import Contender, Throughput, in_turn
from bench.world import EXCHANGE, LANES_EXCHANGE, MODULUS_EXCHANGE, QUEUES, World

STRAIGHT, RELAYED = "straight to the queues", "HAProxy, to the queues"
CONSISTENT, MODULUS = "native x-consistent-hash", "native x-modulus-hash"
COMPILED, LANES, PURE = "this, compiled", "this, compiled, to lanes", "this, pure Python"

RATES = {1_000: 1.5, 10_000: 0.7}
"""Messages a second whose confirms are timed, and the seconds of a round."""

_TRANSIENT = 1
_WARM_UP = 0.5


class Paced(NamedTuple):
    """The figures of one round at a fixed rate."""

    p50: float
    p99: float
    """Milliseconds from when a message was due to its confirm: the median, and the 99th percentile."""
    proxy: float | None
    """CPU time of the proxy per message, in microseconds; None where there is none."""


@dataclass(frozen=True)
class Measured:
    """The results of the measurements by AMQP, by the title of each way of a publish."""

    version: str
    """The version of the broker."""
    throughput: Mapping[str, Sequence[Throughput]]
    paced: Mapping[int, Mapping[str, Sequence[Paced]]]
    """The rounds at a fixed rate by rate, in messages a second, and title."""
    resident: Mapping[str, int]
    """The resident bytes of the proxies after the measurements."""
    idle: int
    """The resident bytes of the sidecar before any load, with one ring."""
    absent: Sequence[str] = field(default=())
    """The titles of the ways that this broker does not have."""


class Way(NamedTuple):
    """One way of a publish to a queue, directly or through a proxy."""

    title: str
    amqp_url: str
    messages: Path
    proxy: int | None
    """The pid of the proxy between publisher and broker; None where there is none."""


def ways(world: World) -> list[Way]:
    """Return the ways of a publish that this broker has."""
    queues, hashed = _saved(world, "amqp-queues", QUEUES, ""), _saved(world, "amqp-hashed", KEYS, EXCHANGE)
    laned = _saved(world, "amqp-lanes", KEYS, LANES_EXCHANGE)
    direct_url = world.node.amqp_url
    found = [Way(STRAIGHT, direct_url, queues, None), Way(CONSISTENT, direct_url, hashed, None)]
    if world.has_modulus:
        found.append(Way(MODULUS, direct_url, _saved(world, "amqp-modulus", KEYS, MODULUS_EXCHANGE), None))
    return [
        *found,
        Way(RELAYED, world.relay.amqp_url, queues, world.relay.pid),
        Way(COMPILED, world.sidecar.amqp_url, hashed, world.sidecar.process.pid),
        Way(LANES, world.sidecar.amqp_url, laned, world.sidecar.process.pid),
        Way(PURE, world.pure.amqp_url, hashed, world.pure.process.pid),
    ]


def contender(world: World, way: Way) -> Contender:
    """Return a contender that publishes this way at full rate."""
    return Contender(
        way.title, partial(direct.messages_per_second, way.amqp_url, way.messages), world.node.pid, way.proxy
    )


def measured(world: World, rounds: int, seconds: float) -> Measured:
    """Measure the throughput of all ways, and then the latency of their confirms at each rate."""
    all_ways = ways(world)
    throughput = in_turn({way.title: contender(world, way).measure for way in all_ways}, rounds, seconds)
    paced = {}
    for rate, each in RATES.items():
        timed = {way.title: partial(_paced, way, rate) for way in all_ways}
        paced[rate] = in_turn(timed, rounds, each, _WARM_UP)
    resident = {way.title: memory(way.proxy) for way in all_ways if way.proxy is not None}
    absent = [] if world.has_modulus else [MODULUS]
    return Measured(world.version, throughput, paced, resident, world.idle_memory, absent)


def _paced(way: Way, rate: int, seconds: float) -> Paced:
    """Publish this way at a fixed rate, each message in a write of its own, for some seconds."""
    before = None if way.proxy is None else cpu_seconds(way.proxy)
    p50, p99 = confirm_latency(way.amqp_url, rate, way.messages, seconds)
    if way.proxy is None or before is None:
        return Paced(p50, p99, None)
    return Paced(p50, p99, (cpu_seconds(way.proxy) - before) / (rate * seconds) * 1e6)


def _saved(world: World, name: str, keys: Sequence[str], exchange: str) -> Path:
    path = world.folder / name
    wire.save(path, [direct.message(key, _TRANSIENT, exchange) for key in keys])
    return path
