"""Only what no real broker can be made to show; the rest is in tests/integration."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import aio_pika
import aiormq
import pytest
from yarl import URL

from proxy.publisher import Publish, Publisher, Unavailable

MESSAGE = Publish("", "q", b"body", {})
SECRET = "s3cret/@:%41 é"
QUOTED = "s3cret%2F%40%3A%2541%20%C3%A9"

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(talk: Talk) -> AsyncIterator[URL]:
    """Something that listens where the broker should, and what it says."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await talk(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield URL(f"amqp://me:{QUOTED}@127.0.0.1:{server.sockets[0].getsockname()[1]}/")
    finally:
        server.close()


def publisher_of(url: URL) -> Publisher:
    return Publisher(url, connect_timeout=0.3, confirm_timeout=10)


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 - what is awaited has no event
            await asyncio.sleep(0.005)


async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    while await reader.read(1000):
        pass


async def rubbish(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(8)
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")


async def another_version(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(8)
    writer.write(b"AMQP\x00\x01\x00\x00")


async def hang_up(_: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
    return


@pytest.mark.parametrize("talk", [silent, rubbish, another_version, hang_up])
async def test_what_is_no_broker_makes_publishes_unavailable_in_time(
    talk: Talk, caplog: pytest.LogCaptureFixture
) -> None:
    async with listening(talk) as url, aclosing(publisher_of(url)) as publisher:
        with pytest.raises(Unavailable, match="no connection to the broker"):
            await publisher.publish("/", MESSAGE)
        await eventually(lambda: publisher.faults()["/"] not in ("", "not connected yet"))
        assert (publisher.in_flight, publisher.connects) == (0, 0)
        told = caplog.text + publisher.faults()["/"]
        assert "s3cret" not in told
        assert QUOTED not in told


async def test_nobody_listens(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        url = URL(f"amqp://me:{QUOTED}@127.0.0.1:{bound.getsockname()[1]}/")
        async with aclosing(publisher_of(url)) as publisher:
            with pytest.raises(Unavailable, match=r"no connection to the broker: .*"):
                await publisher.publish("/", MESSAGE)
            assert "s3cret" not in caplog.text + publisher.faults()["/"]
            # Tried several times meanwhile, told once.
            assert len([r for r in caplog.records if r.name == "proxy.publisher"]) == 1


class Tries:
    """Stands for aio_pika.connect: keeps what it was asked for, and fails."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.urls: list[URL] = []

    async def __call__(self, url: URL, **_: Any) -> None:
        self.urls.append(url)
        raise self._error


@pytest.mark.parametrize("error", [ZeroDivisionError("ours"), ValueError("theirs"), KeyError("x"), RuntimeError()])
async def test_it_tries_again_whatever_was_raised(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    tries = Tries(error)
    monkeypatch.setattr(aio_pika, "connect", tries)
    async with aclosing(publisher_of(URL("amqp://h"))) as publisher:
        publisher.connect("/")
        await eventually(lambda: len(tries.urls) > 2)
        fault = publisher.faults()["/"]
        assert fault
        assert fault != "not connected yet"


@pytest.mark.parametrize(
    "vhost", ["/", "prod", "/prod", "//", "a/b", "a//b", "a/../b", "é", "a b", "?", "#", "%", "%41", "@", "a:b", "+"]
)
async def test_the_library_reads_virtual_host_user_and_password_as_they_are(
    monkeypatch: pytest.MonkeyPatch, vhost: str
) -> None:
    tries = Tries(OSError("down"))
    monkeypatch.setattr(aio_pika, "connect", tries)
    async with aclosing(publisher_of(URL(f"amqp://us%40er:{QUOTED}@h:5/default"))) as publisher:
        publisher.connect(vhost)
        await eventually(lambda: bool(tries.urls))
    read = aiormq.Connection(aio_pika.connection.make_url(tries.urls[0]))
    assert read.vhost == vhost
    assert (read.url.user, read.url.password, read.url.host, read.url.port) == ("us@er", SECRET, "h", 5)


async def test_closing_ends_every_task() -> None:
    before = asyncio.all_tasks()
    async with listening(silent) as url:
        publisher = publisher_of(url)
        for vhost in ("/", "other"):
            publisher.connect(vhost)
        await eventually(lambda: len(publisher.faults()) == 2)
        await publisher.aclose()
        await eventually(lambda: not any("_stay_connected" in repr(task) for task in asyncio.all_tasks() - before))
