"""What an HTTP request says: which exchange, which message. Every mistake is a 400 that names the field."""

from collections.abc import Mapping
from urllib.parse import parse_qsl, unquote_to_bytes

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from proxy.http.problems import ProblemError, invalid
from proxy.outcome import Outcome
from proxy.router import Message, Name

SHORT_STRING = 255
"""Bytes of a routing key or a name, at most: an AMQP 0-9-1 short string (section 4.2.5.3)."""

HEADER_NAME = 128
"""Bytes of a header's name, at most (section 4.2.5.5)."""

_HEADER_PREFIX = "amqp-header-"

_PROPERTIES = {
    "content_type": "Content-Type",
    "content_encoding": "Content-Encoding",
    "message_id": "Amqp-Message-Id",
    "correlation_id": "Amqp-Correlation-Id",
}

# The management API has no page for a name that is a step in a path, also where percent-encoded (run); `amq.default` is
# its word for the default exchange, which AMQP knows by the empty name only.
_NO_PAGE = frozenset({".", "..", "amq.default"})

# Sender-selected distribution: the broker closes the channel, and with it everybody's messages in flight, over one that
# is not an array, which an HTTP header cannot be (run); and copies to other queues would bypass the ring.
_FAN_OUT = frozenset({"CC", "BCC"})


def query_of(request: web.Request, allowed: set[str]) -> dict[str, str]:
    """The query's parameters, any bytes kept as surrogates; each at most once and none but those allowed."""
    pairs = parse_qsl(
        request.rel_url.raw_query_string, keep_blank_values=True, encoding="utf-8", errors="surrogateescape"
    )
    query: dict[str, str] = {}
    for name, value in pairs:
        if name not in allowed:
            raise invalid(f"query parameter {name[:60]!r}", f"not one of {', '.join(sorted(allowed))}")
        if name in query:
            raise invalid(f"query parameter {name!r}", "given twice")
        query[name] = value
    return query


def message_of(request: web.Request) -> Message:
    """What can be hashed, from the headers `Routing-Key`, `Amqp-Header-*`, `Amqp-Message-Id` and their like."""
    headers: dict[str, object] = {}
    for raw_name, raw_value in request.raw_headers:
        name = raw_name.decode("ascii", "replace")
        if name.lower().startswith(_HEADER_PREFIX):
            amqp_name = _header_name(name)
            if amqp_name in headers:
                raise invalid(name, "given twice")
            headers[amqp_name] = utf8(name, raw_value)
    properties: dict[str, object] = {}
    for field, header in _PROPERTIES.items():
        if (value := _header(request, header)) is not None:
            properties[field] = utf8(header, short(header, value))
    if (value := _header(request, "Amqp-Timestamp")) is not None:
        if not (value.isdigit() and len(value) <= 11):
            raise invalid("Amqp-Timestamp", f"{value[:40]!r} is not a number of seconds since 1970")
        properties["timestamp"] = int(value)
    routing_key = short("Routing-Key", _header(request, "Routing-Key") or b"")
    utf8("Routing-Key", routing_key)
    return Message(routing_key, headers, properties)


async def body_of(request: web.Request) -> bytes:
    """The whole body, as it is. Raises ProblemError where it breaks off, aiohttp's 413 where it is too large."""
    try:
        return await request.read()
    except (ConnectionError, HttpProcessingError, web.RequestPayloadError) as error:
        # Nobody may be there any more to read this, but no more did this sidecar do wrong.
        raise invalid("body", f"it ended before it was whole: {error}") from None


def _header_name(name: str) -> str:
    amqp_name = name[len(_HEADER_PREFIX) :]
    if not 0 < len(amqp_name) <= HEADER_NAME:
        raise invalid(name[:60], f"the header's own name has {len(amqp_name)} bytes, not 1 to {HEADER_NAME}")
    if amqp_name in _FAN_OUT:
        raise invalid(name, "sends copies to other queues, which a ring must not, and RabbitMQ takes no text for it")
    return amqp_name


def _header(request: web.Request, name: str) -> bytes | None:
    """A header's bytes; None where it is missing."""
    values = request.headers.getall(name, [])
    if len(values) > 1:
        raise invalid(name, "given twice")
    return values[0].encode("utf-8", "surrogateescape") if values else None


def short(field: str, value: bytes) -> bytes:
    """The value, where it fits an AMQP short string. Raises ProblemError."""
    if len(value) > SHORT_STRING:
        shown = value[:40].decode("utf-8", "backslashreplace")
        raise invalid(field, f"{shown!r}... has {len(value)} bytes, {SHORT_STRING} are the most")
    return value


def utf8(field: str, value: bytes) -> str:
    """The value as text. Raises ProblemError where it is not UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise invalid(field, f"{value[:40]!r} is not UTF-8") from None


def name_of(request: web.Request, query: Mapping[str, str], default_vhost: str) -> Name:
    """The virtual host and exchange that a request names. Raises ProblemError."""
    vhost = short("vhost", query.get("vhost", default_vhost).encode("utf-8", "surrogateescape"))
    # Of the raw path: aiohttp's own decoding leaves bytes that are not UTF-8 as they stand, `%FF`.
    exchange = utf8("exchange", short("exchange", unquote_to_bytes(request.rel_url.raw_path.split("/")[3])))
    if exchange in _NO_PAGE:
        detail = f"exchange: {exchange!r} is no exchange that the management API could show"
        raise ProblemError(404, "unknown-exchange", detail, Outcome.INVALID)
    if vhost in (b".", b".."):
        detail = f"vhost: {vhost.decode()!r} is no virtual host that the management API could show"
        raise ProblemError(404, "unknown-exchange", detail, Outcome.INVALID)
    return utf8("vhost", vhost), exchange
