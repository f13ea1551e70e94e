"""The value of a message that is hashed: routing key, header or property."""

import pytest

from ring.hashed import HashedValue, key_of


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ("é", "é".encode()),
        (b"\xff", b"\xff"),
        (42, b"42"),
        (-7, b"-7"),
        ("", b""),
        (True, None),
        (1.5, None),
        (None, None),
    ],
)
def test_header_values(value: object, key: bytes | None) -> None:
    assert key_of(HashedValue("header", "h"), b"rk", {"h": value}) == key


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
