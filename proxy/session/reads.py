"""One read of a socket: the frames in it, and its bytes that go on unchanged."""

# mypyc: compiled

from collections.abc import Iterator
from typing import Final

from proxy.wire.frames import FRAME, OVERHEAD, Piece

_LARGE: Final = 1 << 12
"""Bytes from which a copy costs more than a view."""

_MOST_KEPT: Final = 4
"""Bytes that a view may keep in memory for each of its own."""


def run(data: bytes, start: int, end: int) -> Piece:
    """Return the bytes of a read from `start` to `end`: of much of it a view, which saves a copy and keeps the read."""
    size = end - start
    return memoryview(data)[start:end] if size >= _LARGE and size * _MOST_KEPT >= len(data) else data[start:end]


def frames(data: bytes, at: int = 0) -> Iterator[tuple[int, int, int, int]]:
    """Yield each frame's type and channel, its first index and its end index; the last frame may not be whole.

    The loops over open sessions have this written out, since they are measured.
    """
    while len(data) - at >= OVERHEAD:
        kind, number, length = FRAME.unpack_from(data, at)
        end: int = at + OVERHEAD + length
        yield kind, number, at, end
        at = end
