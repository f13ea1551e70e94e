"""The management API's publish: each request is put to the broker and to the sidecar, and the answers are compared."""

import base64
import http.client
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from select import select
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from proxy.publisher.pool import MOST_LOGINS
from testbed.broker import Broker, installation
from tests.certificates import Authority
from tests.integration.broker_api import DEADLINE_SECONDS, BrokerApi, VirtualHost
from tests.integration.conftest import Login, StartSidecar
from tests.integration.own_node import BROKER
from tests.integration.relay import relay
from tests.integration.rings import owner
from tests.integration.sidecar import Answer, Sidecar, ask

pytestmark = pytest.mark.versions

QUEUES = ["q1", "q2", "q3"]
PASSWORD = "pw ü:@"
OWN_WORDS = {"outcome", "retryable"}
"""The members of the sidecar's errors beside the management API's."""

OK: dict[str, Any] = {"properties": {}, "routing_key": "k", "payload": "x", "payload_encoding": "string"}


@pytest.fixture
def home(api: BrokerApi, vhost: VirtualHost) -> Iterator[VirtualHost]:
    """Users of the broker: one who may all, one who may not write, one whom the virtual host does not know."""
    for user in ("may", "may not", "stranger"):
        api.ask("PUT", "users", user, body={"password": PASSWORD, "tags": "management"})
    vhost.permit("may", ".*", ".*", ".*")
    vhost.permit("may not", ".*", "^$", ".*")
    vhost.ring("orders", QUEUES)
    yield vhost
    for user in ("may", "may not", "stranger"):
        api.ask("DELETE", "users", user)


def basic(user: str, password: str = PASSWORD) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def path_of(vhost: str, exchange: str) -> str:
    return f"/api/exchanges/{quote(vhost, safe='')}/{quote(exchange, safe='')}/publish"


def connection_to(port: int) -> closing[http.client.HTTPConnection]:
    return closing(http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_SECONDS))


def post(port: int, path: str, body: bytes, authorization: str | None) -> Answer:
    with connection_to(port) as connection:
        connection.request("POST", path, body, {} if authorization is None else {"Authorization": authorization})
        response = connection.getresponse()
        return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())


class Both:
    """The broker's management API and the sidecar, asked the same."""

    def __init__(self, broker: Broker, sidecar: Sidecar, vhost: str) -> None:
        self._ports = urlsplit(broker.management_url).port or 15672, sidecar.port
        self._vhost = vhost
        self.is_old = broker.version.startswith("3.")
        """Whether it is of before RabbitMQ 4, which answers some requests otherwise."""

    def refused(self, native: Answer, ours: Answer, status: int) -> None:
        """Assert that both refused alike, but for what the sidecar says beside."""
        told = {name: value for name, value in ours.json.items() if name not in OWN_WORDS}
        assert (ours.status, sorted(told)) == (status, ["error", "reason"])
        assert (native.status, native.json) == (status, told)

    def ask(
        self,
        asked: dict[str, Any] | bytes,
        exchange: str = "orders",
        authorization: str | None = basic("may"),
        vhost: str | None = None,
    ) -> tuple[Answer, Answer]:
        """The broker's answer, the sidecar's."""
        body = asked if isinstance(asked, bytes) else json.dumps(asked).encode()
        path = path_of(self._vhost if vhost is None else vhost, exchange)
        return self.post(path, body, authorization)

    def post(self, path: str, body: bytes, authorization: str | None = basic("may")) -> tuple[Answer, Answer]:
        """The broker's answer, the sidecar's, to what is posted to a path."""
        native, ours = (post(port, path, body, authorization) for port in self._ports)
        return native, ours


@pytest.fixture
def both(broker: Broker, sidecar: Sidecar, home: VirtualHost) -> Both:
    return Both(broker, sidecar, home.name)


def without(field: str) -> dict[str, Any]:
    return {name: value for name, value in OK.items() if name != field}


@pytest.mark.parametrize("exchange", ["orders", "nowhere", "amq.default", "topic"])
@pytest.mark.parametrize("key", ["k", "q1", "", "a.b"])
def test_whether_it_was_routed(both: Both, home: VirtualHost, exchange: str, key: str) -> None:
    home.exchange("nowhere", "fanout")
    home.exchange("topic", "topic")
    home.bind("topic", "q2", "a.*")

    native, ours = both.ask(OK | {"routing_key": key}, exchange)

    assert (ours.status, ours.body) == (native.status, native.body)
    assert ours.headers["content-type"] == native.headers["content-type"]
    landed = home.drain_all()
    assert sum(map(len, landed.values())) == (2 if native.json["routed"] else 0)
    if exchange == "orders":
        assert owner(QUEUES, key) in landed


WRONG_TYPES: dict[str, list[Any]] = {
    "priority": ["5", 5.0, 5.5, "", None, True, []],
    "delivery_mode": ["2", "2 ", None, {}],
    "timestamp": ["17", 17.5, "x"],
    "expiration": [60000, None],
    "content_type": [7, True, 1.5, {}],
    "message_id": [7],
    "app_id": [None],
    "cluster_id": [7],
    "user_id": [7, None, "another"],
}
"""By property, values of other types than it has."""


@pytest.mark.parametrize(
    "asked",
    [
        *(without(field) for field in OK),
        {"properties": {}},
        b"",
        b"{",
        b"[]",
        b"7",
        b"\xff",
        OK | {"payload_encoding": "hex"},
        OK | {"payload_encoding": 7},
        OK | {"payload_encoding": "base64", "payload": "***"},
        OK | {"payload_encoding": "base64", "payload": "YQ"},
        OK | {"payload": 7},
        OK | {"payload": None},
        b"null",
        b'"a"',
        *(OK | {"properties": {name: value}} for name, values in WRONG_TYPES.items() for value in values),
    ],
)
def test_a_malformed_request(both: Both, home: VirtualHost, asked: dict[str, Any] | bytes) -> None:
    native, ours = both.ask(asked)

    both.refused(native, ours, 400)
    assert (ours.json["outcome"], ours.json["retryable"]) == ("invalid", False)
    assert home.drain_all() == {}


def test_an_exchange_that_takes_nothing(both: Both, home: VirtualHost) -> None:
    home.exchange("inner", internal=True)

    native, ours = both.ask(OK, "inner")

    both.refused(native, ours, 400)
    assert ours.json["outcome"] == "invalid"


def test_an_exchange_that_does_not_exist(both: Both, home: VirtualHost, start_sidecar: StartSidecar) -> None:
    """In mode shadow the sidecar does not ask for it, and the broker closes the channel of the publish."""
    native, ours = both.ask(OK, "none")

    if both.is_old:
        assert native.status == 400
        both.refused(Answer(404, {}, b'{"error":"not_found","reason":"exchange_not_found"}'), ours, 404)
    else:
        both.refused(native, ours, 404)
    assert (ours.json["outcome"], ours.json["retryable"]) == ("invalid", False)
    shadowing = start_sidecar(route="", shadow="*", management_publish="true")
    path, body = path_of(home.name, "none"), json.dumps(OK).encode()
    assert post(shadowing.port, path, body, basic("may")).body == ours.body


@pytest.mark.parametrize("end", ["publish/", "publish?a=b"])
@pytest.mark.parametrize("exchange", ["orders", "amq.default", ""])
def test_paths_that_are_the_same(both: Both, home: VirtualHost, exchange: str, end: str) -> None:
    """An empty name stands for the default exchange."""
    path = f"/api/exchanges/{quote(home.name, safe='')}/{exchange}/{end}"

    native, ours = both.post(path, json.dumps(OK | {"routing_key": "q1"}).encode())

    assert (ours.status, ours.body) == (native.status, native.body) == (200, b'{"routed":true}')
    assert sum(map(len, home.drain_all().values())) == 2


def test_a_full_queue(both: Both, home: VirtualHost) -> None:
    home.exchange("narrow")
    home.queue("full", x_max_length=1, x_overflow="reject-publish")
    home.bind("narrow", "full")
    assert any(both.ask(OK, "narrow")[1].status == 400 for _ in range(3))

    native, ours = both.ask(OK, "narrow")

    both.refused(native, ours, 400)
    assert (ours.json["outcome"], ours.json["retryable"]) == ("nacked", True)


def test_a_full_queue_by_its_own_name(both: Both, home: VirtualHost) -> None:
    """The default exchange reaches one queue, so that no other has what this one refuses."""
    home.queue("full", x_max_length=1, x_overflow="reject-publish")
    asked = OK | {"routing_key": "full"}
    assert any(both.ask(asked, "amq.default")[1].status == 400 for _ in range(3))

    native, ours = both.ask(asked, "amq.default")

    both.refused(native, ours, 400)
    assert (ours.json["outcome"], ours.json["retryable"]) == ("nacked", True)


def test_a_full_queue_behind_a_fanout(both: Both, home: VirtualHost) -> None:
    """Another queue took what the management API says it could not publish."""
    home.exchange("news", "fanout")
    home.queue("full", x_max_length=1, x_overflow="reject-publish")
    home.queue("free")
    for queue in ("full", "free"):
        home.bind("news", queue)
    assert any(both.ask(OK, "news")[1].status == 504 for _ in range(3))
    home.drain("free")

    native, ours = both.ask(OK, "news")

    assert (native.status, native.json["error"]) == (400, "bad_request")
    assert (ours.status, ours.json["error"]) == (504, "unknown")
    assert (ours.json["outcome"], ours.json["retryable"]) == ("unknown", True)
    assert "another queue may have it" in ours.json["reason"]
    assert len(home.drain("free")) == 2


@pytest.mark.parametrize("authorization", [basic("may", "wrong"), basic("nobody"), basic("")])
def test_whom_the_broker_does_not_know(both: Both, home: VirtualHost, authorization: str) -> None:
    native, ours = both.ask(OK, authorization=authorization)

    assert (ours.status, ours.json["error"], native.status) == (401, "not_authorized", 401)
    assert ours.headers["www-authenticate"] == 'Basic realm="RabbitMQ Management"'
    if both.is_old:
        both.refused(native, ours, 401)
        assert native.headers["www-authenticate"] == ours.headers["www-authenticate"]
    else:
        assert native.json["error"] == "not_authorized"
    assert home.drain_all() == {}


def test_who_is_permitted_later_is_let_in(sidecar: Sidecar, home: VirtualHost, api: BrokerApi) -> None:
    path, body = path_of(home.name, "orders"), json.dumps(OK).encode()
    assert post(sidecar.port, path, body, basic("stranger")).status == 401

    home.permit("stranger", "", ".*", "")

    assert post(sidecar.port, path, body, basic("stranger")).json == {"routed": True}
    api.ask("PUT", "users", "stranger", body={"password": "changed", "tags": "management"})
    assert post(sidecar.port, path, body, basic("stranger", "no longer it")).status == 401
    assert post(sidecar.port, path, body, basic("stranger", "changed")).json == {"routed": True}


def test_a_flood_of_logins_keeps_out_nobody_who_is_in(
    start_sidecar: StartSidecar, login: Login, home: VirtualHost
) -> None:
    """While the broker answers none of them, there is a limit, which is not his who has logged in before."""
    path, body = path_of(home.name, "orders"), json.dumps(OK).encode()
    with relay(login.broker_url) as (link, broker_url), ThreadPoolExecutor(1) as pool, ExitStack() as stack:
        sidecar = start_sidecar(broker_url=broker_url, lookup_timeout="30", confirm_timeout="30")
        assert post(sidecar.port, path, body, basic("may")).status == 200
        link.freeze()
        try:
            flood = [stack.enter_context(connection_to(sidecar.port)) for _ in range(MOST_LOGINS + 6)]
            for n, connection in enumerate(flood):
                connection.request("POST", path, body, {"Authorization": basic("may", f"wrong {n}")})
            by_socket = {connection.sock: connection for connection in flood}
            refused: list[http.client.HTTPResponse] = []
            while len(refused) < 6:
                ready, _, _ = select(by_socket, [], [], DEADLINE_SECONDS)
                assert ready
                refused += [by_socket.pop(end).getresponse() for end in ready]
            inside = pool.submit(post, sidecar.port, path, body, basic("may"))
        finally:
            link.thaw()

        assert inside.result().json == {"routed": True}
        assert {connection.getresponse().status for connection in by_socket.values()} == {401}
        assert len(by_socket) == MOST_LOGINS
        for response in refused:
            told = json.loads(response.read())
            assert (response.status, response.headers["Retry-After"]) == (429, "1")
            assert (told["error"], told["outcome"], told["retryable"]) == ("too_many", "rejected", True)


DIFFERENCES: dict[str, tuple[Any, ...]] = {
    # The management API says nothing more; the sidecar says what is missing.
    "no credentials": (OK, None, 401, 401, (401, "not_authorized")),
    "credentials that are none": (OK, "Basic !!!", 400, 400, (401, "not_authorized")),
    # The management API cuts, drops or changes what AMQP cannot hold, or fails.
    "a key of 256 bytes": (OK | {"routing_key": "k" * 256}, basic("may"), 200, 200, (400, "bad_request")),
    "a key that is no text": (OK | {"routing_key": 7}, basic("may"), 200, 500, (400, "bad_request")),
    **{
        name: (OK | {"properties": properties}, basic("may"), *expected, (400, "bad_request"))
        for name, properties, *expected in (
            ("a priority of 300", {"priority": 300}, 200, 200),
            ("a negative timestamp", {"timestamp": -1}, 200, 200),
            ("a timestamp of 64 bits", {"timestamp": 1 << 63}, 200, 200),
            ("an unknown delivery mode", {"delivery_mode": 3}, 400, 200),
            ("a header of more than 64 bits", {"headers": {"a": 1 << 63}}, 200, 200),
            ("a header without a name", {"headers": {"": 1}}, 200, 200),
            ("a header with a long name", {"headers": {"n" * 129: 1}}, 200, 200),
            ("headers as a list", {"headers": ["a"]}, 200, 500),
            ("headers as a text", {"headers": "a"}, 500, 500),
            ("headers as null", {"headers": None}, 500, 500),
            ("a list of properties", ["a"], 500, 500),
            ("an empty list of properties", [], 500, 500),
            # Copies would bypass the ring.
            ("copies", {"headers": {"CC": ["q1"]}}, 200, 200),
        )
    },
    # AMQP has it and the management API's JSON has not.
    "a null header": (OK | {"properties": {"headers": {"a": None}}}, basic("may"), 400, 400, (200, None)),
}
"""The request and its credentials; the status of RabbitMQ 3 and of later ones; and how the sidecar answers:
status, and the member `error`."""


@pytest.mark.parametrize("name", DIFFERENCES)
def test_differences(both: Both, home: VirtualHost, name: str) -> None:
    asked, authorization, old, new, expected = DIFFERENCES[name]

    native, ours = both.ask(asked, authorization=authorization)

    assert (ours.status, ours.json.get("error")) == expected
    assert native.status == (old if both.is_old else new)
    if not both.is_old and native.status == 200:
        home.drain_all()  # as the newer broker changes it, it need not be what was asked
    elif both.is_old:
        assert sum(map(len, home.drain_all().values())) == sum(answer.status == 200 for answer in (native, ours))


@pytest.mark.parametrize(("user", "where"), [("stranger", None), ("may", "nonesuch")])
def test_a_virtual_host_that_the_user_may_not_use(both: Both, user: str, where: str | None) -> None:
    """RabbitMQ 4 says that there is none, and earlier versions spell it otherwise."""
    native, ours = both.ask(OK, authorization=basic(user), vhost=where)

    assert (ours.status, ours.json["error"], ours.json["reason"]) == (401, "not_authorized", "Access refused.")
    expected = (401, "not_authorised") if both.is_old else (404, "not_found")
    assert (native.status, native.json["error"]) == expected


@pytest.mark.parametrize(
    ("headers", "status"), [({"Accept": "text/html"}, 406), ({"Accept": "garbage"}, 400), ({"Content-Type": "a"}, 415)]
)
def test_types_that_the_management_api_does_not_take(
    broker: Broker, sidecar: Sidecar, home: VirtualHost, headers: dict[str, str], status: int
) -> None:
    path, body = path_of(home.name, "orders"), json.dumps(OK).encode()
    login = {"Authorization": basic("may")}
    assert ask(urlsplit(broker.management_url).port or 15672, "POST", path, body, headers | login).status == status
    assert ask(sidecar.port, "POST", path, body, headers | login).json == {"routed": True}


def test_permission_is_asked_of_the_queues_exchange(both: Both, home: VirtualHost) -> None:
    native, ours = both.ask(OK, authorization=basic("may not"))

    # RabbitMQ 4.3 answers 500 without a body where it notices the end of its channel too late.
    assert "access to exchange 'orders'" in native.text or (native.status, both.is_old) == (500, False)
    assert "access to exchange 'amq.default'" in ours.json["reason"]


def test_properties_and_payloads_arrive_as_they_do_natively(both: Both, home: VirtualHost) -> None:
    data = bytes(range(256))
    properties = {
        "content_type": "text/plain",
        "content_encoding": "br",
        "delivery_mode": 2,
        "priority": 7,
        "correlation_id": "c",
        "reply_to": "r",
        "expiration": "3600000",
        "message_id": "m",
        "timestamp": 1700000000,
        "type": "t",
        "user_id": "may",
        "app_id": "a",
        "cluster_id": "c",
        "headers": {"text": "ü", "number": 7, "yes": True, "in": {"a": [1, "b"]}},
        "nonesuch": 1,
    }
    asked = [
        OK | {"properties": properties, "payload": "žluť"},
        OK | {"payload": base64.encodebytes(data).decode(), "payload_encoding": "base64"},
        OK | {"name": "elsewhere", "vhost": "elsewhere", "more": 1},
        OK | {"properties": {"headers": []}, "payload": "PHP"},
    ]

    for one in asked:
        native, ours = both.ask(one)
        assert (ours.status, ours.body) == (native.status, native.body) == (200, b'{"routed":true}')

    # Native routing need not agree with the ring: what went each way is told by the exchange.
    landed = [m for messages in home.drain_all().values() for m in messages]
    for body in ("žluť".encode(), data, b"x", b"PHP"):
        native_message, our_message = sorted((m for m in landed if m.body == body), key=lambda m: m.exchange == "")
        assert (native_message.exchange, our_message.exchange) == ("orders", "")
        stamped = dict(our_message.properties)
        headers = {name: value for name, value in our_message.headers.items() if not name.startswith("x-ring-")}
        stamped.pop("headers")
        there = {name: value for name, value in dict(native_message.properties).items() if name != "headers" or value}
        assert stamped | ({"headers": headers} if headers else {}) == there


Admin = Callable[..., tuple[int, str]]
"""Runs rabbitmqadmin on a port: what it ends with, and what it says."""


def admin_of(script: list[str], vhost: VirtualHost, *, takes_names: bool) -> Admin:
    """Return an Admin of a script: that of brokers before 4.3, or the program after it, whose words have names."""
    login = ["-P", "-u", "may", "-p", PASSWORD, "-V", vhost.name]
    if takes_names:
        login = ["--port", "--username", "may", "--password", PASSWORD, "--vhost", vhost.name]

    def run(port: int, given: str = "", **asked: str) -> tuple[int, str]:
        words = [f"{name}={value}" for name, value in asked.items()]
        if takes_names:
            words = ["message", *(f"--{name.replace('_', '-')}={value}" for name, value in asked.items())]
        command = [*script, login[0], str(port), *login[1:], "publish", *words]
        done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=DEADLINE_SECONDS)
        return done.returncode, (done.stdout + done.stderr).replace(str(port), "PORT")

    return run


def as_natively(
    admin: Admin, native: int, ours: int, more: Iterable[dict[str, str]] = (), *, refused_otherwise: bool = False
) -> None:
    """Assert that rabbitmqadmin ends and says the same, whichever of these ports it is given.

    But for the words of a refusal, where the broker refuses otherwise than the one whose words the sidecar took over.
    """
    for asked in (
        {"exchange": "orders", "routing_key": "k", "payload": "from the shell"},
        {"exchange": "amq.default", "routing_key": "q3", "payload": "to the queue"},
        {"exchange": "orders", "routing_key": "k", "payload": "", "properties": '{"delivery_mode":2,"type":"t"}'},
        {"exchange": "amq.default", "routing_key": "nonesuch", "payload": "to nowhere"},
        {"exchange": "nonesuch", "routing_key": "k", "payload": "to nowhere"},
        *more,
    ):
        (status, words), (our_status, our_words) = (admin(port, **asked) for port in (native, ours))
        assert our_status == status
        # The script words a 404 itself, which is a 400 on the broker that serves the script.
        assert our_words == words or (status and (refused_otherwise or asked["exchange"] == "nonesuch"))
        assert "Traceback" not in words


def test_rabbitmqadmin_by_changing_the_port(
    broker: Broker, start_sidecar: StartSidecar, home: VirtualHost, authority: Authority, tmp_path: Path
) -> None:
    """The script that the broker itself serves; where it serves none, as of 4.3 on, Debian's program beside it."""
    sidecar = start_sidecar()
    url = urlsplit(broker.management_url)
    native = url.port or 15672
    with closing(http.client.HTTPConnection(url.hostname or "", url.port, timeout=DEADLINE_SECONDS)) as connection:
        connection.request("GET", "/cli/rabbitmqadmin")
        response = connection.getresponse()
        served = response.read() if response.status == 200 else b""
    twice = [b"from the shell", b"to the queue", b""]
    once = []

    if served:
        script = tmp_path / "rabbitmqadmin"
        script.write_bytes(served)
        admin = admin_of([sys.executable, "-W", "ignore", str(script)], home, takes_names=False)
        encoded = {"exchange": "orders", "routing_key": "k", "payload": "AAH/", "payload_encoding": "base64"}
        as_natively(admin, native, sidecar.port, [encoded])
        assert admin(sidecar.port, given="from a pipe", exchange="orders", routing_key="k")[0] == 0
        twice += [b"\x00\x01\xff"]
        once = [b"from a pipe"]
    else:
        with TemporaryDirectory() as folder:
            (Path(folder) / "hosts").touch()
            # It wants authorities to be there, though it asks over HTTP, and that Debian has none.
            certificates = shutil.copy(authority.certificate, folder)
            program = ["env", f"SSL_CERT_FILE={certificates}", "rabbitmqadmin", "--host", "127.0.0.1"]
            program = installation(BROKER).command(program, Path(folder))
            as_natively(admin_of(program, home, takes_names=True), native, sidecar.port, refused_otherwise=True)

    bodies = sorted(m.body for messages in home.drain_all().values() for m in messages)
    assert bodies == sorted([*twice, *twice, *once])
