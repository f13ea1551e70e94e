"""Content headers and field tables: stamps put in and taken out, and the values that exchanges hash.

It raises only `Fault`. A header that is stamped and unstamped is what it was. Nothing outside the header is read.
"""

from contextlib import suppress

from pamqp import commands

from proxy.wire import content, table
from proxy.wire.content import HEADERS, STAMP_ID_FIELD, STAMPS, STAMPS_AND_COPIES
from proxy.wire.frames import U32, U64, Fault
from ring.hashed import HASHED_PROPERTIES, HashedValue
from tests.unit.proxy.session.wire import entry, headers, long_string, properties

_ADDED = content.stamp_of_exchange(b"ring") + U32.pack(1) + b"k" + STAMP_ID_FIELD + U64.pack(7)

_HASHED = [HashedValue("header", "h"), *(HashedValue("property", name) for name in sorted(HASHED_PROPERTIES))]


def check(data: bytes) -> None:
    """Only Fault is raised; what was stamped is, unstamped again, what it was; nothing outside the data is read."""
    before, after = data[:1] * 5, data[-1:] * 5
    framed, start, end = before + data + after, len(before), len(before) + len(data)
    for hashed in _HASHED:
        with suppress(Fault):
            value = content.hashed_value(hashed, b"h", framed, start, end)
            assert value is None or value in data or value.lstrip(b"-").isdigit() or hashed.source == "header"
            # The longest canonical form is that of a decimal of 6 bytes with 255 places.
            assert value is None or len(value) <= 44 * len(data)
    found = content.stamps_in(framed, start, end)
    assert found is None or (found.exchange in data and found.routing_key in data)
    with suppress(Fault):
        _round_trip(data, framed, start, end)


def _round_trip(data: bytes, framed: bytes, start: int, end: int) -> None:
    flags, at = content.headers_at(framed, start, end)
    names = []
    if flags & HEADERS:
        first, stop = content.table_at(framed, at, end)
        names = [found.name for found in table.fields(framed, first, stop)]
    for cut in (STAMPS, STAMPS_AND_COPIES):
        stamped, removed = content.stamped(framed, start, end, _ADDED, cut)
        assert content.stamps_in(stamped, 0, len(stamped)) == content.Stamps(b"ring", b"k", 7)
        assert len(stamped) <= len(data) + len(_ADDED) + 4
        assert (not removed) == (not cut & set(names)) or b"x-ring-" in data or b"CC" in data
        back = content.unstamped(stamped, 0, len(stamped), b"", bool(flags & HEADERS))
        if not set(names) & STAMPS_AND_COPIES:
            assert back == data
        # The bytes that were cut go back at the table's end.
        whole = content.unstamped(stamped, 0, len(stamped), removed, bool(flags & HEADERS))
        assert len(whole) == len(data)


def seeds() -> list[bytes]:
    """Headers as clients send them."""
    full = commands.Basic.Properties(
        content_type="application/json",
        content_encoding="gzip",
        headers={"h": "v", "n": 5, "t": {"a": [1, "x", 2.5, None, True]}, "CC": ["q"]},
        delivery_mode=2,
        priority=3,
        correlation_id="c",
        reply_to="r",
        expiration="60000",
        message_id="m",
        message_type="t",
        app_id="a",
    )
    tables = [
        long_string(b"h", b"v") + entry(b"i", b"l", U64.pack(1 << 60)),
        entry(b"h", b"I", b"\xff\xff\xff\xfe"),
        _ADDED + long_string(b"BCC", b"x"),
        b"".join(entry(b"h", bytes((kind,)), b"\1" * 8) for kind in b"lLdT"),
        b"".join(entry(b"h", bytes((kind,)), b"\1") for kind in b"tbB") + entry(b"v", b"V", b""),
        entry(b"h", b"s", b"\1\1") + entry(b"u", b"u", b"\1\1") + entry(b"f", b"f", b"\1" * 4),
        entry(b"x", b"x", U32.pack(2) + b"ab") + entry(b"D", b"D", b"\1" * 5),
        entry(b"h", b"D", b"\xff\0\0\0\1") + entry(b"d", b"d", b"\1" * 8),
        entry(b"h", b"F", U32.pack(12) + entry(b"b", b"d", b"\1" * 8) + b"\1"),
        entry(b"h", b"A", U32.pack(14) + b"F" + U32.pack(9) + entry(b"a", b"A", U32.pack(1) + b"V")),
    ]
    made = [properties(1, 5, full), properties(1, 0, commands.Basic.Properties()), *(headers(1, 9, t) for t in tables)]
    return [one[7:-1] for one in made]
