"""The journal as the hot path sees it: preallocated buffers of records that a thread empties. Nothing here waits."""

# mypyc: compiled

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
"""Records that one buffer holds."""

BUFFERS: Final = 6
"""Buffers of a journal. While the disk is slow they take one second of 50,000 records a second, then records drop."""

MESSAGE_ID: Final = HashedValue("property", "message_id")


class Record:
    """The journal's record of one publish: made when it goes out, and added to a journal once its outcome is known."""

    __slots__ = (
        "destination", "ingress", "key", "message_id", "message_id_is_key", "name", "outcome", "published_at", "ring",
        "size", "slot", "told_at",
    )  # fmt: skip

    ring: KnownRing
    """The last ring on the way, which chose where the message went."""

    def __init__(self, ingress: str, name: Name, header: bytes, start: int, end: int, published_at: float) -> None:
        """Make the record of a publish to the exchange `name` at `published_at`, in monotonic seconds.

        `header` holds the content header's payload from `start` to `end`, one that has been read before. `placed`
        must tell the rest before the record is added to a journal.
        """
        self.ingress, self.name = ingress, name
        self.size: int = u64(header, start + 4)
        self.message_id: bytes | None = None
        with suppress(Fault):  # a header that cannot be read is the broker's to refuse
            self.message_id = content.hashed_value(MESSAGE_ID, b"message_id", header, start, end)
        self.message_id_is_key = False
        """Whether a ring on the way hashes the message id, which then is a key, and no less secret than one."""
        self.published_at = self.told_at = published_at
        self.outcome = Outcome.UNKNOWN

    def placed(
        self, ring: KnownRing, destination: Destination | None, slot: int, key: bytes | None, message_id_is_key: bool
    ) -> None:
        """Set where the message goes: `slot` and `key` are those of `ring`, and `destination` is None where it passes.

        This is called again for a message that came back and goes elsewhere.
        """
        self.ring, self.destination, self.slot, self.key = ring, destination, slot, key
        self.message_id_is_key = self.message_id_is_key or message_id_is_key


class Filled(NamedTuple):
    """A buffer on its way to the thread that writes it."""

    records: list[Record | None]
    """The buffer, which belongs to the thread until it is back in `Journal.spare`."""
    used: int
    """How many records it holds."""
    first: int
    """The sequence number of its first record; the others follow without a gap."""


class Journal:
    """The journal of one process, for all its ingresses; only the event loop's thread may call it.

    A record that is dropped still takes a sequence number, so that readers see the gap.
    """

    def __init__(self, limit: int, hand_over: Callable[[Filled], None], clock: Callable[[], float]) -> None:
        """Allocate the buffers. Publishes in slots below `limit` are journalled, as a sample of the keys.

        `hand_over` gives a buffer to a thread, which puts it into `spare` when it is empty.
        """
        self.limit: i64 = limit
        self.clock = clock
        """A clock of monotonic seconds."""
        self._hand_over = hand_over
        self.sequence = 0
        """The sequence number of the last record, be it kept or dropped."""
        self.dropped = 0
        """How many records were dropped, since no buffer was free."""
        self.spare: deque[list[Record | None]] = deque()
        """The empty buffers; the thread appends, the event loop takes, and neither needs a lock."""
        for _ in range(BUFFERS - 1):
            self.spare.append([None] * CAPACITY)
        self._records: list[Record | None] = [None] * CAPACITY
        self._used: i64 = 0
        self._first = 1

    def add(self, record: Record, outcome: Outcome, now: float) -> None:
        """Keep a record with its outcome, known at `now` in monotonic seconds; drop it where no buffer is free."""
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
        """Count a record as dropped, and use up its sequence number."""
        self.sequence += 1
        self.dropped += 1

    @property
    def idle(self) -> bool:
        """Whether the thread has nothing to write; while it is busy, a buffer that is not full can wait."""
        return len(self.spare) == BUFFERS - 1

    def abandon(self) -> None:
        """Count the records of the present buffer as dropped, since they could not be handed over at the end."""
        self.dropped += int(self._used)
        self._used = 0

    def turn(self) -> bool:
        """Hand the present buffer to the thread if it holds anything; return False if no empty one takes its place."""
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
