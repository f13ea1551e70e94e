"""The messages of a shard that come again and again, counted in little memory. No I/O.

A program that cannot process a message and returns it gets it once more. A poison message of this kind goes round for
ever on a queue without a delivery limit, and on RabbitMQ 4.3 on any queue if it is returned by basic.nack.
"""

from typing import Final

RECENT: Final = 300.0
"""Seconds for which the message that came again most often counts after it has come last."""

MOST_KNOWN: Final = 64
"""The most messages of a queue that does not count itself whose redeliveries are counted at the same time."""


POISON: Final = 21
"""The times that a message comes again from which on the log tells of it: more than RabbitMQ 4's default delivery limit
lets it come."""


class Redelivered:
    """The redeliveries of one shard to all members of one sidecar."""

    __slots__ = ("_known", "_since", "_told", "count", "worst", "worst_at")

    def __init__(self) -> None:
        self.count = 0
        """How many deliveries were redeliveries."""
        self.worst = 0
        """How many times one message had come again at `worst_at`, the most of recent times."""
        self.worst_at = 0.0
        """When that was, in monotonic seconds."""
        self._known: dict[int, int] = {}
        """By message, as its hash, how many times it has come again since `_since`."""
        self._since = 0.0
        self._told = 0
        """How many times one message had come again when the log last told of it."""

    def note(self, times: int, message: int, now: float) -> None:
        """Count a redelivery of a message, by its hash, that came again so many times; 0 if its queue does not say.

        Then it is counted here, by messages whose hashes are equal as one.
        """
        self.count += 1
        times = times or self._times(message, now)
        if times >= self.worst or now - self.worst_at > RECENT:
            self.worst, self.worst_at = times, now

    def _times(self, message: int, now: float) -> int:
        """Count one redelivery of a message, and return how many there were of late: 1 for one beyond MOST_KNOWN."""
        if now - self._since > RECENT:
            self._known.clear()
            self._since = now
        if message in self._known or len(self._known) < MOST_KNOWN:
            self._known[message] = self._known.get(message, 0) + 1
        return self._known.get(message, 1)

    def recent(self, now: float) -> int:
        """Return how many times that message came again which did so most often of late; 0 if none did."""
        return self.worst if now - self.worst_at <= RECENT else 0

    def news(self, now: float) -> int:
        """Return how many times one message came again if the log is to tell of it; 0 if not, or not anew.

        It is told of again when the number has doubled.
        """
        times = self.recent(now)
        if times and times < max(POISON, 2 * self._told):
            return 0
        self._told = times
        return times
