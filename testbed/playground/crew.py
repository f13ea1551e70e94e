"""The workers of the playground: processes that are started, killed, and read."""

import asyncio
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from subprocess import PIPE

from testbed.demo.sharded import EXCHANGE

RECENT = 3.0
"""Seconds over which the rate and the shards of a worker are shown."""

Tried = Callable[[str, int, bool, float], None]
"""A function that takes a try: key, number, whether it succeeded, and when in monotonic seconds."""


@dataclass
class Worker:
    """One run of the program `worker`, at one of the sidecars."""

    name: str
    sidecar: int
    process: asyncio.subprocess.Process
    recent: deque[tuple[float, str]] = field(default_factory=deque)
    """When and of which keys its last orders were done."""

    def keys(self, now: float) -> list[str]:
        """Return the key of each order that was done within `RECENT`."""
        while self.recent and self.recent[0][0] < now - RECENT:
            self.recent.popleft()
        return [key for _, key in self.recent]

    async def read(self, tried: Tried) -> None:
        """Tell of each try, until the program ends."""
        assert self.process.stdout
        async for line in self.process.stdout:
            key, number, succeeded = line.decode().split()
            now = time.monotonic()
            self.recent.append((now, key))
            tried(key, int(number), succeeded == "1", now)


class Crew:
    """The workers that run."""

    def __init__(self, urls: Sequence[str], tried: Tried) -> None:
        """Take the AMQP URLs of the sidecars; workers are spread over them."""
        self._urls, self._tried = urls, tried
        self._started = 0
        self._reading: list[asyncio.Task[None]] = []
        self.workers: list[Worker] = []

    async def add(self) -> Worker:
        """Start a worker."""
        sidecar = self._started % len(self._urls)
        self._started += 1
        program = [sys.executable, "-m", "testbed.playground.worker", self._urls[sidecar], EXCHANGE]
        process = await asyncio.create_subprocess_exec(*program, stdout=PIPE, process_group=0)
        worker = Worker(f"worker {self._started}", sidecar + 1, process)
        self.workers.append(worker)
        self._reading.append(asyncio.create_task(worker.read(self._tried)))
        return worker

    async def kill(self) -> Worker | None:
        """Kill the oldest worker with SIGKILL; None if there is none."""
        if not self.workers:
            return None
        worker = self.workers.pop(0)
        await _end(worker)
        return worker

    async def end(self) -> None:
        """Kill all workers."""
        while self.workers:
            await self.kill()
        await asyncio.gather(*self._reading)


async def _end(worker: Worker) -> None:
    if worker.process.returncode is None:
        worker.process.kill()
    await worker.process.wait()
