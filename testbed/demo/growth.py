"""The demo's act on growth: two exchanges go from four shards to six under load, in order and by plain rebinding."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from testbed import SetupError
from testbed.broker import Broker
from testbed.demo.rings import Rings
from testbed.demo.screen import rows
from testbed.demo.sharded import EXCHANGE, Listeners, sharded
from testbed.demo.topology import Topology
from testbed.ordered_judge import Change, Figures, figures
from testbed.ordered_load import OrderedLoad

PLAIN = f"{EXCHANGE}-plain"
"""The exchange that is changed by plain rebinding."""
BEFORE, AFTER = 4, 6
KEYS = 50
"""The keys of each publisher; there is one at each of two sidecars."""
BACKLOG = 2_400
"""Messages of each exchange that are in its shards before a member consumes."""
BURST_RATE, RATE = 1_000.0, 40.0
"""Messages a second of each publisher, before and while members consume."""
WORK_SECONDS = 0.006
"""The seconds that a member takes for a message."""
SETTINGS = {"groups": f"{EXCHANGE},{PLAIN}", "sync-interval": "1", "settle-time": "0.5"}
WITHIN = 120.0
"""Seconds from the begin of a change until all sidecars must route by the new ring."""
DEADLINE = 20.0
"""Seconds from the end of the changes until all must be consumed."""


async def growth_act(broker: Broker, vhost: str, folder: Path, tell: Callable[[str], None]) -> list[str]:
    """Grow both exchanges; print what happened to the order of their keys, and return what was wrong."""
    tell(f"\nTwo exchanges grow from {BEFORE} shards to {AFTER} while publishers publish, and while members that take")
    tell(f"{1000 * WORK_SECONDS:g} ms for a message have a backlog: {EXCHANGE} by `topology apply --ordered`, and")
    tell(f"{PLAIN} by `topology apply`, which only binds two shards more.\n")
    names = [f"{EXCHANGE}.{number}" for number in range(1, BEFORE + 1)]
    async with sharded(broker, vhost, folder, names, 2, SETTINGS) as sidecars:
        ordered, plain = (
            Growth(Topology(broker, vhost, name, folder / f"{name}.toml", "quorum"), vhost, name, sidecars)
            for name in (EXCHANGE, PLAIN)
        )
        plain.write(BEFORE)
        await plain.topology.apply()
        await asyncio.gather(ordered.fill(), plain.fill())
        async with ordered.loaded(), plain.loaded():
            begun = time.monotonic()

            def progress(line: str) -> None:
                if not line.startswith(" "):
                    tell(f"  {time.monotonic() - begun:4.1f} s  {line}")

            progress(f"{PLAIN}: binds two shards more")
            await plain.grow(plain.topology.apply)
            admins = [each.admin_url for each in sidecars]
            await ordered.grow(lambda: ordered.topology.apply_ordered(admins, progress))
        tell("")
        if faults := ordered.faults + plain.faults:
            return faults
        ways = {"topology apply --ordered": ordered.figures(), "topology apply": plain.figures()}
        show(ways)
        tell("  (out of order: keys of which a message came before an earlier one; max confirm: during the change;")
        tell("  moved after: until each key was consumed by the new ring, and nothing of the old ring was left)\n")
        for way, of in ways.items():
            tell(f"  {way}: {of.out_of_order} of {of.keys} keys out of order")
        return judge(*ways.values())


class Growth:
    """One exchange, who publishes to it and consumes from it, and when it was changed."""

    def __init__(self, topology: Topology, vhost: str, exchange: str, sidecars: Sequence[Listeners]) -> None:
        """Take the sidecars, of which each has one publisher and one member."""
        self.topology, self._exchange = topology, exchange
        self._rings = [Rings(each.admin_url, vhost, exchange) for each in sidecars]
        urls = [each.amqp_url for each in sidecars]
        self._load = OrderedLoad(exchange, urls, urls, keys=KEYS, groups=[exchange], work=WORK_SECONDS)
        self._change = Change(0.0, 0.0)
        self.faults: list[str] = []
        """Why the change was not made."""

    def write(self, shards: int) -> dict[str, int]:
        """Write the file for so many shards, and return their weights."""
        weights = {f"{self._exchange}.{number}": 1 for number in range(1, shards + 1)}
        self.topology.write(weights)
        return weights

    async def fill(self) -> None:
        """Publish a backlog."""
        await self._load.publish(BURST_RATE, lambda: self._load.total >= BACKLOG)

    @asynccontextmanager
    async def loaded(self) -> AsyncIterator[None]:
        """Publish and consume meanwhile; at the end wait until all is consumed."""
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            members = tasks.create_task(self._load.consume())
            publishing = tasks.create_task(self._load.publish(RATE, stop.is_set))
            try:
                yield
            finally:
                stop.set()
            await publishing
            with suppress(TimeoutError):
                async with asyncio.timeout(DEADLINE):
                    while self._load.missing:  # noqa: ASYNC110
                        await asyncio.sleep(0.1)
            members.cancel()

    async def grow(self, apply: Callable[[], Coroutine[None, None, object]]) -> None:
        """Write the file with more shards, and apply it; note when all sidecars route by the new ring."""
        weights, begun = self.write(AFTER), time.monotonic()
        watching = [asyncio.create_task(self._switched(rings, weights)) for rings in self._rings]
        try:
            await apply()
            self._change = Change(begun, max(await asyncio.gather(*watching)))
        except SetupError as error:
            self.faults.append(f"{error}")
        finally:
            for task in watching:
                task.cancel()

    async def _switched(self, rings: Rings, weights: Mapping[str, int]) -> float:
        await rings.until(weights, WITHIN)
        return time.monotonic()

    def figures(self) -> Figures:
        """Return what became of the messages."""
        return figures(self._load.confirmed, self._load.taken[self._exchange], self._change)


def show(ways: Mapping[str, Figures]) -> None:
    """Print the table of the changes."""
    with rows(["way", "keys", "out of order", "lost", "max confirm", "moved after"]) as table:
        for way, of in ways.items():
            confirm, ended = f"{1000 * of.slowest:,.0f} ms", f"{of.ended:.1f} s"
            table.done([way, str(of.keys), str(of.out_of_order), str(of.lost), confirm, ended])


def judge(ordered: Figures, plain: Figures) -> list[str]:
    """Return what was wrong; the plain way must put keys out of order, or the judge could not tell."""
    faults = []
    if ordered.out_of_order:
        faults.append(f"--ordered: {ordered.out_of_order} of {ordered.keys} keys out of order")
    for way, of in (("--ordered", ordered), ("plain", plain)):
        if of.lost:
            faults.append(f"{way}: {of.lost} confirmed messages reached no consumer")
    if not plain.out_of_order:
        faults.append("plain: no key came out of order, so the backlog was too short for this to say anything")
    return faults
