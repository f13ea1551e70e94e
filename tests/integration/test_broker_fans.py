"""RabbitMQ itself, with a fan between a lane and the queues of several groups. No sidecar takes part.

The steps by which `ring-proxy topology apply` adds a group, and the readings of sidecars, stand on this.
"""

from collections import Counter
from collections.abc import Iterator

import pytest
from pamqp.commands import Basic

from testbed.broker import Broker
from tests.integration.broker_api import VirtualHost, wait_until
from tests.integration.load import publishing
from tests.integration.wire_client import Client, Wire, port_of

pytestmark = [pytest.mark.long, pytest.mark.versions]

PROMISE = {"x-ring-shard": "orders.1", "x-ring-groups": {"orders": "orders.1", "orders/audit": "orders.audit.1"}}


@pytest.fixture
def lane(vhost: VirtualHost) -> VirtualHost:
    """A lane with one queue behind it, on a ring."""
    vhost.exchange("orders")
    vhost.exchange("lane", "fanout")
    vhost.exchange("fan", "fanout")
    for queue in ("orders.1", "orders.audit.1"):
        vhost.queue(queue)
    vhost.bind("lane", "orders.1", "")
    vhost.bind("orders", "lane", "1", kind="e")
    return vhost


@pytest.fixture
def peer(broker: Broker, lane: VirtualHost, client: Client) -> Iterator[Wire]:
    with client.session(port_of(broker.amqp_url), lane.name) as made:
        made.channel()
        yield made


def fan_out(lane: VirtualHost) -> None:
    """Add the group, in the order of the steps of `apply`."""
    lane.bind("fan", "orders.1", "")
    lane.bind("fan", "orders.audit.1", "")
    lane.bind("lane", "fan", "", kind="e")
    lane.unbind("orders", "lane", "1", kind="e")
    path = ("bindings", lane.name, "e", "orders", "e", "lane")
    lane.api.ask("POST", *path, body={"routing_key": "1", "arguments": PROMISE})
    lane.unbind("lane", "orders.1", "")


def bodies(lane: VirtualHost, queue: str) -> Counter[bytes]:
    return Counter(message.body for message in lane.drain(queue))


def test_a_queue_gets_one_copy_by_both_ways(lane: VirtualHost, peer: Wire) -> None:
    lane.bind("fan", "orders.1", "")
    lane.bind("fan", "orders.audit.1", "")
    lane.bind("lane", "fan", "", kind="e")
    peer.publish(1, "lane", "k", b"m", mandatory=True)
    peer.confirm(1)
    assert bodies(lane, "orders.1") == bodies(lane, "orders.audit.1") == {b"m": 1}


def test_the_arguments_of_the_binding_change_nothing_and_show(lane: VirtualHost, peer: Wire) -> None:
    fan_out(lane)
    peer.publish(1, "orders", "k", b"m")
    peer.confirm(1)
    assert bodies(lane, "orders.1") == bodies(lane, "orders.audit.1") == {b"m": 1}
    (shown,) = lane.api.ask("GET", "exchanges", lane.name, "orders", "bindings", "source")
    assert shown["arguments"] == PROMISE


def test_adding_a_group_loses_and_doubles_nothing(lane: VirtualHost, peer: Wire) -> None:
    """The own queue has every message once; the new one every message from the binding of the fan on."""
    with publishing(peer, "lane", "k") as confirmed:
        wait_until("some messages before", lambda: len(confirmed) > 50)
        fan_out(lane)
        complete_from = len(confirmed) + 1  # one may be under way
        wait_until("some messages after", lambda: len(confirmed) > complete_from + 50)
    every = Counter(b"%d" % number for number in confirmed)
    assert bodies(lane, "orders.1") == every
    audit = bodies(lane, "orders.audit.1")
    assert set(audit.values()) == {1}
    numbers = sorted(map(int, audit))
    assert numbers == list(range(numbers[0], len(confirmed)))
    assert numbers[0] <= complete_from


def test_one_queue_that_is_gone_is_no_return_and_both_are_one(lane: VirtualHost, peer: Wire) -> None:
    fan_out(lane)
    lane.delete_queue("orders.audit.1")
    peer.publish(1, "lane", "k", b"lost to audit", mandatory=True)
    peer.confirm(1)
    lane.delete_queue("orders.1")
    peer.publish(1, "lane", "k", b"comes back", mandatory=True)
    assert peer.content(1, Basic.Return).body == b"comes back"


def test_a_full_queue_of_one_group_nacks_what_the_other_has(lane: VirtualHost, peer: Wire) -> None:
    lane.delete_queue("orders.audit.1")
    lane.queue("orders.audit.1", x_max_length=1, x_overflow="reject-publish")
    fan_out(lane)
    for number in range(5):
        peer.publish(1, "lane", "k", b"%d" % number, mandatory=True)
        answer = peer.answers(1, number + 1, number)[number + 1]
        assert answer == ("ack" if number == 0 else "nack")
    assert len(bodies(lane, "orders.1")) == 5
