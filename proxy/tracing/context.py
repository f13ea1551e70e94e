"""The trace that a message belongs to, by the header `traceparent` of W3C Trace Context."""

# mypyc: compiled

import re
from typing import Final, NamedTuple

from proxy.wire import table
from proxy.wire.frames import Fault

TRACEPARENT: Final = b"traceparent"
"""The name of the message header."""

_LENGTH: Final = 55
"""Bytes of a value of version 00. Later versions may have more behind a dash (section 4.3.1)."""

_value = re.compile(rb"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?", re.DOTALL).fullmatch


class Parent(NamedTuple):
    """The span before, which the header of a message or a request names."""

    trace_id: int
    span_id: int
    sampled: bool
    """Whether the trace is recorded; then every span of it is to be."""


UNREADABLE: Final = Parent(0, 0, False)
"""Stands for a header that cannot be read: the message goes on as it is, and is in no trace."""


def parent_in(data: bytes, start: int, stop: int) -> Parent | None:
    """Return the span that a headers table names, whose fields are in `data` from `start` to `stop`.

    The result is None where the table has no `traceparent`.
    """
    if start == stop or data.find(TRACEPARENT, start, stop) < 0:
        return None
    try:
        field = table.find(data, start, stop, TRACEPARENT)
        return parent_of(table.text_of(data, field) or b"") if field is not None else None
    except Fault:
        return UNREADABLE


def parent_of(value: bytes) -> Parent:
    """Return the span that a value of `traceparent` names, or UNREADABLE."""
    found = _value(value)
    if found is None:
        return UNREADABLE
    version, trace_id, span_id, flags = found.groups()
    parent = Parent(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & 1))
    is_valid = parent.trace_id and parent.span_id and (version != b"00" or len(value) == _LENGTH)
    return parent if is_valid else UNREADABLE


def field_of(trace_id: int, span_id: int) -> bytes:
    """Return the header `traceparent` of a span that is recorded, as a field of a headers table."""
    return table.text_field(TRACEPARENT, f"00-{trace_id:032x}-{span_id:016x}-01".encode())
