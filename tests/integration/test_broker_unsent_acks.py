"""RabbitMQ itself with a consumer that acks many messages one by one, and ends right behind its last ack.

A channel has at most 33 acks under way to a quorum queue. It keeps later ones back, and forgets them when it ends. The
hand-over of a shard (`proxy/groups/model.py`) stands on the way around that which is shown here. No sidecar takes part.
"""

import pytest
from pamqp import base
from pamqp.commands import Basic, Channel

from tests.integration.consuming import Connect, Consumer, Declare, Shard, holder, runs, waiting
from tests.integration.wire_client import encoded

pytestmark = [pytest.mark.long, pytest.mark.versions]

COUNT = 200
CLOSE = Channel.Close(200, "", 0, 0)


def send(consumer: Consumer, *methods: base.Frame) -> None:
    """Send all methods on channel 2 in one write."""
    consumer.wire.send(b"".join(encoded(2, method) for method in methods))


def acks(count: int = COUNT) -> list[base.Frame]:
    return [Basic.Ack(tag) for tag in range(1, count + 1)]


def second(queue: Shard) -> Basic.Consume:
    """The basic.consume of a second consumer on the same channel."""
    return Basic.Consume(0, queue.name, "second", arguments={"x-priority": 1})


def repeated(consumer: Consumer, queue: Shard) -> list[int]:
    """Return the numbers that a consumer of the queue gets before a further message, which is published now."""
    last = queue.published
    queue.publish(1)
    consumer.until("the last message", lambda: last in [each.number for each in consumer.deliveries])
    return [each.number for each in consumer.got()][:-1]


@pytest.mark.parametrize("kind", ["quorum", "classic"])
@pytest.mark.parametrize("count", [33, COUNT])
def test_a_channel_that_ends_behind_many_acks_has_a_quorum_queue_forget_some(
    connect_consumer: Connect, declare_shard: Declare, kind: str, count: int
) -> None:
    queue = declare_shard(kind=kind)
    a, b = holder(connect_consumer, queue, count), waiting(connect_consumer, queue)
    send(a, *acks(count), CLOSE)
    a.expect(2, Channel.CloseOk)
    again = repeated(b, queue)
    assert bool(again) is (kind == "quorum" and count == COUNT)
    assert again == list(range(count - len(again), count))


def test_a_second_consumer_that_is_cancelled_before_it_is_there_ends_the_connection(
    connect_consumer: Connect, declare_shard: Declare
) -> None:
    """The cancel must wait for basic.consume-ok."""
    queue = declare_shard()
    a = holder(connect_consumer, queue, COUNT)
    send(a, second(queue), Basic.Cancel("second"))
    assert a.refusal()[:2] == (0, 541)


@pytest.mark.parametrize("kind", ["quorum", "classic"])
@pytest.mark.parametrize("others", [0, 1, 2], ids=["nobody waits", "another waits", "two others wait"])
@pytest.mark.parametrize("trial", range(5))
def test_once_a_second_consumer_is_there_all_acks_have_reached_the_queue(
    connect_consumer: Connect, declare_shard: Declare, kind: str, others: int, trial: int
) -> None:
    """The broker goes on to deliver meanwhile: all of that comes to the next consumer, in order."""
    queue = declare_shard(kind=kind)
    a = holder(connect_consumer, queue, COUNT)
    waiters = [waiting(connect_consumer, queue, prefetch=COUNT) for _ in range(others)]
    queue.publish(2 * COUNT)
    send(a, *acks(), second(queue))
    a.expect(2, Basic.ConsumeOk)
    send(a, Basic.Cancel("second"), CLOSE)
    a.expect(2, Channel.CloseOk)
    assert not a.got("second")
    (b, *rest) = waiters or [waiting(connect_consumer, queue, prefetch=COUNT)]
    got = b.wait_for(2 * COUNT)
    passed = len([each for each in a.got() if each.number >= COUNT])
    numbers = [each.number for each in got]
    assert numbers == list(range(COUNT, 3 * COUNT)), runs(got)
    assert {each.number for each in got if each.redelivered} >= set(range(COUNT, COUNT + passed))
    assert not any(each.got() for each in rest)
