"""The last act of the demo: a pool of workers in series, in which one customer's order fails five times."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE

import aio_pika
from yarl import URL

from ring.destination import Destination
from ring.ring import Ring
from testbed.broker import Broker
from testbed.demo.pool import WORKERS
from testbed.demo.screen import rows
from testbed.demo.series_oracle import Order, Tried, done, figures, judge_series
from testbed.demo.sharded import EXCHANGE, sharded

QUEUES = [f"{EXCHANGE}.{number}" for number in range(1, 5)]
CUSTOMERS = [f"customer-{number}" for number in range(1, 21)]
FAILING: Order = ("customer-7", 10)
FAILURES = 5
SETTINGS = {"groups-in-series": EXCHANGE, "groups-retry-delay": "0.2", "groups-retry-delay-max": "0.8"}
"""The failing order is tried again after 0.2, 0.4, 0.8, 0.8 and 0.8 s."""

BURST = 3
"""Each customer's orders that are published at a time."""
BURST_SECONDS = 0.2
IN_SERIES_BURSTS, DIRECT_BURSTS = 20, 8
"""In series they go on for longer than the failing order takes."""
DEADLINE = 20.0
"""Seconds from the last publish until all must be done."""
SHOWN = slice(FAILING[1] - 2, FAILING[1] + 10)
"""Which of the failing customer's orders are shown as they were done."""


@dataclass
class Run:
    """One run of the pool, with what was published meanwhile."""

    sent: dict[Order, float] = field(default_factory=dict)
    """When each order was published."""
    tries: list[Tried] = field(default_factory=list)

    async def publish(self, url: str, bursts: int) -> None:
        """Publish so many bursts of each customer's orders, the second one once the pool has done the first."""
        async with await aio_pika.connect(url) as connection:
            exchange = await (await connection.channel()).get_exchange(EXCHANGE, ensure=False)
            for number in range(1, bursts * BURST + 1):
                self.sent |= dict.fromkeys(((customer, number) for customer in CUSTOMERS), time.monotonic())
                message = aio_pika.Message(str(number).encode(), delivery_mode=2)
                await asyncio.gather(*(exchange.publish(message, customer) for customer in CUSTOMERS))
                if number == BURST:
                    await self.finish()
                elif number % BURST == 0:
                    await asyncio.sleep(BURST_SECONDS)

    async def read(self, output: asyncio.StreamReader) -> None:
        """Note what the pool prints, until it ends."""
        async for line in output:
            began, ended, key, number, succeeded = line.decode().split()
            self.tries.append(Tried(float(began), float(ended), key, int(number), succeeded == "1"))

    async def finish(self) -> None:
        """Wait until all orders are done, or the deadline is over."""
        until = time.monotonic() + DEADLINE
        while len(done(self.tries)) < len(self.sent) and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def series_act(broker: Broker, vhost: str, folder: Path, tell: Callable[[str], None]) -> list[str]:
    """Show who waits for a failing order, in series and without the sidecar; return what was wrong in series."""
    customer, number = FAILING
    tell(f"\nA pika program with {WORKERS} workers consumes from the exchange's name. {customer}'s order {number}")
    tell(f"fails {FAILURES} times, and each time the program answers nack with requeue: first through a sidecar, in")
    tell("series, and then straight from the queues. An order waits from its publish until it is done.\n")
    async with sharded(broker, vhost, folder, QUEUES, 1, SETTINGS) as (sidecar,):
        with rows(["", "tries", "median wait", "longest wait", "out of order", "two at once"]) as table:
            runs = []
            direct = str(URL(broker.amqp_url).with_path("/") / vhost)
            for what, pool_url, queues, bursts in (
                ("in series", sidecar.amqp_url, [EXCHANGE], IN_SERIES_BURSTS),
                ("direct", direct, QUEUES, DIRECT_BURSTS),
            ):
                async with pool(pool_url, queues) as run:
                    await run.publish(sidecar.amqp_url, bursts)
                    await run.finish()
                runs.append(run)
                for row in table_of(what, run):
                    table.done(row)
    tell("")
    for what, run in zip(("in series:", "direct:   "), runs, strict=True):
        orders = [str(order) for key, order in done(run.tries) if key == customer]
        tell(f"  {customer}'s orders as they were done, {what} ... {' '.join(orders[SHOWN])} ...")
    return judge_series(runs[0].sent, runs[0].tries, FAILING, FAILURES)


@asynccontextmanager
async def pool(url: str, queues: Sequence[str]) -> AsyncIterator[Run]:
    """Run the program `pool`, which consumes from the queues."""
    customer, number = FAILING
    program = [sys.executable, "-m", "testbed.demo.pool", url, customer, str(number), str(FAILURES), *queues]
    process = await asyncio.create_subprocess_exec(*program, stdout=PIPE, process_group=0)
    assert process.stdout
    run = Run()
    reading = asyncio.create_task(run.read(process.stdout))
    try:
        yield run
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await reading


def table_of(what: str, run: Run) -> list[list[str]]:
    """Return the rows of a run, without the first burst: the failing order's customer, those of its shard, the rest."""
    ring = Ring.build(dict.fromkeys((Destination("queue", queue) for queue in QUEUES), 1))
    shards = {customer: ring.owner_of(customer.encode()).name for customer in CUSTOMERS}
    failing, others = FAILING[0], [customer for customer in CUSTOMERS if customer != FAILING[0]]
    beside = [customer for customer in others if shards[customer] == shards[failing]]
    rest = [customer for customer in others if customer not in beside]
    tries = [each for each in run.tries if each.number > BURST]
    found = []
    for name, keys in ((failing, [failing]), (f"{len(beside)} in its shard", beside), (f"{len(rest)} others", rest)):
        of = figures(run.sent, tries, keys)
        waits = [f"{1000 * seconds:,.0f} ms" for seconds in (of.median_wait, of.longest_wait)]
        found.append([f"{what}: {name}", f"{of.tries:,}", *waits, str(of.out_of_order), str(of.at_once)])
    return found
