"""The reading of a batch: it makes JSON objects of a body's bytes, which may come in any chunking. Sans-I/O.

Nothing holds the whole body: a window of it goes through the standard library's scanner, item by item.
"""

import codecs
import zlib
from collections.abc import Iterator

from proxy.http.formats.scanning import BodyError, Framing, Item, ItemList, Lines

_PIECE = 65536
"""Bytes that are decompressed and read at a time: of usual items a millisecond's work."""

_GZIP = 16 + zlib.MAX_WBITS


class Items:
    """The reader of one body: bytes in, in any chunking, and JSON objects out as they become whole."""

    def __init__(self, framing: Framing, *, gzip: bool, most_bytes: int, most_item: int) -> None:
        """Limit the decompressed body to `most_bytes` bytes, and one item's JSON to `most_item` characters."""
        self._parser = Lines(most_item) if framing is Framing.LINES else ItemList(most_item, framing)
        self._gunzip = _Gunzip() if gzip else None
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._begun = False
        self._most_bytes = self._left = self._compressed_left = most_bytes

    def pieces(self, data: bytes) -> Iterator[Iterator[Item]]:
        """Yield, for each piece of `data`, the items that it completes; other tasks may run between pieces.

        Take each piece's items to the last before the next piece, and all pieces before the next call. Raises BodyError
        after the items before the fault; nothing can be taken from then on.
        """
        if self._gunzip is None:
            for at in range(0, len(data), _PIECE):
                yield self._bytes(data[at : at + _PIECE])
            return
        self._compressed_left -= len(data)
        try:
            for piece in self._gunzip.pieces(data):
                yield self._bytes(piece)
        except zlib.error as error:
            yield self._broken(f"the body is not gzip: {error}")
        if self._compressed_left < 0:
            yield self._too_large()

    @property
    def held(self) -> int:
        """Bytes of memory that the item takes that is not whole yet."""
        return self._parser.held

    def end(self) -> Iterator[Item]:
        """Yield the items that only the end of the body makes whole. Raises BodyError if the body ends too early."""
        if self._gunzip is not None and not self._gunzip.whole:
            yield from self._broken("the body ends before its gzip data is complete")
        try:
            self._decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            yield from self._broken("the body ends in the middle of a character")
        yield from self._parser.end()

    def _bytes(self, data: bytes) -> Iterator[Item]:
        """Yield the items that are whole with these bytes. Raises BodyError for a fault, after the items before it."""
        fault = ""
        try:
            text = self._decoder.decode(data[: self._left])
        except UnicodeDecodeError as error:
            text = error.object[: error.start].decode()
            fault = f"the byte {error.object[error.start]:#04x} is not UTF-8 here"
        if text and not self._begun:
            self._begun = True
            if text[0] == "\ufeff":
                raise BodyError(0, "body: begins with a byte order mark")
        yield from self._parser.take(text)
        if fault:
            yield from self._broken(fault)
        self._left -= len(data)
        if self._left < 0:
            yield from self._too_large()

    def _too_large(self) -> Iterator[Item]:
        return self._broken(f"the body has more than {self._most_bytes} bytes (max_batch_body)", too_large=True)

    def _broken(self, detail: str, *, too_large: bool = False) -> Iterator[Item]:
        """Yield the items before a fault of the body, then raise it as BodyError; or an earlier fault of an item."""
        yield from self._parser.take("", now=True)
        raise self._parser.error(detail, too_large=too_large)


class _Gunzip:
    """Decompresses gzip (RFC 1952), of one member or more, by no more than a piece at a time."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(_GZIP)

    @property
    def whole(self) -> bool:
        """Whether the last gzip member has ended."""
        return self._member.eof

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Yield the decompressed data, in pieces. Raises zlib.error, also for what follows a member and is none."""
        full = False
        while data or full:
            if self._member.eof:
                self._member = zlib.decompressobj(_GZIP)
            piece = self._member.decompress(data, _PIECE)
            data = self._member.unused_data if self._member.eof else self._member.unconsumed_tail
            # More may lie ready inside the decompressor, although it has taken all.
            full = len(piece) == _PIECE and not self._member.eof
            yield piece
