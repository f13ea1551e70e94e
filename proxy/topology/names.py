"""Names as people read them: their order, and the first of many."""

import re
from collections.abc import Sequence


def natural(name: str) -> tuple[Sequence[str | int], str]:
    """Return a key to sort names by, in which numbers count as numbers: orders.2 comes before orders.10."""
    parts = re.split("([0-9]+)", name)
    return [int(part) if n % 2 else part for n, part in enumerate(parts)], name


def some(parts: Sequence[object], most: int = 5) -> str:
    """Return the first `most` parts in words, and how many more there are; empty for no parts."""
    shown = ", ".join(map(str, parts[:most]))
    return shown if len(parts) <= most else f"{shown} and {len(parts) - most} more"
