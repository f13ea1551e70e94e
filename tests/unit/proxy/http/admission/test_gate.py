"""The way in: who is admitted, what a request holds, and what becomes of bodies that do not end well."""

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from proxy.http.admission.gate import Gate
from proxy.http.admission.limits import LEAST_RATE, Limits
from proxy.http.admission.sizes import Sizes
from proxy.http.formats.problems import ProblemError, problem_middleware
from proxy.http.server import ConnectionBounds, ProblemRunner
from proxy.outcome import Outcome
from proxy.routing.counters import NOWHERE, Counts
from proxy.settings.config import Settings
from proxy.settings.parse import Address
from proxy.settings.tokens import Access
from proxy.topology.table import Router
from tests.unit.proxy.session.wire import QUEUES, known

KNOWN, OTHER = ("/", "orders"), ("/", "other")


class Case:
    """A gate, and a listener behind which bodies are read and sent back."""

    def __init__(self, *, tokens: Path | None = None, messages: int = 10, size: int = 100, body_timeout: float = 10):
        router = Router(300, refuse_stale=True)
        router.put(KNOWN, known(QUEUES))
        self.limits, self.counts = Limits(messages, size), Counts()
        self.gate = Gate(
            router, Access(tokens), self.limits, self.counts, sizes=Sizes.of(Settings()), body_timeout=body_timeout
        )
        self.held: list[tuple[int, int]] = []
        """Messages and bytes that counted once a body was read."""
        self.come = asyncio.Event()
        self.most = 50

    @property
    def counted(self) -> dict[tuple[str, Any, Outcome], int]:
        return dict(self.counts.unsent)

    async def answer(self, request: web.Request) -> web.Response:
        with self.gate.admitted() as admitted:
            self.come.set()
            body = await self.gate.body(request, admitted, self.most)
            self.held.append((self.limits.messages, self.limits.bytes))
            return web.Response(body=body)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["Client"]:
        app = web.Application(middlewares=[problem_middleware])
        app.router.add_post("/", self.answer)
        runner = ProblemRunner(app, ConnectionBounds(30, 10, self.limits), shutdown_timeout=0.1)
        await runner.setup()
        try:
            await runner.listen(Address("127.0.0.1", 0))
            reader, writer = await asyncio.open_connection(*runner.addresses[0][:2])
            try:
                yield Client(reader, writer)
            finally:
                writer.transport.abort()
                with contextlib.suppress(ConnectionError):
                    await writer.wait_closed()
        finally:
            await runner.cleanup()
        assert (self.gate.active, self.limits.messages, self.limits.bytes) == (0, 0, 0)
        assert self.gate.idle.is_set()


class Client:
    """One connection, and bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer
        self.head = b""
        """The head of the last answer."""

    def post(self, body: bytes, *headers: str, length: int | None = None) -> None:
        lines = ["POST / HTTP/1.1", "Host: x", *headers]
        if length is not None:
            lines.append(f"Content-Length: {length}")
        self.writer.write("\r\n".join([*lines, "", ""]).encode() + body)

    def chunk(self, *parts: bytes) -> None:
        for part in parts:
            self.writer.write(b"%x\r\n%s\r\n" % (len(part), part))

    async def answer(self) -> tuple[int, bytes]:
        async with asyncio.timeout(10):
            head = self.head = await self._reader.readuntil(b"\r\n\r\n")
            length = next(
                int(line[16:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length: ")
            )
            return int(head[9:12]), await self._reader.readexactly(length)

    async def problem(self) -> tuple[int, str, str]:
        """Status, kind and detail."""
        status, body = await self.answer()
        problem = json.loads(body)
        return status, problem["type"].removeprefix("urn:ringproxy:problem:"), problem["detail"]


# Bodies.


@pytest.mark.parametrize("body", [b"", b"x", b"x" * 50])
async def test_bodies(body: bytes) -> None:
    case = Case()
    async with case.listening() as client:
        client.post(body, length=len(body))
        assert await client.answer() == (200, body)
        client.post(b"", length=len(body))
        client.writer.write(body)
        assert await client.answer() == (200, body)
        client.post(b"", "Transfer-Encoding: chunked")
        client.chunk(*([body[:1], body[1:]] if len(body) > 1 else [body] if body else []), b"")
        assert await client.answer() == (200, body)
    assert case.held == [(1, len(body))] * 3
    assert case.counted == {}


async def test_a_body_that_is_too_large() -> None:
    case = Case()
    async with case.listening() as client:
        client.post(b"", length=51)
        assert await client.problem() == (413, "too-large", "body: more than 50 bytes (max_body)")
    async with case.listening() as client:
        client.post(b"", "Transfer-Encoding: chunked")
        client.chunk(b"x" * 50, b"x")
        assert await client.problem() == (413, "too-large", "body: more than 50 bytes (max_body)")
    assert case.counted == {("http", NOWHERE, Outcome.INVALID): 2}


async def test_a_body_that_comes_too_slowly() -> None:
    """The connection ends with it: what still came would be taken for a request."""
    case = Case(body_timeout=0.1)
    async with case.listening() as client:
        client.post(b"x", length=2)
        assert await client.problem() == (408, "timeout", "body: fell 0.1 s (body_timeout) behind 65536 bytes a second")
        assert b"connection: close" in client.head.lower()
    assert case.counted == {("http", NOWHERE, Outcome.INVALID): 1}


async def test_a_body_that_comes_slowly_but_comes() -> None:
    case = Case(body_timeout=1)
    async with case.listening() as client:
        client.post(b"", length=4)
        for _ in range(4):
            await asyncio.sleep(0.1)
            client.writer.write(b"x")
        assert await client.answer() == (200, b"xxxx")


@pytest.mark.parametrize("length", [1000, None])
async def test_a_body_that_comes_slowly_for_ever(length: int | None) -> None:
    """However short the time between its parts."""
    case = Case(body_timeout=0.4, size=10_000)
    case.most = 1000
    async with case.listening() as client:
        client.post(b"", *([] if length else ["Transfer-Encoding: chunked"]), length=length)
        started = case.gate.loop.time()
        answer = asyncio.create_task(client.problem())
        while not answer.done():
            client.writer.write(b"x" if length else b"1\r\nx\r\n")
            await asyncio.wait([answer], timeout=0.05)
        assert (await answer)[:2] == (408, "timeout")
        assert 0.3 < case.gate.loop.time() - started < 5


async def test_a_body_has_more_time_the_more_of_it_has_come() -> None:
    """But what came fast saves up no time to hold it for."""
    case = Case(body_timeout=0.5, size=10 * LEAST_RATE)
    case.most = 10 * LEAST_RATE
    async with case.listening() as client:
        started = case.gate.loop.time()
        client.post(b"", length=5 * LEAST_RATE // 4)
        for _ in range(5):
            await asyncio.sleep(0.2)
            client.writer.write(b"x" * (LEAST_RATE // 4))
        assert (await client.answer())[0] == 200
        assert case.gate.loop.time() - started > 0.9
        started = case.gate.loop.time()
        client.post(b"x" * 8 * LEAST_RATE, length=9 * LEAST_RATE)
        assert (await client.problem())[:2] == (408, "timeout")
        assert case.gate.loop.time() - started < 5


async def test_what_has_not_come_of_a_body_is_not_counted() -> None:
    case = Case(size=3 * LEAST_RATE)
    case.most = 10 * LEAST_RATE
    async with case.listening() as client:
        client.post(b"x", length=10 * LEAST_RATE)
        await case.come.wait()
        for _ in range(10):
            await asyncio.sleep(0.001)
        assert case.limits.bytes == 1
        client.writer.write(b"x" * 2 * LEAST_RATE)
        for _ in range(10_000):
            if case.limits.bytes > 2 * LEAST_RATE:
                break
            await asyncio.sleep(0.001)
        assert case.limits.bytes == 2 * LEAST_RATE + 1
        # Beside another, the rest of it is too much.
        case.limits.take(0, 1)
        client.writer.write(b"x" * LEAST_RATE)
        assert (await client.problem())[:2] == (429, "too-many")
        case.limits.give(0, 1)
    async with case.listening() as client:
        # Alone it may go on, however large.
        client.post(b"x" * 10 * LEAST_RATE, length=10 * LEAST_RATE)
        assert (await client.answer())[0] == 200


async def test_a_body_that_breaks_off() -> None:
    case = Case()
    async with case.listening() as client:
        client.post(b"x", length=2)
        await case.come.wait()
        client.writer.transport.abort()
        async with asyncio.timeout(10):
            await case.gate.idle.wait()
    assert case.counted == {("http", NOWHERE, Outcome.INVALID): 1}
    assert case.held == []


async def test_a_body_whose_chunks_are_none() -> None:
    """aiohttp tells the handler nothing of them; so that they are no body comes out when no more of one comes."""
    case = Case(body_timeout=0.3)
    async with case.listening() as client:
        client.post(b"", "Transfer-Encoding: chunked")
        client.chunk(b"x")
        await case.come.wait()
        client.writer.write(b"rubbish\r\n")
        assert (await client.problem())[0] in (400, 408)
    assert case.held == []


async def test_bytes_beyond_the_limit_are_refused() -> None:
    case = Case(size=60)
    case.limits.take(0, 50)
    async with case.listening() as client:
        client.post(b"x" * 10, length=10)
        assert (await client.answer())[0] == 200
        client.post(b"x" * 11, length=11)
        detail = "50 bytes are in flight, max_in_flight_bytes is 60"
        assert await client.problem() == (429, "too-many", detail)
        case.limits.give(0, 50)
    case = Case(size=20)
    case.limits.take(0, 1)
    async with case.listening() as client:
        # Where the length is not told, as soon as it is too much.
        client.post(b"", "Transfer-Encoding: chunked")
        client.chunk(b"x" * 15)
        await asyncio.sleep(0.05)
        client.chunk(b"x" * 15)
        assert (await client.problem())[:2] == (429, "too-many")
        case.limits.give(0, 1)


async def test_a_long_head_counts() -> None:
    """As bytes and as text, until the answer; a usual one does not."""
    case = Case(size=20_000)
    async with case.listening() as client:
        client.post(b"x", f"X-Long: {'v' * 3000}", length=1)
        assert (await client.answer())[0] == 200
        client.post(b"x", f"X-Long: {'v' * 5000}", length=1)
        assert (await client.answer())[0] == 200
        assert case.held[0] == (1, 1)
        assert case.held[1][1] == 2 * len("/X-LongHostxContent-Length1" + "v" * 5000) + 1
        case.limits.take(0, 10_000)
        client.post(b"x", f"X-Long: {'v' * 5000}", length=1)
        assert (await client.problem())[:2] == (429, "too-many")
        case.limits.give(0, 10_000)


async def test_messages_beyond_the_limit_are_refused() -> None:
    case = Case(messages=2)
    case.limits.take(1, 0)
    async with case.listening() as client:
        client.post(b"x", length=1)
        assert (await client.answer())[0] == 200
        case.limits.take(1, 0)
        client.post(b"x", length=1)
        assert await client.problem() == (429, "too-many", "3 messages are in flight, max_in_flight is 2")
        case.limits.give(2, 0)
    assert case.counted == {("http", NOWHERE, Outcome.REJECTED): 1}


# Requests.


async def test_what_is_no_publish_counts_as_none_while_draining() -> None:
    case = Case()
    case.gate.draining = True
    with pytest.raises(ProblemError, match="another one"), case.gate.admitted(counted=True):
        raise AssertionError
    assert case.counted == {}


async def test_what_a_batch_holds_counts_against_half() -> None:
    case = Case()
    with case.gate.admitted(0) as batch:
        batch.batch = True
        case.gate.take(batch, 40)
        with case.gate.admitted(0) as other:
            other.batch = True
            with pytest.raises(ProblemError) as refused:
                case.gate.take(other, 20)
        assert refused.value.kind == "too-many"
        with case.gate.admitted() as single:
            case.gate.take(single, 60)
    assert (case.limits.messages, case.limits.bytes, case.limits.full(50, batch=True)) == (0, 0, "")


async def test_draining() -> None:
    case = Case()
    with case.gate.admitted():
        assert not case.gate.idle.is_set()
        case.gate.draining = True
        with pytest.raises(ProblemError) as refused, case.gate.admitted():
            raise AssertionError
        assert (refused.value.kind, refused.value.outcome, refused.value.retryable) == ("draining", "rejected", True)
        assert case.gate.active == 1
    assert case.gate.idle.is_set()
    assert (case.gate.active, case.limits.messages) == (0, 0)
    assert case.counted == {("http", NOWHERE, Outcome.REJECTED): 1}


async def test_what_ends_a_request_is_counted_once_and_where_it_belongs() -> None:
    case = Case()
    problem = ProblemError(503, "nacked", "no", Outcome.NACKED)

    def end(name: tuple[str, str] | None, counted: bool, error: Exception) -> None:
        with case.gate.admitted(0) as admitted:
            assert case.limits.messages == 0
            if name is not None:
                admitted.name = name
            admitted.counted = counted
            case.gate.take(admitted, 7)
            raise error

    for name, counted, error in (
        (None, False, problem),
        (KNOWN, False, problem),
        (KNOWN, True, problem),
        (KNOWN, False, ZeroDivisionError()),
    ):
        with pytest.raises(type(error)):
            end(name, counted, error)
    assert case.counted == {("http", NOWHERE, Outcome.NACKED): 1, ("http", KNOWN, Outcome.NACKED): 1}
    assert (case.gate.active, case.limits.messages, case.limits.bytes) == (0, 0, 0)


@pytest.mark.parametrize(
    ("authorization", "name", "status", "kind"),
    [
        ("Bearer right", KNOWN, None, None),
        ("Bearer right", OTHER, 403, "forbidden"),
        ("Bearer wrong", KNOWN, 401, "unauthorized"),
        (None, KNOWN, 401, "unauthorized"),
    ],
)
async def test_tokens(
    tmp_path: Path, authorization: str | None, name: tuple[str, str], status: int | None, kind: str | None
) -> None:
    tokens = tmp_path / "tokens.toml"
    digest = hashlib.sha256(b"right").hexdigest()
    tokens.write_text(f'[[tokens]]\nname = "t"\nsha256 = "{digest}"\npublish = ["orders"]\n')
    case = Case(tokens=tokens)
    headers = {} if authorization is None else {"Authorization": authorization}
    request = make_mocked_request("POST", "/", headers)
    with case.gate.admitted() as admitted:
        if status is None:
            case.gate.authorize(request, name, admitted)
        else:
            with pytest.raises(ProblemError) as refused:
                case.gate.authorize(request, name, admitted)
            assert (refused.value.status, refused.value.kind, refused.value.outcome) == (status, kind, "invalid")
        # It counts where it was meant for, if that exists: a label must not hold clients' names.
        assert admitted.name == (name if name == KNOWN else NOWHERE)
        case.gate.authorize(make_mocked_request("POST", "/", {"Authorization": "Bearer right"}), KNOWN)


async def test_without_tokens_anybody_may() -> None:
    Case().gate.authorize(make_mocked_request("POST", "/"), OTHER)
