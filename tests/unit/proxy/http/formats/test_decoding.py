"""JSON text, decoded or not: how much of it is no string, and what is said where it is wrong."""

import json
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.http.formats.decoding import MOST_STRUCTURE, DecodingError, Structure, decode_json, exceeds


def outside(text: str) -> int:
    """Characters outside strings, one by one."""
    count, inside, escaped = 0, False, False
    for c in text:
        if escaped:
            escaped = False
        elif c == "\\":
            escaped = True
        elif c == '"':
            inside = not inside
        elif not inside:
            count += 1
    return count


WRITTEN = st.recursive(st.none() | st.integers() | st.text('a"\\\nß😀'), lambda inner: st.lists(inner, max_size=5))


@given(WRITTEN.map(json.dumps), st.lists(st.integers(0, 1000), max_size=8))
def test_what_lies_outside_strings_in_any_pieces(text: str, places: list[int]) -> None:
    structure = Structure(1 << 30)
    for a, b in pairwise(sorted({0, len(text), *(place % (len(text) + 1) for place in places)})):
        structure.add(text[a:b])
    assert structure.size == outside(text)


@pytest.mark.parametrize("escape", ["", "\\n", '\\"', "\\\\", '\\\\\\"'])
def test_long_strings_are_no_structure(escape: str) -> None:
    text = json.dumps({"a": "x"})[:-3] + (escape or "y") * 1_000_000 + '"}'
    assert not exceeds(text)
    assert exceeds(text[:-1] + "," * MOST_STRUCTURE)


def test_just_the_most() -> None:
    text = '["xyz"' + " " * (MOST_STRUCTURE - 2) + "]"
    assert not exceeds(text)
    assert decode_json(text.encode()) == ["xyz"]
    with pytest.raises(DecodingError, match=r"^has more than 262144 characters outside its strings$") as raised:
        decode_json(b" " + text.encode())
    assert raised.value.too_large


def test_many_small_values_are_not_decoded() -> None:
    body = b"[" + b"{}," * (5 << 20) + b"1]"
    tracemalloc.start()
    try:
        with pytest.raises(DecodingError):
            decode_json(body)
        assert tracemalloc.get_traced_memory()[1] < 2 * len(body)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", r"Expecting value: line 1 column 1 \(char 0\)"),
        (b"\xff", "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
        (b"-Infinity", "-Infinity is not JSON"),
        (b"[" * 99_999, "nested too deeply"),
        (b"[" + b"7" * 5000 + b"]", "a number is too long"),
    ],
)
def test_what_is_wrong(body: bytes, words: str) -> None:
    with pytest.raises(DecodingError, match=f"^{words}$") as raised:
        decode_json(body)
    assert not raised.value.too_large
