"""Deliveries of hidden channels on their way to the client, in any chunking."""

from collections.abc import Callable
from struct import pack

import pytest
from pamqp import commands

from proxy.groups.consuming.tags import numbering_of
from proxy.session import broker_loop, client_loop
from proxy.session.broker_loop import BrokerFault
from tests.unit.proxy.groups.consuming import grouping
from tests.unit.proxy.groups.consuming.grouping import FIRST, Grouping, closed, deliver, is_close, seen
from tests.unit.proxy.session.wire import (
    HEARTBEAT,
    body,
    chunkings,
    close_channel,
    entry,
    header,
    headers,
    long_string,
    made,
    method,
    split,
)

A, B = FIRST + 1, FIRST + 2
"""The hidden channels of the two links of a member that joins first: the number before asked about the name."""


def joined(**more: object) -> Callable[[], Grouping]:
    def make() -> Grouping:
        made = Grouping()
        made.join(**more)  # type: ignore[arg-type]
        return made

    return make


def feed(wire: Grouping, chunking: list[bytes]) -> None:
    for chunk in chunking:
        broker_loop.from_broker(wire.c, chunk)


def fed(data: bytes, make: Callable[[], Grouping] | None = None, *, to_broker: bytes = b"") -> bytes:
    """Return what the client gets for these bytes of the broker's, which is the same in each chunking."""
    outcomes = set()
    for chunking in chunkings(data):
        wire = (make or joined())()
        feed(wire, chunking)
        assert wire.to_broker() == to_broker
        outcomes.add(wire.to_client())
    (outcome,) = outcomes
    return outcome


COUNTED = entry(b"x-acquired-count", b"l", pack(">q", 9)) + entry(b"x-delivery-count", b"l", pack(">q", 4))


@pytest.mark.parametrize(
    ("entries", "times"),
    [
        pytest.param(COUNTED, 9, id="counted by RabbitMQ 4.3"),
        pytest.param(entry(b"a", b"V", b"") + entry(b"x-delivery-count", b"l", pack(">q", 4)), 4, id="by older ones"),
        pytest.param(b"", 3, id="by a classic queue, so counted here"),
        pytest.param(long_string(b"x-delivery-count", b"many"), 3, id="a publisher's own header"),
        pytest.param(COUNTED[:-1], 3, id="a table that stops early"),
    ],
)
def test_redeliveries_are_counted_by_shard(entries: bytes, times: int) -> None:
    head = headers(A, 5, entries)
    first = deliver(A, 1, head=head) + deliver(B, 1)
    for chunking in chunkings(deliver(A, 2, redelivered=True, head=head) + deliver(A, 3, redelivered=True, head=head)):
        wire = Grouping()
        member = wire.join()
        feed(wire, [first])
        assert member.redelivered == {}
        feed(wire, chunking)
        feed(wire, [deliver(A, 4, redelivered=True, head=head, key=b"another"), first])
        feed(wire, [deliver(A, 5, redelivered=True, head=head)])
        assert list(member.redelivered) == ["q1"]
        counted = member.redelivered["q1"]
        assert (counted.count, counted.recent(wire.c.now)) == (4, times)


STAMPS = long_string(b"x-ring-exchange", b"x") + long_string(b"x-ring-routing-key", b"key") + entry(b"n", b"V", b"")


def test_a_delivery_is_shown_with_the_clients_tag_and_the_rings_exchange() -> None:
    assert fed(deliver(A, 1) + deliver(B, 1, b"") + deliver(A, 2, b"abc" * 9, piece=10, redelivered=True)) == (
        seen(1) + seen(2, b"") + seen(3, b"abc" * 9, piece=10, redelivered=True)
    )


def test_what_did_not_come_through_the_ring_is_shown_as_it_is() -> None:
    assert fed(deliver(A, 1, exchange=b"other", key=b"a.b")) == seen(1, exchange=b"other", key=b"a.b")
    assert fed(deliver(A, 1, exchange=b"x", key=b"native")) == seen(1, exchange=b"x", key=b"native")
    assert fed(deliver(A, 1, exchange=b"", key=b"q1")) == seen(1, exchange=b"", key=b"q1")


def test_a_lane_that_is_no_more_is_known_by_its_name() -> None:
    assert fed(deliver(A, 1, exchange=b"x.lane.9")) == seen(1, exchange=b"x")
    assert fed(deliver(A, 1, exchange=b"xy.lane.9")) == seen(1, exchange=b"xy.lane.9")


def test_a_message_that_was_sent_to_its_queue_is_shown_by_its_stamps() -> None:
    data = deliver(A, 1, exchange=b"", key=b"q1", head=headers(A, 5, STAMPS))
    assert fed(data) == seen(1, exchange=b"x", key=b"key", head=headers(1, 5, STAMPS))


@pytest.mark.parametrize(
    "entries",
    [
        long_string(b"x-ring-exchange", b"x"),
        long_string(b"note", long_string(b"x-ring-exchange", b"x") + long_string(b"x-ring-routing-key", b"key")),
        STAMPS[:-1] + b"?",
        entry(b"x-ring-exchange", b"I", b"abcd") + long_string(b"x-ring-routing-key", b"key"),
    ],
    ids=["one of them", "within another header", "a broken table", "no string"],
)
def test_headers_that_are_no_stamps_change_nothing(entries: bytes) -> None:
    data = deliver(A, 1, exchange=b"", key=b"q1", head=headers(A, 5, entries))
    expected = b"key" if entries.endswith(b"?") else b"q1"
    out = fed(data)
    assert expected in split(out)[0].payload or b"q1" in split(out)[0].payload
    assert split(out)[1:] == split(seen(1, head=headers(1, 5, entries)))[1:]


def test_deliveries_of_all_kinds_in_one_read_are_shown_as_if_each_came_alone() -> None:
    own = made(2, commands.Queue.DeclareOk("q", 1, 2))
    stamped = {"exchange": b"", "key": b"q1"}
    parts = [
        (deliver(A, 1), seen(1)),
        (deliver(A, 2, b""), seen(2, b"")),
        (deliver(B, 1, b"y" * 4096), seen(3, b"y" * 4096)),
        (deliver(B, 2, b"z" * 4097, piece=5000), seen(4, b"z" * 4097, piece=5000)),
        (HEARTBEAT, HEARTBEAT),
        (deliver(A, 3, head=headers(A, 5, STAMPS), **stamped), seen(5, key=b"key", head=headers(1, 5, STAMPS))),  # type: ignore[arg-type]
        (own, own),
        (deliver(A, 4, b"abc", piece=1), seen(6, b"abc", piece=1)),
        (deliver(B, 3, key=b""), seen(7, key=b"")),
        (deliver(FIRST + 9, 1), b""),
        (deliver(A, 5, redelivered=True, exchange=b"other"), seen(8, redelivered=True, exchange=b"other")),
    ]
    wire = joined()()
    together = wire.broker(b"".join(data for data, _ in parts))
    assert together == b"".join(shown for _, shown in parts)
    frames = wire.c.to_client.frames
    wire = joined()()
    assert [wire.broker(data) for data, _ in parts] == [shown for _, shown in parts]
    assert wire.c.to_client.frames == frames


def test_a_long_body_streams() -> None:
    wire = joined()()
    data = deliver(A, 1, bytes(100_000), piece=100_000)
    got = wire.broker(data[:50_000])
    assert len(got) > 49_000
    assert got + wire.broker(data[50_000:]) == seen(1, bytes(100_000), piece=100_000)


def test_contents_of_two_links_are_not_mixed_even_if_the_broker_does() -> None:
    one, other = deliver(A, 1, b"abcdef", piece=2), deliver(B, 1, b"uvwxyz", piece=3)
    a, b = [each.whole for each in split(one)], [each.whole for each in split(other)]
    for mixed in (
        [a[0], b[0], a[1], b[1], a[2], b[2], a[3], b[3], a[4]],
        [a[0], *b, *a[1:]],
        [*a[:3], *b, deliver(B, 2, b""), *a[3:]],
    ):
        out = fed(b"".join(mixed))
        assert out.startswith(seen(1, b"abcdef", piece=2) + seen(2, b"uvwxyz", piece=3)), mixed


def test_what_the_broker_says_on_the_clients_channel_waits_for_the_end_of_a_content() -> None:
    a = [each.whole for each in split(deliver(A, 1, b"abcdef", piece=2))]
    answer = made(1, commands.Queue.DeclareOk("q", 1, 2))
    other = made(2, commands.Queue.DeclareOk("q", 1, 2))
    data = b"".join([*a[:3], answer, other, HEARTBEAT, *a[3:]])
    assert fed(data) == b"".join(
        each.whole
        for each in [
            *split(seen(1, b"abcdef", piece=2))[:3],
            *split(other + HEARTBEAT),
            *split(seen(1, b"abcdef", piece=2))[3:],
            *split(answer),
        ]
    )


def test_deliveries_of_the_clients_own_channel_are_numbered_with_the_others() -> None:
    def make() -> Grouping:
        wire = Grouping()
        wire.client(grouping.consume(1, "p", "plain"))
        own = deliver(1, 1, consumer="p", exchange=b"")
        assert wire.broker(own) == own
        wire.join()
        return wire

    get = made(1, commands.Basic.GetOk(3, False, "e", "k", 0)) + header(1, 0)
    data = deliver(A, 1) + deliver(1, 2, consumer="p", exchange=b"") + deliver(B, 1) + get + deliver(A, 2)
    numbered_get = made(1, commands.Basic.GetOk(5, False, "e", "k", 0)) + header(1, 0)
    assert fed(data, make) == (seen(2) + seen(3, consumer="p", exchange=b"") + seen(4) + numbered_get + seen(6))


@pytest.mark.parametrize("cut", range(1, len(deliver(A, 1, b"abcdef", piece=3))))
def test_a_frame_of_the_proxys_waits_for_the_end_of_the_content(cut: int) -> None:
    """Wherever the socket's read has split the content: its cancel-ok, and nothing of what comes behind."""
    wire = joined()()
    data = deliver(A, 1, b"abcdef", piece=3)
    broker_loop.from_broker(wire.c, data[:cut])
    sent = wire.to_client()
    client_loop.from_client(wire.c, made(1, commands.Basic.Cancel("c")))
    sent += wire.to_client()
    closes = [each.channel for each in wire.frames() if is_close(each)]
    broker_loop.from_broker(wire.c, data[cut:] + deliver(B, 1) + deliver(A, 2))
    sent += wire.to_client()
    answer = made(1, commands.Basic.CancelOk("c"))
    # The first is whole if its method had come; the link that its client holds nothing of has ended at once.
    begun = cut >= len(split(data)[0].whole)
    assert sent == (seen(1, b"abcdef", piece=3) + answer if begun else answer)
    assert closes == ([B] if begun else [A, B])


def test_a_content_that_has_begun_is_finished_before_the_channels_close_ok() -> None:
    data = deliver(A, 1, b"abcdef", piece=2)
    for cut in range(len(split(data)[0].whole), len(data)):
        wire = joined()()
        broker_loop.from_broker(wire.c, data[:cut])
        sent = wire.to_client()
        out = split(wire.client(made(1, commands.Channel.Close(200, "", 0, 0))))
        assert sorted(each.channel for each in out if is_close(each)) == [1, A, B]
        broker_loop.from_broker(wire.c, data[cut:] + deliver(B, 1) + closed(1) + closed(B) + closed(A))
        sent += wire.to_client()
        assert sent == seen(1, b"abcdef", piece=2) + closed(1)
        assert set(wire.consuming.sources) == set()
        assert len(wire.consuming.free) == 20


def test_a_broker_that_breaks_a_content_is_no_broker() -> None:
    a = [each.whole for each in split(deliver(A, 1, b"abcdef", piece=2))]
    for data in (
        a[0] + a[0],
        a[1],
        a[0] + a[2],
        a[0] + a[1] + a[1],
        b"".join(a) + a[2],
        a[0] + a[1] + body(A, b"1234567"),
        a[0] + a[1] + made(A, commands.Basic.CancelOk("c")),
        method(A, 60, 60, b"\x01c" + bytes(9) + b"\x03ab") + b"".join(a[1:]),
        method(A, 60, 60, b"\x01c" + bytes(8)) + b"".join(a[1:]),
    ):
        for chunking in chunkings(data):
            with pytest.raises(BrokerFault):
                feed(joined()(), chunking)


def test_what_comes_on_a_number_that_is_free_is_dropped() -> None:
    """RabbitMQ 4.0 says again that it has closed a channel, until it has read the close-ok."""
    again = close_channel(FIRST + 9, 406, b"PRECONDITION_FAILED - delivery acknowledgement on channel timed out")
    assert fed(again + deliver(FIRST + 9, 4) + HEARTBEAT) == HEARTBEAT


def test_without_acks_nothing_is_remembered() -> None:
    wire = joined(no_ack=True)()
    assert wire.broker(deliver(A, 1) + deliver(B, 1)) == seen(1) + seen(2)
    numbering = numbering_of(wire.c.channels[1])
    assert numbering is not None
    assert numbering.unacked == {}
    assert wire.consuming.unacked == 0
