"""The hot loop: publishes to a ring."""

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands

from proxy.topology.table import PassReason
from ring.hashed import HashedValue
from tests.properties import examples
from tests.unit.proxy.session import wire
from tests.unit.proxy.session.streams import BY_HEADER, TRAILING, streams, with_ring
from tests.unit.proxy.session.wire import (
    HEARTBEAT,
    NOW,
    QUEUES,
    Wire,
    ack,
    as_it_is,
    body,
    chunks,
    fed,
    header,
    headers,
    known,
    long_string,
    made,
    message,
    nack,
    publish,
    published,
    ring,
    short,
    split,
)


@given(st.data())
@examples(60)
def test_with_a_ring_any_chunking_gives_the_same(data: st.DataObject) -> None:
    stream = data.draw(streams(st.sampled_from([b"x", b"t"])))
    outs = []
    for cuts in ([], range(len(stream)), data.draw(wire.cuts(stream))):
        w, out = Wire({"x": QUEUES, "t": known(None, PassReason.TYPE)}), b""
        for chunk in chunks(stream, cuts):
            out += w.client(chunk)
        outs.append(out)
    assert outs[0] == outs[1] == outs[2]
    before, after = published(stream), published(outs[0])
    for channel in (1, 2):
        theirs = [p for p in before if p.channel == channel]
        ours = [p for p in after if p.channel == channel]
        assert [p.body for p in ours] == [p.body for p in theirs]
        for one, other in zip(theirs, ours, strict=True):
            if one.exchange == b"t":
                assert other == one
            else:
                owner = QUEUES.ring.owner_of(one.key).name.encode()
                assert (other.exchange, other.key, other.bits) == (b"", owner, one.bits | 1)


def test_a_publish_to_a_ring_goes_to_the_owner_stamped() -> None:
    sent = commands.Basic.Properties(
        content_type="text/plain", headers={"a": 1, "b": "c"}, delivery_mode=2, app_id="me"
    )
    for key in (b"k1", b"", bytes(range(255)), "é".encode()):
        for bits in range(4):
            data = publish(1, b"x", key, bits) + wire.properties(1, 5, sent) + body(1, b"he") + body(1, b"llo")
            out = fed(with_ring, data + TRAILING)
            assert out.to_client == b""
            assert out.to_broker.endswith(TRAILING)
            (one,) = published(out.to_broker[: -len(TRAILING)])
            assert (one.exchange, one.key) == (b"", QUEUES.ring.owner_of(key).name.encode())
            assert (one.bits, one.body) == (bits | 1, b"hello")
            at = one.header.index(short("x-ring-routing-key")) + 19
            assert one.header[at : at + 5 + len(key)] == b"S" + pack(">I", len(key)) + key
            if key.isascii() or key == "é".encode():
                read = wire.properties_in(one.header)
                assert read.headers is not None
                got = dict(read.headers)
                assert got.pop("x-ring-exchange") == "x"
                assert got.pop("x-ring-routing-key") == key.decode()
                assert isinstance(got.pop("x-ring-id"), int)
                assert got == {"a": 1, "b": "c"}
                assert (read.content_type, read.delivery_mode, read.app_id) == ("text/plain", 2, "me")
            counters = out.wire.counters("x")
            assert (counters.published, counters.sent) == (1, 1)


STAMPED = 13 + len(b"x-ring-exchange") + len(b"x-ring-routing-key") + len(b"x-ring-id")

FLAGS = {
    "none": (0, b"", b""),
    "content type": (1 << 15, short("text/plain"), b""),
    "encoding": (1 << 14, short("gzip"), b""),
    "both": (3 << 14, short("text/plain") + short("gzip"), b""),
    "what follows": (1 << 12 | 1 << 11 | 1 << 2, b"", b"\x02\x05" + short("cluster")),
    "all": (3 << 14 | 1 << 12, short("a") + short(b"\xff\xfe"), b"\x01"),
    "a continuation": (1, b"\0\0", b""),
    "continuations": (1 << 15 | 1 << 12 | 1, b"\0\x03\0\x01\xff\xfe" + short("text/plain"), b"\x02anything"),
}


@pytest.mark.parametrize(("flags", "before", "after"), FLAGS.values(), ids=FLAGS)
@pytest.mark.parametrize("table", [None, b"", long_string(b"h", b"v"), long_string(b"h", b"v") * 2])
def test_properties_of_all_forms_keep_their_bytes(flags: int, before: bytes, after: bytes, table: bytes | None) -> None:
    theirs = before + (b"" if table is None else pack(">I", len(table)) + table) + after
    sent_flags = flags if table is None else flags | 1 << 13
    out = fed(with_ring, publish(1, b"x", b"k") + header(1, 0, sent_flags, theirs) + TRAILING)
    (one,) = published(out.to_broker[: -len(TRAILING)])
    assert one.header[12:14] == pack(">H", flags | 1 << 13)
    assert one.header[14:].startswith(before)
    at = 14 + len(before)
    size = int.from_bytes(one.header[at : at + 4], "big")
    entries, rest = one.header[at + 4 : at + 4 + size], one.header[at + 4 + size :]
    assert rest == after
    assert entries.endswith(table or b"")
    stamps = entries[: len(entries) - len(table or b"")]
    assert stamps.startswith(long_string(b"x-ring-exchange", b"x") + long_string(b"x-ring-routing-key", b"k"))


def test_the_clients_own_stamps_are_replaced_and_copies_cut() -> None:
    table = (
        wire.entry(b"x-ring-id", b"l", b"\xff" * 8)
        + long_string(b"keep", b"CC")
        + wire.entry(b"CC", b"A", pack(">I", 0))
        + long_string(b"x-ring-exchange", b"forged")
        + wire.entry(b"BCC", b"A", pack(">I", 6) + b"S" + pack(">I", 1) + b"z")
        + wire.entry(b"x-ring-other", b"t", b"\x01")
        + long_string(b"x-ring-routing-key", b"forged")
    )
    (one,) = published(fed(with_ring, publish(1, b"x", b"k") + headers(1, 0, table)).to_broker)
    assert b"forged" not in one.header
    assert one.header.endswith(long_string(b"keep", b"CC") + wire.entry(b"x-ring-other", b"t", b"\x01"))
    assert wire.properties_in(one.header).headers is not None
    for name in (b"x-ring-id", b"x-ring-exchange", b"x-ring-routing-key"):
        assert one.header.count(short(name)) == 1


def test_an_exchange_as_destination_keeps_key_and_copies() -> None:
    def outer() -> Wire:
        return Wire({"x": ring(wire.exchange("y")), "y": known(None, PassReason.TYPE)})

    copies = wire.entry(b"CC", b"A", pack(">I", 6) + b"S" + pack(">I", 1) + b"z") + long_string(b"x-ring-id", b"old")
    (one,) = published(
        fed(outer, publish(1, b"x", b"the.key") + headers(1, 0, copies) + TRAILING).to_broker[: -len(TRAILING)]
    )
    assert (one.exchange, one.key, one.bits) == (b"y", b"the.key", 1)
    assert one.header.endswith(wire.entry(b"CC", b"A", pack(">I", 6) + b"S" + pack(">I", 1) + b"z"))
    assert b"old" not in one.header


def test_rings_behind_rings_are_resolved() -> None:
    inner = ring(wire.queue("deep1"), wire.queue("deep2"))
    entries = {"x": ring(wire.exchange("y"), wire.queue("q")), "y": inner}
    w = Wire(entries)
    seen = set()
    for i in range(40):
        key = b"k%d" % i
        (one,) = published(w.client(message(1, b"x", key)))
        owner = entries["x"].ring.owner_of(key)
        owner = inner.ring.owner_of(key) if owner.kind == "exchange" else owner
        assert (one.exchange, one.key, one.body) == (b"", owner.name.encode(), b"hello")
        assert long_string(b"x-ring-exchange", b"x") in one.header
        seen.add(owner)
    assert len(seen) == 3
    assert (w.counters("x").published, w.counters("y").published) == (40, 0)


def test_a_cycle_passes_and_counts_as_one() -> None:
    def cycle() -> Wire:
        return Wire({"x": ring(wire.exchange("y")), "y": ring(wire.exchange("x"))})

    data = message(1, b"x", b"k") + TRAILING
    as_it_is(cycle, data)
    w = cycle()
    w.client(data)
    assert w.counters("x", PassReason.CYCLE).published == 1
    assert w.counters("x").published == 0


def test_shadow_passes_byte_for_byte_and_counts_where_it_would_go() -> None:
    def shadow() -> Wire:
        return Wire({"x": known(QUEUES, PassReason.SHADOW)})

    data = publish(1, b"x", b"k", 2) + headers(1, 5, long_string(b"CC", b"x-ring-id")) + body(1, b"hello")
    as_it_is(shadow, data)
    as_it_is(shadow, data + TRAILING)
    w = shadow()
    w.client(data * 3)
    counters = w.counters("x", PassReason.SHADOW)
    assert (counters.published, dict(counters.shadowed)) == (3, {QUEUES.ring.owner_of(b"k"): 3})
    assert not w.c.channels[1].routed


def test_a_shadowed_ring_does_not_wait_for_one_behind_it() -> None:
    w = Wire({"x": known(ring(wire.exchange("unread")), PassReason.SHADOW)})
    data = message(1, b"x", b"k")
    assert w.client(data) == data
    assert w.held is None


HEADER_VALUES = {
    "text": (b"S", pack(">I", 3) + b"abc", b"abc"),
    "bytes": (b"x", pack(">I", 2) + b"\xff\x00", b"\xff\x00"),
    "b": (b"b", b"\xff", b"-1"),
    "B": (b"B", b"\xff", b"255"),
    "s": (b"s", b"\xff\xfe", b"-2"),
    "u": (b"u", b"\xff\xfe", b"65534"),
    "I": (b"I", b"\xff\xff\xff\xff", b"-1"),
    "i": (b"i", b"\xff\xff\xff\xff", b"4294967295"),
    "l": (b"l", b"\xff" * 8, b"-1"),
    "T": (b"T", b"\0" * 7 + b"\x09", b"9"),
    "boolean": (b"t", b"\x01", b"true"),
    "nothing": (b"V", b"", None),
    "nothing in an array": (b"A", pack(">I", 1) + b"V", None),
    "double": (b"d", pack(">d", 19.5), b"19.5"),
    "array": (b"A", pack(">I", 4) + b"b\7b\x08", b"7"),
    "table": (b"F", pack(">I", 4) + b"\1ab\7", b'{"a":7}'),
    "large table": (b"F", pack(">I", 2000) + (b"\1ab\7" * 500), None),
    "decimal": (b"D", b"\1" + pack(">i", 195), b"19.5"),
}


@pytest.mark.parametrize(("kind", "value", "hashed"), HEADER_VALUES.values(), ids=HEADER_VALUES)
def test_a_hashed_header_of_each_type(kind: bytes, value: bytes, hashed: bytes | None) -> None:
    table = long_string(b"customers", b"no") + wire.entry(b"customer", kind, value) + long_string(b"customer", b"2nd")
    data = publish(1, b"x", b"key") + headers(1, 5, table) + body(1, b"hello")
    out = fed(lambda: Wire({"x": BY_HEADER}), data)
    (one,) = published(out.to_broker)
    assert one.key == BY_HEADER.ring.owner_of(hashed or b"").name.encode()
    assert out.wire.counters("x").value_missing == (hashed is None)


PROPERTY_VALUES = {
    "message_id": ("mid", b"mid"),
    "correlation_id": ("cid", b"cid"),
    "timestamp": (1700000000, b"1700000000"),
}


@pytest.mark.parametrize("name", PROPERTY_VALUES)
@pytest.mark.parametrize("present", [False, True])
@pytest.mark.parametrize("with_headers", [False, True])
def test_a_hashed_property(name: str, present: bool, with_headers: bool) -> None:
    by = ring(*(wire.queue(f"q{i}") for i in range(16)), hashed=HashedValue("property", name))
    flags = {"message_id": 1 << 7, "correlation_id": 1 << 10, "timestamp": 1 << 6}
    values = {"message_id": short("mid"), "correlation_id": short("cid"), "timestamp": pack(">Q", 1700000000)}
    sent = 1 << 15 | 1 << 12 | 1 << 11 | 1 << 9 | 1 << 8 | 1 << 4
    pieces = {1 << 15: short("t/p"), 1 << 12: b"\x02", 1 << 11: b"\x07", 1 << 9: short("r"), 1 << 8: short("60")}
    pieces[1 << 4] = short("user")
    for other, flag in flags.items():
        if (other == name) is present:
            sent, pieces[flag] = sent | flag, values[other]
    if with_headers:
        table = long_string(name.encode(), b"not this")
        sent, pieces[1 << 13] = sent | 1 << 13, pack(">I", len(table)) + table
    props = b"".join(pieces[flag] for flag in sorted(pieces, reverse=True))
    out = fed(lambda: Wire({"x": by}), publish(1, b"x", b"key") + header(1, 0, sent, props))
    (one,) = published(out.to_broker)
    assert one.key == by.ring.owner_of(PROPERTY_VALUES[name][1] if present else b"").name.encode()
    assert out.wire.counters("x").value_missing == (not present)
    assert one.header.endswith(props[props.index(b"\x02\x07") :])


def test_the_method_waits_for_its_header_and_the_body_for_nothing() -> None:
    w = with_ring()
    assert w.client(publish(1, b"x", b"k")) == b""
    head = header(1, 1000)
    assert w.client(head[:-1]) == b""
    assert len(split(w.client(head[-1:]))) == 2
    big = body(1, bytes(1000))
    assert w.client(big[:500]) == big[:500]
    assert w.client(big[500:501]) == big[500:501]
    assert w.client(big[501:] + HEARTBEAT) == big[501:] + HEARTBEAT
    assert w.c.to_broker.rest == b""


def test_half_of_a_body_frame_is_forwarded_the_other_way_too() -> None:
    w = Wire()
    big = made(1, commands.Basic.Deliver("c", 1, False, "e", "k")) + header(1, 1000) + body(1, bytes(1000))
    assert w.broker(big[:-500]) == big[:-500]
    assert w.broker(big[-500:]) == big[-500:]


@pytest.mark.parametrize("over", [-1, 0, 1])
@pytest.mark.parametrize("flagged", [False, True])
def test_a_header_that_would_not_fit_goes_unstamped(over: int, flagged: bool) -> None:
    """RabbitMQ closes the connection at one byte too many."""
    copies = wire.entry(b"CC", b"A", pack(">I", 0))

    def small() -> Wire:
        return Wire({"x": QUEUES}, frame_max=4096)

    def data(filling: int) -> bytes:
        if flagged:
            return publish(1, b"x", b"k") + headers(1, 0, copies + long_string(b"f", bytes(filling)))
        # The long property is not among the headers: 16 times content type is none, so pad after them.
        return publish(1, b"x", b"k") + header(1, 0, 1 << 12, bytes(filling))

    grown = len(published(small().client(data(0)))[0].header)
    filling = 4096 - 8 - grown + over
    out = fed(small, data(filling))
    (one,) = published(out.to_broker)
    assert (one.exchange, one.key) == (b"", QUEUES.ring.owner_of(b"k").name.encode())
    assert all(len(each.whole) <= 4096 for each in split(out.to_broker))
    assert (b"x-ring-" in one.header) is (over <= 0)
    assert b"CC" not in one.header


def test_publishes_are_counted_under_what_became_of_them() -> None:
    w = Wire(
        {"x": QUEUES, "t": known(None, PassReason.TYPE), "n": known(None, PassReason.NO_BINDINGS)}, confirming=True
    )
    w.client(message(1, b"x", b"k") * 3 + message(1, b"t", b"k") * 2 + message(1, b"n", b"k") + message(1, b"", b"q"))
    assert [w.counters("x").published, w.counters("t", PassReason.TYPE).published] == [3, 2]
    assert [w.counters("n", PassReason.NO_BINDINGS).published, w.counters("", PassReason.TYPE).published] == [1, 1]
    assert w.c.channels[1].confirms.unsettled == 7
    w.broker(ack(1, 7, True))
    assert [w.counters("x").acked, w.counters("t", PassReason.TYPE).acked] == [3, 2]
    assert w.c.channels[1].confirms.unsettled == 0


def test_one_confirm_after_another_is_timed() -> None:
    w = Wire({"x": QUEUES}, confirming=True)
    w.client(message(1, b"x", b"k") * 3)
    w.c.now = NOW + 2
    w.broker(ack(1, 2))
    assert w.samples == []
    w.broker(ack(1, 1))
    assert w.samples == [2]
    w.client(message(1, b"x", b"k"))
    w.c.now = NOW + 5
    w.broker(nack(1, 4, True))
    assert w.samples == [2, 3]
