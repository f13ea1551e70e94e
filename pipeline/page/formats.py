"""How reports write numbers and names: one form for each kind of figure, and none of them in scientific notation."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import TypeVar

_T = TypeVar("_T")

_DIGITS = 3
"""Significant digits of what is measured or estimated: more would promise what no report knows."""

_LEAST = 0.001
"""The smallest number that is written out: a smaller one that is not zero becomes "<0.001"."""

_TIMES = ((1, "µs"), (1_000, "ms"), (1_000_000, "s"))
"""Units of time in microseconds."""

_SIZES = ((1, "B"), (10**3, "kB"), (10**6, "MB"), (10**9, "GB"), (10**12, "TB"), (10**15, "PB"))
"""Units of data in bytes."""


class Number(str):
    """The text of a number, which a table of a report sets to the right of its column."""

    __slots__ = ()


def count(value: float) -> Number:
    """Return a count as a whole number in groups of three digits, such as "1,234,567"."""
    return Number(f"{round(value):,}")


def estimate(value: float) -> Number:
    """Return a measured or estimated figure with three significant digits, such as "0.0123", "1.05" or "19,500"."""
    return Number(_rounded(value))


def about(value: float) -> Number:
    """Return an estimated count: a whole number of three significant digits, such as "19,500" or "57"."""
    return count(float(f"{value:.{_DIGITS - 1}e}"))


def percent(share: float) -> Number:
    """Return a share, 0 to 1, as a percentage with three significant digits, such as "27.8%".

    Only a share of nothing is "0%", and only the whole is "100%".
    """
    if share in (0, 1):
        return Number(f"{share:.0%}")
    if share < 1 and 100 * share >= 99.95:
        return Number(">99.9%")
    return Number(f"{_rounded(100 * share)}%")


def p_value(p: float) -> str:
    """Return the p-value of a test as a formula, such as "p = 0.352", or "p < 0.001" if it is that small."""
    return f"p < {_LEAST}" if p < _LEAST else f"p = {_rounded(p)}"


def duration(micros: float) -> Number:
    """Return a time in microseconds with its unit and three significant digits, such as "850 µs" or "19.5 ms"."""
    return _with_unit(micros, _TIMES)


def size(in_bytes: float) -> Number:
    """Return an amount of data in bytes with its decimal unit and three significant digits, such as "1.24 MB"."""
    return _with_unit(in_bytes, _SIZES)


def interval(value: float, low: float | None, high: float | None, form: Callable[[float], str] = percent) -> Number:
    """Return an estimate and the bounds it lies between, such as "27.8% (25.1% to 30.6%)".

    `form` writes each of the three. A figure without bounds, or whose bounds are the figure itself, is exact and stands
    alone.
    """
    told = form(value)
    if low is None or high is None or low == value == high:
        return Number(told)
    return Number(f"{told} ({form(low)} to {form(high)})")


def moment(micros: int) -> str:
    """Return a time, microseconds since 1970 UTC, to the second, such as "2026-11-21 17:00:00"."""
    return f"{datetime.fromtimestamp(micros // 1_000_000, UTC):%Y-%m-%d %H:%M:%S}"


def _with_unit(value: float, units: tuple[tuple[int, str], ...]) -> Number:
    """Return a value in the largest of `units` that it reaches when rounded, without trailing zeros."""
    rounded = float(f"{value:.{_DIGITS - 1}e}")
    unit, name = max((unit for unit in units if unit[0] <= abs(rounded)), default=units[0])
    told = _rounded(rounded / unit)
    return Number(f"{told.rstrip('0').rstrip('.') if '.' in told else told} {name}")


def _rounded(value: float) -> str:
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) < _LEAST:
        return f"<{_LEAST}" if value > 0 else f">-{_LEAST}"
    rounded = float(f"{value:.{_DIGITS - 1}e}")
    return f"{rounded:,.{max(0, _DIGITS - 1 - math.floor(math.log10(abs(rounded))))}f}"


_SHOWN = 48
"""Characters of a name in a plot, which has no room for the 255 that a queue's may have."""


def natural(name: str) -> tuple[Sequence[str | int], str]:
    """Return a key to sort names by, in which numbers count as numbers: orders.2 comes before orders.10."""
    parts = re.split("([0-9]+)", name)
    return [int(part) if n % 2 else part for n, part in enumerate(parts)], name


def busiest(some: Iterable[_T], size: Callable[[_T], float], name: Callable[[_T], str], most: int) -> list[_T]:
    """Return the largest of some things, `most` at most, in the order of their names."""
    largest = sorted(some, key=size, reverse=True)[:most]
    return sorted(largest, key=lambda one: natural(name(one)))


def shortened(name: str) -> str:
    """Return a name that fits beside a plot: the middle of a long one gives way to an ellipsis."""
    if len(name) <= _SHOWN:
        return name
    kept = (_SHOWN - 1) // 2
    return f"{name[: _SHOWN - 1 - kept]}…{name[-kept:]}"


def key_text(key: bytes | None) -> str:
    """Return a key for people: as text if it is printable UTF-8, else in hexadecimal digits."""
    if key is None:
        return "not journalled"
    text = bytes(key).decode(errors="replace")
    return text if text.isprintable() and "\ufffd" not in text else bytes(key).hex()
