"""What RabbitMQ does with a consumer whose channel ends while it quiesces: it holds messages, and another has raised.

Consumer groups stand on this. No sidecar takes part. RabbitMQ 4.3 puts such a consumer among those that wait, although
its channel is no more: a ghost. Nobody notices before it becomes active: then it keeps what it gets.
"""

import time
from collections.abc import Iterable

import pytest
from pamqp.commands import Basic

from tests.integration.broker_api import DEADLINE_SECONDS
from tests.integration.consuming import (
    Behaviour,
    Connect,
    Consumer,
    Declare,
    Delivery,
    Shard,
    ghost,
    holder,
    runs,
    waiting,
)

pytestmark = [pytest.mark.long, pytest.mark.versions, pytest.mark.usefixtures("raising")]

ENDS = ["channel.close", "the socket drops"]


def after(b: Consumer, connect: Connect, queue: Shard, level: int | None = None) -> Consumer:
    """Return C, which waits with the priority `level` while B acks what it got and leaves; then 30 more come."""
    b.settle(2)
    c = connect()
    c.open(2, 10)
    c.consume(2, queue.name, "C", level, acks=True)
    b.close(2)
    queue.publish(30)
    return c


def publishing(queue: Shard, c: Consumer, numbers: Iterable[int]) -> list[Delivery]:
    """Return what C has got once it has these numbers, while one more message comes five times a second.

    RabbitMQ looks what has timed out only when something happens in the queue.
    """
    wanted, deadline = set(numbers), time.monotonic() + DEADLINE_SECONDS
    while wanted - {each.number for each in c.got()}:
        assert time.monotonic() < deadline, c.got()
        queue.publish(1)
        time.sleep(0.2)
    return c.got()


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_ghost_gets_the_queue_unless_one_with_a_higher_priority_waits(
    connect_consumer: Connect, declare_shard: Declare, rabbitmq: Behaviour, end: str, level: int
) -> None:
    """A holds 20 messages with priority 1 and ends after B's raise to 5; B leaves later, while C waits at `level`."""
    queue = declare_shard()
    a, b = holder(connect_consumer, queue, 20), waiting(connect_consumer, queue)
    b.consume(2, queue.name, "B raised", 5, acks=True)
    b.settle(2)
    a.close(2) if end == "channel.close" else a.drop()
    assert runs(b.wait_for(20)) == "0-19R"
    c = after(b, connect_consumer, queue, level)
    if rabbitmq.leaves_ghosts and level < 2:
        # The ghost has the first ten, and C gets nothing until it has left: only another leader of the queue ends that.
        c.settle(2)
        queue.peer.settle(1)
        assert not c.got()
    else:
        assert runs(c.wait_for(30)) == "20-49"


@pytest.mark.parametrize("end", ENDS)
def test_a_consumer_that_ends_while_nobody_waits_above_it_leaves_no_ghost_and_the_highest_below_it_is_next(
    connect_consumer: Connect, declare_shard: Declare, end: str
) -> None:
    """So does a holder hand its shard over: A has acked five of 20. B waits right below A, and C far below B.

    B gets what A has not acked, in order. The queue has no consumer but B and C then. So C is next, though it has the
    lowest priority of all.
    """
    queue = declare_shard()
    a, c = holder(connect_consumer, queue, 20, 100), waiting(connect_consumer, queue, 50)
    b = waiting(connect_consumer, queue, 99)
    b.settle(2)
    a.tell(2, Basic.Ack(5, True))
    a.settle(2)
    queue.publish(10)
    a.close(2) if end == "channel.close" else a.drop()
    # A's prefetch had room for five more, which were on their way to it.
    got = b.wait_for(25)
    assert [each.number for each in got] == list(range(5, 30))
    assert (len({each.number for each in got if each.redelivered} & set(range(5, 20))), c.got()) == (15, [])
    d = connect_consumer()
    d.open(2, 10)
    d.consume(2, queue.name, "D", 1, acks=True)
    b.settle(2)
    b.close(2)
    queue.publish(30)
    assert runs(c.wait_for(30)) == "30-59"
    c.settle(2)
    c.close(2)
    queue.publish(10)
    assert [each.number for each in d.wait_for(10)] == list(range(60, 70))


def test_what_is_returned_before_the_channel_ends_leaves_no_ghost(
    connect_consumer: Connect, declare_shard: Declare
) -> None:
    """A gives back all that it holds before it closes its channel: then it waits as one that lives, and is removed."""
    queue = declare_shard()
    a, b = holder(connect_consumer, queue, 20), waiting(connect_consumer, queue)
    b.consume(2, queue.name, "B raised", 5, acks=True)
    b.settle(2)
    a.tell(2, Basic.Nack(0, True, True))
    a.close(2)
    assert runs(b.wait_for(20)) == "0-19R"
    c = after(b, connect_consumer, queue)
    assert runs(c.wait_for(30)) == "20-49"


def test_a_consumer_timeout_frees_what_a_ghost_holds(
    connect_consumer: Connect, declare_shard: Declare, rabbitmq: Behaviour
) -> None:
    """RabbitMQ 4.3 takes back what a consumer does not ack within its `x-consumer-timeout`, and may break the order.

    The timeout of each message runs from its own delivery. Where the ghost got its messages one by one, RabbitMQ takes
    back the first of them alone, and C is active at once: C gets them, and then newer ones. The rest of the ghost's
    messages come behind these: `10-16R 20-22 17-19R 23-39`. It is sure that C gets each message once, beginning with
    one of the ghost's. Those of the ghost are marked as redelivered, and come in order. So do the newer ones.
    """
    queue = declare_shard()
    a = connect_consumer()
    a.open(2, 10)
    a.consume(2, queue.name, "A", 1, arguments={"x-consumer-timeout": 3000})
    queue.publish(10)
    a.wait_for(10)
    b = waiting(connect_consumer, queue)
    b.consume(2, queue.name, "B raised", 5, acks=True)
    b.settle(2)
    a.close(2)
    assert runs(b.wait_for(10)) == "0-9R"
    c = after(b, connect_consumer, queue)
    got = publishing(queue, c, range(10, 40))
    if rabbitmq.leaves_ghosts:
        assert got[0].redelivered
        assert runs(d for d in got if d.redelivered) == "10-19R"
        assert runs(d for d in got if not d.redelivered) == f"20-{max(d.number for d in got)}"
    else:
        assert runs(got) == f"10-{got[-1].number}"


@pytest.mark.parametrize("publishes", [True, False])
def test_what_a_ghost_holds_comes_in_order_if_one_message_is_held_until_all_have_come_back(
    connect_consumer: Connect, declare_shard: Declare, rabbitmq: Behaviour, publishes: bool
) -> None:
    """C has a prefetch of 1, and acks once all of the ghost's messages have timed out, and D waits above it.

    While nothing is published, RabbitMQ may take back some of them only when D comes.
    """
    if not rabbitmq.leaves_ghosts:
        pytest.skip("this RabbitMQ keeps no consumer")
    queue = declare_shard()
    ghost(connect_consumer, queue, 4.0)
    c = connect_consumer()
    c.open(2, 1)
    c.consume(2, queue.name, "C", 7)
    queue.publish(5)
    (first,) = publishing(queue, c, [10])
    for _ in range(4):
        time.sleep(1)
        if publishes:
            queue.publish(1)
    d = connect_consumer()
    d.open(2, 10)
    d.consume(2, queue.name, "D", 8, acks=True)
    assert runs(c.got()) == "10R"
    c.tell(2, Basic.Ack(first.delivery_tag))
    c.close(2)
    count = queue.published - 11
    assert runs(d.wait_for(count)) == f"11-19R 20-{queue.published - 1}"
