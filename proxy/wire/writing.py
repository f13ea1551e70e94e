"""One write for many frames: small ones are joined, large ones are handed on as they are."""

import asyncio
from collections.abc import Sequence

from proxy.wire.frames import Piece

_FEW = 64
"""Pieces up to which their sizes are looked at; more of them are always joined."""

_LARGE = 4096
"""Bytes of a piece, on average, from which on not joining saves CPU: 6 to 17% at 4 KiB, 16 to 30% from 32 KiB."""


def write(transport: asyncio.Transport, pieces: Sequence[Piece]) -> None:
    """Write pieces in order. The list may change afterwards, but the buffers in it must not."""
    count = len(pieces)
    if count == 1:
        transport.write(pieces[0])
    elif count <= _FEW and sum(map(len, pieces)) >= count * _LARGE:
        transport.writelines(pieces)
    else:
        transport.write(b"".join(pieces))
