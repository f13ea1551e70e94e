"""The AMQP listener, which takes connections and at the end closes them in good order."""

import asyncio
import contextlib
import logging
import ssl
from collections import Counter
from collections.abc import Callable
from typing import cast

from proxy.session import time_limits
from proxy.session.end import SHUTTING_DOWN, End
from proxy.session.session import Session
from proxy.session.shared import Shared
from proxy.settings.parse import Address
from proxy.wire.frames import (
    CONNECTION_CLOSE_OK,
    CONNECTION_FORCED,
    CONNECTION_START,
    NOT_ALLOWED,
    PROTOCOL_HEADER,
    U32,
    close_frame,
    method_frame,
)

log = logging.getLogger(__name__)

LAST_WORDS = 0.5
"""Seconds for the close handshake of sessions that did not end in time."""

SPARE = 100
"""Connections at once that are told why they are refused; others are just closed."""

_MECHANISMS, _LOCALES = b"PLAIN AMQPLAIN", b"en_US"
_START = method_frame(
    0,
    CONNECTION_START,
    b"\0\x09" + U32.pack(0) + b"".join(U32.pack(len(text)) + text for text in (_MECHANISMS, _LOCALES)),
)
"""connection.start, which clients expect before anything else."""

_CLOSE_OK = method_frame(0, CONNECTION_CLOSE_OK)


class _Arrival(asyncio.Protocol):
    """A connection until it is complete, with TLS until the end of its handshake; then it becomes a session."""

    def __init__(self, accept: Callable[[], asyncio.Protocol | None]) -> None:
        self._accept = accept

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Hand the socket over to a session."""
        protocol = self._accept()
        if protocol is None:
            cast(asyncio.Transport, transport).abort()
            return
        transport.set_protocol(protocol)
        protocol.connection_made(transport)


class _Refusal(asyncio.Protocol):
    """A connection over the limit, or made while draining; its client is told why, and no broker is dialled."""

    def __init__(self, refusals: "set[_Refusal]", code: int, text: str) -> None:
        self._refusals, self._close = refusals, close_frame(0, code, text)
        self._transport: asyncio.Transport | None = None
        self._read = 0
        refusals.add(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Give the client as long as any peer that has got connection.close."""
        self._transport = cast(asyncio.Transport, transport)
        self._deadline = asyncio.get_running_loop().call_later(time_limits.CLOSE_WITHIN, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        """Answer the client's protocol header with connection.start and close, and end at its close-ok.

        All else is ignored.
        """
        if self._transport is None:
            return
        if self._read < len(PROTOCOL_HEADER) <= self._read + len(data):
            self._transport.write(_START + self._close)
        self._read += len(data)
        if data.endswith(_CLOSE_OK):
            self._transport.close()

    def abort(self) -> None:
        """Close the socket at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """Forget the connection."""
        self._deadline.cancel()
        self._refusals.discard(self)


class Listener:
    """The listening socket and the sessions that came from it; it lives as long as the process."""

    def __init__(self, shared: Shared, max_sessions: int) -> None:
        """The listener does not listen yet."""
        self.shared = shared
        """The state that all sessions of the listener share: routes, readings, the dialler, time limits and counts."""
        self.max_sessions = max_sessions
        """The most sessions at once; a reload may set another number, and the open ones stay."""
        self.sessions: set[Session] = set()
        self.opened = 0
        """How many sessions there were since the start."""
        self.ends: Counter[End] = Counter()
        self._server: asyncio.Server | None = None
        self._refusals: set[_Refusal] = set()
        self._full = False
        """Whether a connection was refused, and none accepted since."""
        self._draining = self._closed = False
        self._empty = asyncio.Event()

    @property
    def unsettled(self) -> int:
        """How many publishes of all sessions the broker has yet to answer."""
        return sum(session.unsettled for session in self.sessions)

    @property
    def frames(self) -> tuple[int, int]:
        """How many frames clients have sent, and how many brokers have."""
        live = [session.connection for session in self.sessions]
        shared = self.shared
        return (
            shared.client_frames + sum(c.to_broker.frames for c in live),
            shared.broker_frames + sum(c.to_client.frames for c in live),
        )

    async def start(self, address: Address, tls: ssl.SSLContext | None = None) -> Address:
        """Listen; return the address with the port that was taken. Raises OSError."""
        self._server = await asyncio.get_running_loop().create_server(
            lambda: _Arrival(self._accept),
            address.host,
            address.port,
            ssl=tls,
            ssl_handshake_timeout=time_limits.HEADER_WITHIN if tls else None,
        )
        return Address(*self._server.sockets[0].getsockname()[:2])

    def _accept(self) -> asyncio.Protocol | None:
        """Return a new session's client socket, or what refuses the client; None if the socket is to be closed at once.

        The event loop may have accepted a connection before the listening socket was closed, and hand it over later.
        """
        if self._closed:
            return None
        if self._draining:
            return self._refuse(CONNECTION_FORCED, SHUTTING_DOWN)
        if len(self.sessions) >= self.max_sessions:
            return self._too_many()
        self._full = False
        session = Session(self.shared, self._ended)
        self.sessions.add(session)
        self._empty.clear()
        self.opened += 1
        return session.client

    def _too_many(self) -> _Refusal | None:
        """Refuse a connection as RabbitMQ does beyond `connection_max`, in code and words.

        Returns None, so that it is closed without a word, if too many are being refused.
        """
        if not self._full:
            self._full = True
            log.warning(
                "%d AMQP sessions are open, as many as max_sessions allows: further ones are refused",
                len(self.sessions),
            )
        return self._refuse(NOT_ALLOWED, f"connection refused: max_sessions ({self.max_sessions}) is reached")

    def _refuse(self, code: int, text: str) -> _Refusal | None:
        """Return what refuses a connection; None if too many are being refused, so that it is closed without a word."""
        self.shared.refusals[code] += 1
        return _Refusal(self._refusals, code, text) if len(self._refusals) < SPARE else None

    def _ended(self, session: Session) -> None:
        """Count a session that is over, and how it ended."""
        self.sessions.discard(session)
        self.ends[session.end or End.CLIENT] += 1
        self.shared.client_frames += session.connection.to_broker.frames
        self.shared.broker_frames += session.connection.to_client.frames
        if not self.sessions:
            self._empty.set()

    async def drain(self, within: float) -> None:
        """Refuse connections from now on and wait for the sessions' end; end them after `within` seconds."""
        self._draining = True
        for session in list(self.sessions):
            session.drain()
        try:
            async with asyncio.timeout(within):
                if self.shared.kept is not None:
                    await self.shared.kept.drain()
                await self._emptied()
        except TimeoutError:
            log.warning("drain_time is over, and %d AMQP sessions are still open: they are closed", len(self.sessions))
            for session in list(self.sessions):
                session.shut()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_WORDS):
                    await self._emptied()

    async def _emptied(self) -> None:
        while self.sessions:
            self._empty.clear()
            await self._empty.wait()

    def close(self) -> None:
        """Drop all connections that there are, and those that come yet, at once."""
        self._closed = True
        if self._server is not None:
            self._server.close()
        for session in list(self.sessions):
            session.abort()
        for refusal in list(self._refusals):
            refusal.abort()
        if self.shared.kept is not None:
            self.shared.kept.close()
        for task in self.shared.tasks:
            task.cancel()
