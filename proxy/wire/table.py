"""Field tables (AMQP section 4.2.5.5, with RabbitMQ's types), walked, searched and cut as bytes, without decoding them.

Names and values may be any bytes, so nothing here turns them into text; fields that are not cut stay as they came.
"""

from collections.abc import Collection, Iterator
from struct import unpack_from
from typing import NamedTuple

from proxy.wire.frames import SYNTAX_ERROR, U32, Fault, u32

# RabbitMQ's letters, not the specification's: https://www.rabbitmq.com/amqp-0-9-1-errata, section 3.
_FIXED = dict(zip(b"tbBsuIilLfdTDV", (1, 1, 1, 2, 2, 4, 4, 8, 8, 4, 8, 8, 5, 0), strict=True))
"""Bytes of the values whose type has a fixed size, by the type's letter."""
_LONG = frozenset(b"SxAF")
"""The types whose values begin with their length in four bytes: long string, byte array, list and table."""
_INTEGERS = dict(zip(b"bBsuIilLT", (">b", ">B", ">h", ">H", ">i", ">I", ">q", ">Q", ">Q"), strict=True))
"""The `struct` formats of integers by type; as RabbitMQ reads them, I is signed and i is unsigned."""


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
    """Return the bytes of a table's fields without those in `names`, and the bytes of those that were cut."""
    kept: list[bytes] = []
    cut: list[bytes] = []
    for field in fields(data, start, stop):
        (cut if field.name in names else kept).append(data[field.start : field.stop])
    return b"".join(kept), b"".join(cut)


def text_of(data: bytes, field: Field) -> bytes | None:
    """Return the bytes of a long string or byte array; None for a value of another type."""
    return data[field.value + 4 : field.stop] if field.kind in b"Sx" else None


def hashed_bytes(data: bytes, field: Field) -> bytes | None:
    """Return what a hash exchange hashes of a header: strings as they are, integers as decimal text; else None."""
    if field.kind in b"Sx":
        return data[field.value + 4 : field.stop]
    form = _INTEGERS.get(field.kind)
    if form is None:
        return None
    return str(unpack_from(form, data, field.value)[0]).encode()


def text_field(name: bytes, value: bytes) -> bytes:
    """Return the bytes of a field whose value is a long string."""
    return bytes((len(name),)) + name + b"S" + U32.pack(len(value)) + value
