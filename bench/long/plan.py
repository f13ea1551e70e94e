"""The time of `ring-proxy topology plan` for a file of 1,000 shards: none of them exists, all but one do, or all do."""

import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bench import BenchError
from bench.long.scene import virtual_host
from bench.process import cpu_seconds
from bench.rounds import Spread
from bench.tables import Goal, at_most, goal_table, shown, table
from bench.world import World, compiled_environment

SHARDS = 1000
ROUNDS = 5

_VHOST = "bench.plan"
_LONGEST = 5
"""The goal for the time of a plan, in seconds."""
_NOTHING_TO_DO, _CHANGES = 0, 1
"""Exit statuses of `plan`."""


class Took(NamedTuple):
    """The figures of one run of the command, in seconds."""

    wall: float
    cpu: float
    """CPU time of the command."""
    broker: float
    """CPU time of the broker meanwhile."""


def plan(world: World) -> str:
    """Measure plans of one file as more and more of its shards exist; return the section."""
    with virtual_host(world, _VHOST):
        whole, fewer = (_file(world.folder, shards) for shards in (SHARDS, SHARDS - 1))
        found = {"none": _rounds(world, whole, _CHANGES)}
        _run(world, "apply", fewer, 0)
        found[f"{SHARDS - 1:,}"] = _rounds(world, whole, _CHANGES)
        _run(world, "apply", whole, 0)
        found[f"{SHARDS:,}"] = _rounds(world, whole, _NOTHING_TO_DO)
    return markdown(found)


def goals(found: Mapping[str, Sequence[Took]]) -> list[Goal]:
    """Return the goal for each number of shards that exist, with what was reached."""
    title = f"plan of {SHARDS:,} shards, {{}} of which exist: s".format
    return [at_most(title(exist), _LONGEST, Spread.of([one.wall for one in runs])) for exist, runs in found.items()]


def markdown(found: Mapping[str, Sequence[Took]]) -> str:
    """Return the goals and the table as Markdown."""
    rows = []
    for exist, runs in found.items():
        figures = ([one[at] for one in runs] for at in range(len(Took._fields)))
        rows.append([exist, *(cell for each in figures for cell in shown(Spread.of(each), ".2f"))])
    heads = ["shards that exist"]
    for what in ("time of the command, s", "its CPU time, s", "broker CPU, s"):
        heads += [what, "least to most"]
    note = f"Medians of {ROUNDS} runs, with the least and the most. The shards are quorum queues with lanes."
    return f"{goal_table(goals(found))}\n\n{table(heads, rows)}\n\n{note}"


def _file(folder: Path, shards: int) -> Path:
    path = folder / f"plan-{shards}.toml"
    path.write_text(f'[[exchange]]\nname = "orders"\nvhost = "{_VHOST}"\nshards = {shards}\n')
    return path


def _rounds(world: World, file: Path, status: int) -> Sequence[Took]:
    return [_run(world, "plan", file, status) for _ in range(ROUNDS)]


def _run(world: World, part: str, file: Path, status: int) -> Took:
    """Run a part of `ring-proxy topology` on a file. Raises BenchError for another exit status than this one."""
    urls = [f"--broker-url={world.node.amqp_url}{_VHOST}", f"--management-url={world.node.management_url}"]
    command = [sys.executable, "-m", "proxy", "topology", part, *urls, str(file)]
    broker, own, begun = cpu_seconds(world.node.pid), _of_children(), time.perf_counter()
    run = subprocess.run(command, capture_output=True, text=True, env=compiled_environment())
    took = Took(time.perf_counter() - begun, _of_children() - own, cpu_seconds(world.node.pid) - broker)
    if run.returncode != status:
        raise BenchError(f"topology {part} ended with {run.returncode}: {run.stdout[-500:]}{run.stderr}")
    print(f"{part} of {file.stem}: {took}", file=sys.stderr, flush=True)
    return took


def _of_children() -> float:
    """Return the CPU seconds of the child processes that have ended so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
