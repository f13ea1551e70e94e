"""A measurement in a process of its own, which is not slowed down by the one that asks for it."""

import subprocess
import sys

from bench import BenchError


def figures(module: str, *arguments: object) -> list[float]:
    """Run a module's `main` with these arguments, and return the numbers that it prints. Raises BenchError."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode != 0:
        raise BenchError(f"{' '.join(command[1:])} failed: {run.stderr}")
    return list(map(float, run.stdout.split()))


def rate(module: str, *arguments: object) -> tuple[float, int]:
    """Return as `figures` how many things a second there were, and their number, of a module that prints the number
    and the seconds.
    """
    count, took = figures(module, *arguments)
    return count / took, int(count)
