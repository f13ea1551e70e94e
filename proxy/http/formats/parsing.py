"""The exchange and the message that an HTTP request names. Every mistake is a 400 that names the field."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from urllib.parse import parse_qsl, unquote_to_bytes

from aiohttp import web

from proxy.http.formats.message import FAN_OUT, STAMPS, TRACES, put_trace
from proxy.http.formats.problems import invalid, unknown_exchange
from proxy.topology.table import Name
from proxy.wire.properties import (
    HEADER_NAME,
    HEADERS_FLAG,
    PERSISTENT,
    SHORT_STRING,
    Properties,
    PropertyError,
    encoded,
    encoded_headers,
)

RawHeaders = Sequence[tuple[bytes, bytes]]

_HEADER_PREFIX = b"amqp-header-"

_PROPERTIES = {
    field.lower().encode(): (field, field.removeprefix("Amqp-").lower().replace("-", "_"))
    for field in (
        *("Content-Type", "Content-Encoding", "Amqp-Delivery-Mode", "Amqp-Priority", "Amqp-Correlation-Id"),
        *("Amqp-Reply-To", "Amqp-Expiration", "Amqp-Message-Id", "Amqp-Timestamp", "Amqp-Type", "Amqp-App-Id"),
    )
}
"""The property that each HTTP header sets. Not user_id: the broker closes the channel for any but its user's name."""

# The management API has no page for a name that is a step in a path, also where percent-encoded (observed);
# `amq.default` is its word for the default exchange, which AMQP knows by the empty name only.
_NO_PAGE = frozenset({".", "..", "amq.default"})


def head_size(path: str, raw_headers: RawHeaders) -> int:
    """Return the bytes of a request's head, its line ends and method aside."""
    return len(path) + sum([len(name) + len(value) for name, value in raw_headers])


def query_of(request: web.Request, allowed: set[str]) -> dict[str, str]:
    """Return the query's parameters, any bytes kept as surrogates. Raises ProblemError for unknown or repeated ones."""
    raw = request.rel_url.raw_query_string
    query: dict[str, str] = {}
    if not raw:
        return query
    for name, value in parse_qsl(raw, keep_blank_values=True, encoding="utf-8", errors="surrogateescape"):
        if name not in allowed:
            raise invalid(f"query parameter {name[:60]!r}", f"not one of {', '.join(sorted(allowed))}")
        if name in query:
            raise invalid(f"query parameter {name!r}", "given twice")
        query[name] = value
    return query


def key_and_properties(request: web.Request, query: Mapping[str, str]) -> tuple[bytes | None, Properties]:
    """Return the routing key (None for none) and the message's properties, as a request's headers and query say.

    Raises ProblemError 400 for one that is wrong, or is given twice.
    """
    key: bytes | None = None
    properties: Properties = {}
    headers: dict[str, object] = {}
    traces: dict[str, str] = {}
    for raw_name, value in request.raw_headers:
        lower = raw_name.lower()
        known = _PROPERTIES.get(lower)
        if known is not None:
            field, name = known
            flag, data = (_repeated if name in _REPEATED else _property)(field, name, value)
            if flag in properties:
                raise invalid(field, "given twice")
            properties[flag] = data
        elif lower == b"routing-key":
            if key is not None:
                raise invalid("Routing-Key", "given twice")
            key = value
        elif lower in TRACES:
            _put_trace(traces, TRACES[lower], value)
        elif lower.startswith(b"amqp-"):
            _put_header(headers, raw_name.decode("ascii", "replace"), lower, value)
    if headers or traces:
        properties[HEADERS_FLAG] = _encoded_headers(headers, traces)
    return key_of(key, query), {**PERSISTENT, **properties}


def key_of(key: bytes | None, query: Mapping[str, str]) -> bytes | None:
    """Return the routing key, given in a header as `key` or in the query; None for neither.

    Raises ProblemError 400 if both are given, or if the key is too long or no UTF-8.
    """
    field = "Routing-Key"
    if "key" in query:
        if key is not None:
            raise invalid("key", "given in the query and as Routing-Key")
        field, key = "key", query["key"].encode("utf-8", "surrogateescape")
    if key is not None:
        text(field, short(field, key))
    return key


def refuse_message_headers(request: web.Request, instead: str) -> None:
    """Raise ProblemError for a header of a single message, which would be lost here; `instead` says what is taken."""
    for raw_name, _ in request.raw_headers:
        lower = raw_name.lower()
        if lower == b"routing-key" or lower.startswith(b"amqp-"):
            raise invalid(raw_name.decode("ascii", "replace")[:60], f"not taken here; {instead}")


def _property(field: str, name: str, value: bytes) -> tuple[int, bytes]:
    try:
        return encoded(name, text(field, value))
    except PropertyError as error:
        raise invalid(field, str(error)) from None


_repeated = lru_cache(maxsize=1024)(_property)
_REPEATED = frozenset({"content_type", "content_encoding", "delivery_mode", "priority", "type", "app_id"})
"""Properties that many messages have alike."""


def _encoded_headers(headers: Mapping[str, object], traces: Mapping[str, str]) -> bytes:
    if both := traces.keys() & headers.keys():
        raise invalid(f"Amqp-Header-{min(both)}", f"given as {min(both)} too")
    return encoded_headers({**headers, **traces})


def _put_trace(traces: dict[str, str], name: str, value: bytes) -> None:
    try:
        put_trace(traces, name, text(name, value))
    except PropertyError as error:
        raise invalid(name, str(error)) from None


def _put_header(headers: dict[str, object], field: str, lower: bytes, value: bytes) -> None:
    """Add the message header that a request's field asks for to `headers`; one of the stamps is dropped.

    Raises ProblemError 400 for a field that is no message header, or a wrong one.
    """
    if not lower.startswith(_HEADER_PREFIX):
        raise invalid(field[:60], "not a property that a message may have; a message header is Amqp-Header-<name>")
    name = field[len(_HEADER_PREFIX) :]
    if not 0 < len(name) <= HEADER_NAME:
        raise invalid(field[:60], f"the header's own name has {len(name)} bytes, not 1 to {HEADER_NAME}")
    if name in FAN_OUT:
        raise invalid(field, "asks for copies in other queues, which a ring cannot give; leave it out")
    if name in headers:
        raise invalid(field, "given twice")
    decoded = text(field, value)
    if name not in STAMPS:
        headers[name] = decoded


def prefers(request: web.Request, what: str) -> bool:
    """Return whether the request has the header ``Prefer: return=<what>``, such as ``return=minimal`` (RFC 7240)."""
    for value in request.headers.getall("Prefer", ()):
        if f"return={what}" in (part.partition(";")[0].strip().lower() for part in value.split(",")):
            return True
    return False


def short(field: str, value: bytes) -> bytes:
    """Return the value, if it fits an AMQP short string. Raises ProblemError."""
    if len(value) > SHORT_STRING:
        shown = value[:40].decode("utf-8", "backslashreplace")
        raise invalid(field, f"{shown!r}... has {len(value)} bytes, {SHORT_STRING} are the most")
    return value


def text(field: str, value: bytes) -> str:
    """Return the value as text. Raises ProblemError if it is not UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise invalid(field, f"{value[:40]!r} is not UTF-8") from None


def name_of(request: web.Request, query: Mapping[str, str], default_vhost: str) -> Name:
    """Return the virtual host and exchange that a request names. Raises ProblemError."""
    # The raw path is read, since aiohttp's own decoding leaves bytes that are not UTF-8 as they stand, `%FF`.
    return _named(request.rel_url.raw_path.split("/", 4)[3], query.get("vhost", default_vhost))


@lru_cache(maxsize=1024)
def _named(exchange_part: str, vhost_text: str) -> Name:
    """Return the virtual host and exchange of a request, decoded. Raises ProblemError 400, or 404 for `.` and `..`."""
    vhost = short("vhost", vhost_text.encode("utf-8", "surrogateescape"))
    exchange = text("exchange", short("exchange", unquote_to_bytes(exchange_part)))
    if exchange in _NO_PAGE:
        raise unknown_exchange(f"exchange: {exchange!r} cannot be looked up: the management API takes no such name")
    if vhost in (b".", b".."):
        raise unknown_exchange(f"vhost: {vhost.decode()!r} cannot be looked up: the management API takes no such name")
    return text("vhost", vhost), exchange
