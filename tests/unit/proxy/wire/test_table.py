"""Tables of any bytes: read as pamqp reads them, or a fault."""

import contextlib
from datetime import UTC, datetime
from decimal import Decimal
from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import encode

from proxy.wire import table
from proxy.wire.frames import Fault
from tests.properties import examples
from tests.unit.proxy.session.wire import entry, long_string

names = st.text(st.characters(max_codepoint=127), min_size=1, max_size=12)
values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False, width=32),
        st.text(max_size=20),
        st.binary(max_size=20).map(bytearray),
        st.just(Decimal("1.25")),
        st.just(datetime(2026, 11, 21, tzinfo=UTC)),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=3)),
    max_leaves=6,
)


@given(st.dictionaries(names, values, max_size=6), st.binary(max_size=9), st.data())
@settings(deadline=None)
def test_what_pamqp_encodes_is_walked_cut_and_found(
    fields: dict[str, object], around: bytes, data: st.DataObject
) -> None:
    encoded = encode.field_table(fields)[4:]  # type: ignore[arg-type]
    whole, start = around + encoded + around, len(around)
    stop = start + len(encoded)
    found = list(table.fields(whole, start, stop))
    assert [each.name.decode() for each in found] == sorted(fields)
    assert b"".join(whole[each.start : each.stop] for each in found) == encoded
    wanted = {name.encode() for name in data.draw(st.sets(st.sampled_from(sorted(fields) or ["none"])))}
    kept, cut = table.without(whole, start, stop, wanted)
    assert sorted(each.name for each in table.fields(cut, 0, len(cut))) == sorted(
        name for name in wanted if name.decode() in fields
    )
    assert len(kept) + len(cut) == len(encoded)
    for name in [*fields, "not there"]:
        one = table.find(whole, start, stop, name.encode())
        assert (one is not None) is (name in fields)


@given(st.binary(max_size=60), st.integers(0, 60), st.integers(0, 60))
@examples(400)
def test_any_bytes_are_entries_or_a_fault(data: bytes, start: int, stop: int) -> None:
    stop = min(stop, len(data))
    at = start
    with contextlib.suppress(Fault):
        for each in table.fields(data, start, stop):
            assert each.start == at
            assert each.start < each.value <= each.stop <= stop
            at = each.stop
        assert at >= stop


def test_the_first_of_two_entries_counts() -> None:
    data = long_string(b"other", b"0") + long_string(b"h", b"1") + long_string(b"h", b"2")
    found = table.find(data, 0, len(data), b"h")
    assert found is not None
    assert table.text_of(data, found) == b"1"
    assert table.find(data, 0, len(data), b"H") is None


@pytest.mark.parametrize(
    ("kind", "value", "size"),
    [(b"l", bytes(8), 8), (b"D", bytes(5), 5), (b"V", b"", 0), (b"f", bytes(4), 4), (b"A", pack(">I", 3) + b"abc", 7)],
)
def test_a_value_has_its_types_size(kind: bytes, value: bytes, size: int) -> None:
    data = entry(b"n", kind, value)
    (one,) = table.fields(data + b"\xff", 0, len(data))
    assert (one.stop - one.value, one.kind) == (size, kind[0])
    assert table.text_of(data, one) is None
    for short in range(1, len(data)):
        with pytest.raises(Fault):
            list(table.fields(data, 0, short))
