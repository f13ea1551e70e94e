"""How connections are served: what is not HTTP is answered with a problem, and what clients keep waiting is bounded.

aiohttp bounds the lines of a request's head (8 KiB each, 128 headers), what waits unread of bodies (128 KiB a
connection) and the time to read the rest of a body nobody wants (10 s). Bodies are `proxy.http.gate`'s. This bounds
what is left: whole heads, requests behind another, connections, the time until a request has come, TLS handshakes, and
answers that are not read.
"""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, cast

from aiohttp import EMPTY_PAYLOAD, StreamReader, web
from aiohttp.http_exceptions import HttpProcessingError

from proxy.http.parsing import head_size
from proxy.http.problems import ProblemError
from proxy.limits import LEAST_RATE, Limits
from proxy.outcome import Outcome
from proxy.values import Address

log = logging.getLogger(__name__)

_KEEP_ALIVE = 75.0
"""Seconds from an answer to the end of the next request's head."""

MOST_HEAD = 1 << 16
"""Bytes of a request's head."""

_MOST_BEHIND = 2
"""Requests that may wait behind another before no more of the connection is read; with all of one read."""

SPARE = 1000
"""Connections beyond `max_in_flight`: for those who are told that it is reached, and those who ask nothing."""


Hot = Callable[[web.BaseRequest], Awaitable[web.StreamResponse] | None]

HOT: web.AppKey[Hot] = web.AppKey("hot")
"""What of an application answers some requests past its routing and middleware, and gives None for the others.

Those cost an eighth of a single message (medians of 117 and 102 us of CPU a request, in turn).
"""


class Bounds(NamedTuple):
    """What the clients of a listener may keep waiting."""

    seconds: float
    """From connecting to the end of a TLS handshake; from there to the end of the first request's head; and, again and
    again, to read the rest of an answer or at least LEAST_RATE bytes a second of it."""
    connections: int
    """Open at once."""
    limits: Limits
    """Where the bytes of answers count that wait to be read."""


class ProblemRunner(web.AppRunner):
    """Runs an application on connections that are bounded, and answer malformed HTTP with problems."""

    def __init__(self, app: web.Application, bounds: Bounds, *, shutdown_timeout: float) -> None:
        """`shutdown_timeout` in seconds is for the last bytes of answers."""
        super().__init__(app, shutdown_timeout=shutdown_timeout)
        self.bounds = bounds

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        hot, rest = self.app.get(HOT), made.request_handler
        if hot is not None:

            async def handle(request: web.BaseRequest) -> web.StreamResponse:
                answer = hot(request)
                return await (rest(request) if answer is None else answer)

            made.request_handler = handle
        return _Server(made, self.bounds)

    async def listen(self, address: Address, tls: ssl.SSLContext | None = None) -> None:
        """On one more address; a handshake that is not done in time ends. Raises OSError."""
        await _Site(self, address, tls).start()


class _Site(web.BaseSite):
    """An address; aiohttp's own gives a TLS handshake 60 s."""

    __slots__ = ("_address", "_seconds")

    def __init__(self, runner: ProblemRunner, address: Address, tls: ssl.SSLContext | None) -> None:
        super().__init__(runner, ssl_context=tls)
        self._address, self._seconds = address, runner.bounds.seconds

    @property
    def name(self) -> str:
        return f"{'https' if self._ssl_context else 'http'}://{self._address}"

    async def start(self) -> None:
        await super().start()
        assert self._runner.server is not None
        self._server = await asyncio.get_running_loop().create_server(
            self._runner.server,
            *self._address,
            ssl=self._ssl_context,
            ssl_handshake_timeout=self._seconds if self._ssl_context else None,
            backlog=self._backlog,
        )


class _Server(web.Server):
    """Makes the protocol of each connection, and counts those that are open."""

    def __init__(self, made: web.Server, bounds: Bounds) -> None:
        super().__init__(made.request_handler, request_factory=made.request_factory)
        self.loop = asyncio.get_running_loop()
        self.bounds = bounds
        self.open = 0
        self._told = False

    def __call__(self) -> web.RequestHandler:
        return _Protocol(self)

    def refuses(self) -> bool:
        """Whether one more connection is too many, which is told once."""
        if self.open < self.bounds.connections:
            return False
        if not self._told:
            self._told = True
            log.warning("%d HTTP connections are open: further ones are closed", self.open)
        return True


_OPTIONS: Mapping[str, Any] = {
    "access_log": None,
    # Bodies are payloads: they are published as they are, compressed or not.
    "auto_decompress": False,
    "keepalive_timeout": _KEEP_ALIVE,
}


class _HeadTooLargeError(HttpProcessingError):
    """A head of more than MOST_HEAD bytes."""

    def __init__(self) -> None:
        super().__init__(code=431, message=f"the head has more than {MOST_HEAD} bytes")


class _Parser:
    """aiohttp's, and a bound for the whole of a head, be it complete or not."""

    def __init__(self, parser: Any) -> None:
        self._parser = parser
        self.message_consumed = parser.message_consumed  # asked for with every request
        self._size = 0
        """Bytes that have come of a head."""
        self._reach = 0
        """Bytes in which the last and the next request are: no head is longer."""
        self._body: StreamReader = EMPTY_PAYLOAD
        """Of the last request: what follows is another one's head."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)

    def feed_data(self, data: bytes) -> Any:
        """As aiohttp's. Raises HttpProcessingError."""
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
    """One connection."""

    __slots__ = ("_first", "_server", "_to", "_unread", "_unread_timer")

    def __init__(self, server: _Server) -> None:
        super().__init__(server, loop=server.loop, **_OPTIONS)
        self._parser = cast(Any, _Parser(self._parser))
        self._max_msg_queue_size, self._msg_queue_resume_size = _MOST_BEHIND, 0
        self._server = server
        self._to: asyncio.Transport | None = None
        """Until it is lost, also where aiohttp has closed it; None where it was refused."""
        self._first: asyncio.TimerHandle | None = None
        self._unread = 0
        """Bytes of answers that were waiting to be sent when they were last counted."""
        self._unread_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Refuses it, or waits for a request."""
        to = cast(asyncio.Transport, transport)
        if self._server.refuses():
            to.abort()
            return
        self._server.open += 1
        self._to = to
        self._first = self._server.loop.call_later(self._server.bounds.seconds, self._end_without_request)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Gives back what it held."""
        if self._to is not None:
            self._to = None
            self._server.open -= 1
            if self._first is not None:
                self._first.cancel()
            self._forget_unread()
        super().connection_lost(exc)

    def _end_without_request(self) -> None:
        self._first = None
        if not self._request_count:
            self.force_close()

    async def start(self) -> None:
        """Answers its requests."""
        try:
            await super().start()
        finally:
            # What is not read keeps a connection open that is closed.
            if self._to is not None and self._unread_timer is None and self._to.get_write_buffer_size():
                self._wait_for_reader(self._to)

    def pause_writing(self) -> None:
        """More than a little of an answer waits to be sent."""
        super().pause_writing()
        if self._to is not None and self._unread_timer is None:
            self._wait_for_reader(self._to)

    def resume_writing(self) -> None:
        """Little of it is left."""
        self._forget_unread()
        super().resume_writing()

    def _wait_for_reader(self, to: asyncio.Transport) -> None:
        bounds = self._server.bounds
        self._unread = to.get_write_buffer_size()
        bounds.limits.take(0, self._unread)
        self._unread_timer = self._server.loop.call_later(bounds.seconds, self._look_at_reader)

    def _look_at_reader(self) -> None:
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
        """A 400 that shows what could not be parsed; the connection is closed, since its place in the bytes is lost."""
        if status >= 500:
            return super().handle_error(request, status, exc, message)
        if isinstance(exc, _HeadTooLargeError):
            status = exc.code
        detail = " ".join((message or str(exc) or "not HTTP").split())
        response = ProblemError(status, "bad-request", f"request: {detail[:300]}", Outcome.INVALID).response()
        response.force_close()
        return response
