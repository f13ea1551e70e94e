"""The thread that writes the journal: it takes buffers, makes lines of their records, and hands those to a store."""

import asyncio
import contextlib
import logging
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable
from queue import Empty, SimpleQueue

from proxy.journal.buffer import Filled, Journal
from proxy.journal.lines import LineFormatter, ring_json
from proxy.journal.store import HOUR, FullError, Store, StoreError
from proxy.topology.table import KnownRing

log = logging.getLogger(__name__)

TURN = 1.0
"""Seconds after which a buffer is written although it is not full."""

_FLUSH_TIMEOUT = 5.0
"""Seconds for writing what is left at the end."""

_CHUNK = 1 << 18
"""Characters of lines from which on they are written."""

_STRETCH = 64
"""How many records are formatted in a row. They hold up the event loop for 0.1 ms, because the thread has the GIL."""
_BREATH = 0.0001
"""Seconds for which the thread gives up the GIL after each `_STRETCH` records."""

_WAIT = 0.05
"""Seconds between looks for a free buffer at the end."""

_APART, _READINGS = 1e-4, 10
"""Seconds within which both clocks should be read, and the most tries: a wait for the GIL may come between."""

RING_AGAIN = 3600.0
"""Seconds after which a ring is given to the store again, since a stream forgets what is old."""

NEVER = float("-inf")


class Writer:
    """The writing of one process's journal: `run` is the thread's body; others may read the public figures."""

    def __init__(
        self, journal: Journal, filled: "SimpleQueue[Filled | None]", store: Store, formatter: LineFormatter
    ) -> None:
        """Take what to write, and where. `filled` gets the journal's buffers, and in the end None."""
        self._journal, self._filled, self._store, self._formatter = journal, filled, store, formatter
        self._rings: dict[str, float] = {}
        """The times when each ring was given to the store last, by fingerprint, in monotonic seconds."""
        self._due: dict[str, KnownRing] = {}
        """The rings of the present chunk that must go to the store before it, by fingerprint."""
        self._chunk: list[str] = []
        """The lines that wait to be written, all of one hour."""
        self._size = self._first = self._hour = 0
        self.written = self.lost = self.refused = 0
        """Records that were written; that were lost as the store failed; and that were refused as it is full."""
        self.fault = ""
        """Why the last write failed; empty if it succeeded."""

    def run(self) -> None:
        """Write buffers until None comes, and close the store; this is the body of the thread."""
        while True:
            try:
                filled = self._filled.get(timeout=TURN)
            except Empty:
                self._try(self._store.finish_if_due)
                continue
            if filled is None:
                break
            try:
                self._take(filled)
            except Exception:
                dropped = filled.first + filled.used - self._first
                log.exception("unexpected error while writing the journal: %d records are dropped", dropped)
                self.lost += dropped
                filled.records[:] = [None] * len(filled.records)
            self._journal.spare.append(filled.records)
            self._try(self._store.finish_if_due)
        self._try(self._store.close)

    def finish(self) -> None:
        """Have `run` end once all is written, or cannot be; called by the event loop's thread."""
        self._store.hurry()
        self._filled.put(None)

    def _take(self, filled: Filled) -> None:
        """Write the records of a full buffer, in lines of at most an hour, and empty it."""
        epoch = wall_at_zero()
        self._chunk, self._size, self._first, self._due = [], 0, filled.first, {}
        for n in range(filled.used):
            record, filled.records[n] = filled.records[n], None
            assert record is not None
            hour = int((record.told_at + epoch) // HOUR)
            if self._size >= _CHUNK or (hour != self._hour and self._chunk):
                self._flush(filled.first + n)
            self._hour = hour
            known = record.ring
            if self._rings.get(known.journalled, NEVER) < record.told_at - RING_AGAIN:
                self._due[known.journalled] = known
            line = self._formatter.line(record, filled.first + n, epoch)
            self._chunk.append(line)
            self._size += len(line)
            if not n % _STRETCH:
                # Without this the event loop would get the GIL after 5 ms only (sys.getswitchinterval).
                time.sleep(_BREATH)
        self._flush(filled.first + filled.used)

    def _flush(self, following: int) -> None:
        """Write the chunk and begin an empty one, whose first record has the sequence number `following`."""
        chunk, count = self._chunk, len(self._chunk)
        try:
            for fingerprint, known in self._due.items():
                self._store.ring(fingerprint, ring_json(known))
            self._rings.update(dict.fromkeys(self._due, time.monotonic()))
            self._store.write("".join(chunk).encode(), count, self._first, float(self._hour * HOUR))
        except (OSError, StoreError) as error:
            self._failed(error, count)
        else:
            self.written += count
        self._chunk, self._size, self._first, self._due = [], 0, following, {}

    def _try(self, step: Callable[[], bool]) -> None:
        """Call a method of the store that returns whether all that was written is safe; log if that is so again."""
        try:
            safe = step()
        except (OSError, StoreError) as error:
            self._failed(error, 0)
        else:
            if safe and self.fault:
                log.info("the journal is written again")
                self.fault = ""

    def _failed(self, error: Exception, count: int) -> None:
        """Count records that a store refused, and those of the file that it gave up; log the fault if it is new."""
        given_up = self._store.give_up()
        self.written -= given_up
        self.lost += given_up
        if isinstance(error, FullError):
            self.refused += count
        else:
            self.lost += count
        # The text without the file's name, which is another each time: one fault is logged once.
        fault = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        if fault != self.fault:
            log.warning("the journal cannot be written, and its records are dropped: %s", error)
        self.fault = fault


def wall_at_zero() -> float:
    """Return the wall clock's time, in seconds, at monotonic 0."""
    closest, epoch = float("inf"), 0.0
    for _ in range(_READINGS):
        before = time.monotonic()
        wall = time.time()
        after = time.monotonic()
        if after - before < closest:
            closest, epoch = after - before, wall - (before + after) / 2
        if closest <= _APART:
            break
    return epoch


def proxy_id() -> str:
    """Return a new id for this process: 16 hexadecimal digits."""
    return secrets.token_hex(8)


@contextlib.asynccontextmanager
async def writing(journal: Journal, writer: Writer) -> AsyncIterator[None]:
    """Run the writer's thread for as long as the context lasts; at its end, what is left gets `_FLUSH_TIMEOUT`."""
    thread = threading.Thread(target=writer.run, name="journal", daemon=True)
    thread.start()
    turning = asyncio.create_task(_turning(journal))
    try:
        yield
    finally:
        turning.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await turning
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_TIMEOUT):
                while not journal.turn():  # noqa: ASYNC110 - it is the thread that gives a buffer back
                    await asyncio.sleep(_WAIT)
        journal.abandon()
        writer.finish()
        await asyncio.to_thread(thread.join, _FLUSH_TIMEOUT)
        if thread.is_alive():
            log.warning("the journal's last records were not written before the sidecar ended")


async def _turning(journal: Journal) -> None:
    while True:
        await asyncio.sleep(TURN)
        if journal.idle:
            journal.turn()
