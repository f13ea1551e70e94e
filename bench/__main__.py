"""`python -m bench`, or `make bench`: measure, write the tables into bench/results/, and draw the plots of them."""

import argparse
import os
import platform
import signal
import sys
import time
from types import FrameType

from bench import BenchError, plots, results
from bench.parts import BROKERLESS, PARTS, USUAL
from bench.process import HostTime
from bench.world import World, running_world
from testbed import SetupError

PLOTS = "plots"
"""The name that asks for the plots of the results as they are, without a measurement."""

_LOAD = os.getloadavg()[0]
"""The load average of the machine before the benchmark does anything."""
_BEGUN = time.monotonic()
_COMMIT = results.commit()
"""The commit at the beginning, since each finished part changes its file."""


def main() -> int:
    """Run the benchmark and return its exit status.

    It is 0 also where a goal is missed, 1 where a measurement failed, 2 where none could begin.
    """
    signal.signal(signal.SIGTERM, _exit)
    parts = _parts()
    choice = os.environ.get("BROKER", "")
    failed = False
    try:
        if parts:
            with running_world(choice) as world:
                for part in parts:
                    failed |= not _measured(world, choice, part)
        plots.draw(results.FOLDER, plots.FOLDER)
        print(f"took {(time.monotonic() - _BEGUN) / 60:.1f} minutes", file=sys.stderr)
    except (BenchError, SetupError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1 if isinstance(error, BenchError) else 2
    return int(failed)


def _measured(world: World, choice: str, part: str) -> bool:
    """Measure one part, print its tables, and write its file; return False, the file as it was, where it failed."""
    before = HostTime.now()
    try:
        text = PARTS[part](world)
    except (BenchError, SetupError) as error:
        print(f"bench: {part}: {error}", file=sys.stderr)
        return False
    version = "" if part in BROKERLESS else world.version
    command = f"{f'BROKER={choice} ' if choice else ''}python -m bench {part}"
    conditions = [f", commit {_COMMIT}" * bool(_COMMIT), ": ", f"RabbitMQ {version}, " * bool(version)]
    python = f"Python {platform.python_version()}, {world.event_loop}"
    told = "".join([*conditions, python, ", ", results.machine(_LOAD, before)])
    content = results.document(part, command, told, text)
    print(content, flush=True)
    results.FOLDER.joinpath(results.file_name(part, version)).write_text(content)
    return True


def _parts(arguments: list[str] | None = None) -> list[str]:
    """Return the parts to measure, none for the plots only."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__, allow_abbrev=False)
    known = f"{', '.join(PARTS)}, or {PLOTS} to draw what has been measured"
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"any of {known}; default: {', '.join(USUAL)}")
    parser.add_argument("--full", action="store_true", help="all of them")
    options = parser.parse_args(arguments)
    parts: list[str] = options.parts
    if not set(parts) <= {*PARTS, PLOTS}:
        parser.error(f"a part is one of {known}")
    if options.full:
        return [*PARTS]
    return [part for part in parts if part != PLOTS] if parts else [*USUAL]


def _exit(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
