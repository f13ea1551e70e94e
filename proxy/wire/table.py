"""Field tables (AMQP section 4.2.5.5, with RabbitMQ's types) as the bytes they are: walked, searched, cut; not decoded.

Names and values may be any bytes, so nothing here turns them into text; what is not touched stays as it came.
"""

from collections.abc import Collection, Iterator
from struct import unpack_from
from typing import NamedTuple

from proxy.wire.frames import SYNTAX_ERROR, U32, Fault, u32

_FIXED = dict(zip(b"tbBsuIilLfdTDV", (1, 1, 1, 2, 2, 4, 4, 8, 8, 4, 8, 8, 5, 0), strict=True))
_LONG = frozenset(b"SxAF")
_INTEGERS = dict(zip(b"bBsuIilLT", (">b", ">B", ">h", ">H", ">i", ">I", ">q", ">Q", ">Q"), strict=True))
"""RabbitMQ reads I as signed and i as unsigned."""


class Field(NamedTuple):
    """One name and value: where it begins, its value begins after the type, and it stops."""

    name: bytes
    start: int
    kind: int
    value: int
    stop: int


def fields(data: bytes, start: int, stop: int) -> Iterator[Field]:
    """The fields of a table whose first is at `start`. Raises Fault 502 where one runs past `stop`."""
    at = start
    while at < stop:
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
        yield Field(data[at + 1 : name_stop], at, kind, value, end)
        at = end


def find(data: bytes, start: int, stop: int, name: bytes) -> Field | None:
    """The first field of that name, as RabbitMQ reads a name that is there twice."""
    return next((field for field in fields(data, start, stop) if field.name == name), None)


def without(data: bytes, start: int, stop: int, names: Collection[bytes]) -> tuple[bytes, bytes]:
    """The table's fields but for those named, and those."""
    kept: list[bytes] = []
    cut: list[bytes] = []
    for field in fields(data, start, stop):
        (cut if field.name in names else kept).append(data[field.start : field.stop])
    return b"".join(kept), b"".join(cut)


def text_of(data: bytes, field: Field) -> bytes | None:
    """The bytes of a long string; None for a value of another type."""
    return data[field.value + 4 : field.stop] if field.kind in b"Sx" else None


def hashed_bytes(data: bytes, field: Field) -> bytes | None:
    """What an exchange that hashes this header takes: strings as they are, integers as decimal text; else None."""
    if field.kind in b"Sx":
        return data[field.value + 4 : field.stop]
    form = _INTEGERS.get(field.kind)
    if form is None:
        return None
    return str(unpack_from(form, data, field.value)[0]).encode()


def text_field(name: bytes, value: bytes) -> bytes:
    """One field with a long string."""
    return bytes((len(name),)) + name + b"S" + U32.pack(len(value)) + value
