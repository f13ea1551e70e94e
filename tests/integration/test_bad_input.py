"""Mistakes of HTTP clients: each is one problem that names the field, and harms no other request."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import pytest

from tests.integration.broker_api import DEADLINE_SECONDS, BrokerApi, VirtualHost, fresh_name, wait_until
from tests.integration.conftest import USER, Login, StartSidecar
from tests.integration.sidecar import Sidecar, publish_path


@pytest.fixture(scope="module")
def vhost(api: BrokerApi, login: Login) -> Iterator[VirtualHost]:
    """Yield one virtual host for all tests, as what is refused leaves nothing in it.

    The exchanges that its tests publish to are there from the start: a sidecar that has just listed the exchanges
    believes that list.
    """
    made = VirtualHost(api, fresh_name(), [USER])
    for name in ("long", "beside", "named", "piped"):
        made.ring(name, [name])
    made.exchange("inner", internal=True)
    made.bind("inner", "long")
    yield made
    made.delete()


@pytest.fixture(autouse=True)
def nothing_is_harmed(sidecar: Sidecar, vhost: VirtualHost) -> Iterator[None]:
    """The exchange `orders`, which works before and after, on one connection to the broker, without a message lost."""
    vhost.ring("orders", ["q"])
    assert sidecar.publish("orders", "before", b"before", vhost=vhost.name).status == 200
    connects = broker_connects(sidecar)
    yield
    assert sidecar.publish("orders", "after", b"after", vhost=vhost.name).status == 200
    assert [m.body for m in vhost.drain("q")] == [b"before", b"after"]
    assert broker_connects(sidecar) == connects
    sidecar.check_log()


def broker_connects(sidecar: Sidecar) -> float:
    return sidecar.metric("ringproxy_broker_connects_total")


def invalid(sidecar: Sidecar, vhost: str = "", exchange: str = "") -> float:
    return sidecar.metric(
        "ringproxy_publishes_total", ingress="http", outcome="invalid", vhost=vhost, exchange=exchange
    )


def refused(sidecar: Sidecar, path: str, headers: dict[str, str] | None = None, body: bytes = b"") -> str:
    answer = sidecar.ask("POST", path, body, {"Routing-Key": "k"} | (headers or {}))
    return answer.problem(400, "bad-request", "invalid", retryable=False)


def raw_publish(vhost: VirtualHost, *lines: bytes, body: bytes = b"") -> bytes:
    length = f"Content-Length: {len(body)}".encode()
    request = f"POST {publish_path('orders', vhost.name)} HTTP/1.1".encode()
    return b"\r\n".join([request, b"Host: localhost", length, *lines, b"", body])


def test_no_routing_key(sidecar: Sidecar, vhost: VirtualHost) -> None:
    answer = sidecar.publish("orders", None, b"lost", vhost=vhost.name)

    assert "Routing-Key" in answer.problem(400, "no-routing-key", "invalid", retryable=False)


def test_no_key_to_route(sidecar: Sidecar, vhost: VirtualHost) -> None:
    answer = sidecar.ask("GET", f"/v1/exchanges/orders/route?vhost={quote(vhost.name, safe='')}")

    assert "key" in answer.problem(400, "no-routing-key", "invalid", retryable=False)


def test_unknown_exchange(sidecar: Sidecar, vhost: VirtualHost) -> None:
    for answer in (
        sidecar.publish("nonesuch", "k", vhost=vhost.name),
        sidecar.route("nonesuch", "k", vhost=vhost.name),
        sidecar.admin(f"/rings/{quote(vhost.name, safe='')}/nonesuch"),
    ):
        detail = answer.problem(404, "unknown-exchange", "invalid", retryable=False)
        assert "'nonesuch'" in detail
        assert repr(vhost.name) in detail


def test_unknown_virtual_host(sidecar: Sidecar) -> None:
    detail = sidecar.publish("orders", "k", vhost="no such / host").problem(
        404, "unknown-exchange", "invalid", retryable=False
    )

    assert "'no such / host'" in detail


def test_body_over_the_limit(start_sidecar: StartSidecar, vhost: VirtualHost) -> None:
    small = start_sidecar(max_body="1000")

    assert small.publish("orders", "k", b"x" * 1000, vhost=vhost.name).status == 200
    for size in (1001, 3_000_000):
        for body in (b"x" * size, iter([b"x" * 1000, b"x" * (size - 1000)])):
            answer = small.ask("POST", publish_path("orders", vhost.name, key="k"), body)
            assert answer.problem(413, "too-large", "invalid", retryable=False).startswith("body:")
    assert small.publish("orders", "k", b"small again", vhost=vhost.name).status == 200

    assert [len(m.body) for m in vhost.drain("q")] == [6, 1000, 11]
    assert sidecar_republish(vhost, small)


def sidecar_republish(vhost: VirtualHost, sidecar: Sidecar) -> bool:
    """Puts back what `nothing_is_harmed` looks for."""
    return sidecar.publish("orders", "before", b"before", vhost=vhost.name).status == 200


@pytest.mark.parametrize("length", [256, 1000])
def test_routing_key_too_long(sidecar: Sidecar, vhost: VirtualHost, length: int) -> None:
    for key in ("k" * length, "é" * (length // 2)):
        detail = refused(sidecar, publish_path("orders", vhost.name), {"Routing-Key": key})
        assert detail.startswith("Routing-Key:")
        assert str(length) in detail


def test_routing_key_of_255_bytes(sidecar: Sidecar, vhost: VirtualHost) -> None:
    assert sidecar.publish("long", "k" * 255, vhost=vhost.name).queue() == "long"
    assert [m.headers["x-ring-routing-key"] for m in vhost.drain("long")] == ["k" * 255]


@pytest.mark.parametrize(
    "header",
    ["Routing-Key", "Amqp-Message-Id", "Amqp-Correlation-Id", "Amqp-Header-a", "Content-Type", "Content-Encoding"],
)
def test_header_that_is_not_utf8(sidecar: Sidecar, vhost: VirtualHost, header: str) -> None:
    lines = [f"{header}: caf\xe9 \xff".encode("latin-1")]
    if header != "Routing-Key":
        lines.append(b"Routing-Key: k")

    (answer,) = sidecar.raw(raw_publish(vhost, *lines))

    detail = answer.problem(400, "bad-request", "invalid", retryable=False)
    assert detail.startswith(f"{header}:")
    assert "UTF-8" in detail


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("Amqp-Expiration", "soon"),
        ("Amqp-Expiration", "1.5"),
        ("Amqp-Expiration", "-1"),
        ("Amqp-Expiration", "4294967296"),
        ("Amqp-Priority", "256"),
        ("Amqp-Priority", "high"),
        ("Amqp-Delivery-Mode", "0"),
        ("Amqp-Delivery-Mode", "3"),
        ("Amqp-Delivery-Mode", "persistent"),
        ("Amqp-Type", "x" * 256),
        ("Amqp-Reply-To", "x" * 256),
        ("Amqp-App-Id", "x" * 256),
        ("Amqp-User-Id", "guest"),
        ("Amqp-Cluster-Id", "c"),
        ("Amqp-Routing-Key", "k"),
        ("Amqp-Nonesuch", "v"),
        ("Amqp-", "v"),
    ],
)
def test_properties_over_which_the_broker_would_close_everybodys_channel(
    sidecar: Sidecar, vhost: VirtualHost, header: str, value: str
) -> None:
    """Or that there are not, or that a sidecar cannot vouch for."""
    unknown = sidecar.metric("ringproxy_publishes_total", outcome="unknown")

    def publish(n: int) -> int:
        headers = {header: value} if n == 10 else {}
        return sidecar.publish("beside", "k", vhost=vhost.name, headers=headers).status

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(publish, range(20))) == [200] * 10 + [400] + [200] * 9

    assert len(vhost.drain("beside")) == 19
    assert sidecar.metric("ringproxy_publishes_total", outcome="unknown") == unknown
    detail = refused(sidecar, publish_path("orders", vhost.name), {header: value})
    assert detail.startswith(f"{header}:")


def test_header_names_too_long_or_empty(sidecar: Sidecar, vhost: VirtualHost) -> None:
    path = publish_path("orders", vhost.name)

    for name in ("n" * 129, "n" * 300, ""):
        assert refused(sidecar, path, {f"Amqp-Header-{name}": "v"}).startswith("Amqp-Header-")
    longest = {f"Amqp-Header-{'n' * 128}": "v"}
    assert sidecar.publish("named", "k", vhost=vhost.name, headers=longest).status == 200
    assert vhost.drain("named")[0].headers["n" * 128] == "v"


def test_headers_that_fit_in_no_frame(sidecar: Sidecar, vhost: VirtualHost) -> None:
    """A broker closes the connection for a frame over its limit, and with it everything in flight."""
    item = {"key": "k", "payload": "x", "headers": {f"{n}": "v" * 8000 for n in range(20)}}

    answer = sidecar.batch("orders", [item], vhost=vhost.name)

    answer.problem(422, "batch-failed", "invalid", retryable=False)
    assert answer.json["results"][0]["detail"].startswith("messages[0].headers:")


@pytest.mark.parametrize(
    "header", ["Routing-Key", "Amqp-Message-Id", "Amqp-Timestamp", "Content-Type", "Amqp-Header-a"]
)
def test_header_given_twice(sidecar: Sidecar, vhost: VirtualHost, header: str) -> None:
    # Amqp-Header- is followed by an AMQP name, in which case matters.
    again = header if header == "Amqp-Header-a" else header.lower()
    lines = [f"{header}: 1".encode(), f"{again}: 2".encode(), b"Routing-Key: k"]

    (answer,) = sidecar.raw(raw_publish(vhost, *lines[: 2 if header == "Routing-Key" else 3]))

    assert header in answer.problem(400, "bad-request", "invalid", retryable=False)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (b"Routing-Key: a\0b", r"b'Routing-Key: a\x00b'"),
        (b"Routing-Key: a\nInjected: b", r"b'Routing-Key: a\nInjected: b'"),
        (b"Routing-Key: a\rb", r"b'Routing-Key: a\rb'"),
        (b"Routing-Key: a\r\n b", "b' b'"),
        (b"No colon", "b'No colon'"),
    ],
    ids=["NUL", "newline", "carriage return", "folded", "no colon"],
)
def test_header_that_is_not_http(sidecar: Sidecar, vhost: VirtualHost, line: bytes, shown: str) -> None:
    # The bytes behind it are not taken for a request: the place of one is lost, and the connection closed.
    answers = sidecar.raw(raw_publish(vhost, line), raw_publish(vhost, b"Routing-Key: k"), answers=9)

    (answer,) = answers
    detail = answer.problem(400, "bad-request", "invalid", retryable=False)
    assert detail.startswith("request:")
    # Which header: its whole line, and where in it.
    assert detail.endswith(f": {shown} ^")


@pytest.mark.parametrize("rubbish", [b"\x16\x03\x01\x02\x00\x01\x00", b"AMQP\0\0\x09\x01\r\n\r\n", b"GET\r\n\r\n"])
def test_what_is_not_http_at_all(sidecar: Sidecar, rubbish: bytes) -> None:
    for answer in sidecar.raw(rubbish + b"\r\n\r\n"):
        answer.problem(400, "bad-request", "invalid", retryable=False)


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"Content-Length: -1\r\n\r\n",
        b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n",
        b"Transfer-Encoding: rot13\r\n\r\nabc",
    ],
    ids=["two lengths", "negative", "length and chunks", "chunk size", "unknown coding"],
)
def test_body_framed_wrongly(sidecar: Sidecar, vhost: VirtualHost, framing: bytes) -> None:
    head = f"POST {publish_path('orders', vhost.name)} HTTP/1.1\r\nHost: localhost\r\nRouting-Key: k\r\n".encode()

    (answer,) = sidecar.raw(head + framing)

    answer.problem(400, "bad-request", "invalid", retryable=False)


def test_client_that_leaves_in_the_middle_of_a_body(sidecar: Sidecar, vhost: VirtualHost) -> None:
    request = raw_publish(vhost, b"Routing-Key: k", body=b"x" * 1000)
    before = invalid(sidecar, vhost.name, "orders")
    for cut in (len(request) - 1, len(request) - 999):
        with socket.create_connection(("127.0.0.1", sidecar.port), DEADLINE_SECONDS) as connection:
            connection.sendall(request[:cut])

    wait_until("both counted", lambda: invalid(sidecar, vhost.name, "orders") == before + 2)


def test_pipelined_requests_after_a_refused_one(sidecar: Sidecar, vhost: VirtualHost) -> None:
    good = raw_publish(vhost, b"Routing-Key: k", body=b"good").replace(b"/orders/", b"/piped/")
    bad = raw_publish(vhost, body=b"POST / HTTP/1.1").replace(b"/orders/", b"/piped/")

    answers = sidecar.raw(good + bad + good, answers=3)

    assert [answer.status for answer in answers] == [200, 400, 200]
    assert [m.body for m in vhost.drain("piped")] == [b"good"] * 2


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v1/exchanges/orders/publish", "POST"),
        ("PUT", "/v1/exchanges/orders/publish", "POST"),
        ("POST", "/v1/exchanges/orders/route", "GET"),
        ("DELETE", "/v1/exchanges/orders/route?key=k", "GET"),
    ],
)
def test_wrong_method(sidecar: Sidecar, method: str, path: str, allow: str) -> None:
    answer = sidecar.ask(method, path)

    assert method in answer.problem(405, "method-not-allowed", "invalid", retryable=False)
    assert answer.headers["allow"] == allow


@pytest.mark.parametrize(
    "path",
    ["/v1", "/v1/exchanges//publish", "/v1/exchanges/orders", "/v1/exchanges/a/b/publish", "/v2/x", "/publish/"],
)
def test_unknown_path(sidecar: Sidecar, path: str) -> None:
    for answer in (sidecar.ask("POST", path), sidecar.ask("GET", path), sidecar.admin(path)):
        assert path in answer.problem(404, "not-found", "invalid", retryable=False)


def test_refused_requests_are_counted_without_their_names(sidecar: Sidecar, vhost: VirtualHost) -> None:
    before, of_orders = invalid(sidecar), invalid(sidecar, vhost.name, "orders")
    sidecar.publish("nonesuch 77", "k", vhost=vhost.name)
    sidecar.publish("orders", "k" * 256, vhost=vhost.name)

    assert invalid(sidecar) == before + 1
    assert invalid(sidecar, vhost.name, "orders") == of_orders + 1
    assert "nonesuch 77" not in sidecar.admin("/metrics").text


@pytest.mark.parametrize("header", ["Amqp-Header-CC", "Amqp-Header-BCC"])
def test_headers_over_which_the_broker_would_close_everybodys_channel(
    sidecar: Sidecar, vhost: VirtualHost, header: str
) -> None:
    answer = sidecar.publish("orders", "k", vhost=vhost.name, headers={header: "q"})

    assert header in answer.problem(400, "bad-request", "invalid", retryable=False)


def test_an_internal_exchange(sidecar: Sidecar, vhost: VirtualHost) -> None:
    answer = sidecar.publish("inner", "k", vhost=vhost.name)

    assert "'inner' is internal" in answer.problem(403, "internal-exchange", "invalid", retryable=False)


@pytest.mark.parametrize("exchange", ["amq.default", ".", ".."])
def test_names_that_only_paths_have(sidecar: Sidecar, vhost: VirtualHost, exchange: str) -> None:
    path = f"/v1/exchanges/{exchange.replace('.', '%2E')}/publish?vhost={quote(vhost.name, safe='')}"

    answer = sidecar.ask("POST", path, b"", {"Routing-Key": "k"})

    assert repr(exchange) in answer.problem(404, "unknown-exchange", "invalid", retryable=False)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/exchanges/orders/publish"),
        ("POST", "/v1/exchanges/orders/publish/batch"),
        ("POST", "/v1/exchanges/orders/events"),
        ("POST", "/api/exchanges/%2F/orders/publish"),
        ("GET", "/v1/exchanges/orders/route?key=k"),
        ("GET", "/docs"),
        ("GET", "/openapi.json"),
    ],
)
def test_what_is_expected_and_not_known(sidecar: Sidecar, method: str, path: str) -> None:
    answer = sidecar.ask(method, path, b"", {"Expect": "miracles"})

    assert answer.problem(417, "bad-request", "invalid", retryable=False) == "Expect: 'miracles' is not 100-continue"
    assert answer.headers["connection"] == "close"


def test_clients_of_http_1_0_may_expect_anything(sidecar: Sidecar, vhost: VirtualHost) -> None:
    request = raw_publish(vhost, b"Routing-Key: k", b"Expect: miracles").replace(b" HTTP/1.1\r\n", b" HTTP/1.0\r\n")

    (answer,) = sidecar.raw(request)

    assert answer.status == 200
    vhost.drain_all()
    assert sidecar.publish("orders", "before", b"before", vhost=vhost.name).status == 200
