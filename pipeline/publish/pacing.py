"""The times of a task that publishes: the pace of its rows, and its patience while it tries again."""

import random

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


_FIRST = 0.1
"""The longest first pause, in seconds."""

_LONGEST = 5.0
"""The longest pause between two tries, in seconds."""


class Patience:
    """A limit of the time without progress, with pauses that grow.

    Pauses are random, so that many tasks do not come back at once.
    """

    def __init__(self, limit: float) -> None:
        """Take the limit in seconds; it counts from the first call of `left`."""
        self.limit = limit
        self._since: float | None = None
        self._progress = 0
        self._pause = _FIRST

    def left(self, progress: int, now: float) -> float:
        """Return the seconds left, below 0 for none; the limit counts anew where `progress` is another than before.

        `now` in seconds, of one clock.
        """
        if self._since is None or progress != self._progress:
            self._since, self._progress, self._pause = now, progress, _FIRST
        return self._since + self.limit - now

    def pause(self) -> float:
        """Return the seconds to pause before the next try: random, up to a limit that doubles with each pause."""
        longest, self._pause = self._pause, min(2 * self._pause, _LONGEST)
        return random.uniform(0, longest)

    def rest(self) -> None:
        """Begin the limit anew at the next call of `left`, since nothing is wrong now."""
        self._since = None
