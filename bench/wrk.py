"""wrk (https://github.com/wg/wrk): as many requests as a server answers, each connection sending the next at once."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from bench import BenchError

_SCRIPT = Path(__file__).with_name("replay.lua")
_TIMEOUT = 20
"""Seconds for an answer, after which wrk counts an error."""


def answers_per_second(wrk: Path, url: str, requests: Path, connections: int, seconds: float) -> tuple[float, int]:
    """Send a file's requests in turn from one thread; the rate, and the number of answers.

    Raises BenchError if any answer was not a 2xx, or any connection broke.
    """
    options = ["--threads", "1", "--connections", str(connections), "--timeout", f"{_TIMEOUT}s"]
    command = [str(wrk), *options, "--duration", f"{seconds:g}s", "--script", str(_SCRIPT), url, "--", str(requests)]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode != 0:
        raise BenchError(f"wrk ended with status {run.returncode}: {run.stdout}{run.stderr}")
    return result(run.stdout)


def result(output: str) -> tuple[float, int]:
    """Return the rate and the number of answers in the line that the script prints. Raises BenchError as said above."""
    lines: Sequence[str] = [line for line in output.splitlines() if line.startswith("{")]
    if not lines:
        raise BenchError(f"wrk says nothing of its result: {output}")
    said = json.loads(lines[-1])
    if said["refused"] or said["broken"] or not said["answers"]:
        raise BenchError(f"wrk: {said['answers']} answers, {said['refused']} not 2xx, {said['broken']} errors")
    return said["answers"] / said["seconds"], said["answers"]
