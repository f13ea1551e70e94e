"""The hot loop: what passes as it is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands

from proxy.session import broker_loop, client_loop
from proxy.topology.table import PassReason
from tests.unit.proxy.session import wire
from tests.unit.proxy.session.streams import TRAILING, no_ring, streams
from tests.unit.proxy.session.wire import (
    HEARTBEAT,
    Wire,
    ack,
    as_it_is,
    body,
    chunks,
    header,
    known,
    made,
    message,
    method,
    nack,
    publish,
    split,
)

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
        as_it_is(lambda: Wire(confirming=confirming), data + trailing, broker_loop.from_broker)


@given(st.data())
def test_without_a_ring_output_equals_input(data: st.DataObject) -> None:
    stream = data.draw(streams(st.sampled_from([b"", b"t", b"p", b"\xff"])))
    w, out = no_ring(), b""
    for chunk in chunks(stream, data.draw(wire.cuts(stream))):
        out += w.client(chunk)
    assert out == stream
    assert w.c.events == []
    assert w.c.to_broker.frames == len(split(stream))


@given(st.data())
def test_a_read_that_takes_several_turns_makes_the_same_of_it(data: st.DataObject) -> None:
    """No time is left from the beginning: so few frames are taken in each turn that others hardly wait."""
    stream = data.draw(streams(st.sampled_from([b"", b"t", b"p", b"\xff"]))) * 30
    w, out, turns = no_ring(), [], 0
    w.c.turn_ends = 0.0
    piece = stream
    while piece or w.c.to_broker.more:
        before = w.c.to_broker.frames
        out.append(w.client(piece))
        assert w.c.to_broker.frames - before <= client_loop._LOOK_EVERY
        piece, turns = b"", turns + 1
    assert b"".join(out) == stream
    assert turns >= len(split(stream)) // client_loop._LOOK_EVERY


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


@given(st.data())
def test_what_the_broker_sends_may_take_several_turns(data: st.DataObject) -> None:
    parts = data.draw(st.lists(st.sampled_from([1, 2, 7]).flatmap(from_broker), max_size=8))
    stream = b"".join(parts) * 20
    w, out = Wire({"t": known(None, PassReason.TYPE)}, confirming=True), []
    w.c.turn_ends = 0.0
    piece = stream
    while piece or w.c.to_client.more:
        before = w.c.to_client.frames
        out.append(w.broker(piece))
        assert w.c.to_client.frames - before < broker_loop._LOOK_EVERY
        piece = b""
    assert b"".join(out) == stream


@pytest.mark.parametrize(
    ("size", "behind", "is_view"),
    [(4088, b"", True), (4087, b"", False), (4088, message(1, b"x", b"k" * 200, b"") * 300, False)],
    ids=["much of a read", "little", "little of a read"],
)
def test_a_large_run_goes_on_as_a_view_where_that_keeps_little_else(size: int, behind: bytes, is_view: bool) -> None:
    w = Wire({"x": wire.QUEUES})
    client_loop.from_client(w.c, message(1, b"x", b"k", b"a" * size) + behind)
    pieces = [piece for piece in w.c.to_broker.out if len(piece) == size + 8]
    assert [isinstance(piece, memoryview) for piece in pieces] == [is_view]
    assert pieces == [body(1, b"a" * size)]


@pytest.mark.parametrize("size", [(1 << 31) + 3, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_a_body_may_be_announced_with_64_bits(size: int) -> None:
    w = Wire({"t": known(None, PassReason.TYPE)})
    data = publish(1, b"t", b"k") + header(1, size) + body(1, b"abc")
    assert w.client(data) == data
    assert w.c.channels[1].left == size - 3
