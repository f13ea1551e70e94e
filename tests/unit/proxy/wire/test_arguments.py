"""Arguments are read in their order, within their frame, whatever stands before and behind it."""

from collections.abc import Callable
from struct import error as StructError  # noqa: N812 - the standard library's exceptions begin small
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire.arguments import Arguments, broker_in
from proxy.wire.frames import CONNECTION_START, QUEUE_DECLARE, Fault, method_frame, shorted
from proxy.wire.table import text_field

FIELDS = pack(">BHIQ", 1, 2, 3, 4) + shorted(b"orders") + pack(">I", 3) + b"abc" + b"\7rest"


def arguments(data: bytes, before: bytes = b"", behind: bytes = b"", at: int = 0) -> Arguments:
    frame = method_frame(1, QUEUE_DECLARE, data)
    return Arguments(before + frame + behind, len(before), len(before) + len(frame), at)


@given(st.binary(max_size=30), st.binary(max_size=30))
def test_fields_are_read_in_their_order(before: bytes, behind: bytes) -> None:
    found = arguments(FIELDS, before, behind)
    assert (found.octet(), found.short(), found.long(), found.longlong()) == (1, 2, 3, 4)
    assert (found.short_string(), found.long_string(), found.bits()) == (b"orders", b"abc", 7)
    assert (found.read, found.rest, found.left) == (FIELDS[:-4], b"rest", 4)
    assert (found.octets(4), found.rest, found.left, found.bits()) == (b"rest", b"", 0, 0)


READS: dict[Callable[[Arguments], object], bytes] = {
    Arguments.octet: b"\1",
    Arguments.short: b"\0\1",
    Arguments.long: b"\0\0\0\1",
    Arguments.longlong: b"\0\0\0\0\0\0\0\1",
    Arguments.long_string: b"\0\0\0\2ab",
}


@pytest.mark.parametrize("read", READS)
def test_a_field_that_runs_past_its_frame_is_an_error(read: Callable[[Arguments], object]) -> None:
    whole = READS[read]
    for size in range(len(whole)):
        with pytest.raises(StructError):
            read(arguments(whole[:size], behind=whole))
    read(arguments(whole))


@pytest.mark.parametrize("data", [b"", b"\2", b"\2a"])
def test_a_short_string_that_runs_past_its_frame_is_a_fault(data: bytes) -> None:
    with pytest.raises(Fault, match="a short string runs past its frame"):
        arguments(data, behind=b"abc").short_string()


def test_what_is_passed_over_need_not_be_there() -> None:
    found = arguments(b"\0", at=2)
    assert (found.left, found.rest, found.bits()) == (-1, b"", 0)
    with pytest.raises(Fault):
        found.short_string()


@pytest.mark.parametrize(
    ("properties", "told"),
    [
        (text_field(b"version", b"4.3.6") + text_field(b"cluster_name", b"rabbit@here"), ("rabbit@here", (4, 3))),
        (text_field(b"version", b"3.10.8+dfsg"), (None, (3, 10))),
        (text_field(b"version", b"4.x"), (None, (0, 0))),
        (text_field(b"cluster_name", b"\xff") + text_field(b"version", b"5"), ("\ufffd", (0, 0))),
        (b"\x0ccluster_namet\1", (None, (0, 0))),
        (b"", (None, (0, 0))),
    ],
)
def test_the_broker_is_told_by_the_server_properties(
    properties: bytes, told: tuple[str | None, tuple[int, int]]
) -> None:
    frame = method_frame(0, CONNECTION_START, b"\0\x09" + pack(">I", len(properties)) + properties + b"behind")
    start = Arguments(frame, 0, len(frame))
    assert broker_in(start) == told
    assert start.rest == b"behind"
