"""Bytes of a read that go on as they are."""

from typing import Final

from proxy.wire.frames import Piece

_LARGE: Final = 1 << 12
"""Bytes from which a copy costs more than a view."""

_MOST_KEPT: Final = 4
"""Bytes that a view may keep in memory for each of its own."""


def run(data: bytes, start: int, end: int) -> Piece:
    """Return the bytes of a read from `start` to `end`: of much of it a view, which saves a copy and keeps the read."""
    size = end - start
    return memoryview(data)[start:end] if size >= _LARGE and size * _MOST_KEPT >= len(data) else data[start:end]
