"""The way in for every request of the HTTP listener: authorization, limits, bodies, and no entry while draining."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from types import TracebackType
from typing import Self

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from proxy.http.admission.limits import LEAST_RATE, Limits
from proxy.http.admission.pages import HostNames, refuse_foreign
from proxy.http.admission.sizes import Sizes
from proxy.http.formats.parsing import head_size
from proxy.http.formats.problems import ProblemError, invalid, more_than
from proxy.outcome import Outcome
from proxy.routing.counters import NOWHERE, Counts
from proxy.settings.guesses import Guesses, Kind
from proxy.settings.tokens import Access, Forbidden, Unauthorized, UnknownToken
from proxy.topology.table import Name, Router

INGRESS = "http"

_LITTLE = 4096
"""Bytes of a request's head that do not count."""

_COPIES = 2
"""Copies of a request's head that aiohttp keeps: one as bytes, one as text."""


class Admitted:
    """One request from its admission to its answer, and what it holds of the limits. Its problem is counted at the end.

    Use as a context manager. (A generator's would cost a hundredth of a request.)
    """

    __slots__ = ("_gate", "batch", "counted", "messages", "name", "size")

    def __init__(self, gate: "Gate", messages: int, *, counted: bool) -> None:
        """Admit a request that has named no exchange yet, and that counts for so many messages in flight."""
        self._gate, self.messages = gate, messages
        self.name = NOWHERE
        """The exchange under which a problem of the request is counted; NOWHERE until it is known to exist."""
        self.size = 0
        """Bytes that the request holds of `max_in_flight_bytes`."""
        self.batch = False
        """Whether `size` counts as a batch's; to be set while it is still 0."""
        self.counted = counted
        """Whether the outcomes of its messages are counted elsewhere, so that its problem is not."""

    def __enter__(self) -> Self:
        """Count the request in. Raises ProblemError 503 while draining."""
        gate = self._gate
        if gate.draining:
            if not self.counted:
                gate.count(NOWHERE, Outcome.REJECTED)
            detail = "this sidecar is shutting down; send the request to another one, or again later"
            raise ProblemError(503, "draining", detail, Outcome.REJECTED, retryable=True)
        gate.active += 1
        gate.idle.clear()
        gate.limits.take(self.messages, 0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Count the request out, and its problem, if it ends with one."""
        gate = self._gate
        if isinstance(error, ProblemError) and not self.counted:
            gate.count(self.name, error.outcome)
        if self.batch:
            gate.limits.give_for_batch(self.size)
        gate.limits.give(self.messages, 0 if self.batch else self.size)
        gate.active -= 1
        if not gate.active:
            gate.idle.set()


class Gate:
    """The one gate of the HTTP listener: each request is counted in, authorized, read and counted out."""

    def __init__(
        self,
        router: Router,
        access: Access,
        limits: Limits,
        counts: Counts,
        *,
        sizes: Sizes,
        body_timeout: float,
        names: HostNames | None = None,
    ) -> None:
        """`body_timeout` in seconds is how far a body may fall behind `LEAST_RATE` bytes a second.

        `names` are those of the listener; None if it may be asked by any.
        """
        self._names = names
        self._router, self._access, self.limits, self._counts = router, access, limits, counts
        self._body_timeout = body_timeout
        self.sizes = sizes
        """The most that one request may bring which begins now; a request of many parts asks once."""
        self.guesses = Guesses(counts.credentials)
        self.loop = asyncio.get_running_loop()
        self.draining = False
        self.active = 0
        """Requests that have been admitted and not answered yet."""
        self.idle = asyncio.Event()
        self.idle.set()

    def admitted(self, messages: int = 1, *, counted: bool = False) -> Admitted:
        """Return a request's admission, for so many messages in flight; those of a batch count as they come."""
        return Admitted(self, messages, counted=counted)

    def count(self, name: Name, outcome: Outcome) -> None:
        """Count a message that was not sent, by its exchange and outcome."""
        self._counts.unsent[INGRESS, name, outcome] += 1

    def authorize(self, request: web.Request, name: Name, admitted: Admitted | None = None) -> None:
        """Check the request's bearer token for an exchange; without tokens, that no web page sends the request.

        From now on problems count under the exchange, if it is known. Raises ProblemError 401, 403, 421 or 429.
        """
        if admitted is not None and name in self._router.entries:
            admitted.name = name
        if self._access.is_open:
            self.refuse_pages(request)
            return
        try:
            self._access.check(request.headers.get("Authorization"), *name, partial(self.allow_guess, request, "token"))
        except Unauthorized as error:
            problem = ProblemError(401, "unauthorized", str(error), Outcome.INVALID)
            if isinstance(error, UnknownToken):
                problem.delay = self.guesses.failed(peer_of(request), "token")
            raise problem from None
        except Forbidden as error:
            raise ProblemError(403, "forbidden", str(error), Outcome.INVALID) from None

    def allow_guess(self, request: web.BaseRequest, kind: Kind) -> None:
        """Check that new credentials may be tried. Raises ProblemError 429 after too many wrong ones of the address."""
        if not self.guesses.may_try(peer_of(request), kind):
            detail = "Authorization: too many wrong credentials came from this address"
            raise ProblemError(429, "too-many", detail, Outcome.REJECTED, retryable=True)

    def begin(self, admitted: Admitted) -> None:
        """Count one message of a request that was admitted without any."""
        admitted.messages += 1
        self.limits.take(1, 0)

    def refuse_pages(self, request: web.BaseRequest) -> None:
        """Check that no web page had a browser send the request. Raises ProblemError 403 or 421 if one may have.

        It is for requests that need no bearer token: no page knows a token.
        """
        refuse_foreign(request)
        if self._names is not None:
            self._names.check(request)

    def take(self, admitted: Admitted, size: int) -> None:
        """Count bytes that a request is about to hold. Raises ProblemError 429 if there is no room for them.

        The first call of a request also raises ProblemError 429 if there is no room for one more message.
        """
        why = self.limits.full(size, admitted.size, batch=admitted.batch)
        if why:
            raise ProblemError(429, "too-many", why, Outcome.REJECTED, retryable=True)
        if admitted.batch:
            self.limits.take_for_batch(size)
        else:
            self.limits.take(0, size)
        admitted.size += size

    def hold(self, admitted: Admitted, size: int) -> None:
        """Count that a request holds `size` bytes in all, if that is more than before. Raises ProblemError 429."""
        if size > admitted.size:
            self.take(admitted, size - admitted.size)

    def give(self, admitted: Admitted, size: int) -> None:
        """Count out bytes that a batch's request holds no more."""
        self.limits.give_for_batch(size)
        admitted.size -= size

    async def body(self, request: web.Request, admitted: Admitted, most: int) -> bytes:
        """Return the whole body, as it is. Raises ProblemError: 400 if the body breaks off, or 408, 413 or 429."""
        content, length, head = request.content, request.content_length, head_of(request)
        if length is not None:
            if length > most:
                raise more_than(most, "max_body")
            if content.is_eof():
                self.take(admitted, head + length)
                return content.read_nowait()
        # A part of the body that has not come takes no memory, and must not take the place of one that has: promising
        # it costs nothing.
        self.take(admitted, head)
        parts, size = [], 0
        async for part in self.parts(request):
            size += len(part)
            if size > most:
                raise more_than(most, "max_body")
            self.hold(admitted, head + size)
            parts.append(part)
        return b"".join(parts)

    async def parts(self, request: web.Request) -> AsyncIterator[bytes]:
        """The body's bytes as they come. Raises ProblemError if it breaks off or comes too slowly.

        Only the time counts that is spent waiting for the client.
        """
        content, clock = request.content, self.loop.time
        left = self._body_timeout
        while True:
            asked = clock()
            try:
                async with asyncio.timeout(left):
                    part = await content.readany()
            except TimeoutError:
                detail = f"body: fell {self._body_timeout:g} s (body_timeout) behind {LEAST_RATE} bytes a second"
                raise ProblemError(408, "timeout", detail, Outcome.INVALID, retryable=True) from None
            except (ConnectionError, HttpProcessingError, web.RequestPayloadError) as error:
                # Nobody may be there any more to read this, but no more did this sidecar do wrong.
                raise invalid("body", f"it ended before it was complete: {error}") from None
            if not part:
                return
            # Time that is not used is not saved up, or much that came fast could be held for long.
            left = min(self._body_timeout, left - (clock() - asked) + len(part) / LEAST_RATE)
            yield part


def peer_of(request: web.BaseRequest) -> str:
    """Return the address that the request came from, which is the unix socket for whoever uses that."""
    return request.remote or "http_socket"


def head_of(request: web.Request) -> int:
    """Return the bytes of a request's head that count towards `max_in_flight_bytes`; 0 for a small one."""
    size = head_size(request.raw_path, request.raw_headers)
    return size * _COPIES if size > _LITTLE else 0
