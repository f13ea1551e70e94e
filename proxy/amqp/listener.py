"""The AMQP listener: takes connections, and at the end closes them in good order."""

import asyncio
import contextlib
import logging
import ssl
from collections import Counter
from collections.abc import Callable

# For those who still import it from here.
from proxy.amqp.brokers import Brokers as Brokers
from proxy.amqp.legs import Leg
from proxy.amqp.session import End, Session, Shared
from proxy.config import Address

log = logging.getLogger(__name__)

LAST_WORDS = 0.5
"""Seconds for the close handshake of sessions that did not end in time."""


class _Arrival(asyncio.Protocol):
    """A connection until it is there, with TLS until the end of its handshake: a session is none before."""

    def __init__(self, accept: Callable[[], Leg | None]) -> None:
        self._accept = accept

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Hands the socket over to a session's leg."""
        leg = self._accept()
        if leg is None:
            transport.close()
            return
        transport.set_protocol(leg)
        leg.connection_made(transport)


class Listener:
    """The sessions, and the socket that they come from."""

    def __init__(self, shared: Shared) -> None:
        """Not listening yet."""
        self._shared = shared
        self.sessions: set[Session] = set()
        self.opened = 0
        """Sessions, since the start."""
        self.ends: Counter[End] = Counter()
        self._server: asyncio.Server | None = None
        self._draining = False
        self._empty = asyncio.Event()

    @property
    def shared(self) -> Shared:
        """What the sessions count together."""
        return self._shared

    @property
    def unsettled(self) -> int:
        """Publishes of all sessions that the broker has yet to answer."""
        return sum(session.unsettled for session in self.sessions)

    @property
    def frames(self) -> tuple[int, int]:
        """Frames that clients, and that brokers, have sent."""
        live = [session.connection for session in self.sessions]
        shared = self._shared
        return (
            shared.client_frames + sum(c.client_frames for c in live),
            shared.broker_frames + sum(c.broker_frames for c in live),
        )

    async def start(self, address: Address, tls: ssl.SSLContext | None = None) -> Address:
        """Listens; the address with the port that it got. Raises OSError."""
        self._server = await asyncio.get_running_loop().create_server(
            lambda: _Arrival(self._accept), address.host, address.port, ssl=tls
        )
        return Address(*self._server.sockets[0].getsockname()[:2])

    def _accept(self) -> Leg | None:
        """The client's leg of a new session; None for what came too late."""
        if self._draining:
            return None
        session = Session(self._shared, self._ended)
        self.sessions.add(session)
        self._empty.clear()
        self.opened += 1
        return session.client

    def _ended(self, session: Session) -> None:
        self.sessions.discard(session)
        self.ends[session.end or End.CLIENT] += 1
        self._shared.client_frames += session.connection.client_frames
        self._shared.broker_frames += session.connection.broker_frames
        if not self.sessions:
            self._empty.set()

    async def drain(self, within: float) -> None:
        """Takes no more connections, and returns once all sessions have ended; `within` seconds later it ends them."""
        self._draining = True
        if self._server is not None:
            self._server.close()
        for session in list(self.sessions):
            session.drain()
        try:
            async with asyncio.timeout(within):
                await self._emptied()
        except TimeoutError:
            log.warning("%d AMQP sessions were still open at the end of the drain time", len(self.sessions))
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
        """Drops whatever is left."""
        if self._server is not None:
            self._server.close()
        for session in list(self.sessions):
            session.abort()
        for task in self._shared.tasks:
            task.cancel()
