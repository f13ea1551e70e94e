"""The two sockets of a session as asyncio protocols: they only feed, write, and pause each other."""

import asyncio
import time
from typing import Protocol, cast

from proxy.wire import writing
from proxy.wire.frames import Piece

BUFFER = 1 << 18
"""Bytes waiting to be sent on one leg from which the other is no longer read."""


class Ends(Protocol):
    """What a leg tells its session."""

    def received(self, leg: "PeerSocket", data: bytes) -> None:
        """Bytes came."""

    def at_end(self, leg: "PeerSocket") -> None:
        """The peer sends no more."""

    def lost(self, leg: "PeerSocket") -> None:
        """The socket is closed."""

    def flows_again(self, leg: "PeerSocket", since: float) -> None:
        """What feeds it is read again, which it was not since then (monotonic)."""


class PeerSocket(asyncio.Protocol):
    """One socket. Reading stops while anything holds it."""

    def __init__(self, session: Ends) -> None:
        """Not connected yet."""
        self._session = session
        self._transport: asyncio.Transport | None = None
        self._holds = 0
        self.has_ended = self._finished = False
        self.other: PeerSocket | None = None
        self.stopped_at: float | None = None
        """Since when what feeds this leg is not read for its sake, monotonic."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is there."""
        transport = cast(asyncio.Transport, transport)  # uvloop's are not of the class
        transport.set_write_buffer_limits(high=BUFFER)
        self._transport = transport
        if self._holds:
            transport.pause_reading()

    @property
    def is_open(self) -> bool:
        """Whether it has a socket that is not closed."""
        return self._transport is not None

    @property
    def is_held(self) -> bool:
        """Whether anything keeps it from being read."""
        return self._holds > 0

    @property
    def peer(self) -> str:
        """The peer's address, for the log."""
        name = self._transport.get_extra_info("peername") if self._transport else None
        return f"{name[0]}:{name[1]}" if name else "?"

    def data_received(self, data: bytes) -> None:
        """Feeds the session."""
        self._session.received(self, data)

    def eof_received(self) -> bool:
        """Keeps the socket open to send, where it has halves (TLS has none): the peer may have closed its own only."""
        self.has_ended = True
        self._session.at_end(self)
        self._close_if_done()
        return self._transport is not None and self._transport.can_write_eof()

    def connection_lost(self, error: Exception | None) -> None:
        """The session ends."""
        self._transport, self.has_ended = None, True
        self._session.lost(self)

    def pause_writing(self) -> None:
        """What feeds this leg stops being read."""
        self.stopped_at = time.monotonic()
        if self.other is not None:
            self.other.hold()

    def resume_writing(self) -> None:
        """What feeds this leg is read again."""
        if self.other is not None:
            self.other.release()
        if self.stopped_at is not None:
            since, self.stopped_at = self.stopped_at, None
            self._session.flows_again(self, since)

    def hold(self) -> None:
        """Reads no more, until each hold has its release."""
        self._holds += 1
        if self._holds == 1 and self._transport is not None:
            self._transport.pause_reading()

    def release(self) -> None:
        """Takes one hold back."""
        self._holds = max(self._holds - 1, 0)
        if not self._holds and self._transport is not None:
            self._transport.resume_reading()

    def write(self, frames: list[Piece]) -> None:
        """Writes them in order and empties the list."""
        if frames and self._transport is not None and not self._finished:
            writing.write(self._transport, frames)
        frames.clear()

    def finish(self) -> None:
        """Sends what is left and then the end of file; what the peer still sends is read, so that nothing resets it."""
        if self._finished or self._transport is None:
            return
        self._finished = True
        # Nothing will ask for a release any more.
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
        """Sends what is left and closes: the peer has said its last word."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Closes the socket at once."""
        if self._transport is not None:
            self._transport.abort()

    def _close_if_done(self) -> None:
        if self.has_ended and self._finished and self._transport is not None:
            self._transport.close()
