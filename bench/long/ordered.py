"""The cost of `ring-proxy topology apply --ordered` for broker and publishers, as fleets, shards and backlogs grow."""

import asyncio
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final, NamedTuple

import pika

from bench import BenchError
from bench.long.scene import await_ring, virtual_host
from bench.metered import Asked, Meter, metered
from bench.process import cpu_seconds
from bench.tables import table
from bench.world import World, compiled_environment, running_compiled
from testbed.ordered_judge import Published
from testbed.ordered_load import OrderedLoad
from testbed.sidecar import Sidecar

CHANGES: Final = ((2, 20, 0), (2, 60, 0), (2, 200, 0), (8, 20, 0), (24, 20, 0), (2, 20, 50_000), (2, 20, 150_000))
"""How many sidecars there are, how many shards, and how many messages wait in them as the change begins."""

_VHOST: Final = "bench.ordered"
_EXCHANGE: Final = "orders"
_COMMAND, _SIDECARS = "command", "sidecars"
_KEYS: Final = 400
"""The keys of all publishers together."""
_RATE: Final = 200.0
"""Messages a second, of all publishers together."""
_USUAL: Final = 20.0
"""Seconds in which the time of a confirm is measured before the change."""
_MEMBERS: Final = 2
_WITHIN: Final = 600.0
_AHEAD: Final = 9_999
"""The number by which the judge knows the publisher of the backlog."""

PHASES: Final = {
    "makes": "makes generation",
    "switches": "closes the lanes",
    "closes": "  unbind ",
    "settles": "waits until all that was published before",
    "drains": "drains ",
}
"""The phases of a change in their order, each with the words of the command's first line of it."""


class Took(NamedTuple):
    """The figures of one change."""

    sidecars: int
    shards: int
    backlog: int
    phases: dict[str, float]
    """The seconds of each phase; of the first one, from the start of the command to its end."""
    command: Asked
    """The questions of the command to the management API."""
    fleet: Asked
    """The questions of all sidecars together."""
    broker_cpu: float
    """CPU seconds."""
    sidecar_cpu: float
    """CPU seconds of one sidecar, as the mean of all."""
    usual: float
    """The time of a confirm before the change, in seconds: that which 99% of them are below."""
    during: float
    """The time of a confirm during the change, in seconds, likewise."""
    slowest: float
    load: float
    """The load average at the end."""


class _Load:
    """Publishers and members that are at work in a thread, until told to stop."""

    def __init__(self, sidecars: Sequence[Sidecar]) -> None:
        urls = [f"{each.amqp_url}{_VHOST}" for each in sidecars]
        self.load = OrderedLoad(_EXCHANGE, urls, urls[:_MEMBERS], keys=_KEYS // len(urls), groups=[_EXCHANGE])
        self._rate = _RATE / len(urls)
        self._over, self._done, self._consumes = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._all()), daemon=True)
        self._thread.start()

    def consume(self) -> None:
        """Let the members begin."""
        self._consumes.set()

    def stop(self) -> None:
        """Publish no more, and end once the members have got all. Raises BenchError for what is lost or overtaken."""
        self._over.set()
        deadline = time.monotonic() + _WITHIN
        while self.load.missing and time.monotonic() < deadline:
            time.sleep(0.5)
        self._done.set()
        self._thread.join(30)
        if self.load.missing or self.load.overtaken:
            raise BenchError(f"missing: {self.load.missing}; overtaken: {self.load.overtaken[:3]}")

    def confirms(self, begun: float, ended: float) -> list[float]:
        """Return the seconds to the confirm of each message that was published from one time to another."""
        published: list[Published] = [each for key in list(self.load.confirmed.values()) for each in key]
        return [each.confirmed - each.at for each in published if begun <= each.at < ended]

    async def _all(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            members = tasks.create_task(self._consume())
            await self.load.publish(self._rate, self._over.is_set)
            await asyncio.to_thread(self._done.wait)
            members.cancel()

    async def _consume(self) -> None:
        await asyncio.to_thread(self._consumes.wait)
        await self.load.consume()


def ordered(world: World) -> str:
    """Change fleets, shards and backlogs of several sizes; return the section."""
    with metered(world.node.management_url, [_COMMAND, _SIDECARS]) as meter:
        return markdown([_change(world, meter, *each) for each in chosen()])


def chosen() -> Sequence[tuple[int, int, int]]:
    """Return the changes to measure: those in the variable CHANGES, such as `2x20x0,8x20x0`, or all."""
    if not (named := os.environ.get("CHANGES")):
        return CHANGES
    found = [each.split("x") for each in named.split(",")]
    return [(int(sidecars), int(shards), int(backlog)) for sidecars, shards, backlog in found]


def _change(world: World, meter: Meter, sidecars: int, shards: int, backlog: int) -> Took:
    """Grow an exchange by a tenth of its shards."""
    with virtual_host(world, _VHOST), ExitStack() as stack:
        _run(world, meter, shards)
        settings = {"groups": _EXCHANGE, "management-url": meter.urls[_SIDECARS]}
        fleet = [stack.enter_context(running_compiled(world.node, settings)) for _ in range(sidecars)]
        for each in fleet:
            await_ring(each.http_url, _EXCHANGE, _VHOST)
        load = _Load(fleet)
        _fill(world, load.load, shards, backlog)
        if not backlog:
            load.consume()
        time.sleep(_USUAL)
        pids = [each.process.pid for each in fleet]
        asked, broker, own = meter.asked(), cpu_seconds(world.node.pid), sum(map(cpu_seconds, pids))
        begun = time.monotonic()
        load.consume()
        beside = [world.sidecar.admin_url, world.pure.admin_url]
        phases = _run(world, meter, shards + max(shards // 10, 1), [*beside, *(each.admin_url for each in fleet)])
        ended = time.monotonic()
        broker, own = cpu_seconds(world.node.pid) - broker, sum(map(cpu_seconds, pids)) - own
        now = meter.asked()
        load.stop()
        confirms = load.confirms(begun, ended)
        found = Took(
            sidecars,
            shards,
            backlog,
            phases,
            command=now[_COMMAND].since(asked[_COMMAND]),
            fleet=now[_SIDECARS].since(asked[_SIDECARS]),
            broker_cpu=broker,
            sidecar_cpu=own / sidecars,
            usual=_p99(load.confirms(begun - _USUAL / 2, begun)),
            during=_p99(confirms),
            slowest=max(confirms),
            load=os.getloadavg()[0],
        )
        print(found, file=sys.stderr, flush=True)
        return found


def _p99(times: Sequence[float]) -> float:
    return statistics.quantiles(times, n=100)[98]


def _run(world: World, meter: Meter, shards: int, sidecars: Sequence[str] | None = None) -> dict[str, float]:
    """Apply so many shards, in order if there are sidecars; return the seconds of each phase. Raises BenchError."""
    file = world.folder / f"ordered-{shards}.toml"
    file.write_text(f'[[exchange]]\nname = "{_EXCHANGE}"\nvhost = "{_VHOST}"\nshards = {shards}\n')
    urls = [f"--broker-url={world.node.amqp_url}{_VHOST}", f"--management-url={meter.urls[_COMMAND]}"]
    command = [sys.executable, "-m", "proxy", "topology", "apply", *urls, str(file)]
    if sidecars is not None:
        command += ["--ordered", f"--timeout={_WITHIN:g}", *(f"--sidecar={url}" for url in sidecars)]
    begun, at, seen = {}, iter(PHASES.items()), time.monotonic()
    next_name, words = next(at)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=compiled_environment()
    ) as process:
        assert process.stdout
        lines = []
        for line in process.stdout:
            lines.append(line)
            if words and words in line:
                begun[next_name] = time.monotonic()
                next_name, words = next(at, ("", ""))
    if process.returncode != 0:
        raise BenchError(f"topology apply ended with {process.returncode}: {''.join(lines[-20:])}")
    if sidecars is None:
        return {}
    if words:
        raise BenchError(f"the command never said {words!r}: {''.join(lines)}")
    ends = [*list(begun.values())[1:], time.monotonic()]
    return {"asks first": begun["makes"] - seen} | dict(
        zip(begun, (end - start for start, end in zip(begun.values(), ends, strict=True)), strict=True)
    )


def _fill(world: World, load: OrderedLoad, shards: int, messages: int) -> None:
    """Publish a backlog to all shards in turn, with numbers as the judge wants them."""
    if not messages:
        return
    connection = pika.BlockingConnection(pika.URLParameters(f"{world.node.amqp_url}{_VHOST}"))
    channel, persistent = connection.channel(), pika.BasicProperties(delivery_mode=2)
    for number in range(messages):
        shard = number % shards
        channel.basic_publish("", f"{_EXCHANGE}.{shard + 1}", f"{_AHEAD} {shard} {number}".encode(), persistent)
        load.confirmed[_AHEAD, shard].append(Published(number, 0.0, 0.0))
    connection.close()


def markdown(found: Sequence[Took]) -> str:
    """Return the tables as Markdown."""
    names = list(found[0].phases)
    heads = ["sidecars", "shards", "backlog"]
    which = [[f"{one.sidecars}", f"{one.shards}", f"{one.backlog:,}"] for one in found]
    times = [[*(f"{one.phases[name]:.1f}" for name in names), f"{sum(one.phases.values()):.1f}"] for one in found]
    costs = []
    for one in found:
        asked = f"{one.command.requests:,}", f"{one.command.answered / 1e6:.1f}"
        its = f"{one.fleet.requests / one.sidecars:,.0f}", f"{one.fleet.answered / one.sidecars / 1e6:.2f}"
        confirms = (f"{1e3 * seconds:,.0f}" for seconds in (one.usual, one.during, one.slowest))
        costs.append([*asked, *its, f"{one.broker_cpu:.1f}", f"{one.sidecar_cpu:.1f}", *confirms, f"{one.load:.1f}"])
    of_costs = ["requests by the command", "MB", "by each sidecar", "MB", "broker CPU, s", "a sidecar's CPU, s"]
    of_costs += ["confirm before, p99, ms", "during, p99", "slowest", "load average"]
    told = (
        f"The exchange grows by a tenth of its shards, while {_RATE:g} messages a second are published through all"
        f" sidecars, and {_MEMBERS} members consume. Times are seconds. Nothing was lost"
        f" or overtaken: such a run fails."
    )
    return "\n\n".join(
        (
            table([*heads, *names, "all"], [[*a, *b] for a, b in zip(which, times, strict=True)]),
            told,
            table([*heads, *of_costs], [[*a, *b] for a, b in zip(which, costs, strict=True)]),
        )
    )
