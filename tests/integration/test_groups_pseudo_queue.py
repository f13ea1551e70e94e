"""Clients that use the name of a sharded exchange as if it were a queue, as they did with the sharding plugin."""

from typing import Any

import pytest
from pamqp import base
from pamqp.commands import Basic, Channel, Queue

from tests.integration.broker_api import VirtualHost
from tests.integration.conftest import Login, StartSidecar
from tests.integration.groups import SHARDS, consume, deliveries, numbered, publish, sharded, waiting
from tests.integration.relay import relay
from tests.integration.sidecar import Sidecar
from tests.integration.wire_client import Client, Wire


@pytest.fixture
def grouping(start_sidecar: StartSidecar) -> Sidecar:
    """Start a sidecar whose clients may consume from the name orders, and names that begin with it."""
    return start_sidecar(groups="orders*")


def declared(wire: Wire, channel: int = 1, name: str = "orders", **more: Any) -> tuple[str, int, int]:
    """Declare the name, and return what the answer says: name, messages, consumers."""
    told = wire.ask(channel, Queue.Declare(0, name, **more), Queue.DeclareOk)
    return told.queue or "", told.message_count or 0, told.consumer_count or 0


@pytest.mark.versions
def test_a_program_that_declares_its_queue_first_consumes_from_the_group(
    grouping: Sidecar, vhost: VirtualHost, client: Client
) -> None:
    """It is pika's usual program, unchanged."""
    sharded(vhost)
    publish(client, grouping.amqp_port, vhost, numbered(range(30)))
    got = []
    with client.pika(grouping.amqp_port, vhost.name) as channel:
        channel.queue_declare("orders", durable=True)
        channel.basic_qos(prefetch_count=5)
        for method, _, body in channel.consume("orders"):
            channel.basic_ack(method.delivery_tag or 0)
            got.append(int(body))
            if len(got) == 30:
                break
        channel.cancel()
    assert sorted(got) == list(range(30))
    assert waiting(client, grouping.amqp_port, vhost) == dict.fromkeys(SHARDS, 0)
    assert "orders" not in vhost.queues()
    assert grouping.log().count("'orders' is a group: queue.declare makes no queue") == 1


@pytest.mark.versions
def test_a_declaration_tells_the_sums_of_the_shards(grouping: Sidecar, vhost: VirtualHost, client: Client) -> None:
    """Without consumers, with one consumer of one shard, and with a shard that is gone."""
    sharded(vhost, [*SHARDS, "orders.late"])
    publish(client, grouping.amqp_port, vhost, numbered(range(40)))
    with client.session(grouping.amqp_port, vhost.name) as wire:
        wire.channel(1)
        every: dict[str, dict[str, Any]] = {
            "durable": {"durable": True},
            "passive": {"passive": True},
            "its own": {"exclusive": True, "auto_delete": True, "arguments": {"x-max-length": 5}},
        }
        assert {declared(wire, **more) for more in every.values()} == {("orders", 40, 0)}
        wire.tell(1, Queue.Declare(0, "orders", nowait=True))
        wire.ask(1, Basic.Qos(0, 1), Basic.QosOk)
        consume(wire, 1, "direct", SHARDS[0])
        deliveries(wire, 1, 1)
        assert declared(wire) == ("orders", 39, 1)
        late = wire.ask(1, Queue.Delete(0, "orders.late"), Queue.DeleteOk).message_count or 0
        assert late
        assert declared(wire) == ("orders", 39 - late, 1)
        wire.goodbye()
    assert "orders" not in vhost.queues()


@pytest.mark.versions
def test_a_shard_that_is_gone_does_not_count(grouping: Sidecar, vhost: VirtualHost, client: Client) -> None:
    """It is deleted behind the sidecar's back, which asks the broker for it all the same."""
    sharded(vhost)
    publish(client, grouping.amqp_port, vhost, numbered(range(30)))
    left = waiting(client, grouping.amqp_port, vhost)
    with client.session(grouping.amqp_port, vhost.name) as wire:
        wire.channel(1)
        assert declared(wire) == ("orders", 30, 0)
        vhost.delete_queue(SHARDS[1])
        assert declared(wire) == ("orders", 30 - left[SHARDS[1]], 0)
        assert declared(wire) == ("orders", 30 - left[SHARDS[1]], 0)
        wire.goodbye()


@pytest.mark.versions
def test_queues_and_other_exchanges_are_declared_as_ever(grouping: Sidecar, vhost: VirtualHost, client: Client) -> None:
    vhost.exchange("orders-topic", "topic")
    sharded(vhost, exchange="orders-both")
    vhost.queue("orders-both")
    with client.session(grouping.amqp_port, vhost.name) as wire:
        wire.channel(1)
        assert declared(wire, name="orders-none", exclusive=True) == ("orders-none", 0, 0)
        assert declared(wire, name="orders-topic", exclusive=True) == ("orders-topic", 0, 0)
        assert declared(wire, name="orders-both", passive=True) == ("orders-both", 0, 0)
        wire.ask(1, Queue.Bind(0, "orders-both", "orders-topic", "#"), Queue.BindOk)
        assert wire.ask(1, Queue.Purge(0, "orders-none"), Queue.PurgeOk).message_count == 0
        assert wire.get(1, "orders-topic") is None
        assert wire.ask(1, Queue.Delete(0, "orders-topic"), Queue.DeleteOk).message_count == 0
        # Arguments count where there is a queue, and an absent one is the broker's 404.
        assert wire.ask(1, Queue.Declare(0, "orders-both", durable=False), Channel.Close).reply_code == 406
        wire.tell(1, Channel.CloseOk())
        wire.channel(1, confirm=False)
        assert wire.ask(1, Queue.Declare(0, "orders-gone", passive=True), Channel.Close).reply_code == 404
    log = grouping.log()
    assert log.count("'orders-both' is a queue and the name of a group: the client uses the queue") == 1
    assert "'orders-none' is a queue" not in log


@pytest.mark.versions
@pytest.mark.parametrize("read", [r"^orders(\.[0-9]+)?$", "^orders$"])
def test_a_user_without_configure_declares_and_consumes(
    grouping: Sidecar, vhost: VirtualHost, client: Client, read: str
) -> None:
    """RabbitMQ 4.3 answers a passive declaration only to a user with a right on the name (16085 and 16272).

    A shard on which the user has none does not count, and is not consumed.
    """
    sharded(vhost)
    publish(client, grouping.amqp_port, vhost, numbered(range(30)))
    vhost.api.ask("PUT", "users", "reader", body={"password": "reader", "tags": ""})
    try:
        vhost.permit("reader", "^$", "^$", read)
        with Client("reader", "reader").session(grouping.amqp_port, vhost.name) as wire:
            wire.channel(1, confirm=False)
            tells_all = "[0-9]" in read or answers_without_a_right(vhost)
            assert declared(wire, durable=True) == ("orders", 30 if tells_all else 0, 0)
            assert declared(wire, passive=True) == ("orders", 30 if tells_all else 0, 0)
            assert wire.ask(1, Basic.Get(0, "orders"), Channel.Close).reply_code == 405
            wire.tell(1, Channel.CloseOk())
            wire.channel(1, confirm=False)
            if "[0-9]" in read:
                consume(wire, 1)
                assert sorted(int(each.body) for each in deliveries(wire, 1, 30)) == list(range(30))
                wire.tell(1, Basic.Ack(0, True))
                wire.goodbye()
            else:
                wire.ask(1, Basic.Consume(0, "orders"), Basic.ConsumeOk)
                close = wire.expect(1, Channel.Close)
                assert close.reply_code == 403
                assert (close.reply_text or "").endswith(r"^orders(\.[0-9]+)?$")
    finally:
        vhost.api.ask("DELETE", "users", "reader")


def answers_without_a_right(vhost: VirtualHost) -> bool:
    """Return whether this RabbitMQ is older than the changes, so that passive declarations need no right."""
    version = vhost.api.ask("GET", "overview")["rabbitmq_version"]
    return [int(part) for part in version.split(".")[:2]] < [4, 2]


REFUSED: dict[str, tuple[base.Frame, int, str]] = {
    "bind": (Queue.Bind(0, "orders", "amq.direct", "x"), 406, "cannot be bound"),
    "unbind": (Queue.Unbind(0, "orders", "amq.direct", "x"), 406, "cannot be unbound"),
    "purge": (Queue.Purge(0, "orders"), 406, "cannot be purged"),
    "delete": (Queue.Delete(0, "orders"), 406, "cannot be deleted"),
    "get": (Basic.Get(0, "orders"), 405, "takes no basic.get"),
    "bind the last one declared": (Queue.Bind(0, "", "amq.direct", "x"), 406, "cannot be bound"),
}


@pytest.mark.versions
@pytest.mark.parametrize("what", REFUSED)
def test_what_a_group_does_not_take_closes_the_channel(
    grouping: Sidecar, vhost: VirtualHost, client: Client, what: str
) -> None:
    """As the plugin's pseudo-queue does on RabbitMQ 4.x, and nothing is touched; other channels go on."""
    sharded(vhost)
    publish(client, grouping.amqp_port, vhost, numbered(range(6)))
    request, code, text = REFUSED[what]
    with client.session(grouping.amqp_port, vhost.name) as wire:
        wire.channel(2)
        wire.channel(1, confirm=False)
        assert declared(wire) == ("orders", 6, 0)
        close = wire.ask(1, request, Channel.Close)
        assert close.reply_code == code
        assert f"- 'orders' is a sharded exchange and no queue: it {text}" in (close.reply_text or "")
        wire.tell(1, Channel.CloseOk())
        wire.publish(2, "orders", "k", b"7")
        wire.confirm(2)
        wire.goodbye()
    assert sum(waiting(client, grouping.amqp_port, vhost).values()) == 7


def test_an_empty_name_is_the_group_that_was_declared_last(
    grouping: Sidecar, vhost: VirtualHost, client: Client
) -> None:
    sharded(vhost)
    publish(client, grouping.amqp_port, vhost, numbered(range(6)))
    with client.session(grouping.amqp_port, vhost.name) as wire:
        wire.channel(1, confirm=False)
        assert declared(wire) == ("orders", 6, 0)
        consume(wire, 1, exchange="")
        assert len(deliveries(wire, 1, 6)) == 6
        wire.tell(1, Basic.Ack(0, True))
        wire.goodbye()


def test_while_the_management_api_is_away_no_queue_is_made_in_the_groups_place(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client
) -> None:
    """The channel is closed instead, and names of which the broker has no exchange are declared as ever."""
    sharded(vhost)
    grouping = start_sidecar(groups="orders*", management_url="http://127.0.0.1:9", lookup_timeout="1")
    with client.session(grouping.amqp_port, vhost.name) as wire:
        wire.channel(1, confirm=False)
        assert declared(wire, name="orders-none", exclusive=True) == ("orders-none", 0, 0)
        close = wire.ask(1, Queue.Declare(0, "orders", durable=True), Channel.Close)
        assert close.reply_code == 541
        assert "it is not known whether 'orders' is a group" in (close.reply_text or "")
        wire.tell(1, Channel.CloseOk())
        wire.goodbye()
    assert "orders" not in vhost.queues()


@pytest.mark.parametrize("what", ["broker", "management API"])
def test_a_declaration_is_refused_in_time_where_the_broker_or_its_api_hangs(
    start_sidecar: StartSidecar, login: Login, vhost: VirtualHost, client: Client, what: str
) -> None:
    """No queue is made, and another channel of the session goes on."""
    sharded(vhost)
    with relay(login.broker_url if what == "broker" else login.management_url) as (link, url):
        urls = {"broker_url" if what == "broker" else "management_url": url}
        grouping = start_sidecar(groups="orders*", lookup_timeout="1", confirm_timeout="2", **urls)
        with client.session(grouping.amqp_port, vhost.name) as wire:
            wire.channel(2)
            wire.channel(1, confirm=False)
            link.freeze()
            close = wire.ask(1, Queue.Declare(0, "orders", durable=True), Channel.Close)
            assert close.reply_code == 541
            assert "it is not known whether 'orders' is a group" in (close.reply_text or "")
            wire.tell(1, Channel.CloseOk())
            link.thaw()
            wire.publish(2, "", SHARDS[0], b"1")
            wire.confirm(2)
            wire.goodbye()
    assert "orders" not in vhost.queues()


def test_without_the_setting_the_name_is_a_queues(sidecar: Sidecar, vhost: VirtualHost, client: Client) -> None:
    sharded(vhost)
    with client.session(sidecar.amqp_port, vhost.name) as wire:
        wire.channel(1, confirm=False)
        assert declared(wire) == ("orders", 0, 0)
        wire.goodbye()
    assert "orders" in vhost.queues()
