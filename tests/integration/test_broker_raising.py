"""What RabbitMQ itself does with several consumers of one queue with single active consumer: who takes over.

Consumer groups stand on this. No sidecar takes part. In these tests A is the active consumer and B waits; `0-9R` are
the messages 0 to 9, redelivered.
"""

import pytest
from pamqp.commands import Basic

from tests.integration.broker_api import wait_until
from tests.integration.consuming import (
    LEAVING,
    Behaviour,
    Connect,
    Declare,
    Delivery,
    first_deliveries,
    holder,
    runs,
    waiting,
)

pytestmark = [pytest.mark.long, pytest.mark.versions]

KINDS = ["quorum", "classic"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_waiting_consumer_takes_over_by_a_higher_priority(
    connect_consumer: Connect, declare_shard: Declare, kind: str, rabbitmq: Behaviour
) -> None:
    """B subscribes a second tag beside its first, while A works. On quorum queues of 4.x B goes on where A stops."""
    queue = declare_shard(kind=kind)
    a = connect_consumer()
    a.open(2, 10)
    a.consume(2, queue.name, "A", 1, acks=True)
    b = waiting(connect_consumer, queue)
    queue.publish(300)
    b.consume(2, queue.name, "B raised", 7, acks=True)
    queue.publish(300)
    took_over = kind == "quorum" and rabbitmq.raises
    last = b if took_over else a
    last.until("the last message", lambda: bool(last.deliveries) and last.deliveries[-1].number == 599)
    assert [d.number for d in a.got() + b.got()] == list(range(600))
    assert not any(d.redelivered for d in a.got() + b.got())
    assert not b.got("B")
    assert bool(b.got("B raised")) == took_over


@pytest.mark.usefixtures("raising")
def test_a_takeover_waits_for_the_last_acknowledgement(connect_consumer: Connect, declare_shard: Declare) -> None:
    """From the raise on, the holder gets nothing more. Once the raised one cancels, the holder is active again."""
    queue = declare_shard()
    a, b = holder(connect_consumer, queue, 20), waiting(connect_consumer, queue)
    b.consume(2, queue.name, "B raised", 5, acks=True)
    for acknowledged in (10, 19):
        a.tell(2, Basic.Ack(acknowledged, True))
        a.settle(2)
        queue.publish(10)
        a.settle(2)
        b.settle(2)
        assert runs(a.got()) == "0-19"
        assert not b.got()
    a.tell(2, Basic.Ack(20, True))
    assert runs(b.wait_for(20)) == "20-39"
    b.settle(2)
    b.cancel(2, "B raised")
    queue.publish(10)
    assert runs(a.wait_for(30)) == "0-19 40-49"
    assert runs(b.got()) == "20-39"


def test_a_holder_goes_on_where_nothing_takes_over(connect_consumer: Connect, declare_shard: Declare) -> None:
    """A classic queue of any version gives the next messages to the holder, whoever waits with a higher priority."""
    queue = declare_shard(kind="classic")
    a, b = holder(connect_consumer, queue, 10), waiting(connect_consumer, queue, 9)
    queue.publish(10)
    a.tell(2, Basic.Ack(10, True))
    assert runs(a.wait_for(20)) == "0-19"
    assert not b.got()


def test_the_highest_priority_takes_over_and_an_equal_or_lower_one_does_not(
    connect_consumer: Connect, declare_shard: Declare, rabbitmq: Behaviour
) -> None:
    """Of 5, 4, 7, 9 and 8, all of which wait for a holder of 5, that of 9 is next; else the other of 5."""
    queue = declare_shard()
    a = holder(connect_consumer, queue, 10, 5)
    others = {
        priority: waiting(connect_consumer, queue, priority)
        for priority in ((5, 4, 7, 9, 8) if rabbitmq.raises else (5, 4))
    }
    a.tell(2, Basic.Ack(0, True))
    if rabbitmq.raises:
        queue.publish(20)
        others[9].wait_for(20)
        assert not others[5].got() + others[4].got() + others[7].got() + others[8].got()
        assert runs(a.got()) == "0-9"
    else:
        a.drop()
        queue.publish(20)
        others[5].wait_for(20)
        assert not others[4].got()


LEAVING_AGAIN = {"channel.close": LEAVING["channel.close"], "the socket drops": LEAVING["the socket drops"]}


@pytest.mark.parametrize("way", LEAVING_AGAIN)
@pytest.mark.usefixtures("raising")
def test_the_old_holder_is_active_again_once_the_raised_one_leaves(
    connect_consumer: Connect, declare_shard: Declare, way: str
) -> None:
    """B raised, took over and leaves with messages unacknowledged: A gets them in order."""
    queue = declare_shard()
    a, b = holder(connect_consumer, queue, 10), connect_consumer()
    a.acking.add("A")
    b.open(2, 10)
    b.consume(2, queue.name, "B", 5)
    a.tell(2, Basic.Ack(0, True))
    queue.publish(50)
    b.wait_for(10)
    LEAVING[way](b)
    assert runs(a.wait_for(60)) == "0-9 10-19R 20-59"


def test_extreme_priorities_are_compared(
    connect_consumer: Connect, declare_shard: Declare, rabbitmq: Behaviour
) -> None:
    """An x-priority is any signed integer of 64 bits, so a counter of changes serves as one."""
    queue = declare_shard()
    members = []
    for priority in (-(2**63), 2**63 - 2, 2**63 - 1):
        members.append(waiting(connect_consumer, queue, priority))
        queue.publish(10)
        wait_until("all", lambda: sum(len(member.got()) for member in members) == queue.published)
    active = members[-1] if rabbitmq.raises else members[0]
    assert active.got()[-1].number == 29


@pytest.mark.usefixtures("raising")
def test_a_holder_that_returns_all_while_another_waits_to_take_over(
    connect_consumer: Connect, declare_shard: Declare, rabbitmq: Behaviour
) -> None:
    """4.3.6 hands all on, in order. On 4.0.5 nobody gets anything, until B subscribes higher beside its raised tag."""
    queue = declare_shard()
    a, b = holder(connect_consumer, queue, 20), waiting(connect_consumer, queue)
    b.consume(2, queue.name, "B raised", 5, acks=True)
    a.tell(2, Basic.Nack(0, True, True))
    a.settle(2)
    queue.publish(20)
    if rabbitmq.wedges:
        a.settle(2)
        b.settle(2)
        assert not b.got()
        assert runs(a.got()) == "0-19"
        b.consume(2, queue.name, "B raised again", 6, acks=True)
    assert runs(b.wait_for(40)) == "0-19R 20-39"


@pytest.mark.usefixtures("raising")
def test_a_wedge_is_avoided_where_the_last_thing_that_a_holder_does_is_an_acknowledgement(
    connect_consumer: Connect, declare_shard: Declare
) -> None:
    """The holder returns 10 to 19 and then acknowledges 0 to 9: B goes on with 10, on 4.0.5 too."""
    queue = declare_shard()
    a, b = holder(connect_consumer, queue, 20), waiting(connect_consumer, queue)
    b.consume(2, queue.name, "B raised", 5, acks=True)
    a.tell(2, *(Basic.Nack(tag, False, True) for tag in range(11, 21)), Basic.Ack(10, True))
    queue.publish(20)
    assert runs(b.wait_for(30)) == "10-19R 20-39"


@pytest.mark.usefixtures("raising")
def test_a_holder_that_returns_its_last_messages_and_drops_breaks_the_order(
    connect_consumer: Connect, declare_shard: Declare
) -> None:
    """Messages are given out in the order of their return: first those that were nacked, then those of the drop."""
    queue = declare_shard()
    a, b = holder(connect_consumer, queue, 20), waiting(connect_consumer, queue)
    b.consume(2, queue.name, "B raised", 5, acks=True)
    a.tell(2, *(Basic.Nack(tag, False, True) for tag in range(11, 21)))
    a.settle(2)
    queue.publish(10)
    a.drop()
    assert runs(b.wait_for(30)) == "10-19R 0-9R 20-29"


@pytest.mark.usefixtures("raising")
def test_a_holder_that_raises_itself_subscribes_again_before_it_cancels(
    connect_consumer: Connect, declare_shard: Declare
) -> None:
    """The new subscription waits for the acknowledgements of the old one. With a cancel first, B is given messages."""
    for beside in (True, False):
        queue = declare_shard(f"beside {beside}")
        a, b = holder(connect_consumer, queue, 20), waiting(connect_consumer, queue)
        queue.publish(20)
        if not beside:
            a.cancel(2, "A")
        a.consume(2, queue.name, "A raised", 5)
        if beside:
            a.tell(2, Basic.Ack(20, True))
            assert runs(a.wait_for(20, "A raised")) == "20-39"
            assert not b.got()
        else:
            assert b.wait_for(1)[0].number == 20


def test_deliveries_to_the_old_tag_come_after_the_answer_to_the_new_one(
    connect_consumer: Connect, declare_shard: Declare
) -> None:
    """The answer to `basic.consume` overtakes deliveries. So it does not prove that a cancel of the old tag is safe."""
    queue = declare_shard()
    a = connect_consumer()
    a.open(1, 200)
    a.consume(1, queue.name, "0", 0, acks=True)
    late: list[Delivery] = []
    for raised in range(1, 101):
        queue.send(500)
        a.consume(1, queue.name, str(raised), raised, acks=True)
        mark = len(a.got())
        queue.confirm()
        a.wait_for(queue.published)
        late = [d for d in a.got()[mark:] if d.consumer_tag != str(raised)]
        if late:
            break
    assert late
    assert first_deliveries(a) == list(range(queue.published))


def test_raises_on_fresh_channels_keep_the_order_under_load(connect_consumer: Connect, declare_shard: Declare) -> None:
    """Three members raise in turn, each on a channel of its own that replaces its last one, which is closed bare.

    A member closes its last channel while messages may still be on their way to it. They come again, in order.
    """
    queue = declare_shard()
    members = [connect_consumer() for _ in range(3)]
    for member in members:
        member.open(1, 20)
        member.consume(1, queue.name, "1", 0, acks=True)
    for epoch in range(90):
        member, old = members[epoch % 3], 1 + epoch // 3
        queue.send(40)
        member.open(old + 1, 20)
        member.consume(old + 1, queue.name, str(old + 1), epoch, acks=True)
        member.close(old)
    queue.confirm()
    wait_until("all messages", lambda: len(first_deliveries(*members)) == queue.published)
    assert first_deliveries(*members) == list(range(queue.published))


@pytest.mark.usefixtures("raising")
def test_a_holder_with_no_ack_gives_way_at_once(connect_consumer: Connect, declare_shard: Declare) -> None:
    """With no_ack the holder never has anything unacknowledged: a raise waits for nothing and loses nothing."""
    queue = declare_shard()
    a = connect_consumer()
    a.open(2, 10)
    a.ask(2, Basic.Consume(0, queue.name, "A", False, True, False, False, {"x-priority": 1}), Basic.ConsumeOk)
    queue.publish(100)
    b = waiting(connect_consumer, queue, 5)
    queue.publish(100)
    b.until("the last message", lambda: bool(b.deliveries) and b.deliveries[-1].number == 199)
    assert [d.number for d in a.got() + b.got()] == list(range(200))
