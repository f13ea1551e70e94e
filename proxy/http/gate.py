"""The way in for everything that publishes over HTTP: who may, how much at once, and nothing more once draining."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from proxy.access import Access, Forbidden, Unauthorized
from proxy.http.problems import ProblemError, invalid
from proxy.limits import Limits
from proxy.metrics import Counts
from proxy.outcome import Outcome
from proxy.router import Name, Router
from proxy.tally import NOWHERE

INGRESS = "http"


class Admitted:
    """A request that is being answered, and what it holds of the limits."""

    __slots__ = ("counted", "messages", "name", "size")

    def __init__(self, messages: int) -> None:
        """Of no exchange yet."""
        self.messages = messages
        self.name = NOWHERE
        """Where its problem counts: an exchange that is known to exist, or NOWHERE."""
        self.size = 0
        """Bytes of it in memory."""
        self.counted = False
        """What became of its messages is counted elsewhere."""


class Gate:
    """Counts requests in and out."""

    def __init__(self, router: Router, access: Access, limits: Limits, counts: Counts, *, body_timeout: float) -> None:
        """`body_timeout` in seconds is for each next part of a body."""
        self._router, self._access, self.limits, self._counts = router, access, limits, counts
        self._body_timeout = body_timeout
        self.draining = False
        self.active = 0
        """Requests that are not answered yet."""
        self.idle = asyncio.Event()
        self.idle.set()

    @contextmanager
    def admitted(self, messages: int = 1) -> Iterator[Admitted]:
        """One request, from its first byte to its answer; a problem that ends it is counted. Raises ProblemError.

        `messages` is how many it counts for; those of a batch count themselves, each while it is under way.
        """
        request = Admitted(messages)
        self.active += 1
        self.idle.clear()
        self.limits.take(messages, 0)
        try:
            if self.draining:
                detail = "send it to another sidecar, or again later"
                raise ProblemError(503, "draining", detail, Outcome.REJECTED, retryable=True)
            yield request
        except ProblemError as problem:
            if not request.counted:
                self._counts.publishes[INGRESS, request.name, problem.outcome] += 1
            raise
        finally:
            self.limits.give(messages, request.size)
            self.active -= 1
            if not self.active:
                self.idle.set()

    def check(self, request: web.Request, name: Name, admitted: Admitted | None = None) -> None:
        """Whether the client may publish there. Raises ProblemError 401 or 403."""
        if admitted is not None and name in self._router.entries:
            admitted.name = name
        try:
            self._access.check(request.headers.get("Authorization"), *name)
        except Unauthorized as error:
            raise ProblemError(401, "unauthorized", str(error), Outcome.INVALID) from None
        except Forbidden as error:
            raise ProblemError(403, "forbidden", str(error), Outcome.INVALID) from None

    def take(self, admitted: Admitted, size: int) -> None:
        """Counts bytes that a request is about to hold. Raises ProblemError 429, also for a message too many."""
        why = self.limits.full(0, size)
        if why:
            raise ProblemError(429, "too-many", why, Outcome.REJECTED, retryable=True)
        self.limits.take(0, size)
        admitted.size += size

    async def body(self, request: web.Request, admitted: Admitted, most: int) -> bytes:
        """The whole body, as it is. Raises ProblemError: 400 where it breaks off, 408, 413, 429."""
        length = request.content_length
        if length is not None and length > most:
            raise too_large(most)
        self.take(admitted, length or 0)
        if request.content.is_eof() and length is not None:
            return request.content.read_nowait()
        parts, size = [], 0
        async for part in self.parts(request):
            size += len(part)
            if size > most:
                raise too_large(most)
            if length is None:
                self.take(admitted, len(part))
            parts.append(part)
        return b"".join(parts)

    async def parts(self, request: web.Request) -> AsyncIterator[bytes]:
        """The body's bytes as they come. Raises ProblemError where it breaks off or comes too slowly."""
        content = request.content
        while True:
            try:
                async with asyncio.timeout(self._body_timeout):
                    part = await content.readany()
            except TimeoutError:
                detail = f"body: nothing came for {self._body_timeout:g} s"
                raise ProblemError(408, "timeout", detail, Outcome.INVALID, retryable=True) from None
            except (ConnectionError, HttpProcessingError, web.RequestPayloadError) as error:
                # Nobody may be there any more to read this, but no more did this sidecar do wrong.
                raise invalid("body", f"it ended before it was whole: {error}") from None
            if not part:
                return
            yield part


def too_large(most: int) -> ProblemError:
    """A 413 for a body."""
    return ProblemError(413, "too-large", f"body: more than {most} bytes", Outcome.INVALID)
