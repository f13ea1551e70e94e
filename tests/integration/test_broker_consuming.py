"""RabbitMQ itself with several consumers of one queue with single active consumer: who leaves how.

Consumer groups stand on this. No sidecar takes part. In these tests A is the active consumer and B waits; `0-9R` are
the messages 0 to 9, redelivered.
"""

from collections.abc import Callable

import pytest
from pamqp.commands import Basic

from tests.integration.consuming import (
    LEAVING,
    Behaviour,
    Connect,
    Consumer,
    Declare,
    holder,
    runs,
    waiting,
)

pytestmark = [pytest.mark.long, pytest.mark.versions]

KINDS = ["quorum", "classic"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", LEAVING)
def test_a_holder_that_closes_without_a_cancel_leaves_its_messages_in_order(
    connect_consumer: Connect, declare_shard: Declare, kind: str, way: str
) -> None:
    """The next consumer gets what was unacknowledged first, redelivered, and then what follows."""
    queue = declare_shard(kind=kind)
    a, b = holder(connect_consumer, queue, 50), waiting(connect_consumer, queue)
    queue.publish(50)
    LEAVING[way](a)
    assert runs(b.wait_for(100)) == "0-49R 50-99"


@pytest.mark.parametrize("kind", KINDS)
def test_the_close_of_one_channel_touches_no_other_channel_of_the_connection(
    connect_consumer: Connect, declare_shard: Declare, kind: str
) -> None:
    """A consumes two queues on two channels with high numbers. It closes one, and goes on with the other."""
    one, two = declare_shard("one", kind), declare_shard("two", kind)
    a, b = connect_consumer(), connect_consumer()
    a.open(1)
    top = a.wire.tune.channel_max
    for channel, queue in ((top, one), (top - 1, two)):
        a.open(channel, 10)
        a.consume(channel, queue.name, "A")  # the same tag on two channels
        queue.publish(20)
    a.wait_for(20)
    for channel, queue in ((1, one), (2, two)):
        b.open(channel, 10)
        b.consume(channel, queue.name, queue.name, acks=True)
    a.close(top)
    assert runs(b.wait_for(20, "one")) == "0-9R 10-19"
    a.tell(top - 1, Basic.Ack(10, True))
    a.wait_for(30)
    assert runs(d for d in a.got() if d.channel == top - 1) == "0-19"
    b.settle(2)
    assert not b.got("two")


AFTER_A_CANCEL: dict[str, Callable[[Consumer], None]] = {
    "nothing more": lambda a: None,
    "nack": lambda a: a.tell(2, Basic.Nack(0, True, True)),
    "recover": lambda a: a.tell(2, Basic.Recover(True)),
    "channel.close": lambda a: a.close(2),
}


@pytest.mark.parametrize("after", AFTER_A_CANCEL)
def test_a_cancel_with_unacknowledged_messages_breaks_the_order(
    connect_consumer: Connect, declare_shard: Declare, after: str
) -> None:
    """The next consumer gets what follows while the one that cancelled still holds what comes before."""
    queue = declare_shard()
    a, b = holder(connect_consumer, queue, 50), waiting(connect_consumer, queue)
    queue.publish(50)
    a.cancel(2, "A")
    assert runs(b.wait_for(50)) == "50-99"
    AFTER_A_CANCEL[after](a)
    if after != "nothing more":
        assert runs(b.wait_for(100)) == "50-99 0-49R"


def test_a_nack_of_everything_before_the_cancel_breaks_the_order_too(
    connect_consumer: Connect, declare_shard: Declare
) -> None:
    """The holder is still active when it returns its messages, so it is given the ones that follow."""
    queue = declare_shard()
    a, b = holder(connect_consumer, queue, 50), waiting(connect_consumer, queue)
    queue.publish(150)
    a.tell(2, Basic.Nack(0, True, True))
    a.cancel(2, "A")
    assert b.wait_for(50)[0].number > 0


@pytest.mark.parametrize("raised", [True, False], ids=["another has raised", "nobody has raised"])
def test_messages_withheld_after_a_cancel_of_the_client_go_on_in_order_by_a_bare_close(
    connect_consumer: Connect, declare_shard: Declare, raised: bool
) -> None:
    """The client acknowledges 0 to 9, which it has. 10 to 14, which it was never given, return with the channel."""
    queue = declare_shard()
    a, b = holder(connect_consumer, queue, 10), waiting(connect_consumer, queue)
    queue.publish(90)
    a.tell(2, Basic.Ack(5, True))
    a.wait_for(15)
    if raised:
        b.consume(2, queue.name, "B raised", 5, acks=True)
    a.tell(2, Basic.Ack(10, True))
    a.close(2)
    numbers = [d.number for d in b.wait_for(90)]
    assert numbers == list(range(10, 100))


def test_withheld_messages_that_are_nacked_before_a_cancel_need_somebody_who_has_raised(
    connect_consumer: Connect, declare_shard: Declare, rabbitmq: Behaviour
) -> None:
    """Where all wait with the same priority, the nacked ones come to the next consumer behind later ones."""
    for raised in (True, False):
        queue = declare_shard(f"raised {raised}")
        a, b = holder(connect_consumer, queue, 10), waiting(connect_consumer, queue)
        queue.publish(90)
        a.tell(2, Basic.Ack(5, True))
        a.wait_for(15)
        if raised:
            b.consume(2, queue.name, "B raised", 5, acks=True)
        a.tell(2, Basic.Ack(10, True), Basic.Nack(15, True, True))
        a.cancel(2, "A")
        b.wait_for(80)
        assert (b.got()[0].number == 10) == (raised and rabbitmq.raises)
