"""The connections of a listener: bytes that are not HTTP get a problem, and all that clients keep waiting is bounded.

aiohttp bounds the lines of a request's head (8 KiB each, 128 headers), and what waits unread of bodies (128 KiB a
connection). `proxy.http.admission.gate` bounds bodies. This module bounds the rest: whole heads, requests behind
another, connections, the time until a request has come, TLS handshakes, and answers that are not read.

Two of these bounds, those of whole heads and of requests behind another, need three private parts of aiohttp's:
`RequestHandler._parser`, `_max_msg_queue_size` and `_msg_queue_resume_size`. `AIOHTTP` says which versions have them.
"""

import asyncio
import contextlib
import logging
import re
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, cast

import aiohttp
from aiohttp import EMPTY_PAYLOAD, StreamReader, web
from aiohttp.http_exceptions import HttpProcessingError

from proxy.http.admission.limits import LEAST_RATE, Limits
from proxy.http.formats.parsing import head_size
from proxy.http.formats.problems import ProblemError
from proxy.outcome import Outcome
from proxy.settings.parse import Address

log = logging.getLogger(__name__)

_KEEP_ALIVE = 75.0
"""Seconds from an answer to the end of the next request's head."""

MOST_HEAD = 1 << 16
"""The most bytes that a request's head may have."""

_MOST_BEHIND = 2
"""The most requests that may wait behind another before no more bytes are read; one read may bring more."""

AIOHTTP = (3, 14, 1), (3, 15)
"""The first version of aiohttp that has the private parts used here, and the first that was not looked at."""


def check_aiohttp(version: str) -> None:
    """Raise ImportError if this version of aiohttp may lack the private parts that the bounds of heads need."""
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:3])
    first, after = AIOHTTP
    if not first <= numbers < after:
        least, below = (".".join(map(str, each)) for each in AIOHTTP)
        raise ImportError(
            f"aiohttp {version} is installed, and ringproxy needs aiohttp>={least},<{below}: it bounds requests by "
            f"parts of it that other versions may lack. To install one: pip install 'aiohttp>={least},<{below}'",
            name="aiohttp",
        )


check_aiohttp(aiohttp.__version__)


FastPath = Callable[[web.BaseRequest], Awaitable[web.StreamResponse] | None]

FAST_PATH: web.AppKey[FastPath] = web.AppKey("fast_path")
"""The function of an application that answers some requests past aiohttp's routing, and returns None for the others.

A single publish, with a broker that confirms at once, takes 83 us of CPU by it and 102 us by aiohttp's routing (medians
of 12 runs of 8,000 requests on one connection, in turn; aiohttp 3.14, Python 3.11, modules compiled).
"""


class ConnectionBounds(NamedTuple):
    """The limits of what the clients of one listener may keep waiting."""

    seconds: float
    """Seconds for a TLS handshake, then for the first request's head, and for each part of an answer to be read: the
    rest of it, or at least LEAST_RATE bytes a second."""
    connections: int
    """Connections that may be open at once."""
    limits: Limits
    """The limits in which the bytes of unread answers are counted."""
    limit: str = "max_http_connections"
    """The name of the connections' limit in the log: a setting."""
    lingering: float = 10.0
    """Seconds, at most, in which the rest of an unwanted body is read, so that its sender reads the answer."""


class ProblemRunner:
    """Runs an application on connections that are bounded, and answers malformed HTTP with problems."""

    def __init__(
        self,
        app: web.Application,
        bounds: ConnectionBounds,
        *,
        shutdown_timeout: float,
        answers: Counter[int] | None = None,
    ) -> None:
        """`shutdown_timeout` in seconds is for the last bytes of answers; `answers` counts them by status."""
        self._app, self._bounds, self._shutdown_timeout = app, bounds, shutdown_timeout
        self._answers: Counter[int] = Counter() if answers is None else answers
        self._runner = web.AppRunner(app)
        self._listening: list[asyncio.Server] = []
        self.server: _Server | None = None
        """The factory of each connection's protocol; None before `setup`."""

    async def setup(self) -> None:
        """Make the application ready to answer; it listens nowhere yet."""
        await self._runner.setup()
        made = self._runner.server
        assert made is not None
        self.server = _Server(made, self._app.get(FAST_PATH), self._bounds, self._answers)

    async def listen(self, address: Address, tls: ssl.SSLContext | None = None) -> None:
        """Listen on one more address; a TLS handshake that is not done in time ends. Raises OSError."""
        assert self.server is not None
        self._listening.append(
            await asyncio.get_running_loop().create_server(
                self.server,
                *address,
                ssl=tls,
                ssl_handshake_timeout=self._bounds.seconds if tls else None,
                backlog=_BACKLOG,
            )
        )

    async def listen_on(self, bound: socket.socket) -> None:
        assert self.server is not None
        loop = asyncio.get_running_loop()
        self._listening.append(await loop.create_server(self.server, sock=bound, backlog=_BACKLOG))

    @property
    def addresses(self) -> list[Any]:
        """The addresses of all sockets that the server listens on, as the operating system names them."""
        return [each.getsockname() for listening in self._listening for each in listening.sockets]

    def limit_connections(self, most: int) -> None:
        """Let so many connections be open at once. Those that are open stay."""
        assert self.server is not None
        self.server.limit_connections(most)

    def drain(self) -> None:
        """From now on close each connection behind its next answer, so that its client connects elsewhere."""
        assert self.server is not None
        self.server.draining = True

    async def take_leave(self, seconds: float) -> None:
        """Stop listening, and answer what still comes until every connection is closed, for `seconds` at most.

        A client that has just read an answer may send its next request before it learns of the shutdown.
        """
        assert self.server is not None
        self._stop_listening()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.server.deserted.wait()

    async def cleanup(self) -> None:
        """Stop listening, give the answers on their way `shutdown_timeout` seconds, and close every connection."""
        self._stop_listening()
        if self.server is not None:
            # Requests that have come already begin to be answered before idle connections are closed.
            await asyncio.sleep(0)
            self.server.pre_shutdown()
            await self.server.shutdown(self._shutdown_timeout)
        await self._runner.cleanup()

    def _stop_listening(self) -> None:
        for each in self._listening:
            each.close()
        self._listening.clear()


_BACKLOG = 1024
"""Connections that the kernel keeps until they are accepted; whoever finds that full tries again after a second."""


class _Server(web.Server):
    """The maker of each connection's protocol, and the count of the open connections."""

    def __init__(
        self, made: web.Server, fast_path: FastPath | None, bounds: ConnectionBounds, answers: Counter[int]
    ) -> None:
        rest = made.request_handler

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            cast(_Protocol, request.protocol).has_asked()
            answer = fast_path(request) if fast_path is not None else None
            response = await (rest(request) if answer is None else answer)
            if self.draining:
                response.force_close()
            answers[response.status] += 1
            return response

        super().__init__(handle, request_factory=made.request_factory)
        self.loop = asyncio.get_running_loop()
        self.bounds, self.answers = bounds, answers
        self.open = 0
        """The number of connections that are open."""
        self.deserted = asyncio.Event()
        """Set while no connection is open."""
        self.deserted.set()
        self.draining = False
        """Whether each connection is closed behind its next answer."""
        self.silent: dict[_Protocol, None] = {}
        """The open connections that have not sent a whole request yet, the oldest first."""
        self._warned = False

    def __call__(self) -> web.RequestHandler:
        return _Protocol(self)

    def limit_connections(self, most: int) -> None:
        """Let so many connections be open at once, and warn once more where they are."""
        self.bounds, self._warned = self.bounds._replace(connections=most), False

    def has_room(self) -> bool:
        """Return whether one more connection may stay. At the limit, make room: close the oldest without a request.

        A client that opens connections and sends no request therefore keeps no other client out.
        """
        if self.open < self.bounds.connections:
            return True
        if not self._warned:
            self._warned = True
            log.warning(
                "%d HTTP connections are open, as many as %s allows: a further one takes the place of the oldest "
                "that sent no whole request, or is closed",
                self.open,
                self.bounds.limit,
            )
        oldest = next(iter(self.silent), None)
        if oldest is None:
            return False
        oldest.evict()
        return True


_AIOHTTP_OPTIONS: Mapping[str, Any] = {
    "access_log": None,
    # Bodies are payloads: they are published as they are, compressed or not.
    "auto_decompress": False,
    "keepalive_timeout": _KEEP_ALIVE,
}


class _HeadTooLargeError(HttpProcessingError):
    """The head of a request has more than MOST_HEAD bytes."""

    def __init__(self) -> None:
        super().__init__(code=431, message=f"the head has more than {MOST_HEAD} bytes")


class _HeadLimitedParser:
    """The parser of one connection: aiohttp's, with a bound for the whole head, be it complete or not."""

    def __init__(self, parser: Any) -> None:
        self._parser = parser
        self.message_consumed = parser.message_consumed  # asked for with every request
        self._size = 0
        """Bytes of an incomplete head that have come so far."""
        self._reach = 0
        """Bytes of all reads since the last head ended, with that read: the next head has no more."""
        self._body: StreamReader = EMPTY_PAYLOAD
        """The body of the last request; once it has ended, what follows is another request's head."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)

    def feed_data(self, data: bytes) -> Any:
        """Parse more bytes, as aiohttp does. Raises HttpProcessingError, also for a head that is too long."""
        if self._size > MOST_HEAD:
            raise _HeadTooLargeError
        in_head = self._body.is_eof()
        found = self._parser.feed_data(data)
        self._reach += len(data)
        if found[0]:
            self._size, self._body = 0, found[0][-1][1]
            # Without data they are of what was fed before.
            if self._reach > MOST_HEAD or not data:
                for message, _ in found[0]:
                    if head_size(message.path, message.raw_headers) > MOST_HEAD:
                        self._size = MOST_HEAD + 1
            # Without data, what was fed before may hold a head's beginning, too.
            self._reach = len(data) or self._reach
        elif in_head:
            self._size += len(data)
        if self._size > MOST_HEAD:
            raise _HeadTooLargeError
        return found


class _Protocol(web.RequestHandler):
    """The protocol of one connection of a listener, from its acceptance to its end."""

    __slots__ = ("_first", "_server", "_to", "_unread", "_unread_timer")

    def __init__(self, server: _Server) -> None:
        super().__init__(server, loop=server.loop, lingering_time=server.bounds.lingering, **_AIOHTTP_OPTIONS)
        self._parser = cast(Any, _HeadLimitedParser(self._parser))
        self._max_msg_queue_size, self._msg_queue_resume_size = _MOST_BEHIND, 0
        self._server = server
        self._to: asyncio.Transport | None = None
        """The transport, kept until it is lost or evicted, even after aiohttp has closed it; None if it was refused."""
        self._first: asyncio.TimerHandle | None = None
        """Ends the wait for the first request; None once that has come."""
        self._unread = 0
        """Bytes of answers that were waiting to be sent when they were last counted."""
        self._unread_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection and time its first request, or refuse it."""
        to, server = cast(asyncio.Transport, transport), self._server
        if not server.has_room():
            to.abort()
            return
        server.open += 1
        server.deserted.clear()
        server.silent[self] = None
        self._to = to
        self._first = server.loop.call_later(server.bounds.seconds, self.force_close)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Count the connection out, and give back what its unread answers held."""
        self._count_out()
        super().connection_lost(exc)

    def has_asked(self) -> None:
        """Note that a whole request has come, which ends the wait for the first."""
        if self._first is not None:
            self._first.cancel()
            self._first = None
            self._server.silent.pop(self, None)

    def evict(self) -> None:
        """Close this connection at once, and count it out, to make room for a new one."""
        to = self._to
        self._count_out()
        if to is not None:
            to.abort()

    def _count_out(self) -> None:
        """Stop counting this connection among the open ones; does nothing the second time.

        It also ends the wait for the first request, and gives back the bytes that unread answers held of the limits.
        """
        if self._to is not None:
            self._to = None
            self._server.open -= 1
            if not self._server.open:
                self._server.deserted.set()
            self.has_asked()
            self._forget_unread()

    async def start(self) -> None:
        """Answer the connection's requests, until it ends."""
        try:
            await super().start()
        finally:
            # An answer that the client does not read keeps a connection open after its close.
            if self._to is not None and self._unread_timer is None and self._to.get_write_buffer_size():
                self._wait_for_reader(self._to)

    def pause_writing(self) -> None:
        """Begin to time a client that lets more than a little of an answer wait."""
        super().pause_writing()
        if self._to is not None and self._unread_timer is None:
            self._wait_for_reader(self._to)

    def resume_writing(self) -> None:
        """End the timing: the client has read most of the answer."""
        self._forget_unread()
        super().resume_writing()

    def _wait_for_reader(self, to: asyncio.Transport) -> None:
        bounds = self._server.bounds
        self._unread = to.get_write_buffer_size()
        bounds.limits.take(0, self._unread)
        self._unread_timer = self._server.loop.call_later(bounds.seconds, self._look_at_reader)

    def _look_at_reader(self) -> None:
        """Close the connection if the client has read less than LEAST_RATE since the last look; else wait on."""
        before, to = self._unread, self._to
        self._forget_unread()
        if to is None:
            return
        if before - to.get_write_buffer_size() < self._server.bounds.seconds * LEAST_RATE:
            to.abort()
        else:
            self._wait_for_reader(to)

    def _forget_unread(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None
        self._server.bounds.limits.give(0, self._unread)
        self._unread = 0

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Return a 400 that shows what could not be parsed; close the connection, since its place in it is lost."""
        if isinstance(exc, _HeadTooLargeError):
            status = exc.code
        self._server.answers[status] += 1
        if status >= 500:
            return super().handle_error(request, status, exc, message)
        detail = " ".join((message or str(exc) or "not HTTP").split())
        response = ProblemError(status, "bad-request", f"request: {detail[:300]}", Outcome.INVALID).response()
        response.force_close()
        return response
