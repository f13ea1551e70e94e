"""The streams of server-sent events: one snapshot a second for all of them, and no queue for any.

A stream that falls behind misses snapshots, and gets the newest once its reader has taken the last. The listener closes
the connection of one that takes nothing (`proxy/http/server.py`). Where there is no new snapshot a comment is written
instead: a client that has left is noticed only by a write, and a client notices by the comments that the sidecar lives.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from aiohttp import web

from proxy.http.admin.console.snapshot import View
from proxy.http.formats.problems import ProblemError
from proxy.outcome import Outcome
from proxy.process.identity import ID_HEADER, process_id

log = logging.getLogger(__name__)

MOST_STREAMS: Final = 12
"""The most streams at once: each takes one of the ADMIN_CONNECTIONS for as long as its page is open."""

EVERY: Final = 1.0
"""Seconds between two snapshots."""

SOONEST: Final = 0.2
"""Seconds after a snapshot before which none is made for a new stream, since clients may come and go without end."""

_HEADERS: Final = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Connection": "close",
}


class Streams:
    """All open streams of this sidecar, and the task that makes their snapshots while there are any."""

    def __init__(self, make: Callable[[Sequence[View]], Awaitable[Mapping[View, bytes]]]) -> None:
        """`make` returns the snapshot of now for each of some views."""
        self._make = make
        self._views: Counter[View] = Counter()
        """How many streams show each view."""
        self._made: Mapping[View, bytes] = {}
        self._next = asyncio.Event()
        """Set once the snapshot after `_made` is there; another event takes its place then."""
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_failing = False
        """Whether the last snapshot could not be made."""
        self._is_over = False

    @property
    def open(self) -> int:
        """How many streams are open."""
        return self._views.total()

    async def serve(self, request: web.Request, view: View) -> web.StreamResponse:
        """Answer with snapshots of a view until the client leaves. Raises ProblemError 429 if too many do so."""
        if self.open >= MOST_STREAMS:
            detail = f"{self.open} pages of the console are open, which is the limit of a sidecar; close one"
            raise ProblemError(429, "too-many", detail, Outcome.REJECTED, retryable=True)
        self._views[view] += 1
        self._wanted.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        response = web.StreamResponse(headers={**_HEADERS, ID_HEADER: process_id()})
        response.force_close()
        try:
            await response.prepare(request)
            await self._send(response, view)
        except ConnectionError:
            pass  # The page was closed, or did not read.
        finally:
            self._views[view] -= 1
            self._views += Counter()  # which leaves out those that nobody shows
        return response

    async def _send(self, response: web.StreamResponse, view: View) -> None:
        """Write each snapshot of a view that is the newest when the reader is ready for one, or a comment.

        Returns after `aclose`.
        """
        shown = b""
        while not self._is_over:
            following, newest = self._next, self._made.get(view, b"")
            if newest is not shown:
                shown = newest
                await response.write(b"data: %b\n\n" % newest)
            else:
                await response.write(b": \n\n")
            if following is self._next:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(2 * EVERY):
                        await following.wait()

    async def aclose(self) -> None:
        """End all streams."""
        self._is_over = True
        self._next.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        """Make snapshots while a stream is open."""
        while self._views:
            self._wanted.clear()
            try:
                self._made = await self._make(list(self._views))
                self._is_failing = False
            except Exception:
                if not self._is_failing:
                    log.exception("unexpected error while a snapshot for the console was made; it is tried each second")
                self._is_failing = True
            before, self._next = self._next, asyncio.Event()
            before.set()
            await asyncio.sleep(SOONEST)
            try:
                async with asyncio.timeout(EVERY - SOONEST):
                    await self._wanted.wait()
            except TimeoutError:
                pass
        self._made, self._task = {}, None
