"""A management API that is down, slow, cuts its answers short, or lies."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import Enum, auto

import aiohttp
from aiohttp import web
from yarl import URL

SLOW = 0.7
"""Seconds that a slow answer takes: several make one reading."""


class Mood(Enum):
    """The behaviour of the stand-in."""

    TRUE = auto()
    DOWN = auto()
    SLOW = auto()
    TRUNCATED = auto()
    LYING = auto()
    """Where bindings are asked for, there are none."""
    HANGING = auto()
    """Connections and requests are taken, and nothing is answered until the mood is another; then it hangs up."""


class ManagementFront:
    """Hands requests on to the API of `target`, as its mood is."""

    def __init__(self, target: str, session: aiohttp.ClientSession) -> None:
        self.target = target
        """A URL with credentials."""
        self.port = 0
        self.moody = 0
        """Requests answered in any mood but the true one."""
        self._session = session
        self._mood, self._answers = Mood.TRUE, asyncio.Event()

    @property
    def mood(self) -> Mood:
        """The behaviour at the next request."""
        return self._mood

    @mood.setter
    def mood(self, mood: Mood) -> None:
        self._mood = mood
        if mood is Mood.HANGING:
            self._answers.clear()
        else:
            self._answers.set()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """One request."""
        mood = self.mood
        self.moody += mood is not Mood.TRUE
        if mood is Mood.HANGING:
            await self._answers.wait()
        if mood in (Mood.DOWN, Mood.HANGING):
            return _aborted(request)
        if mood is Mood.LYING and "/bindings/source" in request.path:
            return web.json_response([])
        if mood is Mood.SLOW:
            await asyncio.sleep(SLOW)
        try:
            url = URL(self.target).join(URL(request.raw_path, encoded=True))
            async with self._session.get(url) as got:
                status, body = got.status, await got.read()
        except aiohttp.ClientError:
            return _aborted(request)
        if mood is Mood.TRUNCATED:
            response = web.StreamResponse(status=status, headers={"Content-Length": str(len(body))})
            await response.prepare(request)
            await response.write(body[: len(body) // 2])
            return _aborted(request)
        return web.Response(status=status, body=body, content_type="application/json")


def _aborted(request: web.Request) -> web.Response:
    """Hangs up; the answer goes nowhere."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


@asynccontextmanager
async def management_front(target: str) -> AsyncIterator[ManagementFront]:
    """Yield a front that is always closed."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
        front = ManagementFront(target, session)
        application = web.Application()
        application.router.add_get("/{path:.*}", front.answer)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            front.port = runner.addresses[0][1]
            yield front
        finally:
            await runner.cleanup()
