"""The value of a message that is hashed: routing key, header or property."""

from decimal import Decimal

import pytest

from ring.hashed import HashedValue, canonical, key_of
from ring.hashing import slot_of

GOLDEN: list[tuple[object, bytes, int]] = [
    ("é", "é".encode(), 823687),
    (b"\xff\x00", b"\xff\x00", 350330),
    ("", b"", 0),
    (7, b"7", 904138),
    (-7, b"-7", 630579),
    (7.0, b"7", 904138),
    (Decimal("7.00"), b"7", 904138),
    (-0.0, b"0", 175261),
    (1e22, b"10000000000000000000000", 971451),
    (2.0**60, b"1152921504606846976", 647519),
    (0.1, b"0.1", 252045),
    (19.99, b"19.99", 534460),
    (Decimal("19.990"), b"19.99", 534460),
    (-1.5e-7, b"-0.00000015", 165398),
    (0.1 + 0.2, b"0.30000000000000004", 859937),
    (5e-324, b"0." + b"0" * 323 + b"5", 750833),
    (True, b"true", 1017313),
    (False, b"false", 805878),
    ([], b"[]", 848466),
    ([7.0, 8], b"7", 904138),
    (["a", "b"], b"a", 546133),
    ([[1, "1"], 2], b'[1,"1"]', 440094),
    ({}, b"{}", 288482),
    ({"b": [True, None, "x y"], "a": {b"n": 7.50}}, b'{"a":{"n":7.5},"b":[true,null,"x y"]}', 762011),
    ({"é": '"\\\n'}, '{"é":"\\"\\\\\\n"}'.encode(), 340880),
    ({b"\xff": b"\xfe"}, b'{"\xff":"\xfe"}', 404167),
    (
        {b"\xef\xbf\xbf": 2, b"\xf0\x9f\x90\x87": 3, b"\xff": 4},
        b'{"\xef\xbf\xbf":2,"\xf0\x9f\x90\x87":3,"\xff":4}',
        495136,
    ),
]
"""Values of a header, their canonical form, and their slot: the ring format, which no release changes."""


@pytest.mark.parametrize(("value", "key", "slot"), GOLDEN)
def test_golden(value: object, key: bytes, slot: int) -> None:
    assert key_of(HashedValue("header", "h"), b"rk", {"h": value}) == key
    assert slot_of(key) == slot


@pytest.mark.parametrize("value", [None, [None], [None, 7]])
def test_nothing_is_a_missing_value(value: object) -> None:
    assert key_of(HashedValue("header", "h"), b"rk", {"h": value}) is None


def test_a_value_that_no_header_can_have_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^set is no type of a header$"):
        canonical({"a": [set()]})


def test_a_missing_value_is_none_and_the_routing_key_is_never_its_stand_in() -> None:
    assert key_of(HashedValue("header", "h"), b"rk", {}) is None
    assert key_of(HashedValue("property", "message_id"), b"rk", {"other": "x"}) is None


def test_the_routing_key_by_default() -> None:
    assert key_of(HashedValue(), b"rk", {"h": "x"}) == b"rk"


def test_printed_forms_are_distinct() -> None:
    forms = {str(HashedValue()), str(HashedValue("header", "message_id")), str(HashedValue("property", "message_id"))}
    assert forms == {"routing_key", "header:message_id", "property:message_id"}


@pytest.mark.parametrize(
    "hashed",
    [HashedValue(), HashedValue("header", "a:b é"), HashedValue("header", "routing_key"), HashedValue("property", "x")],
)
def test_what_is_printed_is_read(hashed: HashedValue) -> None:
    assert HashedValue.parse(str(hashed)) == hashed


@pytest.mark.parametrize("text", ["", "header", "header:", "property:", "routing_key:", "routing_key:x", "Header:x"])
def test_what_nothing_prints_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match=f"^{text!r} is not routing_key, header:NAME or property:NAME$"):
        HashedValue.parse(text)
