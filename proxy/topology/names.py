"""The order in which people read names."""

import re
from collections.abc import Sequence


def natural(name: str) -> tuple[Sequence[str | int], str]:
    """Return a key to sort names by, in which numbers count as numbers: orders.2 comes before orders.10."""
    parts = re.split("([0-9]+)", name)
    return [int(part) if n % 2 else part for n, part in enumerate(parts)], name
