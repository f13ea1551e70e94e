"""The client of the management API: what it asks, what it takes for an answer, and how long it waits."""

import base64
import gzip
import socket
import threading
import tracemalloc
from email.utils import formatdate
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from yarl import URL

from proxy.settings.credentials import basic
from proxy.settings.http_client import MOST_INTERIM
from proxy.settings.tls import BrokerTls, ServerTls
from proxy.topology import management
from proxy.topology.answers import Body
from proxy.topology.bindings import CONSISTENT_HASH, Binding, Exchange, TopologyError
from proxy.topology.management import (
    MAX_RETRY_AFTER,
    Management,
    ManagementError,
    NotAskableError,
    RefusedError,
    UnansweredError,
)
from ring.destination import Destination
from ring.hashed import HashedValue
from tests.certificates import Authority
from tests.unit.proxy.fake_management import (
    FakeManagement,
    Fault,
    binding,
    body,
    raw,
    silent,
    status,
    truncated,
)

LIST = b'[{"name": "/"}]'


async def fault_of(api: Management) -> Exception:
    """The error that every kind of request ends with; always one line without credentials."""
    errors: list[Exception] = []
    for request in (
        api.cluster_name(),
        api.vhosts(),
        api.exchange_names("/"),
        api.exchange("/", "x"),
        api.bindings("/", "x"),
        api.dead_letters_by_own_name("/", "q"),
    ):
        with pytest.raises((ManagementError, TopologyError)) as raised:
            await request
        message = str(raised.value)
        assert message.startswith("/api/")
        assert "\n" not in message
        assert "hush" not in message
        assert "reader" not in message
        errors.append(raised.value)
    return errors[0]


async def test_what_it_asks_and_what_it_gives(fake: FakeManagement, api: Management) -> None:
    fake.exchange("x", binding("a", "2"), arguments={"hash-header": "h"}, internal=True)
    fake.queues["/", "q"] = {"arguments": {"x-dead-letter-exchange": "d"}}
    assert await api.cluster_name() == "rabbit@fake"
    assert await api.vhosts() == {"/"}
    assert await api.exchange_names("/") == frozenset({"", "amq.topic", "x"})
    assert await api.exchange("/", "x") == Exchange(CONSISTENT_HASH, True, HashedValue("header", "h"))
    assert await api.bindings("/", "x") == (Binding(Destination("queue", "a"), "2"),)
    assert await api.dead_letters_by_own_name("/", "q") == "its argument x-dead-letter-exchange"
    assert await api.dead_letters_by_own_name("/", "other") == ""
    credentials = base64.b64encode(b"reader:hush").decode()
    assert fake.authorizations == {f"Basic {credentials}"}


async def test_it_logs_in_as_whoever_it_is_now(fake: FakeManagement) -> None:
    passwords = iter(["old", "ne:w é"])
    async with Management([fake.url], 10, basic(lambda: ("me", next(passwords)))) as api:
        await api.vhosts()
        await api.vhosts()
    expected = {"Basic " + base64.b64encode(text.encode()).decode() for text in ("me:old", "me:ne:w é")}
    assert fake.authorizations == expected


async def test_nothing_is_asked_without_anything_to_log_in_with(fake: FakeManagement) -> None:
    def authorization() -> str:
        raise ConnectionError("no token yet")

    async with Management([fake.url], 10, authorization) as api:
        with pytest.raises(ManagementError, match=r"^/api/vhosts: no token yet$"):
            await api.vhosts()
    assert fake.authorizations == set()


async def test_who_follows_refusals_is_told_the_authorization(fake: FakeManagement) -> None:
    told: list[str] = []
    async with Management([fake.url], 10, lambda: "Bearer old", refused=told.append) as api:
        await api.vhosts()
        fake.fail(status(403))
        with pytest.raises(ManagementError, match="403"):
            await api.vhosts()
        assert told == []
        fake.fail(status(401))
        with pytest.raises(ManagementError, match="401"):
            await api.vhosts()
        with pytest.raises(RefusedError):
            await api.change("DELETE", ["queues", "/", "q"])
    assert told == ["Bearer old"] * 2


async def test_tls_is_asked_for_at_each_request(fake: FakeManagement, tmp_path: Path) -> None:
    """A context for each version of the files: a connection made with the one before it is not used any more."""
    trusted, other = Authority(tmp_path, "trusted"), Authority(tmp_path, "other")
    ca = tmp_path / "ca.crt"
    ca.write_bytes(trusted.certificate.read_bytes())
    tls = ServerTls(*trusted.issue("server"), None)
    app = web.Application()
    app.router.add_get("/{path:.*}", fake.handle)
    server = TestServer(app)
    await server.start_server(ssl=tls.context)
    url = URL.build(scheme="https", host="127.0.0.1", port=server.port)
    async with server, Management([url], 10, tls=BrokerTls(ca, None, None)) as api:
        assert await api.vhosts() == {"/"}
        ca.write_bytes(other.certificate.read_bytes())
        with pytest.raises(ManagementError, match="certificate verify failed"):
            await api.vhosts()
        ca.write_bytes(trusted.certificate.read_bytes())
        assert await api.vhosts() == {"/"}


async def test_404_is_an_answer_where_something_may_be_missing(fake: FakeManagement, api: Management) -> None:
    assert await api.exchange("/", "x") is None
    assert await api.exchange_names("v") is None
    fake.fail(status(404))
    assert await api.dead_letters_by_own_name("/", "q") is None
    assert await api.cluster_name() is None
    for request in (api.vhosts(), api.bindings("/", "x")):
        with pytest.raises(ManagementError, match="404"):
            await request


@pytest.mark.parametrize(
    "name", ["a/b", "a b", "a+b", "é", "%2F", "%", "?a=b", "#a", "a;b", "a&b", "...", ".a", "a\\b", '"', "*", "x" * 255]
)
async def test_names_arrive_as_they_are(fake: FakeManagement, api: Management, name: str) -> None:
    fake.exchange(name, binding("q"), vhost=name)
    assert await api.exchange(name, name) == Exchange(CONSISTENT_HASH)
    assert await api.bindings(name, name) == (Binding(Destination("queue", "q"), "1"),)
    assert await api.exchange_names(name) == frozenset({"", "amq.topic", name})
    fake.queues[name, name] = {"arguments": {"x-dead-letter-exchange": "d"}}
    assert await api.dead_letters_by_own_name(name, name) == "its argument x-dead-letter-exchange"


@pytest.mark.parametrize("name", [".", ".."])
async def test_names_that_no_path_can_hold_are_not_asked_for(fake: FakeManagement, api: Management, name: str) -> None:
    fake.exchange("x")
    fake.fail(body([{"name": "x", "type": "fanout"}, {"name": name, "type": "direct"}]), "/api/exchanges/%2F")
    assert await api.exchange("/", name) == Exchange("direct")
    fake.fail(body([{"name": "x", "type": "fanout"}]), "/api/exchanges/%2F")
    assert await api.exchange("/", name) is None
    assert await api.dead_letters_by_own_name("/", name) is None
    asked = len(fake.requests)
    for request in (api.bindings("/", name), api.exchange_names(name), api.exchange(name, "x")):
        with pytest.raises(NotAskableError, match=r"cannot be asked for what is called '\.' or '\.\.'"):
            await request
    assert len(fake.requests) == asked


async def test_a_path_below_which_the_api_is(fake: FakeManagement) -> None:
    for path in ("/below", "/below/"):
        async with Management([fake.url.with_path(path)], timeout=10) as api:
            with pytest.raises(ManagementError):
                await api.vhosts()
    assert fake.requests == ["/below/api/vhosts"] * 2


@pytest.mark.parametrize("code", [201, 204, 301, 302, 304, 400, 401, 403, 405, 408, 429, 502, 503])
async def test_any_other_status_is_an_error(fake: FakeManagement, api: Management, code: int) -> None:
    # The status counts even where the body is what was asked for.
    text = "" if code in (204, 304) else LIST.decode()
    fake.fail(status(code, text, {"Location": "/api/vhosts", "WWW-Authenticate": 'Basic realm="x"'}))
    fault = await fault_of(api)
    assert isinstance(fault, ManagementError)
    assert str(code) in str(fault)
    assert fault.retry_after == 0
    assert len(fake.requests) == 6, "an error or a redirect was followed by another request"


async def test_a_page_that_cannot_be_made_now_is_asked_for_again(
    fake: FakeManagement, api: Management, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RabbitMQ answers with 500 for the page of a queue that is just being declared or deleted."""
    monkeypatch.setattr(management, "_ASK_AGAIN_AFTER", (0.0, 0.0, 0.0))
    fake.queues["/", "q"] = {"name": "q", "arguments": {}}
    left = [3]

    async def flapping(request: web.Request) -> web.StreamResponse:
        left[0] -= 1
        if not left[0]:
            fake.mend()
        return web.Response(status=500)

    fake.fail(flapping, "/api/queues/%2F/q")
    assert await api.dead_letters_by_own_name("/", "q") == ""
    assert len(fake.requests) == 4
    fake.fail(status(500))
    with pytest.raises(ManagementError, match="q: 500"):
        await api.dead_letters_by_own_name("/", "q")
    assert len(fake.requests) == 8
    # A node that asks to wait is not asked again.
    fake.fail(status(500, headers={"Retry-After": "3"}))
    with pytest.raises(ManagementError, match="q: 500"):
        await api.dead_letters_by_own_name("/", "q")
    assert len(fake.requests) == 9


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7.0),
        ("0.5", 0.5),
        ("0", 0.0),
        ("-5", 0.0),
        ("99999999999", MAX_RETRY_AFTER),
        ("soon", 0.0),
        ("", 0.0),
        ("nan", 0.0),
        ("inf", 0.0),
        (formatdate(4e9, usegmt=True), 0.0),
    ],
)
async def test_retry_after(fake: FakeManagement, api: Management, value: str, seconds: float) -> None:
    for code in (429, 503):
        fake.fail(status(code, headers={"Retry-After": value}))
        fault = await fault_of(api)
        assert isinstance(fault, ManagementError)
        assert fault.retry_after == seconds


@pytest.mark.parametrize(
    "fault",
    [
        body(b""),
        body(b"<html><body>Sign in</body></html>", {"Content-Type": "text/html"}),
        body(b'[{"name": "/"}'),
        body(b'[{"name": "/"}] trailing'),
        body(b'[{"name": "\xff"}]'),
        body(b"[" * 200_000),
        body(b"[" * 200_000 + b"]" * 200_000),
        body(b"1" * 10_000),
        body(b"not gzip", {"Content-Encoding": "gzip"}),
        body(gzip.compress(LIST)[:-14], {"Content-Encoding": "gzip"}),
        truncated(LIST),
        truncated(b""),
        raw(b""),
        raw(b"HTTP/1.1 200 OK\r\nContent-Len"),
        raw(b"\x00\x01\x02 rubbish\r\n\r\n"),
        raw(b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n" + LIST),
        raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n" + LIST),
        raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n[{"),
        raw(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n" + LIST),
    ],
)
async def test_rubbish_is_an_error(fake: FakeManagement, api: Management, fault: Fault) -> None:
    fake.fail(fault)
    await fault_of(api)


async def test_a_compressed_answer_is_neither_asked_for_nor_unpacked(fake: FakeManagement, api: Management) -> None:
    """One megabyte may stand for a gigabyte."""
    asked = set()

    async def compressed(request: web.Request) -> web.Response:
        asked.add(request.headers["Accept-Encoding"])
        return web.Response(body=gzip.compress(LIST), headers={"Content-Encoding": "gzip"})

    fake.fail(compressed)
    assert "Content-Encoding: 'gzip' was not asked for" in str(await fault_of(api))
    assert asked == {"identity"}


async def test_a_flood_of_interim_answers_ends_the_connection(fake: FakeManagement, api: Management) -> None:
    """aiohttp waits for the final answer through any number of them, and keeps all that one read has."""
    interim = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
    final = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(LIST), LIST)
    fake.fail(raw(interim * MOST_INTERIM + final))
    for _ in range(3):  # counted for each request
        assert await api.vhosts() == {"/"}
    fake.fail(raw(interim * (MOST_INTERIM + 1) + final))
    assert "more than 8 interim answers (1xx)" in str(await fault_of(api))
    fake.fail(raw(interim * 10_000 + final))
    tracemalloc.start()
    try:
        assert "more than 8 interim answers (1xx)" in str(await fault_of(api))
        assert tracemalloc.get_traced_memory()[1] < 4_000_000  # 10,000 that are parsed take some 30 MB
    finally:
        tracemalloc.stop()


async def test_no_cookies_are_kept(fake: FakeManagement) -> None:
    sent = set()

    async def with_cookie(request: web.Request) -> web.Response:
        sent.add(request.headers.get("Cookie"))
        return web.Response(body=LIST, headers={"Set-Cookie": f"a{len(fake.requests)}={'x' * 3000}; Max-Age=99999"})

    fake.fail(with_cookie)
    async with Management([fake.url.with_host("localhost")], timeout=10) as api:
        for _ in range(3):
            assert await api.vhosts() == {"/"}
    assert sent == {None}


async def test_a_long_answer_is_decoded_beside_the_event_loop(fake: FakeManagement, api: Management) -> None:
    threads = []

    def noted(body: Body) -> int:
        threads.append(threading.current_thread() is threading.main_thread())
        return len(body)

    for length in (100, 1_000_000):
        fake.fail(body(b" " * length))
        assert await api._get(["vhosts"], ["name"], noted) == length
    assert threads == [True, False]


@pytest.mark.parametrize("answer", [None, 5, "x", {}, {"error": "x"}, [1], [[]], [{}]])
async def test_json_of_another_shape_is_an_error(fake: FakeManagement, api: Management, answer: object) -> None:
    fake.fail(body(answer))
    for request in (api.vhosts(), api.exchange_names("/"), api.bindings("/", "x")):
        with pytest.raises((ManagementError, TopologyError)):
            await request
    with pytest.raises((ManagementError, TopologyError), match="cluster-name"):
        await api.cluster_name()
    # Not even `null` is an exchange that does not exist.
    with pytest.raises((ManagementError, TopologyError)):
        await api.exchange("/", "x")


async def test_an_answer_too_large_is_not_read_to_its_end(
    fake: FakeManagement, api: Management, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(management, "MAX_ANSWER", len(LIST))
    fake.fail(body(LIST))
    assert await api.vhosts() == {"/"}
    fake.fail(body(LIST + b" "))
    assert "longer than" in str(await fault_of(api))


async def test_no_answer_in_time_is_an_error(fake: FakeManagement) -> None:
    fake.fail(silent)
    async with Management([fake.url], timeout=0.05) as api:
        assert "no answer within 0.05 s" in str(await fault_of(api))


async def test_a_body_that_never_ends_is_no_answer_in_time(fake: FakeManagement) -> None:
    async def drip(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"[")
        return await silent(request)

    fake.fail(drip)
    async with Management([fake.url], timeout=0.05) as api:
        assert "no answer within 0.05 s" in str(await fault_of(api))


async def test_nobody_listens(fake: FakeManagement) -> None:
    """As where the management plugin is off."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        for scheme in ("http", "https"):
            async with Management([fake.url.with_scheme(scheme).with_port(port)], timeout=10) as api:
                told = str(await fault_of(api))
            assert told == (
                f"/api/cluster-name: management_url: 127.0.0.1:{port} refuses connections; "
                "is the management plugin on there? (rabbitmq-plugins enable rabbitmq_management)"
            )


async def test_a_host_without_an_address() -> None:
    async with Management([URL("http://reader:hush@no-such-host.invalid:1")], timeout=10) as api:
        told = str(await fault_of(api))
    assert told.startswith("/api/cluster-name: management_url: no connection to no-such-host.invalid:1: ")
    assert "ssl:default" not in told


async def test_proxies_in_the_environment_are_for_the_way_out(
    fake: FakeManagement, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    async with Management([fake.url], timeout=10) as api:
        assert await api.vhosts() == {"/"}


async def test_it_must_be_open(fake: FakeManagement) -> None:
    with pytest.raises(RuntimeError, match="not open"):
        await Management([fake.url], timeout=1).vhosts()


async def test_a_change_is_made_and_a_refusal_has_the_brokers_own_words() -> None:
    answers = {
        "made": web.Response(status=201),
        "again": web.Response(status=204),
        "refused": web.json_response({"error": "bad_request", "reason": "inequivalent arg 'x'"}, status=400),
        "forbidden": web.json_response({"error": "not_authorised", "reason": "Access refused."}, status=401),
        "absent": web.json_response({"error": "Object Not Found", "reason": "Not Found"}, status=404),
        "odd": web.Response(status=418, body=b"\xff"),
        "down": web.Response(status=503),
    }
    asked = []

    async def answer(request: web.Request) -> web.Response:
        asked.append((request.method, request.raw_path, await request.text()))
        return answers[request.path.rpartition("/")[2]]

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app) as server, Management([server.make_url("/")], 5.0) as api:
        await api.change("PUT", ["queues", "/", "made"], {"durable": True})
        await api.change("DELETE", ["queues", "/", "again"], query="?if-empty=true")
        assert asked == [
            ("PUT", "/api/queues/%2F/made", '{"durable": true}'),
            ("DELETE", "/api/queues/%2F/again?if-empty=true", ""),
        ]
        for name, status_then, reason in (
            ("refused", 400, "inequivalent arg 'x'"),
            ("forbidden", 401, "Access refused."),
            ("absent", 404, "Not Found"),
            ("odd", 418, ""),
        ):
            with pytest.raises(RefusedError) as raised:
                await api.change("PUT", ["queues", "/", name], {})
            assert (raised.value.status, raised.value.reason) == (status_then, reason)
        with pytest.raises(UnansweredError):
            await api.change("PUT", ["queues", "/", "down"], {})
