"""The pipeline's commands in the documents are commands that it takes."""

import argparse
import importlib
import re
import shlex
from pathlib import Path

import pytest

from pipeline.__main__ import JOBS

ROOT = Path(__file__).parents[2]
_COMMAND = re.compile(r"^(?:\S*python -m pipeline|spark-submit .*pipeline/__main__\.py) (?=[a-z])(.*)$", re.M)
"""A command in a document; what follows is the job and its options."""


def commands() -> list[tuple[str, str]]:
    """Each command of a job in the documents, with the page that it is on."""
    found = []
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for block in re.findall(r"^```sh\n(.*?)^```$", page.read_text(encoding="utf-8"), flags=re.M | re.S):
            found += [(page.name, one) for one in _COMMAND.findall(block.replace("\\\n", " "))]
    return found


def test_there_are_some_of_each_job() -> None:
    assert {command.split()[0] for _, command in commands()} == set(JOBS)


@pytest.mark.parametrize(("page", "command"), commands())
def test_it_is_one_that_the_job_takes(page: str, command: str) -> None:
    job, *given = shlex.split(command, comments=True)
    parser = argparse.ArgumentParser(exit_on_error=False)
    importlib.import_module(f"pipeline.{job}.command").add_arguments(parser)
    assert parser.parse_args(given), page
