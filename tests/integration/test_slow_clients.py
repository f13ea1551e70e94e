"""Clients that send or read slowly, or not at all: they are waited for so long, and keep nobody else out meanwhile."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

import pytest

from tests.integration.broker_api import DEADLINE_SECONDS, VirtualHost, wait_until
from tests.integration.conftest import StartSidecar
from tests.integration.sidecar import Sidecar, publish_path

MOST = 1 << 20
"""`max_body` of these sidecars, and as many times four `max_in_flight_bytes`, as by default."""


@contextmanager
def connected(sidecar: Sidecar) -> Iterator[socket.socket]:
    with closing(socket.create_connection(("127.0.0.1", sidecar.port), DEADLINE_SECONDS)) as connection:
        yield connection


def head(path: str, *lines: str) -> bytes:
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: x", *lines, "", ""]).encode()


def status(connection: socket.socket) -> int:
    """Of the next answer."""
    return int(connection.recv(65536).split(b" ", 2)[1])


def readable(connection: socket.socket, seconds: float) -> bool:
    """Whether an answer comes, or the end."""
    connection.settimeout(seconds)
    try:
        connection.recv(1, socket.MSG_PEEK)
    except TimeoutError:
        return False
    except ConnectionResetError:
        return True
    finally:
        connection.settimeout(DEADLINE_SECONDS)
    return True


def trickle(connection: socket.socket, part: bytes) -> bool:
    """Sends one more part, and tells whether the other side has had enough of them."""
    if readable(connection, 0.1):
        return True
    connection.sendall(part)
    return False


PLACES: list[Callable[[str], tuple[str, list[str]]]] = [
    lambda vhost: (publish_path("orders", vhost, key="k"), []),
    lambda vhost: (publish_path("orders", vhost, "publish/batch"), ["Content-Type: application/json"]),
    lambda vhost: (publish_path("orders", vhost, "events"), ["Content-Type: application/cloudevents+json"]),
    lambda vhost: ("/api/exchanges/%2F/orders/publish", ["Authorization: Basic bm86Ym9keQ=="]),
]


@pytest.mark.parametrize("place", PLACES, ids=["publish", "batch", "events", "management API's"])
def test_slow_senders_keep_nobody_out(
    start_sidecar: StartSidecar, vhost: VirtualHost, place: Callable[[str], tuple[str, list[str]]]
) -> None:
    vhost.ring("orders", ["q"])
    sidecar = start_sidecar(body_timeout="2", max_body=f"{MOST}", max_in_flight_bytes=f"{4 * MOST}")
    path, lines = place(vhost.name)
    with ExitStack() as stack:
        slow = [stack.enter_context(connected(sidecar)) for _ in range(8)]
        for connection in slow:
            connection.sendall(head(path, *lines, f"Content-Length: {MOST}") + b" ")
        assert not readable(slow[-1], 0.2)

        assert sidecar.publish("orders", "k", b"small", vhost=vhost.name).status == 200
        assert sidecar.publish("orders", "k", b"x" * MOST, vhost=vhost.name).status == 200
        assert sidecar.batch("orders", [{"key": "k", "payload": "x"}], vhost=vhost.name).status == 200

        # However steadily they send.
        wait_until("the end of their time", lambda: sum(trickle(c, b" ") for c in slow) == len(slow))
        assert {status(connection) for connection in slow} == {408}


def test_a_sender_that_is_slow_but_in_time(start_sidecar: StartSidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", ["q"])
    sidecar = start_sidecar(body_timeout="5")
    with connected(sidecar) as connection:
        connection.sendall(head(publish_path("orders", vhost.name, key="k"), "Content-Length: 8"))
        for part in (b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h"):
            assert not trickle(connection, part)
        assert status(connection) == 200
    assert [m.body for m in vhost.drain("q")] == [b"abcdefgh"]
