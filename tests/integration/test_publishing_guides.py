"""The guides for publishers: their commands and programs run as they stand there, on the broker of the tutorial."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.node import Node
from tests.integration.node_packages import node_modules
from tests.integration.own_node import home_of, own_node, private_only
from tests.integration.reader import Reader, steps

pytestmark = private_only

QUEUES = "orders.1", "orders.2", "orders.3"
INSTALLED_HERE = "sudo ", "venv/bin/pip ", "npm "
"""How commands begin in whose place the tests have the packages of constraints.txt and package-lock.json."""


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """A broker that has just been installed."""
    with own_node("") as (running, _):
        yield running


@pytest.fixture
def reader(node: Node, tmp_path: Path) -> Iterator[Reader]:
    """A reader who has done the tutorial's first three steps."""
    (tmp_path / "venv").symlink_to(sys.prefix)
    (tmp_path / "node_modules").symlink_to(node_modules())
    at_work = Reader(tmp_path, node)
    start, make, *_ = (step for step in steps("docs/tutorial.md") if not step.heading.startswith("1."))
    at_work.takes(start)
    at_work.takes(make)
    yield at_work
    at_work.close()
    home_of(node, QUEUES)  # with empty queues for the next one


@pytest.mark.parametrize("guide", ["publish-over-http", "publish-over-amqp"])
def test_each_command_and_program_does_what_the_guide_says(reader: Reader, guide: str) -> None:
    for step in steps(f"docs/how-to/{guide}.md"):
        lines = step.commands.splitlines(keepends=True)
        step.commands = "".join(line for line in lines if not line.startswith(INSTALLED_HERE))
        reader.takes(step)
