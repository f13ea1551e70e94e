"""Reads a stream queue over AMQP 0-9-1 (https://www.rabbitmq.com/docs/streams#consuming): its ends, and a range of it.

Offsets rise, but not by one: the broker keeps some for itself, one at the beginning of each segment file, seen on
3.10.8 and 4.3.6. Retention takes whole segments off the old end, and always leaves the last message that there was.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
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

# The error that is raised says all that aiormq would log of a connection that fails.
logging.getLogger("aiormq").addHandler(logging.NullHandler())

PREFETCH = 200
"""The prefetch count: how many messages the broker sends ahead of their acks."""

PATIENCE = 5.0
"""The seconds to wait for a delivery that may not come, since a stream may be empty or have nothing new."""

QUIET = 0.3
"""The seconds without a delivery after which the newest message is taken for the last; a stream's last chunk comes
at once.
"""

ENOUGH = 1.0
"""The most seconds to wait for such a silence: while sidecars publish there is none, and any end that was seen will
do.
"""

DEADLINE = 30.0
"""The seconds within which the broker must answer, or deliver a message that exists."""

MOST_AT_ONCE = 250
"""The most messages that a task holds in memory, each of about 1,000 records and 30 kB under load."""


class StreamMessage(NamedTuple):
    """One message of a stream."""

    offset: int
    type: str
    encoding: str
    """The property content_encoding; empty if the message has none."""
    body: bytes


Next = Callable[[float], Awaitable[StreamMessage | None]]
"""A function that waits some seconds for the next message, and returns None if none comes."""


TRIES, PAUSE = 4, 1.0
"""How often a stream is tried that the broker is not ready to read, and the seconds between tries."""

NOT_READY = ("INTERNAL_ERROR", "replica on the local node")
"""Words in the answers of RabbitMQ to a consumer of a stream that the node has no replica of, or none that runs yet.

3.10.8 answers so where the stream was declared just now, and 4.3.6 says "a running replica". A retry helps.
"""

T = TypeVar("T")


class _NotReadyError(PipelineError):
    """An error of the broker that a retry may mend: one of NOT_READY."""


@dataclass(frozen=True)
class StreamQueue:
    """A stream queue and how to reach it.

    Each call makes a connection for itself, and raises PipelineError if the broker cannot be reached or refuses.
    """

    url: str = field(repr=False)
    """The AMQP URL, ``amqp://user:password@host:port/vhost``; it is never shown, since it has the password."""
    name: str

    def __post_init__(self) -> None:
        """Raise PipelineError if the URL is no AMQP URL."""
        try:
            url = URL(self.url)
        except ValueError:
            url = URL()
        if url.scheme not in ("amqp", "amqps") or not url.host:
            # Not shown: it may hold a password.
            raise PipelineError(f"stream queue {self.name!r}: its URL is not amqp://user:password@host:port/vhost")

    @classmethod
    def with_password_file(cls, url: str, name: str, file: Path | None) -> Self:
        """Return the queue, with its password from the first line of `file` if `file` is given.

        A URL on the command line shows in the list of processes; a file's content does not. Raises PipelineError for a
        file that cannot be read.
        """
        queue = cls(url, name)
        if file is None:
            return queue
        try:
            return cls(str(URL(url).with_password(secret("amqp_password_file", file))), name)
        except ConfigError as error:
            raise PipelineError(str(error)) from None

    def __str__(self) -> str:
        """Return the name and address of the queue, without the password, as errors show it."""
        url = URL(self.url)
        return f"stream queue {self.name!r} at {url.host}:{url.port or (5671 if url.scheme == 'amqps' else 5672)}"

    @property
    def place(self) -> Sequence[str]:
        """The host, the virtual host and the name, which say which queue it is, whoever reads it."""
        url = URL(self.url)
        return url.host or "", url.path.removeprefix("/") or "/", self.name

    def first(self) -> int | None:
        """Return the offset of the oldest message; None for an empty stream."""
        return self._tried(self._first)

    def end(self, start: int | None = None) -> int:
        """Return the offset behind the newest message, 0 for an empty stream.

        With `start`, wait up to PATIENCE for a message from there on, and raise PipelineError where the stream ends
        before it.
        """
        end = self._tried(lambda: self._end(start))
        if start is not None and end < start:
            raise PipelineError(
                f"{self}: ends at offset {end}, before {start}: it is not the stream that was read before"
            )
        return end

    def messages(self, start: int, end: int, *, lossy: bool = False) -> list[StreamMessage]:
        """Return the messages with offsets from `start` to before `end`; the stream must have one at `end` - 1 or
        later.

        Raises PipelineError if retention has removed messages from `start` on, unless `lossy`: then they are left
        out.
        """
        return self._tried(lambda: self._messages(start, end, lossy))

    def _tried(self, read: Callable[[], Coroutine[None, None, T]]) -> T:
        """Run `read` and return its result; try again after a pause if the broker was not ready."""
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
        """Return the first delivery, or None if the stream is empty. Raises PipelineError if it is merely slow."""
        if (message := await following(PATIENCE)) or not await self._count():
            return message
        if message := await following(DEADLINE):
            return message
        raise PipelineError(f"{self}: nothing came in {PATIENCE + DEADLINE:g} s, though it is not empty")

    async def _count(self) -> int:
        """Return the broker's count of messages, which may lack those of the last 5 s (seen on 3.10.8)."""
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
        """Consume the stream from an offset on, and yield the function that waits for the next message."""
        arrived: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
        async with self._channel() as channel:
            await channel.set_qos(PREFETCH)
            queue = await channel.get_queue(self.name, ensure=False)
            closed = asyncio.ensure_future(channel.closed())

            async def following(seconds: float) -> StreamMessage | None:
                coming = asyncio.ensure_future(arrived.get())
                await asyncio.wait({coming, closed}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
                if coming.done():
                    return await _acked(coming.result())
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
        """Yield a channel of a new connection, which closes at the end. Raises PipelineError for any failure of it."""
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
    """Return ranges, each with the offset behind its last, that `StreamQueue.messages` reads at once."""
    return [(at, min(at + MOST_AT_ONCE, end)) for at in range(start, end, MOST_AT_ONCE)]


async def _acked(message: AbstractIncomingMessage) -> StreamMessage:
    await message.ack()
    offset = cast("int", message.headers["x-stream-offset"])
    return StreamMessage(offset, message.type or "", message.content_encoding or "", message.body)
