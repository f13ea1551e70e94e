"""The properties and headers of an HTTP message, encoded as a content header (AMQP section 4.2.6.1)."""

# mypyc: compiled

from collections.abc import Callable, Mapping
from math import isfinite
from struct import Struct, pack
from typing import Any, NamedTuple

from proxy.wire.frames import BASIC, U32

SHORT_STRING = 255
"""Bytes of a short string, at most (section 4.2.5.3)."""

HEADER_NAME = 128
"""The most bytes of a header's name (AMQP section 4.2.5.5)."""

MOST_DEPTH = 16
"""The most levels of tables and lists nested in one header."""

DIRECT_REPLY = "amq.rabbitmq.reply-to"
"""The pseudo-queue of RabbitMQ's direct reply-to."""

_STREAM_FILTER = "x-stream-filter-value"
"""A header that must be a string: RabbitMQ 4.3.6 ends the connection if a stream gets another type."""

_LONGEST_EXPIRATION = (1 << 32) - 1
"""Milliseconds of `expiration`, at most; for more RabbitMQ closes the channel, with all that is in flight on it."""

Properties = dict[int, bytes]
"""The encoded values of properties by their flags; on the wire they follow each other in descending order of flags."""

HEADERS_FLAG = 1 << 13
PERSISTENT: Properties = {1 << 12: b"\x02"}


class PropertyError(ValueError):
    """A property or header that cannot be sent; the message says what is wrong with its value."""


class Header(NamedTuple):
    """The properties of one message as the bytes of a content header, split where stamps are put into its headers."""

    flags: int
    """The property flags; that of the headers is always set."""
    before: bytes
    """The properties before the headers."""
    headers: bytes
    """The fields of the headers table, without its length."""
    after: bytes
    """The properties after the headers."""

    @classmethod
    def of(cls, properties: Properties) -> "Header":
        """Return the header of encoded properties."""
        if properties is PERSISTENT:
            return _PERSISTENT
        flags, before, after = HEADERS_FLAG, b"", b""
        for flag in sorted(properties, reverse=True):
            flags |= flag
            if flag > HEADERS_FLAG:
                before += properties[flag]
            elif flag < HEADERS_FLAG:
                after += properties[flag]
        return cls(flags, before, properties.get(HEADERS_FLAG, b"")[4:], after)

    def payload(self, size: int, stamps: bytes = b"") -> bytes:
        """Return a content header's payload for a body of `size` bytes, with `stamps` as the first headers."""
        flags, before, headers, after = self
        head = _HEAD(BASIC, 0, size, flags)
        return b"".join((head, before, _U32(len(stamps) + len(headers)), stamps, headers, after))


_HEAD, _U32 = Struct(">HHQH").pack, U32.pack
_PERSISTENT = Header(HEADERS_FLAG | 1 << 12, b"", b"", b"\x02")


def encoded(name: str, value: object) -> tuple[int, bytes]:
    """Return the flag and the encoded value of a property, which is named as in AMQP, such as `message_id`.

    Raises KeyError for an unknown name, and PropertyError for a value of another type or out of range.
    """
    flag, encode = _ENCODERS[name]
    return flag, encode(value)


def encoded_headers(headers: Mapping[str, object]) -> bytes:
    """Return the value of the property `headers`, a table with its length. Raises PropertyError."""
    return _table(headers, 0)


def encoded_short_string(value: object) -> bytes:
    """Return text as a short string with its length. Raises PropertyError."""
    text = utf8(value)
    if len(text) > SHORT_STRING:
        raise PropertyError(f"{shown(value)} has {len(text)} bytes, {SHORT_STRING} are the most")
    return bytes((len(text),)) + text


def utf8(value: object) -> bytes:
    """Return text as UTF-8. Raises PropertyError for a value that is not text, or has a lone surrogate."""
    if not isinstance(value, str):
        raise PropertyError(f"{shown(value)} is not a string")
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise PropertyError(f"{shown(value)} is not Unicode text") from None


def shown(value: object) -> str:
    """Return a value for an error's text, in 60 characters at most; for one that may be large or deep, its type."""
    if isinstance(value, str | bytes):
        text = repr(value[:60])
    elif value is None or isinstance(value, int | float):
        text = repr(value)
    else:
        text = _KINDS.get(type(value)) or f"a {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


_KINDS: dict[type, str] = {dict: "an object", list: "a list"}
"""The types of nested values, as JSON calls them."""


def _whole(most: int, least: int = 0) -> Callable[[object], int]:
    """Return a check of whole numbers from `least` to `most`, given as one or as digits. It raises PropertyError."""

    def check(value: object) -> int:
        number = value
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 20:
            number = int(value)
        if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
            raise PropertyError(f"{shown(value)} is not a whole number from {least} to {most}")
        return number

    return check


_expiration = _whole(_LONGEST_EXPIRATION)
_octet = _whole(255)
_mode = _whole(2, 1)
_timestamp = _whole((1 << 63) - 1)


def _headers(value: object) -> bytes:
    if not isinstance(value, Mapping):
        raise PropertyError(f"{shown(value)} is not an object")
    return encoded_headers(value)


def _reply_to(value: object) -> bytes:
    """Return the encoded `reply_to`.

    Raises PropertyError for direct reply-to, which needs a consumer on the channel: without one RabbitMQ closes the
    channel (observed on 3.10.8).
    """
    if value == DIRECT_REPLY:
        raise PropertyError(f"{value!r} needs a consumer on the same connection, which HTTP does not have")
    return encoded_short_string(value)


_ENCODERS: dict[str, tuple[int, Callable[[object], bytes]]] = {
    "content_type": (1 << 15, encoded_short_string),
    "content_encoding": (1 << 14, encoded_short_string),
    "headers": (HEADERS_FLAG, _headers),
    "delivery_mode": (1 << 12, lambda value: bytes((_mode(value),))),
    "priority": (1 << 11, lambda value: bytes((_octet(value),))),
    "correlation_id": (1 << 10, encoded_short_string),
    "reply_to": (1 << 9, _reply_to),
    "expiration": (1 << 8, lambda value: encoded_short_string(str(_expiration(value)))),
    "message_id": (1 << 7, encoded_short_string),
    "timestamp": (1 << 6, lambda value: pack(">Q", _timestamp(value))),
    "type": (1 << 5, encoded_short_string),
    "user_id": (1 << 4, encoded_short_string),
    "app_id": (1 << 3, encoded_short_string),
}

NAMES = tuple(_ENCODERS)
"""The names of all properties, in their order on the wire."""


def _table(headers: Mapping[Any, object], depth: int) -> bytes:
    """Return headers as a field table with its length: those of a message, or the client properties of a login.

    `depth` counts the tables and lists around it. Raises PropertyError.
    """
    if depth > MOST_DEPTH:
        raise PropertyError(f"tables and lists lie more than {MOST_DEPTH} deep")
    entries = []
    for name, value in headers.items():
        encoded_name = utf8(name)
        if not 0 < len(encoded_name) <= HEADER_NAME:
            raise PropertyError(f"the name {shown(name)} has {len(encoded_name)} bytes, not 1 to {HEADER_NAME}")
        try:
            # A stream's filter value of another type ends the connection for all its publishers.
            if name == _STREAM_FILTER:
                utf8(value)
            entries.append(bytes((len(encoded_name),)) + encoded_name + _value(value, depth))
        except PropertyError as error:
            raise PropertyError(f"{name}: {error}") from None
    joined = b"".join(entries)
    return U32.pack(len(joined)) + joined


def _value(value: object, depth: int) -> bytes:
    """Return a header's value with its type, as RabbitMQ's own clients would send it. Raises PropertyError."""
    match value:
        case str():
            text = utf8(value)
            return b"S" + U32.pack(len(text)) + text
        case bool():
            return b"t\x01" if value else b"t\x00"
        case int():
            return _integer(value)
        case float():
            return _float(value)
        case None:
            return b"V"
        case list():
            return _list(value, depth + 1)
        case Mapping():
            return b"F" + _table(value, depth + 1)
        case _:
            raise PropertyError(f"{shown(value)} has a type that a header cannot have")


def _integer(value: int) -> bytes:
    """Return an integer with its type, in 32 bits where it fits, since not every client reads 64.

    Raises PropertyError for one of more than 64 bits.
    """
    if -(1 << 31) <= value < 1 << 31:
        return b"I" + pack(">i", value)
    if -(1 << 63) <= value < 1 << 63:
        return b"l" + pack(">q", value)
    raise PropertyError(f"{shown(value)} does not fit 64 bits")


def _float(value: float) -> bytes:
    """Return a finite number as a double with its type.

    Raises PropertyError for others, over which RabbitMQ ends the connection (observed on 3.10.8).
    """
    if not isfinite(value):
        raise PropertyError(f"{value} is no finite number")
    return b"d" + pack(">d", value)


def _list(values: list[object], depth: int) -> bytes:
    if depth > MOST_DEPTH:
        raise PropertyError(f"tables and lists lie more than {MOST_DEPTH} deep")
    items = b"".join([_value(value, depth) for value in values])
    return b"A" + U32.pack(len(items)) + items
