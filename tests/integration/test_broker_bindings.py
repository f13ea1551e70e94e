"""RabbitMQ itself, with a queue that is bound to a hash exchange more than once.

The advice of `ring-proxy topology export` stands on this. No sidecar takes part.
"""

import pytest

from testbed.broker import Broker
from tests.integration.broker_api import VirtualHost
from tests.integration.wire_client import Client, port_of

pytestmark = [pytest.mark.long, pytest.mark.versions]


def counts(broker: Broker, vhost: VirtualHost, client: Client) -> tuple[int, int]:
    """Return how many of 200 messages of as many keys get to the queues twice and once."""
    with client.session(port_of(broker.amqp_url), vhost.name) as peer:
        peer.channel()
        for n in range(200):
            peer.publish(1, "orders", f"k{n}", b"")
        peer.confirm(1, 200)
    return len(vhost.drain("twice")), len(vhost.drain("once"))


@pytest.mark.parametrize("removed", ["1", "5"])
def test_a_queue_bound_twice_gets_nothing_once_either_binding_is_removed(
    broker: Broker, vhost: VirtualHost, client: Client, removed: str
) -> None:
    """rabbitmq-server #9641; only removing all bindings and binding once gives the queue its share again."""
    vhost.ring("orders", {"once": 1, "twice": 1})
    once_alone = counts(broker, vhost, client)
    vhost.bind("orders", "twice", "5")
    assert counts(broker, vhost, client) == once_alone, "the first binding counts"
    vhost.unbind("orders", "twice", removed)
    assert counts(broker, vhost, client) == (0, 200)
    vhost.unbind("orders", "twice", "1" if removed == "5" else "5")
    assert counts(broker, vhost, client) == (0, 200)
    vhost.bind("orders", "twice", "5")
    heavy, light = counts(broker, vhost, client)
    assert heavy > 2 * light > 0
