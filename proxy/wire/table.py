"""Field tables (AMQP section 4.2.5.5, with RabbitMQ's types), walked, searched and cut as bytes, without decoding them.

Names and values may be any bytes, so nothing here turns them into text; fields that are not cut stay as they came. Only
a value that an exchange hashes, and that is neither text nor an integer, is decoded.
"""

# mypyc: compiled

from collections.abc import Collection, Iterator
from decimal import Decimal
from struct import unpack_from
from typing import Final, NamedTuple

from proxy.wire.frames import SYNTAX_ERROR, U32, U64, Fault, u32
from ring.hashed import canonical

# RabbitMQ's letters, not the specification's: https://www.rabbitmq.com/amqp-0-9-1-errata, section 3.
_FIXED = dict(zip(b"tbBsuIilLfdTDV", (1, 1, 1, 2, 2, 4, 4, 8, 8, 4, 8, 8, 5, 0), strict=True))
"""Bytes of the values whose type has a fixed size, by the type's letter."""
_LONG = frozenset(b"SxAF")
"""The types whose values begin with their length in four bytes: long string, byte array, list and table."""
_INTEGERS = dict(zip(b"bBsuIilLT", (">b", ">B", ">h", ">H", ">i", ">I", ">q", ">Q", ">Q"), strict=True))
"""The `struct` formats of integers by type; as RabbitMQ reads them, I is signed and i is unsigned."""
_FORMATS = _INTEGERS | dict(zip(b"fdt", (">f", ">d", ">?"), strict=True))
"""The `struct` formats of all types whose value is one number or truth value."""
_DECIMAL: Final = ord("D")
_TIMESTAMP: Final = ord("T")
_ARRAY: Final = ord("A")
_TABLE: Final = ord("F")

HASHED_SIZE: Final = 1024
"""The most bytes of a table, or of an array in an array, that are hashed: each takes up to 0.4 us (uncompiled 1.4)."""
HASHED_DEPTH: Final = 16
"""The most levels of a table or array that is hashed, as many as HTTP publishes can have (`properties.MOST_DEPTH`)."""


class Field(NamedTuple):
    """The place of one name and value in the bytes of a table."""

    name: bytes
    start: int
    """The offset of the field's first byte, which holds the length of its name."""
    kind: int
    """The letter of the value's type, as a byte."""
    value: int
    """The offset of the value, after the type."""
    stop: int
    """The offset behind the value."""


def extent(data: bytes, at: int, stop: int) -> tuple[int, int]:
    """Return where the value of the field at `at` begins and stops. Raises Fault 502 for one that runs past `stop`."""
    name_stop = at + 1 + data[at]
    if name_stop >= stop:
        raise Fault(SYNTAX_ERROR, "a header's name runs past its table")
    kind, value = data[name_stop], name_stop + 1
    size = _FIXED.get(kind)
    if size is None:
        if kind not in _LONG:
            raise Fault(SYNTAX_ERROR, f"a header has the unknown type {bytes((kind,))!r}")
        size = 4 + u32(data, value) if value + 4 <= stop else stop
    end = value + size
    if end > stop:
        raise Fault(SYNTAX_ERROR, "a header's value runs past its table")
    return value, end


def fields(data: bytes, start: int, stop: int) -> Iterator[Field]:
    """Yield the fields of a table from `start` to `stop`. Raises Fault 502 for a field that runs past `stop`."""
    at = start
    while at < stop:
        value, end = extent(data, at, stop)
        yield Field(data[at + 1 : value - 1], at, data[value - 1], value, end)
        at = end


def find(data: bytes, start: int, stop: int, name: bytes) -> Field | None:
    """Return the first field of a name; RabbitMQ too takes the first where a name is there twice. None without any."""
    return next((field for field in fields(data, start, stop) if field.name == name), None)


def without(data: bytes, start: int, stop: int, names: Collection[bytes]) -> tuple[bytes, bytes]:
    """Return the bytes of a table's fields without those in `names`, and of those that were cut. Raises Fault 502."""
    kept: list[bytes] = []
    cut: list[bytes] = []
    for field in fields(data, start, stop):
        (cut if field.name in names else kept).append(data[field.start : field.stop])
    return b"".join(kept), b"".join(cut)


def text_of(data: bytes, field: Field) -> bytes | None:
    """Return the bytes of a long string or byte array; None for a value of another type."""
    return data[field.value + 4 : field.stop] if field.kind in b"Sx" else None


def text(table: bytes, name: bytes) -> bytes | None:
    """Return the bytes of a table's field, if it is a long string or byte array; else None. Raises Fault 502."""
    field = find(table, 0, len(table), name)
    return text_of(table, field) if field is not None else None


def integer_of(data: bytes, field: Field) -> int:
    """Return the value of an integer; 0 for a value of another type."""
    form = _INTEGERS.get(field.kind)
    return int(unpack_from(form, data, field.value)[0]) if form is not None else 0


def is_integer(field: Field) -> bool:
    """Return whether a value is an integer. A timestamp is none."""
    return field.kind in _INTEGERS and field.kind != _TIMESTAMP


def hashed_bytes(data: bytes, field: Field) -> bytes | None:
    """Return what a hash exchange hashes of a header: its canonical form (`ring.hashed`).

    Returns None for nothing (void), and for a table or array of more than HASHED_SIZE bytes or HASHED_DEPTH levels.
    Raises Fault 502 for one that cannot be read.
    """
    if field.kind in b"Sx":
        return data[field.value + 4 : field.stop]
    form = _INTEGERS.get(field.kind)
    if form is None:
        return _canonical(data, field)
    return str(unpack_from(form, data, field.value)[0]).encode()


def _canonical(data: bytes, field: Field) -> bytes | None:
    """Return what is hashed of a header that is neither text nor an integer; None if it is too long or too deep."""
    kind, start, stop = field.kind, field.value, field.stop
    is_array = kind == _ARRAY and stop > start + 4
    if is_array:
        # An array is hashed by its first element, so the others need not be read.
        kind = data[start + 4]
        start, stop = _element(data, start + 4, stop)
    if kind in b"AF" and stop - start - 4 > HASHED_SIZE:
        return None
    try:
        found = _decoded(data, kind, start, stop, 1)
    except _TooDeepError:
        return None
    return canonical([found] if is_array else found)


def _element(data: bytes, at: int, stop: int) -> tuple[int, int]:
    """Return where the value of an array's element, whose type is at `at`, begins and stops. Raises Fault 502."""
    # An element with an empty name before it is a field; `extent`, by which every message is walked, reads only these.
    # It reads the type and the length, so no more is copied, however long the element is.
    value, end = extent(b"\0" + data[at : at + 5], 0, stop - at + 1)
    return at - 1 + value, at - 1 + end


class _TooDeepError(Exception):
    """A table or array has more than HASHED_DEPTH levels."""


def _decoded(data: bytes, kind: int, start: int, stop: int, depth: int) -> object:
    """Return a header's value in Python's form, with texts as bytes, so that it can be hashed as RabbitMQ does.

    `kind` is the letter of its type, `start` and `stop` are its offsets in `data`, and `depth` is its level, from 1.
    The first of two fields of a name counts. Raises Fault 502, and _TooDeepError.
    """
    if depth > HASHED_DEPTH and kind in b"AF":
        raise _TooDeepError
    if kind in b"Sx":
        return data[start + 4 : stop]
    form = _FORMATS.get(kind)
    if form is not None:
        number: object = unpack_from(form, data, start)[0]
        return number
    if kind == _DECIMAL:
        places, digits = unpack_from(">Bi", data, start)
        return Decimal(f"{digits}E-{places}")
    if kind == _ARRAY:
        items: list[object] = []
        at = start + 4
        while at < stop:
            first, after = _element(data, at, stop)
            items.append(_decoded(data, data[at], first, after, depth + 1))
            at = after
        return items
    if kind == _TABLE:
        found: dict[bytes, object] = {}
        for each in fields(data, start + 4, stop):
            if each.name not in found:
                found[each.name] = _decoded(data, each.kind, each.value, each.stop, depth + 1)
        return found
    return None  # void


def integer_field(name: bytes, value: int) -> bytes:
    """Return the bytes of a field whose value is a 64-bit integer."""
    return bytes((len(name),)) + name + b"l" + U64.pack(value)


def text_field(name: bytes, value: bytes) -> bytes:
    """Return the bytes of a field whose value is a long string."""
    return bytes((len(name),)) + name + b"S" + U32.pack(len(value)) + value
