"""The cost of rings: to look up, to build, to change. `python -m bench.long.growth compiled` prints it as JSON."""

import asyncio
import hashlib
import importlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench import BenchError
from bench.rounds import Spread
from bench.tables import Goal, goal_table, shown, table
from bench.world import World, compiled_environment
from ring.compiled import PURE, kind
from ring.destination import MAX_WEIGHT, Destination
from ring.ring import Ring

QUEUES = 2, 10, 100, 1000
HEAVIEST = 1, MAX_WEIGHT
ROUNDS = 5

_ASKED = 200_000
_TICK = 0.001
_IDLE = 1.5
_LONGEST_STALL = 10
"""The goal for the longest stall of the event loop, in milliseconds."""

Weights = Mapping[Destination, int]


def growth(world: World) -> str:
    """Tables of what `main` measures, in a process of its own that has the compiled modules, and in one without."""
    del world  # no broker has a part in it
    said, pure = _said("compiled"), _said("python")
    found: list[dict[str, Any]] = said["cases"]
    uncompiled = f"Where nothing is compiled:\n\n{_table(pure['cases'])}\n\n{_control(pure)}"
    return f"{goal_table(_goals(found))}\n\n{_table(found)}\n\n{_control(said)}\n\n{uncompiled}"


def _control(said: dict[str, Any]) -> str:
    """Return a sentence on the stalls of the event loop without a build."""
    idle, of_idle = shown(Spread.of(said["stall"]), ".1f")
    busy, of_busy = shown(Spread.of(said["busy"]), ".1f")
    return (
        f"With nothing to build, for {_IDLE:g} s, the longest stall is {idle} ms ({of_idle}); with two threads that"
        f" never need the GIL, about as long, {busy} ms ({of_busy})."
    )


def _said(wanted: str) -> dict[str, Any]:
    environment = os.environ | compiled_environment(Path(__file__).parents[2])
    if wanted == "python":
        environment |= {PURE: "1"}
    command = [sys.executable, "-m", "bench.long.growth", wanted]
    run = subprocess.run(command, capture_output=True, text=True, env=environment)
    if run.returncode != 0:
        raise BenchError(f"the rings could not be measured: {run.stderr}")
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def _goals(found: list[dict[str, Any]]) -> list[Goal]:
    by_case = {(case["queues"], case["heaviest"]): case for case in found}

    def goal(title: str, queues: int, what: str, most: float, heaviest: int = 1) -> Goal:
        reached = Spread.of(by_case[queues, heaviest][what])
        return Goal(title, f"at most {most:g}", *shown(reached, ".1f"), reached.median <= most)

    stalls = Spread.of(by_case[1000, 1]["stall"])
    changes = "added", "removed", "reweighted"
    return [
        goal("100 queues of equal weight: build, ms", 100, "build", 400),
        goal("1,000 queues of equal weight: build, ms", 1000, "build", 4000),
        goal(f"100 queues of weights to {MAX_WEIGHT:,}: build, ms", 100, "build", 700, MAX_WEIGHT),
        goal(f"1,000 queues of weights to {MAX_WEIGHT:,}: build, ms", 1000, "build", 6000, MAX_WEIGHT),
        goal(
            "1,000 queues of equal weight: longest stall of the event loop in a build, ms",
            1000,
            "stall",
            _LONGEST_STALL,
        ),
        Goal(
            "1,000 queues of equal weight: longest stall of the event loop in all builds, ms",
            f"at most {_LONGEST_STALL:g}",
            f"{stalls.most:.1f}",
            shown(stalls, ".1f")[1],
            stalls.most <= _LONGEST_STALL,
        ),
        *(goal(f"1,000 queues of equal weight, one {change}: new ring, ms", 1000, change, 60) for change in changes),
    ]


def _table(found: list[dict[str, Any]]) -> str:
    columns = {
        "asked": "one look-up, µs",
        "build": "build, ms",
        "stall": "longest stall meanwhile, ms",
        "added": "one added, ms",
        "removed": "one removed, ms",
        "reweighted": "one with another weight, ms",
    }
    rows = []
    for case in found:
        cells = []
        for name in columns:
            middle, spread = shown(Spread.of(case[name]), ".2f" if name == "asked" else ".1f")
            cells.append(f"{middle} ({spread})")
        rows.append([f"{case['queues']:,}", f"1 to {case['heaviest']:,}", *cells])
    return table(["queues", "weights", *columns.values()], rows)


def measured(queues: int, heaviest: int) -> dict[str, Any]:
    """Measure one number of queues and greatest weight: look-ups in microseconds, all else in milliseconds."""
    draw = random.Random(queues)
    weights = {Destination("queue", f"bench.q{n}"): draw.randint(1, heaviest) for n in range(queues)}
    first = next(iter(weights))
    fewer = {d: w for d, w in weights.items() if d != first}
    another = weights | {first: weights[first] + 1 if weights[first] < MAX_WEIGHT else 1}
    ring = Ring.build(weights)
    case: dict[str, Any] = {"queues": queues, "heaviest": heaviest, "build": [], "stall": [], "asked": []}
    for _ in range(ROUNDS):
        took, stall = asyncio.run(_beside(lambda: Ring.build(weights)))
        case["build"].append(took)
        case["stall"].append(stall)
        case["asked"].append(_asked(ring))
    smaller = Ring.build(fewer)
    case["added"] = [_timed(lambda: smaller.changed(weights)) for _ in range(ROUNDS)]
    case["removed"] = [_timed(lambda: ring.changed(fewer)) for _ in range(ROUNDS)]
    case["reweighted"] = [_timed(lambda: ring.changed(another)) for _ in range(ROUNDS)]
    return case


def _timed(run: Callable[[], object]) -> float:
    begun = time.perf_counter()
    run()
    return (time.perf_counter() - begun) * 1000


def _asked(ring: Ring) -> float:
    """Return the microseconds of a look-up, of keys that are all different; the loop around it is in it."""
    keys = [f"key-{number}".encode() for number in range(_ASKED)]
    begun = time.perf_counter()
    for key in keys:
        ring.owner_of(key)
    return (time.perf_counter() - begun) / _ASKED * 1e6


async def _beside(run: Callable[[], object]) -> tuple[float, float]:
    """Return the milliseconds that it takes in a thread, and the longest time in which the event loop did not turn."""
    loop, stall = asyncio.get_running_loop(), 0.0
    with ThreadPoolExecutor(1) as pool:
        begun = time.perf_counter()
        running = loop.run_in_executor(pool, run)
        turned = begun
        while not running.done():
            await asyncio.sleep(_TICK)
            now = time.perf_counter()
            stall, turned = max(stall, now - turned - _TICK), now
        return (time.perf_counter() - begun) * 1000, stall * 1000


def main() -> None:
    """Run `python -m bench.long.growth compiled`, or `python`."""
    if kind() != sys.argv[1]:
        raise BenchError(f"{kind()} modules: not what was asked for")
    loop = importlib.import_module("uvloop")
    asyncio.set_event_loop_policy(loop.EventLoopPolicy())
    idle, busy, cases = [], [], []
    for queues in QUEUES:
        cases += [measured(queues, heaviest) for heaviest in HEAVIEST]
        idle.append(asyncio.run(_beside(lambda: time.sleep(_IDLE)))[1])
        busy.append(asyncio.run(_beside(_spun))[1])
    print(json.dumps({"stall": idle, "busy": busy, "cases": cases}))


def _spun() -> None:
    """Keep two processors busy without the GIL for about as long as a build takes."""
    data = bytes(1 << 29)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(hashlib.blake2b, (data, data)))


if __name__ == "__main__":
    main()
