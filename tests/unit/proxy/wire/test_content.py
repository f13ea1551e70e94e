"""Stamps in content headers: put in, read and taken out, in headers of any form."""

import contextlib
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire import content
from proxy.wire.content import MARKER, STAMP_ID_FIELD, STAMPS, STAMPS_AND_COPIES, Stamps, stamp_of_exchange
from proxy.wire.frames import Fault
from ring.hashed import HashedValue
from tests.unit.proxy.session.wire import entry, long_string, short

KEY = b"key\xff"
RING_ID = 1 << 62 | 5
OURS = stamp_of_exchange(b"x") + pack(">I", len(KEY)) + KEY + STAMP_ID_FIELD + pack(">Q", RING_ID)


@st.composite
def payloads(draw: st.DrawFn) -> tuple[bytes, list[bytes] | None]:
    """A content header's payload of any form, and the entries of its headers."""
    words = [draw(st.integers(0, 0xFFFF)) & ~1 for _ in range(draw(st.integers(1, 3)))]
    words = [*(word | 1 for word in words[:-1]), words[-1]]
    out = pack(">HHQ", 60, 0, draw(st.integers(0, 2**64 - 1))) + b"".join(pack(">H", word) for word in words)
    for flag in (1 << 15, 1 << 14):
        out += short(draw(st.binary(max_size=255))) if words[0] & flag else b""
    if not words[0] & 1 << 13:
        return out + draw(st.binary(max_size=20)), None
    entries = draw(
        st.lists(
            st.one_of(
                st.builds(long_string, st.binary(max_size=12), st.binary(max_size=12)),
                st.sampled_from(
                    [long_string(b"x-ring-id", b"old"), entry(b"CC", b"A", pack(">I", 0)), entry(b"b", b"V", b"")]
                ),
            ),
            max_size=5,
        )
    )
    table = b"".join(entries)
    return out + pack(">I", len(table)) + table + draw(st.binary(max_size=20)), entries


def named(one: bytes) -> bytes:
    return one[1 : 1 + one[0]]


@given(payloads(), st.binary(max_size=9))
def test_stamps_go_in_and_come_out(payload: tuple[bytes, list[bytes] | None], around: bytes) -> None:
    data, entries = payload
    whole, start = around + data + around, len(around)
    stamped, cut = content.stamped(whole, start, start + len(data), OURS, STAMPS_AND_COPIES)
    assert cut == b"".join(one for one in entries or [] if named(one) in STAMPS_AND_COPIES)
    assert stamped[:12] == data[:12]
    assert len(stamped) == len(data) + len(OURS) - len(cut) + (4 if entries is None else 0)
    whole = around + stamped + around
    assert content.stamps_in(whole, start, start + len(stamped)) == Stamps(b"x", KEY, RING_ID)
    back = content.unstamped(whole, start, start + len(stamped), cut, entries is not None)
    kept = [one for one in entries or [] if named(one) not in STAMPS_AND_COPIES]
    expected = data.replace(b"".join(entries or []), b"".join(kept) + cut, 1) if entries else data
    assert back == expected


def test_only_what_is_named_is_cut() -> None:
    table = entry(b"CC", b"A", pack(">I", 0)) + long_string(b"x-ring-id", b"old")
    data = pack(">HHQHI", 60, 0, 0, 1 << 13, len(table)) + table
    stamped, cut = content.stamped(data, 0, len(data), b"", STAMPS)
    assert (stamped[18:], cut) == (table[: -len(cut)], long_string(b"x-ring-id", b"old"))


@pytest.mark.parametrize(
    "table",
    [
        b"",
        OURS[: -len(STAMP_ID_FIELD) - 8],
        OURS.replace(b"idl", b"idT"),
        OURS.replace(b"keyS\0\0\0\x04" + KEY, b"keyI" + bytes(4)),
        entry(b"x-ring-exchange", b"V", b"") + OURS[len(long_string(b"x-ring-exchange", b"x")) :],
        OURS + b"\x09",
    ],
)
def test_headers_without_all_three_are_none_of_ours(table: bytes) -> None:
    data = pack(">HHQHI", 60, 0, 0, 1 << 13, len(table)) + table
    assert content.stamps_in(data, 0, len(data)) is None
    assert content.stamps_in(pack(">HHQH", 60, 0, 0, 0), 0, 14) is None


ENDING = entry(MARKER, b"I", pack(">i", 1))


@pytest.mark.parametrize(
    ("table", "is_marker"),
    [
        pytest.param(ENDING, True, id="alone"),
        pytest.param(long_string(b"a", b"x-ring-marker") + ENDING + entry(b"b", b"V", b""), True, id="among others"),
        pytest.param(entry(MARKER, b"T", pack(">Q", 1)), False, id="a time"),
        pytest.param(long_string(MARKER, b"1"), False, id="a text"),
        pytest.param(long_string(MARKER, b"1") + ENDING, False, id="the first of two counts"),
        pytest.param(long_string(b"a", ENDING), False, id="in a text"),
        pytest.param(OURS + ENDING, False, id="a message that a ring has routed"),
        pytest.param(ENDING[:-1], False, id="cut"),
        pytest.param(ENDING + b"\x09", False, id="a broken field behind it"),
        pytest.param(b"", False, id="nothing"),
    ],
)
def test_which_headers_make_a_marker(table: bytes, is_marker: bool) -> None:
    data = pack(">HHQHI", 60, 0, 0, 1 << 13, len(table)) + table
    assert content.is_marker(b"x" + data + b"\xce", 1, 1 + len(data)) is is_marker
    assert not content.is_marker(pack(">HHQH", 60, 0, 0, 0) + ENDING, 0, 14 + len(ENDING))


@given(st.binary(max_size=60), st.integers(0, 20))
def test_any_bytes_are_read_or_a_fault(data: bytes, start: int) -> None:
    for hashed in (
        HashedValue("header", "h"),
        HashedValue("property", "timestamp"),
        HashedValue("property", "message_id"),
    ):
        for read in (
            lambda: content.stamped(data, start, len(data), OURS, STAMPS_AND_COPIES),
            lambda: content.stamps_in(data, start, len(data)),
            lambda hashed=hashed: content.hashed_value(hashed, b"h", data, start, len(data)),
        ):
            with contextlib.suppress(Fault):
                read()
