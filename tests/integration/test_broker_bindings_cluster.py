"""A cluster of RabbitMQ: from when on a node routes by a binding that was made by way of another node.

`proxy/shards/fence.py` stands on the first tests, in which nothing of ringproxy takes part. The others try it.
"""

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import UnroutableError

from proxy.cli import main
from testbed.broker import installation
from testbed.cluster import private_cluster
from testbed.node import Node
from tests.integration.broker_api import BrokerApi, wait_until
from tests.integration.own_node import BROKER, private_only

pytestmark = [private_only, pytest.mark.long, pytest.mark.versions]

ROUNDS = 50
FROZEN_SECONDS = 2.0
"""Time in which a node that is not frozen answers."""
FILE = '[[exchange]]\nname = "orders"\nshards = 2\nqueue_type = "classic"\n'
WITH_AUDIT = FILE + 'groups = ["audit"]\n'


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Node]]:
    with private_cluster(installation(BROKER), 3) as made:
        yield made


@pytest.fixture
def api(nodes: list[Node]) -> BrokerApi:
    """The management API of the first node."""
    return BrokerApi(nodes[0].management_url)


@contextmanager
def publisher(node: Node) -> Iterator[BlockingChannel]:
    with pika.BlockingConnection(pika.URLParameters(node.amqp_url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel


def is_routed(channel: BlockingChannel, exchange: str) -> bool:
    """Publish to a fanout exchange; return whether the node has found a queue for the message."""
    try:
        channel.basic_publish(exchange, "", b"", mandatory=True)
    except UnroutableError:
        return False
    return True


def fanout(api: BrokerApi, name: str, node: Node | None = None) -> None:
    """Declare an exchange, by way of a node if one is named."""
    by = {} if node is None else {"node": node.name}
    api.ask("PUT", "exchanges", "/", name, body={"type": "fanout", "durable": True, **by})


def bind(api: BrokerApi, exchange: str, queue: str) -> None:
    api.ask("POST", "bindings", "/", "e", exchange, "q", queue, body={"routing_key": "", "arguments": {}})


def has_khepri(api: BrokerApi) -> bool:
    flags = api.ask("GET", "feature-flags")
    return any(flag["name"] == "khepri_db" and flag["state"] == "enabled" for flag in flags)


def is_answered(request: "Future[None]") -> bool:
    """Return whether a request is answered in the time that a node takes which is not frozen."""
    deadline = time.monotonic() + FROZEN_SECONDS
    while not request.done() and time.monotonic() < deadline:
        time.sleep(0.01)
    return request.done()


def test_a_bind_is_answered_before_a_slow_node_knows_it_if_the_metadata_are_in_khepri(
    nodes: list[Node], api: BrokerApi
) -> None:
    """With Mnesia no bind is answered before. A declaration by way of that node is answered only by that node."""
    is_early = has_khepri(api)
    fanout(api, "slow")
    api.ask("PUT", "queues", "/", "slow", body={"durable": True})
    with ThreadPoolExecutor(2) as pool, publisher(nodes[1]) as channel:
        assert not is_routed(channel, "slow")
        with nodes[1].frozen():
            bound = pool.submit(bind, api, "slow", "slow")
            assert is_answered(bound) == is_early
            declared = pool.submit(fanout, api, "slow.later", nodes[1])
            assert not is_answered(declared)
        bound.result()
        declared.result()
        assert is_routed(channel, "slow")


def test_a_node_that_knows_a_later_exchange_routes_by_a_binding(nodes: list[Node], api: BrokerApi) -> None:
    """Without that exchange another node of 4.3.6 found no queue for 2 to 26 of 150 messages, for up to 54 ms.

    One of 4.0.5 found none for 1 to 4 of 100 with Khepri. With Mnesia, 4.0.5 and 3.10.8 found it for each one.
    """
    api.ask("PUT", "queues", "/", "known", body={"durable": True})
    with publisher(nodes[1]) as one, publisher(nodes[2]) as other:
        for number in range(ROUNDS):
            fanout(api, f"known.{number}")
        for number in range(ROUNDS):
            bind(api, f"known.{number}", "known")
            for node, channel in ((nodes[1], one), (nodes[2], other)):
                fanout(api, f"known.{number}.{node.name}", node)
                assert is_routed(channel, f"known.{number}"), f"round {number}, {node.name}"


def test_apply_says_that_a_group_is_complete_once_every_node_knows_it(
    nodes: list[Node], api: BrokerApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "topology.toml"
    urls = [f"--broker-url={nodes[0].amqp_url}", f"--management-url={nodes[0].management_url}"]
    command = ["topology", "apply", *urls, "--management-timeout=3", str(file)]
    file.write_text(FILE)
    assert main(command) == 0
    assert "every message" not in capsys.readouterr().out
    file.write_text(WITH_AUDIT)
    assert main(command) == 0
    with publisher(nodes[2]) as channel:
        channel.basic_publish("orders.lane.1", "", b"", mandatory=True)
    complete = "orders/audit: every message that is published from now on, through any of 3 running nodes"
    assert complete in capsys.readouterr().out.splitlines()

    def count() -> int:
        return int(api.ask("GET", "queues", "/", "orders.audit.1").get("messages", 0))

    wait_until("the copy", lambda: count() == 1)

    with nodes[2].frozen():
        assert main(command) == 2
        assert complete not in capsys.readouterr().out
    fanout(api, f"orders.fan.{time.time_ns()}", nodes[1])  # as a command leaves it that is killed
    assert main(command) == 0
    assert complete in capsys.readouterr().out.splitlines()
    left = [name for each in api.ask("GET", "exchanges", "/") if (name := each["name"]).startswith("orders.fan.")]
    assert sorted(left) == ["orders.fan.1", "orders.fan.2"]
