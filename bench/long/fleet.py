"""The cost of a thousand sidecars' readings for a broker's management API, simulated by one process.

`python -m bench.long.fleet MANAGEMENT_URL EXCHANGE SECONDS` prints how many readings there were. It has as many
sidecars' readers as read at the rate of a thousand, each more often in the same proportion.
"""

import asyncio
import subprocess
import sys
import time
from contextlib import AsyncExitStack

from yarl import URL

from bench import BenchError
from bench.long.scene import Scene
from bench.process import cpu_seconds
from bench.tables import table
from bench.world import World
from proxy.settings.config import Settings
from proxy.settings.patterns import Selection
from proxy.topology.management import Management
from proxy.topology.reader import Reader
from proxy.topology.scheduler import Scheduler
from proxy.topology.table import Router

SIDECARS, READERS = 1000, 50
QUEUES = 8, 100
_SECONDS = 20.0
_IDLE = 5.0
_FIRST_WITHIN = 240.0
"""Seconds in which every reader must have read once: the first time they look at every queue, and build the ring."""


def fleet(world: World) -> str:
    """Measure the broker's CPU time while sidecars read, less what it takes idle; return the section."""
    rows = []
    begun, before = time.monotonic(), cpu_seconds(world.node.pid)
    time.sleep(_IDLE)
    idle = (cpu_seconds(world.node.pid) - before) / (time.monotonic() - begun)
    for count in QUEUES:
        scene = Scene("", f"bench.fleet{count}", [f"bench.fleet{count}.q{number}" for number in range(count)])
        with scene.set(world):
            first, readings, spent, took = _read(world, scene.exchange, idle)
        cores = spent / took - idle
        a_reading = f"{cores * took / readings * 1000:.1f}"
        rows.append([f"{count}", f"{readings / took:.1f}", f"{cores:.2f}", a_reading, f"{first / READERS * 1000:.1f}"])
    heads = [
        "queues of the ring",
        "readings a second",
        "CPU of the broker, cores",
        "CPU of a reading, ms",
        "of a sidecar's first, ms",
    ]
    wanted = SIDECARS / (Settings().sync_interval / 2)
    note = f"{SIDECARS:,} sidecars, each with one ring, make {wanted:.0f} readings a second at the default interval."
    return f"{table(heads, rows)}\n\n{note} Idle, the broker takes {idle:.2f} of a core, which is taken off."


def _read(world: World, exchange: str, idle: float) -> tuple[float, int, float, float]:
    """Return four figures of the readers of one exchange.

    They are the broker's CPU seconds for all first readings, less those of an idle broker; the number of later
    readings, the CPU seconds for them, and the seconds that they took.
    """
    command = [sys.executable, "-m", "bench.long.fleet", world.node.management_url, exchange, f"{_SECONDS:g}"]
    started, since = cpu_seconds(world.node.pid), time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reading:
        assert reading.stdout
        reading.stdout.readline()
        begun, before = time.monotonic(), cpu_seconds(world.node.pid)
        said = reading.stdout.readline()
        took, spent = time.monotonic() - begun, cpu_seconds(world.node.pid) - before
    if reading.returncode != 0 or not said:
        raise BenchError("the readers of the fleet failed (see above)")
    return before - started - (begun - since) * idle, int(said), spent, took


async def _run(management_url: str, exchange: str, seconds: float) -> None:
    settings, sidecars = Settings(), list[tuple[Scheduler, Reader]]()
    interval = settings.sync_interval * READERS / SIDECARS
    async with AsyncExitStack() as stack:
        for _ in range(READERS):
            api = await stack.enter_async_context(Management([URL(management_url)], 30.0))
            selection = Selection(settings.route, settings.shadow, settings.pass_)
            router = Router(settings.ring_max_age, settings.on_stale == "refuse")
            reader = Reader(api, router, selection, settle_time=settings.settle_time)
            sidecars.append((Scheduler(reader, router, interval=interval, named=[("/", exchange)]), reader))
        await asyncio.gather(*(scheduler.look_up(("/", exchange), _FIRST_WITHIN) for scheduler, _ in sidecars))
        print("first", flush=True)
        running = [asyncio.create_task(scheduler.run()) for scheduler, _ in sidecars]
        begun = sum(reader.results["ok"] for _, reader in sidecars)
        await asyncio.sleep(seconds)
        print(sum(reader.results["ok"] for _, reader in sidecars) - begun, flush=True)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def main() -> None:
    """Do the requests of a fleet for some seconds, and print how many: `python -m bench.long.fleet`."""
    management_url, exchange, seconds = sys.argv[1:]
    asyncio.run(_run(management_url, exchange, float(seconds)))


if __name__ == "__main__":
    main()
