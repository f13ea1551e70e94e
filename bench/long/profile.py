"""Where the CPU time of what lies between goes, by perf: whose code it is, and its functions of the most samples."""

import re
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench import BenchError, amqp, contenders
from bench.contenders import Stage
from bench.tables import table
from bench.world import World
from testbed.debian import ensure_package

_SECONDS = 4.0
_HERTZ = 999
_SHOWN = 8
"""Functions of each."""

_OWNERS = {
    "the kernel": r"\[kernel|\[vdso\]",
    "HAProxy": r"^haproxy",
    "this project, compiled": r"ringproxy__mypyc",
    "the Python interpreter": r"libpython|^python",
    "uvloop": r"^loop\.cpython|uvloop",
    "aiohttp's parser and writer": r"_http_(parser|writer)|_websocket|multidict|_quoting|yarl|frozenlist",
    "the C library": r"^libc[.-]|^ld-",
}
"""By a pattern of the library's file name, the first that fits; `the rest` is what none does."""

_LINE = re.compile(r"^\s*(\d+\.\d+)%\s+(\S+)\s+\[[.k]\]\s+(.+?)\s*$", re.M)
"""A line of perf's report: percent of all samples, library, function."""


Samples = dict[tuple[str, str], float]
"""Percent by library and function."""


class _Load(NamedTuple):
    """A load that is sent while perf looks on at a process."""

    title: str
    run: Callable[[float], object]
    pid: int


def profile(world: World) -> str:
    """Return a table of whose code it is, of each load's column, and a list of functions."""
    perf = ensure_package("linux-perf", "perf")
    file = world.folder / "perf.data"
    loads = list(_loads(world))
    samples = {}
    for load in loads:
        load.run(1.0)
        with _recorded(perf, file, load.pid):
            load.run(_SECONDS)
        samples[load.title] = read(_report(perf, file))
    shares = {title: by_owner(found) for title, found in samples.items()}
    rows = [[name, *(f"{share[name]:.0f}%" for share in shares.values())] for name in [*_OWNERS, "the rest"]]
    functions = [
        f"- {title}: " + ", ".join(f"`{name}` {share:.1f}%" for (_, name), share in most(found)[:_SHOWN])
        for title, found in samples.items()
    ]
    return f"{table(['', *shares], rows)}\n\n" + "\n".join(functions)


def _loads(world: World) -> Iterator[_Load]:
    for way in amqp.ways(world):
        if way.title in (amqp.RELAYED, amqp.COMPILED):
            assert way.proxy is not None
            yield _Load(way.title, amqp.contender(world, way).run, way.proxy)
    for one in Stage(world).contenders(4):
        if one.title in (contenders.JSON, contenders.SINGLE, contenders.SINGLE_TRANSIENT):
            assert one.server is not None
            yield _Load(one.title, one.run, one.server)


@contextmanager
def _recorded(perf: Path, file: Path, pid: int) -> Iterator[None]:
    """perf looks on at the process meanwhile. Raises BenchError where it may not."""
    file.unlink(missing_ok=True)
    command = [str(perf), "record", "-F", f"{_HERTZ}", "-e", "cpu-clock", "-o", str(file), "-p", f"{pid}"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as recording:
        try:
            yield
        finally:
            recording.terminate()
            _, said = recording.communicate()
    if not file.exists():
        raise BenchError(f"perf recorded nothing: {said.strip()[-200:]}")


def _report(perf: Path, file: Path) -> str:
    command = [str(perf), "report", "--stdio", "--input", str(file), "--sort", "dso,sym", "--call-graph", "none"]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode != 0:
        raise BenchError(f"perf cannot report: {run.stderr.strip()[-200:]}")
    return run.stdout


def read(report: str) -> Samples:
    """Percent of the samples by library and function, of which waiting takes none. Raises BenchError for no samples."""
    found: Samples = defaultdict(float)
    for percent, library, function in _LINE.findall(report):
        # Where a process that has slept is when it goes on: it has not run until then.
        if not function.startswith("finish_task_switch"):
            found[library, function] += float(percent)
    total = sum(found.values())
    if not total:
        raise BenchError(f"perf's report has no samples: {report.strip()[-200:]!r}")
    return {of: percent / total * 100 for of, percent in found.items()}


def most(samples: Samples) -> list[tuple[tuple[str, str], float]]:
    """Return the functions of the most samples first."""
    return sorted(samples.items(), key=lambda each: -each[1])


def by_owner(samples: Samples) -> dict[str, float]:
    """Percent by whose code it is."""
    found: dict[str, float] = dict.fromkeys([*_OWNERS, "the rest"], 0.0)
    for (library, _), percent in samples.items():
        found[next((name for name, its in _OWNERS.items() if re.search(its, library)), "the rest")] += percent
    return found
