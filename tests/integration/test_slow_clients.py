"""Clients that send or read slowly, or not at all: they are waited for so long, and keep nobody else out meanwhile."""

import base64
import contextlib
import socket
from collections.abc import Callable, Iterator
from urllib.parse import quote

import pytest

from tests.integration.broker_api import DEADLINE_SECONDS, BrokerApi, VirtualHost, wait_until
from tests.integration.conftest import StartSidecar
from tests.integration.sidecar import Sidecar, publish_path

MOST = 1 << 20
"""`max_body` of these sidecars, and as many times four `max_in_flight_bytes`, as by default."""


@contextlib.contextmanager
def connected(sidecar: Sidecar) -> Iterator[socket.socket]:
    with contextlib.closing(socket.create_connection(("127.0.0.1", sidecar.port), DEADLINE_SECONDS)) as connection:
        yield connection


def head(path: str, *lines: str) -> bytes:
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: localhost", *lines, "", ""]).encode()


def status(connection: socket.socket) -> int:
    """Return the status of the next answer."""
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


SLOW = "slow"
"""A user of the broker, and its password."""
SLOW_LOGIN = base64.b64encode(f"{SLOW}:{SLOW}".encode()).decode()

PLACES: list[Callable[[str], tuple[str, list[str]]]] = [
    lambda vhost: (publish_path("orders", vhost, key="k"), []),
    lambda vhost: (publish_path("orders", vhost, "publish/batch"), ["Content-Type: application/json"]),
    lambda vhost: (publish_path("orders", vhost, "events"), ["Content-Type: application/cloudevents+json"]),
    lambda vhost: (f"/api/exchanges/{quote(vhost, safe='')}/orders/publish", [f"Authorization: Basic {SLOW_LOGIN}"]),
]


@pytest.fixture
def slow_user(api: BrokerApi, vhost: VirtualHost) -> Iterator[None]:
    """Whom the broker lets in: of others no body is read."""
    api.ask("PUT", "users", SLOW, body={"password": SLOW, "tags": ""})
    vhost.permit(SLOW)
    yield
    api.ask("DELETE", "users", SLOW)


@pytest.mark.usefixtures("slow_user")
@pytest.mark.parametrize("place", PLACES, ids=["publish", "batch", "events", "management API's"])
def test_slow_senders_keep_nobody_out(
    start_sidecar: StartSidecar, vhost: VirtualHost, place: Callable[[str], tuple[str, list[str]]]
) -> None:
    vhost.ring("orders", ["q"])
    sidecar = start_sidecar(body_timeout="2", max_body=f"{MOST}", max_in_flight_bytes=f"{4 * MOST}")
    path, lines = place(vhost.name)
    with contextlib.ExitStack() as stack:
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


@pytest.mark.parametrize("sent", [b"", b"POST /v1/exchanges/orders/publish HTTP/1.1\r\nHost: localhost\r\n"])
def test_who_asks_nothing_is_cut_off(start_sidecar: StartSidecar, sent: bytes) -> None:
    sidecar = start_sidecar(body_timeout="0.5")
    with connected(sidecar) as connection:
        connection.sendall(sent)
        assert not readable(connection, 0.2)
        assert connection.recv(1) == b""


def line(number: int) -> bytes:
    """A message of a batch, of which its results keep much."""
    return b'{"id":"%05d%s","key":"k%d","payload":"x"}\n' % (number, b"i" * 240, number)


def start_batch(connection: socket.socket, vhost: VirtualHost, body: bytes, length: int, *lines: str) -> None:
    path = publish_path("orders", vhost.name, "publish/batch")
    connection.sendall(
        head(path, "Content-Type: application/x-ndjson", f"Content-Length: {length}", *lines) + body,
    )


def test_answers_that_nobody_reads(start_sidecar: StartSidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", ["q"])
    sidecar = start_sidecar(body_timeout="2", max_in_flight_bytes="1000000", max_body="1000000")
    # Each with a detail, of characters that JSON tells in six.
    body = b"".join(
        b'{"id":"%s","payload":"x","%s":1}\n' % ("中".encode() * 85, "中".encode() * 60) for _ in range(10_000)
    )
    with connected(sidecar) as connection:
        start_batch(connection, vhost, body, len(body))

        def refusal() -> bool:
            return sidecar.publish("orders", "k", b"x" * 500_000, vhost=vhost.name).status == 429

        wait_until("the answer in memory", lambda: readable(connection, 0.01))
        assert refusal()
        wait_until("the end of it", lambda: not refusal())
        # The bytes that the kernel had taken come, and then the end.
        with contextlib.suppress(ConnectionResetError):
            while connection.recv(1 << 20):
                pass


def test_open_batches_count_what_they_keep(start_sidecar: StartSidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", ["q"])
    sidecar = start_sidecar(max_in_flight_bytes="3300000")
    first, second = ([line(n) for n in range(start, start + 450)] for start in (0, 450))
    with connected(sidecar) as connection:
        start_batch(connection, vhost, b"".join(first), len(b"".join(first)) + 1)
        wait_until("all in the queue", lambda: sidecar.metric("ringproxy_publishes_total", outcome="confirmed") >= 450)

        answer = sidecar.batch(
            "orders", b"".join(second), vhost=vhost.name, headers={"Content-Type": "application/x-ndjson"}
        )

        assert "max_in_flight_bytes" in answer.problem(429, "too-many", "unknown", retryable=True)
        assert 200 < len(answer.json["results"]) < 450
        # Half of it is left for single messages.
        assert sidecar.publish("orders", "k", b"x" * 1_650_000, vhost=vhost.name).status == 200
        connection.sendall(b"\n")
        assert status(connection) == 200
    assert sidecar.batch("orders", [{"key": "k", "payload": "x"}], vhost=vhost.name).status == 200
