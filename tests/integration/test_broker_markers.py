"""RabbitMQ itself with a marker behind the messages of a shard: what is delivered, or stays, behind it all the same.

The drain of a generation stands on this (docs/development/generations.md). A and its followers consume a queue with
single active consumer. No sidecar takes part. `0-9R` are the messages 0 to 9, redelivered.
"""

import random
import time
from functools import partial

import pytest
from pamqp.commands import Basic, Queue

from testbed.broker import Broker
from tests.integration.broker_api import VirtualHost, wait_until
from tests.integration.consuming import Behaviour, Connect, Consumer, Declare, Shard, runs
from tests.integration.wire_client import Client, Wire, port_of, publish_frames

pytestmark = pytest.mark.versions

KINDS = ["quorum", "classic"]


def consumer(connect: Connect, queue: Shard, tag: str, prefetch: int, *, acks: bool = False) -> Consumer:
    """Return a consumer on channel 2."""
    made = connect()
    made.open(2, prefetch)
    made.consume(2, queue.name, tag, acks=acks)
    return made


def put(queue: Shard, priority: int | None) -> int:
    """Publish the next number with a priority, and return it once it is there."""
    properties = Basic.Properties(delivery_mode=2, priority=priority)
    queue.peer.wire.send(*publish_frames(1, "", queue.name, b"%d" % queue.published, properties))
    queue.published += 1
    queue.confirm()
    return queue.published - 1


def counts(asker: Consumer, queue: Shard) -> tuple[int, int]:
    """Return how many messages a passive declaration counts, and how many consumers."""
    answer = asker.ask(2, Queue.Declare(0, queue.name, passive=True), Queue.DeclareOk)
    return answer.message_count or 0, answer.consumer_count or 0


def requeue(member: Consumer, number: int) -> None:
    """Return the first delivery of a message."""
    tag = next(each.delivery_tag for each in member.got() if each.number == number)
    member.tell(2, Basic.Nack(tag, False, True))


@pytest.mark.parametrize("kind", KINDS)
def test_with_a_prefetch_of_one_a_message_that_is_returned_comes_before_the_marker(
    connect_consumer: Connect, declare_shard: Declare, rabbitmq: Behaviour, kind: str
) -> None:
    """Before RabbitMQ 4.0 a quorum queue without a delivery limit puts what is nacked behind all others."""
    queue = declare_shard(kind=kind)
    queue.publish(6)
    a = consumer(connect_consumer, queue, "A", 1)
    a.wait_for(1)
    a.acking.add("A")
    requeue(a, 0)
    goes_behind = kind == "quorum" and rabbitmq.default_limit is None
    assert runs(a.wait_for(7)) == ("0-5 0R" if goes_behind else "0 0R 1-5")


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_that_is_returned_once_the_marker_is_out_comes_behind_it(
    connect_consumer: Connect, declare_shard: Declare, kind: str
) -> None:
    queue = declare_shard(kind=kind)
    queue.publish(6)
    a = consumer(connect_consumer, queue, "A", 20)
    a.wait_for(6)
    requeue(a, 0)
    assert runs(a.wait_for(7)) == "0-5 0R"
    queue.publish(1)
    assert runs(a.wait_for(8)) == "0-5 0R 6"


@pytest.mark.parametrize("kind", KINDS)
def test_a_marker_that_is_held_comes_again_behind_what_is_held_before_it(
    connect_consumer: Connect, declare_shard: Declare, kind: str
) -> None:
    """A marker that was acked before the others is gone, and nobody learns of the end."""
    for acked, rest in ((False, "0-5R"), (True, "0-4R")):
        queue = declare_shard(f"q{acked}", kind)
        queue.publish(6)
        a = consumer(connect_consumer, queue, "A", 20)
        deliveries = a.wait_for(6)
        if acked:
            a.tell(2, Basic.Ack(deliveries[-1].delivery_tag))
        a.close(2)
        b = consumer(connect_consumer, queue, "B", 20)
        expected = 5 if acked else 6
        b.wait_for(expected)
        wait_until("all is out", lambda b=b, queue=queue: counts(b, queue)[0] == 0)  # type: ignore[misc]
        assert runs(b.got()) == rest


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_smaller_prefetch_a_member_that_holds_only_the_marker_is_not_at_the_end(
    connect_consumer: Connect, declare_shard: Declare, kind: str
) -> None:
    """A holds 20, B takes five of them and ends, and C works one by one. The count of ready messages tells.

    Quorum queues give the five last, and classic ones in their place. A second marker, put while C holds only the first
    one, comes behind all of them.
    """
    queue = declare_shard(kind=kind)
    queue.publish(11)
    a, b, c = (consumer(connect_consumer, queue, tag, count) for tag, count in (("A", 20), ("B", 5), ("C", 1)))
    a.wait_for(11)
    a.close(2)
    b.wait_for(5)
    b.close(2)
    seen = 0
    while (last := c.wait_for(seen + 1)[-1]).number != 10:
        c.tell(2, Basic.Ack(last.delivery_tag))
        seen += 1
    ready, consuming = counts(c, queue)
    assert ready == (5 if kind == "quorum" else 0)
    assert consuming == 1
    c.acking.add("C")
    queue.publish(1)
    c.tell(2, Basic.Ack(last.delivery_tag))
    assert runs(c.wait_for(12)) == ("5-10R 0-4R 11" if kind == "quorum" else "0-10R 11")


def test_a_marker_of_priority_0_is_last_on_all_versions(
    connect_consumer: Connect, declare_shard: Declare, rabbitmq: Behaviour
) -> None:
    """Quorum queues of 4.3 put a marker without a priority before messages of a priority below 4."""
    choose = random.Random(4711)
    for kind, arguments in (("quorum", {}), ("classic", {"x-max-priority": 10})):
        for marker in (0, None):
            overtaken = 0
            for number in range(5):
                queue = declare_shard(f"{kind}.{marker}.{number}", kind, **arguments)
                for _ in range(20):
                    put(queue, choose.choice((None, *range(10))))
                last = put(queue, marker)
                a = consumer(connect_consumer, queue, "A", 1, acks=True)
                overtaken += a.wait_for(21)[-1].number != last
            assert bool(overtaken) == (kind == "quorum" and marker is None and rabbitmq.timeout_cancels)


def reject_first(connect: Connect, queue: Shard, count: int) -> Consumer:
    """Have A, which works one by one, reject message 0 for good and ack the rest, up to message `count` - 1."""
    a = consumer(connect, queue, "A", 1)
    first = a.wait_for(1)[0]
    a.acking.add("A")
    a.tell(2, Basic.Reject(first.delivery_tag, False))
    a.wait_for(count)
    return a


@pytest.mark.parametrize("kind", KINDS)
def test_a_dead_letter_that_leads_back_into_the_shard_comes_behind_the_marker(
    connect_consumer: Connect, declare_shard: Declare, kind: str
) -> None:
    queue = declare_shard("q", kind, **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"})
    queue.publish(6)
    a = reject_first(connect_consumer, queue, 7)
    assert [each.number for each in a.got()] == [*range(6), 0]


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["at-most-once", "at-least-once"])
def test_a_dead_letter_that_leads_through_the_fenced_lane_is_lost_or_stays_where_nobody_counts_it_as_ready(
    connect_consumer: Connect, declare_shard: Declare, vhost: VirtualHost, strategy: str
) -> None:
    """A passive declaration says 0. The management API counts the one that stays."""
    vhost.exchange("lane", "fanout")
    arguments = {"x-dead-letter-exchange": "lane", "x-dead-letter-strategy": strategy, "x-overflow": "reject-publish"}
    queue = declare_shard("q", **arguments)
    queue.publish(6)
    a = reject_first(connect_consumer, queue, 6)
    assert runs(a.got()) == "0-5"
    a.settle(2)
    kept = int(strategy == "at-least-once")
    wait_until("nothing is ready", lambda: counts(a, queue)[0] == 0)

    def shown() -> bool:
        found = vhost.api.ask("GET", "queues", vhost.name, "q")
        elsewhere = found.get("messages_ready") == found.get("messages_unacknowledged") == 0
        return bool(elsewhere and found.get("messages") == kept and found.get("message_stats", {}).get("ack", 0) == 5)

    wait_until("what the management API counts", shown)


@pytest.mark.long
def test_a_message_of_a_delayed_retry_comes_behind_the_marker_and_is_not_ready_meanwhile(
    connect_consumer: Connect, declare_shard: Declare, vhost: VirtualHost, rabbitmq: Behaviour
) -> None:
    """Quorum queues of 4.3 have it. The management API counts the message."""
    if not rabbitmq.timeout_cancels:
        pytest.skip("no delayed retry before RabbitMQ 4.3")
    queue = declare_shard("q", **{"x-delayed-retry-type": "all", "x-delayed-retry-min": 15_000})
    queue.publish(6)
    a = consumer(connect_consumer, queue, "A", 1)
    a.wait_for(1)
    a.acking.add("A")
    requeue(a, 0)
    assert runs(a.wait_for(6)) == "0-5"
    a.settle(2)
    assert counts(a, queue) == (0, 1)
    wait_until("its count", lambda: vhost.api.ask("GET", "queues", vhost.name, "q").get("messages_delayed") == 1, 12)
    assert vhost.api.ask("GET", "queues", vhost.name, "q")["messages"] == 1
    assert runs(a.wait_for(7)) == "0-5 0R"


@pytest.mark.parametrize("kind", KINDS)
def test_a_marker_expires_as_any_message(connect_consumer: Connect, declare_shard: Declare, kind: str) -> None:
    """Message 0 is held for longer than the queue's time to live."""
    queue = declare_shard(kind=kind, **{"x-message-ttl": 300})
    queue.publish(1)
    a = consumer(connect_consumer, queue, "A", 1)
    a.wait_for(1)
    queue.publish(2)
    time.sleep(0.5)
    a.acking.add("A")
    a.tell(2, Basic.Ack(a.got()[0].delivery_tag))
    wait_until("nothing is ready", lambda: counts(a, queue)[0] == 0)
    assert runs(a.got()) == "0"


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_queue_refuses_the_marker_or_drops_a_message_for_it(
    connect_consumer: Connect, declare_shard: Declare, vhost: VirtualHost, client: Client, broker: Broker, kind: str
) -> None:
    with client.session(port_of(broker.amqp_url), vhost.name) as peer:
        peer.channel()
        for number, (overflow, answer) in enumerate((("reject-publish", "nack"), ("drop-head", "ack"))):
            queue = declare_shard(overflow, kind, **{"x-max-length": 3, "x-overflow": overflow})
            for _ in range(10):  # a quorum queue tells its publishers a moment later that it is full
                queue.send(1)
            queue_is_full = partial(_is_told, queue, 10)
            queue.peer.until("answers", queue_is_full)
            peer.publish(1, "", overflow, b"10")
            assert peer.answers(1, number + 1, number) == {number + 1: answer}


def _is_told(queue: Shard, count: int) -> bool:
    """Return whether so many publishes have been settled, each by a method of its own or by another's."""
    told = {
        tag
        for _, value in queue.peer.methods
        if isinstance(value, Basic.Ack | Basic.Nack)
        for tag in (range(1, value.delivery_tag + 1) if value.multiple else (value.delivery_tag,))
    }
    return len(told) >= count


def delete(peer: Wire, name: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
    """Try to delete a queue on channel 1; return 200, or the reply code by which RabbitMQ closes something."""
    peer.tell(1, Queue.Delete(0, name, if_unused, if_empty))
    _, value = peer.read()
    return 200 if isinstance(value, Queue.DeleteOk) else int(getattr(value, "reply_code", 0))


def test_only_a_classic_queue_is_deleted_if_it_is_empty(
    connect_consumer: Connect, declare_shard: Declare, vhost: VirtualHost, client: Client, broker: Broker
) -> None:
    """A quorum queue closes the connection with 540 for both conditions, also if they are met.

    A classic queue is empty for RabbitMQ if no message is ready, though a consumer holds one.
    """

    def answer(name: str, **condition: bool) -> int:
        with client.session(port_of(broker.amqp_url), vhost.name) as peer:
            peer.channel()
            return delete(peer, name, **condition)

    declare_shard("quorum")
    assert answer("quorum", if_empty=True) == 540
    assert answer("quorum", if_unused=True) == 540
    full = declare_shard("classic", "classic")
    full.publish(1)
    assert answer("classic", if_empty=True) == 406
    a = consumer(connect_consumer, full, "A", 1)
    a.wait_for(1)
    assert answer("classic", if_unused=True) == 406
    assert answer("classic", if_empty=True) == 200
