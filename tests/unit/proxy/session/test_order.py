"""A channel takes another ring of an exchange once all that it has published before is settled."""

from dataclasses import replace

import pytest
from pamqp import commands

from proxy.routing.route import PASSED
from proxy.session.backlog import Wait
from proxy.session.publishing.order import MOST_EXCHANGES, Order
from proxy.session.publishing.parking import MOST_HELD
from proxy.topology.table import Entry, PassReason
from tests.unit.proxy.session.republishing import KEPT, LEFT, LOST, OURS, again, away, connected, frames_of
from tests.unit.proxy.session.wire import (
    A_MOMENT,
    NOW,
    QUEUES,
    VHOST,
    Wire,
    ack,
    back,
    close_channel,
    exchange,
    known,
    laned,
    made,
    message,
    nack,
    published,
    queue,
    ring,
)


def changed(w: Wire, name: str = "x") -> None:
    w.router.put((VHOST, name), known(LEFT))


def keys(sent: bytes) -> list[bytes]:
    """The queues of the messages that went out straight to one."""
    return [one.key for one in published(sent)]


def test_a_publish_waits_for_the_answers_to_those_before_it_once_the_ring_has_changed() -> None:
    w = connected()
    w.client(message(1, b"x", KEPT[0]) + message(1, b"x", LOST[0]))
    changed(w)
    assert w.client(message(1, b"x", LOST[1]) + message(1, b"t", b"k")) == b""
    assert w.waits_for is Wait.OTHER_RING
    # Other channels go on.
    assert keys(w.client(message(2, b"x", LOST[1]))) == [LEFT.ring.owner_of(LOST[1]).name.encode()]
    assert w.broker(ack(1, 2)) == ack(1, 2)
    assert w.client(b"") == b""
    assert w.broker(nack(1, 1)) == nack(1, 1)
    assert [one.exchange for one in published(w.client(b""))] == [b"", b"t"]
    # From then on, nothing waits.
    assert len(published(w.client(message(1, b"x", LOST[2])))) == 1
    assert w.c.waiting.size == 0


def test_what_comes_back_goes_out_before_the_publish_that_waits() -> None:
    w, (one,) = away()
    w.both(ack(1, 1))
    assert w.client(message(1, b"x", LOST[0], b"behind")) == b""
    assert w.waits_for is Wait.OTHER_RING
    assert w.both(ack(OURS, 1)) == (b"", ack(1, 1))
    (behind,) = published(w.client(b""))
    assert (behind.channel, behind.key, behind.body) == (1, one.key, b"behind")


def test_a_ring_that_is_read_again_and_found_the_same_holds_nothing_up() -> None:
    w = connected()
    w.client(message(1, b"x", KEPT[0]))
    w.router.put((VHOST, "x"), known(ring(queue("q1"), queue("q2"), queue("q3"))))
    w.router.notify()
    assert len(published(w.client(message(1, b"x", KEPT[1])))) == 1


def test_another_exchange_of_the_channel_holds_nothing_up() -> None:
    w = connected()
    w.client(message(1, b"same", b"k") + message(1, b"t", b"k"))
    changed(w)
    assert len(published(w.client(message(1, b"x", b"k") + message(1, b"same", b"k")))) == 2


def test_publishes_by_turns_to_two_exchanges_are_told_apart() -> None:
    w = connected()
    for _ in range(3):
        assert len(published(w.client(message(1, b"x", b"k") + message(1, b"same", b"k")))) == 2
    changed(w)
    assert len(published(w.client(message(1, b"same", b"k")))) == 1
    assert w.client(message(1, b"x", b"k")) == b""


def test_a_publish_that_passes_now_waits_as_well() -> None:
    """A message that comes back passes, too, and may go to the same queue."""
    w = connected()
    w.client(message(1, b"x", b"k") + message(1, b"t", b"k"))
    w.router.put((VHOST, "x"), known(None, PassReason.NO_BINDINGS))
    assert w.client(message(1, b"x", b"k")) == b""
    w.broker(ack(1, 2, True))
    assert [one.exchange for one in published(w.client(b""))] == [b"x"]
    # The broker returns nothing of it to this proxy.
    changed(w)
    assert len(published(w.client(message(1, b"x", b"k")))) == 1


@pytest.mark.parametrize("confirming", [False, True])
def test_without_confirms_and_in_a_transaction_nothing_waits(confirming: bool) -> None:
    w = connected(confirming=False)
    if confirming:
        w.client(made(1, commands.Tx.Select()))
    w.client(message(1, b"x", b"k"))
    changed(w)
    assert len(published(w.client(message(1, b"x", b"k")))) == 1


@pytest.mark.parametrize(("before", "after"), [(known(QUEUES), laned()), (laned(), known(QUEUES))])
def test_another_way_to_the_same_queue_is_another_ring(before: Entry, after: Entry) -> None:
    """A message that comes back from a lane goes straight to the queue, and later ones must not be there."""
    w = connected(x=before)
    lost = w.client(message(1, b"x", b"k", b"first"))
    w.router.put((VHOST, "x"), replace(after, read_at=NOW + A_MOMENT))
    assert w.client(message(1, b"x", b"k", b"second")) == b""
    w.c.now += 2 * A_MOMENT
    w.both(back(lost))
    if w.awaited is not None:
        w.reread({"x": after})
    w.both(ack(1, 1) + ack(OURS, 1))
    assert [one.body for one in published(w.client(b""))] == [b"second"]


def test_a_ring_behind_the_ring_is_another_ring() -> None:
    through = known(ring(exchange("inner")))
    w = Wire({"x": through, "inner": QUEUES}, confirming=True, spare=OURS)
    w.client(message(1, b"x", b"k"))
    w.router.notify()
    assert len(published(w.client(message(1, b"x", b"k")))) == 1
    changed(w, "inner")
    assert w.client(message(1, b"x", b"k")) == b""
    w.broker(ack(1, 2, True))
    assert len(published(w.client(b""))) == 1


def test_what_was_given_up_does_not_go_out_behind_later_ones() -> None:
    """A queue that hangs holds its channel up for a moment. If it is gone in the end, the client gets a nack."""
    w = connected()
    hung = w.client(message(1, b"x", LOST[0], b"hangs"))
    changed(w)
    w.client(message(1, b"x", LOST[0], b"goes on"))
    channel = w.c.channels[1]
    channel.order.give_up(channel.confirms.number)
    assert w.backlog is not None
    w.backlog.awaited = None
    (gone_on,) = published(w.client(b""))
    assert gone_on.body == b"goes on"
    assert w.both(back(hung) + ack(1, 1)) == (b"", nack(1, 1))
    # It is of no concern to what is published since.
    lost = w.client(message(1, b"x", KEPT[0]))
    w.both(back(lost))
    (one,) = again(w.reread({"x": ring(queue("q7"))})[0])
    assert one.key == b"q7"


def test_one_queue_that_hangs_holds_a_channel_up_once() -> None:
    w = connected()
    w.client(message(1, b"x", LOST[0], b"hangs"))
    changed(w)
    assert w.client(message(1, b"x", b"k")) == b""
    channel = w.c.channels[1]
    channel.order.give_up(channel.confirms.number)
    assert w.backlog is not None
    w.backlog.awaited = None
    assert len(published(w.client(b""))) == 1
    w.router.put((VHOST, "x"), known(ring(queue("q7"))))
    assert w.client(message(1, b"x", b"k")) == b""  # until the second publish has its answer
    w.broker(ack(1, 2))
    assert len(published(w.client(b""))) == 1


def test_exchanges_that_pass_take_no_room_of_those_with_rings() -> None:
    order, w = Order(), connected()
    w.client(message(1, b"x", b"k"))
    confirms = w.c.channels[1].confirms
    assert all(order.may_take(b"t%d" % n, PASSED + "t", confirms, False) for n in range(2 * MOST_EXCHANGES))
    assert order.may_take(b"x", "ring", confirms, False)


def test_what_comes_back_twice_stays_before_what_came_back_once() -> None:
    """The queue that took the first one's place is gone as well, before the second one comes back."""
    w = connected()
    first, second = (w.client(message(1, b"x", LOST[0], each)) for each in (b"first", b"second"))
    w.both(back(first))
    (once,) = again(w.reread({"x": ring(queue("q8"))})[0])
    w.router.put((VHOST, "x"), known(ring(queue("q9"))))
    assert w.both(back(second)) == (b"", b"")
    sent, _ = w.both(back(frames_of(once)))
    sent += w.both(ack(OURS, 1))[0]
    assert [(one.key, one.body) for one in again(sent)] == [(b"q9", b"first"), (b"q9", b"second")]


def test_the_exchanges_that_a_channel_remembers_have_a_limit() -> None:
    order, w = Order(), connected()
    w.client(message(1, b"x", b"k"))
    confirms = w.c.channels[1].confirms
    assert all(order.may_take(b"%d" % n, "ring", confirms, False) for n in range(MOST_EXCHANGES))
    assert not order.may_take(b"one more", "ring", confirms, False)
    w.broker(ack(1, 1))
    assert order.may_take(b"one more", "ring", confirms, False)


def test_a_channel_that_the_broker_closes_waits_no_more() -> None:
    w = connected()
    w.client(message(1, b"x", b"k"))
    changed(w)
    assert w.client(message(1, b"x", b"k")) == b""
    w.broker(close_channel(1, 406, b"PRECONDITION_FAILED"))
    w.client(b"")
    assert w.c.waiting.size == 0


def test_what_waits_for_the_broker_has_a_limit() -> None:
    """The broker has to be read for its answers, and gives back more meanwhile."""
    w, size = connected(), 130_000
    fits = MOST_HELD // size + 1
    bodies = [b"first", *[bytes(size)] * (fits + 5)]
    sent = [w.client(message(1, b"x", LOST[0], each)) for each in bodies]
    w.both(back(sent[0]))
    w.reread({"x": ring(queue("q8"))})
    w.router.put((VHOST, "x"), known(ring(queue("q9"))))
    for each in sent[1:]:
        assert w.both(back(each)) == (b"", b"")
    # Those beyond the limit are nacked.
    kept = len(w.c.republishing.parking._by_exchange[b"x"])
    assert fits - 5 < kept <= fits
    _, told = w.both(ack(1, len(sent), True))
    assert told == b"".join(nack(1, n) for n in range(kept + 2, len(sent) + 1))
    out, told = w.both(ack(OURS, 1))
    assert told == ack(1, 1, True)
    assert len(again(out)) == kept
