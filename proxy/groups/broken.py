"""Shards whose queue costs a client its connection: no member consumes them for a while.

RabbitMQ can leave a quorum queue half deleted: when the client of a deletion over the management API goes away, and
when nodes end meanwhile. The queue is listed as running and has no process. RabbitMQ answers a basic.consume on it with
connection.close 541, so whoever opens a link to it loses all links of its client. Each client would come back and get
the shard again, and the whole group would stand for one queue.

The shard therefore counts as missing for a pause, which doubles from one loss to the next. Then one link is tried.
The record outlives the members, since the client that was lost may have been the only one.
"""

from typing import Final

FIRST: Final = 30.0
LONGEST: Final = 600.0
"""Seconds of the pause after the first loss, and of the longest one."""


class Broken:
    """The shards of one group that cost a client its connection."""

    def __init__(self) -> None:
        self._pauses: dict[str, tuple[float, float]] = {}
        """By shard, the end of its pause in monotonic seconds, and the pause's length in seconds."""

    def note(self, shard: str, now: float) -> float:
        """Note that a link to a shard has cost a connection; return when the shard may be tried again."""
        self.forget(now)
        _, length = self._pauses.get(shard, (0.0, FIRST / 2))
        length = min(2 * length, LONGEST)
        self._pauses[shard] = now + length, length
        return now + length

    def until(self, shard: str) -> float:
        """Return when a shard may be tried again, in monotonic seconds; 0 if nothing is known of it."""
        return self._pauses.get(shard, (0.0, 0.0))[0]

    def forget(self, now: float) -> bool:
        """Forget the shards that cost no connection for as long as their pause was; return whether none is left."""
        self._pauses = {shard: pause for shard, pause in self._pauses.items() if now < sum(pause)}
        return not self._pauses
