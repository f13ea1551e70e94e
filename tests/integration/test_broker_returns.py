"""RabbitMQ's part in the order of messages that come back: they wait behind those that came back before."""

import pytest

from tests.integration.consuming import LEAVING, Connect, Consumer, Declare, holder, runs

pytestmark = [pytest.mark.long, pytest.mark.versions]


def waits(connect: Connect, queue: str, tag: str, prefetch: int, priority: int) -> Consumer:
    """Return a consumer on channel 2 that acknowledges nothing."""
    made = connect()
    made.open(2, prefetch)
    made.consume(2, queue, tag, priority)
    return made


@pytest.mark.parametrize("how", LEAVING)
def test_a_smaller_prefetch_puts_what_came_back_out_of_order(
    connect_consumer: Connect, declare_shard: Declare, how: str
) -> None:
    """The second holder takes a part of what came back; when it ends as well, that part goes behind the rest."""
    queue = declare_shard()
    a = holder(connect_consumer, queue, 20, priority=3)
    b = waits(connect_consumer, queue.name, "B", 5, priority=2)
    c = waits(connect_consumer, queue.name, "C", 20, priority=1)
    LEAVING[how](a)
    assert runs(b.wait_for(5)) == "0-4R"
    LEAVING[how](b)
    assert runs(c.wait_for(20)) == "5-19R 0-4R"


@pytest.mark.parametrize("how", LEAVING)
def test_with_one_prefetch_for_all_consumers_what_came_back_stays_in_order(
    connect_consumer: Connect, declare_shard: Declare, how: str
) -> None:
    """Each holder takes all that came back, so nothing of it waits when the holder ends."""
    queue = declare_shard()
    a = holder(connect_consumer, queue, 20, priority=4)
    b, c, d = (
        waits(connect_consumer, queue.name, tag, 20, priority) for tag, priority in (("B", 3), ("C", 2), ("D", 1))
    )
    queue.publish(20)
    LEAVING[how](a)
    assert runs(b.wait_for(20)) == "0-19R"
    LEAVING[how](b)
    assert runs(c.wait_for(20)) == "0-19R"
    d.acking.add("D")
    LEAVING[how](c)
    assert runs(d.wait_for(40)) == "0-19R 20-39"


def test_a_channel_that_ends_amid_deliveries_returns_what_it_holds_in_order(
    connect_consumer: Connect, declare_shard: Declare
) -> None:
    """A gets messages at full rate, and B waits. A closes its channel, and B gets the rest.

    A channel must not return its messages by a nack just before, unless its consumer surely gets no more: then the
    broker gives it those once more, behind others that were on their way (run on 4.3.6: out of order in 15 of 25 tries,
    and in none of 25 without the nack).
    """
    for number in range(3):
        queue = declare_shard(f"q{number}")
        a, b = connect_consumer(), connect_consumer()
        for consumer, tag in ((a, "A"), (b, "B")):
            consumer.open(2, 20)
            consumer.consume(2, queue.name, tag, 1, acks=True)
        while len(a.got()) < 500:
            queue.send(3)
        a.close(2)
        queue.confirm()
        got = b.wait_for(queue.published - len({each.number for each in a.got()}))
        while got[-1].number < queue.published - 1:
            got = b.wait_for(len(got) + 1)
        assert sorted(got, key=lambda each: each.number) == got
