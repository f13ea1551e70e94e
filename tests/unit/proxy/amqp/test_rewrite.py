"""The hot loop: what passes as it is, what is rewritten, and what each mistake of a client is answered with."""

from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import base, commands

from proxy.amqp import closing, rewrite
from proxy.amqp.channel import State
from proxy.amqp.connection import Phase, Refused
from proxy.amqp.routes import UNANSWERED
from proxy.router import PassReason
from ring.hashed import HashedValue
from tests.unit.proxy.amqp import wire
from tests.unit.proxy.amqp.wire import (
    HEARTBEAT,
    NOW,
    QUEUES,
    Wire,
    ack,
    as_it_is,
    body,
    chunks,
    code_of,
    fed,
    frame,
    header,
    headers,
    known,
    long_string,
    made,
    message,
    method,
    nack,
    publish,
    published,
    ring,
    short,
    split,
)

TRAILING = made(2, commands.Basic.Qos(prefetch_count=3))


def no_ring() -> Wire:
    """Of types that no ring routes: a topic exchange and one that is passed by the settings."""
    return Wire({"t": known(None, PassReason.TYPE), "p": known(QUEUES, PassReason.MODE_PASS)})


def with_ring() -> Wire:
    return Wire({"x": QUEUES})


# What passes as it is.

PLAIN = {
    "a publish to the default exchange": message(1, b"", b"q"),
    "a publish to a topic exchange": message(1, b"t", b"a.b"),
    "any bytes as key": message(1, b"t", bytes(range(255))),
    "mandatory and immediate": message(1, b"t", b"k", bits=3),
    "an empty body": message(1, b"t", b"k", b""),
    "a body in frames": publish(1, b"t", b"k") + header(1, 7) + body(1, b"abc") + body(1, b"") + body(1, b"defg"),
    "a key of nothing": message(1, b"t", b""),
    "a name that is not UTF-8": message(1, b"\xff\xfe", b"k"),
    "acks": made(1, commands.Basic.Ack(3, True)) + made(1, commands.Basic.Nack(4)) + made(1, commands.Basic.Reject(5)),
    "a consume": made(1, commands.Basic.Consume(queue="q")),
    "an unknown method": method(1, 60, 999, b"\x01\x02"),
    "an unknown class": method(1, 9999, 1),
    "declarations": made(1, commands.Queue.Declare(queue="q")) + made(1, commands.Queue.Bind(queue="q", exchange="e")),
    "heartbeats": HEARTBEAT + HEARTBEAT,
    "a channel opened": made(3, commands.Channel.Open()) + message(3, b"t", b"k"),
    "a channel closed": made(1, commands.Channel.Close(200, "bye", 0, 0)),
    "a channel that is not open": made(9, commands.Basic.Qos()) + header(9, 2) + body(9, b"ab"),
    "a secret": made(0, commands.Connection.UpdateSecret("s", "r")),
}


@pytest.mark.parametrize("data", PLAIN.values(), ids=PLAIN)
def test_what_no_ring_routes_passes_as_it_is(data: bytes) -> None:
    as_it_is(no_ring, data)
    as_it_is(no_ring, data + TRAILING)


FROM_BROKER = {
    "acks": ack(1, 1) + ack(1, 5, True) + nack(1, 6),
    "an ack on a channel of nobody": ack(77, 1),
    "a delivery": made(1, commands.Basic.Deliver("ct", 1, False, "e", "k")) + header(1, 3) + body(1, b"abc"),
    "a return": wire.returned(1, b"t", b"k") + header(1, 3) + body(1, b"abc"),
    "a get": made(1, commands.Basic.GetOk(1, False, "e", "k", 0)) + header(1, 0),
    "an answer": made(1, commands.Queue.DeclareOk("q", 0, 0)) + made(1, commands.Exchange.DeclareOk()),
    "the channel's end": wire.close_channel(1, 404, b"NOT_FOUND - no exchange 'x' in vhost '/'"),
    "blocked": made(0, commands.Connection.Blocked("memory")) + made(0, commands.Connection.Unblocked()),
    "heartbeats": HEARTBEAT + HEARTBEAT,
    "a commit": made(1, commands.Tx.CommitOk()) + made(1, commands.Tx.RollbackOk()),
    "an open": made(0, commands.Connection.OpenOk()) + made(1, commands.Channel.OpenOk()),
}


@pytest.mark.parametrize("data", FROM_BROKER.values(), ids=FROM_BROKER)
@pytest.mark.parametrize("confirming", [False, True])
def test_what_the_broker_says_passes_as_it_is(data: bytes, confirming: bool) -> None:
    for trailing in (b"", TRAILING, HEARTBEAT):
        as_it_is(lambda: Wire(confirming=confirming), data + trailing, rewrite.from_broker)


keys = st.binary(max_size=255)
bodies = st.lists(st.binary(min_size=1, max_size=40), max_size=4)


@st.composite
def contents(draw: st.DrawFn, channel: int, exchanges: st.SearchStrategy[bytes]) -> list[bytes]:
    """The frames of one publish."""
    parts = draw(bodies)
    method = publish(channel, draw(exchanges), draw(keys), draw(st.integers(0, 3)))
    entries = draw(
        st.lists(
            st.one_of(
                st.builds(long_string, st.binary(max_size=9), st.binary(max_size=20)),
                st.builds(lambda name: wire.entry(name, b"V", b""), st.binary(max_size=5)),
            ),
            max_size=3,
        )
    )
    size = sum(map(len, parts))
    head = headers(channel, size, b"".join(entries)) if draw(st.booleans()) else header(channel, size)
    return [method, head, *(body(channel, part) for part in parts)]


def others(channel: int) -> st.SearchStrategy[list[bytes]]:
    """Frames of other kinds that change nothing."""
    return st.sampled_from(
        [
            [made(channel, commands.Basic.Ack(7, True))],
            [made(channel, commands.Basic.Consume(queue="q", nowait=True))],
            [made(channel, commands.Exchange.Declare(exchange="e", passive=True))],
            [made(channel, commands.Queue.Declare(queue="q", arguments={"a": 1}))],
            [made(channel, commands.Queue.Purge(queue="q"))],
            [method(channel, 77, 1, b"anything")],
            [made(channel, commands.Confirm.Select())],
            [HEARTBEAT],
        ]
    )


@st.composite
def streams(draw: st.DrawFn, exchanges: st.SearchStrategy[bytes]) -> bytes:
    """Frames of two channels, interleaved."""
    queues = {
        channel: [
            f
            for unit in draw(st.lists(st.one_of(contents(channel, exchanges), others(channel)), max_size=5))
            for f in unit
        ]
        for channel in (1, 2)
    }
    out = []
    while any(queues.values()):
        channel = draw(st.sampled_from([channel for channel, left in queues.items() if left]))
        out.append(queues[channel].pop(0))
    return b"".join(out)


@given(st.data())
def test_without_a_ring_output_equals_input(data: st.DataObject) -> None:
    stream = data.draw(streams(st.sampled_from([b"", b"t", b"p", b"\xff"])))
    w, out = no_ring(), b""
    for chunk in chunks(stream, data.draw(wire.cuts(stream))):
        out += w.client(chunk)
    assert out == stream
    assert w.c.events == []
    assert w.c.client_frames == len(split(stream))


def from_broker(channel: int) -> st.SearchStrategy[bytes]:
    content = header(channel, 5) + body(channel, b"ab") + body(channel, b"cde")
    return st.one_of(
        st.builds(ack, st.just(channel), st.integers(0, 2**64 - 1), st.booleans()),
        st.builds(nack, st.just(channel), st.integers(0, 2**64 - 1), st.booleans()),
        st.just(made(channel, commands.Basic.Deliver("c", 1, False, "e", "k")) + content),
        st.just(wire.returned(channel, b"t", b"k") + content),
        st.just(made(channel, commands.Queue.DeclareOk("q", 0, 0))),
        st.just(method(channel, 40, 11)),
        st.just(HEARTBEAT),
        st.binary(max_size=20).map(lambda arguments: method(channel, 99, 9, arguments)),
    )


@given(st.data())
def test_what_the_broker_sends_without_a_ring_equals_what_the_client_gets(data: st.DataObject) -> None:
    w, out = Wire({"t": known(None, PassReason.TYPE)}, confirming=True), b""
    for i in range(4):
        w.client(message(1, b"t", b"k%d" % i))
    parts = data.draw(st.lists(st.sampled_from([1, 2, 7]).flatmap(from_broker), max_size=8))
    stream = b"".join(parts)
    for chunk in chunks(stream, data.draw(wire.cuts(stream))):
        out += w.broker(chunk)
    assert out == stream


# Publishes to a ring.


@given(st.data())
@settings(max_examples=60)
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
            tally = out.wire.tally("x")
            assert (tally.published, tally.sent) == (1, 1)


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
    assert (w.tally("x").published, w.tally("y").published) == (40, 0)


def test_a_cycle_passes_and_counts_as_one() -> None:
    def cycle() -> Wire:
        return Wire({"x": ring(wire.exchange("y")), "y": ring(wire.exchange("x"))})

    data = message(1, b"x", b"k") + TRAILING
    as_it_is(cycle, data)
    w = cycle()
    w.client(data)
    assert w.tally("x", PassReason.CYCLE).published == 1
    assert w.tally("x").published == 0


def test_shadow_passes_byte_for_byte_and_counts_where_it_would_go() -> None:
    def shadow() -> Wire:
        return Wire({"x": known(QUEUES, PassReason.SHADOW)})

    data = publish(1, b"x", b"k", 2) + headers(1, 5, long_string(b"CC", b"x-ring-id")) + body(1, b"hello")
    as_it_is(shadow, data)
    as_it_is(shadow, data + TRAILING)
    w = shadow()
    w.client(data * 3)
    tally = w.tally("x", PassReason.SHADOW)
    assert (tally.published, dict(tally.shadowed)) == (3, {QUEUES.ring.owner_of(b"k"): 3})
    assert not w.c.channels[1].routed


def test_a_shadowed_ring_does_not_wait_for_one_behind_it() -> None:
    w = Wire({"x": known(ring(wire.exchange("unread")), PassReason.SHADOW)})
    data = message(1, b"x", b"k")
    assert w.client(data) == data
    assert w.held is None


BY_HEADER = ring(*(wire.queue(f"q{i}") for i in range(16)), hashed=HashedValue("header", "customer"))
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
    "boolean": (b"t", b"\x01", None),
    "nothing": (b"V", b"", None),
    "double": (b"d", b"\0" * 8, None),
    "array": (b"A", pack(">I", 0), None),
    "table": (b"F", pack(">I", 0), None),
    "decimal": (b"D", b"\0" * 5, None),
}


@pytest.mark.parametrize(("kind", "value", "hashed"), HEADER_VALUES.values(), ids=HEADER_VALUES)
def test_a_hashed_header_of_each_type(kind: bytes, value: bytes, hashed: bytes | None) -> None:
    table = long_string(b"customers", b"no") + wire.entry(b"customer", kind, value) + long_string(b"customer", b"2nd")
    data = publish(1, b"x", b"key") + headers(1, 5, table) + body(1, b"hello")
    out = fed(lambda: Wire({"x": BY_HEADER}), data)
    (one,) = published(out.to_broker)
    assert one.key == BY_HEADER.ring.owner_of(hashed or b"").name.encode()
    assert out.wire.tally("x").value_missing == (hashed is None)


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
    assert out.wire.tally("x").value_missing == (not present)
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
    assert w.c.client_rest == b""


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
    assert [w.tally("x").published, w.tally("t", PassReason.TYPE).published] == [3, 2]
    assert [w.tally("n", PassReason.NO_BINDINGS).published, w.tally("", PassReason.TYPE).published] == [1, 1]
    assert w.c.channels[1].confirms.unsettled == 7
    w.broker(ack(1, 7, True))
    assert [w.tally("x").acked, w.tally("t", PassReason.TYPE).acked] == [3, 2]
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


# What waits for a look-up.


def test_a_publish_to_an_unknown_exchange_is_held_and_goes_on() -> None:
    data = message(2, b"", b"q") + message(1, b"later", b"k") + message(1, b"later", b"k2") + TRAILING
    for chunking in wire.chunkings(data):
        w, out = Wire(), b""
        for chunk in chunking:
            out += w.client(chunk)
        assert w.held == "later"
        assert out == message(2, b"", b"q")
        w.router.put(("/", "later"), known(QUEUES))
        w.c.held = None
        out += w.client(b"")
        assert [p.body for p in published(out[: -len(TRAILING)])] == [b"hello"] * 3
        assert out.endswith(TRAILING)


def test_a_forced_route_is_for_its_exchange_only() -> None:
    """What was found out about one exchange says nothing of the next publish's."""
    w = Wire()
    w.client(message(1, b"absent", b"k") + message(1, b"other", b"k"))
    assert w.held == "absent"
    assert w.c.table is not None
    w.c.forced, w.c.held = w.c.table.absent(b"absent"), None
    assert w.client(b"") == message(1, b"absent", b"k")
    assert w.held == "other"


def test_a_ring_that_changes_between_method_and_header_is_asked_anew() -> None:
    w = Wire({"x": QUEUES})
    assert w.client(publish(1, b"x", b"k")) == b""
    w.router.drop(("/", "x"))
    assert w.client(header(1, 0)) == b""
    assert w.held == "x"
    w.router.put(("/", "x"), known(None, PassReason.NO_BINDINGS))
    w.c.held = None
    assert w.client(b"") == publish(1, b"x", b"k") + header(1, 0)
    assert w.tally("x", PassReason.NO_BINDINGS).published == 1


def test_a_publish_whose_channel_the_broker_closes_meanwhile_asks_no_more() -> None:
    """The broker drops it, so nothing is worth a look-up."""
    w = Wire({"x": QUEUES})
    assert w.client(publish(1, b"x", b"k")) == b""
    w.router.drop(("/", "x"))
    w.broker(wire.close_channel(1, 406, b"PRECONDITION_FAILED"))
    assert w.client(header(1, 0)) == publish(1, b"x", b"k") + header(1, 0)
    assert w.held is None
    assert w.client(made(1, commands.Channel.CloseOk())) == made(1, commands.Channel.CloseOk())
    assert 1 not in w.c.channels


# What no client may send.

GOOD = message(1, b"", b"q", b"before")
SMALL = 4096


def bad(code: int, data: bytes, kept: bytes = b"") -> tuple[int, bytes, bytes]:
    return code, data, kept


WITHOUT_END = body(1, b"hello")[:-1] + b"\0"

BAD = {
    "a method without its end": bad(501, made(1, commands.Basic.Qos())[:-1] + b"\0"),
    "a heartbeat without its end": bad(501, HEARTBEAT[:-1] + b"\x01"),
    "a frame too large": bad(501, method(1, 60, 999, bytes(SMALL))),
    "a body frame too large": bad(
        501,
        publish(1, b"", b"q") + header(1, 9999) + body(1, bytes(SMALL + 1)),
        publish(1, b"", b"q") + header(1, 9999),
    ),
    "an unknown type": bad(501, frame(4, 1, b"abc")),
    "an unknown type on channel 0": bad(501, frame(4, 0, b"abc")),
    "an unknown type on a channel of nobody": bad(501, frame(9, 99, b"abc")),
    "a header without method": bad(505, header(1, 3)),
    "a header on channel 0": bad(505, header(0, 3)),
    "a header of another class": bad(505, publish(1, b"", b"q") + header(1, 3, class_id=50), publish(1, b"", b"q")),
    "a body without header": bad(505, body(1, b"abc")),
    "a body after the method": bad(505, publish(1, b"", b"q") + body(1, b"abc"), publish(1, b"", b"q")),
    "a body longer than announced": bad(
        505, publish(1, b"", b"q") + header(1, 3) + body(1, b"abcd"), publish(1, b"", b"q") + header(1, 3)
    ),
    "a body after its end": bad(505, message(1, b"", b"q") + body(1, b"a"), message(1, b"", b"q")),
    "a body after an empty one": bad(505, message(1, b"", b"q", b"") + body(1, b"a"), message(1, b"", b"q", b"")),
    "a body on channel 0": bad(505, body(0, b"abc")),
    "a method for a header": bad(505, publish(1, b"", b"q") + publish(1, b"", b"q"), publish(1, b"", b"q")),
    "a method for a body": bad(
        505,
        publish(1, b"", b"q") + header(1, 3) + TRAILING.replace(b"\x01\0\x02", b"\x01\0\x01", 1),
        publish(1, b"", b"q") + header(1, 3),
    ),
    "a publish in a transaction's place": bad(503, method(0, 60, 40, b"\0\0\0\0\0")),
    "a channel method on channel 0": bad(503, made(0, commands.Channel.Open())),
    "tune-ok in a session": bad(503, made(0, commands.Connection.TuneOk())),
    "close-ok to nothing": bad(503, wire.CONNECTION_CLOSE_OK),
    "a connection method on an open channel": bad(503, made(1, commands.Connection.Close(200, "", 0, 0))),
    "a connection method on another": bad(503, made(9, commands.Connection.Open("/"))),
    "a channel too many": bad(530, made(2047, commands.Channel.Open())),
    "content on a channel too many": bad(530, body(2047, b"abc")),
    "an exchange past its frame": bad(502, method(1, 60, 40, b"\0\0\x09x\0\0")),
    "a key past its frame": bad(502, method(1, 60, 40, b"\0\0\x01x\x04k\0")),
    "a publish with more": bad(502, method(1, 60, 40, b"\0\0\x01x\x01k\0more")),
    "a publish with less": bad(502, method(1, 60, 40, b"\0\0\x01x\x01k")),
    "a short publish": bad(502, method(1, 60, 40, b"\0\0")),
    "no method": bad(502, frame(1, 1, b"")),
    "half a method": bad(502, frame(1, 1, b"\0\x3c\0")),
    "half a method on channel 0": bad(502, frame(1, 0, b"\0\x0a\0")),
    "half a header": bad(502, publish(1, b"", b"q") + frame(2, 1, b"\0\x3c" + bytes(11)), publish(1, b"", b"q")),
    "a declaration past its frame": bad(502, method(1, 50, 20, b"\0\0\x05q")),
    "a declaration without names": bad(502, method(1, 40, 10, b"\0\0")),
    "a ring's header past its frame": bad(502, publish(1, b"x", b"k") + header(1, 0, 1 << 13, b"\0\0\0\x09abc")),
    "a ring's header without its table": bad(502, publish(1, b"x", b"k") + header(1, 0, 1 << 13, b"\0\0")),
    "a ring's content type past its frame": bad(502, publish(1, b"x", b"k") + header(1, 0, 1 << 15, b"\x05a")),
    "a ring's content type missing": bad(502, publish(1, b"x", b"k") + header(1, 0, 1 << 15)),
    "a ring's encoding missing": bad(502, publish(1, b"x", b"k") + header(1, 0, 1 << 14)),
    "a ring's flags past their frame": bad(502, publish(1, b"x", b"k") + header(1, 0, 1)),
    "a value past its table": bad(502, publish(1, b"x", b"k") + headers(1, 0, b"\x02CCS\0\0\0\x09a")),
    "a size past its table": bad(502, publish(1, b"x", b"k") + headers(1, 0, b"\x02CCS\0\0")),
    "a name past its table": bad(502, publish(1, b"x", b"k") + headers(1, 0, b"\x09CC")),
    "a name and no more": bad(502, publish(1, b"x", b"k") + headers(1, 0, b"\x02CC")),
    "an unknown kind of value": bad(502, publish(1, b"x", b"k") + headers(1, 0, b"\x02CC?\0")),
    "a huge value": bad(502, publish(1, b"x", b"k") + headers(1, 0, b"\x02CCF\xff\xff\xff\xff")),
    "a hashed header among lies": bad(502, publish(1, b"h", b"k") + headers(1, 0, b"\x01aS\0\0\0\x20b")),
    "a hashed property past its frame": bad(502, publish(1, b"m", b"k") + header(1, 0, 1 << 6, b"\0\0")),
    "a hashed property before which one lies": bad(
        502, publish(1, b"m", b"k") + header(1, 0, 1 << 8 | 1 << 6, b"\x30\0")
    ),
}


def strict() -> Wire:
    by_time = ring(wire.queue("q1"), hashed=HashedValue("property", "timestamp"))
    return Wire({"x": QUEUES, "h": BY_HEADER, "m": by_time}, frame_max=SMALL)


@pytest.mark.parametrize(("code", "data", "kept"), BAD.values(), ids=BAD)
@pytest.mark.parametrize("after", [b"", TRAILING + GOOD], ids=["alone", "followed"])
def test_bad_input_closes_the_connection_with_its_code(code: int, data: bytes, kept: bytes, after: bytes) -> None:
    """What came before is forwarded, then both sides are told; what comes after goes nowhere."""
    stream = GOOD + data + after
    some = [[stream], [stream[i : i + 1] for i in range(len(stream))]]
    some += [[stream[:i], stream[i:]] for i in range(len(GOOD), min(len(stream), len(GOOD) + 60))]
    for chunking in some:
        w = strict()
        for chunk in chunking:
            rewrite.from_client(w.c, chunk)
        to_broker, to_client = w.to_broker(), w.to_client()
        assert to_broker.startswith(GOOD + kept)
        rest = to_broker[len(GOOD + kept) :]
        (answer,) = split(to_client)
        assert (answer.channel, answer.id, code_of(answer)) == (0, (10, 50), code)
        (goodbye,) = split(rest)
        assert (goodbye.channel, goodbye.id, code_of(goodbye)) == (0, (10, 50), 200)
        assert w.c.phase is Phase.REFUSING
        (event,) = w.c.events
        assert isinstance(event, Refused)
        assert event.code == code


@pytest.mark.parametrize("cut", range(1, 13))
def test_a_body_without_its_end_loses_the_broker(cut: int) -> None:
    """It is in the middle of a frame, where no close can be sent, and must not take that frame for whole."""
    w = Wire()
    data = publish(1, b"", b"q") + header(1, 10)
    assert w.client(data) == data
    rewrite.from_client(w.c, body(1, b"hello")[:cut])
    rewrite.from_client(w.c, WITHOUT_END[cut:] + GOOD)
    (answer,) = split(w.to_client())
    assert code_of(answer) == 501
    if cut >= 8:
        assert w.to_broker() == WITHOUT_END[:-1]
        assert w.c.broker_lost
    else:
        (goodbye,) = split(w.to_broker())
        assert goodbye.id == (10, 50)


def test_a_body_without_its_end_that_was_dropped_anyway() -> None:
    w = Wire({"x": QUEUES})
    w.client(publish(1, b"x", b"k"))
    refuse(w, 1)
    assert w.client(header(1, 10)) == b""
    assert w.client(WITHOUT_END[:9]) == b""
    rewrite.from_client(w.c, WITHOUT_END[9:])
    assert b"hell" not in w.to_broker()
    (answer,) = split(w.to_client())
    assert code_of(answer) == 501


def refuse(w: Wire, number: int) -> None:
    closing.refuse_channel(w.c, w.c.channels[number], 541, "no")
    assert w.c.channels[number].state == State.REFUSING
    w.to_broker()


def busy() -> Wire:
    """Connections in all states that a channel can be in."""
    return Wire({"x": QUEUES, "h": BY_HEADER, "t": known(None, PassReason.TYPE)}, confirming=True, frame_max=SMALL)


@given(st.data())
@settings(max_examples=300)
def test_no_bytes_of_a_clients_raise(data: st.DataObject) -> None:
    junk = data.draw(st.binary(max_size=200))
    w = busy()
    for chunk in chunks(junk, data.draw(wire.cuts(junk))):
        rewrite.from_client(w.c, chunk)


frames = st.builds(
    frame, st.sampled_from([1, 1, 1, 2, 3, 8, 4]), st.sampled_from([0, 1, 2, 9, 2047]), st.binary(max_size=60)
)
LOOKED_AT = [
    *((10, i) for i in (10, 11, 20, 21, 30, 31, 40, 41, 50, 51, 60, 70)),
    *((20, i) for i in (10, 11, 20, 40, 41)),
    *((40, i) for i in (10, 20, 30, 40)),
    *((50, i) for i in (10, 20, 30, 40, 50)),
    *((60, i) for i in (40, 60, 80, 120)),
    *((85, 10), (90, 10), (90, 20), (90, 30)),
]
methods = st.builds(
    lambda channel, ids, arguments: method(channel, ids[0], ids[1], arguments),
    st.sampled_from([0, 1, 1, 2, 9]),
    st.sampled_from(LOOKED_AT),
    st.binary(max_size=30),
)


@given(st.data())
@settings(max_examples=300)
def test_no_frames_of_a_clients_raise(data: st.DataObject) -> None:
    junk = b"".join(data.draw(st.lists(st.one_of(frames, methods, st.just(publish(1, b"x", b"k"))), max_size=8)))
    w = busy()
    for chunk in chunks(junk, data.draw(wire.cuts(junk))):
        rewrite.from_client(w.c, chunk)


@pytest.mark.parametrize("ids", LOOKED_AT)
@pytest.mark.parametrize("phase", [Phase.HANDSHAKE, Phase.RUNNING])
def test_methods_of_every_length_raise_nothing(ids: tuple[int, int], phase: Phase) -> None:
    for channel in (0, 1, 3):
        for filling in (b"\0", b"\x01", b"\x09", b"\xff"):
            for size in range(24):
                w = busy()
                w.c.phase = phase
                rewrite.from_client(w.c, method(channel, ids[0], ids[1], filling * size) + GOOD)


@given(st.data())
@settings(max_examples=300)
def test_valid_streams_with_a_few_bytes_changed_raise_nothing(data: st.DataObject) -> None:
    stream = bytearray(data.draw(streams(st.sampled_from([b"x", b"h", b"t", b""]))))
    for _ in range(data.draw(st.integers(1, 4))):
        if stream:
            stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del stream[: data.draw(st.integers(0, len(stream)))]
    w = busy()
    for chunk in chunks(bytes(stream), data.draw(wire.cuts(bytes(stream)))):
        rewrite.from_client(w.c, chunk)
    w.to_broker()


def test_a_broker_that_sends_no_frames_is_not_waited_for() -> None:
    w = Wire()
    with pytest.raises(rewrite.BrokerFault, match="frame of type"):
        rewrite.from_broker(w.c, b"HTTP/1.1 400 Bad Request\r\n")


@pytest.mark.parametrize(
    "sent",
    [
        frame(1, 1, b"\0\x0a"),
        frame(1, 0, b"\0\x0a\0\x0a\0\x09\0\0\xff\xff"),
        frame(1, 1, b"\0\x3c\0\x32\x01\x38\xff") + header(1, 0),
        frame(1, 1, b"\0\x3c\0\x50\0"),
    ],
    ids=["half a method", "a start cut short", "a return cut short", "half an ack"],
)
def test_a_broker_whose_frames_cannot_be_read_is_not_waited_for(sent: bytes) -> None:
    w = Wire({"x": QUEUES}, confirming=True)
    w.client(message(1, b"x", b"k"))
    with pytest.raises(rewrite.BrokerFault, match="cannot be read"):
        rewrite.from_broker(w.c, sent)


# Publishes after a declaration that the broker has not answered.


@pytest.mark.parametrize(
    ("declared", "answer"),
    [
        (commands.Exchange.Declare(exchange="x", exchange_type="topic"), commands.Exchange.DeclareOk()),
        (commands.Exchange.Delete(exchange="x", nowait=True), commands.Exchange.DeleteOk()),
        (commands.Queue.Bind(queue="q", exchange="x", routing_key="1", nowait=True), commands.Queue.BindOk()),
        (commands.Queue.Unbind(queue="q", exchange="x", routing_key="1"), commands.Queue.UnbindOk()),
        (commands.Queue.Delete(queue="q", nowait=True), commands.Queue.DeleteOk(1)),
        (commands.Exchange.Bind(destination="d", source="x"), commands.Exchange.BindOk()),
        (commands.Exchange.Unbind(destination="d", source="x"), commands.Exchange.UnbindOk()),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_publish_waits_for_the_answers_to_what_was_declared_before_it(
    declared: base.Frame, answer: base.Frame
) -> None:
    w = Wire({"x": QUEUES, "t": known(None, PassReason.TYPE)})
    default = message(1, b"", b"q")
    # The default exchange and other channels wait for nothing; no ring depends on what was declared there.
    sent = w.client(made(1, declared) * 2 + default + message(2, b"t", b"k") + message(1, b"x", b"k") + TRAILING)
    assert sent.endswith(default + message(2, b"t", b"k"))
    assert w.c.held is UNANSWERED
    w.broker(made(1, answer))
    assert w.c.channels[1].declaring == 1
    w.broker(made(1, answer))
    assert w.c.channels[1].declaring == 0
    w.c.held = None
    (published_,) = published(sent := w.client(b""))
    assert published_.exchange == b""
    assert sent.endswith(TRAILING)


@pytest.mark.parametrize(
    "request_",
    [
        commands.Exchange.Declare(exchange="x", passive=True),
        commands.Queue.Declare(queue="q"),
        commands.Queue.Purge(queue="q"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_publish_does_not_wait_for_what_changes_no_ring(request_: base.Frame) -> None:
    w = with_ring()
    assert published(w.client(made(1, request_) + message(1, b"x", b"k")))
    assert w.held is None


@pytest.mark.parametrize("size", [(1 << 31) + 3, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_a_body_may_be_announced_with_64_bits(size: int) -> None:
    w = Wire({"t": known(None, PassReason.TYPE)})
    data = publish(1, b"t", b"k") + header(1, size) + body(1, b"abc")
    assert w.client(data) == data
    assert w.c.channels[1].left == size - 3
