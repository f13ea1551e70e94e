"""RabbitMQ itself with messages that nobody acknowledges, or that come back again and again.

A holds messages of a queue with single active consumer, and B waits. No sidecar takes part.
"""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from pamqp.commands import Basic, Channel

from testbed.node import Node
from tests.integration.consuming import (
    Behaviour,
    Connect,
    Consumer,
    Declare,
    Shard,
    consumers,
    holder,
    runs,
    shard,
    waiting,
)
from tests.integration.own_node import own_node, private_only
from tests.integration.wire_client import Client, port_of

pytestmark = [pytest.mark.long, pytest.mark.versions]

TIMEOUT = "PRECONDITION_FAILED - delivery acknowledgement on channel 2 timed out. Timeout value used: 3000 ms."


@pytest.fixture(scope="module")
def hurried() -> Iterator[Node]:
    """Yield a node with a consumer timeout of 3 s that looks for late consumers each second."""
    ticks = "[{rabbit,[{channel_tick_interval,1000},{quorum_tick_interval,1000}]}].\n"
    with own_node("consumer_timeout = 3000\n", ticks) as (node, _):
        yield node


@pytest.fixture
def hurried_consumer(hurried: Node, client: Client) -> Iterator[Connect]:
    """Yield a function that opens a connection to the hurried node, which ends with the test."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(consumers(client, port_of(hurried.amqp_url), "/"))[0]


def late(connect: Connect, name: str, kind: str = "quorum") -> tuple[Consumer, Consumer]:
    """Return A, which has acknowledged 0 to 2 and holds 3 to 12, and B, which waits for a queue of 40 messages."""
    queue = shard(connect(), name, kind)
    a, b = holder(connect, queue, 10), waiting(connect, queue, prefetch=20)
    queue.publish(30)
    a.tell(2, Basic.Ack(3, True))
    a.wait_for(13)
    return a, b


@private_only
@pytest.mark.long
def test_the_consumer_timeout_of_a_quorum_queue(hurried_consumer: Connect, rabbitmq: Behaviour) -> None:
    """4.3.6 cancels the tag, more than once, and breaks the order. Older ones close the channel, and keep the order."""
    a, b = late(hurried_consumer, "timeout")
    if rabbitmq.timeout_cancels:
        for _ in range(2):
            assert a.expect(2, Basic.Cancel).consumer_tag == "A"
        assert sorted(d.number for d in b.wait_for(37)) == list(range(3, 40))
        assert [d.number for d in b.got()] != list(range(3, 40))
        a.tell(2, Basic.Ack(13, True))  # too late, and not an error
        a.settle(2)
    else:
        channel, code, text = a.refusal()
        assert (channel, code) == (2, 406)
        assert text.startswith(TIMEOUT)
        assert not b.got()
        a.tell(2, Channel.CloseOk())
        assert runs(b.wait_for(37)) == "3-12R 13-39"


@private_only
@pytest.mark.long
@pytest.mark.parametrize("kind", ["quorum", "classic"])
def test_a_bare_close_before_the_consumer_timeout_keeps_the_order(hurried_consumer: Connect, kind: str) -> None:
    """Nothing of the timeout is seen if the channel is closed at once."""
    a, b = late(hurried_consumer, f"before {kind}", kind)
    a.close(2)
    assert runs(b.wait_for(37)) == "3-12R 13-39"
    assert not a.methods


@private_only
@pytest.mark.long
def test_a_consumer_can_ask_for_a_longer_timeout(hurried_consumer: Connect, rabbitmq: Behaviour) -> None:
    """4.3.6 reads x-consumer-timeout of a consumer of a quorum queue. Older ones ignore it and close the channel."""
    patient, hasty = shard(hurried_consumer(), "patient"), shard(hurried_consumer(), "hasty")
    a, other = hurried_consumer(), hurried_consumer()
    for peer, queue, arguments in ((a, patient, {"x-consumer-timeout": 60_000}), (other, hasty, {})):
        peer.open(2, 10)
        peer.consume(2, queue.name, "A", arguments=arguments)
        queue.publish(1)
        peer.wait_for(1)
    if rabbitmq.timeout_cancels:
        other.expect(2, Basic.Cancel)
        a.settle(2)
        assert not a.methods
    else:
        assert a.refusal()[2].startswith(TIMEOUT)


# The delivery limit


def give_back(connect: Connect, queue: Shard, way: str, times: int) -> Consumer:
    """Have the queue's messages delivered and given back so many times, and return the consumer that had them."""
    queue.publish(3)
    a = connect()
    for number in range(1, times + 1):
        if number == 1 or way == "channel.close":
            a.open(2, 10)
            a.consume(2, queue.name, "A")
        tags = [d.delivery_tag for d in a.wait_for(3 * number)[-3:]]
        if way == "channel.close":
            a.close(2)
        elif way == "nack":
            a.tell(2, Basic.Nack(0, True, True))
        else:
            a.tell(2, *(Basic.Reject(tag, True) for tag in tags))
    return a


WAYS = ["channel.close", "reject", "nack"]


@pytest.mark.parametrize("way", WAYS)
def test_what_counts_towards_the_delivery_limit(
    connect_consumer: Connect, declare_shard: Declare, rabbitmq: Behaviour, way: str
) -> None:
    """With a limit of 3, messages are deleted at the fourth return. On 4.3.6 a nack does not count."""
    queue = declare_shard("q", **{"x-delivery-limit": 3})
    counts = way != "nack" or rabbitmq.nacks_count
    a = give_back(connect_consumer, queue, way, 4 if counts else 10)
    assert is_deleted(connect_consumer, queue, a) == counts


@pytest.mark.parametrize("limit", [None, -1])
def test_the_delivery_limit_of_a_quorum_queue(
    connect_consumer: Connect, declare_shard: Declare, rabbitmq: Behaviour, limit: int | None
) -> None:
    """4.x deletes a message at its 21st return unless the limit is -1. 3.10.8 has no limit, and takes -1 for 0."""
    arguments = {} if limit is None else {"x-delivery-limit": limit}
    queue = declare_shard("q", **arguments)
    if rabbitmq.default_limit is None:
        most = None if limit is None else 0
    else:
        most = rabbitmq.default_limit if limit is None else None
    a = give_back(connect_consumer, queue, "channel.close", 30 if most is None else most + 1)
    assert is_deleted(connect_consumer, queue, a) == (most is not None)


def is_deleted(connect: Connect, queue: Shard, holder: Consumer) -> bool:
    """Return whether another consumer of the queue gets the next message first, once the holder has gone."""
    holder.drop()
    b = waiting(connect, queue)
    queue.publish(1)
    b.until("the last message", lambda: bool(b.deliveries) and b.deliveries[-1].number == 3)
    assert runs(b.got()) in ("3", "0-2R 3")
    return runs(b.got()) == "3"
