"""`ring-proxy topology` on a broker whose hash plugin is off, as RabbitMQ is installed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.cli import main
from testbed.broker import installation
from testbed.node import Node, private_node
from tests.integration.broker_api import BrokerApi
from tests.integration.own_node import BROKER, private_only

pytestmark = [pytest.mark.versions, private_only]


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with private_node(installation(BROKER)) as made:
        (made.folder / "enabled_plugins").write_text("[rabbitmq_management].\n")
        made.start()
        yield made


def test_plan_names_the_plugin_and_apply_makes_nothing(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    api = BrokerApi(node.management_url)
    # The tag management is the least with which the command works.
    api.ask("PUT", "users", "topology", body={"password": "secret", "tags": "management"})
    api.ask("PUT", "permissions", "/", "topology", body={"configure": ".*", "write": ".*", "read": ".*"})
    file = tmp_path / "topology.toml"
    file.write_text('[[exchange]]\nname = "orders"\nshards = 2\n')
    flags = [f"--{name}={url.replace('guest:guest', 'topology:secret')}" for name, url in _urls(node)]

    assert main(["topology", "plan", *flags, str(file)]) == 2
    told = capsys.readouterr().out
    assert "type 'x-consistent-hash': RabbitMQ does not have it, since its plugin is off; " in told
    assert "rabbitmq-plugins enable rabbitmq_consistent_hash_exchange\n" in told

    assert main(["topology", "apply", *flags, str(file)]) == 2
    assert "rabbitmq_consistent_hash_exchange" in "".join(capsys.readouterr())
    assert api.ask("GET", "queues") == []


def _urls(node: Node) -> list[tuple[str, str]]:
    return [("broker-url", node.amqp_url), ("management-url", node.management_url)]
