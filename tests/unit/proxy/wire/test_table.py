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
from ring.hashed import canonical
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


def array(*elements: bytes) -> bytes:
    return b"A" + pack(">I", len(b"".join(elements))) + b"".join(elements)


def nested(*fields: bytes) -> bytes:
    return b"F" + pack(">I", len(b"".join(fields))) + b"".join(fields)


def text(value: bytes) -> bytes:
    return b"S" + pack(">I", len(value)) + value


def hashed(value: bytes, around: bytes = b"") -> bytes | None:
    """Return what is hashed of a header, of which the type and the value are given as they are on the wire."""
    data = around + entry(b"h", value[:1], value[1:]) + around
    field = table.find(data, len(around), len(data) - len(around), b"h")
    assert field is not None
    return table.hashed_bytes(data, field)


@pytest.mark.parametrize(
    ("encodings", "key"),
    [
        ([b"b\7", b"B\7", b"s\0\7", b"u\0\7", b"I\0\0\0\7", b"i\0\0\0\7", b"l" + pack(">q", 7)], b"7"),
        ([b"L" + pack(">Q", 7), b"T" + pack(">Q", 7), b"d" + pack(">d", 7), b"f" + pack(">f", 7), text(b"7")], b"7"),
        ([b"D\0\0\0\0\7", b"D\2" + pack(">i", 700), array(b"b\7", b"b\x08"), array(b"d" + pack(">d", 7))], b"7"),
        ([b"I" + pack(">i", -3), b"d" + pack(">d", -3), b"D\1" + pack(">i", -30)], b"-3"),
        ([b"d" + pack(">d", 19.99), b"D\2" + pack(">i", 1999), b"D\3" + pack(">i", 19990), text(b"19.99")], b"19.99"),
        ([b"f" + pack(">f", 0.1), b"d" + pack(">d", 0.10000000149011612)], b"0.10000000149011612"),
        ([b"D\xff" + pack(">i", 1)], b"0." + b"0" * 254 + b"1"),
        ([b"t\1", b"t\2", text(b"true")], b"true"),
        ([b"t\0", array(b"t\0", b"V")], b"false"),
        ([text(b"\xff"), b"x" + text(b"\xff")[1:], array(text(b"\xff"))], b"\xff"),
        ([array(), array(array(), b"V")], b"[]"),
        ([nested(), array(nested())], b"{}"),
        ([array(array(b"b\7", b"V", text(b"7")))], b'[7,null,"7"]'),
        (
            [
                nested(long_string(b"b", b"x"), entry(b"a", b"I", pack(">i", 7))),
                nested(entry(b"a", b"d", pack(">d", 7)), long_string(b"b", b"x"), long_string(b"a", b"second")),
            ],
            b'{"a":7,"b":"x"}',
        ),
    ],
)
def test_values_that_are_equal_are_hashed_alike_whatever_their_type(encodings: list[bytes], key: bytes) -> None:
    for value in encodings:
        assert [hashed(value), hashed(value, b"\xff\1\0")] == [key, key]


@pytest.mark.parametrize("value", [b"V", array(b"V"), array(b"V", b"b\7")])
def test_nothing_has_no_value_to_hash(value: bytes) -> None:
    assert hashed(value) is None


@given(values)
@settings(deadline=None)
def test_a_header_of_any_type_is_hashed_as_its_value(value: object) -> None:
    """The canonical form of what pamqp encodes, which knows nothing of ringproxy, is that of the value itself."""
    data = encode.field_table({"h": value})[4:]  # type: ignore[dict-item]
    (field,) = table.fields(data, 0, len(data))
    if field.kind in b"AF" and field.stop - field.value - 4 > table.HASHED_SIZE:
        return
    assert table.hashed_bytes(data, field) == canonical(as_on_the_wire(value))


def as_on_the_wire(value: object) -> object:
    """Return a value as AMQP has it: a float of pamqp's 32 bits, a point in time in seconds."""
    match value:
        case datetime():
            return int(value.timestamp())
        case bytearray():
            return bytes(value)
        case list():
            return [as_on_the_wire(each) for each in value]
        case dict():
            return {name: as_on_the_wire(each) for name, each in value.items()}
        case _:
            return value


def test_a_table_that_is_too_large_or_too_deep_has_no_value_to_hash() -> None:
    deepest, deeper = b"b\7", b"b\7"
    for _ in range(table.HASHED_DEPTH):
        deepest = nested(entry(b"a", deepest[:1], deepest[1:]))
    deeper = nested(entry(b"a", deepest[:1], deepest[1:]))
    assert hashed(deepest) == b'{"a":' * table.HASHED_DEPTH + b"7" + b"}" * table.HASHED_DEPTH
    assert hashed(deeper) is None
    largest = nested(long_string(b"a", bytes(table.HASHED_SIZE - 7)))
    larger = nested(long_string(b"a", bytes(table.HASHED_SIZE - 6)))
    assert hashed(largest) is not None
    assert [hashed(larger), hashed(array(larger))] == [None, None]
    # An array is hashed by its first element, however many others it has.
    assert hashed(array(b"b\7", *[b"V"] * 100_000)) == b"7"
    assert hashed(text(bytes(100_000))) == bytes(100_000)


def test_an_element_that_cannot_be_read_is_a_fault() -> None:
    for value in (array(b"z"), array(b"d\0"), nested(b"\1ad\0"), array(array(b"S\0\0\0\5abcd"))):
        with pytest.raises(Fault):
            hashed(value)
