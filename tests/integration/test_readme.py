"""The README's first commands, as a newcomer with a broker runs them, and the answer to the last."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest

from testbed.node import Node
from tests.integration.broker_api import BrokerApi
from tests.integration.documents import ROOT, Document
from tests.integration.own_node import own_node, private_only
from tests.integration.reader import Reader

pytestmark = private_only

(COMMANDS,) = Document("README.md")["Install and run"]
(RECEIPT,) = Document("README.md", "json")["Install and run"]
INSTALL, *OTHERS = COMMANDS.splitlines(keepends=True)

SECONDS = 300.0
"""The longest that the commands may take; on a machine that has nothing else to do it is half a minute."""


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """A broker that has just been installed: it has nothing but the user guest and the virtual host /."""
    with own_node("") as (running, _):
        yield running


@pytest.fixture(params=["installed", pytest.param("installs", marks=pytest.mark.long)])
def reader(request: pytest.FixtureRequest, node: Node, tmp_path: Path) -> Iterator[Reader]:
    """A reader in a clone, who has installed ringproxy already or who installs it as the README says."""
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    if request.param == "installed":
        (tmp_path / "venv").symlink_to(sys.prefix)
    else:
        for name in ("ring", "proxy", "pipeline"):
            shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, tmp_path)
    at_work = Reader(tmp_path, node)
    yield at_work
    at_work.close()
    api = BrokerApi(node.management_url)
    for exchange in ("orders", *(f"orders.lane.{number}" for number in (1, 2, 3))):
        api.ask("DELETE", "exchanges", "/", exchange)
    for number in (1, 2, 3):
        api.ask("DELETE", "queues", "/", f"orders.{number}")


def test_the_commands_lead_to_a_first_message_that_is_confirmed(reader: Reader, node: Node, tmp_path: Path) -> None:
    installs = not (tmp_path / "venv").exists()

    told = reader.does("".join([INSTALL, *OTHERS] if installs else OTHERS), SECONDS)

    receipt = json.loads(told.strip().splitlines()[-1])
    assert receipt == json.loads(RECEIPT)
    log = (tmp_path / "ring-proxy.log").read_text()
    assert "over HTTP with POST http://127.0.0.1:" in log
    if installs:
        assert "the hot modules are not compiled" in log
    with pika.BlockingConnection(pika.URLParameters(node.amqp_url)) as connection:
        # Not by basic.get, which a queue with single active consumer refuses.
        messages = connection.channel().consume(receipt["destination"]["name"], auto_ack=True, inactivity_timeout=10)
        assert next(messages)[2] == b"first"
