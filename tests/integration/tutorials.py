"""A reader of a tutorial on groups, who has installed ringproxy, and a broker that has just been installed."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.broker_api import BrokerApi
from tests.integration.own_node import own_node
from tests.integration.reader import Reader


@contextmanager
def beginner(folder: Path, examples: str) -> Iterator[Reader]:
    """Give the reader, who has the examples of a page, and must leave broker and folder as they were.

    The tutorials need RabbitMQ 4.
    """
    with own_node("") as (node, _):
        api = BrokerApi(node.management_url)
        if int(str(api.ask("GET", "overview")["rabbitmq_version"]).partition(".")[0]) < 4:
            pytest.skip("the tutorial needs RabbitMQ 4")
        (folder / "venv").symlink_to(sys.prefix)
        reader = Reader(folder, node)
        reader.has(examples)
        try:
            yield reader
            assert reader.does("jobs -rp").strip() == ""
        finally:
            reader.close()
        assert api.ask("GET", "queues") == []
        assert not [each for each in api.ask("GET", "exchanges") if each["name"].startswith("orders")]
        assert {path.name for path in folder.iterdir()} == {"venv", "bin", "examples"}
