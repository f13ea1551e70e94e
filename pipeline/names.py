"""Names of queues, exchanges and keys as reports list them."""

import re
from collections.abc import Sequence

_SHOWN = 48
"""Characters of a name in a plot, which has no room for the 255 that a queue's may have."""


def natural(name: str) -> tuple[Sequence[str | int], str]:
    """Return a key to sort names by, in which numbers count as numbers: orders.2 comes before orders.10."""
    parts = re.split("([0-9]+)", name)
    return [int(part) if n % 2 else part for n, part in enumerate(parts)], name


def shortened(name: str) -> str:
    """Return a name that fits beside a plot: the middle of a long one gives way to an ellipsis."""
    if len(name) <= _SHOWN:
        return name
    kept = (_SHOWN - 1) // 2
    return f"{name[: _SHOWN - 1 - kept]}…{name[-kept:]}"
