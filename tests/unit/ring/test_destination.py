"""Weights as Erlang reads them, and destinations."""

import pytest

from ring.destination import Destination, WeightError, parse_weight


@pytest.mark.parametrize(
    ("text", "weight"), [("1", 1), ("+3", 3), ("05", 5), ("10000", 10000), ("0010000", 10000), ("+007", 7)]
)
def test_what_erlang_reads_as_an_integer(text: str, weight: int) -> None:
    assert parse_weight(text) == weight


@pytest.mark.parametrize(
    "text",
    ["", "0", "-1", "abc", "500000000", "10001", "1_0", " 4", "4 ", "4\n", "1.0", "0x1", "+", "++1", "٣", "1" * 300],
)
def test_everything_else_is_refused_with_a_reason(text: str) -> None:
    with pytest.raises(WeightError, match=r"empty|whole number|outside"):
        parse_weight(text)


def test_destinations_sort_by_kind_then_name_and_print() -> None:
    queue, exchange = Destination("queue", "a"), Destination("exchange", "z")
    assert sorted([queue, exchange]) == [exchange, queue]
    assert str(queue) == "queue 'a'"
