"""Each limit of the AMQP listener is reached: the reply code, or the end, and nobody else is harmed."""

import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from pamqp.commands import Basic, Connection

from proxy.session.listener import SPARE
from proxy.session.time_limits import CLOSE_WITHIN, HEADER_WITHIN
from tests.certificates import Authority
from tests.integration.broker_api import VirtualHost, wait_until
from tests.integration.conftest import StartSidecar
from tests.integration.sidecar import Sidecar
from tests.integration.wire_client import PROTOCOL_HEADER, Client, Wire, encoded, publish_frames, raw_frame, short, wire

GET_OK = struct.pack(">HH", 60, 71)

BROKERS_HANDSHAKE = 10.0
"""Seconds that RabbitMQ gives a handshake by default."""


def sessions(sidecar: Sidecar) -> float:
    return sidecar.metric("ringproxy_amqp_sessions")


@contextmanager
def refused(sidecar: Sidecar, client: Client) -> Iterator[Wire]:
    """A connection that was one too many, after its connection.close."""
    with wire(sidecar.amqp_port) as peer:
        peer.send(PROTOCOL_HEADER)
        peer.expect(0, Connection.Start)
        peer.tell(0, Connection.StartOk({}, "PLAIN", f"\0{client.user}\0{client.password}"))
        close = peer.expect(0, Connection.Close)
        text = "NOT_ALLOWED - connection refused: max_sessions (2) is reached"
        assert (close.reply_code, close.reply_text) == (530, text)
        yield peer


def test_more_sessions_than_may_be(start_sidecar: StartSidecar, vhost: VirtualHost, client: Client) -> None:
    vhost.ring("orders", ["q"])
    sidecar = start_sidecar(max_sessions="2")
    with client.session(sidecar.amqp_port, vhost.name) as first:
        first.channel()
        with client.session(sidecar.amqp_port, vhost.name):
            with refused(sidecar, client) as peer:
                peer.tell(0, Connection.CloseOk())
                assert peer.at_end()
            assert sessions(sidecar) == 2
            assert sidecar.metric("ringproxy_amqp_refusals_total", code="530") == 1
            first.publish(1, "orders", "k")
            first.confirm(1)
        wait_until("room", lambda: sessions(sidecar) == 1)
        with client.session(sidecar.amqp_port, vhost.name) as other:
            other.channel()
    assert sidecar.log().count("as many as max_sessions allows") == 1


def test_who_is_refused_and_stays_is_not_waited_for(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client
) -> None:
    sidecar = start_sidecar(max_sessions="2")
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(client.session(sidecar.amqp_port, vhost.name))
        silent = [stack.enter_context(wire(sidecar.amqp_port)) for _ in range(SPARE - 1)]
        stubborn = stack.enter_context(refused(sidecar, client))
        # Those beyond hear nothing.
        assert stack.enter_context(wire(sidecar.amqp_port)).at_end()
        began = time.monotonic()
        assert all(peer.at_end() for peer in [*silent, stubborn])
        assert time.monotonic() - began < 2 * CLOSE_WITHIN
        with refused(sidecar, client):
            assert sessions(sidecar) == 2


def _start_ok(client: Client) -> bytes:
    return encoded(0, Connection.StartOk({"product": "slow"}, "PLAIN", f"\0{client.user}\0{client.password}"))


STALLS: dict[str, Callable[[Wire, Client], None]] = {
    "nothing": lambda peer, client: None,
    "half a header": lambda peer, client: peer.send(PROTOCOL_HEADER[:4]),
    "no start-ok": lambda peer, client: peer.send(PROTOCOL_HEADER),
    "half a start-ok": lambda peer, client: peer.send(PROTOCOL_HEADER, _start_ok(client)[:30]),
    "no tune-ok": lambda peer, client: peer.handshake(client.user, client.password),
}


def drip(peer: Wire, data: bytes) -> None:
    """Sends it byte by byte until the other side has had enough; fails where it never has."""
    for byte in data:
        try:
            peer.send(bytes((byte,)))
        except (BrokenPipeError, ConnectionResetError):
            return
        time.sleep(0.5)
    raise AssertionError("it was waited for")


@pytest.mark.long
def test_a_handshake_that_is_never_finished_ends(sidecar: Sidecar, client: Client) -> None:
    before = sessions(sidecar)
    with ExitStack() as stack:
        peers = {name: stack.enter_context(wire(sidecar.amqp_port)) for name in STALLS}
        dripping = stack.enter_context(wire(sidecar.amqp_port))
        began = time.monotonic()
        for name, stall in STALLS.items():
            stall(peers[name], client)
        wait_until("all sessions", lambda: sessions(sidecar) == before + len(STALLS) + 1)
        # However steadily it comes.
        drip(dripping, PROTOCOL_HEADER + _start_ok(client))
        wait_until("their end", lambda: sessions(sidecar) == before)
        took = time.monotonic() - began
        assert max(HEADER_WITHIN, BROKERS_HANDSHAKE) * 0.9 < took < 2.5 * BROKERS_HANDSHAKE


def test_a_tls_handshake_that_is_never_finished_ends(start_sidecar: StartSidecar, tmp_path: Path) -> None:
    pair = Authority(tmp_path).issue("sidecar")
    sidecar = start_sidecar(tls_cert_file=f"{pair.certificate}", tls_key_file=f"{pair.key}")
    with wire(sidecar.amqp_port) as silent, wire(sidecar.amqp_port) as half:
        began = time.monotonic()
        half.send(bytes.fromhex("16030100c8010000c40303"))
        assert silent.at_end()
        assert half.at_end()
        assert HEADER_WITHIN * 0.9 < time.monotonic() - began < 2 * HEADER_WITHIN


def test_a_session_that_is_silent_for_two_heartbeats_ends(sidecar: Sidecar, vhost: VirtualHost, client: Client) -> None:
    before = sessions(sidecar)
    with (
        client.session(sidecar.amqp_port, vhost.name, heartbeat=1) as silent,
        client.session(sidecar.amqp_port, vhost.name) as without,
    ):
        silent.channel()
        without.channel()
        wait_until("its end", lambda: sessions(sidecar) == before + 1)
        # It asked for none: it may be idle for ever.
        without.channel(2)


DEPTH = 10_000


def nested(depth: int) -> bytes:
    """The entries of a table with a table in it, and so on."""
    entries = b""
    for _ in range(depth):
        entries = short(b"t") + b"F" + struct.pack(">I", len(entries)) + entries
    return entries


def test_headers_of_any_depth_pass_within_frame_max(sidecar: Sidecar, vhost: VirtualHost, client: Client) -> None:
    vhost.ring("orders", ["q"])
    entries = nested(DEPTH)
    table = struct.pack(">HHQH", 60, 0, 0, 0x2000) + struct.pack(">I", len(entries)) + entries
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        peer.channel()
        peer.send(publish_frames(1, "orders", "k")[0], raw_frame(2, 1, table))
        peer.confirm(1)
        peer.tell(1, Basic.Get(0, "q", True))
        kind, _, method = peer.read_frame()
        assert (kind, method[:4]) == (1, GET_OK)
        kind, _, header = peer.read_frame()
        assert (kind, header.count(b"\x01tF")) == (2, DEPTH)
