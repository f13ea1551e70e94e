"""The tutorial on retries in series, as a reader goes through it."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.node import Node
from tests.integration.broker_api import BrokerApi
from tests.integration.own_node import own_node, private_only
from tests.integration.reader import Reader, steps

pytestmark = private_only


@pytest.fixture
def node() -> Iterator[Node]:
    """A broker that has just been installed, since the page begins with an empty virtual host."""
    with own_node("") as (running, _):
        yield running


@pytest.fixture
def reader(node: Node, tmp_path: Path) -> Iterator[Reader]:
    """A reader who has installed ringproxy and pika."""
    (tmp_path / "venv").symlink_to(sys.prefix)
    at_work = Reader(tmp_path, node)
    yield at_work
    at_work.close()


def test_each_step_shows_what_the_tutorial_says(reader: Reader, node: Node, tmp_path: Path) -> None:
    api = BrokerApi(node.management_url)
    if int(str(api.ask("GET", "overview")["rabbitmq_version"]).partition(".")[0]) < 4:
        pytest.skip("the tutorial needs RabbitMQ 4")
    for step in steps("docs/tutorial-retry.md"):
        reader.takes(step)
    # The clean-up leaves nothing behind.
    assert reader.does("jobs -rp").strip() == ""
    assert api.ask("GET", "queues") == []
    assert not [each for each in api.ask("GET", "exchanges") if each["name"].startswith("orders")]
    assert {path.name for path in tmp_path.iterdir()} == {"venv", "bin"}
