"""Shards whose queue costs a client its connection: no member of this sidecar opens a link to them for a while.

RabbitMQ can leave a quorum queue half deleted: when the client of a deletion over the management API goes away, and
when nodes end meanwhile. The queue is listed as running and has no process. RabbitMQ answers a basic.consume on it with
connection.close 541, so whoever opens a link to it loses all links of its client. Each client would come back and get
the shard again, and the whole group would stand for one queue.

The broker counts as having refused the link to every member of the sidecar, with a pause that doubles from one loss to
the next. The record outlives the members, since the client that was lost may have been the only one.
"""

from typing import Final

from proxy.groups.model import Pause

FIRST: Final = 30.0
LONGEST: Final = 600.0
"""Seconds of the pause after the first loss, and of the longest one."""

FORGOTTEN: Final = 60.0
"""Seconds after a further pause of the same length after which a shard that cost nothing more is forgotten."""


class Broken:
    """The shards of one group that cost a client its connection."""

    def __init__(self) -> None:
        self._pauses: dict[str, Pause] = {}

    def note(self, shard: str, why: str, now: float) -> Pause:
        """Note that a link to a shard has cost a connection, and with which text; return the pause until the next try.

        `now` is in monotonic seconds.
        """
        self.forget(now)
        before = self._pauses.get(shard)
        since, length = (before.since, min(2 * before.length, LONGEST)) if before is not None else (now, FIRST)
        self._pauses[shard] = pause = Pause(since, now + length, length, why)
        return pause

    def pauses(self, now: float) -> dict[str, Pause]:
        """Return by shard the pauses that are not over."""
        return {shard: pause for shard, pause in self._pauses.items() if now < pause.until}

    def forget(self, now: float) -> bool:
        """Forget the shards that cost no connection for long; return whether none is left."""
        self._pauses = {
            shard: pause for shard, pause in self._pauses.items() if now < pause.until + pause.length + FORGOTTEN
        }
        return not self._pauses
