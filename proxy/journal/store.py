"""What keeps the journal's lines, as the thread that writes them sees it."""

from typing import Protocol

HOUR = 3600
"""Seconds."""


class StoreError(Exception):
    """Records could not be written; the message says why."""


class FullError(StoreError):
    """The store has as much as it may hold, so the records that came last were not written."""


class Store(Protocol):
    """Where lines go. Called by one thread; each may raise OSError or StoreError, and then is asked to give up."""

    def ring(self, fingerprint: str, content: bytes) -> None:
        """Keeps a ring, before the first lines that name it; again if it likes."""

    def write(self, lines: bytes, records: int, first: int, at: float) -> None:
        """Keeps lines of one hour: how many, the number of the first, and its time in seconds since 1970."""

    def look(self) -> bool:
        """Called every second or so; whether all that was written is safe since."""

    def hurry(self) -> None:
        """The end is near: nothing is waited for any longer than it must. Called by the event loop's thread."""

    def give_up(self) -> int:
        """Drops what was kept and cannot be finished: how many records."""

    def close(self) -> bool:
        """At the end; the same."""
