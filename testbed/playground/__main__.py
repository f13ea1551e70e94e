"""`make try`: workers, publishers, two sidecars and a broker, with keys to press, until `q`."""

import asyncio
import os
import random
import sys
import tempfile
import termios
import time
import tty
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import aio_pika
from aio_pika.abc import AbstractExchange
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table

from ring.destination import Destination
from ring.ring import Ring
from testbed import SetupError
from testbed.broker import Broker, running_broker
from testbed.demo.screen import say
from testbed.demo.sharded import EXCHANGE, Listeners, sharded
from testbed.demo.topology import Topology
from testbed.ending import status_of
from testbed.playground.crew import RECENT, Crew
from testbed.playground.ledger import Ledger

SHARDS, MORE_SHARDS, MOST_SHARDS = 6, 2, 20
"""The shards at first, how many come at a time, and how many there are at most."""
CUSTOMERS = [f"customer-{number}" for number in range(1, 41)]
ROUND_SECONDS = 0.5
"""Each customer publishes an order a round, once the order before is confirmed."""
WORKERS = 3
MOST_WORKERS = 9
FAILURES = 5
SETTINGS = {
    "groups-in-series": EXCHANGE,
    "groups-retry-delay": "1",
    "groups-retry-delay-max": "4",
    "sync-interval": "1",
}
WAITS = 1.0
"""Seconds after which a customer is shown as waiting."""
EMPTY_WITHIN = 60.0
"""Seconds from `q` until all orders must be done, and a change of the shards made."""
HELP = "k  kill a worker    a  add a worker    f  fail an order five times    g  grow by two shards in order    q  quit"


class Playground:
    """The group, who publishes to it, and what has happened."""

    def __init__(self, sidecars: Sequence[Listeners], topology: Topology) -> None:
        """Take all sidecars, and the exchange as a file has it."""
        urls = [sidecar.amqp_url for sidecar in sidecars]
        self._url, self._admins = urls[0], [sidecar.admin_url for sidecar in sidecars]
        self._topology = topology
        self._growing: asyncio.Task[None] | None = None
        self.ledger = Ledger()
        self.crew = Crew(urls, self.ledger.tried)
        self._count, self._shards = SHARDS, shard_by_customer(SHARDS)
        self._failing: set[str] = set()
        self.news = ""

    async def press(self, key: str) -> None:
        """Do what a key is for."""
        if key == "k":
            worker = await self.crew.kill()
            self.news = f"{worker.name} was killed" if worker else "no worker is left: press a"
        elif key == "a" and len(self.crew.workers) < MOST_WORKERS:
            self.news = f"{(await self.crew.add()).name} joins"
        elif key == "a":
            self.news = f"{MOST_WORKERS} workers are enough"
        elif key == "f":
            customer = random.choice(CUSTOMERS)
            self._failing.add(customer)
            self.news = f"the next order of {customer} fails {FAILURES} times"
        elif key == "g" and self.is_growing:
            self.news = "a change of the shards is under way"
        elif key == "g" and self._count >= MOST_SHARDS:
            self.news = f"{self._count} shards are enough"
        elif key == "g":
            self.news = f"{MORE_SHARDS} shards come"
            self._growing = asyncio.create_task(self._grow(self._count + MORE_SHARDS))
        else:
            self.news = "no such key"

    @property
    def is_growing(self) -> bool:
        """Whether a change of the shards is under way."""
        return self._growing is not None and not self._growing.done()

    @property
    def is_busy(self) -> bool:
        """Whether there is something left that workers can do."""
        return bool(self.crew.workers) and (self.is_growing or self.ledger.left() > 0)

    async def _grow(self, count: int) -> None:
        self._topology.write(dict.fromkeys(queues(count), 1))
        try:
            await self._topology.apply_ordered(self._admins, self._tell)
        except SetupError as error:
            self.news = f"{error}"
            return
        self._count, self._shards = count, shard_by_customer(count)

    def _tell(self, line: str) -> None:
        self.news = line.strip()

    async def end(self) -> None:
        """Stop a change of the shards that is under way, and kill all workers."""
        if self._growing is not None:
            self._growing.cancel()
            with suppress(asyncio.CancelledError):
                await self._growing
        await self.crew.end()

    async def publish(self) -> None:
        """Publish an order of each customer every round, until cancelled."""
        async with await aio_pika.connect(self._url) as connection:
            exchange = await (await connection.channel()).get_exchange(EXCHANGE, ensure=False)
            while True:
                await asyncio.gather(*(self._order(exchange, customer) for customer in CUSTOMERS))
                await asyncio.sleep(ROUND_SECONDS)

    async def _order(self, exchange: AbstractExchange, customer: str) -> None:
        number = self.ledger.publish(customer, time.monotonic())
        headers = {"fails": FAILURES} if customer in self._failing else {}
        self._failing.discard(customer)
        await exchange.publish(aio_pika.Message(f"{number}".encode(), headers=dict(headers), delivery_mode=2), customer)
        self.ledger.confirm(customer, number)

    def picture(self) -> RenderableType:
        """Return what the screen shows now."""
        now, table = time.monotonic(), Table(box=None, pad_edge=True)
        for column in ("", "sidecar", "shards", "orders/s"):
            table.add_column(column, min_width=10)
        for worker in self.crew.workers:
            keys = worker.keys(now)
            shards = " ".join(sorted({self._shards[key] for key in keys})) or "none"
            ended = worker.process.returncode is not None
            table.add_row(worker.name, f"{worker.sidecar}", "ended" if ended else shards, f"{len(keys) / RECENT:.0f}")
        return Group(table, "", self.line(now), self.news)

    def line(self, now: float) -> str:
        """Return the state of all orders in one line."""
        ledger = self.ledger
        waiting = list(ledger.waiting(now, WAITS))
        waits = f"; {len(waiting)} customers wait: {', '.join(waiting[:3])}" if waiting else ""
        counts = f"{sum(ledger.confirmed.values()):,} orders confirmed, {ledger.left():,} not done"
        return f"  {counts}, {ledger.failed} failed tries, {len(ledger.faults)} out of order{waits}"


def queues(count: int) -> list[str]:
    """Return the names of so many shards."""
    return [f"{EXCHANGE}.{number}" for number in range(1, count + 1)]


def shard_by_customer(count: int) -> dict[str, str]:
    """Return the number of each customer's shard, of so many shards."""
    ring = Ring.build(dict.fromkeys((Destination("queue", queue) for queue in queues(count)), 1))
    return {each: ring.owner_of(each.encode()).name.rpartition(".")[2] for each in CUSTOMERS}


def main() -> int:
    """Play until `q`; 0 only if every order was done, and each customer's in order."""
    say("Getting a RabbitMQ ...")
    with running_broker() as broker:
        return asyncio.run(play(broker))


async def play(broker: Broker) -> int:
    """Make the group, show it, and judge it at the end."""
    with tempfile.TemporaryDirectory(prefix="ringproxy-try-") as folder:
        vhost = f"ringproxy-try-{os.getpid()}"
        async with sharded(broker, vhost, Path(folder), queues(SHARDS), 2, SETTINGS) as sidecars:
            topology = Topology(broker, vhost, EXCHANGE, Path(folder, "grown.toml"), "quorum")
            playground = Playground(sidecars, topology)
            say(f"RabbitMQ {broker.version}: {len(CUSTOMERS)} customers' orders, {SHARDS} shards, two sidecars.")
            for number, sidecar in enumerate(sidecars, 1):
                say(f"  console of sidecar {number}: {sidecar.admin_url}/")
            say(f"\n  {HELP}\n")
            try:
                await run(playground)
                return conclude(playground.ledger, bool(playground.crew.workers))
            finally:
                await playground.end()


async def run(playground: Playground) -> None:
    """Publish and show until `q` or the end of standard input, then wait until all is done."""
    for _ in range(WORKERS):
        await playground.crew.add()
    async with publishing(playground):
        with pressed() as keys, screen(playground) as tell:
            while (key := await keys.get()) not in ("q", ""):
                await playground.press(key)
                tell()
    say("  no more is published; waiting until all orders are done ...")
    until = time.monotonic() + EMPTY_WITHIN
    while playground.is_busy and time.monotonic() < until:  # noqa: ASYNC110
        await asyncio.sleep(0.1)


@asynccontextmanager
async def publishing(playground: Playground) -> AsyncIterator[None]:
    """Publish meanwhile; a fault of the publisher is raised at the end."""
    task = asyncio.create_task(playground.publish())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@contextmanager
def pressed() -> Iterator["asyncio.Queue[str]"]:
    """Give the keys that are pressed, and an empty string at the end; without a terminal, what standard input has."""
    found: asyncio.Queue[str] = asyncio.Queue()
    number, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(number) if sys.stdin.isatty() else None

    def read() -> None:
        keys = os.read(number, 1).decode(errors="replace")
        if not keys:
            loop.remove_reader(number)
        if not keys.isspace() or not keys:
            found.put_nowait(keys)

    if before is not None:
        tty.setcbreak(number)
    loop.add_reader(number, read)
    try:
        yield found
    finally:
        loop.remove_reader(number)
        if before is not None:
            termios.tcsetattr(number, termios.TCSADRAIN, before)


@contextmanager
def screen(playground: Playground) -> Iterator[Callable[[], None]]:
    """Show the playground as it changes; without a terminal, a line for each key. Gives what shows it at once."""
    if not sys.stdout.isatty():
        yield lambda: say(f"  {playground.news}\n{playground.line(time.monotonic())}")
        return
    with Live(get_renderable=playground.picture, console=Console(highlight=False), refresh_per_second=4) as live:
        yield live.refresh


def conclude(ledger: Ledger, alive: bool) -> int:
    """Print what came of the orders, and return the exit status."""
    for fault in ledger.faults[:10]:
        say(f"  FAULT: {fault}")
    left, total = ledger.left(), sum(ledger.confirmed.values())
    say(f"{total:,} orders confirmed: {len(ledger.faults)} were done out of order, and {left:,} are not done.")
    say(f"{ledger.failed} tries failed; {ledger.again} orders were done once more, as their worker was killed.")
    if left and not alive:
        say("No worker was left to do the rest.")
        return int(bool(ledger.faults))
    return int(bool(ledger.faults or left))


if __name__ == "__main__":
    sys.exit(status_of("try", main))
