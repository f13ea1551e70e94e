"""Clients that consume from the name of a sharded exchange: what they get, and what their acks do."""

import pytest
from pamqp.commands import Basic, Channel, Connection

from proxy.commands.group import MEMBERS_VIEW, show
from testbed.broker import Broker
from tests.integration.broker_api import VirtualHost, wait_until
from tests.integration.conftest import StartSidecar
from tests.integration.groups import (
    SHARDS,
    consume,
    deliveries,
    numbered,
    numbers,
    publish,
    shard_queue,
    sharded,
    waiting,
)
from tests.integration.sidecar import Sidecar
from tests.integration.wire_client import Client, port_of


@pytest.fixture
def grouping(start_sidecar: StartSidecar) -> Sidecar:
    """Start a sidecar whose clients may consume from the name orders, and names that begin with it."""
    return start_sidecar(groups="orders*")


@pytest.mark.versions
@pytest.mark.parametrize("way", ["queues", "lanes", "native"])
def test_a_member_gets_the_messages_of_all_shards_as_they_were_published(
    grouping: Sidecar, broker: Broker, vhost: VirtualHost, client: Client, way: str
) -> None:
    sharded(vhost, lanes=way == "lanes")
    port = port_of(broker.amqp_url) if way == "native" else grouping.amqp_port
    publish(client, port, vhost, numbered(range(30)))
    with client.session(grouping.amqp_port, vhost.name) as wire:
        wire.channel(2, confirm=False)
        consume(wire, 2)
        got = deliveries(wire, 2, 30)
        assert [each.number for each in got] == list(range(1, 31))
        assert {(each.tag, each.exchange, each.redelivered) for each in got} == {("c", "orders", False)}
        assert {each.key: each.body for each in got} == {f"key {n}": b"%d" % n for n in range(30)}
        wire.tell(2, Basic.Ack(30, True))
        wire.goodbye()
    assert waiting(client, grouping.amqp_port, vhost) == dict.fromkeys(SHARDS, 0)


def test_a_lane_that_was_retired_before_the_member_joined_is_shown_as_the_rings_exchange(
    start_sidecar: StartSidecar, broker: Broker, vhost: VirtualHost, client: Client
) -> None:
    """The messages have come by lanes, which are gone; their queues are bound without lanes since."""
    sharded(vhost, lanes=True)
    publish(client, port_of(broker.amqp_url), vhost, numbered(range(30)))
    for shard in SHARDS:
        vhost.delete_exchange(f"orders.lane.{shard.rpartition('.')[2]}")
        vhost.bind("orders", shard)
    grouping = start_sidecar(groups="orders")
    with client.session(grouping.amqp_port, vhost.name) as wire:
        wire.channel(1, confirm=False)
        consume(wire, 1)
        assert {each.exchange for each in deliveries(wire, 1, 30)} == {"orders"}
        wire.goodbye()


def test_bodies_of_any_size_go_through_whole(grouping: Sidecar, vhost: VirtualHost, client: Client) -> None:
    sharded(vhost)
    sizes = [0, 1, 4000, 131072 - 8, 131072 - 7, 700_000]
    with client.session(grouping.amqp_port, vhost.name) as wire:
        wire.channel(1)
        for n, size in enumerate(sizes * 3):
            wire.publish(1, "orders", f"key {n}", bytes((n,)) * size)
        wire.confirm(1, len(sizes) * 3)
        wire.channel(2, confirm=False)
        consume(wire, 2)
        got = {each.key: each.body for each in deliveries(wire, 2, len(sizes) * 3)}
        assert got == {f"key {n}": bytes((n,)) * size for n, size in enumerate(sizes * 3)}


def test_acks_go_to_the_shard_that_each_delivery_came_from(
    grouping: Sidecar, vhost: VirtualHost, client: Client
) -> None:
    """Single ones out of order, then some at once, a nack and a reject; what has none of them comes back."""
    sharded(vhost)
    with client.session(grouping.amqp_port, vhost.name) as wire:
        publish(client, grouping.amqp_port, vhost, numbered(range(40)))
        wire.channel(2, confirm=False)
        consume(wire, 2)
        body = {each.number: int(each.body) for each in deliveries(wire, 2, 40)}
        for number in (40, 3, 17):
            wire.tell(2, Basic.Ack(number))
        wire.tell(2, Basic.Ack(10, True))
        wire.tell(2, Basic.Nack(20, True, False))
        wire.tell(2, Basic.Reject(25, False))
        wire.ask(2, Channel.Close(200, "", 0, 0), Channel.CloseOk)
        left = sorted(body[number] for number in range(21, 40) if number != 25)
        wire.channel(2, confirm=False)
        consume(wire, 2)
        again = deliveries(wire, 2, len(left))
        assert sorted(numbers(again)) == left
        assert all(each.redelivered for each in again)
        assert [each.number for each in again] == list(range(1, len(left) + 1))
        # The messages that are nacked with requeue come again to the consumer that is active.
        wire.tell(2, Basic.Nack(len(left), True, True))
        assert sorted(numbers(deliveries(wire, 2, len(left)))) == left
        wire.tell(2, Basic.Ack(0, True))
        wire.goodbye()
    assert waiting(client, grouping.amqp_port, vhost) == dict.fromkeys(SHARDS, 0)


@pytest.mark.parametrize(
    "answer",
    [Basic.Ack(4), Basic.Ack(4, True), Basic.Nack(9), Basic.Reject(77)],
    ids=["ack", "ack of several", "nack", "reject"],
)
def test_an_ack_of_an_unknown_tag_is_406_as_the_brokers(
    grouping: Sidecar, vhost: VirtualHost, client: Client, answer: Basic.Ack
) -> None:
    sharded(vhost)
    with client.session(grouping.amqp_port, vhost.name) as wire:
        publish(client, grouping.amqp_port, vhost, numbered(range(3), key="one"))
        wire.channel(2, confirm=False)
        consume(wire, 2)
        assert numbers(deliveries(wire, 2, 3)) == [0, 1, 2]
        close = wire.ask(2, answer, Channel.Close)
        assert (close.reply_code, close.reply_text) == (
            406,
            f"PRECONDITION_FAILED - unknown delivery tag {answer.delivery_tag}",
        )
        wire.tell(2, Channel.CloseOk())
        wire.channel(2, confirm=False)
        consume(wire, 2)
        assert [(each.number, each.redelivered) for each in deliveries(wire, 2, 3)] == [(n, True) for n in (1, 2, 3)]


def test_prefetch_counts_for_each_shard_and_is_200_without_one(
    grouping: Sidecar, vhost: VirtualHost, client: Client
) -> None:
    sharded(vhost, ["orders.0"])
    sharded(vhost, ["orders2.0", "orders2.1"], exchange="orders2")
    with client.session(grouping.amqp_port, vhost.name) as wire:
        publish(client, grouping.amqp_port, vhost, numbered(range(205)))
        wire.channel(2, confirm=False)
        consume(wire, 2)
        assert numbers(deliveries(wire, 2, 200)) == list(range(200))
        wire.tell(2, Basic.Ack(3))
        assert numbers(deliveries(wire, 2, 1)) == [200]
        wire.ask(2, Channel.Close(200, "", 0, 0), Channel.CloseOk)
        publish(client, grouping.amqp_port, vhost, numbered(range(60), "orders2"))
        wire.channel(3, confirm=False)
        consume(wire, 3, exchange="orders2", prefetch=4)
        deliveries(wire, 3, 8)
        wire.tell(3, Basic.Ack(8, True))
        deliveries(wire, 3, 8)
        # Nothing more comes: the answer is the next frame.
        wire.ask(3, Basic.Qos(0, 1), Basic.QosOk)


def test_recover_delivers_again_what_is_not_acked(grouping: Sidecar, vhost: VirtualHost, client: Client) -> None:
    sharded(vhost)
    with client.session(grouping.amqp_port, vhost.name) as wire:
        publish(client, grouping.amqp_port, vhost, numbered(range(12)))
        wire.channel(2, confirm=False)
        consume(wire, 2)
        got = deliveries(wire, 2, 12)
        wire.tell(2, Basic.Ack(5, True))
        wire.ask(2, Basic.Recover(True), Basic.RecoverOk)
        again = deliveries(wire, 2, 7)
        assert sorted(numbers(again)) == sorted(numbers(got[5:]))
        assert [each.number for each in again] == list(range(13, 20))
        close = wire.ask(2, Basic.Ack(12), Channel.Close)
        assert close.reply_text == "PRECONDITION_FAILED - unknown delivery tag 12"


def test_several_groups_and_ordinary_queues_share_one_channel(
    grouping: Sidecar, vhost: VirtualHost, client: Client
) -> None:
    sharded(vhost)
    sharded(vhost, ["orders2.0"], exchange="orders2")
    vhost.queue("plain")
    with client.session(grouping.amqp_port, vhost.name) as wire:
        port = grouping.amqp_port
        publish(client, port, vhost, [("", "plain", b"early")] * 3)
        wire.channel(2, confirm=False)
        wire.ask(2, Basic.Consume(0, "plain", "p"), Basic.ConsumeOk)
        assert [each.number for each in deliveries(wire, 2, 3)] == [1, 2, 3]
        wire.tell(2, Basic.Ack(2))
        consume(wire, 2, "one")
        consume(wire, 2, "two", "orders2")
        consume(wire, 2, "q", "plain", no_ack=True)
        publish(client, port, vhost, numbered(range(10)) + numbered(range(10), "orders2"))
        publish(client, port, vhost, [("", "plain", b"%d" % n) for n in range(10)])
        got = deliveries(wire, 2, 30)
        assert [each.number for each in got] == list(range(4, 34))
        of = {tag: [each for each in got if each.tag == tag] for tag in ("one", "two", "p", "q")}
        assert sorted(numbers(of["one"])) == sorted(numbers(of["two"])) == list(range(10))
        assert sorted(numbers(of["p"] + of["q"])) == list(range(10))
        assert {each.exchange for each in of["one"]} == {"orders"}
        assert {each.exchange for each in of["two"]} == {"orders2"}
        assert {(each.exchange, each.key) for each in of["p"] + of["q"]} == {("", "plain")}
        # 1 and 3 are of the time before the groups; 33, or one before it, is the last that needs an ack.
        last = max(each.number for each in got if each.tag != "q")
        wire.tell(2, Basic.Ack(last, True))
        # An ack is not answered: what closes the channel afterwards would be a mistake in it.
        wire.ask(2, Basic.Qos(0, 1), Basic.QosOk)
        wire.goodbye()
    left = waiting(client, port, vhost, [*SHARDS, "orders2.0", "plain"])
    assert set(left.values()) == {0}


def test_a_group_without_shards_answers_at_once_and_a_queue_of_that_name_wins(
    grouping: Sidecar, vhost: VirtualHost, client: Client
) -> None:
    vhost.exchange("orders")
    vhost.exchange("orders2")
    vhost.queue("orders2")
    with client.session(grouping.amqp_port, vhost.name) as wire:
        wire.channel(1)
        consume(wire, 1)
        assert wire.ask(1, Basic.Cancel("c"), Basic.CancelOk).consumer_tag == "c"
        wire.publish(1, "", "orders2", b"of the queue")
        wire.confirm(1)
        consume(wire, 1, exchange="orders2")
        (got,) = deliveries(wire, 1, 1)
        assert (got.exchange, got.key, got.number) == ("", "orders2", 1)
        wire.goodbye()
    assert "'orders2' is a queue and the name of a group" in grouping.log()


def test_what_is_no_hash_exchange_is_refused(grouping: Sidecar, vhost: VirtualHost, client: Client) -> None:
    vhost.exchange("orders-topic", "topic")
    with client.session(grouping.amqp_port, vhost.name) as wire:
        for name, code in {"orders-none": 404, "orders-topic": 406}.items():
            wire.channel(1, confirm=False)
            close = wire.ask(1, Basic.Consume(0, name), Channel.Close)
            assert close.reply_code == code
            assert name in close.reply_text
            wire.tell(1, Channel.CloseOk())


@pytest.mark.parametrize(
    ("request_", "code", "text"),
    [
        (Basic.Consume(0, "orders", exclusive=True), 403, "exclusively"),
        (Basic.Consume(0, "orders", arguments={"x-priority": 3}), 406, "x-priority"),
    ],
    ids=["exclusive", "priority"],
)
def test_what_no_member_may_ask_for_closes_its_channel(
    grouping: Sidecar, vhost: VirtualHost, client: Client, request_: Basic.Consume, code: int, text: str
) -> None:
    sharded(vhost)
    with client.session(grouping.amqp_port, vhost.name) as wire:
        wire.channel(1, confirm=False)
        close = wire.ask(1, request_, Channel.Close)
        assert close.reply_code == code
        assert text in close.reply_text
        wire.tell(1, Channel.CloseOk())
        wire.channel(1, confirm=False)
        consume(wire, 1)


@pytest.mark.parametrize("first", ["orders", "plain"])
@pytest.mark.parametrize("second", ["orders", "plain"])
def test_a_tag_used_twice_on_a_channel_ends_the_connection_as_the_brokers(
    grouping: Sidecar, vhost: VirtualHost, client: Client, first: str, second: str
) -> None:
    sharded(vhost)
    vhost.queue("plain")
    with client.session(grouping.amqp_port, vhost.name) as wire:
        wire.channel(1, confirm=False)
        wire.channel(2, confirm=False)
        consume(wire, 1, exchange=first)
        consume(wire, 2, exchange=second)
        wire.tell(1, Basic.Consume(0, second, "c"))
        close = wire.expect(0, Connection.Close)
        assert (close.reply_code, close.reply_text) == (530, "NOT_ALLOWED - attempt to reuse consumer tag 'c'")


def test_a_right_that_is_taken_away_later_is_told_and_given_back_it_is_used(
    grouping: Sidecar, vhost: VirtualHost, client: Client
) -> None:
    """The client's present consumers go on; the consumer on a shard that is added is refused."""
    sharded(vhost)
    vhost.api.ask("PUT", "users", "reader", body={"password": "reader", "tags": ""})
    try:
        vhost.permit("reader", read=".*")
        with Client("reader", "reader").session(grouping.amqp_port, vhost.name) as wire:
            wire.channel(1, confirm=False)
            consume(wire, 1)
            wait_until("the links", lambda: grouping.metric("ringproxy_group_shards_held", exchange="orders") == 3)
            vhost.permit("reader", read="^nothing$")
            shard_queue(vhost, "orders.3")
            vhost.bind("orders", "orders.3")
            wait_until("a refusal", lambda: refused(grouping) == 1)
            lines = show(grouping.admin_url, vhost.name, "orders", MEMBERS_VIEW, as_json=False).splitlines()
            (line,) = [line for line in lines if line.startswith("refused")]
            assert " has no consumer on orders.3 for " in line
            assert ": 403 ACCESS_REFUSED - " in line
            vhost.permit("reader", read=".*")
            wait_until("the consumer", lambda: refused(grouping) == 0)
            publish(client, grouping.amqp_port, vhost, [("", "orders.3", b"0")])
            assert numbers(deliveries(wire, 1, 1)) == [0]
            wire.goodbye()
    finally:
        vhost.api.ask("DELETE", "users", "reader")
    assert grouping.log().count(" has no consumer on shard 'orders.3': 403 ACCESS_REFUSED - ") == 1


def refused(sidecar: Sidecar) -> float:
    """Return how many consumers of the group the broker refuses."""
    return sidecar.metric("ringproxy_group_links_refused", exchange="orders")


def test_without_acks_a_member_gets_everything_once_and_its_cancel_is_behind_the_last(
    grouping: Sidecar, vhost: VirtualHost, client: Client
) -> None:
    sharded(vhost)
    with client.session(grouping.amqp_port, vhost.name) as wire:
        publish(client, grouping.amqp_port, vhost, numbered(range(300)))
        wire.channel(2, confirm=False)
        consume(wire, 2, no_ack=True, prefetch=3)
        got = numbers(deliveries(wire, 2, 100))
        wire.tell(2, Basic.Cancel("c"))
        while not isinstance(value := wire.read()[1], Basic.CancelOk):
            if isinstance(value, Basic.Deliver):
                got.append(int((value.routing_key or "").split()[1]))
        assert got == sorted(set(got), key=got.index)
        assert sum(waiting(client, grouping.amqp_port, vhost).values()) == 300 - len(got)
        consume(wire, 2, "d", no_ack=True)
        got += numbers(deliveries(wire, 2, 300 - len(got)))
        assert sorted(got) == list(range(300))


def test_a_shard_that_is_deleted_is_not_the_clients_business(
    grouping: Sidecar, vhost: VirtualHost, client: Client
) -> None:
    sharded(vhost)
    with client.session(grouping.amqp_port, vhost.name) as wire:
        publish(client, grouping.amqp_port, vhost, numbered(range(30)))
        wire.channel(2, confirm=False)
        consume(wire, 2)
        deliveries(wire, 2, 30)
        vhost.delete_queue(SHARDS[0])
        # Acks of what is gone with its queue are nobody's mistake.
        wire.tell(2, Basic.Ack(30, True))
        publish(client, grouping.amqp_port, vhost, numbered(range(30, 60)))
        assert sorted(numbers(deliveries(wire, 2, 30))) == list(range(30, 60))
