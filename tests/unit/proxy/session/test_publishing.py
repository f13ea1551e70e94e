"""One publish to a ring: whether it is counted, numbered and sent belong together."""

from struct import pack

import pytest

from proxy.session import client_loop
from proxy.session.publishing import publish as publishing
from proxy.session.publishing.confirms import PublishNote
from proxy.topology.table import PassReason
from tests.unit.proxy.session.wire import (
    NOW,
    QUEUES,
    Wire,
    body,
    entry,
    exchange,
    header,
    headers,
    known,
    message,
    publish,
    published,
    ring,
)

COPIES = entry(b"CC", b"A", pack(">I", 0))


def test_a_publish_that_cannot_be_read_is_not_counted() -> None:
    w = Wire({"x": QUEUES}, confirming=True)
    client_loop.from_client(w.c, publish(1, b"x", b"k") + headers(1, 0, b"\x02CC"))
    counters, confirms = w.counters("x"), w.c.channels[1].confirms
    assert (counters.published, confirms.number, confirms.unsettled) == (0, 0, 0)


def test_nothing_is_counted_while_a_publish_is_held() -> None:
    w = Wire({"x": ring(exchange("unread"))}, confirming=True)
    assert w.client(publish(1, b"x", b"k") + header(1, 0)) == b""
    assert (w.held, w.counters("x").published, w.c.to_broker.frames) == ("unread", 0, 1)
    w.router.put(("/", "unread"), known(QUEUES))
    (one,) = published(w.resumed())
    assert one.key == QUEUES.ring.owner_of(b"k").name.encode()
    assert (w.counters("x").published, w.c.to_broker.frames) == (1, 2)


@pytest.mark.parametrize("at_header", [False, True])
def test_the_publish_that_is_held(at_header: bool) -> None:
    w = Wire({"x": ring(exchange("unread"))})
    w.client(message(2, b"x" if at_header else b"other", b"some key"))
    assert publishing.held_publish(w.c.channels[2]) == (b"x" if at_header else b"other")


def test_every_bit_of_the_clients_is_kept() -> None:
    for bits in (0, 1, 2, 3, 0x80, 0xFF):
        w = Wire({"x": QUEUES})
        (one,) = published(w.client(message(1, b"x", b"k", bits=bits)))
        assert one.bits == bits | 1


def test_what_is_remembered_of_a_publish() -> None:
    """Only what its return cannot say."""
    w = Wire({"x": QUEUES}, frame_max=4096, confirming=True)
    kept = w.c.channels[1].confirms.notes
    w.client(message(1, b"x", b"k") + publish(1, b"x", b"k") + headers(1, 0, COPIES))
    assert kept == {2: PublishNote(COPIES)}
    w.client(publish(1, b"x", b"k") + header(1, 0, 1 << 12, bytes(4060)))
    owner = QUEUES.ring.owner_of(b"k").name.encode()
    assert list(kept) == [2, 3]
    assert kept[3][:5] == (b"", owner, b"", b"x", b"k")
    assert kept[3].ring_id


def test_numbers_go_on_over_all_ways_of_a_channel() -> None:
    w = Wire({"x": QUEUES, "t": known(None, PassReason.TYPE), "s": known(QUEUES, PassReason.SHADOW)}, confirming=True)
    for count, name in enumerate((b"x", b"t", b"s", b"", b"x"), 1):
        w.client(message(1, name, b"k"))
        assert w.c.channels[1].confirms.number == count
    assert w.c.channels[2].confirms.number == 0
    assert w.c.channels[1].sampled_at == NOW


def test_channels_are_told_to_have_been_routed_only_by_rings() -> None:
    w = Wire({"x": QUEUES, "t": known(None, PassReason.TYPE)})
    w.client(message(1, b"t", b"k") + publish(2, b"x", b"k"))
    assert [w.c.channels[n].routed for n in (1, 2)] == [False, False]
    w.client(header(2, 1) + body(2, b"a"))
    assert [w.c.channels[n].routed for n in (1, 2)] == [False, True]
