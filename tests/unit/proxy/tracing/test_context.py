"""The header `traceparent`: what it names, and all that must not be taken for a trace."""

import pytest

from proxy.tracing.context import UNREADABLE, Parent, field_of, parent_in, parent_of
from proxy.wire.table import integer_field, text_field

TRACE, SPAN = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
VALUE = f"00-{TRACE:032x}-{SPAN:016x}-01".encode()


@pytest.mark.parametrize(
    ("value", "parent"),
    [
        (VALUE, Parent(TRACE, SPAN, True)),
        (VALUE[:-2] + b"00", Parent(TRACE, SPAN, False)),
        (VALUE[:-2] + b"03", Parent(TRACE, SPAN, True)),
        (b"cc" + VALUE[2:], Parent(TRACE, SPAN, True)),
        (b"cc" + VALUE[2:] + b"-more", Parent(TRACE, SPAN, True)),
        *(
            (value, UNREADABLE)
            for value in (
                *(b"", b"no such", b"ff" + VALUE[2:], VALUE + b"-more", VALUE + b"1", b"cc" + VALUE[2:] + b"more"),
                *(VALUE.upper(), VALUE[:-1], VALUE + b"\n", b"\xff" * 55),
                *(VALUE.replace(b"%032x" % TRACE, b"0" * 32), VALUE.replace(b"%016x" % SPAN, b"0" * 16)),
            )
        ),
    ],
)
def test_what_a_value_names(value: bytes, parent: Parent) -> None:
    assert parent_of(value) == parent
    table = text_field(b"a", b"traceparent") + text_field(b"traceparent", value)
    assert parent_in(b"before" + table + b"behind", 6, 6 + len(table)) == parent


def test_what_is_no_such_header() -> None:
    other = text_field(b"a", b"\x0btraceparentS" + VALUE) + text_field(b"xtraceparent", VALUE)
    assert parent_in(other, 0, len(other)) is None
    assert parent_in(b"", 0, 0) is None
    number = integer_field(b"traceparent", 1)
    assert parent_in(number, 0, len(number)) == UNREADABLE
    broken = text_field(b"traceparent", VALUE)
    for stop in range(12, len(broken)):
        assert parent_in(broken, 0, stop) == UNREADABLE


def test_the_field_of_a_span() -> None:
    field = field_of(TRACE, SPAN)
    assert field == text_field(b"traceparent", VALUE)
    assert parent_in(field, 0, len(field)) == Parent(TRACE, SPAN, True)
