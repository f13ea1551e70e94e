"""The same pika program by turns through the sidecar and to the broker itself: where each sends, and what was lost."""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from subprocess import PIPE

from testbed.demo.oracle import Sent
from testbed.demo.publisher import key_of
from testbed.demo.world import World

TURNS = 5
"""The number of turns of each lane."""

LONGEST_TURN = 120.0
"""Seconds after which a turn has failed: a confirm that does not come must not hold up the demo for ever."""


@dataclass
class Lane:
    """One of the two ways to publish, through the sidecar or to the exchange, and its results."""

    url: str
    exchange: str
    queues: Mapping[str, str]
    """The name here of each queue."""
    confirmed: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    async def turn(self, first: int, count: int) -> None:
        """Run the program for so many messages, numbered from `first`."""
        program = [sys.executable, "-m", "testbed.demo.publisher", self.url, self.exchange, str(first), str(count)]
        process = await asyncio.create_subprocess_exec(*program, stdout=PIPE, process_group=0)
        try:
            async with asyncio.timeout(LONGEST_TURN):
                output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        # A program that failed has told why on standard error.
        result = json.loads(output if process.returncode == 0 else '{"confirmed": [], "problem": "failed"}')
        confirmed: list[int] = result["confirmed"]
        self.confirmed += confirmed
        if len(confirmed) != count:
            self.problems.append(f"{self.exchange}: {len(confirmed)} of {count} confirmed: {result['problem']}")

    def sent(self) -> list[Sent]:
        """Return the confirmed messages for the judge; bindings do not change meanwhile, so times do not matter."""
        return [Sent(number, key_of(number), 0.0, 0.0) for number in self.confirmed]


@dataclass(frozen=True)
class Race:
    """The result of a race: the messages found in the queues of both lanes, by queue."""

    through: dict[str, list[int]]
    native: Counter[str]


async def race(world: World, through: Lane, native: Lane, messages: int, advance: Callable[[int], None]) -> Race:
    """Publish so many messages in each lane, by turns, and empty the queues after each turn.

    `advance` is told how many messages of both lanes are done.
    """
    result, each = Race({queue: [] for queue in through.queues}, Counter()), messages // TURNS
    for turn in range(TURNS):
        for lane in (through, native) if turn % 2 == 0 else (native, through):
            await lane.turn(turn * each, each)
            advance(len(through.confirmed) + len(native.confirmed))
        found = await world.drain(through.queues.values(), each, lambda body: key_of(int(body)))
        for queue, name in through.queues.items():
            result.through[queue] += [int(body) for body in found[name]]
        for queue, name in native.queues.items():
            result.native[queue] += await world.purge(name)
    return result
