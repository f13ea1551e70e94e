"""Each fault of the relay and of the management front does what its name says."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import aiohttp
import pytest
from aiohttp import web

from tests.chaos.management import SLOW, ManagementFront, Mood, management_front
from tests.chaos.relay import Relay, relay

DEADLINE = 10.0

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def through() -> AsyncIterator[tuple[Relay, Streams, Streams]]:
    """A relay, and both ends of one connection through it: the client's, the server's."""
    ends: asyncio.Queue[Streams] = asyncio.Queue()
    server = await asyncio.start_server(lambda *streams: ends.put_nowait(streams), "127.0.0.1", 0)
    async with server, asyncio.timeout(DEADLINE), relay(server.sockets[0].getsockname()[1]) as made:
        client = await asyncio.open_connection("127.0.0.1", made.port)
        accepted = await ends.get()
        client[1].write(b".")
        assert await accepted[0].read(1) == b"."
        yield made, client, accepted
        for _, writer in (client, accepted):
            writer.transport.abort()


async def silent(reader: asyncio.StreamReader) -> bool:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(100), 0.2)
    return True


async def test_bytes_and_ends_pass_both_ways() -> None:
    async with through() as (_, (reader, writer), (there, back)):
        writer.write(b"question")
        assert await there.read(100) == b"question"
        back.write(b"answer")
        assert await reader.read(100) == b"answer"
        writer.close()
        assert await there.read(100) == b""


async def test_a_reset_is_seen_by_both() -> None:
    async with through() as (made, (reader, _), (there, _)):
        assert made.reset() == 1
        for end in (reader, there):
            with pytest.raises(ConnectionResetError):
                await end.read(100)


async def test_a_stall_holds_everything_and_loses_nothing() -> None:
    async with through() as (made, (_, writer), (there, _)):
        stall = asyncio.create_task(made.stall(0.5))
        await asyncio.sleep(0)
        writer.write(b"late")
        assert await silent(there)
        assert await stall == 1
        assert await there.read(100) == b"late"


async def test_what_vanishes_never_comes_and_nobody_is_told_until_the_reset() -> None:
    async with through() as (made, (reader, writer), (there, back)):
        vanish = asyncio.create_task(made.vanish(0.6))
        await asyncio.sleep(0)
        writer.write(b"lost")
        back.write_eof()
        assert await silent(there)
        assert await silent(reader)
        assert await vanish == 1
        with pytest.raises(ConnectionResetError):
            await there.read(100)


@pytest.mark.parametrize("towards_client", [True, False])
async def test_a_cut_ends_the_connection_within_the_last_bytes(towards_client: bool) -> None:
    async with through() as (made, client, accepted):
        (reader, _), (_, writer) = (client, accepted) if towards_client else (accepted, client)
        cut = asyncio.create_task(made.cut(0.3, towards_client=towards_client))
        await asyncio.sleep(0)
        writer.write(b"a whole frame")
        assert await reader.read() == b"a whole fr"
        assert await cut == 1


async def test_a_relay_whose_server_is_gone_hangs_up() -> None:
    async with through() as (made, _, _):
        made.target = 1
        reader, writer = await asyncio.open_connection("127.0.0.1", made.port)
        with suppress(ConnectionResetError):
            assert await reader.read(100) == b""
        writer.close()


PATH = "/api/exchanges/%2F/orders/bindings/source"
BINDINGS = [{"destination": "q1"}]


@asynccontextmanager
async def fronted() -> AsyncIterator[ManagementFront]:
    """A front before an API that answers at once."""
    application = web.Application()
    application.router.add_get("/api/{path:.*}", _answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with management_front(f"http://guest:guest@127.0.0.1:{runner.addresses[0][1]}") as front:
            yield front
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("mood", [mood for mood in Mood if mood is not Mood.HANGING])
async def test_moods_of_the_management_api(mood: Mood) -> None:
    async with fronted() as front:
        front.mood = mood
        begun = asyncio.get_running_loop().time()
        seen = await _asked(front.port)
        took = asyncio.get_running_loop().time() - begun
    expected = {
        Mood.TRUE: BINDINGS,
        Mood.DOWN: aiohttp.ServerDisconnectedError,
        Mood.SLOW: BINDINGS,
        Mood.TRUNCATED: aiohttp.ClientPayloadError,
        Mood.LYING: [],
    }
    assert seen == expected[mood]
    if mood is Mood.SLOW:
        assert took >= SLOW


async def test_a_management_api_that_hangs_takes_requests_and_answers_none_of_them() -> None:
    async with fronted() as front, asyncio.timeout(DEADLINE):
        front.mood = Mood.HANGING
        reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
        writer.write(f"GET {PATH} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        while not front.moody:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.01)
        assert await silent(reader)
        front.mood = Mood.TRUE
        assert await reader.read() == b""
        writer.close()
        assert await _asked(front.port) == BINDINGS


async def _answer(_: web.Request) -> web.Response:
    return web.json_response(BINDINGS)


async def _asked(port: int) -> object:
    """The JSON answered, or how it failed."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=DEADLINE)) as session:
        try:
            async with session.get(f"http://127.0.0.1:{port}{PATH}") as response:
                return await response.json()
        except aiohttp.ClientError as error:
            return type(error)
