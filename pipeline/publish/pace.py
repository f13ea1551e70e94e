"""The pace at which a task's rows may go out."""

_BURST = 0.2
"""The seconds of a delay that a task may catch up by sending faster; the rest of a delay is lost."""


class Pace:
    """A rate that is held on average from the start on, in messages a second."""

    def __init__(self, rate: float, now: float) -> None:
        """Begin at the time `now`; this and all other times are in seconds of one clock."""
        self._rate, self._due = rate, now

    def take(self, count: int, now: float) -> float:
        """Count messages that have gone out, and return the seconds to wait before the next ones."""
        self._due = max(self._due, now - _BURST) + count / self._rate
        return max(0.0, self._due - now)

    @property
    def burst(self) -> int:
        """The most messages to send at once for an even flow, 1 or more."""
        return max(1, round(self._rate * _BURST / 4))
