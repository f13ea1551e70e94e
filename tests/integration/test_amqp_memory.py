"""The memory of AMQP sessions; what is not read is held back and not buffered."""

import re
import socket
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from pamqp.commands import Basic, Channel

from tests.integration.broker_api import VirtualHost, wait_until
from tests.integration.conftest import Login, StartSidecar
from tests.integration.relay import relay
from tests.integration.sidecar import Sidecar
from tests.integration.wire_client import Client, Wire, encoded, publishing

pytestmark = pytest.mark.long

DOCUMENT = Path(__file__).parents[2] / "docs/reference/memory.md"

MIB = 1 << 20

ACKED = struct.pack(">HH", 60, 80)

IDLE_SESSIONS = 1000
MOST_OF_ONE = 32 * 1024
"""Bytes of an idle session with a channel, generously: about 8 KiB were measured."""

FULL_SESSIONS, ROUNDS = 2, 2
"""With all channels that they are offered: 2,046 each by RabbitMQ's defaults."""

PUMPED = 128 * MIB
MOST_KEPT = 16 * MIB
"""The most of it that is kept: two buffers of 256 KiB and what was just read, and what the allocator keeps."""

SMALL = 40 * MIB
"""The bytes of the smallest publishes: a million of them."""
MOST_OF_SMALL = 32 * MIB
"""The most of them that are kept: the bytes that were just read become many small pieces."""

KERNEL = 64 * MIB
"""The most that the kernel's buffers of the sockets between two ends hold, generously."""


def open_sessions(sidecar: Sidecar, client: Client, vhost: str, stack: ExitStack, count: int) -> list[Wire]:
    opened = []
    for _ in range(count):
        peer = stack.enter_context(client.session(sidecar.amqp_port, vhost))
        peer.channel(confirm=False)
        opened.append(peer)
    return opened


def test_an_idle_session_costs_little(start_sidecar: StartSidecar, vhost: VirtualHost, client: Client) -> None:
    sidecar = start_sidecar(max_sessions=f"{2 * IDLE_SESSIONS}")
    with ExitStack() as stack:
        # The memory that the first ones need is not needed by others.
        open_sessions(sidecar, client, vhost.name, stack, 50)
        before = sidecar.memory()
        open_sessions(sidecar, client, vhost.name, stack, IDLE_SESSIONS)
        cost = (sidecar.memory() - before) / IDLE_SESSIONS
        print(f"{cost / 1024:.1f} KiB an idle session")
        assert sidecar.metric("ringproxy_amqp_sessions") == IDLE_SESSIONS + 50
        assert cost < MOST_OF_ONE


def with_all_channels(sidecar: Sidecar, client: Client, vhost: str, stack: ExitStack) -> int:
    """Sessions with every channel that is offered; how many channels they have together."""
    opened = 0
    for _ in range(FULL_SESSIONS):
        peer = stack.enter_context(client.session(sidecar.amqp_port, vhost))
        most = peer.tune.channel_max or 2046
        peer.send(*(encoded(number, Channel.Open()) for number in range(1, most + 1)))
        answered = {peer.read_frame()[1] for _ in range(most)}
        assert answered == set(range(1, most + 1))
        opened += most
    return opened


def test_channels_cost_what_the_documents_say_and_are_given_back(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client
) -> None:
    sidecar = start_sidecar()
    with ExitStack() as stack:
        open_sessions(sidecar, client, vhost.name, stack, 50)
    before, taken = sidecar.memory(), []
    for _ in range(ROUNDS):
        wait_until("the end of all", lambda: sidecar.metric("ringproxy_amqp_sessions") == 0)
        with ExitStack() as stack:
            channels = with_all_channels(sidecar, client, vhost.name, stack)
            taken.append((sidecar.memory() - before) / channels)
    (figure,) = re.findall(r"An open\s+channel\s+takes\s+([0-9.]+)\s+KiB", DOCUMENT.read_text())
    most = float(figure) * 1024
    print("bytes a channel, by round:", *map(round, taken))
    assert taken[0] < most
    assert taken[-1] < 1.5 * most


@contextmanager
def kept_little(sidecar: Sidecar, most: int = MOST_KEPT) -> Iterator[None]:
    """Its memory, at its most, grows by less."""
    before = sidecar.memory("VmHWM")
    yield
    grown = sidecar.memory("VmHWM") - before
    print(f"{grown / MIB:.1f} MiB more at the most")
    assert grown < most


def sent_until_stuck(peer: Wire, data: bytes, most: int) -> int:
    """How many bytes of it, again and again, the peer takes before it takes none for two seconds."""
    sent, peer_socket = 0, peer.socket
    peer_socket.settimeout(2)
    try:
        while sent < most:
            sent += peer_socket.send(data[sent % len(data) :])
    except TimeoutError:
        pass
    finally:
        peer_socket.settimeout(30)
    return sent


def test_a_consumer_that_stops_reading_is_held_back(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client
) -> None:
    vhost.queue("q")
    sidecar = start_sidecar()
    with client.session(sidecar.amqp_port, vhost.name) as filler, client.session(sidecar.amqp_port, vhost.name) as peer:
        filler.channel()
        filler.publish(1, "", "q", b"x" * MIB)
        filler.confirm(1)
        with kept_little(sidecar):
            for _ in range(PUMPED // MIB):
                filler.publish(1, "", "q", b"x" * MIB)
            filler.confirm(1, 1 + PUMPED // MIB, 1)
            peer.channel(confirm=False)
            before = sidecar.metric("ringproxy_amqp_bytes_total", leg="broker")
            peer.tell(1, Basic.Consume(0, "q", "", no_ack=True))
            passed = settled(sidecar, "broker") - before
            print(f"{passed / MIB:.1f} MiB were read of the broker")
            assert MIB < passed < KERNEL

            # It reads on, and gets all of it.
            peer.expect(1, Basic.ConsumeOk)
            for _ in range(1 + PUMPED // MIB):
                assert len(peer.content(1, Basic.Deliver).body) == MIB


def settled(sidecar: Sidecar, leg: str) -> float:
    """The bytes that came of one leg, once no more come."""

    def look() -> float:
        before = sidecar.metric("ringproxy_amqp_bytes_total", leg=leg)
        time.sleep(1)
        after = sidecar.metric("ringproxy_amqp_bytes_total", leg=leg)
        return after if after == before else 0

    return wait_until("an end of what comes", look)


def test_a_publisher_is_held_back_while_the_broker_reads_nothing(
    start_sidecar: StartSidecar, login: Login, vhost: VirtualHost, client: Client
) -> None:
    vhost.ring("orders", ["q"])
    with relay(login.broker_url) as (link, broker_url):
        sidecar = start_sidecar(broker_url=broker_url)
        with client.session(sidecar.amqp_port, vhost.name) as peer:
            peer.channel()
            peer.publish(1, "orders", "k", b"first")
            peer.confirm(1)
            one = publishing(1, "orders", "k", b"x" * 100_000)
            link.freeze()
            with kept_little(sidecar):
                sent = sent_until_stuck(peer, one, PUMPED)
            print(f"{sent / MIB:.1f} MiB were taken of the client")
            assert sent < KERNEL

            link.thaw()
            peer.send(one[sent % len(one) :])
            peer.confirm(1, 2 + sent // len(one), 1)


def test_confirms_that_are_never_read_are_held_back(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client
) -> None:
    vhost.ring("orders", ["q"])
    sidecar = start_sidecar()
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.channel()
        one = publishing(1, "orders", "k")
        some = one * 1000
        with kept_little(sidecar, MOST_OF_SMALL):
            sent = sent_until_stuck(peer, some, SMALL)
        print(f"{sent / MIB:.1f} MiB were taken of the client")

        # It reads on, and gets the last.
        with ThreadPoolExecutor(1) as pool:
            rest = pool.submit(peer.send, one[sent % len(one) :])
            while peer.read_frame()[2][:12] != ACKED + struct.pack(">Q", 1 + sent // len(one)):
                pass
            rest.result()
