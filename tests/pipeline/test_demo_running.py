"""How the demo runs jobs: a job that fails, and a notebook that ends."""

import asyncio
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from testbed import SetupError
from testbed.pipeline_demo.running import Notebook, by_command


async def test_a_job_that_cannot_begin_tells_why() -> None:
    said = await by_command(["whatif", "--table", "keys.csv", "--out", "out"])
    assert (said.status, said.told) == (2, "")
    assert said.complaint == "pipeline whatif: --table needs --key, and either --ring or --management-url\n"


async def test_a_notebook_answers_each_job_in_turn(tmp_path: Path) -> None:
    script = "import json, sys\nfor line in sys.stdin: print(json.dumps([1, *json.loads(line), 'fault']), flush=True)"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdin=PIPE, stdout=PIPE)
    notebook = Notebook(process, tmp_path / "log")
    told = await asyncio.gather(notebook(["usage"]), notebook(["skew"]))
    assert [tuple(each) for each in told] == [(1, "usage", "fault"), (1, "skew", "fault")]
    assert process.stdin is not None
    process.stdin.close()
    await process.wait()


async def test_a_notebook_that_has_ended_shows_its_log(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("no Java\n")
    process = await asyncio.create_subprocess_exec("true", stdin=PIPE, stdout=PIPE)
    await process.wait()
    with pytest.raises(SetupError, match="the notebook has ended:\nno Java"):
        await Notebook(process, tmp_path / "log")(["usage"])
