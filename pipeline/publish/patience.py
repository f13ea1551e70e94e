"""How long to try again, and how long to pause in between."""

import random

_FIRST = 0.1
"""Seconds of the first pause, at most."""

_LONGEST = 5.0
"""Seconds of any pause, at most."""


class Patience:
    """A limit of the time without progress, and pauses that grow and are random: tasks do not come all at once."""

    def __init__(self, limit: float) -> None:
        """`limit` in seconds; it counts from the first `left` on."""
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
        """Return the seconds to pause before the next try: at random, of twice as many at most as before."""
        longest, self._pause = self._pause, min(2 * self._pause, _LONGEST)
        return random.uniform(0, longest)

    def rest(self) -> None:
        """Forget the time until now: nothing is amiss."""
        self._since = None
