"""Where the broker cannot balance a group in order, a sidecar says so, or refuses the members."""

from contextlib import ExitStack
from typing import Any
from urllib.parse import quote

import pytest
from pamqp.commands import Basic, Channel

from testbed.broker import Broker
from tests.integration.broker_api import VirtualHost, wait_until
from tests.integration.conftest import USER, StartSidecar
from tests.integration.groups import consume, deliveries, numbered, publish, sharded
from tests.integration.sidecar import Sidecar
from tests.integration.wire_client import Client, port_of


def group_of(sidecar: Sidecar, vhost: VirtualHost) -> Any:
    """Return what the sidecar tells of the group; None while it has no member of it."""
    answer = sidecar.admin(f"/groups/{quote(vhost.name, safe='')}/orders")
    return answer.json if answer.status == 200 and answer.json["joined"] else None


def is_old(broker: Broker) -> bool:
    """Whether raises have no effect on this broker."""
    return int(broker.version.partition(".")[0]) < 4


def told(sidecar: Sidecar, vhost: VirtualHost) -> Any:
    """Return what the sidecar tells of the group once it has read the shards."""

    def look() -> Any:
        shown = group_of(sidecar, vhost)
        return shown if shown is not None and shown["exact"] is not None else None

    return wait_until("what the shards are", look)


@pytest.mark.versions
@pytest.mark.parametrize("kind", ["quorum", "classic"])
def test_a_group_of_queues_with_a_single_active_consumer_is_exact(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client, kind: str
) -> None:
    vhost.exchange("orders")
    for shard in ("orders.0", "orders.1"):
        vhost.queue(shard, x_queue_type=kind, x_single_active_consumer=True)
        vhost.bind("orders", shard)
    sidecar = start_sidecar(groups="orders")
    with client.session(sidecar.amqp_port, vhost.name) as wire:
        wire.channel(1, confirm=False)
        consume(wire, 1)
        shown = told(sidecar, vhost)
        assert (shown["exact"], shown["reasons"]) == (True, [])
        assert sidecar.metric("ringproxy_group_exact", exchange="orders") == 1
        wire.goodbye()


@pytest.mark.versions
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"x_queue_type": "classic"}, "without x-single-active-consumer"),
        ({"x_queue_type": "quorum"}, "without x-single-active-consumer"),
    ],
)
def test_shards_that_are_not_exact_are_told_and_refused_where_exact_is_required(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client, arguments: dict[str, Any], reason: str
) -> None:
    vhost.exchange("orders")
    for shard in ("orders.0", "orders.1"):
        vhost.queue(shard, **arguments)
        vhost.bind("orders", shard)
    lenient, strict = start_sidecar(groups="orders"), start_sidecar(groups="orders", groups_require="exact")
    with client.session(lenient.amqp_port, vhost.name) as wire:
        wire.channel(1, confirm=False)
        consume(wire, 1)
        shown = told(lenient, vhost)
        assert shown["exact"] is False
        assert reason in shown["reasons"][0]
        assert shown["reasons"][0].startswith("shards 'orders.0', 'orders.1' are each ")
        assert f"not exact: {shown['reasons'][0]}" in lenient.log()
        wire.goodbye()
    with client.session(strict.amqp_port, vhost.name) as wire:
        wire.channel(1, confirm=False)
        close = wire.ask(1, Basic.Consume(0, "orders"), Channel.Close)
        assert close.reply_code == 406
        assert "groups_require is exact" in close.reply_text
        wire.tell(1, Channel.CloseOk())
        wire.goodbye()
    assert group_of(strict, vhost) is None


def test_a_consumer_that_is_not_of_the_group_is_told(
    start_sidecar: StartSidecar, broker: Broker, vhost: VirtualHost, client: Client
) -> None:
    sharded(vhost)
    sidecar = start_sidecar(groups="orders")
    with client.session(port_of(broker.amqp_url), vhost.name) as direct:
        direct.channel(1, confirm=False)
        direct.ask(1, Basic.Consume(0, "orders.1"), Basic.ConsumeOk)
        with client.session(sidecar.amqp_port, vhost.name) as wire:
            wire.channel(1, confirm=False)
            consume(wire, 1)
            reason = "shard 'orders.1' has 1 consumers that are not of the group"
            wait_until("the direct consumer", lambda: reason in (group_of(sidecar, vhost) or {}).get("reasons", ()))
            wire.goodbye()
        direct.goodbye()


def has_delays(broker: Broker) -> bool:
    """Whether quorum queues of this broker can delay what comes back, and have 32 priorities."""
    return tuple(map(int, broker.version.split(".")[:2])) >= (4, 3)


@pytest.mark.versions
@pytest.mark.long
@pytest.mark.parametrize("by", ["argument", "policy"])
def test_shards_that_delay_what_comes_back_are_told(
    start_sidecar: StartSidecar, broker: Broker, vhost: VirtualHost, client: Client, by: str
) -> None:
    """RabbitMQ 4.3 then breaks the order by itself: a member that returns 3 gets it behind all others."""
    vhost.exchange("orders")
    definition = {"delayed-retry-type": "all", "delayed-retry-min": 500}
    policy = {"pattern": ".*", "apply-to": "queues", "definition": definition}
    if not has_delays(broker):
        # 3.10.8 takes the arguments, too, but knows nothing of them.
        with pytest.raises(AssertionError, match="not recognised policy settings"):
            vhost.api.ask("PUT", "policies", vhost.name, "delays", body=policy)
        return
    arguments = {"x_delayed_retry_type": "all", "x_delayed_retry_min": 500} if by == "argument" else {}
    vhost.queue("orders.0", x_queue_type="quorum", x_single_active_consumer=True, **arguments)
    vhost.bind("orders", "orders.0")
    if by == "policy":
        vhost.api.ask("PUT", "policies", vhost.name, "delays", body=policy)
    sidecar = start_sidecar(groups="orders")
    with client.session(sidecar.amqp_port, vhost.name) as wire:
        wire.channel(1, confirm=False)
        consume(wire, 1, prefetch=1)
        reason = "shard 'orders.0': a message that comes back is delayed (x-delayed-retry-type)"

        def is_told() -> bool:
            reasons = (group_of(sidecar, vhost) or {}).get("reasons", ())
            return any(each.startswith(reason) for each in reasons)

        wait_until("the delay", is_told, within=60)
        publish(client, sidecar.amqp_port, vhost, numbered(range(1, 6), key="k"))
        order: list[int] = []
        while sorted(set(order)) != [1, 2, 3, 4, 5] or order.count(3) < 2:
            (got,) = deliveries(wire, 1, 1)
            order.append(int(got.body))
            if order == [1, 2, 3]:
                wire.tell(1, Basic.Nack(got.number, False, True))
            else:
                wire.tell(1, Basic.Ack(got.number))
        assert order == [1, 2, 3, 4, 5, 3]
        wire.goodbye()


@pytest.mark.versions
@pytest.mark.long
def test_shards_with_messages_of_several_priorities_are_told(
    start_sidecar: StartSidecar, broker: Broker, vhost: VirtualHost, client: Client
) -> None:
    sharded(vhost, ["orders.0"])
    sidecar = start_sidecar(groups="orders")
    with client.session(sidecar.amqp_port, vhost.name) as wire:
        wire.channel(1)
        for number, priority in enumerate([0, 9] * 5):
            wire.publish(1, "orders", "k", b"%d" % number, Basic.Properties(priority=priority))
        wire.confirm(1, 10)
        consume(wire, 1, prefetch=1)
        (first,) = deliveries(wire, 1, 1)
        if is_old(broker):
            assert int(first.body) == 0, "quorum queues know no priorities before 4.0"
            return
        assert int(first.body) == 1, "a message of a higher priority overtakes one of its key"
        reason = "shard 'orders.0': messages of several priorities wait"

        def is_told() -> bool:
            reasons = (group_of(sidecar, vhost) or {}).get("reasons", ())
            return any(each.startswith(reason) for each in reasons)

        wait_until("the priorities", is_told, within=60)
        wire.tell(1, Basic.Ack(first.number))
        for _ in range(9):
            (got,) = deliveries(wire, 1, 1)
            wire.tell(1, Basic.Ack(got.number))

        def is_empty() -> bool:
            return bool(group_of(sidecar, vhost)["shards"][0]["ready"] == 0)

        wait_until("a reading of an empty shard", is_empty, within=60)
        assert is_told(), "the next messages may be of several priorities as well"
        assert sidecar.metric("ringproxy_group_exact", exchange="orders") == 0
        assert "exact from now on" not in sidecar.log()
        wire.goodbye()


@pytest.mark.versions
def test_an_exact_group_takes_members_where_exact_is_required(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client
) -> None:
    sharded(vhost)
    sidecar = start_sidecar(groups="orders", groups_require="exact")
    with client.session(sidecar.amqp_port, vhost.name) as wire:
        wire.channel(1, confirm=False)
        consume(wire, 1)
        assert told(sidecar, vhost)["exact"] is True
        wire.goodbye()


@pytest.mark.versions
def test_members_of_different_prefetches_are_told_and_refused_where_exact_is_required(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client
) -> None:
    """Messages that two of them give back one after the other are out of order: see test_broker_returns.py."""
    sharded(vhost)
    vhost.permit(USER, configure=r"^orders\.group", write=".*", read=r"^orders\.group")
    strict = start_sidecar(groups="orders", groups_require="exact")
    sidecars = [start_sidecar(groups="orders") for _ in range(2)]
    reason = "members have different prefetches (5, 20)"
    with ExitStack() as stack:
        for sidecar, prefetch in zip(sidecars, (20, 5), strict=True):
            wire = stack.enter_context(client.session(sidecar.amqp_port, vhost.name))
            wire.channel(1, confirm=False)
            wire.ask(1, Basic.Qos(0, prefetch), Basic.QosOk)
            consume(wire, 1)
        for sidecar in sidecars:

            def mixed(sidecar: Sidecar = sidecar) -> bool:
                shown = (group_of(sidecar, vhost) or {}).get("reasons", ())
                return f"not exact: {reason}" in sidecar.log() and any(each.startswith(reason) for each in shown)

            wait_until("both prefetches", mixed)
            assert sidecar.metric("ringproxy_group_prefetches", exchange="orders") == 2
    with client.session(strict.amqp_port, vhost.name) as wire:
        for channel, prefetch in ((1, 20), (2, 5)):
            wire.channel(channel, confirm=False)
            wire.ask(channel, Basic.Qos(0, prefetch), Basic.QosOk)
        consume(wire, 1)
        wait_until("a member", lambda: group_of(strict, vhost))
        close = wire.ask(2, Basic.Consume(0, "orders"), Channel.Close)
        assert close.reply_code == 406
        assert reason in close.reply_text
        wire.tell(2, Channel.CloseOk())
        wire.goodbye()
