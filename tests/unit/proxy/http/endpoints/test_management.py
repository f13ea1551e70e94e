"""Requests to the management API's own publish that could do harm."""

import base64
import json
import tracemalloc
from urllib.parse import unquote

import pytest
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict

from proxy.http.endpoints import management
from proxy.http.formats.problems import ProblemError
from proxy.outcome import Outcome

ASKED: dict[str, object] = {"routing_key": "k", "properties": {}, "payload": "x", "payload_encoding": "string"}
DEEP = "[" * 900 + "]" * 900


def body(**raw: str) -> bytes:
    """With these members as they are in JSON."""
    text = json.dumps(ASKED | dict.fromkeys(raw, "@"))
    for name, value in raw.items():
        text = text.replace(f'"{name}": "@"', f'"{name}": {value}')
    return text.encode()


def refused(data: bytes) -> tuple[int, object]:
    """The status, and the reason as it is answered."""
    with pytest.raises(ProblemError) as raised:
        management._message(data, "guest")
    answer = management._error(raised.value)
    assert isinstance(answer.body, bytes)
    return answer.status, json.loads(answer.body)["reason"]


@pytest.mark.parametrize(
    ("encoding", "echoed"),
    [
        ('"hex"', "hex"),
        (json.dumps("x" * 1000), "x" * 60),
        (r'"\ud800"', "\ud800"),
        ("5", 5),
        ("null", None),
        ("1e999", "inf"),
        (DEEP, "a list"),
        ('{"a":' + DEEP + "}", "an object"),
    ],
)
def test_an_encoding_that_is_none(encoding: str, echoed: object) -> None:
    assert refused(body(payload_encoding=encoding)) == (400, ["unsupported_encoding", echoed])


@pytest.mark.parametrize("raw", ["NaN", "-Infinity", "7" * 5000, "[" * 99_999, "x"])
def test_what_is_not_json(raw: str) -> None:
    assert refused(body(payload_encoding=raw)) == (400, "not_json")


@pytest.mark.parametrize("raw", ['{"x": 1, "x": 2}', '"string", "routing_key": "k"'])
def test_a_key_that_stands_twice(raw: str) -> None:
    """RabbitMQ takes the last value of each."""
    status, reason = refused(body(payload_encoding=raw))
    assert status == 400
    assert str(reason).endswith(" stands twice in one object")


@pytest.mark.parametrize("depth", range(880, 1000, 7))
@pytest.mark.parametrize("name", ASKED)
def test_values_nested_deeply(name: str, depth: int) -> None:
    assert refused(body(**{name: "[" * depth + "]" * depth}))[0] == 400


def test_many_small_values() -> None:
    data = body(properties='{"headers":{"a":[' + "{}," * 100_000 + "1]}}")
    assert refused(data) == (413, "body: has more than 262144 characters outside its strings")


def test_a_text_that_is_too_long_is_named() -> None:
    for name in ("cluster_id", "app_id"):
        status, reason = refused(body(properties=json.dumps({name: "x" * 256})))
        assert (status, str(reason)[: len(name) + 12]) == (400, f"properties.{name}:")


def test_base64_in_lines() -> None:
    message = management._message(body(payload='"AP\\r\\n +/ \\tAA=="', payload_encoding='"base64"'), "guest")
    assert message.body == b"\x00\xff\xbf\x00"
    assert refused(body(payload='"AP+/\\u000b"', payload_encoding='"base64"'))[0] == 400


def test_base64_in_many_lines_takes_little_memory() -> None:
    data = body(payload='"' + "AA " * 1_000_000 + '"', payload_encoding='"base64"')
    tracemalloc.start()
    try:
        assert management._message(data, "guest").body == bytes(1_500_000)
        assert tracemalloc.get_traced_memory()[1] < 6 * len(data)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("part", ["v" * 255, "%C3%A9" * 127])
def test_names_that_fit(part: str) -> None:
    assert management._name(part) == unquote(part)


@pytest.mark.parametrize("part", ["v" * 256, "%C3%A9" * 128])
def test_a_name_that_amqp_cannot_say(part: str) -> None:
    with pytest.raises(ProblemError) as raised:
        management._name(part)
    assert raised.value.status == 400
    assert raised.value.detail == f"{unquote(part)[:40]!r}... has 256 bytes, 255 are the most"


@pytest.mark.parametrize(("status", "kind"), [(503, "draining"), (408, "timeout"), (429, "too-many")])
def test_it_ends_the_connections_that_others_end(status: int, kind: str) -> None:
    problem = ProblemError(status, kind, "", Outcome.REJECTED, retryable=True)
    assert management._error(problem).keep_alive == problem.response().keep_alive
    assert (management._error(problem).keep_alive is False) == (kind != "too-many")


def login(user: bytes, password: bytes) -> tuple[str, str]:
    given = base64.b64encode(user + b":" + password).decode()
    request = make_mocked_request("POST", "/", CIMultiDict({"Authorization": f"Basic {given}"}))
    return management._login(request)


def test_credentials_that_fit() -> None:
    assert login(b"u" * 255, b"p:" * 127) == ("u" * 255, "p:" * 127)
    assert login(b"u", b"p" * 3072) == ("u", "p" * 3072)
    assert login("é".encode(), b"") == ("é", "")


@pytest.mark.parametrize(
    ("user", "password"), [(b"u" * 256, b""), (b"u", "é".encode() * 1537), (b"u\0", b"p"), (b"u", b"\xff")]
)
def test_credentials_that_the_broker_would_not_read(user: bytes, password: bytes) -> None:
    with pytest.raises(ProblemError) as raised:
        login(user, password)
    answer = management._error(raised.value)
    assert answer.status == 401
    assert answer.headers["WWW-Authenticate"] == 'Basic realm="RabbitMQ Management"'
