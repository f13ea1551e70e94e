"""The frames of one publish: basic.publish, the content header with its stamps, and the body (AMQP section 4.2.6)."""

# mypyc: compiled

from typing import Final

from librt.strings import BytesWriter, write_i32_be, write_i64_be

from proxy.publisher.channel import ConfirmChannel, Pending
from proxy.wire.content import STAMP_ID_FIELD
from proxy.wire.frames import END, MANDATORY, U32, Piece
from proxy.wire.properties import Header

_CLASS: Final = b"\x00\x3c\x00\x00"
"""The first four bytes of a content header's payload: class 60 (basic), and the weight, which is always 0."""
_SMALL: Final = 1 << 14
"""The largest body, in bytes, that is cheaper to copy behind its headers than to hand on as separate pieces."""
_PAYLOAD: Final = 18
"""Bytes of a content header's class, weight, body size and property flags, and of the length of its headers table."""
_out: Final = BytesWriter()
"""The buffer in which a publish is put together. All share it, since `pack` fills and reads it without a pause."""


class Publish:
    """A mandatory publish that a channel has not numbered yet; it lives until it is packed."""

    __slots__ = ("_body", "_entries", "_header", "_key", "_method", "_stamp", "payload", "pending")

    def __init__(self, method: bytes, header: Header, stamp: bytes, key: bytes, body: bytes, pending: Pending) -> None:
        """Take the parts of the publish; only `method` is encoded yet, which is basic.publish up to its bits.

        `stamp` holds the first bytes of the publish's stamps (`content.stamp_of_exchange`), after which `key` follows.
        If `stamp` is empty, the ring id is the only stamp.
        """
        self._method, self._header, self._stamp, self._key, self._body = method, header, stamp, key, body
        self.pending = pending
        entries = len(STAMP_ID_FIELD) + 8 + len(header.headers)
        if stamp:
            entries += len(stamp) + 4 + len(key)
        self._entries = entries
        self.payload = _PAYLOAD + len(header.before) + entries + len(header.after)
        """Bytes of the payload of the publish's content header."""

    def pack(self, channel: ConfirmChannel, room: int, to: list[Piece]) -> None:
        """Append the publish's frames, of payloads up to `room` bytes, to `to`, as the next publish of `channel`."""
        number = channel.number + 1
        method, header, key, body = self._method, self._header, self._key, self._body
        size = len(body)
        out = _out
        out.truncate(0)
        out.write(channel.method_start)
        write_i32_be(out, len(method) + 1)
        out.write(method)
        out.append(MANDATORY)
        out.append(END)
        out.write(channel.header_start)
        write_i32_be(out, self.payload)
        out.write(_CLASS)
        write_i64_be(out, size)
        out.append(header.flags >> 8)
        out.append(header.flags & 0xFF)
        out.write(header.before)
        write_i32_be(out, self._entries)
        if self._stamp:
            out.write(self._stamp)
            write_i32_be(out, len(key))
            out.write(key)
        out.write(STAMP_ID_FIELD)
        write_i64_be(out, channel.nonce + number)
        out.write(header.headers)
        out.write(header.after)
        out.append(END)
        if 0 < size <= min(room, _SMALL):
            out.write(channel.body_start)
            write_i32_be(out, size)
            out.write(body)
            out.append(END)
        to.append(out.getvalue())
        channel.number = number
        channel.pending[number] = self.pending
        if size <= min(room, _SMALL):
            return
        whole = memoryview(body)
        for at in range(0, size, room):
            part = whole[at : at + room]
            to += (channel.body_start + U32.pack(len(part)), part, b"\xce")
