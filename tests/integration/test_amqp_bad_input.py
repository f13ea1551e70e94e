"""Mistakes of AMQP clients: an answer with the specification's reply code, at once, that harms no other session."""

import socket
import struct
from collections.abc import Iterator

import pytest
from pamqp.commands import Basic, Channel, Connection, Queue
from pamqp.common import FieldTable
from pamqp.frame import FrameTypes
from pamqp.header import ContentHeader

from testbed.broker import Broker
from tests.integration.broker_api import VirtualHost, wait_until
from tests.integration.conftest import PASSWORD, USER, Login, StartSidecar
from tests.integration.sidecar import Sidecar
from tests.integration.wire_client import (
    PROTOCOL_HEADER,
    Client,
    Wire,
    encoded,
    port_of,
    publish_frames,
    publishing,
    raw_frame,
    short,
    wire,
)

FRAME_MAX = 131072
METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8

PUBLISH = b"\x00\x3c\x00\x28\x00\x00"


@pytest.fixture(autouse=True)
def nothing_is_harmed(sidecar: Sidecar, vhost: VirtualHost, client: Client) -> Iterator[None]:
    """The exchange `orders`, and a session that publishes to it before and after; all that is confirmed is there."""
    vhost.ring("orders", ["q"])
    with client.session(sidecar.amqp_port, vhost.name) as other:
        other.channel()
        other.publish(1, "orders", "before", b"before")
        other.confirm(1)
        yield
        other.publish(1, "orders", "after", b"after")
        other.confirm(1)
    bodies = [m.body for m in vhost.drain("q")]
    assert (bodies[0], bodies[-1]) == (b"before", b"after")
    assert set(bodies[1:-1]) <= {b"confirmed"}
    sidecar.check_log()


def refusals(sidecar: Sidecar, code: int) -> float:
    return sidecar.metric("ringproxy_amqp_refusals_total", code=str(code))


def header(exchange_class: int = 60, size: int = 0, flags: int = 0, rest: bytes = b"") -> bytes:
    return struct.pack(">HHQH", exchange_class, 0, size, flags) + rest


def table_of(length: int, entries: bytes) -> bytes:
    """A content header whose headers table says it is that long."""
    return header(flags=0x2000, rest=struct.pack(">I", length) + entries)


def ring_publish(channel: int = 1, exchange: str = "orders") -> bytes:
    return encoded(channel, Basic.Publish(0, exchange, "k"))


NOT_AMQP = {
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "tls": bytes.fromhex("16030100c8010000c40303") + bytes(60),
    "amqp 1.0": b"AMQP\x00\x01\x00\x00",
    "sasl of amqp 1.0": b"AMQP\x03\x01\x00\x00",
    "amqp 0-8": b"AMQP\x01\x01\x08\x00",
    "zeros": bytes(8),
}


@pytest.mark.parametrize("hello", NOT_AMQP.values(), ids=NOT_AMQP)
def test_another_protocol_is_told_which_one_is_spoken_here(sidecar: Sidecar, hello: bytes) -> None:
    before = refusals(sidecar, 0)
    with wire(sidecar.amqp_port) as peer:
        peer.send(hello)

        assert peer.read_bytes(8) == PROTOCOL_HEADER
        assert peer.at_end()
    assert refusals(sidecar, 0) == before + 1


@pytest.mark.parametrize("begun", [b"", b"AMQ", PROTOCOL_HEADER])
def test_a_client_that_leaves_before_it_says_anything(sidecar: Sidecar, begun: bytes) -> None:
    ended = sidecar.metric("ringproxy_amqp_session_ends_total", reason="client")
    with wire(sidecar.amqp_port) as peer:
        peer.send(begun)
        if begun == PROTOCOL_HEADER:
            peer.expect(0, Connection.Start)
        peer.socket.shutdown(socket.SHUT_WR)
        assert peer.at_end()
    wait_until("ended", lambda: sidecar.metric("ringproxy_amqp_session_ends_total", reason="client") == ended + 1)


def test_a_frame_of_the_handshake_may_have_128_kib(sidecar: Sidecar) -> None:
    before = refusals(sidecar, 501)
    with wire(sidecar.amqp_port) as peer:
        peer.send(PROTOCOL_HEADER)
        peer.expect(0, Connection.Start)
        peer.send(struct.pack(">BHI", METHOD, 0, (1 << 17) + 1), b"a")

        assert peer.expect(0, Connection.Close).reply_code == 501
    assert refusals(sidecar, 501) == before + 1


FAULTS = {
    "no end octet": (501, [raw_frame(METHOD, 1, PUBLISH + short(b"orders") + short(b"k") + b"\0", b"\0")]),
    "no end octet after a body": (
        501,
        [ring_publish(), raw_frame(HEADER, 1, header(size=3)), raw_frame(BODY, 1, b"abc", b"\0")],
    ),
    "unknown frame type": (501, [raw_frame(4, 1, b"1234")]),
    "unknown frame type on channel 0": (501, [raw_frame(9, 0, b"1234")]),
    "unknown frame type on a channel that is not open": (501, [raw_frame(7, 5, b"1234")]),
    # RabbitMQ, and so the proxy, counts the payload alone.
    "a frame one byte too large": (501, [struct.pack(">BHI", BODY, 1, FRAME_MAX + 1), b"a"]),
    "a huge method frame": (501, [struct.pack(">BHI", METHOD, 1, 0xFFFFFFFF), b"\0"]),
    "header without method": (505, [raw_frame(HEADER, 1, header())]),
    "body without header": (505, [raw_frame(BODY, 1, b"abc")]),
    "body right after the method": (505, [ring_publish(), raw_frame(BODY, 1, b"abc")]),
    "body longer than announced": (
        505,
        [ring_publish(), raw_frame(HEADER, 1, header(size=2)), raw_frame(BODY, 1, b"abc")],
    ),
    "method where a header is due": (505, [ring_publish(), ring_publish()]),
    "method where a body is due": (505, [ring_publish(), raw_frame(HEADER, 1, header(size=2)), ring_publish()]),
    "method where the body of a passed publish is due": (
        505,
        [ring_publish(exchange="amq.fanout"), raw_frame(HEADER, 1, header(size=2)), ring_publish()],
    ),
    "header of another class": (505, [ring_publish(), raw_frame(HEADER, 1, header(exchange_class=50))]),
    "content on channel 0": (505, [raw_frame(HEADER, 0, header())]),
    "a channel's method on channel 0": (503, [encoded(0, Channel.Open())]),
    "a publish on channel 0": (503, [publishing(0, "orders", "k")]),
    "a method that only servers send": (503, [encoded(0, Connection.Tune())]),
    "open once more": (503, [encoded(0, Connection.Open("/"))]),
    "a connection's method on a channel": (503, [encoded(9, Connection.Close(200, "", 0, 0))]),
    "exchange's name past its frame": (502, [raw_frame(METHOD, 1, PUBLISH + b"\xffab\x01k\0")]),
    "routing key past its frame": (502, [raw_frame(METHOD, 1, PUBLISH + short(b"orders") + b"\x09k\0")]),
    "publish without bits": (502, [raw_frame(METHOD, 1, PUBLISH + short(b"orders") + short(b"k"))]),
    "publish without anything": (502, [raw_frame(METHOD, 1, PUBLISH)]),
    "a method of two bytes": (502, [raw_frame(METHOD, 1, b"\0\x3c")]),
    "an empty method frame": (502, [raw_frame(METHOD, 1, b"")]),
    "an empty method frame on channel 0": (502, [raw_frame(METHOD, 0, b"")]),
    "header that stops early": (502, [ring_publish(), raw_frame(HEADER, 1, header()[:9])]),
    "endless property flags": (502, [ring_publish(), raw_frame(HEADER, 1, header(flags=1, rest=b"\0\x01\0\x01"))]),
    "content type past its frame": (502, [ring_publish(), raw_frame(HEADER, 1, header(flags=0x8000, rest=b"\x09ab"))]),
    "table longer than its frame": (502, [ring_publish(), raw_frame(HEADER, 1, table_of(500, b"\x01aI\0\0\0\1"))]),
    "table without a length": (502, [ring_publish(), raw_frame(HEADER, 1, header(flags=0x2000, rest=b"\0\0"))]),
    "bind whose name runs past its frame": (502, [raw_frame(METHOD, 1, b"\x00\x32\x00\x14\x00\x00\x20q")]),
    "more channels than agreed": (530, [encoded(2047, Channel.Open())]),
}


def acknowledged(peer: Wire, vhost: VirtualHost) -> None:
    """A session with a channel on which one message is confirmed, and nothing is under way."""
    peer.channel()
    peer.publish(1, "orders", "k", b"confirmed")
    peer.confirm(1)


@pytest.mark.parametrize(("code", "parts"), FAULTS.values(), ids=FAULTS)
def test_the_reply_code_says_what_was_wrong(
    sidecar: Sidecar, vhost: VirtualHost, client: Client, code: int, parts: list[bytes]
) -> None:
    before = refusals(sidecar, code)
    with client.session(sidecar.amqp_port, vhost.name, channel_max=2046) as peer:
        acknowledged(peer, vhost)

        peer.send(*parts)

        closed = peer.expect(0, Connection.Close)
        assert closed.reply_code == code, dict(closed)
        assert refusals(sidecar, code) == before + 1
        peer.tell(0, Connection.CloseOk())
        # Once frames cannot be told apart, the end of the connection is all that the client can say.
        assert code == 501 or peer.at_end()
    assert f": {code} " in sidecar.log()
    wait_until("the session's end", lambda: sidecar.metric("ringproxy_amqp_sessions") == 1)


@pytest.mark.parametrize("code", [501, 502, 505])
def test_what_was_sent_just_before_the_fault_is_published(
    sidecar: Sidecar, vhost: VirtualHost, client: Client, code: int
) -> None:
    """As RabbitMQ has it: a fault ends the session, not what came before it."""
    fault = {
        501: raw_frame(METHOD, 1, b"\0\x3c\0\x28", b"!"),
        502: raw_frame(METHOD, 1, PUBLISH),
        505: raw_frame(BODY, 1, b"abc"),
    }[code]
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        acknowledged(peer, vhost)
        peer.send(*[publishing(1, "orders", f"{n}", b"confirmed") for n in range(20)], fault)
        closed = peer.expect(0, Connection.Close)
        assert closed.reply_code == code
        peer.tell(0, Connection.CloseOk())
    wait_until("the session's end", lambda: sidecar.metric("ringproxy_amqp_sessions") == 1)
    # Counted through another session: what the first one sent is in the queue before its broker leg is closed.
    with client.session(sidecar.amqp_port, vhost.name) as other:
        other.channel(confirm=False)
        wait_until(
            "all of them",
            lambda: other.ask(1, Queue.Declare(queue="q", passive=True), Queue.DeclareOk).message_count == 22,
        )


def test_a_client_that_does_not_answer_the_close_is_cut_off(
    sidecar: Sidecar, vhost: VirtualHost, client: Client
) -> None:
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        acknowledged(peer, vhost)
        peer.send(raw_frame(BODY, 1, b"abc"))
        peer.expect(0, Connection.Close)
        # Silence: the socket is closed all the same.
        assert peer.at_end()


def test_a_fault_inside_a_passed_body_leaves_no_whole_message(
    sidecar: Sidecar, vhost: VirtualHost, client: Client
) -> None:
    """The broker has half of a frame then: it must never take it for a message."""
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        acknowledged(peer, vhost)
        start, head, data = publish_frames(1, "", "q", bytes(100_000))
        for part in (start, head, data[:50_000]):
            peer.send(part)
        peer.send(data[50_000:-1], b"\0")
        assert peer.expect(0, Connection.Close).reply_code == 501


def test_a_method_on_a_channel_that_is_not_open_is_the_brokers_to_refuse(
    sidecar: Sidecar, vhost: VirtualHost, client: Client
) -> None:
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        acknowledged(peer, vhost)
        peer.send(publishing(7, "orders", "k", b"lost"))
        closed = peer.expect(0, Connection.Close)
        assert closed.reply_code == 504
        assert "CHANNEL_ERROR" in closed.reply_text
        peer.tell(0, Connection.CloseOk())
        assert peer.at_end()


def test_a_declaration_that_the_broker_refuses_keeps_the_session(
    sidecar: Sidecar, vhost: VirtualHost, client: Client
) -> None:
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        acknowledged(peer, vhost)
        peer.channel(2)
        closed = peer.ask(2, Queue.Declare(queue="none", passive=True), Channel.Close)
        assert closed.reply_code == 404
        peer.tell(2, Channel.CloseOk())
        peer.publish(1, "orders", "k", b"confirmed")
        peer.confirm(1)
        # Its number is free again.
        peer.channel(2)
        peer.goodbye()


def test_a_table_that_lies_inside_its_bounds_is_not_looked_at(
    sidecar: Sidecar, vhost: VirtualHost, client: Client
) -> None:
    """Entries are walked only where there is a stamp to replace; else they are the broker's to judge."""
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        acknowledged(peer, vhost)
        entries = short(b"CC") + b"S" + struct.pack(">I", 900) + b"short"
        peer.send(ring_publish(), raw_frame(HEADER, 1, table_of(len(entries), entries)))
        assert peer.expect(0, Connection.Close).reply_code == 502
        peer.tell(0, Connection.CloseOk())
        assert peer.at_end()


def test_a_header_frame_longer_than_its_properties_is_the_brokers_to_refuse(
    sidecar: Sidecar, vhost: VirtualHost, client: Client, broker: Broker
) -> None:
    """RabbitMQ's channel fails at it, which ends the connection."""
    made = encoded(1, ContentHeader(0, 4, Basic.Properties(content_type="a/b")))
    payload = made[7:-1] + b"trailing"
    for port in (port_of(broker.amqp_url), sidecar.amqp_port):
        with client.session(port, vhost.name) as peer:
            acknowledged(peer, vhost)
            peer.send(ring_publish(), raw_frame(HEADER, 1, payload), raw_frame(BODY, 1, b"lost"))
            assert peer.expect(0, Connection.Close).reply_code == 541
            peer.tell(0, Connection.CloseOk())
            assert peer.at_end()


def closing(peer: Wire, request: list[FrameTypes]) -> tuple[int | None, str]:
    """How the other side ends the connection: the reply, or what is closed without one."""
    peer.tell(0, *request)
    try:
        closed = peer.expect(0, Connection.Close)
    except EOFError:
        return None, ""
    return closed.reply_code, closed.reply_text


@pytest.mark.parametrize(("who", "tells"), [("nobody", True), ("guest", True), ("guest", False)])
def test_a_refused_login_is_the_brokers_own_answer(
    sidecar: Sidecar, vhost: VirtualHost, broker: Broker, who: str, tells: bool
) -> None:
    properties: FieldTable = {"capabilities": {"authentication_failure_close": tells}}
    answers = []
    for port in (port_of(broker.amqp_url), sidecar.amqp_port):
        with wire(port) as peer:
            peer.send(PROTOCOL_HEADER)
            peer.expect(0, Connection.Start)
            answers.append(closing(peer, [Connection.StartOk(properties, "PLAIN", f"\0{who}\0wrong")]))
    assert answers[0] == answers[1]
    assert answers[0][0] == (403 if tells else None)


@pytest.mark.parametrize("which", ["absent", "forbidden"])
def test_a_refused_virtual_host_is_the_brokers_own_answer(
    sidecar: Sidecar, vhost: VirtualHost, client: Client, broker: Broker, which: str
) -> None:
    answers = []
    for port in (port_of(broker.amqp_url), sidecar.amqp_port):
        with wire(port) as peer:
            if which == "absent":
                peer.handshake(client.user, client.password)
            else:
                peer.handshake(USER, PASSWORD)
            peer.tell(0, Connection.TuneOk(peer.tune.channel_max, peer.tune.frame_max, 0))
            host = "no such" if which == "absent" else "/"
            answers.append(closing(peer, [Connection.Open(host)]))
    assert answers[0] == answers[1]
    assert answers[0][0] == 530


def test_no_broker(start_sidecar: StartSidecar, login: Login) -> None:
    closed = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{closed.getsockname()[1]}"
    closed.close()
    lost = start_sidecar(broker_addresses=address)
    with wire(lost.amqp_port) as peer:
        peer.send(PROTOCOL_HEADER)
        assert peer.at_end()
    assert f"no connection to the broker: {address}: " in lost.log()
    assert lost.metric("ringproxy_amqp_session_ends_total", reason="unreachable") == 1
