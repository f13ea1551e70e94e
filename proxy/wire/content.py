"""Content headers (AMQP section 4.2.6.1): how stamps are put in and taken out, and the values that exchanges hash.

A publish that this sidecar routes is stamped with three headers: the exchange and the routing key that it was published
with, and its ring id, by which a message that comes back is known.

Where a function takes `start` and `end`, these are the offsets of a header frame's payload and of its end octet.
"""

# mypyc: compiled

from collections.abc import Collection
from typing import Final, NamedTuple

from proxy.wire import table
from proxy.wire.frames import SYNTAX_ERROR, U16, U32, U64, Fault, short_string, u32, u64
from ring.hashed import HashedValue

STAMP_EXCHANGE: Final = b"x-ring-exchange"
STAMP_KEY: Final = b"x-ring-routing-key"
STAMP_ID: Final = b"x-ring-id"
STAMPS: Final = frozenset({STAMP_EXCHANGE, STAMP_KEY, STAMP_ID})
"""The names of the headers that this sidecar adds."""
COPIES: Final = frozenset({b"CC", b"BCC"})
"""The headers of sender-selected distribution, for which RabbitMQ sends copies to other queues."""
STAMPS_AND_COPIES: Final = STAMPS | COPIES
"""Headers that a message to a queue must not carry on: the default exchange heeds CC and BCC, hash exchanges do not."""

CONTENT_TYPE: Final = 1 << 15
CONTENT_ENCODING: Final = 1 << 14
HEADERS: Final = 1 << 13

FLAGS: Final = 12
"""The offset of the property flags in a payload, after class, weight and body size."""
_FIRST: Final = 14
"""The offset of the first property, after one word of flags."""

_AFTER_HEADERS: Final = (
    ("delivery_mode", 1 << 12, 1),
    ("priority", 1 << 11, 1),
    ("correlation_id", 1 << 10, 0),
    ("reply_to", 1 << 9, 0),
    ("expiration", 1 << 8, 0),
    ("message_id", 1 << 7, 0),
    ("timestamp", 1 << 6, 8),
)
"""Name, flag and size in bytes (0: a short string) of the properties after the headers, to the last hashed one."""

_SIZES: Final = (
    (CONTENT_TYPE, 0),
    (CONTENT_ENCODING, 0),
    (HEADERS, 0),
    *((flag, size) for _, flag, size in _AFTER_HEADERS),
    *((1 << bit, 0) for bit in (5, 4, 3, 2)),
)
"""Flag and size in bytes (0: by its own length) of every property, in the order on the wire."""

STAMP_ID_FIELD: Final = bytes((len(STAMP_ID),)) + STAMP_ID + b"l"
"""The field of the ring id up to its value, which is a 64-bit integer."""

MARKER: Final = b"x-ring-marker"
"""The header of a message that marks the end of a shard's generation; its value is that generation's number."""

DELIVERY_COUNTS: Final = frozenset({b"x-acquired-count", b"x-delivery-count"})
"""The headers in which a quorum queue says how often it has delivered a message."""

_LONG_STRING: Final = ord("S")
_BYTE_ARRAY: Final = ord("x")
"""The types of a value that is text."""

UNMARKED: Final = 50
"""The lowest bit of a ring id from which on all are the nonce's; the mark of where the message went lies below."""
_DISOWNED: Final = 1 << 62
"""The bit of a ring id that is changed so that its nonce is no channel's."""


def stamp_of_exchange(exchange: bytes) -> bytes:
    """Return the bytes with which the stamps of all publishes to an exchange begin.

    After them come the routing key as a long string, STAMP_ID_FIELD and the ring id's eight bytes.
    """
    return table.text_field(STAMP_EXCHANGE, exchange) + bytes((len(STAMP_KEY),)) + STAMP_KEY + b"S"


def body_size(data: bytes, start: int) -> int:
    """Return the bytes of the body that follows a content header. Raises IndexError where the data ends before."""
    return u64(data, start + 4)


def headers_at(data: bytes, start: int, end: int) -> tuple[int, int]:
    """Return the property flags, and the offset where the headers table is or would go. Raises Fault 502."""
    at = start + _FIRST
    if at > end:
        raise Fault(SYNTAX_ERROR, "a content header stops before its property flags")
    flags = word = data[start + FLAGS] << 8 | data[start + FLAGS + 1]
    while word & 1:  # the lowest bit says that one more word of flags follows
        if at + 2 > end:
            raise Fault(SYNTAX_ERROR, "a content header's property flags run past its frame")
        word = data[at] << 8 | data[at + 1]
        at += 2
    if flags & CONTENT_TYPE:
        at += data[at] + 1 if at < end else end
    if flags & CONTENT_ENCODING:
        at += data[at] + 1 if at < end else end
    if at > end:
        raise Fault(SYNTAX_ERROR, "a short string runs past its frame")
    return flags, at


def table_at(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return where the fields of the table at `at` begin and stop. Raises Fault 502 if it runs past `end`."""
    if at + 4 <= end:
        start = at + 4
        stop = start + u32(data, at)
        if stop <= end:
            return start, stop
    raise Fault(SYNTAX_ERROR, "the headers table is longer than its frame")


def stamped(data: bytes, start: int, end: int, entries: bytes, cut: Collection[bytes]) -> tuple[bytes, bytes]:
    """Return the payload with `entries` as its first headers, without those named in `cut`, and those that were cut.

    Raises Fault 502 for a payload that cannot be read that far.
    """
    at, first, stop = parts(data, start, end)
    rest, removed = without(data, first, stop, cut)
    flags = bytes((data[start + FLAGS] | HEADERS >> 8,))
    size = U32.pack(len(entries) + len(rest))
    before = data[start : start + FLAGS], flags, data[start + FLAGS + 1 : at]
    return b"".join((*before, size, entries, rest, data[stop:end])), removed


def parts(data: bytes, start: int, end: int) -> tuple[int, int, int]:
    """Return where the headers table is or would go, and where its fields begin and stop. Raises Fault 502."""
    flags, at = headers_at(data, start, end)
    if not flags & HEADERS:
        return at, at, at
    first, stop = table_at(data, at, end)
    return at, first, stop


def without(data: bytes, first: int, stop: int, cut: Collection[bytes]) -> tuple[bytes, bytes]:
    """Return the fields of a headers table without those named in `cut`, and those that were cut. Raises Fault 502.

    `cut` may hold stamps and CC and BCC only: a table without such bytes is not walked.
    """
    if first == stop or (data.find(b"x-ring-", first, stop) < 0 and data.find(b"CC", first, stop) < 0):
        return data[first:stop], b""
    return table.without(data, first, stop, cut)


class Stamps(NamedTuple):
    """The stamps of a returned message: the exchange and key of its publish, and its ring id."""

    exchange: bytes
    routing_key: bytes
    ring_id: int


def stamps_in(data: bytes, start: int, end: int) -> Stamps | None:
    """Return the stamps of a content header; None if one is missing or cannot be read: the message is not ours then.

    They are looked for by name, since RabbitMQ 4.3.6 sorts the table (observed).
    """
    try:
        flags, at = headers_at(data, start, end)
        if not flags & HEADERS:
            return None
        found = {field.name: field for field in table.fields(data, *table_at(data, at, end)) if field.name in STAMPS}
    except Fault:
        return None
    if len(found) < len(STAMPS) or found[STAMP_ID].kind != ord("l"):
        return None
    exchange = table.text_of(data, found[STAMP_EXCHANGE])
    routing_key = table.text_of(data, found[STAMP_KEY])
    if exchange is None or routing_key is None:
        return None
    return Stamps(exchange, routing_key, u64(data, found[STAMP_ID].value))


def origin_in(data: bytes, start: int, end: int) -> tuple[bytes, bytes]:
    """Return the exchange and routing key of the publish by the stamps of a content header; both empty without them.

    Every delivery to a member of a group is looked at, so the table is walked here without an object for each field.
    """
    exchange: bytes | None = None
    routing_key: bytes | None = None
    try:
        flags, at = headers_at(data, start, end)
        if not flags & HEADERS:
            return b"", b""
        at, stop = table_at(data, at, end)
        while at < stop:
            value, after = table.extent(data, at, stop)
            kind = data[value - 1]
            if kind in (_LONG_STRING, _BYTE_ARRAY):
                name = data[at + 1 : value - 1]
                if exchange is None and name == STAMP_EXCHANGE:
                    exchange = data[value + 4 : after]
                elif routing_key is None and name == STAMP_KEY:
                    routing_key = data[value + 4 : after]
                if exchange is not None and routing_key is not None:
                    return exchange, routing_key
            at = after
    except Fault:
        pass
    return b"", b""


def times_redelivered(data: bytes, start: int, end: int) -> int:
    """Return how many times a quorum queue had delivered a message before; 0 if its content header does not say.

    RabbitMQ counts each delivery in x-acquired-count, from 4.3 on, and in x-delivery-count those that count towards
    the queue's delivery limit.
    """
    try:
        flags, at = headers_at(data, start, end)
        found = table.fields(data, *table_at(data, at, end)) if flags & HEADERS else ()
        return max((table.integer_of(data, field) for field in found if field.name in DELIVERY_COUNTS), default=0)
    except Fault:
        return 0


PROBE: Final = b"x-ring-probe"
"""The header of a message that is to come back, since the lane that it was sent to leads nowhere any more."""


def is_probe(data: bytes, start: int, end: int) -> bool:
    """Return whether a content header has a PROBE, and is of no message that a sidecar has published by a ring."""
    if data.find(PROBE, start, end) < 0:
        return False
    try:
        _, first, stop = parts(data, start, end)
        is_ringed = table.find(data, first, stop, STAMP_ID) is not None
        return not is_ringed and table.find(data, first, stop, PROBE) is not None
    except Fault:
        return False


def is_marker(data: bytes, start: int, end: int) -> bool:
    """Return whether a content header has an integer as MARKER; not of a stamped message, which a ring has routed."""
    if data.find(MARKER, start, end) < 0:
        return False
    try:
        _, first, stop = parts(data, start, end)
        field = table.find(data, first, stop, MARKER)
        if field is None or not table.is_integer(field):
            return False
        return table.find(data, first, stop, STAMP_EXCHANGE) is None
    except Fault:
        return False


def ring_id_in(data: bytes, start: int, end: int) -> int | None:
    """Return the ring id of a content header; None if there is none, or it cannot be read."""
    try:
        flags, at = headers_at(data, start, end)
        field = table.find(data, *table_at(data, at, end), STAMP_ID) if flags & HEADERS else None
    except Fault:
        return None
    return u64(data, field.value) if field is not None and field.kind == ord("l") else None


def disowned(data: bytes, i: int, end: int, nonce: int) -> bytes | None:
    """Return the content header frame from `i` to `end` with each ring id of a channel's incarnation made nobody's.

    A client may forward what it has consumed, with all headers. Without this change a copy that comes back could not be
    told from the message that the id was made for. `nonce` is the channel's, in place (`channel.Channel.nonce`).
    Returns None if the header has no such id, or cannot be read.
    """
    if data.find(STAMP_ID_FIELD, i, end) < 0:
        return None
    try:
        flags, at = headers_at(data, i + 7, end - 1)
        found = list(table.fields(data, *table_at(data, at, end - 1))) if flags & HEADERS else []
    except Fault:
        return None
    frame = data[i:end]
    for field in found:
        if field.name == STAMP_ID and field.kind == ord("l"):
            ring_id = u64(data, field.value)
            if ring_id >> UNMARKED == nonce >> UNMARKED:
                at = field.value - i
                frame = frame[:at] + U64.pack(ring_id ^ _DISOWNED) + frame[at + 8 :]
    return frame if frame != data[i:end] else None


def unstamped(
    data: bytes, start: int, end: int, put_back: bytes, had_headers: bool, stamps: Collection[bytes] = STAMPS
) -> bytes:
    """Return a payload as the client sent it: without `stamps`, and with the fields that were cut, `put_back`.

    `had_headers` says whether the client sent a headers table; an empty one is kept then.
    """
    flags, at = headers_at(data, start, end)
    if not flags & HEADERS:
        # It went out unstamped, so all of its headers were cut.
        kept, stop = b"", at
    else:
        first, stop = table_at(data, at, end)
        kept, _ = table.without(data, first, stop, stamps)
    entries = kept + put_back
    flags = flags | HEADERS if had_headers or entries else flags & ~HEADERS
    head = data[start : start + FLAGS] + U16.pack(flags) + data[start + _FIRST : at]
    return head + (U32.pack(len(entries)) + entries if flags & HEADERS else b"") + data[stop:end]


def has_copies(data: bytes, start: int, end: int) -> bool:
    """Return whether a payload has a header CC or BCC: RabbitMQ routes it by their keys, too. Raises Fault 502."""
    _, first, stop = parts(data, start, end)
    return data.find(b"CC", first, stop) >= 0 and any(field.name in COPIES for field in table.fields(data, first, stop))


def hashed_value(hashed: HashedValue, name: bytes, data: bytes, start: int, end: int) -> bytes | None:
    """Return the bytes to hash of a header or property; None if there are none. `name` is `hashed.name` encoded.

    Raises Fault 502 for a payload that cannot be read that far.
    """
    flags, at = headers_at(data, start, end)
    if flags & HEADERS:
        first, stop = table_at(data, at, end)
        if hashed.source == "header":
            field = table.find(data, first, stop, name)
            return table.hashed_bytes(data, field) if field else None
        at = stop
    return _property(hashed.name, flags, data, at, end) if hashed.source == "property" else None


def properties(data: bytes, start: int, end: int) -> dict[int, bytes]:
    """Return the encoded value of each property of a payload, by its flag. Raises Fault 502."""
    flags, _ = headers_at(data, start, end)
    if flags & 1:
        raise Fault(SYNTAX_ERROR, "a content header has more property flags than the class basic")
    at = start + _FIRST
    found: dict[int, bytes] = {}
    for flag, size in _SIZES:
        if flags & flag:
            stop = at + size
            if not size:
                stop = table_at(data, at, end)[1] if flag == HEADERS else short_string(data, at, end)[1]
            if stop > end:
                raise Fault(SYNTAX_ERROR, "a property runs past its frame")
            found[flag] = data[at:stop]
            at = stop
    return found


def _property(wanted: str, flags: int, data: bytes, at: int, end: int) -> bytes | None:
    """Return the bytes to hash of a property that comes behind the headers, from `at` on; None if it is not set.

    Raises Fault 502.
    """
    for name, flag, size in _AFTER_HEADERS:
        if not flags & flag:
            continue
        if size:
            value, stop = data[at : at + size], at + size
            if stop > end:
                raise Fault(SYNTAX_ERROR, f"the property {name} runs past its frame")
        else:
            value, stop = short_string(data, at, end)
        if name == wanted:
            return str(U64.unpack(value)[0]).encode() if size else value
        at = stop
    return None
