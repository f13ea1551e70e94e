"""The thread that writes the journal: takes full buffers, makes lines of them, hands those to a store."""

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
"""Seconds after which a buffer is written though it is not full."""

_LAST_WORDS = 5.0
"""Seconds for what is still to be written at the end."""

_CHUNK = 1 << 18
"""Characters of lines that are written at once."""

_STRETCH = 64
"""Records in a row that hold up the event loop: 0.1 ms."""
_BREATH = 0.0001

_WAIT = 0.05

_APART, _READINGS = 1e-4, 10
"""Seconds within which two clocks are read, and how often that is tried: a wait for the GIL may come between."""

RING_AGAIN = 3600.0
"""Seconds after which a ring is kept again: a stream forgets what is old."""

NEVER = float("-inf")


class Writer:
    """The thread's state. Its figures may be read by others."""

    def __init__(
        self, journal: Journal, filled: "SimpleQueue[Filled | None]", store: Store, formatter: LineFormatter
    ) -> None:
        """Not running. `filled` has the journal's full buffers, and in the end None."""
        self._journal, self._filled, self._store, self._formatter = journal, filled, store, formatter
        self._rings: dict[str, float] = {}
        """By fingerprint, when it was kept last, monotonic."""
        self._due: dict[str, KnownRing] = {}
        """Rings of the present chunk that are not kept yet."""
        self._chunk: list[str] = []
        self._size = self._first = self._hour = 0
        self.written = self.lost = self.refused = 0
        """Records: written; not written, because the store failed; and because it is as large as it may be."""
        self.fault = ""
        """Why the last write failed; empty where it did not."""

    def run(self) -> None:
        """Until it gets None."""
        while True:
            try:
                filled = self._filled.get(timeout=TURN)
            except Empty:
                self._try(self._store.look)
                continue
            if filled is None:
                break
            try:
                self._take(filled)
            except Exception:
                dropped = filled.first + filled.used - self._first
                log.exception("a defect while writing the journal: %d records are dropped", dropped)
                self.lost += dropped
                filled.records[:] = [None] * len(filled.records)
            self._journal.spare.append(filled.records)
            self._try(self._store.look)
        self._try(self._store.close)

    def finish(self) -> None:
        """Has `run` end once all is written, or cannot be. Called by the event loop's thread."""
        self._store.hurry()
        self._filled.put(None)

    def _take(self, filled: Filled) -> None:
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
            if self._rings.get(known.fingerprint, NEVER) < record.told_at - RING_AGAIN:
                self._due[known.fingerprint] = known
            line = self._formatter.line(record, filled.first + n, epoch)
            self._chunk.append(line)
            self._size += len(line)
            if not n % _STRETCH:
                # Lets the event loop run: one that is ready would get its turn after 5 ms only.
                time.sleep(_BREATH)
        self._flush(filled.first + filled.used)

    def _flush(self, following: int) -> None:
        """Writes the chunk; `following` is the number of the record after it."""
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
        """One that tells whether all that was written is safe since."""
        try:
            safe = step()
        except (OSError, StoreError) as error:
            self._failed(error, 0)
        else:
            if safe and self.fault:
                log.info("the journal is written again")
                self.fault = ""

    def _failed(self, error: Exception, count: int) -> None:
        given_up = self._store.give_up()
        self.written -= given_up
        self.lost += given_up
        if isinstance(error, FullError):
            self.refused += count
        else:
            self.lost += count
        # Not the name of the file, which is another each time.
        fault = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        if fault != self.fault:
            log.warning("the journal cannot be written, records are dropped: %s", error)
        self.fault = fault


def wall_at_zero() -> float:
    """The wall clock's time, in seconds, at monotonic 0."""
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
    """Of this process, for as long as it runs."""
    return secrets.token_hex(8)


@contextlib.asynccontextmanager
async def writing(journal: Journal, writer: Writer) -> AsyncIterator[None]:
    """Writes what is journalled, until the end, when what is there gets a moment."""
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
            async with asyncio.timeout(_LAST_WORDS):
                while not journal.turn():  # noqa: ASYNC110 - it is the thread that gives a buffer back
                    await asyncio.sleep(_WAIT)
        journal.abandon()
        writer.finish()
        await asyncio.to_thread(thread.join, _LAST_WORDS)
        if thread.is_alive():
            log.warning("the journal's last records were not written in time")


async def _turning(journal: Journal) -> None:
    while True:
        await asyncio.sleep(TURN)
        if journal.idle:
            journal.turn()
