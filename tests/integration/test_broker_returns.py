"""RabbitMQ's part in the order of messages that come back: they wait behind those that came back before."""

import pytest

from tests.integration.consuming import LEAVING, Connect, Consumer, Declare, holder, runs

pytestmark = pytest.mark.versions


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
