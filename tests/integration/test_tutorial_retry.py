"""The tutorial on retries in series, as a reader goes through it."""

from pathlib import Path

from tests.integration.own_node import private_only
from tests.integration.reader import steps
from tests.integration.tutorials import beginner

pytestmark = private_only


def test_each_step_shows_what_the_tutorial_says(tmp_path: Path) -> None:
    with beginner(tmp_path, "examples/tutorial-retry") as reader:
        for step in steps("docs/tutorial-retry.md"):
            reader.takes(step)
