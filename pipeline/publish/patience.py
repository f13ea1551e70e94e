"""The limit of the time in which a task tries again without progress, and its pauses."""

import random

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
