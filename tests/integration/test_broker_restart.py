"""A broker of the test's own, frozen, killed and started again under a sidecar."""

from collections.abc import Iterator

import pytest

from testbed.broker import installation
from testbed.node import Node, private_node
from tests.integration.broker_api import BrokerApi, VirtualHost, wait_until
from tests.integration.conftest import StartSidecar
from tests.integration.own_node import BROKER, private_only
from tests.integration.sidecar import Sidecar

pytestmark = [private_only, pytest.mark.versions]


@pytest.fixture
def node() -> Iterator[Node]:
    with private_node(installation(BROKER)) as made:
        made.start()
        yield made


def works(sidecar: Sidecar) -> bool:
    return sidecar.publish("orders", "k", b"works").status == 200


def test_frozen_killed_and_started_again(start_sidecar: StartSidecar, node: Node) -> None:
    home = VirtualHost(BrokerApi(node.management_url), "/", [])
    home.ring("orders", ["q1", "q2"])
    sidecar = start_sidecar(
        broker_url=node.amqp_url, management_url=node.management_url, confirm_timeout="1", lookup_timeout="1"
    )
    sidecar.wait_ready()
    assert works(sidecar)

    with node.frozen():
        answer = sidecar.publish("orders", "k", b"frozen")
        answer.problem(504, "unknown", "unknown", retryable=True)
        wait_until("not ready", lambda: "FAIL management API: " in sidecar.admin("/readyz?verbose").text)
    wait_until("works again", lambda: works(sidecar))
    sidecar.wait_ready()

    node.kill()
    wait_until("the loss is seen", lambda: sidecar.metric("ringproxy_broker_connected") == 0)
    answer = sidecar.publish("orders", "k", b"killed")
    answer.problem(503, "unavailable", "unavailable", retryable=True)
    ring = sidecar.route("orders", "k").receipt()["ring"]

    node.start()
    wait_until("works again", lambda: works(sidecar))
    sidecar.wait_ready()
    assert sidecar.route("orders", "k").receipt()["ring"] == ring
    # Everything confirmed was persistent, in durable queues.
    bodies = [m.body for messages in home.drain_all().values() for m in messages]
    assert bodies.count(b"works") == sidecar.metric("ringproxy_publishes_total", outcome="confirmed")
    assert b"killed" not in bodies
