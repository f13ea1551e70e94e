"""The handshake: what of it changes, what is refused, and that it may come all at once."""

from struct import pack, unpack_from

import pytest
from pamqp import commands
from pamqp import frame as pamqp_frame
from pamqp.common import FieldTable

from proxy import __version__
from proxy.amqp import rewrite
from proxy.amqp.channel import Channel
from proxy.amqp.connection import Phase
from proxy.amqp.handshake import is_protocol_header
from ring.hashing import RING_FORMAT
from tests.unit.proxy.amqp.wire import (
    HEARTBEAT,
    Feed,
    Wire,
    as_it_is,
    body,
    close_connection,
    code_of,
    entry,
    fed,
    header,
    made,
    message,
    method,
    short,
    split,
)

OPEN = made(0, commands.Connection.Open("/"))
OPEN_OK = made(0, commands.Connection.OpenOk())


def new(*allowed: bytes) -> Wire:
    """A connection of which nothing has come yet."""
    w = Wire({}, channels=())
    c = w.c
    c.phase = c.broker_phase = Phase.HANDSHAKE
    c.opened, c.table, c.vhost, c.routes = False, None, "", {}
    c.channel_max, c.frame_max, c.allowed_mechanisms = 0, 1 << 17, frozenset(allowed)
    return w


def start(mechanisms: str, properties: FieldTable | None = None) -> bytes:
    return made(0, commands.Connection.Start(0, 9, properties or {"cluster_name": "rabbit@a"}, mechanisms, "en_US"))


def start_ok(properties: FieldTable | None = None, mechanism: str = "PLAIN", response: str = "\0u\0p") -> bytes:
    return made(0, commands.Connection.StartOk(properties or {}, mechanism, response, "en_US"))


def tune(channel_max: int, frame_max: int = 131072) -> bytes:
    return made(0, commands.Connection.Tune(channel_max, frame_max, 60))


def tune_ok(channel_max: int, frame_max: int = 131072, heartbeat: int = 60) -> bytes:
    return made(0, commands.Connection.TuneOk(channel_max, frame_max, heartbeat))


def parsed(data: bytes) -> object:
    size, channel, read = pamqp_frame.unmarshal(data)
    assert (size, channel) == (len(data), 0)
    return read


# start.


@pytest.mark.parametrize(
    ("offered", "allowed", "left"),
    [
        ("PLAIN AMQPLAIN", (), "PLAIN AMQPLAIN"),
        ("ANONYMOUS PLAIN EXTERNAL AMQPLAIN", (), "PLAIN AMQPLAIN"),
        ("ANONYMOUS PLAIN EXTERNAL", (b"EXTERNAL",), "PLAIN EXTERNAL"),
        ("ANONYMOUS EXTERNAL", (b"EXTERNAL", b"ANONYMOUS"), "ANONYMOUS EXTERNAL"),
        ("EXTERNAL", (), ""),
        ("", (), ""),
        ("RABBIT-CR-DEMO EXTERNALLY", (), "RABBIT-CR-DEMO EXTERNALLY"),
    ],
)
def test_lent_mechanisms_are_taken_out_of_start(offered: str, allowed: tuple[bytes, ...], left: str) -> None:
    properties: FieldTable = {"product": "RabbitMQ", "capabilities": {"basic.nack": True}, "cluster_name": "é@b"}
    for trailing in (b"", HEARTBEAT):
        out = fed(lambda: new(*allowed), start(offered, properties) + trailing, rewrite.from_broker)
        assert out.to_broker == b""
        assert out.to_client == start(left, properties) + trailing
        assert out.wire.c.cluster == "é@b"


@pytest.mark.parametrize("properties", [{"product": "LavinMQ"}, {"cluster_name": 7}])
def test_a_broker_without_a_clusters_name(properties: FieldTable) -> None:
    w = new()
    assert w.broker(start("PLAIN", properties)) == start("PLAIN", properties)
    assert w.c.cluster is None


# start-ok.


def test_start_ok_says_what_this_proxy_is() -> None:
    theirs: FieldTable = {
        "product": "pika",
        "capabilities": {"consumer_cancel_notify": True},
        "ringproxy_version": "no",
    }
    out = fed(new, start_ok(theirs) + HEARTBEAT)
    assert out.to_broker.endswith(HEARTBEAT)
    read = parsed(out.to_broker[: -len(HEARTBEAT)])
    assert isinstance(read, commands.Connection.StartOk)
    ours = {"ringproxy_version": __version__, "ringproxy_ring_format": str(RING_FORMAT)}
    assert read.client_properties == {**theirs, **ours}
    assert (read.mechanism, read.response, read.locale) == ("PLAIN", "\0u\0p", "en_US")
    assert out.to_broker.count(short("ringproxy_version")) == 1


@pytest.mark.parametrize("over", [0, 1])
def test_start_ok_that_would_get_too_large_is_as_it_came(over: int) -> None:
    """Before tune-ok no frame is larger than 4,096 bytes."""
    grown = len(new().client(start_ok({"a": ""}))) - len(start_ok({"a": ""}))
    filling = 4096 - grown - len(start_ok({"a": ""})) + over
    data = start_ok({"a": "x" * filling})
    out = new().client(data)
    assert (out == data) is bool(over)
    assert len(out) <= 4096


@pytest.mark.parametrize("mechanism", ["EXTERNAL", "ANONYMOUS"])
def test_lent_mechanisms_are_refused_unless_allowed(mechanism: str) -> None:
    out = fed(new, start_ok(mechanism=mechanism) + HEARTBEAT)
    assert out.to_broker == b""
    (close,) = split(out.to_client)
    assert (close.id, code_of(close)) == ((10, 50), 503)
    assert out.wire.c.broker_lost
    w = new(mechanism.encode())
    assert mechanism.encode() in w.client(start_ok(mechanism=mechanism))


@pytest.mark.parametrize(
    "arguments",
    [b"", b"\0\0\0", b"\0\0\0\x09", b"\xff\xff\xff\xff", b"\0\0\0\0", b"\0\0\0\0\x05PLAI", b"\0\0\0\x03\x09ab\x00"],
)
def test_a_start_ok_that_stops_early_is_a_syntax_error(arguments: bytes) -> None:
    out = fed(new, method(0, 10, 11, arguments))
    (close,) = split(out.to_client)
    assert (code_of(close), out.to_broker) == (502, b"")


def test_client_properties_of_any_bytes_pass() -> None:
    table = entry(b"\xff", b"S", pack(">I", 2) + b"\xfe\xff") + entry(b"v", b"V", b"")
    rest = short("PLAIN") + pack(">I", 3) + b"\0\xff\0" + short("en_US")
    (out,) = split(new().client(method(0, 10, 11, pack(">I", len(table)) + table + rest)))
    size = unpack_from(">I", out.payload, 4)[0]
    assert out.payload[8 : 8 + size].startswith(table)
    assert out.payload[8 + size :] == rest


# tune.


@pytest.mark.parametrize(
    ("offered", "advertised"), [(0, 65534), (1, 1), (2, 1), (2047, 2046), (65534, 65533), (65535, 65534)]
)
def test_tune_keeps_one_channel_back(offered: int, advertised: int) -> None:
    out = fed(new, tune(offered) + HEARTBEAT, rewrite.from_broker)
    assert out.to_client == tune(advertised) + HEARTBEAT


@pytest.mark.parametrize("arguments", [b"", b"\7", bytes(9)])
def test_a_tune_of_another_length_is_not_amqp(arguments: bytes) -> None:
    with pytest.raises(rewrite.BrokerFault, match="tune is not of its length"):
        rewrite.from_broker(new().c, method(0, 10, 30, arguments))


@pytest.mark.parametrize(
    ("offered", "wanted", "sent", "highest"),
    [
        (2047, 2046, 2047, 2046),
        (2047, 10, 11, 10),
        (2047, 1, 2, 1),
        (2047, 0, 0, 65534),
        (2047, 2047, 2047, 2047),
        (2047, 3000, 3000, 3000),
        (0, 0, 0, 65534),
        (0, 65534, 65535, 65534),
        (0, 65535, 65535, 65535),
        (0, 7, 8, 7),
        (65535, 65534, 65535, 65534),
        (1, 1, 1, 1),
        (2, 1, 2, 1),
    ],
)
def test_tune_ok_gives_it_back(offered: int, wanted: int, sent: int, highest: int) -> None:
    w = new()
    w.broker(tune(offered))
    assert w.client(tune_ok(wanted)) == tune_ok(sent)
    assert (w.c.channel_max, w.c.heartbeat, w.c.frame_max) == (highest, 60, 131072)


def test_frame_max_of_the_client_counts_and_none_is_none() -> None:
    for wanted, limit in ((131072, 131072), (8192, 8192), (0, 1 << 24), (100, 4096)):
        w = new()
        assert w.client(tune_ok(10, wanted, 0)) == tune_ok(10, wanted, 0)
        assert (w.c.frame_max, w.c.heartbeat) == (limit, 0)


def test_frames_are_limited_from_tune_ok_on_even_in_one_chunk() -> None:
    data = tune_ok(10, 8192) + OPEN
    large = method(0, 10, 70, bytes(9000))
    for chunking in ([data + large], [data, large]):
        w = new()
        for chunk in chunking:
            rewrite.from_client(w.c, chunk)
        (close,) = split(w.to_client())
        assert code_of(close) == 501


@pytest.mark.parametrize("arguments", [b"", bytes(7), bytes(9)])
def test_a_tune_ok_of_another_length_is_a_syntax_error(arguments: bytes) -> None:
    (close,) = split(fed(new, method(0, 10, 31, arguments)).to_client)
    assert code_of(close) == 502


# open, and what may come when.


def test_a_session_opens() -> None:
    w = new()
    w.broker(start("PLAIN") + tune(2047))
    w.client(start_ok() + tune_ok(2046))
    assert (w.c.phase, w.c.table) == (Phase.HANDSHAKE, None)
    assert w.client(OPEN) == OPEN
    assert w.c.phase is Phase.RUNNING
    assert w.c.table is w.tables.table("/", "rabbit@a")
    assert w.c.routes is w.c.table.routes
    assert not w.c.opened
    assert w.broker(OPEN_OK) == OPEN_OK
    assert w.c.opened


@pytest.mark.parametrize("vhost", ["/", "", "a/b", "é"])
def test_a_vhost_of_any_name_is_opened(vhost: str) -> None:
    w = new()
    open_ = method(0, 10, 40, short(vhost) + b"\0\0")
    assert w.client(open_) == open_
    assert w.c.vhost == vhost


def test_a_vhost_that_runs_past_its_frame_is_a_syntax_error() -> None:
    (close,) = split(fed(new, method(0, 10, 40, b"\x09/")).to_client)
    assert code_of(close) == 502


def test_a_handshake_may_come_all_at_once() -> None:
    """Before the broker has said anything: then nobody knows what it offers, and no channel is kept back."""
    channel = made(1, commands.Channel.Open())
    rest = OPEN + channel + message(1, b"", b"q") + HEARTBEAT
    out = fed(new, start_ok() + tune_ok(2047) + rest)
    assert out.to_broker.endswith(tune_ok(2047) + rest)
    assert out.to_client == b""
    w = out.wire
    assert w.broker(start("PLAIN") + tune(2047) + OPEN_OK) == start("PLAIN") + tune(2046) + OPEN_OK
    assert (w.c.channel_max, w.c.opened, list(w.c.channels)) == (2047, True, [1])


def test_a_handshake_with_a_second_round_passes() -> None:
    secure = made(0, commands.Connection.Secure("challenge"))
    as_it_is(new, secure, rewrite.from_broker)
    as_it_is(new, made(0, commands.Connection.SecureOk("response")) + HEARTBEAT)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (made(1, commands.Channel.Open()), 503),
        (made(0, commands.Channel.Open()), 503),
        (made(0, commands.Connection.UpdateSecret("s", "r")), 503),
        (header(1, 3), 505),
        (body(0, b"abc"), 505),
        (b"GET / HTTP/1.1\r\n\r\n", 501),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 501),
    ],
)
def test_what_does_not_belong_into_a_handshake_ends_it(data: bytes, code: int) -> None:
    w = new()
    rewrite.from_client(w.c, data)
    (close,) = split(w.to_client())
    assert (close.id, code_of(close)) == ((10, 50), code)
    assert (w.to_broker(), w.c.broker_lost) == (b"", True)


def test_start_ok_in_a_session_is_refused() -> None:
    w = new()
    w.client(OPEN)
    rewrite.from_client(w.c, start_ok())
    assert code_of(split(w.to_client())[0]) == 503


@pytest.mark.parametrize("feed", [rewrite.from_client, rewrite.from_broker])
def test_either_side_may_close_in_the_handshake(feed: Feed) -> None:
    close = close_connection(403, b"ACCESS_REFUSED") + method(0, 10, 51)
    as_it_is(new, close, feed)


@pytest.mark.parametrize("known", [b"AMQP\x00\x00\x09\x01", b"AMQP\x01\x01\x00\x09"])
def test_the_protocol_header(known: bytes) -> None:
    for size in range(8):
        assert is_protocol_header(known[:size]) is None
        assert is_protocol_header(known[:size] + b"\xff") is False
    assert is_protocol_header(known) is True
    assert is_protocol_header(known + b"more") is True


@pytest.mark.parametrize(
    "other", [b"AMQP\x00\x01\x00\x00", b"AMQP\x03\x01\x00\x00", b"AMQP\x00\x00\x09\x02", b"GET / HT"]
)
def test_other_headers_are_none(other: bytes) -> None:
    assert is_protocol_header(other) is False


# Numbers of channels.


def test_channels_open_up_to_the_agreed_number() -> None:
    w = new()
    w.broker(tune(5))
    w.client(tune_ok(4) + OPEN)
    assert w.client(made(4, commands.Channel.Open())) == made(4, commands.Channel.Open())
    assert isinstance(w.c.channels[4], Channel)
    rewrite.from_client(w.c, made(5, commands.Channel.Open()))
    (close,) = split(w.to_client())
    assert code_of(close) == 530
