"""The hot loop: what each mistake of a client is answered with, and that no bytes raise."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands

from proxy.session import broker_loop, client_loop, closing
from proxy.session.events import Refused
from proxy.session.state import ChannelState, Phase
from proxy.topology.table import PassReason
from ring.hashed import HashedValue
from tests.properties import examples
from tests.unit.proxy.session import wire
from tests.unit.proxy.session.streams import BY_HEADER, TRAILING, streams
from tests.unit.proxy.session.wire import (
    HEARTBEAT,
    QUEUES,
    Wire,
    body,
    chunks,
    code_of,
    frame,
    header,
    headers,
    known,
    made,
    message,
    method,
    publish,
    ring,
    split,
)

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
    """The frames before it are forwarded, then both sides are told; the bytes after it go nowhere."""
    stream = GOOD + data + after
    some = [[stream], [stream[i : i + 1] for i in range(len(stream))]]
    some += [[stream[:i], stream[i:]] for i in range(len(GOOD), min(len(stream), len(GOOD) + 60))]
    for chunking in some:
        w = strict()
        for chunk in chunking:
            client_loop.from_client(w.c, chunk)
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
    client_loop.from_client(w.c, body(1, b"hello")[:cut])
    client_loop.from_client(w.c, WITHOUT_END[cut:] + GOOD)
    (answer,) = split(w.to_client())
    assert code_of(answer) == 501
    if cut >= 8:
        assert w.to_broker() == WITHOUT_END[:-1]
        assert w.c.to_broker.cut_off
    else:
        (goodbye,) = split(w.to_broker())
        assert goodbye.id == (10, 50)


def test_a_body_without_its_end_that_was_dropped_anyway() -> None:
    w = Wire({"x": QUEUES})
    w.client(publish(1, b"x", b"k"))
    refuse(w, 1)
    assert w.client(header(1, 10)) == b""
    assert w.client(WITHOUT_END[:9]) == b""
    client_loop.from_client(w.c, WITHOUT_END[9:])
    assert b"hell" not in w.to_broker()
    (answer,) = split(w.to_client())
    assert code_of(answer) == 501


def refuse(w: Wire, number: int) -> None:
    closing.refuse_channel(w.c, w.c.channels[number], 541, "no")
    assert w.c.channels[number].state == ChannelState.REFUSING
    w.to_broker()


def busy() -> Wire:
    """Connections in all states that a channel can be in."""
    return Wire({"x": QUEUES, "h": BY_HEADER, "t": known(None, PassReason.TYPE)}, confirming=True, frame_max=SMALL)


@given(st.data())
@examples(300)
def test_no_bytes_of_a_clients_raise(data: st.DataObject) -> None:
    junk = data.draw(st.binary(max_size=200))
    w = busy()
    for chunk in chunks(junk, data.draw(wire.cuts(junk))):
        client_loop.from_client(w.c, chunk)


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
@examples(300)
def test_no_frames_of_a_clients_raise(data: st.DataObject) -> None:
    junk = b"".join(data.draw(st.lists(st.one_of(frames, methods, st.just(publish(1, b"x", b"k"))), max_size=8)))
    w = busy()
    for chunk in chunks(junk, data.draw(wire.cuts(junk))):
        client_loop.from_client(w.c, chunk)


@pytest.mark.parametrize("ids", LOOKED_AT)
@pytest.mark.parametrize("phase", [Phase.HANDSHAKE, Phase.RUNNING])
def test_methods_of_every_length_raise_nothing(ids: tuple[int, int], phase: Phase) -> None:
    for channel in (0, 1, 3):
        for filling in (b"\0", b"\x01", b"\x09", b"\xff"):
            for size in range(24):
                w = busy()
                w.c.phase = phase
                client_loop.from_client(w.c, method(channel, ids[0], ids[1], filling * size) + GOOD)


@given(st.data())
@examples(300)
def test_valid_streams_with_a_few_bytes_changed_raise_nothing(data: st.DataObject) -> None:
    stream = bytearray(data.draw(streams(st.sampled_from([b"x", b"h", b"t", b""]))))
    for _ in range(data.draw(st.integers(1, 4))):
        if stream:
            stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del stream[: data.draw(st.integers(0, len(stream)))]
    w = busy()
    for chunk in chunks(bytes(stream), data.draw(wire.cuts(bytes(stream)))):
        client_loop.from_client(w.c, chunk)
    w.to_broker()


def test_a_broker_that_sends_no_frames_is_not_waited_for() -> None:
    w = Wire()
    with pytest.raises(broker_loop.BrokerFault, match="frame of type"):
        broker_loop.from_broker(w.c, b"HTTP/1.1 400 Bad Request\r\n")


def test_a_start_that_cannot_be_read() -> None:
    w = Wire()
    w.c.phase = Phase.HANDSHAKE
    with pytest.raises(broker_loop.BrokerFault, match="cannot be read"):
        broker_loop.from_broker(w.c, frame(1, 0, b"\0\x0a\0\x0a\0\x09\0\0\xff\xff"))


@pytest.mark.parametrize(
    "sent",
    [
        frame(1, 1, b"\0\x0a"),
        frame(1, 1, b"\0\x3c\0\x32\x01\x38\xff") + header(1, 0),
        frame(1, 1, b"\0\x3c\0\x50\0"),
    ],
    ids=["half a method", "a return cut short", "half an ack"],
)
def test_a_broker_whose_frames_cannot_be_read_is_not_waited_for(sent: bytes) -> None:
    w = Wire({"x": QUEUES}, confirming=True)
    w.client(message(1, b"x", b"k"))
    with pytest.raises(broker_loop.BrokerFault, match="cannot be read"):
        broker_loop.from_broker(w.c, sent)
