"""Progress of a drain: how many queues are done, what is left, and when that ends at the present rate. Pure."""

import time
from collections import deque

_TELL_EVERY, _TELL_STILL_EVERY = 5.0, 60.0
"""Seconds from one line to the next one, at least: while something changes, and while nothing does."""

_WINDOW = 60.0
"""Seconds over which the rate is taken."""


class Progress:
    """The drain of some queues, as it goes on."""

    def __init__(self, queues: int) -> None:
        self._queues = queues
        self._looks: deque[tuple[float, int]] = deque()
        """The times of the last looks, in monotonic seconds, and how many messages were left."""
        self._told_at = float("-inf")
        self._told = (0, 0)

    def line(self, left: int, messages: int, now: float, at: float) -> str:
        """Return what a look tells: so many queues are left, with so many messages. Empty if it is not time to tell.

        `now` is in monotonic seconds, and `at` in seconds since 1970.
        """
        while len(self._looks) > 1 and now - self._looks[1][0] >= _WINDOW:
            self._looks.popleft()
        self._looks.append((now, messages))
        pause = _TELL_STILL_EVERY if (left, messages) == self._told else _TELL_EVERY
        if now - self._told_at < pause:
            return ""
        self._told_at, self._told = now, (left, messages)
        done = f"{self._queues - left} of {self._queues} queues are drained"
        return f"{done}, {messages:,} messages are left, as the management API counts{self._end(at)}"

    def _end(self, at: float) -> str:
        """Return when the drain ends at the rate of the last looks, in words; empty for no messages, or one look."""
        (first, before), (now, messages) = self._looks[0], self._looks[-1]
        if not messages or now <= first:
            return ""
        rate = (before - messages) / (now - first)
        if rate <= 0:
            return f"; no fewer than {now - first:.0f} s ago"
        left = messages / rate
        return f"; at {rate:,.1f}/s done in {_duration(left)}, at {time.strftime('%F %TZ', time.gmtime(at + left))}"


def _duration(seconds: float) -> str:
    """Return a time in words, in a unit that people count in."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
