"""Nobody whom the broker has not let in costs the sidecar anything that lasts, or anybody else anything."""

import re
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from pamqp.commands import Basic, Channel, Connection

from testbed.broker import Broker
from tests.integration.broker_api import VirtualHost, wait_until
from tests.integration.conftest import StartSidecar
from tests.integration.sidecar import Sidecar
from tests.integration.test_journal import journalled
from tests.integration.wire_client import PROTOCOL_HEADER, Client, Wire, encoded, port_of, publishing, wire

MIB = 1 << 20
STRANGERS = 30
"""Connections that send all that follows at once."""

MOST_GROWN = 24 * MIB
"""Bytes of memory for all of them: a read of 256 KiB each, twice, and room. Their channels alone took 540 MiB once."""

_OPEN = encoded(1, Channel.Open())
LOADS = {
    "channels": b"".join(encoded(number, Channel.Open()) for number in range(1, 65535)),
    "publishes to names that do not exist": _OPEN + b"".join(publishing(1, f"made up {n}", "k") for n in range(2000)),
    "publishes to a ring": _OPEN + b"".join(publishing(1, "orders", f"k{n}") for n in range(2000)),
}
"""The bytes that each stranger sends behind its handshake, in turn."""


def start_ok(user: str, password: str) -> bytes:
    return encoded(0, Connection.StartOk({}, "PLAIN", f"\0{user}\0{password}"))


def opened(vhost: str, channel_max: int) -> bytes:
    """The rest of a handshake, of a client that waits for nothing."""
    return encoded(0, Connection.TuneOk(channel_max, 131072, 0)) + encoded(0, Connection.Open(vhost))


Stranger = Callable[[Client, str, int], bytes]

STRANGERS_WORDS: dict[str, Stranger] = {
    "no login": lambda client, vhost, n: opened(vhost, 0),
    "no login, and a close-ok": lambda client, vhost, n: encoded(0, Connection.CloseOk()) + opened(vhost, 0),
    "a wrong password": lambda client, vhost, n: start_ok(client.user, "wrong") + opened(vhost, 2046),
    "too many channels": lambda client, vhost, n: start_ok(client.user, client.password) + opened(vhost, 65534),
    "a made-up virtual host": lambda client, vhost, n: (
        start_ok(client.user, client.password) + opened(f"made up {n} {'v' * 100}", 2046)
    ),
}


def sent_at_once(peer: Wire, data: bytes) -> None:
    """As much of it as the sidecar and the kernel take without an answer."""
    peer.socket.settimeout(0.2)
    with suppress(TimeoutError, ConnectionError):
        peer.socket.sendall(data)


def labels(sidecar: Sidecar) -> set[str]:
    """The virtual hosts and exchanges that the metrics name."""
    return set(re.findall(r'(?:vhost|exchange)="[^"]*"', sidecar.admin("/metrics").text))


@pytest.mark.parametrize("words", STRANGERS_WORDS)
def test_what_a_stranger_sends_comes_to_nothing(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client, tmp_path: Path, words: str
) -> None:
    vhost.ring("orders", ["q"])
    sidecar = start_sidecar(journal_dir=str(tmp_path), max_sessions="200")
    with client.session(sidecar.amqp_port, vhost.name) as other, ExitStack() as stack:
        other.channel()
        other.publish(1, "orders", "k")
        other.confirm(1)
        named, memory = labels(sidecar), sidecar.memory("VmHWM")
        for number in range(STRANGERS):
            peer = stack.enter_context(wire(sidecar.amqp_port))
            first = STRANGERS_WORDS[words](client, vhost.name, number)
            sent_at_once(peer, PROTOCOL_HEADER + first + [*LOADS.values()][number % len(LOADS)])
            assert sidecar.admin("/livez").status == 200
        other.publish(1, "orders", "k")
        other.confirm(1, 2, 1)
        stack.pop_all().close()
        wait_until("their end", lambda: sidecar.metric("ringproxy_amqp_sessions") == 1)
        grown = sidecar.memory("VmHWM") - memory
        print(f"{grown / MIB:.1f} MiB more at the most")
        assert grown < MOST_GROWN
        assert labels(sidecar) == named
        for result in ("absent", "failed"):
            assert sidecar.metric("ringproxy_syncs_total", result=result) == 0
        assert sidecar.metric("ringproxy_publishes_total", ingress="amqp") == 2
    assert {record["exchange"] for record in journalled(sidecar, tmp_path)} == {"orders"}


@pytest.mark.parametrize("direct", [True, False], ids=["the broker itself", "the sidecar"])
def test_a_client_that_waits_for_nothing_is_served(
    sidecar: Sidecar, broker: Broker, vhost: VirtualHost, client: Client, direct: bool
) -> None:
    """RabbitMQ takes what comes ahead of its answers, and so does the sidecar."""
    vhost.ring("orders", ["q"])
    with wire(port_of(broker.amqp_url) if direct else sidecar.amqp_port) as peer:
        handshake = start_ok(client.user, client.password) + opened(vhost.name, 100)
        channel = encoded(1, Channel.Open()) + publishing(1, "orders", "1", b"early")
        peer.send(PROTOCOL_HEADER + handshake + channel + encoded(1, Basic.Get(0, "q", True)))
        for kind in (Connection.Start, Connection.Tune, Connection.OpenOk):
            peer.expect(0, kind)
        peer.expect(1, Channel.OpenOk)
        assert peer.content(1, Basic.GetOk).body == b"early"


@pytest.mark.parametrize("beyond", [1, 60_000])
def test_more_channels_than_are_offered_are_refused(
    sidecar: Sidecar, vhost: VirtualHost, client: Client, beyond: int
) -> None:
    with wire(sidecar.amqp_port) as peer:
        peer.handshake(client.user, client.password)
        offered = peer.tune.channel_max or 0
        peer.send(opened(vhost.name, offered + beyond))
        close = peer.expect(0, Connection.Close)
        assert close.reply_code == 530
        assert close.reply_text.endswith(f" is higher than the maximum allowed value ({offered})")
        peer.tell(0, Connection.CloseOk())
        peer.socket.shutdown(socket.SHUT_WR)
        assert peer.at_end()
