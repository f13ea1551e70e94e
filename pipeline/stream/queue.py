"""Reads a stream queue over AMQP 0-9-1 (https://www.rabbitmq.com/docs/streams#consuming): its ends, and a range of it.

Offsets rise, but not by one: the broker keeps some for itself, one at the beginning of each segment file, seen on
3.10.8 and 4.3.6. Retention takes whole segments off the old end, and always leaves the last message that there was.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self, TypeVar, cast

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage
from pamqp.common import FieldTable
from yarl import URL

from pipeline import PipelineError
from proxy.settings.credentials import secret
from proxy.settings.parse import ConfigError

# What it would print of a connection that fails is in the error.
logging.getLogger("aiormq").addHandler(logging.NullHandler())

PREFETCH = 200
"""Messages that the broker sends ahead."""

PATIENCE = 5.0
"""Seconds for a delivery where one may be missing: a stream may be empty, or have nothing new."""

QUIET = 0.3
"""Seconds without a delivery after which the newest is the last: a stream's last chunk comes at once."""

ENOUGH = 1.0
"""Seconds in all for that: where sidecars go on publishing there is never quiet, and any end that was seen is one."""

DEADLINE = 30.0
"""Seconds for what the broker must answer or deliver."""

MOST_AT_ONCE = 250
"""Messages that are held in memory together: of about 1,000 records, and 30 kB, where there is much to journal."""


class StreamMessage(NamedTuple):
    """One message of a stream."""

    offset: int
    type: str
    encoding: str
    """`content_encoding`; empty where there is none."""
    body: bytes


Next = Callable[[float], Awaitable[StreamMessage | None]]
"""The next message, or None where none comes in so many seconds."""


TRIES, PAUSE = 4, 1.0
"""How often a stream is asked for that the broker is not ready to read, and the seconds between."""

NOT_READY = ("INTERNAL_ERROR", "does not have a replica on the local node")
"""What 3.10.8 may answer to the consumer of a stream that was declared just now."""

T = TypeVar("T")


class _NotReadyError(PipelineError):
    """The broker failed by itself."""


@dataclass(frozen=True)
class StreamQueue:
    """A stream queue and how to reach it. Each call makes a connection of its own; all raise PipelineError."""

    url: str = field(repr=False)
    """``amqp://user:password@host:port/vhost``; never shown."""
    name: str

    def __post_init__(self) -> None:
        """Refuses a URL of another kind."""
        try:
            url = URL(self.url)
        except ValueError:
            url = URL()
        if url.scheme not in ("amqp", "amqps") or not url.host:
            # Not shown: it may hold a password.
            raise PipelineError(f"stream queue {self.name!r}: its URL is not amqp://user:password@host:port/vhost")

    @classmethod
    def with_password_file(cls, url: str, name: str, file: Path | None) -> Self:
        """With the password in a file's first line, where there is one: a URL shows in the list of processes."""
        queue = cls(url, name)
        if file is None:
            return queue
        try:
            return cls(str(URL(url).with_password(secret("amqp_password_file", file))), name)
        except ConfigError as error:
            raise PipelineError(str(error)) from None

    def __str__(self) -> str:
        """As errors name it."""
        url = URL(self.url)
        return f"stream queue {self.name!r} at {url.host}:{url.port or (5671 if url.scheme == 'amqps' else 5672)}"

    def first(self) -> int | None:
        """The offset of the oldest message; None where there is none."""
        return self._tried(self._first)

    def end(self, start: int | None = None) -> int:
        """The offset after the newest message: 0 where there is none.

        With `start`, waits PATIENCE for something after it, and raises where the stream ends before it.
        """
        end = self._tried(lambda: self._end(start))
        if start is not None and end < start:
            raise PipelineError(
                f"{self}: ends at offset {end}, before {start}: it is not the stream that was read before"
            )
        return end

    def messages(self, start: int, end: int, *, lossy: bool = False) -> list[StreamMessage]:
        """The messages from `start` to before `end`; some message at or after `end` - 1 must be there.

        Raises for messages from `start` on that retention has removed; with `lossy`, they are left out.
        """
        return self._tried(lambda: self._messages(start, end, lossy))

    def _tried(self, read: Callable[[], Coroutine[None, None, T]]) -> T:
        """Reads, and again after a moment where the broker was not ready for it."""
        for _ in range(TRIES - 1):
            try:
                return asyncio.run(read())
            except _NotReadyError:
                time.sleep(PAUSE)
        return asyncio.run(read())

    async def _first(self) -> int | None:
        async with self._consumed("first") as following:
            message = await self._if_any(following)
        return None if message is None else message.offset

    async def _end(self, start: int | None) -> int:
        loop, least = asyncio.get_running_loop(), start or 0
        async with self._consumed("last") as following:
            message = await self._if_any(following)
            end = 0 if message is None else message.offset + 1
            while message and end <= least:
                if message := await following(PATIENCE):
                    end = message.offset + 1
            until = loop.time() + ENOUGH
            while message and loop.time() < until:
                if message := await following(QUIET):
                    end = message.offset + 1
        return end

    async def _if_any(self, following: Next) -> StreamMessage | None:
        """The first delivery, or None of a stream that is empty, and not merely slow to come."""
        if (message := await following(PATIENCE)) or not await self._count():
            return message
        if message := await following(DEADLINE):
            return message
        raise PipelineError(f"{self}: nothing came in {PATIENCE + DEADLINE:g} s, though it is not empty")

    async def _count(self) -> int:
        """Messages, as the broker counts them: those of the last 5 s it may not have counted yet, seen on 3.10.8."""
        async with self._channel() as channel:
            queue = await channel.declare_queue(self.name, passive=True, timeout=DEADLINE)
            return queue.declaration_result.message_count or 0

    async def _messages(self, start: int, end: int, lossy: bool) -> list[StreamMessage]:
        found: list[StreamMessage] = []
        async with self._consumed(start) as following:
            while not found or found[-1].offset < end - 1:
                if (message := await following(DEADLINE)) is None:
                    raise PipelineError(f"{self}: nothing after offset {found[-1].offset if found else start} came")
                found.append(message)
        # The broker's own offset is no loss, nor is any number of them where something older is still there.
        missing = found[0].offset - start
        if not lossy and missing > 1:
            # Where it is empty by now, what was found here is the oldest that is known of.
            oldest = found[0].offset if (first := await self._first()) is None else first
            if oldest > start:
                raise PipelineError(
                    f"{self}: offsets {start} to {oldest - 1} are gone, removed by its retention before they were read"
                    f" (--lossy, in a program lossy=true, goes on at {oldest})"
                )
        return [message for message in found if message.offset < end]

    @asynccontextmanager
    async def _consumed(self, offset: int | str) -> AsyncIterator[Next]:
        """Consumes from an offset on."""
        arrived: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
        async with self._channel() as channel:
            await channel.set_qos(PREFETCH)
            queue = await channel.get_queue(self.name, ensure=False)
            closed = asyncio.ensure_future(channel.closed())

            async def following(seconds: float) -> StreamMessage | None:
                coming = asyncio.ensure_future(arrived.get())
                await asyncio.wait({coming, closed}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
                if coming.done():
                    return await _taken(coming.result())
                coming.cancel()
                if closed.done():
                    raise PipelineError(f"{self}: the broker closed the channel")
                return None

            try:
                await queue.consume(arrived.put, arguments={"x-stream-offset": offset}, timeout=DEADLINE)
                yield following
            finally:
                closed.cancel()

    @asynccontextmanager
    async def _channel(self) -> AsyncIterator[AbstractChannel]:
        """Of a connection of its own; what goes wrong with it is a PipelineError."""
        try:
            async with await self._connect() as connection:
                yield await connection.channel()
        except (OSError, aio_pika.exceptions.AMQPError, RuntimeError) as error:
            kind = _NotReadyError if any(said in str(error) for said in NOT_READY) else PipelineError
            raise kind(f"{self}: {str(error) or type(error).__name__}") from error

    async def _connect(self) -> AbstractConnection:
        named: FieldTable = {"connection_name": "ringproxy journal reader"}
        return await aio_pika.connect(self.url, timeout=DEADLINE, client_properties=named)


def ranges(start: int, end: int) -> list[tuple[int, int]]:
    """Cuts offsets from `start` to before `end` into what `StreamQueue.messages` can read at once."""
    return [(at, min(at + MOST_AT_ONCE, end)) for at in range(start, end, MOST_AT_ONCE)]


async def _taken(message: AbstractIncomingMessage) -> StreamMessage:
    await message.ack()
    offset = cast("int", message.headers["x-stream-offset"])
    return StreamMessage(offset, message.type or "", message.content_encoding or "", message.body)
