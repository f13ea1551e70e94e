"""Deliveries in series beside those of a group without it: rates and CPU time, memory, and keys that are blocked."""

import selectors
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from bench import BenchError, delivered, direct, wire
from bench.delivered import Acks
from bench.long import blocked
from bench.long.groups import Emptied, Scene, channel_of, emptied, laned
from bench.long.scene import PERSISTENT
from bench.process import memory
from bench.rounds import Spread, in_turn, told
from bench.tables import at_least, at_most, goal_table, median, shown, table
from bench.world import World, running_compiled
from testbed.sidecar import Sidecar

PLAIN, SERIES = "a group", "a group in series, distinct keys"

_PLAIN, _SERIES = "bench.series.no", "bench.series.yes"
"""The exchanges that are emptied as fast as can be: without series, and in series."""
_FREE, _BLOCKED, _FLIGHT = "bench.series.free", "bench.series.blocked", "bench.series.flight"
"""The exchanges in series of which no key is blocked, of which many are, and of which many messages are in flight."""
_EXCHANGES = (_PLAIN, _SERIES, _FREE, _BLOCKED)

_ROUNDS, _SECONDS = 11, 0.5
_KEYS = 20_000
"""The distinct keys of one turn, more than all windows hold."""

_SCENES = (Scene(100, Acks.MULTIPLE), Scene(400, Acks.MULTIPLE), Scene(100, Acks.SINGLE))
"""None acks more at once than a window holds, or a shard with no other messages would stand still."""

_FAILING = 1_000
"""The keys that are blocked: each has a message that the consumer returns at each try."""
_DELAY = 5.0
"""Seconds between two tries of a message."""
_PACED_ROUNDS, _PACED_SECONDS, _RATE = 9, 4.0, 1_000

_IN_FLIGHT, _CLIENTS, _TIMES = 100_000, 4, 3
_BALANCED = 10.0
"""Seconds for the group to be balanced: a shard that moves would wait for the acks of clients that ack nothing yet."""
_WITHIN = 60.0


def series(world: World) -> str:
    """Measure a group in series: how fast it is, what blocked keys cost others, and what messages in flight take."""
    settings = {
        "groups": "bench.series.*",
        "groups-in-series": ",".join((_SERIES, _FREE, _BLOCKED)),
        "groups-retry-delay": f"{_DELAY:g}",
        "groups-retry-delay-max": f"{_DELAY:g}",
    }
    amqp_url = world.node.amqp_url
    with running_compiled(world.node, settings) as sidecar, laned(amqp_url, sidecar, *_EXCHANGES):
        rates = {scene: in_turn(_ways(world, sidecar, scene), _ROUNDS, _SECONDS) for scene in _SCENES}
        waits = _waits(amqp_url, sidecar)
    flight = {"groups": _FLIGHT, "groups-in-series": _FLIGHT, "groups-window": str(_IN_FLIGHT // 10)}
    with running_compiled(world.node, flight) as sidecar, laned(amqp_url, sidecar, _FLIGHT):
        held = _held(sidecar)
    goals = [
        goal
        for scene, found in rates.items()
        for goal in (
            at_least(f"in series ÷ without, messages/s: {scene.title}", 0.9, _ratio(found, lambda one: one.rate)),
            at_most(f"in series ÷ without, sidecar's CPU: {scene.title}", 1.25, _ratio(found, _cpu)),
        )
    ]
    free, stuck = ([one.p99 for one in waits[exchange]] for exchange in (_FREE, _BLOCKED))
    ratio = Spread.of([one / other for one, other in zip(stuck, free, strict=True)])
    goals.append(at_most(f"p99 of other keys' deliveries, {_FAILING:,} keys in retry ÷ none", 1.2, ratio))
    grown = Spread.of([one.held / held[0].held for one in held[1:]])
    goals.append(at_most(f"memory with {_IN_FLIGHT:,} keys in flight, again ÷ the first time", 1.1, grown))
    parts = [goal_table(goals), _rate_table(rates), told(_ROUNDS, _SECONDS), _wait_table(waits)]
    parts += [_told_of_waits(), _memory_table(held)]
    return "\n\n".join(parts)


# Rates and CPU time


def _ways(world: World, sidecar: Sidecar, scene: Scene) -> dict[str, Callable[[float], Emptied]]:
    """Return the two ways in which a scene's shards are emptied, by title."""
    ways: dict[str, Callable[[float], Emptied]] = {}
    for title, exchange in ((PLAIN, _PLAIN), (SERIES, _SERIES)):
        file = world.folder / exchange
        wire.save(file, [direct.message(f"customer-{n}", PERSISTENT, exchange, scene.size) for n in range(_KEYS)])
        way = sidecar.amqp_url, [exchange], sidecar.process.pid
        ways[title] = partial(emptied, world, sidecar, scene, file, *way)
    return ways


def _cpu(one: Emptied) -> float:
    assert one.proxy is not None
    return one.proxy


def _ratio(found: dict[str, list[Emptied]], figure: Callable[[Emptied], float]) -> Spread:
    pairs = zip(found[SERIES], found[PLAIN], strict=True)
    return Spread.of([figure(one) / figure(other) for one, other in pairs])


def _rate_table(rates: dict[Scene, dict[str, list[Emptied]]]) -> str:
    heads = ["", "", "messages/s", "least to most", "sidecar's CPU, µs a message", "least to most"]
    heads += ["broker's CPU, µs a message", "consumer's CPU, µs a message"]
    rows = [
        [
            scene.title,
            title,
            *shown(Spread.of([one.rate for one in rounds]), ",.0f"),
            *shown(Spread.of([_cpu(one) for one in rounds]), ".2f"),
            median([one.broker for one in rounds]),
            median([one.consumer for one in rounds], ".2f"),
        ]
        for scene, found in rates.items()
        for title, rounds in found.items()
    ]
    return table(heads, rows)


# Blocked keys


def _waits(amqp_url: str, sidecar: Sidecar) -> dict[str, list[blocked.Times]]:
    """Measure by exchange, in turn, how long deliveries take, once the failing messages are in the shards."""
    with direct.connect(sidecar.amqp_url) as sock:
        blocked.Publisher(sock).publish([blocked.message(_BLOCKED, f"stuck-{n}", 0.0) for n in range(_FAILING)])
    measures = {
        exchange: partial(blocked.measured, sidecar.amqp_url, exchange, _RATE) for exchange in (_FREE, _BLOCKED)
    }
    found = in_turn(measures, _PACED_ROUNDS, _PACED_SECONDS)
    for exchange, expected in ((_FREE, 0), (_BLOCKED, _FAILING)):
        _await_ready(amqp_url, exchange, expected)
    return found


def _await_ready(amqp_url: str, exchange: str, expected: int) -> None:
    """Wait until so many messages of an exchange have gone back to its shards. Raises BenchError where others do."""
    deadline, count = time.monotonic() + _WITHIN, -1
    while count != expected:
        if time.monotonic() > deadline:
            raise BenchError(f"{count} messages are in the shards of {exchange}, and not {expected}")
        with channel_of(amqp_url) as channel:
            shards = [channel.queue_declare(f"{exchange}.{number}", passive=True) for number in range(12)]
        count = sum(shard.method.message_count for shard in shards)
        time.sleep(0.2)


def _wait_table(waits: dict[str, list[blocked.Times]]) -> str:
    heads = ["delivery of other keys' messages, ms", "p50", "least to most", "p99", "least to most"]
    heads += ["returns of blocked ones a turn"]
    titles = {_FREE: "no key is blocked", _BLOCKED: f"{_FAILING:,} keys are in retry"}
    rows = [
        [
            titles[exchange],
            *shown(Spread.of([one.p50 for one in rounds]), ".2f"),
            *shown(Spread.of([one.p99 for one in rounds]), ".2f"),
            f"{Spread.of([one.returned for one in rounds]).median:,.0f}",
        ]
        for exchange, rounds in waits.items()
    ]
    return table(heads, rows)


def _told_of_waits() -> str:
    return (
        f"{_RATE:,} messages/s, from when each is due until the consumer has it, in {_PACED_ROUNDS} rounds of"
        f" {_PACED_SECONDS:g} s. The blocked messages stand in 12 windows of 200, and each is tried and returned every"
        f" {_DELAY:g} s; a turn begins with all of them."
    )


# Messages in flight


class Held(NamedTuple):
    """The resident bytes of the sidecar: before its clients get messages, while they hold them, and after."""

    before: int
    held: int
    after: int


def _held(sidecar: Sidecar) -> list[Held]:
    """Have clients hold messages of distinct keys and ack them, again and again, and look at the sidecar's memory."""
    pid = sidecar.process.pid
    messages = [direct.message(f"customer-{n}", PERSISTENT, _FLIGHT) for n in range(_IN_FLIGHT)]
    found = []
    with direct.connect(sidecar.amqp_url) as sock, selectors.DefaultSelector() as selector:
        publisher = blocked.Publisher(sock)
        clients = [_Client(sidecar.amqp_url) for _ in range(_CLIENTS)]
        for client in clients:
            selector.register(client.sock, selectors.EVENT_READ, client)
        time.sleep(_BALANCED)
        for turn in range(1, _TIMES + 1):
            before = memory(pid)
            publisher.publish(messages)
            _read(selector, clients, turn * _IN_FLIGHT, _WITHIN)
            held = memory(pid)
            for client in clients:
                client.ack()
            time.sleep(1.0)
            found.append(Held(before, held, memory(pid)))
        for client in clients:
            client.sock.close()
    return found


class _Client:
    """A consumer of the exchange that acks what it has got when it is told to."""

    def __init__(self, amqp_url: str) -> None:
        self.sock, self.deliveries = direct.connect(amqp_url), delivered.Deliveries()
        self.sock.sendall(delivered.consume_frames([_FLIGHT], 0))

    def ack(self) -> None:
        if self.deliveries.seen:
            self.sock.sendall(delivered.acks_of(0, self.deliveries.tag, Acks.MULTIPLE))


def _read(selector: selectors.BaseSelector, clients: Sequence[_Client], count: int, within: float) -> None:
    """Read until the clients have got so many messages in all. Raises BenchError where that takes too long."""
    deadline = time.monotonic() + within
    while (seen := sum(client.deliveries.seen for client in clients)) < count:
        if time.monotonic() > deadline:
            raise BenchError(f"{seen:,} of {count:,} messages have come within {within:g} s")
        for key, _ in selector.select(0.1):
            key.data.deliveries.feed(direct.received(key.data.sock))


def _memory_table(held: list[Held]) -> str:
    mebibyte = 1 << 20
    heads = [f"{_IN_FLIGHT:,} messages of as many keys with {_CLIENTS} clients, sidecar's memory in MiB"]
    heads += ["before", "with the clients", "all acked", "bytes a message"]
    rows = [
        [
            f"time {number}",
            *(f"{figure / mebibyte:.1f}" for figure in one),
            f"{(one.held - held[0].before) / _IN_FLIGHT:,.0f}",
        ]
        for number, one in enumerate(held, 1)
    ]
    return table(heads, rows)
