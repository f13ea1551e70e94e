"""Who has no credentials, or wrong ones: what that costs those who have right ones, and what is told of it."""

import http.client
import json
import socket
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import quote

import pytest

from proxy.settings.guesses import FREE, WAITING
from tests.integration.broker_api import DEADLINE_SECONDS, VirtualHost, wait_until
from tests.integration.conftest import StartSidecar
from tests.integration.sidecar import Answer, Sidecar, ask, bearer, publish_path

TOKEN, LATER = "first-s3cret", "later-s3cret"
USER, PASSWORD = "may-guess", "pa55w0rd-s3cret"
MESSAGE = json.dumps({"properties": {}, "routing_key": "k", "payload": "x", "payload_encoding": "string"}).encode()


@pytest.fixture
def tokens(tmp_path: Path) -> str:
    """The path of a file with both tokens."""
    file = tmp_path / "tokens.toml"
    entries = (f"[[tokens]]\nname = '{name}'\ntoken = '{name}'\npublish = '*'\n" for name in (TOKEN, LATER))
    file.write_text("".join(entries))
    return str(file)


@pytest.fixture
def home(vhost: VirtualHost) -> VirtualHost:
    """With a ring, and a user of the broker."""
    vhost.ring("orders", ["q"])
    vhost.api.ask("PUT", "users", USER, body={"password": PASSWORD, "tags": ""})
    vhost.permit(USER)
    return vhost


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + b64encode(f"{user}:{password}".encode()).decode()}


def path_of(vhost: VirtualHost) -> str:
    return f"/api/exchanges/{quote(vhost.name, safe='')}/orders/publish"


def as_user(sidecar: Sidecar, vhost: VirtualHost, headers: dict[str, str], body: bytes = MESSAGE) -> Answer:
    return ask(sidecar.port, "POST", path_of(vhost), body, headers)


def test_the_management_apis_publish_is_off_where_tokens_are_asked_for(
    start_sidecar: StartSidecar, home: VirtualHost, tokens: str
) -> None:
    """Unless a setting says otherwise, which is told at the start."""
    off, on = start_sidecar(tokens_file=tokens), start_sidecar(tokens_file=tokens, management_publish="true")
    without = start_sidecar(management_publish="false")
    for sidecar in (off, without):
        answer = as_user(sidecar, home, basic(USER, PASSWORD))
        assert (answer.status, answer.json["outcome"], answer.json["retryable"]) == (403, "invalid", False)
        assert answer.json["reason"].startswith("management_publish: this sidecar takes no publishes of broker users; ")
    assert as_user(on, home, basic(USER, PASSWORD)).json == {"routed": True}
    assert "management_publish: any broker user may publish at 127.0.0.1" in on.log()
    assert "management_publish" not in off.log() + without.log()
    assert len(home.drain("q")) == 1


def test_the_login_is_judged_before_the_body_is_read(sidecar: Sidecar, home: VirtualHost) -> None:
    for body in (b"no JSON", b"[]", MESSAGE):
        assert as_user(sidecar, home, basic(USER, "wrong"), body).status == 401
    head = f"POST {path_of(home)} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
    head += f"Authorization: {basic(USER, 'wrong')['Authorization']}\r\n\r\n"
    (answer,) = sidecar.raw(head.encode())
    assert (answer.status, answer.json["error"], answer.json["reason"]) == (401, "not_authorized", "Login failed")
    assert as_user(sidecar, home, basic(USER, PASSWORD), b"no JSON").status == 400


def test_bodies_of_whom_the_broker_does_not_let_in_take_no_room(
    start_sidecar: StartSidecar, home: VirtualHost, tokens: str
) -> None:
    sidecar = start_sidecar(
        tokens_file=tokens, management_publish="true", max_in_flight="3", max_in_flight_bytes="500000"
    )
    assert sidecar.publish("orders", "k", vhost=home.name, headers=bearer(TOKEN)).status == 200
    head = f"POST {path_of(home)} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n"
    with ExitStack() as stack:
        half: list[socket.socket] = []
        for number in range(13):
            half.append(stack.enter_context(socket.create_connection(("127.0.0.1", sidecar.port), DEADLINE_SECONDS)))
            login = basic(USER, f"wrong {number}")["Authorization"]
            half[-1].sendall(f"{head}Authorization: {login}\r\n\r\n".encode() + b"x" * 100_000)
        for each in half:
            assert each.recv(65536).startswith(b"HTTP/1.1 401 ")
        # They go on sending what nobody reads.
        assert sidecar.metric("ringproxy_http_in_flight_bytes") == 0
        answer = sidecar.publish("orders", "k", b"x" * 200_000, vhost=home.name, headers=bearer(TOKEN))
        assert answer.status == 200


def flood(sidecar: Sidecar, path: str, wrong: dict[str, str], count: int) -> list[http.client.HTTPConnection]:
    """Requests with these headers that are sent all at once and not answered yet."""
    connections = []
    for _ in range(count):
        connection = http.client.HTTPConnection("127.0.0.1", sidecar.port, timeout=DEADLINE_SECONDS)
        connection.request("POST", path, MESSAGE, wrong | {"Routing-Key": "k"})
        connections.append(connection)
    return connections


def test_guessing_tokens(start_sidecar: StartSidecar, home: VirtualHost, tokens: str) -> None:
    """Whose token has been right before notices nothing, also at the same address; another waits."""
    sidecar = start_sidecar(tokens_file=tokens)
    path = publish_path("orders", home.name)

    def status(token: str) -> int:
        return sidecar.publish("orders", "k", vhost=home.name, headers=bearer(token)).status

    assert status(TOKEN) == 200
    count = FREE + WAITING + 40
    with ExitStack() as stack:
        guessing = [stack.enter_context(closing(each)) for each in flood(sidecar, path, bearer("guess-s3cret"), count)]
        # Nothing but the flood can have brought it so far; and that has not been answered all.
        wait_until(
            "the flood", lambda: sidecar.metric("ringproxy_http_credentials_refused_total", result="unchecked") > 0
        )
        assert status(TOKEN) == 200
        answers = [each.getresponse() for each in guessing]
        for answer in answers:
            answer.read()
        statuses = [answer.status for answer in answers]
    assert set(statuses) == {401, 429}
    assert statuses.count(401) >= FREE + WAITING
    assert {answer.headers["Retry-After"] for answer in answers if answer.status == 429} == {"1"}
    wait_until("the other token is looked at", lambda: status(LATER) == 200)
    for result, code in (("wrong", 401), ("unchecked", 429)):
        told = sidecar.metric("ringproxy_http_credentials_refused_total", kind="token", result=result)
        assert told >= statuses.count(code)
    assert "wrong credentials over HTTP: a bearer token is not in tokens_file, from 127.0.0.1" in sidecar.log()
    assert sidecar.log().count("a bearer token is not in tokens_file") < 5
    assert "s3cret" not in sidecar.log()


def test_guessing_logins(start_sidecar: StartSidecar, home: VirtualHost) -> None:
    sidecar = start_sidecar()
    assert as_user(sidecar, home, basic(USER, PASSWORD)).json == {"routed": True}
    with ThreadPoolExecutor(FREE + WAITING + 20) as pool:
        guesses = [
            pool.submit(as_user, sidecar, home, basic("eve\nWARNING forged", f"guess-s3cret {number}"))
            for number in range(3 * (FREE + WAITING))
        ]
        answers = [guess.result() for guess in guesses]
        assert as_user(sidecar, home, basic(USER, PASSWORD)).json == {"routed": True}
    assert {answer.status for answer in answers} == {401, 429}
    assert sidecar.metric("ringproxy_http_credentials_refused_total", kind="login", result="wrong") >= FREE + WAITING
    log = sidecar.log()
    assert r"wrong credentials over HTTP: user 'eve\nWARNING forged' was refused by the broker, from 127.0.0.1" in log
    assert "\nWARNING forged" not in log
    assert "s3cret" not in log
