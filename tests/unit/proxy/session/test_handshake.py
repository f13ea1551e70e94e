"""The handshake: whose turn it is, what of it changes, what is refused, and that it may come all at once."""

from collections.abc import Callable
from struct import pack, unpack_from

import pytest
from pamqp import commands
from pamqp import frame as pamqp_frame
from pamqp.common import FieldTable

from proxy import __version__
from proxy.process.identity import process_id
from proxy.session import broker_loop, client_loop
from proxy.session.channel import Channel
from proxy.session.handshake import BROKERS_TURN, STEPS, Handshake, Step, is_protocol_header
from proxy.session.state import Phase
from proxy.topology.table import PassReason
from ring.hashing import RING_FORMAT
from tests.unit.proxy.session.wire import (
    HEARTBEAT,
    Wire,
    as_it_is,
    body,
    chunkings,
    close_connection,
    code_of,
    entry,
    fed,
    frame,
    header,
    made,
    message,
    method,
    short,
    split,
    text_of,
)

OPEN = made(0, commands.Connection.Open("/"))
OPEN_OK = made(0, commands.Connection.OpenOk())


def new(*allowed: bytes, step: Step = Step.STARTING) -> Wire:
    """A connection at that step of its handshake."""
    w = Wire({}, channels=())
    c = w.c
    c.phase, c.table, c.routes = Phase.HANDSHAKE, None, {}
    c.handshake = Handshake(frozenset(allowed))
    c.handshake.step = step
    return w


def at(step: Step, *allowed: bytes) -> Callable[[], Wire]:
    """Makes connections at that step."""
    return lambda: new(*allowed, step=step)


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
        out = fed(lambda: new(*allowed), start(offered, properties) + trailing, broker_loop.from_broker)
        assert out.to_broker == b""
        assert out.to_client == start(left, properties) + trailing
        assert out.wire.c.handshake.cluster == "é@b"


@pytest.mark.parametrize("properties", [{"product": "LavinMQ"}, {"cluster_name": 7}])
def test_a_broker_without_a_clusters_name(properties: FieldTable) -> None:
    w = new()
    assert w.broker(start("PLAIN", properties)) == start("PLAIN", properties)
    assert w.c.handshake.cluster is None


# start-ok.


def test_start_ok_says_what_this_proxy_is() -> None:
    theirs: FieldTable = {
        "product": "pika",
        "capabilities": {"consumer_cancel_notify": True},
        "ringproxy_version": "no",
    }
    out = fed(at(Step.LOGIN), HEARTBEAT + start_ok(theirs))
    assert out.to_broker.startswith(HEARTBEAT)
    read = parsed(out.to_broker[len(HEARTBEAT) :])
    assert isinstance(read, commands.Connection.StartOk)
    ours = {
        "ringproxy_version": __version__,
        "ringproxy_ring_format": str(RING_FORMAT),
        "ringproxy_id": process_id(),
    }
    assert read.client_properties == {**theirs, **ours}
    assert (read.mechanism, read.response, read.locale) == ("PLAIN", "\0u\0p", "en_US")
    assert out.to_broker.count(short("ringproxy_version")) == 1


@pytest.mark.parametrize("over", [0, 1])
@pytest.mark.parametrize(("version", "most"), [((0, 0), 4096), ((4, 0), 4096), ((4, 1), 8192), ((5, 0), 8192)])
def test_start_ok_that_would_get_too_large_is_as_it_came(version: tuple[int, int], most: int, over: int) -> None:
    """Before tune-ok no frame is larger than 4,096 bytes, or for RabbitMQ since 4.1 than 8,192."""

    def answered(data: bytes) -> bytes:
        w = new(step=Step.LOGIN)
        w.c.handshake.version = version
        return w.client(data)

    grown = len(answered(start_ok({"a": ""}))) - len(start_ok({"a": ""}))
    filling = most - grown - len(start_ok({"a": ""})) + over
    data = start_ok({"a": "x" * filling})
    out = answered(data)
    assert (out == data) is bool(over)
    assert len(out) <= most


@pytest.mark.parametrize("mechanism", ["EXTERNAL", "ANONYMOUS"])
def test_lent_mechanisms_are_refused_unless_allowed(mechanism: str) -> None:
    out = fed(at(Step.LOGIN), start_ok(mechanism=mechanism) + HEARTBEAT)
    assert out.to_broker == b""
    (close,) = split(out.to_client)
    assert (close.id, code_of(close)) == ((10, 50), 503)
    assert out.wire.c.to_broker.cut_off
    w = new(mechanism.encode(), step=Step.LOGIN)
    assert mechanism.encode() in w.client(start_ok(mechanism=mechanism))


@pytest.mark.parametrize(
    "arguments",
    [b"", b"\0\0\0", b"\0\0\0\x09", b"\xff\xff\xff\xff", b"\0\0\0\0", b"\0\0\0\0\x05PLAI", b"\0\0\0\x03\x09ab\x00"],
)
def test_a_start_ok_that_stops_early_is_a_syntax_error(arguments: bytes) -> None:
    out = fed(at(Step.LOGIN), method(0, 10, 11, arguments))
    (close,) = split(out.to_client)
    assert (code_of(close), out.to_broker) == (502, b"")


def test_client_properties_of_any_bytes_pass() -> None:
    table = entry(b"\xff", b"S", pack(">I", 2) + b"\xfe\xff") + entry(b"v", b"V", b"")
    rest = short("PLAIN") + pack(">I", 3) + b"\0\xff\0" + short("en_US")
    (out,) = split(new(step=Step.LOGIN).client(method(0, 10, 11, pack(">I", len(table)) + table + rest)))
    size = unpack_from(">I", out.payload, 4)[0]
    assert out.payload[8 : 8 + size].startswith(table)
    assert out.payload[8 + size :] == rest


# tune.


@pytest.mark.parametrize(
    ("offered", "advertised"), [(0, 65534), (1, 1), (2, 1), (2047, 2046), (65534, 65533), (65535, 65534)]
)
def test_tune_keeps_one_channel_back(offered: int, advertised: int) -> None:
    out = fed(at(Step.JUDGED), tune(offered) + HEARTBEAT, broker_loop.from_broker)
    assert out.to_client == tune(advertised) + HEARTBEAT


@pytest.mark.parametrize("arguments", [b"", b"\7", bytes(9)])
def test_a_tune_of_another_length_is_not_amqp(arguments: bytes) -> None:
    with pytest.raises(broker_loop.BrokerFault, match="tune is not of its length"):
        broker_loop.from_broker(new(step=Step.JUDGED).c, method(0, 10, 30, arguments))


@pytest.mark.parametrize(
    ("offered", "wanted", "sent", "highest"),
    [
        (2047, 2046, 2047, 2046),
        (2047, 10, 11, 10),
        (2047, 1, 2, 1),
        (0, 0, 0, 65534),
        (0, 65534, 65535, 65534),
        (0, 7, 8, 7),
        (65535, 65534, 65535, 65534),
        (1, 1, 1, 1),
        (2, 1, 2, 1),
    ],
)
def test_tune_ok_gives_it_back(offered: int, wanted: int, sent: int, highest: int) -> None:
    w = new(step=Step.JUDGED)
    w.broker(tune(offered))
    assert w.client(tune_ok(wanted)) == tune_ok(sent)
    assert (w.c.handshake.channel_max, w.c.handshake.heartbeat, w.c.handshake.frame_max) == (highest, 60, 131072)


@pytest.mark.parametrize(
    ("offered", "wanted", "said", "most"),
    [
        ((2047, 131072), (2047, 131072), "channel_max = 2047", 2046),
        ((2047, 131072), (65535, 131072), "channel_max = 65535", 2046),
        ((2047, 131072), (0, 131072), "channel_max = 0 (no limit)", 2046),
        ((0, 131072), (65535, 131072), "channel_max = 65535", 65534),
        ((1, 131072), (2, 131072), "channel_max = 2", 1),
        ((2047, 131072), (10, 131073), "frame_max = 131073", 131072),
        ((2047, 131072), (10, 0), "frame_max = 0 (no limit)", 131072),
    ],
)  # fmt: skip
def test_more_than_was_offered_is_refused_before_anything_is_allocated(
    offered: tuple[int, int], wanted: tuple[int, int], said: str, most: int
) -> None:
    """RabbitMQ's own code and words (observed on 3.10.8); the proxy offers one channel fewer than the broker."""

    def tuned() -> Wire:
        w = new(step=Step.JUDGED)
        w.broker(tune(*offered))
        return w

    out = fed(tuned, tune_ok(*wanted) + OPEN + made(1, commands.Channel.Open()))
    (close,) = split(out.to_client)
    text = f"NOT_ALLOWED - negotiated {said} is higher than the maximum allowed value ({most})"
    assert (code_of(close), text_of(close)) == (530, text)
    assert (out.to_broker, out.wire.c.to_broker.cut_off, out.wire.c.channels) == (b"", True, {})


@pytest.mark.parametrize(("wanted", "limit"), [(131072, 131072), (8192, 8192), (0, 1 << 24), (100, 4096)])
def test_frame_max_of_the_client_counts_where_the_broker_has_none(wanted: int, limit: int) -> None:
    w = new(step=Step.JUDGED)
    w.broker(tune(2047, 0))
    assert w.client(tune_ok(9, wanted, 0)) == tune_ok(10, wanted, 0)
    assert (w.c.handshake.frame_max, w.c.handshake.heartbeat) == (limit, 0)


def test_frames_are_limited_from_tune_ok_on() -> None:
    def tuned() -> Wire:
        w = new(step=Step.JUDGED)
        w.broker(tune(2047))
        return w

    out = fed(tuned, tune_ok(10, 8192) + method(0, 10, 40, bytes(9000))[:100])
    assert code_of(split(out.to_client)[0]) == 501
    # Whatever is agreed on for messages.
    w = new(step=Step.JUDGED)
    w.broker(tune(2047, 1 << 30))
    assert w.client(tune_ok(10, 1 << 30)) == tune_ok(11, 1 << 30)
    client_loop.from_client(w.c, method(0, 10, 40, bytes(1 << 17))[:100])
    assert code_of(split(w.to_client())[0]) == 501


@pytest.mark.parametrize("arguments", [b"", bytes(7), bytes(9)])
def test_a_tune_ok_of_another_length_is_a_syntax_error(arguments: bytes) -> None:
    (close,) = split(fed(at(Step.TUNING), method(0, 10, 31, arguments)).to_client)
    assert code_of(close) == 502


# open, and what may come when.


def test_a_session_opens_with_the_brokers_open_ok_and_not_before() -> None:
    w = new()
    w.broker(start("PLAIN"))
    w.client(start_ok())
    w.broker(tune(2047))
    w.client(tune_ok(2046))
    assert w.client(OPEN) == OPEN
    assert (w.c.running, w.c.opened, w.c.table, w.c.routes) == (False, False, None, {})
    assert w.broker(OPEN_OK) == OPEN_OK
    assert (w.c.running, w.c.opened, w.c.table) == (True, True, w.tables.table("/", "rabbit@a"))
    assert w.c.table is not None
    assert w.c.routes is w.c.table.routes


@pytest.mark.parametrize("vhost", ["/", "", "a/b", "é"])
def test_a_vhost_of_any_name_is_opened(vhost: str) -> None:
    w = new(step=Step.TUNED)
    open_ = method(0, 10, 40, short(vhost) + b"\0\0")
    assert w.client(open_) == open_
    assert w.c.vhost == vhost


def test_a_vhost_that_runs_past_its_frame_is_a_syntax_error() -> None:
    (close,) = split(fed(at(Step.TUNED), method(0, 10, 40, b"\x09/")).to_client)
    assert code_of(close) == 502


CHANNEL_OPEN = made(1, commands.Channel.Open())
AHEAD = start_ok() + tune_ok(2046) + OPEN + CHANNEL_OPEN + message(1, b"", b"q") + HEARTBEAT
"""The bytes that a client that waits for nothing sends behind its header: RabbitMQ takes it (observed on 3.10.8)."""


def test_a_handshake_may_come_all_at_once_and_goes_out_turn_by_turn() -> None:
    """The broker gets no more than it has asked for, and nothing of the rest counts before open-ok."""
    for chunking in chunkings(AHEAD):
        w = new()
        for chunk in chunking:
            assert w.client(chunk) == b""
        sent = []
        for said in (start("PLAIN"), tune(2047), OPEN_OK):
            state = (w.c.ahead, w.c.channels, w.c.table, w.c.opened, w.names)
            assert state == (True, {}, None, False, set())
            w.broker(said)
            sent.append(w.client(b""))
        assert parsed(sent[0])
        assert sent[1] == tune_ok(2047) + OPEN
        assert sent[2] == CHANNEL_OPEN + message(1, b"", b"q") + HEARTBEAT
        assert (w.c.handshake.channel_max, list(w.c.channels), w.c.to_broker.rest, w.c.ahead) == (2046, [1], b"", False)
        assert w.counters("", PassReason.TYPE).published == 1


@pytest.mark.parametrize("said", [[], [start("PLAIN")], [start("PLAIN"), tune(2047)]])
def test_a_client_that_is_not_let_in_leaves_nothing_behind(said: list[bytes]) -> None:
    w = new()
    w.client(AHEAD)
    for each in said:
        w.broker(each)
        w.client(b"")
    refusal = close_connection(530, b"NOT_ALLOWED - vhost / not found")
    assert w.both(refusal) == (b"", refusal)
    client_loop.from_client(w.c, b"")
    assert (w.c.phase, w.c.channels, w.c.table, w.names, w.c.ahead) == (Phase.CLOSED, {}, None, set(), False)


# Whose turn it is.

SAID = {
    (10, 10): start("PLAIN"),
    (10, 11): start_ok(),
    (10, 20): made(0, commands.Connection.Secure("challenge")),
    (10, 21): made(0, commands.Connection.SecureOk("response")),
    (10, 30): tune(2047),
    (10, 31): tune_ok(2046),
    (10, 40): OPEN,
    (10, 41): OPEN_OK,
    (10, 50): close_connection(200, b"bye"),
    (10, 51): method(0, 10, 51),
    (10, 70): made(0, commands.Connection.UpdateSecret("s", "r")),
    (20, 10): method(0, 20, 10, b"\0"),
}
"""By class and method: one of channel 0. Methods of the client's and of the broker's have numbers of their own."""

NEVER = {
    "channel.open": (made(1, commands.Channel.Open()), 505),
    "a publish": (message(1, b"x", b"k"), 505),
    "a content header": (header(1, 3), 505),
    "a body on channel 0": (body(0, b"abc"), 505),
    "a heartbeat on channel 1": (frame(8, 1, b""), 505),
    "a frame of no type": (frame(7, 0, b"abc"), 501),
    "a frame without its end": (start_ok()[:-1] + b"\0", 501),
    "HTTP": (b"GET / HTTP/1.1\r\n\r\n", 501),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 501),
}
CLIENTS_TURN = [step for step in STEPS if step not in BROKERS_TURN]


def feed_all(w: Wire, chunking: list[bytes]) -> None:
    for chunk in chunking:
        broker_loop.from_broker(w.c, chunk)


def allowed(step: Step) -> set[tuple[int, int]]:
    return {(method >> 16, method & 0xFFFF) for method in STEPS[step]}


def test_every_step_is_reached_and_every_method_has_one_side() -> None:
    assert {Step.STARTING}.union(*(following.values() for following in STEPS.values())) == set(Step)
    of_client = set().union(*(STEPS[step] for step in CLIENTS_TURN))
    of_broker = set().union(*(STEPS[step] for step in BROKERS_TURN))
    assert not of_client & of_broker


@pytest.mark.parametrize("trailing", [b"", HEARTBEAT, start_ok()[:9]])
@pytest.mark.parametrize("which", SAID)
@pytest.mark.parametrize("step", CLIENTS_TURN)
def test_a_client_may_say_what_its_step_has_and_nothing_else(
    step: Step, which: tuple[int, int], trailing: bytes
) -> None:
    def tuned() -> Wire:
        w = new(step=step)
        w.c.handshake.offered_channel_max, w.c.handshake.offered_frame_max = 2047, 131072
        return w

    out = fed(tuned, SAID[which] + trailing)
    if which in allowed(step):
        sent = split(out.to_broker[: -len(HEARTBEAT)] if out.to_broker.endswith(HEARTBEAT) else out.to_broker)
        assert [each.id for each in sent] == [which]
        assert out.wire.c.handshake.step is STEPS[step][which[0] << 16 | which[1]]
        assert out.to_client == b""
    else:
        (close,) = split(out.to_client)
        assert (close.id, code_of(close)) == ((10, 50), 503)
        assert (out.to_broker, out.wire.c.to_broker.cut_off) == (b"", True)
    assert (out.wire.c.channels, out.wire.c.table) == ({}, None)


@pytest.mark.parametrize("what", NEVER)
@pytest.mark.parametrize("step", CLIENTS_TURN)
def test_what_belongs_to_no_handshake_ends_it(step: Step, what: str) -> None:
    data, code = NEVER[what]
    out = fed(at(step), data)
    (close,) = split(out.to_client)
    assert (close.id, code_of(close)) == ((10, 50), code)
    assert (out.to_broker, out.wire.c.to_broker.cut_off) == (b"", True)


@pytest.mark.parametrize("data", [*SAID.values(), *(data for data, _ in NEVER.values()), HEARTBEAT])
@pytest.mark.parametrize("step", sorted(BROKERS_TURN))
def test_nothing_is_taken_of_a_client_whose_turn_it_is_not(step: Step, data: bytes) -> None:
    out = fed(at(step), data)
    c = out.wire.c
    assert (out.to_broker, out.to_client, c.to_broker.rest, c.ahead) == (b"", b"", data, True)
    assert (c.handshake.step, c.channels, c.table) == (step, {}, None)


@pytest.mark.parametrize("trailing", [b"", HEARTBEAT, start("PLAIN")[:9]])
@pytest.mark.parametrize("which", SAID)
@pytest.mark.parametrize("step", STEPS)
def test_a_broker_may_say_what_its_step_has_and_nothing_else(
    step: Step, which: tuple[int, int], trailing: bytes
) -> None:
    data = SAID[which] + trailing
    if which in ((10, 50), (10, 51)):
        out = fed(at(step), data, broker_loop.from_broker)
        assert (out.to_client, out.wire.c.phase) == (data, Phase.CLOSED)
    elif step in BROKERS_TURN and which in allowed(step):
        out = fed(at(step), data, broker_loop.from_broker)
        assert split(out.to_client.removesuffix(HEARTBEAT))[0].id == which
        assert out.wire.c.handshake.step is STEPS[step][which[0] << 16 | which[1]]
    else:
        for chunking in chunkings(data):
            w = new(step=step)
            with pytest.raises(broker_loop.BrokerFault, match=f"the broker's method {which[0]}.{which[1]} "):
                feed_all(w, chunking)


def test_heartbeats_pass_at_the_clients_turn_and_the_brokers_always() -> None:
    for step in STEPS:
        as_it_is(at(step), HEARTBEAT, broker_loop.from_broker)
        if step not in BROKERS_TURN:
            as_it_is(at(step), HEARTBEAT)


def test_a_client_that_closes_is_answered_by_the_broker_and_sends_nothing_more() -> None:
    w = new(step=Step.LOGIN)
    assert w.client(close_connection(200, b"bye") + AHEAD) == close_connection(200, b"bye")
    assert w.c.ahead
    w.broker(method(0, 10, 51))
    assert (w.c.phase, w.c.ahead, w.c.channels) == (Phase.CLOSED, False, {})


def test_a_second_round_of_the_login() -> None:
    w = new(step=Step.JUDGED)
    w.broker(SAID[10, 20])
    assert w.client(SAID[10, 21]) == SAID[10, 21]
    w.broker(tune(2047))
    assert w.c.handshake.step is Step.TUNING


def test_start_ok_in_a_session_is_refused() -> None:
    w = Wire({})
    client_loop.from_client(w.c, start_ok())
    assert code_of(split(w.to_client())[0]) == 503


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
    w = new(step=Step.JUDGED)
    w.broker(tune(5))
    w.client(tune_ok(4) + OPEN)
    w.broker(OPEN_OK)
    assert w.client(made(4, commands.Channel.Open())) == made(4, commands.Channel.Open())
    assert isinstance(w.c.channels[4], Channel)
    client_loop.from_client(w.c, made(5, commands.Channel.Open()))
    (close,) = split(w.to_client())
    assert code_of(close) == 530
