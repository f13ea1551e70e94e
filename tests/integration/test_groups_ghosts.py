"""A shard that stands still since RabbitMQ 4.3 has kept a consumer whose channel has ended goes on in order."""

import time
from typing import Any

import pytest
from pamqp.commands import Basic, Channel

from proxy.commands.group import show
from proxy.groups.claims import priority
from proxy.groups.running import STATISTICS
from proxy.groups.view import SILENCE
from tests.integration.broker_api import VirtualHost, wait_until
from tests.integration.conftest import USER, StartSidecar
from tests.integration.consuming import Behaviour, Connect, Shard, ghost, runs, shard
from tests.integration.groups import Got, consume, deliveries
from tests.integration.sidecar import Sidecar
from tests.integration.wire_client import Client

pytestmark = [pytest.mark.versions, pytest.mark.usefixtures("raising")]

TIMEOUT = 40.0
"""The seconds after which RabbitMQ takes back what the ghost holds: less than of a sidecar's own link, to save time.

A sidecar that does not know when the shard's last delivery was opens probes after some 25 s.
"""

LONGEST = 90.0
"""The seconds within which all that the ghost holds has come."""


@pytest.fixture
def grouping(start_sidecar: StartSidecar) -> Sidecar:
    """Start a sidecar whose clients may consume from the name orders."""
    return start_sidecar(groups="orders")


@pytest.fixture
def queue(connect_consumer: Connect, vhost: VirtualHost) -> Shard:
    """Return the only shard of the exchange orders, which waits for a second for a consumer whose node is lost."""
    arguments: dict[str, Any] = {"x-consumer-disconnected-timeout": 1000}
    made = shard(connect_consumer(), "orders.0", **arguments)
    vhost.permit(USER, configure=".*", write=".*", read=".*")
    vhost.exchange("orders")
    vhost.bind("orders", "orders.0")
    return made


@pytest.mark.long
def test_a_shard_that_a_ghost_has_held_goes_on_in_order(
    connect_consumer: Connect,
    queue: Shard,
    rabbitmq: Behaviour,
    grouping: Sidecar,
    client: Client,
    vhost: VirtualHost,
) -> None:
    """RabbitMQ takes the ghost's messages back one by one, and has newer ones all the while.

    It looks what has timed out only when something happens in the queue.
    """
    if not rabbitmq.leaves_ghosts:
        pytest.skip("this RabbitMQ keeps no consumer")
    ghost(connect_consumer, queue, TIMEOUT)
    with client.session(grouping.amqp_port, vhost.name) as member:
        member.channel(1, confirm=False)
        member.socket.settimeout(2)
        consume(member, 1, prefetch=10)
        queue.publish(10)
        got: list[Got] = []
        deadline = time.monotonic() + LONGEST
        while len(got) < 20 or int(got[-1].body) < queue.published - 1:
            try:
                got += deliveries(member, 1, 1)
            except TimeoutError:
                assert time.monotonic() < deadline, got
                queue.publish(1)
            else:
                member.tell(1, Basic.Ack(got[-1].number))
        assert [int(each.body) for each in got] == list(range(10, queue.published))
        assert [each.redelivered for each in got] == [True] * 10 + [False] * (queue.published - 20)
        # The probe was replaced: a full prefetch comes again.
        queue.publish(10)
        last = range(queue.published - 10, queue.published)
        assert [int(each.body) for each in deliveries(member, 1, 10)] == list(last)


def test_an_idle_shard_is_not_probed(queue: Shard, grouping: Sidecar, client: Client, vhost: VirtualHost) -> None:
    """A raise brings it nothing. But it has no unacked messages either, so nobody holds earlier ones."""

    def priorities() -> list[int]:
        found = vhost.api.ask("GET", "consumers", vhost.name)
        return [each["arguments"]["x-priority"] for each in found if each["queue"]["name"] == queue.name]

    with client.session(grouping.amqp_port, vhost.name) as member:
        member.channel(1, confirm=False)
        consume(member, 1, prefetch=10)
        wait_until("the raise", lambda: min(priorities(), default=0) >= priority(1_000_000_000, ""), within=30)
        time.sleep(SILENCE + STATISTICS + 3)
        queue.publish(20)
        got = deliveries(member, 1, 10)
        assert [int(each.body) for each in got] == list(range(10))
        assert [each.redelivered for each in got] == [False] * 10


@pytest.mark.parametrize("end", ["connection.close", "channel.close", "cancel", "the socket's end"])
def test_a_member_that_leaves_while_its_shard_goes_to_another_leaves_no_consumer_behind(
    connect_consumer: Connect, grouping: Sidecar, client: Client, vhost: VirtualHost, end: str
) -> None:
    """B joins, and A hands one of its two shards over. B waits for what A has not acked, and then A leaves."""
    vhost.permit(USER, configure=".*", write=".*", read=".*")
    queues = [shard(connect_consumer(), f"orders.{number}") for number in range(2)]
    vhost.exchange("orders")
    for queue in queues:
        vhost.bind("orders", queue.name)

    def handed_over() -> bool:
        return "the old member has yet to ack 10" in show(grouping.admin_url, vhost.name, "orders", as_json=False)

    with client.session(grouping.amqp_port, vhost.name) as a, client.session(grouping.amqp_port, vhost.name) as b:
        for member in (a, b):
            member.channel(1, confirm=False)
        consume(a, 1, prefetch=10)
        for queue in queues:
            queue.publish(20)
        assert len(deliveries(a, 1, 20)) == 20
        consume(b, 1, prefetch=100)
        wait_until("the hand-over", handed_over, within=30)
        if end == "connection.close":
            a.goodbye()
        elif end == "the socket's end":
            a.close()
        else:
            if end == "cancel":
                a.ask(1, Basic.Cancel("c"), Basic.CancelOk)
            a.ask(1, Channel.Close(200, "", 0, 0), Channel.CloseOk)
        got = deliveries(b, 1, 40)
        b.tell(1, Basic.Ack(0, True))
        assert sorted(int(each.body) for each in got) == sorted([*range(20), *range(20)])
        b.goodbye()
    for queue in queues:
        c = connect_consumer()
        c.open(2, 10)
        c.consume(2, queue.name, "C", 0, acks=True)
        queue.publish(10)
        assert runs(c.wait_for(10)) == "20-29"
