"""The demo's act on groups: ordinary pika programs share an exchange's shards, one is killed, and another one joins."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE

import aio_pika

from ring.destination import Destination
from ring.ring import Ring
from testbed.broker import Broker
from testbed.demo.group_oracle import Received, Verdict, is_balanced, judge_order, owners
from testbed.demo.screen import rows
from testbed.demo.sharded import EXCHANGE, sharded

QUEUES = [f"{EXCHANGE}.{number}" for number in range(1, 7)]
KEYS = [f"customer-{number}" for number in range(60)]
FIRST, KILLED, LATE = ["A", "B", "C"], "A", "D"

ROUND_SECONDS = 0.05
"""Each key gets one message a round, once those of the round before are confirmed."""
STEP_SECONDS = 2.0
"""How long publishing goes on after each change has had its effect."""
DEADLINE = 15.0
"""Seconds after which a change has failed."""


@dataclass
class Consumer:
    """One run of the program `consumer`, and what it received."""

    name: str
    process: asyncio.subprocess.Process
    received: list[Received] = field(default_factory=list)

    async def read(self) -> None:
        """Note what the program prints, until it ends."""
        assert self.process.stdout
        async for line in self.process.stdout:
            at, redelivered, key, number = line.decode().split()
            self.received.append(Received(float(at), int(number), key, self.name, redelivered == "1"))


class Group:
    """The consumers of one exchange, each through one of several sidecars, and a publisher."""

    def __init__(self, urls: Sequence[str]) -> None:
        """Take the URLs of the sidecars' AMQP listeners."""
        self._urls = urls
        self._consumers: list[Consumer] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.confirmed: list[int] = []
        ring = Ring.build(dict.fromkeys((Destination("queue", queue) for queue in QUEUES), 1))
        self.shards = {key: ring.owner_of(key.encode()).name for key in KEYS}

    async def start(self, name: str) -> None:
        """Start a consumer, through the next sidecar."""
        url = self._urls[len(self._consumers) % len(self._urls)]
        program = [sys.executable, "-m", "testbed.demo.consumer", url, EXCHANGE]
        consumer = Consumer(name, await asyncio.create_subprocess_exec(*program, stdout=PIPE, process_group=0))
        self._consumers.append(consumer)
        self._tasks.append(asyncio.create_task(consumer.read()))

    def kill(self, name: str) -> None:
        """Kill a consumer with SIGKILL."""
        next(consumer for consumer in self._consumers if consumer.name == name).process.kill()

    async def end(self) -> None:
        """Kill the consumers that still run."""
        for consumer in self._consumers:
            if consumer.process.returncode is None:
                consumer.process.kill()
            await consumer.process.wait()
        await asyncio.gather(*self._tasks)

    async def publish(self, stop: asyncio.Event) -> None:
        """Publish a message of each key every round, through the first sidecar."""
        async with await aio_pika.connect(self._urls[0]) as connection:
            exchange = await (await connection.channel()).get_exchange(EXCHANGE, ensure=False)
            number = 0
            while not stop.is_set():
                numbers = range(number, number + len(KEYS))
                messages = (aio_pika.Message(str(each).encode(), delivery_mode=2) for each in numbers)
                await asyncio.gather(*(exchange.publish(m, key) for m, key in zip(messages, KEYS, strict=True)))
                self.confirmed += numbers
                number += len(KEYS)
                await asyncio.sleep(ROUND_SECONDS)

    def received(self) -> list[Received]:
        """Return what all consumers received so far."""
        return [message for consumer in self._consumers for message in consumer.received]

    def had(self, since: float) -> dict[str, str]:
        """Return who has each shard now: whoever got its last message, unless that was before `since`."""
        return owners(self.received(), self.shards, since, time.monotonic())

    async def until(self, holds: Callable[[], bool]) -> float | None:
        """Return the seconds until something holds; None if it does not within the deadline."""
        begun = time.monotonic()
        while time.monotonic() < begun + DEADLINE:
            if holds():
                return time.monotonic() - begun
            await asyncio.sleep(0.05)
        return None


async def group_act(broker: Broker, vhost: str, folder: Path, tell: Callable[[str], None]) -> Verdict:
    """Show three consumers, the death of one and a fourth that joins; print who had which shards when, and judge."""
    tell(
        f"\nThree ordinary pika programs consume from {EXCHANGE}, through two sidecars, and share {len(QUEUES)} shards."
    )
    tell("One is killed, and a fourth joins. Who has which shards:")
    async with group_of(broker, vhost, folder) as group:
        stop = asyncio.Event()
        publishing = asyncio.create_task(group.publish(stop))
        try:
            faults = await changes(group, tell)
        finally:
            stop.set()
            await publishing
        wanted = set(group.confirmed)
        await group.until(lambda: wanted <= {message.number for message in group.received()})
    verdict = judge_order(group.confirmed, group.received())
    return Verdict([*faults, *verdict.faults], verdict.judged, verdict.again)


@asynccontextmanager
async def group_of(broker: Broker, vhost: str, folder: Path) -> AsyncIterator[Group]:
    """Make a virtual host with the exchange, and two sidecars whose clients may consume from the exchange's name."""
    async with AsyncExitStack() as stack:
        sidecars = await stack.enter_async_context(sharded(broker, vhost, folder, QUEUES, 2, {}))
        group = Group([sidecar.amqp_url for sidecar in sidecars])
        stack.push_async_callback(group.end)
        yield group


async def changes(group: Group, tell: Callable[[str], None]) -> list[str]:
    """Start three consumers, kill one and start a fourth; tell who has which shards after each, return what failed."""
    begun = time.monotonic()
    faults: list[str] = []
    tell("")

    async def step(what: str, members: Sequence[str], changed: float) -> None:
        def row(within: str) -> list[str]:
            had = group.had(changed)
            each = (shards_of(had, name) if name in members else "-" for name in (*FIRST, LATE))
            return [f"{changed - begun:4.1f} s  {what}", *each, within]

        def holds() -> bool:
            table.now(row("not yet"))
            return is_balanced(group.had(changed), len(QUEUES), members)

        took = await group.until(holds)
        within = "NEVER" if took is None else f"after {took:.1f} s"
        until = time.monotonic() + STEP_SECONDS
        while time.monotonic() < until:
            table.now(row(within))
            await asyncio.sleep(0.1)
        had = group.had(changed)
        table.done(row(within))
        if took is None or not is_balanced(had, len(QUEUES), members):
            faults.append(
                f"{what}: the shards did not come to {', '.join(members)} as they should within {DEADLINE:g} s"
            )

    with rows(["", *FIRST, LATE, "balanced"]) as table:
        for name in FIRST:
            await group.start(name)
        await step("A, B, C consume", FIRST, time.monotonic())
        group.kill(KILLED)
        left = [name for name in FIRST if name != KILLED]
        await step(f"{KILLED} is killed", left, time.monotonic())
        await group.start(LATE)
        await step(f"{LATE} joins", [*left, LATE], time.monotonic())
    return faults


def shards_of(had: dict[str, str], name: str) -> str:
    """Return the numbers of the shards that a consumer has."""
    return " ".join(sorted(queue.rpartition(".")[2] for queue, owner in had.items() if owner == name)) or "none"
