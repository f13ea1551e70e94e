"""Dead letters as they are read, and as they are published again."""

import pytest

from proxy.redrive.letter import MAYBE_TWICE, deliveries_of, origin_of, redriven
from proxy.wire import table
from proxy.wire.frames import U32, Fault

TELLING = (
    table.text_field(b"x-ring-group", b"orders"),
    table.text_field(b"x-ring-shard", b"orders.3"),
    table.integer_field(b"x-ring-attempt", 5),
    table.text_field(b"x-ring-reason", b"retry-limit"),
)
COUNTED = (
    table.text_field(b"x-ring-exchange", b"dead"),
    table.text_field(b"x-ring-routing-key", b"key"),
    table.integer_field(b"x-ring-id", 7),
    table.integer_field(b"x-delivery-count", 3),
    table.integer_field(b"x-acquired-count", 4),
    table.text_field(b"x-first-death-queue", b"orders.3"),
    b"\x07x-deathA\0\0\0\0",
)
TWICE = b"\x12x-ring-maybe-twicet\1"


def payload(*fields: bytes, flags: int = 1 << 13 | 1 << 12, rest: bytes = b"\2") -> bytes:
    """Return the payload of a content header with these headers and a delivery mode."""
    told = b"".join(fields)
    headers = U32.pack(len(told)) + told if flags & 1 << 13 else b""
    return b"\0\x3c\0\0" + (5).to_bytes(8) + flags.to_bytes(2) + headers + rest


def test_only_the_publishers_headers_stay_as_the_bytes_that_they_were() -> None:
    # Neither the name nor the value is UTF-8, and a byte array is another type than text.
    mine = b"\2\xff\xfex\0\0\0\2\xc3\x28", table.integer_field(b"x-retry-count", 3), b"\1fd" + bytes(8)
    letter = payload(mine[0], *TELLING, mine[1], *COUNTED, TWICE, mine[2])
    assert redriven(letter, maybe_twice=False) == payload(*mine)
    assert redriven(letter, maybe_twice=True).count(MAYBE_TWICE) == 1
    assert redriven(letter, maybe_twice=True) == payload(*mine, TWICE)


def test_a_message_that_had_no_headers_gets_none() -> None:
    assert redriven(payload(*TELLING), maybe_twice=False) == payload(flags=1 << 12)


def test_the_origin_of_a_letter_is_known_by_both_headers() -> None:
    assert origin_of(payload(*COUNTED, *TELLING)) == (b"orders", b"orders.3")
    assert origin_of(payload(*TELLING[:1])) is None
    assert origin_of(payload(table.integer_field(b"x-ring-group", 1), TELLING[1])) is None
    assert origin_of(payload(flags=1 << 12)) is None
    for end in range(14, 30):
        assert origin_of(payload(*TELLING)[:end]) is None


def test_deliveries_are_what_the_queue_has_counted() -> None:
    assert deliveries_of(payload(*COUNTED)) == 4
    assert deliveries_of(payload(*TELLING)) == 0


def test_a_header_that_cannot_be_read_is_a_fault() -> None:
    with pytest.raises(Fault):
        redriven(payload(*TELLING)[:20], maybe_twice=False)
