"""From one item of a batch, a CloudEvent, a request's headers, or the management API's publish to a message.

It raises only the documented errors. The header that is made can be read again, and has no stamps, `CC` or `BCC` of the
client's. A login is what was encoded.
"""

import json
import re
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, cast

from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from proxy.http.admission.gate import Admitted, Gate
from proxy.http.admission.sizes import Sizes
from proxy.http.endpoints.management import ManagementEndpoint
from proxy.http.formats import cloudevents, fields, parsing
from proxy.http.formats.decoding import DecodingError, decode_json
from proxy.http.formats.fields import ItemError
from proxy.http.formats.message import FAN_OUT, STAMPS, Message
from proxy.http.formats.problems import ProblemError
from proxy.http.sending.dispatch import Dispatch
from proxy.publisher.pool import Login
from proxy.settings.config import Settings
from proxy.wire import content, table
from proxy.wire.frames import U32
from proxy.wire.properties import Header
from tests.fuzz.steps import Step, steps, written

KINDS = ITEM, STRUCTURED, BATCHED, BINARY, REQUEST, MANAGEMENT = range(6)
"""The meaning of the other bytes by the first: JSON, steps that each are a header, or a line of credentials, one with
the path, and JSON."""

_NAMES = [
    b"Routing-Key",
    b"Content-Type",
    b"Content-Encoding",
    b"traceparent",
    b"tracestate",
    b"Prefer",
    *(b"Amqp-" + name for name in (b"Message-Id", b"Expiration", b"Priority", b"Timestamp", b"Delivery-Mode", b"Type")),
    *(b"Amqp-Header-a", b"Amqp-Header-CC", b"Amqp-Header-x-ring-id", b"Amqp-Header-", b"Amqp-User-Id"),
    *(b"ce-" + name for name in (b"id", b"source", b"type", b"specversion", b"time", b"subject", b"partitionkey")),
    *(b"ce-data", b"ce-ext", b"ce-dataschema"),
]
_ITS_PATH = re.compile("/api/exchanges/[^/]+/[^/]+/publish")
_PATH, _ANY = 64, 128
"""Steps that are the path and query, or a header whose name they bring, up to a colon."""


def check(data: bytes) -> None:
    """Only the documented errors are raised, and a message that is made can be read again."""
    what, rest = (data[0] if data else 0) % len(KINDS), data[1:]
    if what == ITEM:
        with suppress(DecodingError):
            item = decode_json(rest)
            if isinstance(item, dict):
                with suppress(ItemError):
                    _check(fields.message_of(cast("dict[str, Any]", item))[1])
    elif what == STRUCTURED:
        with suppress(ItemError):
            _check(cloudevents.structured(rest))
    elif what == BATCHED:
        with suppress(DecodingError):
            events = decode_json(rest)
            for event in events if isinstance(events, list) else ():
                if isinstance(event, dict):
                    with suppress(ItemError):
                        _check(cloudevents.message_of(event)[1])
                        cloudevents.identity_of(event)
    elif what == MANAGEMENT:
        credentials, _, rest = rest.partition(b"\n")
        path, _, body = rest.partition(b"\n")
        _check_management(credentials, path, body)
    else:
        _check_request(what, rest)


def _check_request(what: int, data: bytes) -> None:
    path, headers = b"/v1/exchanges/x/publish", []
    for step in steps(data):
        if step.op == _PATH:
            path = b"/v1/exchanges/" + step.data
        elif step.op == _ANY:
            name, _, value = step.data.partition(b":")
            headers.append((name, value))
        else:
            headers.append((_NAMES[step.op % len(_NAMES)], step.data))
    if what == BINARY:
        with suppress(ItemError):
            _check(cloudevents.binary(headers, data))
        return
    request = cast(web.Request, _Request(path, headers))
    with suppress(ProblemError):
        query = parsing.query_of(request, {"vhost", "key"})
        vhost, exchange = parsing.name_of(request, query, "/")
        assert len(vhost.encode()) < 256
        assert len(exchange.encode()) < 256
        parsing.prefers(request, "minimal")
        key, properties = parsing.key_and_properties(request, query)
        _check(Message(key, Header.of(properties), data))


def _check_management(credentials: bytes, path: bytes, body: bytes) -> None:
    """Any answer is the management API's JSON, and what would be published belongs to who has logged in."""
    # A fuzzer does not come by base64.
    plain = b":" in credentials
    authorization = b"Basic " + b64encode(credentials) if plain else credentials
    request = cast(web.Request, _Request(b"/api/exchanges/" + path, [(b"Authorization", authorization)]))
    if not _ITS_PATH.fullmatch(request.rel_url.raw_path):
        return
    endpoint = _Endpoint(body)
    try:
        endpoint.answer(request).send(None)
    except StopIteration as stopped:
        answer: web.Response = stopped.value
    assert isinstance(answer.body, bytes)
    told = json.loads(answer.body)
    if endpoint.login is None:
        assert answer.status in (400, 401, 413)
        assert told.keys() == {"error", "reason", "outcome", "retryable"}
        assert told["outcome"] == "invalid"
        return
    assert (answer.status, told) == (200, {"routed": True})
    assert all(len(part.encode()) < 256 and "\0" not in part for part in endpoint.login)
    if plain:
        assert ":".join(endpoint.login).encode() == credentials


class _Endpoint(ManagementEndpoint):
    """The management API's publish, up to the message: all is admitted, and nothing published."""

    def __init__(self, body: bytes) -> None:
        super().__init__(cast(Gate, _Gate(body)), cast(Dispatch, None), Settings())
        self.login: Login | None = None

    async def _let_in(self, request: web.Request, name: tuple[str, str], login: Login) -> None:
        """Everyone."""

    async def _routed(self, admitted: Admitted, name: tuple[str, str], login: Login, message: Message) -> bool:
        assert not {".", ".."} & set(name)
        _check(message)
        self.login = login
        return True


class _Gate:
    """Lets everyone in, with that body."""

    def __init__(self, body: bytes) -> None:
        self._body, self.sizes = body, Sizes.of(Settings(max_body=1 << 20))

    @contextmanager
    def admitted(self, messages: int) -> Iterator[None]:
        yield None

    def begin(self, admitted: Admitted) -> None:
        """Count nothing."""

    def refuse_pages(self, request: web.Request) -> None:
        """Whatever the request's headers say."""

    async def body(self, request: web.Request, admitted: Admitted, most: int) -> bytes:
        return self._body


class _Request:
    """The result of reading a request."""

    def __init__(self, path: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        text = "".join(chr(c) for c in path if 0x20 < c < 0x7F)
        before, _, query = text.partition("?")
        self.rel_url = URL.build(path=before, query_string=query, encoded=True)
        self.raw_headers = headers
        self.headers = CIMultiDict(
            (name.decode("utf-8", "surrogateescape"), value.decode("utf-8", "surrogateescape"))
            for name, value in headers
        )


def _check(message: Message) -> None:
    assert message.key is None or len(message.key) < 256
    payload = message.header.payload(len(message.body))
    flags, at = content.headers_at(payload, 0, len(payload))
    if flags & content.HEADERS:
        first, stop = content.table_at(payload, at, len(payload))
        names = [entry.name.decode() for entry in table.fields(payload, first, stop)]
        assert not set(names) & (STAMPS | FAN_OUT)
        assert len(names) == len(set(names))
        assert all(0 < len(name.encode()) <= 128 for name in names)
    stamped, _ = content.stamped(payload, 0, len(payload), b"\1aS" + U32.pack(1) + b"b", ())
    assert len(stamped) >= len(payload)


def seeds() -> list[bytes]:
    """Messages that are right."""
    item = {
        "id": "1",
        "key": "k",
        "payload": "aGVsbG8=",
        "payload_encoding": "base64",
        "headers": {"a": [1, 2.5, None, {"b": True}], "big": 1 << 40},
        "properties": {"priority": 3, "expiration": "60000", "timestamp": 1, "message_id": "m", "delivery_mode": 1},
    }
    event = {
        "specversion": "1.0",
        "id": "1",
        "source": "/s",
        "type": "t",
        "time": "2026-01-02T03:04:05.6Z",
        "partitionkey": "k",
        "ext": 5,
        "data": {"a": 1},
    }
    in_base64 = {**event, "data_base64": "aGVsbG8=", "datacontenttype": "text/plain"}
    del in_base64["data"]
    headers = [
        Step(n, 0, value)
        for n, value in enumerate([b"k", b"text/plain", b"gzip", b"00-1-2-01", b"a=1", b"return=minimal"])
    ]
    headers += [Step(6 + n, 0, value) for n, value in enumerate([b"m", b"60000", b"3", b"1", b"2", b"t", b"h"])]
    binary = [Step(_NAMES.index(b"ce-" + name), 0, name) for name in (b"id", b"source", b"type", b"partitionkey")]
    binary += [Step(_NAMES.index(b"ce-specversion"), 0, b"1.0"), Step(_ANY, 0, b'ce-any:"%C3%A9"')]
    published = {
        "routing_key": "k",
        "properties": {"headers": {"a": 1}, "priority": 3, "user_id": "u", "delivery_mode": 2, "unknown": []},
        "payload": "aGVs\nbG8=",
        "payload_encoding": "base64",
        "vhost": "/",
    }
    as_string = {**published, "payload": "hello", "payload_encoding": "string", "properties": {}}
    path = Step(_PATH, 0, b"a%2Fb%C3%A9/publish?vhost=%2F&key=k")
    return [
        bytes((ITEM,)) + json.dumps(item).encode(),
        bytes((ITEM,)) + b'{"key": "k", "payload": {"a": [1e5]}, "payload_encoding": "json"}',
        bytes((STRUCTURED,)) + json.dumps(event).encode(),
        bytes((BATCHED,)) + json.dumps([event, in_base64]).encode(),
        bytes((BINARY,)) + written(binary),
        bytes((REQUEST,)) + written([path, *headers[1:]]),
        bytes((REQUEST,)) + written(headers),
        bytes((MANAGEMENT,)) + b"u:p\n%2F/x/publish\n" + json.dumps(published).encode(),
        bytes((MANAGEMENT,)) + b"Basic dTpw\na%C3%A9/amq.default/publish\n" + json.dumps(as_string).encode(),
    ]
