"""A message that its consumer always returns: through a group it fares as it does without, and it is seen."""

import pytest
from pamqp.commands import Basic

from proxy.commands.group import MEMBERS_VIEW, show
from testbed.broker import Broker
from tests.integration.broker_api import VirtualHost, wait_until
from tests.integration.conftest import StartSidecar
from tests.integration.groups import deliveries, numbered, publish, waiting
from tests.integration.wire_client import Client, port_of

LIMIT = 3
"""The shard's delivery limit."""


@pytest.mark.versions
def test_a_rejected_message_is_dead_lettered_after_the_limit_as_it_is_when_consumed_directly(
    start_sidecar: StartSidecar, broker: Broker, vhost: VirtualHost, client: Client
) -> None:
    """RabbitMQ 4.3 counts rejects, and no nacks."""
    vhost.exchange("orders")
    dead = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "dead"}
    vhost.queue("dead")
    vhost.queue("orders.0", x_queue_type="quorum", x_single_active_consumer=True, x_delivery_limit=LIMIT, **dead)
    vhost.bind("orders", "orders.0")
    grouping = start_sidecar(groups="orders")
    publish(client, port_of(broker.amqp_url), vhost, numbered([0]))
    directly = rejected(client, port_of(broker.amqp_url), vhost, "orders.0", deaths=1)
    publish(client, port_of(broker.amqp_url), vhost, numbered([1]))
    assert rejected(client, grouping.amqp_port, vhost, "orders", deaths=2) == directly == LIMIT + 1
    assert grouping.metric("ringproxy_group_redeliveries_total", exchange="orders", shard="orders.0") == LIMIT
    assert grouping.metric("ringproxy_group_worst_redeliveries", exchange="orders", shard="orders.0") == LIMIT


def rejected(client: Client, port: int, vhost: VirtualHost, name: str, *, deaths: int) -> int:
    """Return how often a message comes that is rejected each time, until so many are dead-lettered."""
    with client.session(port, vhost.name) as wire:
        wire.channel(1, confirm=False)
        wire.ask(1, Basic.Consume(0, name, "c"), Basic.ConsumeOk)
        for number in range(1, LIMIT + 2):
            (got,) = deliveries(wire, 1, 1)
            assert got.redelivered == (number > 1)
            wire.tell(1, Basic.Reject(got.number, True))
        counts = {"dead": deaths, "orders.0": 0}
        wait_until("dead-lettered", lambda: waiting(client, port, vhost, counts) == counts)
        wire.goodbye()
    return number


@pytest.mark.versions
@pytest.mark.parametrize("kind", ["quorum", "classic"])
def test_a_message_that_goes_round_on_a_shard_without_a_limit_is_counted_and_told_of(
    start_sidecar: StartSidecar, broker: Broker, vhost: VirtualHost, client: Client, kind: str
) -> None:
    vhost.exchange("orders")
    # RabbitMQ 3.10 takes -1 for a limit of none at all, and there is none by default.
    limit = {"x_delivery_limit": -1} if kind == "quorum" and not broker.version.startswith("3.") else {}
    vhost.queue("orders.0", x_queue_type=kind, x_single_active_consumer=True, **limit)
    vhost.bind("orders", "orders.0")
    sidecar = start_sidecar(groups="orders")
    times = 25
    with client.session(sidecar.amqp_port, vhost.name) as wire:
        wire.channel(1)
        for n in range(3):
            wire.publish(1, "orders", f"key {n}", b"%d" % n)
        wire.confirm(1, 3)
        wire.channel(2, confirm=False)
        wire.ask(2, Basic.Consume(0, "orders", "c"), Basic.ConsumeOk)
        came = 0
        while came <= times:
            (got,) = deliveries(wire, 2, 1)
            is_poison = got.body == b"1"
            came += is_poison
            if came <= times:
                wire.tell(2, Basic.Nack(got.number, False, True) if is_poison else Basic.Ack(got.number))
        assert sidecar.metric("ringproxy_group_redeliveries_total", exchange="orders", shard="orders.0") == times
        assert sidecar.metric("ringproxy_group_worst_redeliveries", exchange="orders", shard="orders.0") == times
        lines = show(sidecar.admin_url, vhost.name, "orders", MEMBERS_VIEW, as_json=False)
        assert f", {times} redelivered, one message {times} times in the last minutes" in lines
        wait_until("a log line", lambda: "a message of shard 'orders.0' has come again" in sidecar.log())
        wire.goodbye()
