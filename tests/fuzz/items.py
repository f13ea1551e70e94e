"""The bodies of batches: JSON and NDJSON, plain or gzip, in any chunking.

It raises only `BodyError`. The items are those that a decoder of the whole body sees.
"""

import gzip
import json
from random import Random
from typing import Any

from proxy.http.formats.decoding import refuse_constant
from proxy.http.formats.items import Items
from proxy.http.formats.pairs import unique
from proxy.http.formats.scanning import BodyError, Framing, Item
from tests.fuzz.steps import chance, pieces

_NDJSON, _GZIP, _PACKED, _SHORT_ITEMS, _SHORT_BODY = 1, 2, 4, 8, 16
"""Bits of the first byte: which form, gzip as it is or made here, and limits that are reached."""

_FEW, _MANY = 64, 1 << 20


class _Read:
    """The result of one chunking."""

    def __init__(self, flags: int, body: bytes, rng: Random | None) -> None:
        self.items: list[Item] = []
        self.error: tuple[int, bool] | None = None
        self.most_held = 0
        most_item = _FEW if flags & _SHORT_ITEMS else _MANY
        most_bytes = 4 * _FEW if flags & _SHORT_BODY else _MANY
        reader = Items(
            Framing.LINES if flags & _NDJSON else Framing.OBJECT,
            gzip=bool(flags & (_GZIP | _PACKED)),
            most_bytes=most_bytes,
            most_item=most_item,
        )
        try:
            for part in pieces(body, rng):
                for piece in reader.pieces(part):
                    self.items.extend(piece)
                    self.most_held = max(self.most_held, reader.held)
            self.items.extend(reader.end())
        except BodyError as error:
            self.error = error.index, error.too_large


def check(data: bytes) -> None:
    """Only BodyError is raised; chunking makes no difference; the items are those that a decoder of the whole sees."""
    flags, body = data[0] if data else 0, data[1:]
    text = body
    if flags & _PACKED:
        body = gzip.compress(body, compresslevel=1, mtime=0)
    whole, cut = _Read(flags, body, None), _Read(flags, body, chance(data))
    if flags & (_GZIP | _PACKED) and whole.error is not None:
        # A piece that turns out broken yields nothing.
        common = min(len(whole.items), len(cut.items))
        assert repr(whole.items[:common]) == repr(cut.items[:common])
    else:
        assert repr(whole.items) == repr(cut.items)
    assert (whole.error is None) == (cut.error is None)
    if whole.error is not None:
        assert whole.error[0] == len(whole.items)
    assert max(whole.most_held, cut.most_held) <= _MANY + len(data)
    if not flags & (_GZIP | _SHORT_ITEMS | _SHORT_BODY):
        _as_decoded(bool(flags & _NDJSON), text, whole)


def _as_decoded(ndjson: bool, text: bytes, read: _Read) -> None:
    """An oracle that has the whole body at once."""
    try:
        if ndjson:
            lines = [line.strip(" \t\r") for line in text.decode().split("\n")]
            expected: Any = [
                json.loads(line, parse_constant=refuse_constant, object_pairs_hook=unique) for line in lines if line
            ]
        else:
            whole = json.loads(text.decode(), parse_constant=refuse_constant, object_pairs_hook=unique)
            members = json.loads(text.decode(), object_pairs_hook=list) if isinstance(whole, dict) else []
            # The name as it is written here, once.
            single = len(members) == 1 and '"messages"' in text.decode()
            expected = whole.get("messages") if single else None
    except (ValueError, RecursionError):
        expected = None
    if isinstance(expected, list) and all(isinstance(item, dict) for item in expected):
        assert read.error is None, f"refused: {read.error}"
        assert repr(read.items) == repr(expected)
    else:
        assert read.error is not None, "taken, although no decoder would"


def seeds() -> list[bytes]:
    """Batches that are right, and a little wrong."""
    listed = (
        b'{"messages": [{"key": "a", "payload": "x\\u00e9\\n"}, {"key": "b", "payload": {"n": [1.5e3, true, null]}}]}'
    )
    lines = b'{"key": "a", "payload": "x"}\n\n \r\n{"key": "b"}'
    odd = [
        b'{"messages": []}',
        b'{"messages": [{}], "more": 1}',
        b'{"messages": [NaN]}',
        b"[" * 50,
        b'{"messages": [{"a": -12',
    ]
    plain = [bytes((0,)) + one for one in (listed, *odd, b"\xef\xbb\xbf" + listed, listed[:-3], "é".encode()[:1])]
    short = [
        bytes((_SHORT_ITEMS,)) + listed,
        bytes((_SHORT_BODY,)) + listed * 4,
        bytes((_NDJSON | _SHORT_ITEMS,)) + lines,
    ]
    packed = gzip.compress(listed, mtime=0)
    zipped = [bytes((_GZIP,)) + packed, bytes((_GZIP,)) + packed + packed, bytes((_PACKED | _NDJSON,)) + lines]
    return [*plain, *short, *zipped, bytes((_NDJSON,)) + lines, bytes((_NDJSON,)) + b'{"a": 1} {"b": 2}\n[1]']
