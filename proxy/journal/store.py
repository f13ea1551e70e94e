"""The interface of the stores that keep the journal's lines, as the writer's thread calls it."""

from typing import Protocol

HOUR = 3600
"""Seconds of an hour, for which lines are kept together."""


class StoreError(Exception):
    """Records could not be written; the message says why."""


class FullError(StoreError):
    """The store holds as much as it may, so the records of this call were not written."""


class Store(Protocol):
    """A keeper of lines, called by one thread. Each call may raise OSError or StoreError; then `give_up` follows."""

    def ring(self, fingerprint: str, content: bytes) -> None:
        """Keep a ring's JSON. It comes before the first lines that name the ring, and again from time to time."""

    def write(self, lines: bytes, records: int, first: int, at: float) -> None:
        """Keep `records` lines of one hour; `first` is the first one's sequence number, `at` a time in that hour."""

    def finish_if_due(self) -> bool:
        """Finish what is due by now, and return whether all that was written is safe; called about once a second."""

    def hurry(self) -> None:
        """Wait no longer than needed from now on, since the process ends; called by the event loop's thread."""

    def give_up(self) -> int:
        """Drop what was written and cannot be finished, and return how many records that were."""

    def close(self) -> bool:
        """Finish what was written, and return whether all of it is safe; called last."""
