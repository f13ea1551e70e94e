"""A session's publishes where the ring of an exchange routes a share of the slots only."""

import pytest

from proxy.outcome import Outcome
from proxy.routing.counters import Counters
from proxy.session.backlog import Wait
from proxy.topology.table import PassReason
from ring.hashing import slot_of
from ring.share import rank_of, slots_in
from tests.unit.proxy.session import wire
from tests.unit.proxy.session.wire import (
    QUEUES,
    Wire,
    ack,
    back,
    fed,
    header,
    message,
    published,
    queue,
    returned,
    ring,
    selecting,
)

HALF = 50.0
KEYS = [b"%d" % i for i in range(60)]
IN = [key for key in KEYS if rank_of(slot_of(key)) < slots_in(HALF)]
OUT = [key for key in KEYS if key not in IN]
LEFT = ring(queue("q1"), queue("q2"))
LOST = [key for key in IN if QUEUES.ring.owner_of(key) == queue("q3")]
OURS = 7


def sharing(percent: float = HALF, spare: int = 0) -> Wire:
    selection = selecting({"x": QUEUES})
    selection.take_share(percent)
    return Wire({"x": QUEUES}, confirming=True, selection=selection, spare=spare)


def reloaded(w: Wire, percent: float) -> None:
    w.tables.selection.take_share(percent)
    w.router.notify()


def test_a_key_outside_the_share_passes_byte_for_byte_and_one_inside_goes_as_ever() -> None:
    data = b"".join(message(1, b"x", key) for key in KEYS)
    went = published(fed(sharing, data).to_broker)
    by_ring = dict(zip(KEYS, published(sharing(100).client(data)), strict=True))
    as_sent = dict(zip(KEYS, published(data), strict=True))
    for key, each in zip(KEYS, went, strict=True):
        expected = by_ring[key] if key in IN else as_sent[key]
        assert (each.exchange, each.key, each.bits, len(each.header)) == (
            expected.exchange,
            expected.key,
            expected.bits,
            len(expected.header),
        )
        if key in OUT:
            assert each == expected


def outcomes(counters: Counters) -> tuple[int, int, dict[str, int]]:
    return counters.published, counters.acked, {d.name: n for d, n in counters.shadowed.items()}


def test_both_ways_of_one_channel_are_counted_apart() -> None:
    w = sharing()
    w.client(b"".join(message(1, b"x", key) for key in KEYS))
    w.broker(ack(1, len(KEYS), multiple=True))
    assert outcomes(w.counters("x")) == (len(IN), len(IN), {})
    owners = [QUEUES.ring.owner_of(key).name for key in OUT]
    would = {name: owners.count(name) for name in set(owners)}
    assert outcomes(w.counters("x", PassReason.SHARE)) == (len(OUT), len(OUT), would)
    assert w.counters("x", PassReason.SHARE).outcomes(Outcome.PASSED)[Outcome.PASSED] == len(OUT)


@pytest.mark.parametrize("percent", [0, 100])
def test_without_a_part_all_go_one_way(percent: float) -> None:
    w = sharing(percent)
    data = b"".join(message(1, b"x", key) for key in KEYS)
    assert (w.client(data) == data) is (percent == 0)
    published = [w.counters("x", reason).published for reason in (None, PassReason.SHARE)]
    assert published == ([len(KEYS), 0] if percent else [0, len(KEYS)])


def test_a_native_publish_that_comes_back_goes_to_its_client_and_not_to_the_ring() -> None:
    """On a channel that publishes through the ring, too: its own id would tell one of those."""
    w = sharing(spare=OURS)
    w.client(message(1, b"x", IN[0]))
    w.client(wire.publish(1, b"x", OUT[0], 1) + header(1, 0))
    comes_back = returned(1, b"x", OUT[0]) + header(1, 0)
    assert w.both(comes_back) == (b"", comes_back)
    assert w.broker(ack(1, 2, multiple=True)) == ack(1, 2, multiple=True)


def test_one_that_its_ring_has_lost_stays_in_the_ring() -> None:
    w = sharing(spare=OURS)
    w.both(back(w.client(message(1, b"x", LOST[0]))) + ack(1, 1))
    again, _ = w.reread({"x": LEFT})
    assert [each.key for each in published(again)] == [LEFT.ring.owner_of(LOST[0]).name.encode()]


def test_one_that_comes_back_after_the_share_was_lowered_is_native() -> None:
    w = sharing(spare=OURS)
    out = w.client(message(1, b"x", LOST[0]))
    reloaded(w, 0)
    again, _ = w.both(back(out) + ack(1, 1))
    (sent,) = published(again)
    assert (sent.exchange, sent.key) == (b"x", LOST[0])
    assert w.counters("x", PassReason.SHARE).published == 1
    # Returned by the exchange, too, it is in no queue: the client gets its nack.
    _, answer = w.both(back(again) + ack(OURS, 1))
    assert answer == wire.nack(1, 1)


def test_the_next_publish_follows_a_raised_share_once_all_before_is_settled() -> None:
    """One of those may come back, and must not be behind it."""
    w = sharing(0)
    data = message(1, b"x", IN[0])
    assert w.client(data) == data
    reloaded(w, HALF)
    assert w.client(data) == b""
    assert w.waits_for is Wait.OTHER_RING
    w.broker(ack(1, 1))
    (sent,) = published(w.resumed())
    assert (sent.exchange, sent.key) == (b"", QUEUES.ring.owner_of(IN[0]).name.encode())
    assert w.client(message(1, b"x", OUT[0])) == message(1, b"x", OUT[0])
