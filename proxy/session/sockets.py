"""The two sockets of a session as asyncio protocols: they only feed, write, and pause each other."""

import asyncio
import time
from typing import Protocol, cast

from proxy.wire import writing
from proxy.wire.frames import Piece

BUFFER = 1 << 18
"""The number of bytes that may wait to be sent to one peer before the opposite peer is no longer read."""


class SocketOwner(Protocol):
    """The calls by which a socket tells its session what has happened."""

    def received(self, peer: "PeerSocket", data: bytes) -> None:
        """Take bytes that a peer has sent."""

    def at_end(self, peer: "PeerSocket") -> None:
        """Note that a peer sends no more."""

    def lost(self, peer: "PeerSocket") -> None:
        """Note that a peer's socket is closed."""

    def flows_again(self, peer: "PeerSocket", since: float) -> None:
        """Note that what feeds a peer is read again, which it was not since then (monotonic)."""


class PeerSocket(asyncio.Protocol):
    """The socket to one peer of a session, the client or the broker; it is not read while anything holds it."""

    def __init__(self, session: SocketOwner) -> None:
        """The socket is not connected yet."""
        self._session = session
        self._transport: asyncio.Transport | None = None
        self._holds = 0
        self.has_ended = self._finished = False
        self.other: PeerSocket | None = None
        self.since = 0.0
        """The monotonic time at which the socket was connected."""
        self.stopped_at: float | None = None
        """The monotonic time since which a full socket here keeps the opposite peer unread; None while it is read."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the socket, once it is connected."""
        transport = cast(asyncio.Transport, transport)  # uvloop's are not of the class
        transport.set_write_buffer_limits(high=BUFFER)
        self._transport, self.since = transport, time.monotonic()
        if self._holds:
            transport.pause_reading()

    def give_up(self) -> asyncio.Transport | None:
        """Return the connection for another protocol, and count as closed from now on; None if it is closed."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return None
        self._transport, self.has_ended = None, True
        return transport

    @property
    def is_open(self) -> bool:
        """Whether the socket is connected and not closed."""
        return self._transport is not None

    @property
    def is_held(self) -> bool:
        """Whether anything keeps the socket from being read."""
        return self._holds > 0

    @property
    def peer(self) -> str:
        """The peer's address, for the log."""
        name = self._transport.get_extra_info("peername") if self._transport else None
        return f"{name[0]}:{name[1]}" if name else "?"

    def data_received(self, data: bytes) -> None:
        """Feed the session."""
        self._session.received(self, data)

    def eof_received(self) -> bool:
        """Return whether the socket stays open to send: not with TLS. The peer may have closed only its own half."""
        self.has_ended = True
        self._session.at_end(self)
        self._close_if_done()
        return self._transport is not None and self._transport.can_write_eof()

    def connection_lost(self, error: Exception | None) -> None:
        """Tell the session that the socket is closed."""
        self._transport, self.has_ended = None, True
        self._session.lost(self)

    def pause_writing(self) -> None:
        """Stop reading the opposite peer, whose bytes fill this socket's buffer."""
        self.stopped_at = time.monotonic()
        if self.other is not None:
            self.other.hold()

    def resume_writing(self) -> None:
        """Read the opposite peer again, since this socket's buffer has room for its bytes."""
        if self.other is not None:
            self.other.release()
        if self.stopped_at is not None:
            since, self.stopped_at = self.stopped_at, None
            self._session.flows_again(self, since)

    def hold(self) -> None:
        """Read no more, until each hold has its release."""
        self._holds += 1
        if self._holds == 1 and self._transport is not None:
            self._transport.pause_reading()

    def release(self) -> None:
        """Take back one of the holds that keep the socket from being read."""
        self._holds = max(self._holds - 1, 0)
        if not self._holds and self._transport is not None:
            self._transport.resume_reading()

    def write(self, frames: list[Piece]) -> None:
        """Write frames in order, and empty the list."""
        if frames and self._transport is not None and not self._finished:
            writing.write(self._transport, frames)
        frames.clear()

    def finish(self) -> None:
        """Send what is buffered, then the end of file; the peer is read on: unread bytes would reset the socket."""
        if self._finished or self._transport is None:
            return
        self._finished = True
        # Nobody will ask for a release any more.
        self._holds = 0
        self._transport.resume_reading()
        try:
            if self._transport.can_write_eof():
                self._transport.write_eof()
            else:
                self._transport.close()
        except OSError:  # the peer was faster
            self._transport.abort()
        self._close_if_done()

    def close(self) -> None:
        """Send what is buffered and close: the peer has sent its last."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the socket at once."""
        if self._transport is not None:
            self._transport.abort()

    def _close_if_done(self) -> None:
        if self.has_ended and self._finished and self._transport is not None:
            self._transport.close()
