"""The conversion of CloudEvents over HTTP to messages, by version 1.0.2 of the HTTP binding and JSON format; pure.

The context attributes become headers `cloudEvents_<name>`, as in its AMQP binding.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import date
from enum import Enum
from hashlib import blake2b
from urllib.parse import unquote_to_bytes

from proxy.http.formats.decoding import DecodingError, decode_json
from proxy.http.formats.fields import ItemError, as_json, from_base64, given, properties_of, unsized_short_string
from proxy.http.formats.message import TRACES, Message, put_trace
from proxy.wire.properties import (
    HEADERS_FLAG,
    PERSISTENT,
    Header,
    Properties,
    PropertyError,
    encoded,
    encoded_headers,
    encoded_short_string,
    shown,
    utf8,
)

_HTTP_PREFIX = "ce-"
_AMQP_PREFIX = "cloudEvents_"

_REQUIRED = ("specversion", "id", "source", "type")

_STRINGS = frozenset({*_REQUIRED, "datacontenttype", "dataschema", "subject", "time", "partitionkey"})
"""Attributes that are strings of at least one character. Others may be of any type."""

_MOST = (1 << 31) - 1
"""The largest integer that an attribute may be; the smallest is ``-_MOST - 1``."""

_DATA = frozenset({"data", "data_base64"})
"""Members of the JSON format that are no attributes."""

_OF_THE_BODY = frozenset({"content-type", "content-encoding"})

_NO_ATTRIBUTES = frozenset({"ce-data", "ce-datacontenttype"})

_is_name = re.compile(r"[a-z0-9]+").fullmatch
_control = re.compile(r"[\x00-\x1f\x7f-\x9f]").search
_quoted = re.compile(rb'"((?:[^"\\]|\\.)*)"').fullmatch
_escaped = re.compile(rb"\\(.)")
_is_json = re.compile(r"[^/;]+/(?:[^/;]+\+)?json[ \t]*(?:;.*)?", re.IGNORECASE).fullmatch
_is_time = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt](?:[01][0-9]|2[0-3]):[0-5][0-9]:(?:[0-5][0-9]|60)(?:\.[0-9]+)?"
    r"(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
).fullmatch


class Form(Enum):
    """The three ways in which a request carries events (HTTP binding, section 3), told by its media type."""

    BINARY = ""
    STRUCTURED = "application/cloudevents+json"
    BATCHED = "application/cloudevents-batch+json"


def form_of(content_type: str) -> Form:
    """Return the form that a Content-Type names. Raises ValueError for an unknown format of events (a 415)."""
    media_type = content_type.partition(";")[0].strip().lower()
    if not media_type.startswith("application/cloudevents"):
        return Form.BINARY
    if media_type in (Form.STRUCTURED.value, Form.BATCHED.value):
        return Form(media_type)
    known = f"{Form.STRUCTURED.value} nor {Form.BATCHED.value}"
    raise ValueError(f"Content-Type: {media_type[:60]!r} is neither {known}")


def binary(headers: Collection[tuple[bytes, bytes]], body: bytes) -> Message:
    """Return the message of an event in raw headers, whose data is the body. Raises ItemError that names the header."""
    attributes: dict[str, object] = {}
    properties = dict(PERSISTENT)
    try:
        for header, value in _given_once(headers):
            if header == "content-type":
                attributes["datacontenttype"] = value.decode("utf-8", "surrogateescape")
            elif header == "content-encoding":
                properties |= properties_of({"content_encoding": value.decode("utf-8", "surrogateescape")}, "")
            else:
                attributes[header.removeprefix(_HTTP_PREFIX)] = _unescaped(header, value)
        return _message(attributes, properties, body, _HTTP_PREFIX, _traces(headers))
    except PropertyError as error:
        raise _wrong(error, attributes) from None


def structured(body: bytes, headers: Collection[tuple[bytes, bytes]] = ()) -> Message:
    """Return the message of a request whose body is one event; `headers` may add its trace. Raises ItemError."""
    try:
        event = decode_json(body)
    except DecodingError as error:
        raise ItemError(f"body: {error}", None, None, too_large=error.too_large) from None
    if not isinstance(event, dict):
        raise ItemError("event: not an object", None, None)
    return message_of(event, headers)[1]


def message_of(
    event: Mapping[str, object], headers: Collection[tuple[bytes, bytes]] = ()
) -> tuple[str | None, Message]:
    """Return the id of an event in the JSON format (None if no short string), and its message. Raises ItemError.

    The trace in the headers goes along if the event has no attribute of that name.
    """
    event = {name: value for name, value in event.items() if value is not None or name == "data"}
    attributes = {name: value for name, value in event.items() if name not in _DATA}
    try:
        if "data" in event:
            attributes.setdefault("datacontenttype", "application/json")
        body = _data(event, attributes.get("datacontenttype"))
        traces = {name: value for name, value in _traces(headers).items() if name not in attributes}
        return _readable(attributes.get("id")), _message(attributes, PERSISTENT, body, "", traces)
    except PropertyError as error:
        raise _wrong(error, attributes) from None


def identity_of(event: Mapping[str, object]) -> bytes:
    """Return 16 bytes that stand for an event's source and id, which no other event has (section 3.1.1)."""
    return blake2b(f"{event['source']}\0{event['id']}".encode(), digest_size=16).digest()


def _traces(headers: Collection[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return the trace headers of the request, which are not the event's own. Raises PropertyError that names one."""
    traces: dict[str, str] = {}
    for raw_name, value in headers:
        if (name := TRACES.get(raw_name.lower())) is not None:
            try:
                put_trace(traces, name, value.decode())
            except UnicodeDecodeError:
                raise PropertyError(f"{name}: {value[:40]!r} is not UTF-8") from None
            except PropertyError as error:
                raise PropertyError(f"{name}: {error}") from None
    return traces


def _given_once(headers: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[str, bytes]]:
    """Yield the headers of the event, with names in lower case. Raises PropertyError if one is given twice."""
    seen = set()
    for raw_name, value in headers:
        header = raw_name.decode("ascii", "replace").lower()
        if header in _OF_THE_BODY or header.startswith(_HTTP_PREFIX):
            if header in seen:
                raise PropertyError(f"{header}: given twice")
            if header in _NO_ATTRIBUTES:
                raise PropertyError(f"{header}: not an attribute of an event")
            seen.add(header)
            yield header, value


def _unescaped(header: str, value: bytes) -> str:
    """Return a header's value without its quotes and percent-encoding (HTTP binding, section 3.1.3.2).

    Raises PropertyError for bytes that are not UTF-8.
    """
    if (quoted := _quoted(value)) is not None:
        value = _escaped.sub(rb"\1", quoted[1])
    try:
        return unquote_to_bytes(value).decode()
    except UnicodeDecodeError:
        raise PropertyError(f"{header}: {value[:40]!r} is not UTF-8") from None


def _data(event: Mapping[str, object], content_type: object) -> bytes:
    """Return the bytes of the event's data (JSON format, section 3.1.2), empty without data.

    Raises PropertyError for data that is given twice, or is of another form.
    """
    if "data" in event and "data_base64" in event:
        raise PropertyError("data: given twice, here and as data_base64")
    as_it_is = isinstance(event.get("data"), str) and isinstance(content_type, str) and not _is_json(content_type)
    data = given("data", utf8 if as_it_is else as_json, event)
    return given("data_base64", from_base64, event) or b"" if data is None else data


def _message(
    attributes: Mapping[str, object],
    properties: Properties,
    body: bytes,
    prefix: str,
    traces: Mapping[str, str],
) -> Message:
    """Return the message of an event's attributes and data. Raises PropertyError that names one, after `prefix`."""
    for name in _REQUIRED:
        if name not in attributes:
            raise PropertyError(f"{prefix}{name}: missing")
    key, properties = None, dict(properties)
    for name, value in attributes.items():
        try:
            _check(name, value)
            if name == "datacontenttype":
                flag, properties[flag] = encoded("content_type", value)
            elif name == "partitionkey":
                key = unsized_short_string(value)
        except PropertyError as error:
            field = "content-type" if prefix and name == "datacontenttype" else f"{prefix}{name[:60]}"
            raise PropertyError(f"{field}: {error}") from None
    headers = {_AMQP_PREFIX + name: value for name, value in attributes.items() if name != "datacontenttype"}
    properties[HEADERS_FLAG] = encoded_headers({**traces, **headers})
    if _readable(attributes["id"]) is not None:
        flag, properties[flag] = encoded("message_id", attributes["id"])
    return Message(key, Header.of(properties), body)


def _check(name: str, value: object) -> None:
    """Check that an attribute may have this name and value. Raises PropertyError."""
    if _is_name(name) is None:
        raise PropertyError("an attribute's name has lower-case letters and digits only")
    if isinstance(value, str):
        if name in _STRINGS and not value:
            raise PropertyError("empty")
        utf8(value)
        if (control := _control(value)) is not None:
            raise PropertyError(f"{control[0]!r} is not allowed in it")
    elif name in _STRINGS:
        raise PropertyError(f"{shown(value)} is not a string")
    elif not isinstance(value, int) or not -_MOST - 1 <= value <= _MOST:
        raise PropertyError(f"{shown(value)} is neither a string nor true, false or an integer of 32 bits")
    if name == "specversion" and value != "1.0":
        raise PropertyError(f"{shown(value)} is not '1.0'")
    if name == "time" and not _is_real_time(str(value)):
        raise PropertyError(f"{shown(value)} is not a time as in RFC 3339")


def _is_real_time(text: str) -> bool:
    """Return whether a text is a timestamp by RFC 3339 whose day exists."""
    found = _is_time(text)
    if found is None:
        return False
    try:
        date.fromisoformat(found[1])
    except ValueError:
        return False
    return True


def _wrong(error: PropertyError, attributes: Mapping[str, object]) -> ItemError:
    key = _readable(attributes["partitionkey"]) if "partitionkey" in attributes else ""
    return ItemError(str(error), _readable(attributes.get("id")), None if key is None else key.encode())


def _readable(value: object) -> str | None:
    """Return a text that is not empty and fits into a short string; None for any other value."""
    try:
        return value if isinstance(value, str) and encoded_short_string(value) != b"\0" else None
    except PropertyError:
        return None
