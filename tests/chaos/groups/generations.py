"""Has the exchange change its shards in order, again and again, while faults are done to all that is around it."""

import asyncio
import itertools
import json
import os
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import proxy
from testbed.node import Node
from tests.chaos.arena import Arena
from tests.chaos.queues import EXCHANGE
from tests.chaos.tracks import Say
from tests.integration.broker_api import BrokerApi
from tests.integration.sidecar import COMMAND

SYNC_INTERVAL = 3.0
"""Seconds after which sidecars read the exchange again, fewer than usual, so that a run has many changes."""

SIZES = (9, 15, 12, 5, 12)
"""The numbers of shards, one after the other."""

ENDED_WITHIN = 180.0
"""Seconds after the last fault within which the change that is under way must end."""


def shards(node: Node) -> tuple[str, ...]:
    """Return the queues of shards that there are now, of all groups."""
    found = BrokerApi(node.management_url).ask("GET", "queues", "/", query="columns=name")
    names = (each["name"] for each in found)
    return tuple(name for name in names if name.startswith(f"{EXCHANGE}.") and name.rpartition(".")[2].isdecimal())


class Growth:
    """The changes of one run, of which each begins once the one before has ended."""

    def __init__(self, made: Arena, folder: Path, seed: int, further: Sequence[str], say: Say) -> None:
        """`further` are the names of the groups beside the exchange's own."""
        self._made, self._folder, self._further, self._say = made, folder, further, say
        self._chance = random.Random(seed)
        self._over = asyncio.Event()
        self.changes = self.stops = 0
        """How many changes have ended, and how often the command was stopped by a fault, or killed, before."""
        self.faults: list[str] = []

    @asynccontextmanager
    async def meanwhile(self, wanted: int) -> AsyncIterator[None]:
        """Make changes until the block ends, `wanted` at least; none at all if that is 0."""
        if not wanted:
            yield
            return
        growing = asyncio.create_task(self._grow(wanted))
        try:
            yield
            self._over.set()
            await asyncio.wait({growing}, timeout=ENDED_WITHIN * max(1, wanted - self.changes))
            if not growing.done():
                self.faults.append(f"change {self.changes + 1} has not ended {ENDED_WITHIN:g} s after the last fault")
            self._say(f"  {self.changes} changes of shards, {self.stops} times stopped or killed on the way")
        finally:
            growing.cancel()

    async def _grow(self, wanted: int) -> None:
        for size in itertools.cycle(SIZES):
            if self._over.is_set() and self.changes >= wanted:
                return
            begun = time.monotonic()
            file = self._write(size)
            for attempt in itertools.count():
                if await self._run(file, attempt) == 0:
                    break
                self.stops += 1
                await asyncio.sleep(1)
            self.changes += 1
            self._say(f"{time.monotonic():.3f}: {size} shards after {time.monotonic() - begun:.1f} s")

    def _write(self, size: int) -> Path:
        """Write the file with so many shards, of which one may have another weight."""
        lines = ["[[exchange]]", f'name = "{EXCHANGE}"', f"shards = {size}"]
        lines += [f"groups = {json.dumps(self._further)}"] if self._further else []
        lines += ["[[exchange.shard]]", "number = 1", f"weight = {self._chance.choice((1, 3))}"]
        file = self._folder / "grown.toml"
        file.write_text("\n".join(lines) + "\n")
        return file

    async def _run(self, file: Path, attempt: int) -> int:
        """Run the command once, by one of the nodes; return its status. Every fourth run is killed on its way."""
        node = self._made.nodes[attempt % len(self._made.nodes)]
        flags = [f"--broker-url={node.amqp_url}", f"--management-url={node.management_url}", "--timeout=60"]
        flags += [f"--sidecar={each.now.admin_url}" for each in self._made.members if each.running]
        environment = os.environ | {"PYTHONPATH": str(Path(proxy.__file__).parents[1])}
        with (self._folder / "growth.log").open("ab") as log:
            log.write(f"{time.monotonic():.3f}: by {urlsplit(node.amqp_url).netloc}\n".encode())
            log.flush()
            command = (COMMAND, "topology", "apply", "--ordered", *flags, str(file))
            process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=log, stderr=log)
            try:
                if self._chance.random() < 0.25:
                    with_luck = self._chance.uniform(3, 20)
                    await asyncio.wait_for(process.wait(), with_luck)
                return await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
                return -1
            finally:
                if process.returncode is None:
                    process.kill()
