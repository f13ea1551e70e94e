"""How reports write numbers."""

import pytest

from pipeline.page.formats import (
    Number,
    about,
    busiest,
    count,
    duration,
    estimate,
    interval,
    moment,
    p_value,
    percent,
    size,
)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0"),
        (19490, "19,500"),
        (1.949e4, "19,500"),
        (9.996, "10.0"),
        (999.6, "1,000"),
        (1.0049, "1.00"),
        (3.95, "3.95"),
        (0.012345, "0.0123"),
        (0.0004, "<0.001"),
        (-0.0004, ">-0.001"),
        (-19490.0, "-19,500"),
        (1.23456e17, "123,000,000,000,000,000"),
        (float("inf"), "inf"),
    ],
)
def test_an_estimate_has_three_digits_and_no_exponent(value: float, expected: str) -> None:
    assert estimate(value) == expected


def test_a_count_is_whole_and_grouped() -> None:
    assert (count(1234567), count(0), count(1234.5678)) == ("1,234,567", "0", "1,235")


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (0, "0%"),
        (1, "100%"),
        (0.27814, "27.8%"),
        (0.00968, "0.968%"),
        (0.000001, "<0.001%"),
        (0.99949, "99.9%"),
        (0.99951, ">99.9%"),
        (1.5, "150%"),
    ],
)
def test_a_percentage_is_all_only_of_all_and_nothing_only_of_nothing(share: float, expected: str) -> None:
    assert percent(share) == expected


@pytest.mark.parametrize(
    ("micros", "expected"),
    [
        (0, "0 µs"),
        (16, "16 µs"),
        (999.6, "1 ms"),
        (1000, "1 ms"),
        (19_490, "19.5 ms"),
        (999_600, "1 s"),
        (134_217_728, "134 s"),
        (7.2e9, "7,200 s"),
    ],
)
def test_a_duration_has_its_unit(micros: float, expected: str) -> None:
    assert duration(micros) == expected


def test_a_p_value_has_no_exponent() -> None:
    assert [p_value(p) for p in (1.0, 0.35214, 0.001, 1e-30, 0.0)] == [
        *("p = 1.00", "p = 0.352", "p = 0.00100", "p < 0.001", "p < 0.001")
    ]


def test_a_size_has_its_unit() -> None:
    assert [size(n) for n in (0, 999, 1000, 1_240_000, 4e12)] == ["0 B", "999 B", "1 kB", "1.24 MB", "4 TB"]


def test_an_interval_is_told_where_there_is_one() -> None:
    assert interval(0.278, 0.251, 0.306) == "27.8% (25.1% to 30.6%)"
    assert interval(19490, 18000, 21000, estimate) == "19,500 (18,000 to 21,000)"
    assert interval(0.3, 0.3, 0.3) == interval(0.3, None, None) == "30.0%"
    assert isinstance(interval(0.3, 0.3, 0.3), Number)


def test_a_moment_is_in_utc() -> None:
    assert moment(1_795_194_000_999_999) == "2026-11-20 17:00:00"


@pytest.mark.parametrize(
    ("value", "expected"), [(0.0, "0"), (3.0, "3"), (57.02, "57"), (999.6, "1,000"), (19_490, "19,500")]
)
def test_an_estimated_count_is_whole(value: float, expected: str) -> None:
    assert about(value) == expected
    assert isinstance(about(value), Number)


def test_the_busiest_stand_in_the_order_of_their_names() -> None:
    sizes = {"q.10": 5.0, "q.2": 7.0, "q.1": 1.0, "q.3": 5.0}
    assert busiest(sizes, sizes.__getitem__, str, 2) == ["q.2", "q.10"]
    assert busiest(sizes, sizes.__getitem__, str, 9) == ["q.1", "q.2", "q.3", "q.10"]
    assert busiest([], len, str, 2) == []
