"""Where the hot path leaves its records: preallocated buffers that a thread empties. Nothing here ever waits."""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from mypy_extensions import i64

from proxy.outcome import Outcome
from proxy.topology.table import KnownRing, Name
from proxy.wire import content
from proxy.wire.frames import Fault, u64
from ring.destination import Destination
from ring.hashed import HashedValue

CAPACITY: Final = 8192
"""Records of one buffer."""

BUFFERS: Final = 6
"""What they hold is what a slow disk may hold up before records are dropped: a second of them at 50,000 a second."""

MESSAGE_ID: Final = HashedValue("property", "message_id")


class Record:
    """One publish; and, once that is known, what became of it."""

    __slots__ = (
        "destination", "ingress", "key", "message_id", "message_id_is_key", "name", "outcome", "published_at", "ring",
        "size", "slot", "told_at",
    )  # fmt: skip

    ring: KnownRing
    """The ring that chose where it went."""

    def __init__(self, ingress: str, name: Name, header: bytes, start: int, end: int, published_at: float) -> None:
        """Make the record of a publish to exchange `name` at `published_at`, in monotonic seconds.

        `header` holds the content header's payload from `start` to `end`, one that has been read before. `placed`
        must tell the rest before the record is added to a journal.
        """
        self.ingress, self.name = ingress, name
        self.size: int = u64(header, start + 4)
        self.message_id: bytes | None = None
        with suppress(Fault):  # a header that cannot be read is the broker's to refuse
            self.message_id = content.hashed_value(MESSAGE_ID, b"message_id", header, start, end)
        self.message_id_is_key = False
        """Whether a ring that it went through hashes the message id, which then is told as keys are."""
        self.published_at = self.told_at = published_at
        self.outcome = Outcome.UNKNOWN

    def placed(
        self, ring: KnownRing, destination: Destination | None, slot: int, key: bytes | None, message_id_is_key: bool
    ) -> None:
        """Tell where the message goes: `slot` and `key` are those of `ring`, and `destination` is None where it passes.

        Called again for a message that came back and goes elsewhere.
        """
        self.ring, self.destination, self.slot, self.key = ring, destination, slot, key
        self.message_id_is_key = self.message_id_is_key or message_id_is_key


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
