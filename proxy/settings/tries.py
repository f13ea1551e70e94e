"""The time that the tries of a message in series take."""

from typing import Final

LONGEST_SPREAD: Final = 1.25
"""The most by which the delays of a key are longer than the settings say (`spread` in the series of groups)."""


def tries_take(delay: float, longest: float, limit: int) -> float:
    """Return the most seconds for which a message waits that is tried `limit` times.

    `delay` is the time until its first next try; it doubles with each further one, up to `longest`.
    """
    # The later ones are as long as the last of these.
    delays = [min(delay * 2.0**tried, longest) for tried in range(min(limit, 31))]
    return LONGEST_SPREAD * (sum(delays) + (min(limit, 2**31) - len(delays)) * delays[-1]) if delays else 0.0
