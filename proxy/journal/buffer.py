"""Where the hot path leaves its records: preallocated buffers that a thread empties. Nothing here ever waits."""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from mypy_extensions import i64

from proxy.outcome import Outcome
from proxy.wire import content
from proxy.wire.frames import Fault, u64
from ring.destination import Destination
from ring.hashed import HashedValue

if TYPE_CHECKING:
    from proxy.routing.routes import Route

CAPACITY: Final = 8192
"""Records of one buffer."""

BUFFERS: Final = 6
"""What they hold is what a slow disk may hold up before records are dropped: a second of them at 50,000 a second."""

MESSAGE_ID: Final = HashedValue("property", "message_id")


class Record:
    """One publish; and, once that is known, what became of it."""

    __slots__ = (
        "chosen_by", "destination", "ingress", "key", "message_id", "outcome", "published_at", "route", "size", "slot",
        "told_at",
    )  # fmt: skip

    def __init__(
        self,
        ingress: str,
        route: "Route",
        chosen_by: "Route",
        destination: Destination | None,
        slot: int,
        routing_key: bytes,
        header: bytes,
        start: int,
        end: int,
        published_at: float,
    ) -> None:
        """`chosen_by` is the ring whose `slot` it is; `destination` None for what was passed; monotonic seconds.

        `header` holds the content header's payload from `start` to `end`, one that has been read before.
        """
        self.ingress, self.route = ingress, route
        self.size: int = u64(header, start + 4)
        self.message_id: bytes | None = None
        with suppress(Fault):  # a header that cannot be read is the broker's to refuse
            self.message_id = content.hashed_value(MESSAGE_ID, b"message_id", header, start, end)
        self.key: bytes | None = None
        self.placed(chosen_by, destination, slot, routing_key, header, start, end)
        self.published_at = self.told_at = published_at
        self.outcome = Outcome.UNKNOWN

    def placed(
        self,
        chosen_by: "Route",
        destination: Destination | None,
        slot: int,
        routing_key: bytes,
        header: bytes,
        start: int,
        end: int,
    ) -> None:
        """Where it goes, by which ring; again where it came back and goes elsewhere."""
        self.chosen_by, self.destination, self.slot, self.key = chosen_by, destination, slot, routing_key
        if chosen_by.hashed is not None:
            self.key = content.hashed_value(chosen_by.hashed, chosen_by.hashed_name, header, start, end)


class Filled(NamedTuple):
    """A buffer that is to be written."""

    records: list[Record | None]
    used: int
    first: int
    """The sequence number of the first of them."""


class Journal:
    """Of one process, for all its ingresses. Belongs to the event loop."""

    def __init__(self, limit: int, hand_over: Callable[[Filled], None], clock: Callable[[], float]) -> None:
        """Slots below `limit` are journalled. `hand_over` gives a buffer to a thread, which puts it into `spare`."""
        self.limit: i64 = limit
        self.clock = clock
        """Monotonic seconds."""
        self._hand_over = hand_over
        self.sequence = 0
        """Of the last record, written or dropped."""
        self.dropped = 0
        """Records for which no buffer was free."""
        self.spare: deque[list[Record | None]] = deque()
        """Empty buffers."""
        for _ in range(BUFFERS - 1):
            self.spare.append([None] * CAPACITY)
        self._records: list[Record | None] = [None] * CAPACITY
        self._used: i64 = 0
        self._first = 1

    def add(self, record: Record, outcome: Outcome, now: float) -> None:
        """Takes a record whose fate is known; where no buffer is free, only its number."""
        if self._used == CAPACITY and not self.turn():
            self.drop()
            return
        self.sequence += 1
        if not self._used:
            self._first = self.sequence
        record.outcome, record.told_at = outcome, now
        self._records[self._used] = record
        self._used += 1
        if self._used == CAPACITY:
            self.turn()

    def drop(self) -> None:
        """Takes no more than the number of a record."""
        self.sequence += 1
        self.dropped += 1

    @property
    def idle(self) -> bool:
        """Whether nothing waits for the thread: a buffer that is not full can wait while it is busy."""
        return len(self.spare) == BUFFERS - 1

    def abandon(self) -> None:
        """At the end: counts what could not be handed over."""
        self.dropped += int(self._used)
        self._used = 0

    def turn(self) -> bool:
        """Hands what there is to the thread; False where there is no other buffer to go on with."""
        used: int = self._used
        if not used:
            return True
        try:
            spare = self.spare.popleft()
        except IndexError:
            return False
        self._hand_over(Filled(self._records, used, self._first))
        self._records, self._used = spare, 0
        return True
