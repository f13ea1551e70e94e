"""`python -m bench`, or `make bench`: measure, print the tables, and write them into docs/performance.md."""

import argparse
import asyncio
import os
import platform
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from bench import BenchError, amqp, report
from bench.contenders import Stage
from bench.freeze import Freeze
from bench.long.parts import LONG, SUITES
from bench.process import HostTime
from bench.report import Results
from bench.rounds import in_turn
from bench.world import World, running_world
from testbed import SetupError

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "performance.md"

PARTS = "amqp", "throughput", "latency", "freeze"
ROUNDS, SECONDS, FREEZE = 5, 2, 60
_LATENCY_SECONDS = 2
"""The seconds of a round at a fixed rate, which is a thousand requests a second."""
_LOAD = os.getloadavg()[0]
"""The load average of the machine before the benchmark does anything."""
_HOST_TIME = HostTime.now()
_BEGUN = time.monotonic()
_COMMIT = report.commit(ROOT)
"""The commit at the beginning, since each finished part changes the document."""


def main() -> int:
    """Run the benchmark and return its exit status.

    It is 0 also where a goal is missed, 1 where a measurement failed, 2 where none could begin.
    """
    signal.signal(signal.SIGTERM, _exit)
    options = _options()
    choice = os.environ.get("BROKER", "")
    try:
        with running_world(choice) as world:
            usual, failed = _usual_settings(options), False
            if parts := [part for part in PARTS if part in options.parts]:
                results, failed = _measured(world, options, parts)
                text = report.markdown(results, _conditions(world, choice, options))
                _publish("figures", text, whole=usual and parts == list(PARTS) and not failed)
            for part in options.parts:
                if part in LONG:
                    failed |= not _long(world, choice, part)
        print(f"took {(time.monotonic() - _BEGUN) / 60:.1f} minutes", file=sys.stderr)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except SetupError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    return int(failed)


def _long(world: World, choice: str, part: str) -> bool:
    """Measure one of the long parts; one that fails leaves its section as it was, and the others their turn."""
    before = HostTime.now()
    try:
        text = LONG[part](world)
    except (BenchError, SetupError) as error:
        print(f"bench: {part}: {error}", file=sys.stderr)
        return False
    command = f"{f'BROKER={choice} ' if choice else ''}python -m bench {part}"
    # Those on a suite's say themselves which one.
    broker = "" if part in SUITES else f"RabbitMQ {world.version}, "
    told = f"{report.measured_by(command, _COMMIT)}: {broker}{_machine(before)}."
    _publish(part, f"{told}\n\n{text}", whole=True)
    return True


def _publish(section: str, text: str, *, whole: bool) -> None:
    """Print a section, and write it into the document if it is `whole`."""
    print(text, flush=True)
    if whole:
        DOCUMENT.write_text(report.replaced(DOCUMENT.read_text(), section, text))
    else:
        print(f"\nnot written to {DOCUMENT.name}: that is for whole runs", file=sys.stderr)


def _options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__, allow_abbrev=False)
    known = ", ".join((*PARTS, *LONG))
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"only these, of {known}; default {', '.join(PARTS)}")
    parser.add_argument("--full", action="store_true", help="all of them")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of each contender (default {ROUNDS})")
    parser.add_argument(
        "--seconds", type=int, default=SECONDS, help=f"of each round (default {SECONDS}); wrk takes whole ones"
    )
    parser.add_argument("--freeze", type=int, default=FREEZE, help=f"seconds of the frozen broker (default {FREEZE})")
    options = parser.parse_args(arguments)
    if not set(options.parts) <= {*PARTS, *LONG}:
        parser.error(f"a part is one of {known}")
    if options.full:
        options.parts = [*PARTS, *LONG]
    options.parts = options.parts or [*PARTS]
    return options


def _usual_settings(options: argparse.Namespace) -> bool:
    return (options.rounds, options.seconds, options.freeze) == (ROUNDS, SECONDS, FREEZE)


def _measured(world: World, options: argparse.Namespace, parts: Sequence[str]) -> tuple[Results, bool]:
    """Return the results, and whether a part failed; the other parts are measured nevertheless."""
    results, stage, failed = Results(), Stage(world), False
    for part in parts:
        try:
            if part == "amqp":
                results.amqp = amqp.measured(world, options.rounds, options.seconds)
            elif part == "throughput":
                results.batch_connections = stage.best_batch_connections()
                contenders = stage.contenders(results.batch_connections)
                racers = {one.title: one.measure for one in contenders}
                results.throughput = in_turn(racers, options.rounds, options.seconds)
                results.resident = {one.title: one.memory() for one in contenders}
            elif part == "latency":
                results.latency = in_turn(stage.at_fixed_rate(), options.rounds, _LATENCY_SECONDS)
            else:
                results.frozen = asyncio.run(Freeze(world).run(options.freeze))
        except BenchError as error:
            print(f"bench: {part}: {error}", file=sys.stderr)
            failed = True
    return results, failed


def _conditions(world: World, choice: str, options: argparse.Namespace) -> list[str]:
    given = " ".join(sys.argv[1:])
    command = f"make bench{' FULL=1' * options.full}{f' BROKER={choice}' if choice else ''}"
    if given and given != "--full":
        command = f"{f'BROKER={choice} ' if choice else ''}python -m bench {given}"
    return [
        report.measured_by(command, _COMMIT),
        f"RabbitMQ {world.version}, Python {platform.python_version()}, event loop of sidecar and bare handler:"
        f" {world.event_loop}",
        f"{_machine(_HOST_TIME)}; the broker, the sidecar and the clients share it",
        f"medians of {options.rounds} rounds of {options.seconds:g} s (less at a fixed rate), all contenders of a"
        " table in turn; ratios and differences within each round",
    ]


def _machine(before: HostTime) -> str:
    stolen = f"{HostTime.now().stolen_since(before):.0%} of their time taken by the host"
    return f"{os.cpu_count()} cores ({_processor()}), {stolen}, load average when it all began {_LOAD:.1f}"


def _processor() -> str:
    """Return the name of the processor as far as the kernel knows it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _exit(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
