"""Streams: one snapshot for all, a limit of them, and none whose reader is slow grows."""

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing

import pytest
from aiohttp import ClientSession, web

from proxy.http.admin.console import streams as streams_module
from proxy.http.admin.console.snapshot import View
from proxy.http.admin.console.streams import MOST_STREAMS, Streams
from proxy.http.admission.limits import Limits
from proxy.http.formats.problems import problem_middleware
from proxy.http.server import ConnectionBounds, ProblemRunner
from proxy.process.memory import ADMIN_CONNECTIONS
from proxy.settings.parse import Address
from tests.unit.proxy.eventually import eventually

ALL = View("", "", "")


class Case:
    """A listener with streams, whose snapshots are numbered."""

    def __init__(self, size: int = 0) -> None:
        self.made: list[Sequence[View]] = []
        self.faults, self.size = 0, size
        self.streams = Streams(self._make)
        self.limits = Limits(10, 1 << 20)
        self.url = ""

    async def _make(self, views: Sequence[View]) -> dict[View, bytes]:
        self.made.append(views)
        if self.faults:
            self.faults -= 1
            raise RuntimeError("a defect")
        return {view: json.dumps([view.exchange, len(self.made), "x" * self.size]).encode() for view in views}

    async def _get(self, request: web.Request) -> web.StreamResponse:
        return await self.streams.serve(request, View("", "", request.query.get("exchange", "")))

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[ClientSession]:
        app = web.Application(middlewares=[problem_middleware])
        app.router.add_get("/", self._get, allow_head=False)
        bounds = ConnectionBounds(30, ADMIN_CONNECTIONS, self.limits)
        runner = ProblemRunner(app, bounds, shutdown_timeout=0.1)
        await runner.setup()
        await runner.listen(Address("127.0.0.1", 0))
        self.port = runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self.port}/"
        async with ClientSession() as session:
            try:
                yield session
            finally:
                await self.streams.aclose()
        await runner.cleanup()

    @property
    def number(self) -> int:
        return len(self.made)


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams_module, "EVERY", 0.02)
    monkeypatch.setattr(streams_module, "SOONEST", 0.01)


async def event(response: object) -> list[object]:
    """Return the next event of a stream."""
    while (line := await response.content.readuntil(b"\n\n")) == b": \n\n":  # type: ignore[attr-defined]
        pass
    assert line.startswith(b"data: ")
    found: list[object] = json.loads(line.removeprefix(b"data: "))
    return found


async def test_all_streams_share_one_snapshot_and_none_is_made_without_one() -> None:
    case = Case()
    async with case.listening() as session:
        await asyncio.sleep(0.05)
        assert case.number == 0
        async with (
            session.get(case.url) as one,
            session.get(case.url) as other,
            session.get(f"{case.url}?exchange=x") as x,
        ):
            assert one.headers["content-type"] == "text/event-stream; charset=utf-8"
            assert (await event(one))[0] == (await event(other))[0] == ""
            assert (await event(x))[0] == "x"
            assert case.streams.open == 3
            assert all(len(views) == len(set(views)) <= 2 for views in case.made)
        await eventually(lambda: case.streams.open == 0 and case.streams._task is None)
        made = case.number
        await asyncio.sleep(0.05)
        assert case.number == made
        async with session.get(case.url) as again:
            assert (await event(again))[1] == made + 1


async def test_a_stream_beyond_the_most_is_a_429_and_probes_have_room() -> None:
    assert MOST_STREAMS < ADMIN_CONNECTIONS / 2
    case = Case()
    async with case.listening() as session:
        streams = [await session.get(case.url) for _ in range(MOST_STREAMS)]
        for _ in range(5):
            async with session.get(case.url) as refused:
                problem = await refused.json(content_type="application/problem+json")
            assert (refused.status, problem["type"]) == (429, "urn:ringproxy:problem:too-many")
            assert problem["detail"] == "12 pages of the console are open, which is the limit of a sidecar; close one"
        streams[0].close()
        await eventually(lambda: case.streams.open < MOST_STREAMS)
        async with session.get(case.url) as one:
            assert one.status == 200
        for each in streams[1:]:
            each.close()


async def test_a_slow_reader_misses_snapshots_and_none_is_kept_for_it() -> None:
    case = Case(size=1 << 16)
    async with case.listening() as session:
        with closing(socket.socket()) as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            slow.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(slow, ("127.0.0.1", case.port))
            await loop.sock_sendall(slow, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            # Others go on at their pace.
            async with session.get(case.url) as fast:
                last = 0
                while case.number < 150:
                    last = int(str((await event(fast))[1]))
            assert case.limits.bytes < 2 * case.size
            numbers, before = [0], b""
            while numbers[-1] <= last:
                before = before[-40:] + await loop.sock_recv(slow, 1 << 20)
                found = map(int, re.findall(rb'data: \["", (\d+), "x', before))
                numbers += [number for number in found if number != numbers[-1]]
        # The kernel's buffers hold some megabytes, and nothing else does.
        assert numbers == sorted(set(numbers))
        assert len(numbers) < last / 2


async def test_a_defect_of_a_snapshot_ends_no_stream(caplog: pytest.LogCaptureFixture) -> None:
    case = Case()
    case.faults = 2
    async with case.listening() as session, session.get(case.url) as one:
        assert (await event(one))[1] == 3
    assert caplog.text.count("unexpected error while a snapshot for the console was made") == 1


async def test_places_come_free_although_every_snapshot_fails(caplog: pytest.LogCaptureFixture) -> None:
    case = Case()
    case.faults = 1 << 30
    async with case.listening() as session:
        streams = [await session.get(case.url) for _ in range(MOST_STREAMS)]
        for each in streams:
            for _ in range(3):
                assert await each.content.readuntil(b"\n\n") == b": \n\n"
        assert case.streams.open == MOST_STREAMS
        for each in streams:
            each.close()
        await eventually(lambda: case.streams.open == 0 and case.streams._task is None)
        made = case.number
        await asyncio.sleep(0.1)
        assert case.number == made
    assert caplog.text.count("Traceback") == 1


async def test_the_end_of_the_sidecar_ends_streams() -> None:
    case = Case()
    async with case.listening() as session, session.get(case.url) as one:
        await event(one)
        await case.streams.aclose()
        while not one.content.at_eof():
            await one.content.readany()
    assert case.streams.open == 0
