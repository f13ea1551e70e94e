"""A fuzzer's bytes as steps of a session: a byte that changes is a field that changes, and frames stay frames."""

from collections.abc import Iterable, Iterator
from random import Random
from typing import NamedTuple
from zlib import crc32

_SHORT = 192
_UNIT, _LITERAL = 128, 32
"""A length byte from _SHORT up counts in units: the first 32 bytes, and the last of them again and again."""


class Step(NamedTuple):
    """One of them; what `op` means is the harness's."""

    op: int
    channel: int
    data: bytes


def steps(data: bytes) -> Iterator[Step]:
    """Yield what the bytes say: op, channel, length and so many bytes, again and again; what is too short is an end."""
    at = 0
    while at + 3 <= len(data):
        op, channel, length = data[at : at + 3]
        at += 3
        size = min(length, _LITERAL) if length >= _SHORT else length
        literal = data[at : at + size]
        at += size
        if length >= _SHORT:
            literal = literal.ljust((length - _SHORT + 1) * _UNIT, literal[-1:] or b"\0")
        yield Step(op, channel, literal)


def written(steps: Iterable[Step]) -> bytes:
    """Return the bytes that say these steps. Long data are kept as their length and their beginning only."""
    parts = []
    for op, channel, data in steps:
        if len(data) < _SHORT:
            parts.append(bytes((op, channel, len(data))) + data)
        else:
            parts.append(bytes((op, channel, min(_SHORT - 1 + len(data) // _UNIT, 255))) + data[:_LITERAL])
    return b"".join(parts)


def pieces(data: bytes, rng: Random | None) -> list[bytes]:
    """Return the data whole, or with a source of chance in pieces: each byte alone, or cut in a few places."""
    if rng is None or len(data) < 2:
        return [data]
    if len(data) <= 48 and rng.random() < 0.5:
        return [data[i : i + 1] for i in range(len(data))]
    cuts = sorted({rng.randrange(1, len(data)) for _ in range(rng.randrange(1, 4))})
    return [data[i:j] for i, j in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def chance(data: bytes) -> Random:
    """Return a source of chance that is the same for the same input."""
    return Random(crc32(data))
