"""The conversion of one item of a batch, a JSON object, into a message; pure."""

# mypyc: compiled

import json
import re
from binascii import a2b_base64
from collections.abc import Callable, Mapping
from typing import TypeVar

from proxy.http.formats.message import FAN_OUT, STAMPS, Message
from proxy.http.formats.scanning import Item
from proxy.wire.properties import (
    HEADERS_FLAG,
    NAMES,
    PERSISTENT,
    SHORT_STRING,
    Header,
    Properties,
    PropertyError,
    encoded,
    encoded_headers,
    encoded_short_string,
    shown,
    utf8,
)

_T = TypeVar("_T")

_PLAIN = frozenset({"id", "key", "payload"})
_PERSISTENT = Header.of(PERSISTENT)

_MOST_ALIKE, _LONGEST_ALIKE = 1024, 1024
_headers_made: dict[str, Header] = {}
"""Encoded headers by the text of what an item has beside its payload: items of a batch have that alike."""

_FIELDS = _PLAIN | {"payload_encoding", "content_type", "headers", "properties"}

_JSON_TYPE: Properties = dict((encoded("content_type", "application/json"),))

_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")).encode

_not_base64 = re.compile(r"[^A-Za-z0-9+/=]").search


class ItemError(ValueError):
    """An item that is no message; the text names the field and what is wrong with its value."""

    def __init__(self, detail: str, id_: str | None, key: bytes | None, *, too_large: bool = False) -> None:
        """Take the item's id, None if it is missing or wrong, and its routing key: empty if missing, None if wrong.

        Later items of the key wait behind this one. `too_large` makes the answer to a single event a 413.
        """
        super().__init__(detail)
        self.id, self.key, self.too_large = id_, key, too_large


def message_of(item: Item) -> tuple[str | None, Message]:
    """Return an item's own id (None if it has none) and its message. Raises ItemError."""
    key, payload = item.get("key"), item.get("payload")
    try:
        if (
            type(key) is str
            and type(payload) is str
            and key.isascii()
            and len(key) <= SHORT_STRING
            and "payload_encoding" not in item
        ):
            # Apart for speed: in a third of the time.
            message_id = _id(item) if "id" in item else None
            return message_id, Message(key.encode(), _header(item), payload.encode())
        return _id(item), Message(_key(item), _header(item), _payload(item))
    except UnicodeEncodeError:
        detail = "payload: not Unicode text"
    except PropertyError as error:
        detail = str(error)
    raise ItemError(detail, _readable(_id, item), _readable(_key, {"key": ""} | item))


def properties_of(values: Mapping[str, object], prefix: str) -> Properties:
    """Return the given properties, encoded, by their flags. Raises PropertyError that names one, after `prefix`."""
    properties = {}
    for name, value in values.items():
        if name not in NAMES:
            raise PropertyError(f"{prefix}{name[:60]}: unknown field")
        try:
            if name == "user_id":
                raise PropertyError("not taken: RabbitMQ accepts only the name of the user who publishes")
            if name != "headers":
                flag, properties[flag] = encoded(name, value)
            elif headers := _headers(value):
                properties[HEADERS_FLAG] = encoded_headers(headers)
        except PropertyError as error:
            raise PropertyError(f"{prefix}{name}: {error}") from None
    return properties


def _headers(value: object) -> dict[str, object]:
    """Return the headers without those that this proxy sets itself. Raises PropertyError."""
    if not isinstance(value, dict):
        raise PropertyError("not an object")
    if fan_out := FAN_OUT.intersection(value):
        raise PropertyError(f"{min(fan_out)}: asks for copies in other queues, which a ring cannot give; leave it out")
    return {name: content for name, content in value.items() if name not in STAMPS}


def given(field: str, encode: Callable[[object], bytes], item: Mapping[str, object]) -> bytes | None:
    """Return a field's value, encoded; None if it is missing. Raises PropertyError that names the field."""
    if field not in item:
        return None
    try:
        return encode(item[field])
    except PropertyError as error:
        raise PropertyError(f"{field}: {error}") from None


def as_json(value: object) -> bytes:
    """Return a payload that is given as JSON as compact JSON in UTF-8. Raises PropertyError."""
    try:
        text = _json(value)
    except RecursionError:
        raise PropertyError("nested too deeply") from None
    except ValueError:
        raise PropertyError("a number in it is too large") from None
    return utf8(text)


def from_base64(value: object) -> bytes:
    """Return the bytes of a value in base64 (RFC 4648 section 4), padded and in one line. Raises PropertyError."""
    text = utf8(value).decode()
    if (found := _not_base64(text)) is not None:
        raise PropertyError(f"not base64 at character {found.start()}, {found[0]!r}")
    try:
        return a2b_base64(text, strict_mode=True)
    except ValueError as error:
        raise PropertyError(f"not base64: {error}") from None


def unsized_short_string(value: object) -> bytes:
    """Return text of at most 255 bytes encoded as UTF-8, without a length. Raises PropertyError for any other value."""
    return encoded_short_string(value)[1:]


def _id(item: Item) -> str | None:
    return None if given("id", encoded_short_string, item) is None else str(item["id"])


def _key(item: Item) -> bytes | None:
    return given("key", unsized_short_string, item)


def _readable(read: Callable[[Item], _T | None], item: Item) -> _T | None:
    try:
        return read(item)
    except PropertyError:
        return None


_PAYLOADS: dict[str, Callable[[object], bytes]] = {"string": utf8, "base64": from_base64, "json": as_json}
"""How a payload becomes bytes, by `payload_encoding`."""


def _payload(item: Item) -> bytes:
    """Return the body of an item's message, by `payload` and `payload_encoding`. Raises PropertyError."""
    encoding = item.get("payload_encoding", "string")
    if not isinstance(encoding, str) or encoding not in _PAYLOADS:
        raise PropertyError(f"payload_encoding: {shown(encoding)} is not one of {', '.join(_PAYLOADS)}")
    payload = item.get("payload", "")
    if encoding == "string" and not isinstance(payload, str):
        wrong = f"payload: {shown(payload)} is not a string"
        raise PropertyError(f'{wrong}; send it as one, or set payload_encoding to "json"')
    payload = given("payload", _PAYLOADS[encoding], item)
    if payload is None:
        raise PropertyError("payload: missing")
    return payload


def _header(item: Item) -> Header:
    """Return the content header of an item; items that have it alike share one. Raises PropertyError."""
    beside = {name: value for name, value in item.items() if name not in _PLAIN}
    if not beside:
        return _PERSISTENT
    try:
        alike = repr(beside)
    except RecursionError:
        return Header.of(_properties(item))
    header = _headers_made.get(alike)
    if header is None:
        header = Header.of(_properties(item))
        if len(alike) <= _LONGEST_ALIKE:
            if len(_headers_made) >= _MOST_ALIKE:
                _headers_made.clear()
            _headers_made[alike] = header
    return header


def _properties(item: Item) -> Properties:
    """Return the properties of an item. Raises PropertyError, also for unknown fields."""
    if unknown := item.keys() - _FIELDS:
        raise PropertyError(f"{min(unknown)[:60]}: unknown field")
    if _PLAIN.issuperset(item):
        return PERSISTENT
    named = item.get("properties", {})
    if not isinstance(named, dict):
        raise PropertyError("properties: not an object")
    outside: dict[str, object] = {name: item[name] for name in ("content_type", "headers") if name in item}
    if both := outside.keys() & named.keys():
        raise PropertyError(f"{min(both)}: given twice, here and in properties")
    default = _JSON_TYPE if item.get("payload_encoding") == "json" else {}
    return PERSISTENT | default | properties_of(outside, "") | properties_of(named, "properties.")
