"""Broker connections that stay open behind their client, for the next client that logs in with the very same bytes.

Theory of operation
-------------------

A program that lives for one request, as PHP's do, pays for a login with each message: TCP and TLS, and five answers of
the broker. A session whose client closes its connection in good order may therefore leave its broker connection here,
once it has closed all channels on it. At most one session has a connection at any time.

A new client's session dials as ever, by `KeptConnections.dial`. If a connection is kept, a stand-in takes the place of
the broker's socket, and answers the handshake out of the frames that opened the kept connection:

    the session sends       the stand-in
    protocol header         gives the broker's start
    start-ok                looks for a connection that was opened so, and gives the broker's tune
    tune-ok                 looks for a connection that was opened so
    open                    the same; gives the broker's open-ok, and puts the kept connection in its own place

If there is none, the stand-in dials a broker. It repeats to it what the client has said, and drops the answers that the
client has got already. The broker then judges the login. A client thus gets a kept connection only with the login that
a broker has accepted within `seconds`, and with the same virtual host, limits and heartbeat. The login is compared as a
whole: mechanism, credentials, and the properties that the broker shows. Nodes of one cluster and version count as one
broker. A broker that answers otherwise than the client has heard already is another node with other limits, or another
cluster: the client is told to connect again.

A connection counts as its session's from the login on that it fits, and `most` counts the others. The oldest of them
gives way to a newer one, but not while another is being closed: a broker that does not answer has no more of them.

A kept connection sends nothing. It ends `seconds` after its login, however often it was used, and before the broker
misses a heartbeat. It also ends once the broker says anything on it but heartbeats. Whatever outlives a channel keeps a
connection from staying: `closing.may_keep` has the list.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from proxy.session import time_limits
from proxy.session.handshake import digest
from proxy.session.reads import frames
from proxy.session.sockets import PeerSocket
from proxy.topology.cluster import ClusterIdentity
from proxy.wire.arguments import Arguments, broker_in
from proxy.wire.frames import (
    CONNECTION_CLOSE,
    CONNECTION_CLOSE_OK,
    CONNECTION_FORCED,
    CONNECTION_START_OK,
    HEARTBEAT,
    HEARTBEAT_FRAME,
    LEAST_METHOD,
    METHOD,
    PROTOCOL_HEADER,
    REPLY_SUCCESS,
    close_frame,
    method_frame,
    method_of,
    u16,
)

log = logging.getLogger(__name__)

LAST_WORDS = 0.5
"""Seconds in which brokers answer the connection.close of kept connections as this proxy ends."""

_GOODBYE = close_frame(0, REPLY_SUCCESS, "ringproxy keeps this connection no longer")
_GOODBYE_OK = method_frame(0, CONNECTION_CLOSE_OK)
_DIFFERS = close_frame(0, CONNECTION_FORCED, "the broker is another one than before; connect again")


P = TypeVar("P", bound=asyncio.BaseProtocol)


class Dial(Protocol):
    """The function that connects a protocol to a broker; it raises OSError if no broker can be reached."""

    def __call__(self, make: Callable[[], P]) -> Coroutine[Any, Any, P]:
        """Return the protocol, connected."""


class Terms(NamedTuple):
    """The frames that opened a broker connection, in their order; the client's are those that the broker got."""

    start: bytes
    login: bytes
    """A digest of start-ok, which has the password."""
    tune: bytes
    tune_ok: bytes
    open: bytes
    open_ok: bytes

    @property
    def heartbeat(self) -> int:
        """Seconds between heartbeats; 0 for none."""
        return u16(self.tune_ok, len(self.tune_ok) - 3)


_ALL_BUT_OPEN_OK = len(Terms._fields) - 1


class _Kept(asyncio.Protocol):
    """One connection while no session has it; also while it says goodbye to the broker."""

    def __init__(
        self, transport: asyncio.Transport, since: float, until: float, terms: Terms, ended: Callable[["_Kept"], None]
    ) -> None:
        """`since` is when it was connected, and `until` when it must have a client or end, in monotonic seconds.

        `ended` is called once the socket is closed, or no longer good for another client.
        """
        self.transport, self.since, self.until, self.terms, self._ended = transport, since, until, terms, ended
        self.is_sound = True
        """Whether the connection is good for another client."""
        self.is_open = True
        self._rest = b""
        self._timer: asyncio.TimerHandle | None = None
        transport.set_protocol(self)
        transport.resume_reading()

    @property
    def is_quiet(self) -> bool:
        """Whether the broker is not in the midst of a heartbeat."""
        return not self._rest

    def fits(self, opened: Sequence[bytes]) -> bool:
        """Return whether the connection was opened so behind the broker's start, as far as `opened` goes.

        It must be good for another client, too.
        """
        is_good = self.is_sound and self.is_quiet and time.monotonic() < self.until
        return is_good and self.terms[1 : len(opened)] == tuple(opened[1:])

    def within(self, seconds: float, do: Callable[[], None] | None) -> None:
        """Call a function after so many seconds, in place of the one before; None calls none."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, do) if do is not None else None

    def data_received(self, data: bytes) -> None:
        """Take the broker's heartbeats; anything else ends the connection."""
        self._rest += data
        while self._rest.startswith(HEARTBEAT_FRAME):
            self._rest = self._rest[len(HEARTBEAT_FRAME) :]
        if HEARTBEAT_FRAME.startswith(self._rest):
            return
        told = {
            method_of(self._rest, i)
            for kind, _, i, end in frames(self._rest)
            if kind == METHOD and end - i >= LEAST_METHOD and end <= len(self._rest)
        }
        if CONNECTION_CLOSE in told:
            self.transport.write(_GOODBYE_OK)
        if told & {CONNECTION_CLOSE, CONNECTION_CLOSE_OK}:
            self.transport.close()
        elif self.is_sound:
            self.leave()
        self._done()

    def connection_lost(self, error: Exception | None) -> None:
        """Forget the connection."""
        self.is_open = False
        self.within(0, None)
        self._done()

    def leave(self) -> None:
        """Close the connection in good order."""
        if self.is_sound:
            self.transport.write(_GOODBYE)
            self.within(time_limits.CLOSE_WITHIN, self.transport.abort)
            self._done()

    def _done(self) -> None:
        self.is_sound = False
        self._ended(self)


class KeptConnections:
    """The broker connections of one listener that no session has at the moment."""

    def __init__(
        self,
        dial: Dial,
        most: int,
        seconds: float,
        identity: ClusterIdentity,
    ) -> None:
        """Keep `most` connections at once, each until `seconds` after its login.

        `dial` connects to a broker, and raises OSError. A connection whose broker told another name of its
        cluster than `identity` has is not used.
        """
        self._dial, self._most, self._seconds, self._identity = dial, most, seconds, identity
        self._idle: dict[_Kept, None] = {}
        """The connections that wait for a client, in the order in which they came."""
        self._leaving: set[_Kept] = set()
        self._left = asyncio.Event()
        self._closed = False
        self.reused = 0
        """How many sessions got a kept connection."""

    def __len__(self) -> int:
        """Return how many connections wait for a client."""
        return len(self._idle)

    async def dial(self, make: Callable[[], PeerSocket]) -> PeerSocket:
        """Connect a session's socket: to a stand-in if a connection is kept, else to a broker. Raises OSError."""
        for kept in reversed(self._idle):
            if self._is_good(kept.since, kept.terms.start):
                socket = make()
                socket.connection_made(_StandIn(self, self._dial, socket, kept.terms.start))
                return socket
        return await self._dial(make)

    def wants(self, socket: PeerSocket, start: bytes) -> bool:
        """Return whether `keep` would take a session's broker connection over, which `start` began."""
        has_room = len(self._idle) + len(self._leaving) <= self._most
        return has_room and not self._closed and self._is_good(socket.since, start)

    def keep(self, socket: PeerSocket, terms: Terms) -> bool:
        """Take a session's broker connection over, on which no channel is open; return False if it is not wanted."""
        transport = socket.give_up() if self.wants(socket, terms.start) else None
        if transport is None:
            return False
        if len(self._idle) >= self._most:
            next(iter(self._idle)).leave()
        until = socket.since + self._seconds
        if terms.heartbeat:
            until = min(until, time.monotonic() + terms.heartbeat / 2)
        self._add(_Kept(transport, socket.since, until, terms, self._ended))
        return True

    def _add(self, kept: _Kept) -> None:
        """Have a connection wait for a client."""
        self._idle[kept] = None
        kept.within(kept.until - time.monotonic(), kept.leave)

    def take(self, opened: Sequence[bytes]) -> _Kept | None:
        """Return the connection that was kept last of those whose terms begin so; None if there is none."""
        for kept in reversed(self._idle):
            start = kept.terms.start
            if kept.fits(opened) and self._is_good(kept.since, start) and self.is_one_broker(start, opened[0]):
                del self._idle[kept]
                kept.within(0, None)
                return kept
        return None

    def put_back(self, kept: _Kept) -> None:
        """Have a connection wait again that `take` has returned and no client has got."""
        if not kept.is_sound:
            return
        if self._closed or len(self._idle) >= self._most:
            kept.leave()
        else:
            self._add(kept)

    def is_one_broker(self, start: bytes, other: bytes) -> bool:
        """Return whether a broker's connection.start is of the version and the cluster of another one, heard before."""
        (cluster, version), (other_cluster, other_version) = _broker(start), _broker(other)
        return version == other_version and self._identity.is_same(cluster, other_cluster)

    def _is_good(self, since: float, start: bytes) -> bool:
        return time.monotonic() < since + self._seconds and not self._identity.mismatch(_broker(start)[0])

    def _ended(self, kept: _Kept) -> None:
        self._idle.pop(kept, None)
        if kept.is_open:
            self._leaving.add(kept)
        else:
            self._leaving.discard(kept)
        if not self._leaving:
            self._left.set()

    async def drain(self) -> None:
        """Keep no connection from now on, and close those that there are."""
        self._closed = True
        for kept in list(self._idle):
            kept.leave()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS):
                while self._leaving:
                    self._left.clear()
                    await self._left.wait()

    def close(self) -> None:
        """Drop all connections at once."""
        self._closed = True
        for kept in (*self._idle, *self._leaving):
            kept.transport.abort()


class _StandIn(asyncio.Transport):
    """The broker's socket as a session sees it, until the session has a connection to a broker."""

    def __init__(self, kept: KeptConnections, dial: Dial, socket: PeerSocket, start: bytes) -> None:
        """`start` is the connection.start that the client gets."""
        super().__init__()
        self._pool, self._dial, self._socket = kept, dial, socket
        self._opened = [start]
        """The frames so far, as `Terms` has it."""
        self._rest = b""
        self._turns: list[tuple[bytes, list[bytes]]] = []
        """The broker's frames that the client has got, each with the client's frames behind it."""
        self._kept: _Kept | None = None
        """The connection that the client gets, if all that it says fits; no other client can get it meanwhile."""
        self._dialling: asyncio.Task[None] | None = None
        self._is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Answer the client's frames; the first bytes are the protocol header."""
        if not self._turns:
            self._say(self._opened[0])
            return
        data, behind = self._rest + bytes(data), 0
        for kind, _, i, end in frames(data):
            if end > len(data):
                break
            behind = end
            self._turns[-1][1].append(data[i:end])
            if kind == METHOD and self._dialling is None:
                self._answer(data[i:end])
        self._rest = data[behind:]

    def _answer(self, frame: bytes) -> None:
        is_login = method_of(frame, 0) == CONNECTION_START_OK
        self._opened.append(digest(frame) if is_login else frame)
        if self._kept is None or not self._kept.fits(self._opened):
            self._put_back()
            self._kept = self._pool.take(self._opened)
        if self._kept is None:
            self._dialling = asyncio.get_running_loop().create_task(self._dial_broker())
        elif is_login:
            self._opened.append(self._kept.terms.tune)
            self._say(self._kept.terms.tune)
        elif len(self._opened) == _ALL_BUT_OPEN_OK:
            self._hand_over(self._kept)

    def _say(self, frame: bytes) -> None:
        """Give the client a frame of the broker's, in the next turn of the event loop."""
        self._turns.append((frame, []))
        asyncio.get_running_loop().call_soon(self._feed, frame)

    def _feed(self, data: bytes) -> None:
        if self._socket.is_open:
            self._socket.data_received(data)

    def _hand_over(self, kept: _Kept) -> None:
        self._kept = None
        self._pool.reused += 1
        self.replace(kept.transport, kept.since)
        # The session is in the midst of a write.
        asyncio.get_running_loop().call_soon(self._feed, kept.terms.open_ok)

    def replace(self, transport: asyncio.Transport, since: float, data: bytes = b"") -> None:
        """Give the session the socket of a broker, connected since then, and what the broker has said on it."""
        transport.set_protocol(self._socket)
        self._socket.connection_made(transport)
        self._socket.since = since
        if data:
            self._feed(data)

    async def _dial_broker(self) -> None:
        """Connect to a broker, which hears what the client has said so far."""
        try:
            await self._dial(lambda: _CatchUp(self, self._turns, self._pool.is_one_broker))
        except Exception as error:  # the client waits for an answer, or for this end
            client = self._socket.other
            why = str(error) or type(error).__name__
            log.warning("client %s: no connection to the broker: %s", client.peer if client else "?", why)
            self.abort()

    def _put_back(self) -> None:
        if self._kept is not None:
            self._pool.put_back(self._kept)
            self._kept = None

    def abort(self) -> None:
        """Take it that the session needs no broker any more."""
        if not self._is_closed:
            self._is_closed = True
            self._put_back()
            if self._dialling is not None:
                self._dialling.cancel()
            asyncio.get_running_loop().call_soon(self._socket.connection_lost, None)

    @property
    def is_closed(self) -> bool:
        """Whether the session needs no broker any more."""
        return self._is_closed

    close = abort

    def can_write_eof(self) -> bool:
        """Return False: an end of the client's is a close."""
        return False

    def pause_reading(self) -> None:
        """Do nothing: a handshake has few bytes."""

    def resume_reading(self) -> None:
        """Do nothing, as `pause_reading`."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing, as `pause_reading`."""


def _broker(start: bytes) -> tuple[str | None, tuple[int, int]]:
    """Return the cluster's name and the broker's version from connection.start."""
    return broker_in(Arguments(start, 0, len(start)))


class _CatchUp(asyncio.Protocol):
    """A new connection to a broker, which is told what a client has said to a stand-in."""

    def __init__(
        self,
        stand_in: _StandIn,
        turns: list[tuple[bytes, list[bytes]]],
        is_one_broker: Callable[[bytes, bytes], bool],
    ) -> None:
        self._stand_in, self._turns, self._is_one_broker = stand_in, turns, is_one_broker
        self._transport: asyncio.Transport | None = None
        self._since = 0.0
        self._rest = b""
        self._told = 0
        """How many of the turns the broker has got."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        self._transport, self._since = cast(asyncio.Transport, transport), time.monotonic()
        if self._stand_in.is_closed:
            self._transport.abort()
        else:
            self._transport.write(PROTOCOL_HEADER)

    def data_received(self, data: bytes) -> None:
        """Drop what the client has got already, and answer it with what the client has said."""
        transport = self._transport
        if transport is None or self._stand_in.is_closed:
            return
        self._rest += data
        behind = 0
        for kind, _, i, end in frames(self._rest):
            if end > len(self._rest):
                break
            behind = end
            frame = self._rest[i:end]
            if kind == HEARTBEAT:
                continue
            said, answers = self._turns[self._told]
            is_same = method_of(frame, 0) == method_of(said, 0)
            if not is_same or not (frame == said if self._told else self._is_one_broker(frame, said)):
                # The broker refuses the login, or is another one than the client has heard of.
                refused = self._rest[i:] if method_of(frame, 0) == CONNECTION_CLOSE else _DIFFERS
                self._stand_in.replace(transport, self._since, refused)
                return
            transport.write(b"".join(answers))
            self._told += 1
            if self._told == len(self._turns):
                self._stand_in.replace(transport, self._since, self._rest[end:])
                return
        self._rest = self._rest[behind:]

    def connection_lost(self, error: Exception | None) -> None:
        """End the session, since its broker has ended."""
        self._stand_in.abort()
