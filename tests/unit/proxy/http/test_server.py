"""Connections: how many there may be, and how long one may ask nothing or read nothing."""

import ast
import asyncio
import json
import re
import socket
import ssl
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path

import pytest
from aiohttp import web
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from proxy.http import server
from proxy.http.admission.limits import Limits
from proxy.http.server import ConnectionBounds, ProblemRunner
from proxy.settings.parse import Address
from tests.certificates import Authority

ROOT = Path(__file__).parents[4]

ANSWER = b"x" * (16 << 20)
"""More than a kernel keeps for who does not read."""

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


class Case:
    """A listener."""

    def __init__(
        self,
        seconds: float = 30,
        connections: int = 10,
        answer: bytes = b"hello",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.limits = Limits(10, 1 << 20)
        self._bounds, self._answer, self._tls = ConnectionBounds(seconds, connections, self.limits), answer, tls
        self.asked, self.go = asyncio.Event(), asyncio.Event()
        self.go.set()
        self._runner: ProblemRunner | None = None

    async def _get(self, request: web.Request) -> web.Response:
        self.asked.set()
        await self.go.wait()
        return web.Response(body=self._answer)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        app = web.Application()
        app.router.add_get("/", self._get)
        self._runner = runner = ProblemRunner(app, self._bounds, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await runner.listen(Address("127.0.0.1", 0), self._tls)
            yield
        finally:
            await runner.cleanup()

    @property
    def runner(self) -> ProblemRunner:
        assert self._runner is not None
        return self._runner

    def behind(self) -> int:
        """Requests that wait behind another."""
        assert self._runner is not None
        assert self._runner.server is not None
        return sum(len(connection._messages) for connection in self._runner.server.connections)

    def unsent(self) -> int:
        """Bytes of answers that the kernel has not taken."""
        assert self._runner is not None
        assert self._runner.server is not None
        transports = (connection.transport for connection in self._runner.server.connections)
        return sum(to.get_write_buffer_size() for to in transports if to is not None)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator["Client"]:
        assert self._runner is not None
        with closing(socket.socket()) as connection:
            connection.setblocking(False)
            await asyncio.get_running_loop().sock_connect(connection, self._runner.addresses[0])
            yield Client(connection)


class Client:
    """A connection that reads only when it is told to."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._loop = connection, asyncio.get_running_loop()

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self._connection, data)

    async def read(self, most: int = 1 << 18) -> bytes:
        """Nothing at the end, whether that came in good order or not."""
        async with asyncio.timeout(10):
            try:
                return await self._loop.sock_recv(self._connection, most)
            except ConnectionResetError:
                return b""

    async def is_answered(self) -> bool:
        await self.send(REQUEST)
        return (await self.read()).startswith(b"HTTP/1.1 200 ")


async def until_counted(limits: Limits, there: bool) -> None:
    async with asyncio.timeout(10):
        for _ in range(10_000):
            if bool(limits.bytes) == there:
                return
            await asyncio.sleep(0.001)
    raise AssertionError(limits.bytes)


async def test_connections_beyond_the_most_are_closed(caplog: pytest.LogCaptureFixture) -> None:
    case = Case(connections=2)
    async with case.listening(), case.connected() as first:
        assert await first.is_answered()
        async with case.connected() as second:
            assert await second.is_answered()
            for _ in range(3):
                async with case.connected() as third:
                    assert await third.read() == b""
            assert await first.is_answered()
        for _ in range(100):
            async with case.connected() as third:
                await third.send(REQUEST)
                if await third.read():
                    break
            await asyncio.sleep(0.01)
        else:
            raise AssertionError("what is closed still counts")
    (record,) = caplog.records
    assert record.message.startswith("2 HTTP connections are open, as many as max_http_connections allows: ")


async def test_another_limit_of_connections_holds_for_the_next_ones(caplog: pytest.LogCaptureFixture) -> None:
    case = Case(connections=1)
    async with case.listening(), case.connected() as first:
        assert await first.is_answered()
        async with case.connected() as second:
            assert await second.read() == b""
        case.runner.limit_connections(3)
        async with case.connected() as second, case.connected() as third:
            assert await second.is_answered()
            assert await third.is_answered()
            case.runner.limit_connections(2)
            async with case.connected() as fourth:
                assert await fourth.read() == b""
            assert await third.is_answered()
    assert [record.message.partition(" ")[0] for record in caplog.records] == ["1", "3"]


async def test_while_it_drains_each_answer_ends_its_connection_and_none_is_cut() -> None:
    case = Case()
    async with case.listening(), case.connected() as first, case.connected() as second:
        assert await first.is_answered()
        assert await second.is_answered()
        case.runner.drain()
        async with case.connected() as late, asyncio.TaskGroup() as tasks:
            await late.send(REQUEST)
            assert b"\r\nConnection: close\r\n" in await late.read()
            assert await late.read() == b""
            leave = tasks.create_task(case.runner.take_leave(60))
            for client in (first, second):
                assert not leave.done()
                await client.send(REQUEST)
                assert b"\r\nConnection: close\r\n" in await client.read()
                assert await client.read() == b""
        with pytest.raises(IndexError):
            case.runner.addresses[0]


async def test_leaving_takes_no_longer_than_it_may_and_no_time_without_connections() -> None:
    case = Case()
    async with case.listening():
        await case.runner.take_leave(60)
    async with case.listening(), case.connected() as idle:
        assert await idle.is_answered()
        await case.runner.take_leave(0.01)
    assert case.runner.server is not None
    assert case.runner.server.open == 0


@pytest.mark.parametrize("sent", [b"", REQUEST[:-2]], ids=["nothing", "half a head"])
async def test_who_asks_nothing_keeps_nobody_out(sent: bytes) -> None:
    case = Case(connections=3)
    async with case.listening(), case.connected() as first, AsyncExitStack() as stack:
        assert await first.is_answered()
        silent = [await stack.enter_async_context(case.connected()) for _ in range(2)]
        for each in silent:
            await each.send(sent)
        for _ in range(5):
            async with case.connected() as client:
                assert await client.is_answered()
        # A connection with a request stays, and of the others only the oldest had to go.
        assert await first.is_answered()
        assert await silent[0].read() == b""
        if sent:
            await silent[1].send(REQUEST[-2:])
            assert (await silent[1].read()).startswith(b"HTTP/1.1 200 ")
        else:
            assert await silent[1].is_answered()


def test_the_version_of_aiohttp_is_one_that_was_looked_at() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (needed,) = (Requirement(each) for each in project["dependencies"] if Requirement(each).name == "aiohttp")
    first, after = (".".join(map(str, each)) for each in server.AIOHTTP)
    assert needed.specifier == SpecifierSet(f">={first},<{after}")
    for file in ROOT.glob("constraints*.txt"):
        for version in re.findall(r"^aiohttp==(\S+)", file.read_text(), re.MULTILINE):
            server.check_aiohttp(version)
            assert version in needed.specifier
    for version in ("3.14.1", "3.14.99"):
        server.check_aiohttp(version)
    for version in ("3.13.5", "3.14.0", "3.15.0", "3.15.0rc1", "4.0.0"):
        with pytest.raises(ImportError, match=rf"^aiohttp {version} is .* ringproxy needs aiohttp>=3\.14\.1,<3\.15: "):
            server.check_aiohttp(version)


def test_another_version_of_aiohttp_is_told_at_import() -> None:
    code = "import aiohttp; aiohttp.__version__ = '3.15.0'; import proxy.app"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode != 0
    assert run.stderr.splitlines()[-1].startswith("ImportError: aiohttp 3.15.0 is installed, and ringproxy needs ")


def test_aiohttp_has_the_private_parts_that_are_used_and_no_others_are_used() -> None:
    for part in ("_max_msg_queue_size", "_msg_queue_resume_size"):
        assert part in web.RequestHandler.__slots__
    own = {"_first", "_server", "_to", "_unread", "_unread_timer"}
    (protocol,) = (
        each
        for each in ast.parse(Path(server.__file__).read_text()).body
        if isinstance(each, ast.ClassDef) and each.name == "_Protocol"
    )
    methods = {each.name for each in protocol.body if isinstance(each, ast.FunctionDef)}
    used = {
        each.attr
        for each in ast.walk(protocol)
        if isinstance(each, ast.Attribute) and each.attr.startswith("_") and not each.attr.startswith("__")
    }
    assert used - own - methods == {"_parser", "_max_msg_queue_size", "_msg_queue_resume_size"}


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: x\r\n"])
async def test_who_asks_nothing_is_cut_off(sent: bytes) -> None:
    case = Case(seconds=0.2)
    async with case.listening(), case.connected() as client, case.connected() as other:
        assert await other.is_answered()
        await client.send(sent)
        started = asyncio.get_running_loop().time()
        assert await client.read() == b""
        assert 0.1 < asyncio.get_running_loop().time() - started < 5
        assert await other.is_answered()


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01"])
async def test_a_tls_handshake_that_does_not_end_is_cut_off(sent: bytes, tmp_path: Path) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*Authority(tmp_path).issue("server"))
    case = Case(seconds=0.5, tls=tls)
    async with case.listening(), case.connected() as client:
        await client.send(sent)
        started = asyncio.get_running_loop().time()
        assert await client.read() == b""
        assert 0.3 < asyncio.get_running_loop().time() - started < 5


async def test_a_second_head_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    assert server._AIOHTTP_OPTIONS["keepalive_timeout"] == 75
    monkeypatch.setattr(server, "_AIOHTTP_OPTIONS", {**server._AIOHTTP_OPTIONS, "keepalive_timeout": 0.2})
    case = Case()
    async with case.listening(), case.connected() as client:
        assert await client.is_answered()
        await client.send(REQUEST[:-2])
        assert await client.read() == b""


def head(size: int, more: bytes = b"") -> bytes:
    """One of so many bytes, in headers of 4 KB, and a last one of what is left."""
    first = b"GET / HTTP/1.1\r\nHost: x\r\n" + more
    fields, left = b"", size - len(first) - 2
    while left > 5000:
        fields += b"X: " + b"v" * 3995 + b"\r\n"
        left -= 4000
    return first + fields + b"X: " + b"v" * (left - 5) + b"\r\n\r\n"


TOO_LARGE = f"request: the head has more than {server.MOST_HEAD} bytes"


@pytest.mark.parametrize("piece", [1 << 20, 1000])
@pytest.mark.parametrize("size", [60_000, server.MOST_HEAD + 1000, 300_000])
@pytest.mark.parametrize("before", [b"", REQUEST], ids=["first", "second"])
async def test_the_whole_of_a_head(size: int, piece: int, before: bytes) -> None:
    case = Case()
    async with case.listening(), case.connected() as client:
        if before:
            assert await client.is_answered()
        sent = head(size)
        assert len(sent) == size
        # A head that is too large is refused before its end.
        for at in range(0, size - 2 if size > server.MOST_HEAD and piece < size else size, piece):
            try:
                await client.send(sent[at : at + piece])
            except (ConnectionResetError, BrokenPipeError):
                break
            await asyncio.sleep(0)
        answer = await client.read()
        if size < server.MOST_HEAD:
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert await client.is_answered()
            return
        assert answer.startswith(b"HTTP/1.0 431 ")
        problem = json.loads(answer.partition(b"\r\n\r\n")[2])
        assert (problem["status"], problem["detail"], problem["outcome"]) == (431, TOO_LARGE, "invalid")
        assert await client.read() == b""


async def test_a_head_that_begins_behind_many_requests_is_bounded_as_any() -> None:
    """More of them than aiohttp parses in one go: the rest, and the beginning of the head, it feeds itself again."""
    case, sent = Case(), head(120_000)
    async with case.listening(), case.connected() as client:
        await client.send(REQUEST * 33 + sent[:60_000])
        answers = b""
        while answers.count(b"hello") < 33:
            answers += await client.read()
        await client.send(sent[60_000:])
        assert (await client.read()).startswith(b"HTTP/1.0 431 ")


async def test_what_is_no_head_does_not_count_as_one() -> None:
    case = Case()
    async with case.listening(), case.connected() as client:
        for body in (b"", b"x" * 300_000):
            await client.send(REQUEST[:-2] + b"Content-Length: %d\r\n\r\n" % len(body))
            for at in range(0, len(body), 50_000):
                await client.send(body[at : at + 50_000])
                await asyncio.sleep(0.001)
            assert (await client.read()).startswith(b"HTTP/1.1 200 ")
        for _ in range(100):
            await client.send(head(2000)[:1000])
            await asyncio.sleep(0)
            await client.send(head(2000)[1000:])
            assert (await client.read()).startswith(b"HTTP/1.1 200 ")


async def test_requests_behind_another_wait_unread() -> None:
    """But for those that one read has brought."""
    case = Case()
    case.go.clear()
    async with case.listening(), case.connected() as client:
        count, sent = 40, head(60_000)
        sending = asyncio.create_task(client.send(sent * count))
        await case.asked.wait()
        for _ in range(100):
            await asyncio.sleep(0.001)
        assert case.behind() < 10
        case.go.set()
        answers = b""
        while answers.count(b"HTTP/1.1 200 ") < count:
            answers += await client.read()
        await sending


async def test_an_answer_that_is_not_read() -> None:
    case = Case(seconds=0.3, answer=ANSWER)
    async with case.listening(), case.connected() as client, case.connected() as other:
        for each in (client, other):
            await each.send(REQUEST)
        await until_counted(case.limits, there=True)
        assert case.limits.full(1) != ""
        await until_counted(case.limits, there=False)
        read = 0
        while part := await client.read():
            read += len(part)
        assert read < len(ANSWER)


async def test_the_end_of_an_answer_that_is_not_read() -> None:
    """A connection stays open, though it is closed, until all is sent."""
    case = Case(seconds=0.3, answer=b"x" * 20_000)
    async with case.listening(), case.connected() as client:
        while not case.unsent():
            case.asked.clear()
            await client.send(REQUEST)
            await case.asked.wait()
            await asyncio.sleep(0.001)
        await client.send(REQUEST.replace(b"Host", b"Connection: close\r\nHost"))
        await until_counted(case.limits, there=True)
        assert case.limits.bytes < 1 << 16
        await until_counted(case.limits, there=False)
        assert case.unsent() == 0


async def test_an_answer_that_is_read_slowly() -> None:
    """But no more slowly than may be."""
    case = Case(seconds=0.5, answer=ANSWER)
    async with case.listening(), case.connected() as client:
        started = asyncio.get_running_loop().time()
        await client.send(REQUEST)
        read = 0
        while read < len(ANSWER):
            part = await client.read()
            assert part
            read += len(part)
            # 256 KiB at most, in a time that is worth one.
            await asyncio.sleep(0.02)
        assert asyncio.get_running_loop().time() - started > 1
        await until_counted(case.limits, there=False)
