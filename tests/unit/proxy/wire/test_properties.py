"""Properties and headers as bytes: what another library reads of them is what was given."""

from struct import pack
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pamqp import decode
from pamqp.commands import Basic

from proxy.wire import table
from proxy.wire.content import HEADERS, headers_at, table_at
from proxy.wire.properties import (
    HEADERS_FLAG,
    MOST_DEPTH,
    NAMES,
    PERSISTENT,
    Header,
    Properties,
    PropertyError,
    encoded,
    encoded_headers,
    encoded_short_string,
    utf8,
)
from tests.unit.proxy.session.wire import entry, properties_in

VALUES: dict[str, Any] = {
    "content_type": "text/plain; charset=é",
    "content_encoding": "gzip",
    "headers": {"a": 1},
    "delivery_mode": 1,
    "priority": 255,
    "correlation_id": "c" * 255,
    "reply_to": "",
    "expiration": 60_000,
    "message_id": "m",
    "timestamp": 1_700_000_000,
    "type": "t",
    "user_id": "u",
    "app_id": "ř",
}
"""One of each."""


def header_of(**values: object) -> Header:
    return Header.of(dict(encoded(name, value) for name, value in values.items()))


def read(header: Header, size: int = 0, stamps: bytes = b"") -> dict[str, Any]:
    """Return the properties as another library reads them, by AMQP's names."""
    properties = dict(properties_in(header.payload(size, stamps)))
    found = {name.replace("message_type", "type"): value for name, value in properties.items()}
    return {name: value for name, value in found.items() if value is not None and name != "cluster_id"}


def read_back(values: dict[str, object]) -> dict[str, Any]:
    found = read(header_of(**values))
    if "timestamp" in found:
        found["timestamp"] = int(found["timestamp"].timestamp())
    if "expiration" in found:
        found["expiration"] = int(found["expiration"])
    return found


# Properties.


def test_each_name_is_taken_and_no_other() -> None:
    known = {name.replace("message_type", "type") for name in Basic.Properties.attributes()}
    assert set(NAMES) == set(VALUES) == known - {"cluster_id"}
    for name in ("", "cluster_id", "delivery-mode", "nonsense"):
        with pytest.raises(KeyError):
            encoded(name, "x")


@given(st.sets(st.sampled_from(NAMES)))
@example(set(NAMES))
@example(set())
def test_any_properties_are_read_as_they_were_given(names: set[str]) -> None:
    values = {name: VALUES[name] for name in names}
    assert read_back(values) == {"headers": {}, **values}


@pytest.mark.parametrize(
    ("name", "value", "means"),
    [
        ("priority", "0", 0),
        ("priority", "255", 255),
        ("delivery_mode", "2", 2),
        ("delivery_mode", "01", 1),
        ("expiration", "0", 0),
        ("expiration", (1 << 32) - 1, (1 << 32) - 1),
        ("timestamp", "1700000000", 1_700_000_000),
        ("timestamp", 0, 0),
    ],
)
def test_numbers_may_be_text(name: str, value: object, means: int) -> None:
    assert read_back({name: value})[name] == means


def test_the_greatest_timestamp() -> None:
    assert encoded("timestamp", (1 << 63) - 1)[1] == b"\x7f" + b"\xff" * 7


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("priority", 256, "256 is not a whole number from 0 to 255"),
        ("priority", -1, "-1 is not"),
        ("priority", "-1", "'-1' is not"),
        ("priority", " 1", "' 1' is not"),
        ("priority", "1_0", "'1_0' is not"),
        ("priority", "٣", "is not a whole number"),
        ("priority", "", "'' is not"),
        ("priority", "9" * 5000, "is not a whole number"),
        ("priority", True, "True is not"),
        ("priority", 1.0, "1.0 is not"),
        ("priority", None, "None is not"),
        ("delivery_mode", 0, "0 is not a whole number from 1 to 2"),
        ("delivery_mode", 3, "3 is not"),
        ("expiration", 1 << 32, "4294967296 is not"),
        ("expiration", "soon", "'soon' is not"),
        ("timestamp", 1 << 63, "is not a whole number"),
        ("timestamp", "2024-01-01", "is not a whole number"),
        ("message_id", "é" * 128, "has 256 bytes, 255 are the most"),
        ("message_id", 5, "5 is not a string"),
        ("message_id", b"x", "is not a string"),
        ("message_id", None, "None is not a string"),
        ("app_id", "\ud800", "is not Unicode text"),
        ("reply_to", "amq.rabbitmq.reply-to", "needs a consumer on the same connection"),
        ("headers", [], "a list is not an object"),
        ("headers", {1}, "a set is not an object"),
        ("message_id", {"a": 1}, "an object is not a string"),
        ("priority", [7] * 100, "a list is not a whole number from 0 to 255"),
        ("priority", 10**100, r"10{56}\.\.\. is not a whole number"),
        ("headers", "a", "'a' is not an object"),
        ("headers", None, "None is not an object"),
    ],
)
def test_values_that_cannot_be_sent(name: str, value: object, words: str) -> None:
    with pytest.raises(PropertyError, match=words) as error:
        encoded(name, value)
    assert len(str(error.value)) < 200


def test_short_strings() -> None:
    assert encoded_short_string("é") == b"\x02\xc3\xa9"
    assert encoded_short_string("x" * 255) == b"\xff" + b"x" * 255
    assert utf8("é" * 1000) == "é".encode() * 1000


# Headers.

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"))
)
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=32)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4))


@given(st.dictionaries(names, values, max_size=5))
@example({"a": [], "b": {}, "c": [[{"d": [None]}]]})
@example({"i": (1 << 31) - 1, "j": 1 << 31, "k": -(1 << 31), "l": -(1 << 31) - 1, "t": True, "x": 1})
def test_headers_are_read_as_they_were_given(headers: dict[str, Any]) -> None:
    size, found = decode.field_table(encoded_headers(headers))
    assert size == len(encoded_headers(headers))
    assert found == headers
    assert [type(found[name]) for name in headers] == [type(value) for value in headers.values()]
    # And as this sidecar walks them.
    data = encoded_headers(headers)
    assert [e.name.decode() for e in table.fields(data, 4, len(data))] == list(headers)


def test_integers_take_32_bits_where_they_fit() -> None:
    assert encoded_headers({"a": 5}) == pack(">I", 7) + entry(b"a", b"I", pack(">i", 5))
    assert encoded_headers({"a": 1 << 31}) == pack(">I", 11) + entry(b"a", b"l", pack(">q", 1 << 31))


def nested(depth: int, make: type) -> dict[str, object]:
    value: object = 1
    for _ in range(depth):
        value = [value] if make is list else {"a": value}
    return {"a": value}


@pytest.mark.parametrize("make", [list, dict])
def test_depth(make: type) -> None:
    assert decode.field_table(encoded_headers(nested(MOST_DEPTH, make)))[1] == nested(MOST_DEPTH, make)
    for depth in (MOST_DEPTH + 1, 900):
        with pytest.raises(PropertyError, match=f"more than {MOST_DEPTH} deep"):
            encoded_headers(nested(depth, make))


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"": 1}, "the name '' has 0 bytes, not 1 to 128"),
        ({"é" * 65: 1}, "has 130 bytes, not 1 to 128"),
        ({5: 1}, "5 is not a string"),
        ({"\udcff": 1}, "is not Unicode text"),
        ({"a": {"b": ["\udcff"]}}, "^a: b: .* is not Unicode text"),
        ({"a": 1 << 63}, "^a: 9223372036854775808 does not fit 64 bits"),
        ({"a": {"b": -(1 << 63) - 1}}, "^a: b: .* does not fit 64 bits"),
        ({"a": float("nan")}, "^a: nan is no finite number"),
        ({"a": [-float("inf")]}, "^a: -inf is no finite number"),
        ({"a": b"x"}, "^a: .* has a type that a header cannot have"),
        ({"a": {1, 2}}, "has a type that"),
    ],
)
def test_headers_that_cannot_be_sent(headers: dict[Any, object], words: str) -> None:
    with pytest.raises(PropertyError, match=words):
        encoded_headers(headers)
    with pytest.raises(PropertyError, match=words):
        encoded("headers", headers)


def test_the_longest_name_and_a_long_value() -> None:
    headers = {"é" * 64: "x" * 100_000}
    assert decode.field_table(encoded_headers(headers))[1] == headers


# The content header.


@given(st.sets(st.sampled_from(NAMES)), st.integers(0, (1 << 64) - 1))
def test_stamps_come_first_and_everything_else_stays(names: set[str], size: int) -> None:
    header = header_of(**{name: VALUES[name] for name in names})
    stamps = entry(b"x-ring-id", b"l", pack(">q", 5))
    plain, stamped = read(header, size), read(header, size, stamps)
    assert list(stamped["headers"].items()) == [("x-ring-id", 5), *plain["headers"].items()]
    assert {**stamped, "headers": None} == {**plain, "headers": None}
    payload = header.payload(size, stamps)
    assert int.from_bytes(payload[4:12]) == size
    # As this sidecar finds them in what comes back.
    flags, at = headers_at(payload, 0, len(payload))
    assert flags & HEADERS
    found = table.find(payload, *table_at(payload, at, len(payload)), b"x-ring-id")
    assert found is not None


def test_persistent_is_as_any_other() -> None:
    copy: Properties = dict(PERSISTENT)
    assert Header.of(copy) == Header.of(PERSISTENT)
    assert Header.of(copy).payload(3) == Header.of(PERSISTENT).payload(3)
    assert read(Header.of(PERSISTENT)) == {"delivery_mode": 2, "headers": {}}


def test_headers_flag_is_the_propertys() -> None:
    assert encoded("headers", {})[0] == HEADERS_FLAG == HEADERS
