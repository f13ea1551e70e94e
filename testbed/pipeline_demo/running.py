"""How the demo runs jobs: by the command, as a timer does, or in the Spark session of a notebook."""

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from testbed import SetupError

WITHIN = 600.0
"""Seconds for one job, on a busy machine."""

_LONGEST = 1024 * 1024
"""The most bytes that a job says."""

# For a journal as small as this one: few partitions, and no time spent on compiling Spark well.
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_SMALL = f"--conf spark.sql.shuffle.partitions=4 --driver-java-options '{_JAVA}'"
# A night by the command runs the code that Spark makes for each query; jobs as short as these do not repay it.
_UNCOMPILED = "--conf spark.sql.codegen.wholeStage=false --conf spark.sql.codegen.factoryMode=NO_CODEGEN"


class Said(NamedTuple):
    """The end of a job, and the lines that it printed."""

    status: int
    told: str
    complaint: str


class Runner(Protocol):
    """Runs a job by its arguments."""

    async def __call__(self, arguments: Sequence[str]) -> Said:
        """Return what the job said."""


async def by_command(arguments: Sequence[str]) -> Said:
    """Run a job in a process of its own."""
    process = await _started(_SMALL, "-m", "pipeline", *arguments, stderr=PIPE)
    async with _ended(process), asyncio.timeout(WITHIN):
        told, complaint = await process.communicate()
    assert process.returncode is not None
    return Said(process.returncode, told.decode(), complaint.decode())


class Notebook:
    """A process with a Spark session, in which jobs run one after the other."""

    def __init__(self, process: Process, log: Path) -> None:
        """Take the process of `testbed.pipeline_demo.notebook`, and the file with what it and Java complain of."""
        self._process, self._log, self._turn = process, log, asyncio.Lock()

    async def __call__(self, arguments: Sequence[str]) -> Said:
        """Run a job once those before it have ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        async with self._turn, asyncio.timeout(WITHIN):
            self._process.stdin.write(json.dumps(arguments).encode() + b"\n")
            answer = await self._process.stdout.readline()
        if not answer:
            raise SetupError(f"the notebook has ended:\n{self._log.read_text(errors='replace')}")
        return Said(*json.loads(answer))


@asynccontextmanager
async def notebook(log: Path) -> AsyncIterator[Notebook]:
    """Start a notebook, and stop it at the end. Its session is ready some seconds later."""
    with log.open("wb") as complaints:
        submit = f"{_SMALL} {_UNCOMPILED}"
        process = await _started(submit, "-m", "testbed.pipeline_demo.notebook", stdin=PIPE, stderr=complaints.fileno())
    async with _ended(process):
        yield Notebook(process, log)
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


async def _started(submit: str, *command: str, stderr: int, stdin: int | None = None) -> Process:
    env = os.environ | {"PYSPARK_SUBMIT_ARGS": f"{submit} pyspark-shell"}
    return await asyncio.create_subprocess_exec(
        sys.executable, *command, stdin=stdin, stdout=PIPE, stderr=stderr, env=env, limit=_LONGEST
    )


@asynccontextmanager
async def _ended(process: Process) -> AsyncIterator[None]:
    """Have a process ended after the block, which it ends itself unless something fails."""
    try:
        yield
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
