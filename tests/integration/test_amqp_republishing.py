"""A message whose queue is gone goes to the queue that the ring chooses now, and its publisher notices nothing."""

from collections.abc import Iterator
from typing import Any

import pytest
from pamqp.commands import Basic, Channel, Connection, Queue, Tx

from tests.integration.broker_api import BrokerApi, VirtualHost, wait_until
from tests.integration.rings import GONE, KEPT, KEYS, LEFT, LOST, QUEUES, owner
from tests.integration.sidecar import Sidecar
from tests.integration.wire_client import Client, Wire, publish_frames

pytestmark = pytest.mark.versions


@pytest.fixture
def peer(slow: Sidecar, vhost: VirtualHost, client: Client) -> Iterator[Wire]:
    """A session that has published to the ring of an exchange, one of whose queues has been deleted since."""
    vhost.ring("orders", QUEUES)
    with client.session(slow.amqp_port, vhost.name) as made:
        made.channel(1)
        made.publish(1, "orders", KEPT[0], b"first")
        made.confirm(1)
        vhost.delete_queue(GONE)
        yield made


def landed(vhost: VirtualHost) -> dict[bytes, str]:
    """By body: the queue that has it. Each is there once."""
    found = [(message.body, queue) for queue, messages in vhost.drain_all().items() for message in messages]
    assert len(dict(found)) == len(found), "a message is there twice"
    return dict(found)


def rerouted(sidecar: Sidecar) -> float:
    return sidecar.metric("ringproxy_rerouted_total", ingress="amqp", exchange="orders")


PROPERTIES = Basic.Properties(
    content_type="a/b",
    headers={"mine": "1", "CC": ["elsewhere"], "x-ring-id": "mine, too", "n": -5},
    correlation_id="c",
    message_id="m",
    delivery_mode=2,
)


@pytest.mark.parametrize("mandatory", [False, True])
@pytest.mark.parametrize("properties", [None, PROPERTIES], ids=["none", "all"])
@pytest.mark.parametrize("size", [0, pytest.param(10, marks=pytest.mark.long), 300_000])
def test_a_message_goes_where_the_ring_says_now(
    peer: Wire, slow: Sidecar, vhost: VirtualHost, size: int, properties: Basic.Properties | None, mandatory: bool
) -> None:
    body = bytes(n % 251 for n in range(size))
    peer.publish(1, "orders", LOST[0], body, properties, mandatory=mandatory)

    assert peer.expect(1, Basic.Ack).delivery_tag == 2

    queue = owner(LEFT, LOST[0])
    (message,) = [m for m in vhost.drain(queue) if m.body == body]
    kept = {"mine": "1", "n": -5} if properties else {}
    stamps = {"x-ring-exchange": "orders", "x-ring-routing-key": LOST[0]}
    assert {name: value for name, value in message.headers.items() if name != "x-ring-id"} == kept | stamps
    assert message.properties.get("message_id") == ("m" if properties else None)
    assert rerouted(slow) == 1
    assert slow.metric("ringproxy_publishes_total", ingress="amqp", exchange="orders", outcome="confirmed") == 2
    # And from then on it is known.
    peer.publish(1, "orders", LOST[1], b"next")
    assert peer.expect(1, Basic.Ack).delivery_tag == 3
    assert rerouted(slow) == 1


def test_many_in_flight_on_several_channels(peer: Wire, slow: Sidecar, vhost: VirtualHost) -> None:
    """With and without confirms, mandatory or not, bodies of several frames: all arrive, once, by the new ring."""
    peer.channel(2)
    peer.channel(3, confirm=False)
    expected: dict[bytes, str] = {b"first": owner(QUEUES, KEPT[0])}
    sent = {1: 0, 2: 0, 3: 0}
    for n, key in enumerate(KEYS * 3):
        channel = n % 3 + 1
        body = b"%d " % n + bytes(200_000 if n % 20 == 0 else n % 7)
        peer.publish(channel, "orders", key, body, mandatory=n % 2 == 0)
        sent[channel] += 1
        expected[body] = owner(LEFT, key)

    told: dict[tuple[int, int], str] = {}
    low = {1: 1, 2: 0}
    while len(told) < sent[1] + sent[2]:
        channel, frame = peer.read()
        assert isinstance(frame, Basic.Ack | Basic.Nack), frame
        tag = frame.delivery_tag or 0
        tags = range(low[channel] + 1, tag + 1) if frame.multiple else [tag]
        told |= {(channel, n): frame.name for n in tags}

    assert set(told.values()) == {"Basic.Ack"}
    assert rerouted(slow) > 0
    peer.ask(3, Channel.Close(200, "", 0, 0), Channel.CloseOk)
    assert landed(vhost) == expected


def test_what_came_back_is_there_before_a_channel_or_connection_is_closed(
    peer: Wire, slow: Sidecar, vhost: VirtualHost
) -> None:
    """Publishers without confirms have nothing but that close-ok, and it holds for them, too."""
    peer.channel(2, confirm=False)
    peer.publish(2, "orders", LOST[0], b"0")
    peer.ask(2, Channel.Close(200, "", 0, 0), Channel.CloseOk)
    assert owner(LEFT, LOST[0]) == landed(vhost)[b"0"]
    vhost.delete_queue("q3")
    mine = [key for key in KEYS if owner(LEFT, key) == "q3"]
    peer.channel(2, confirm=False)
    peer.publish(2, "orders", mine[0], b"1")
    peer.publish(1, "orders", mine[1], b"2")
    peer.tell(0, Connection.Close(200, "", 0, 0))
    while not isinstance(peer.read()[1], Connection.CloseOk):
        pass
    assert landed(vhost) == {b"1": "q1", b"2": "q1"}
    assert slow.metric("ringproxy_rerouted_total", ingress="amqp", exchange="orders") == 3


def test_content_under_way_is_not_disturbed(peer: Wire, slow: Sidecar, vhost: VirtualHost) -> None:
    """The client is in the midst of a frame, and of a content, while a message goes out again."""
    peer.channel(2)
    first, second = (publish_frames(2, "orders", key, b"b" * 150_000) for key in (KEPT[1], LOST[1]))
    other = b"".join(first)
    peer.publish(1, "orders", LOST[0], b"lost")
    peer.send(other[:-1000])
    wait_until("the ring to be read again", lambda: rerouted(slow) == 1)
    peer.send(other[-1000:], *second)
    acked: set[tuple[int, int]] = set()
    while not acked >= {(1, 2), (2, 1), (2, 2)}:
        channel, ack = peer.read()
        assert isinstance(ack, Basic.Ack)
        last = ack.delivery_tag or 0
        # Both of channel 2 may be acked at once.
        acked |= {(channel, tag) for tag in range(1 if ack.multiple else last, last + 1)}


def test_in_a_transaction(peer: Wire, vhost: VirtualHost) -> None:
    peer.channel(2, confirm=False)
    peer.ask(2, Tx.Select(), Tx.SelectOk)
    for n, key in enumerate([LOST[0], KEPT[0], LOST[1]]):
        peer.publish(2, "orders", key, b"%d" % n, mandatory=n == 2)
    peer.ask(2, Tx.Commit(), Tx.CommitOk)
    found = landed(vhost)
    assert {body: found.get(body) for body in (b"0", b"1", b"2")} == {
        b"0": owner(LEFT, LOST[0]),
        b"1": owner(LEFT, KEPT[0]),
        b"2": owner(LEFT, LOST[1]),
    }
    peer.publish(2, "orders", KEPT[1], b"rolled back")
    peer.ask(2, Tx.Rollback(), Tx.RollbackOk)
    assert landed(vhost) == {}


def test_of_several_queues_gone_all_goes_to_the_one_that_is_left(peer: Wire, vhost: VirtualHost) -> None:
    vhost.delete_queue("q1")
    keys = [key for key in KEYS if owner(LEFT, key) == "q1"]
    for n, key in enumerate(keys):
        peer.publish(1, "orders", key, b"%d" % n)
    peer.confirm(1, 1 + len(keys), 1)
    assert set(landed(vhost).values()) == {"q3"}


@pytest.mark.parametrize("mandatory", [False, True])
def test_the_last_queue_is_gone(slow: Sidecar, vhost: VirtualHost, client: Client, mandatory: bool) -> None:
    """Then the exchange is asked, whose alternate exchange applies."""
    vhost.exchange("lost", "fanout")
    vhost.queue("found")
    vhost.bind("lost", "found", "")
    vhost.ring("orders", ["only"], alternate_exchange="lost")
    with client.session(slow.amqp_port, vhost.name) as peer:
        peer.channel()
        peer.publish(1, "orders", "k", b"before")
        peer.confirm(1)
        vhost.delete_queue("only")
        peer.publish(1, "orders", "k", b"again", PROPERTIES, mandatory=mandatory)
        assert peer.expect(1, Basic.Ack).delivery_tag == 2
        peer.publish(1, "orders", "k", b"after", mandatory=mandatory)
        assert peer.expect(1, Basic.Ack).delivery_tag == 3
    again, after = vhost.drain("found")
    assert (again.body, after.body) == (b"again", b"after")
    # As its client sent it, but for the id by which it would be known if it came back.
    assert again.headers == {"mine": "1", "CC": ["elsewhere"], "n": -5, "x-ring-id": again.headers["x-ring-id"]}
    assert isinstance(again.headers["x-ring-id"], int)


@pytest.mark.parametrize("size", [0, 300_000])
@pytest.mark.parametrize("what", ["no queue is left", "the exchange is deleted"])
def test_nowhere_is_left(slow: Sidecar, vhost: VirtualHost, client: Client, what: str, size: int) -> None:
    vhost.ring("orders", ["only"])
    body = bytes(n % 251 for n in range(size))
    with client.session(slow.amqp_port, vhost.name) as peer:
        peer.channel()
        peer.publish(1, "orders", "k", b"before")
        peer.confirm(1)
        if what == "the exchange is deleted":
            vhost.delete_exchange("orders")
        vhost.delete_queue("only")
        peer.publish(1, "orders", "k", body, PROPERTIES, mandatory=True)
        content = peer.content(1, Basic.Return)
        assert isinstance(content.method, Basic.Return)
        assert (content.method.exchange, content.method.routing_key, content.body) == ("orders", "k", body)
        assert dict(content.properties) == dict(PROPERTIES)
        assert peer.expect(1, Basic.Ack).delivery_tag == 2


def test_a_message_that_nowhere_takes_is_nacked(peer: Wire, vhost: VirtualHost) -> None:
    for name in LEFT:
        vhost.delete_queue(name)
    peer.publish(1, "orders", LOST[0], b"lost")
    assert peer.expect(1, Basic.Nack).delivery_tag == 2


def test_the_exchange_has_another_type_now(peer: Wire, vhost: VirtualHost) -> None:
    vhost.delete_exchange("orders")
    vhost.exchange("orders", "topic")
    vhost.queue("topics")
    vhost.bind("orders", "topics", "key.#")
    vhost.bind("orders", "topics", LOST[0])
    peer.publish(1, "orders", LOST[0], b"x")
    assert peer.expect(1, Basic.Ack).delivery_tag == 2
    (message,) = vhost.drain("topics")
    assert (message.body, list(message.headers)) == (b"x", ["x-ring-id"])


def test_a_queue_that_refuses_it_makes_a_nack(slow: Sidecar, vhost: VirtualHost, client: Client) -> None:
    vhost.exchange("orders")
    full: dict[str, Any] = {"x-max-length": 1, "x-overflow": "reject-publish"}
    for name in QUEUES:
        vhost.queue(name, **(full if name != GONE else {}))
        vhost.bind("orders", name)
    with client.session(slow.amqp_port, vhost.name) as peer:
        peer.channel()
        keys = [LOST[0], *(next(key for key in KEPT if owner(QUEUES, key) == name) for name in LEFT)]
        for key in keys * 2:
            peer.publish(1, "orders", key, b"x")
        told = peer.answers(1, 6)
        assert list(told.values()).count("nack") == 2
        vhost.delete_queue(GONE)
        peer.publish(1, "orders", LOST[0], b"refused")
        assert peer.expect(1, Basic.Nack).delivery_tag == 7
    assert slow.metric("ringproxy_publishes_total", ingress="amqp", exchange="orders", outcome="nacked") == 3


def test_a_user_at_his_limit_of_channels_loses_one_session_and_no_message(
    slow: Sidecar, vhost: VirtualHost, api: BrokerApi
) -> None:
    """RabbitMQ closes the connection over our channel; from then on what comes back to him is nacked."""
    api.ask("PUT", "users", "limited", body={"password": "x", "tags": ""})
    vhost.permit("limited", configure=".*", write=".*", read=".*")
    api.ask("PUT", "user-limits", "limited", "max-channels", body={"value": 1})
    vhost.ring("orders", QUEUES)
    limited = Client("limited", "x")
    try:
        with limited.session(slow.amqp_port, vhost.name) as peer:
            peer.channel(1)
            peer.publish(1, "orders", KEPT[0], b"first")
            peer.confirm(1)
            vhost.delete_queue(GONE)
            peer.publish(1, "orders", LOST[0], b"lost")
            closed = peer.expect(0, Connection.Close)
            assert closed.reply_code == 530
            assert "limit" in closed.reply_text
        with limited.session(slow.amqp_port, vhost.name) as peer:
            peer.channel(1)
            vhost.delete_queue("q1")
            mine = [key for key in KEYS if owner(LEFT, key) == "q1"]
            peer.publish(1, "orders", mine[0], b"nacked")
            assert peer.expect(1, Basic.Nack).delivery_tag == 1
            slow.wait_for_weights(vhost.name, "orders", {"q3": 1})
            peer.publish(1, "orders", mine[0], b"then")
            assert peer.expect(1, Basic.Ack).delivery_tag == 2
    finally:
        api.ask("DELETE", "users", "limited")
    assert landed(vhost) == {b"then": "q3"}


def test_a_queue_deleted_and_declared_again_while_messages_stream(
    slow: Sidecar, vhost: VirtualHost, client: Client
) -> None:
    """Whatever is acknowledged is in a queue, or was in the one deleted."""
    vhost.ring("orders", QUEUES)
    with client.session(slow.amqp_port, vhost.name) as peer, client.session(slow.amqp_port, vhost.name) as other:
        peer.channel()
        other.channel(confirm=False)
        count, last_before, again = 3000, 1000, 2000
        for n in range(count):
            peer.publish(1, "orders", f"{n}", b"%d" % n)
            if n == last_before:
                deleted = other.ask(1, Queue.Delete(queue=GONE), Queue.DeleteOk)
            if n == again:
                vhost.queue(GONE)
                vhost.bind("orders", GONE)
        told = peer.answers(1, count)
        peer.ask(0, Connection.Close(200, "", 0, 0), Connection.CloseOk)
    acked = {tag - 1 for tag, what in told.items() if what == "ack"}
    missing = acked - {int(body) for body in landed(vhost)}
    # Gone with the queue: in it when it was deleted, or on their way, which the broker itself acknowledges. Nothing
    # that was published after that.
    assert all(owner(QUEUES, f"{n}") == GONE and n <= last_before for n in missing), missing
    assert len(missing) >= (deleted.message_count or 0)
    assert len(acked) == count


@pytest.mark.parametrize("confirm", [False, True])
def test_a_copy_that_a_client_forwards_is_never_sent_to_another_queue(
    sidecar: Sidecar, vhost: VirtualHost, client: Client, confirm: bool
) -> None:
    """It has the headers of a message of this very channel, and comes back from the queue that this one went to."""
    vhost.ring("orders", QUEUES)
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        peer.channel(1, confirm=confirm)
        peer.channel(2, confirm=False)
        peer.publish(1, "orders", LOST[0], b"original")
        if confirm:
            peer.confirm(1)
        consumed = wait_until("the original", lambda: peer.get(2, GONE))
        vhost.delete_queue(GONE)
        peer.publish(1, "", GONE, b"forwarded", consumed.properties, mandatory=True)
        back = peer.content(1, Basic.Return)
        assert isinstance(back.method, Basic.Return)
        assert (back.method.exchange, back.method.routing_key, back.body) == ("", GONE, b"forwarded")
        if confirm:
            peer.confirm(1, 2, 1)
    assert vhost.drain_all() == {}


def test_each_key_is_in_order_in_its_queue_though_queues_are_deleted_under_it(
    slow: Sidecar, vhost: VirtualHost, client: Client
) -> None:
    """Publishes go on without a pause, and queues go one after the other; the last has the messages of all keys."""
    vhost.ring("orders", QUEUES)
    left, keys, count = list(QUEUES), KEYS[:8], 6_000
    with client.session(slow.amqp_port, vhost.name) as wire:
        wire.channel(1)
        for n in range(count):
            wire.publish(1, "orders", keys[n % len(keys)], b"%d" % n)
            if n % 1_500 == 1_499 and len(left) > 1:
                vhost.delete_queue(left.pop())
        told = wire.answers(1, count)

    assert set(told.values()) == {"ack"}
    assert rerouted(slow) > 0
    for queue in left:
        last = dict.fromkeys(range(len(keys)), -1)
        for message in vhost.drain(queue):
            n = int(message.body)
            assert last[n % len(keys)] < n
            last[n % len(keys)] = n
    assert all(n > count // 2 for n in last.values())
