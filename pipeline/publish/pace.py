"""How fast rows may go out."""

_BURST = 0.2
"""Seconds of its rate that one who was held up may catch up at once."""


class Pace:
    """A rate that is held on average from the start on, in messages a second."""

    def __init__(self, rate: float, now: float) -> None:
        """`now` and all other times in seconds, of one clock."""
        self._rate, self._due = rate, now

    def take(self, count: int, now: float) -> float:
        """So many went out; the seconds to wait before the next."""
        self._due = max(self._due, now - _BURST) + count / self._rate
        return max(0.0, self._due - now)

    @property
    def burst(self) -> int:
        """As many at once as still makes for an even flow."""
        return max(1, round(self._rate * _BURST / 4))
