"""An AMQP client that does one thing at a time: read a delivery, publish a message and await its confirm, ack one.

Keys and headers may be any bytes, and the ring may hash either, so a message goes out again as the bytes that came; a
client library would decode and encode them. Deliveries are read only when they are asked for, so a connection that
consumes publishes nothing: what the broker has sent ahead waits in its socket, and not here.

`proxy/publisher/` does not serve: it connects again by itself, and holds no lock. The lock is a queue of the connection
that publishes, so that whoever has lost the lock cannot publish.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from struct import error as StructError  # noqa: N812 - the standard library's exceptions begin small
from typing import Final, NamedTuple

from proxy.publisher import handshake
from proxy.publisher.dial import Brokers
from proxy.settings.connection_faults import NOT_AMQP
from proxy.wire.arguments import Arguments
from proxy.wire.content import body_size
from proxy.wire.frames import (
    BASIC_ACK,
    BASIC_CONSUME,
    BASIC_CONSUME_OK,
    BASIC_DELIVER,
    BASIC_NACK,
    BASIC_PUBLISH,
    BASIC_QOS,
    BASIC_RETURN,
    BODY,
    CHANNEL_CLOSE,
    CHANNEL_CLOSE_OK,
    CHANNEL_OPEN_OK,
    CONFIRM_SELECT,
    CONNECTION_BLOCKED,
    CONNECTION_CLOSE,
    CONNECTION_CLOSE_OK,
    CONNECTION_OPEN_OK,
    CONNECTION_START,
    CONNECTION_TUNE,
    CONNECTION_UNBLOCKED,
    EMPTY_TABLE,
    END,
    EXCHANGE_DECLARE,
    FRAME,
    HEADER,
    HEARTBEAT_FRAME,
    LEAST_FRAME_MAX,
    MANDATORY,
    METHOD,
    OVERHEAD,
    PASSIVE,
    PROTOCOL_HEADER,
    QUEUE_DECLARE,
    REPLY_SUCCESS,
    U16,
    U64,
    Fault,
    channel_open,
    close_frame,
    method_frame,
    shorted,
    u32,
)

ANSWERED_WITHIN: Final = 60.0
"""Seconds that the broker has to answer a request, and to confirm a publish."""

_CLOSED_WITHIN: Final = 1.0
"""Seconds that the broker has to answer connection.close."""

_MAX_BODY: Final = 512 * 1024 * 1024
"""The most bytes of a message: RabbitMQ's own upper limit, whatever its max_message_size."""

_EXCLUSIVE: Final = 4
"""The bit of queue.declare by which the queue is this connection's, and goes with it."""

_CONFIRM_SELECT_OK: Final = CONFIRM_SELECT + 1

_BASIC_QOS_OK: Final = BASIC_QOS + 1

_CONSUMES, _PUBLISHES, _ASKS = 1, 2, 3
"""The numbers of the channels; the last one is for declarations, which may close it."""


class LostError(Exception):
    """The connection has ended, or does not answer; the message says why."""


class RefusedError(Exception):
    """The peer has closed the channel in place of an answer."""

    def __init__(self, code: int, text: str) -> None:
        """Take the reply code and the reply text."""
        super().__init__(text)
        self.code = code


class Counts(NamedTuple):
    """The numbers that a queue tells of itself."""

    ready: int
    consumers: int


class Delivery(NamedTuple):
    """A message that the client holds unacked."""

    tag: int
    redelivered: bool
    key: bytes
    header: bytes
    """The payload of its content header."""
    body: bytes


class Client:
    """One connection, from its handshake to its end. Each method raises LostError if it has ended."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take the streams of a new connection."""
        self._reader, self._writer = reader, writer
        self._frame_max = handshake.LONGEST_FRAME
        self.heartbeat = float(handshake.HEARTBEAT)
        """Seconds in which the peer must hear from this client."""
        self._head = b""
        """The first bytes of a frame whose rest has not come yet."""
        self._blocked = ""
        """The reason why the broker takes no publishes; empty while it does."""
        self._published = 0
        """The number of the last publish on its channel; 0 while that channel is not open."""

    async def open(self, user: str, password: str, vhost: str, name: str) -> None:
        """Do the handshake. Raises LostError if the login is refused."""
        self._writer.write(PROTOCOL_HEADER)
        await self._until(0, CONNECTION_START)
        self._writer.write(handshake.start_ok(user, password, vhost, {"connection_name": name}))
        answer, limits = handshake.tune_ok((await self._until(0, CONNECTION_TUNE))[1])
        self._frame_max, self.heartbeat = limits.frame_max, limits.heartbeat
        self._writer.write(answer + handshake.open_vhost(vhost))
        await self._until(0, CONNECTION_OPEN_OK)

    async def counts(self, queue: bytes) -> Counts:
        """Return what a queue has now. Raises RefusedError."""
        arguments = await self._declare(queue, PASSIVE)
        arguments.short_string()
        return Counts(arguments.long(), arguments.long())

    async def find_exchange(self, exchange: bytes) -> None:
        """Return if there is an exchange of this name. Raises RefusedError."""
        await self._ask(EXCHANGE_DECLARE, shorted(exchange) + shorted(b"direct") + bytes((PASSIVE,)))

    async def lock(self, queue: bytes) -> None:
        """Declare a queue that no other connection may use, for as long as this one lives. Raises RefusedError."""
        await self._declare(queue, _EXCLUSIVE)

    async def consume(self, queue: bytes, prefetch: int) -> None:
        """Have a queue deliver at most `prefetch` messages that are not acked. Raises RefusedError."""
        await self._open(_CONSUMES)
        self._writer.write(method_frame(_CONSUMES, BASIC_QOS, bytes(4) + U16.pack(prefetch) + b"\0"))
        await self._until(_CONSUMES, _BASIC_QOS_OK)
        arguments = b"\0\0" + shorted(queue) + shorted(b"redrive") + b"\0" + EMPTY_TABLE
        self._writer.write(method_frame(_CONSUMES, BASIC_CONSUME, arguments))
        await self._until(_CONSUMES, BASIC_CONSUME_OK)

    async def delivery(self, within: float) -> Delivery | None:
        """Return the next message of the queue, which stays unacked; None if none comes within so many seconds.

        Raises RefusedError, and LostError for a lost connection or a message that is too large.
        """
        try:
            async with asyncio.timeout(within):
                _, arguments = await self._until(_CONSUMES, BASIC_DELIVER)
        except TimeoutError:
            return None
        arguments.short_string()  # the consumer's tag
        tag, redelivered = arguments.longlong(), bool(arguments.octet())
        arguments.short_string()  # the exchange of its publish
        key = arguments.short_string()
        header = await self._content(HEADER)
        size = body_size(header, 0)
        if size > _MAX_BODY:
            raise LostError(f"a message of {size} bytes, more than {_MAX_BODY}")
        parts: list[bytes] = []
        while size > 0:
            parts.append(await self._content(BODY))
            size -= len(parts[-1])
        return Delivery(tag, redelivered, key, header, b"".join(parts))

    async def publish(self, exchange: bytes, key: bytes, header: bytes, body: bytes) -> str:
        """Publish a message mandatory, and return why the broker did not take it; empty once it has confirmed it.

        Raises RefusedError if it closed the channel for that; the next publish opens a new one.
        """
        if not self._published:
            await self._open(_PUBLISHES)
            self._writer.write(method_frame(_PUBLISHES, CONFIRM_SELECT, b"\0"))
            await self._until(_PUBLISHES, _CONFIRM_SELECT_OK)
        self._published += 1
        arguments = b"\0\0" + shorted(exchange) + shorted(key) + bytes((MANDATORY,))
        self._writer.write(method_frame(_PUBLISHES, BASIC_PUBLISH, arguments) + _frame(HEADER, header))
        room = self._frame_max - OVERHEAD
        for at in range(0, len(body), room):
            self._writer.write(_frame(BODY, body[at : at + room]))
        why = ""
        try:
            while True:
                method, answer = await self._until(_PUBLISHES, BASIC_RETURN, BASIC_ACK, BASIC_NACK)
                if method == BASIC_NACK:
                    return "nacked: a queue did not take it, as one that is full"
                if method == BASIC_ACK:
                    return why
                why = f"returned: {answer.short()} {_text(answer.short_string())}"
        except RefusedError:
            self._published = 0
            raise

    def ack(self, tag: int) -> None:
        """Ack one message."""
        self._writer.write(method_frame(_CONSUMES, BASIC_ACK, U64.pack(tag) + b"\0"))

    async def release(self) -> None:
        """Give back what is unacked, once the broker has taken all acks. The queue may be consumed anew then.

        A bare channel.close has quorum queues put messages back where they were; a nack changes their order.
        """
        await self._close(_CONSUMES)

    async def beat(self) -> None:
        """Send heartbeats until this is cancelled."""
        while True:
            await asyncio.sleep(self.heartbeat / 2)
            self._writer.write(HEARTBEAT_FRAME)

    async def close(self) -> None:
        """Close the connection; what is unacked goes back to its place."""
        with contextlib.suppress(LostError, RefusedError, OSError, TimeoutError):
            async with asyncio.timeout(_CLOSED_WITHIN):
                self._writer.write(close_frame(0, REPLY_SUCCESS, "the redrive has ended"))
                await self._until(0, CONNECTION_CLOSE_OK)
        self._writer.close()

    async def _declare(self, queue: bytes, bits: int) -> Arguments:
        return await self._ask(QUEUE_DECLARE, shorted(queue) + bytes((bits,)))

    async def _ask(self, method: int, name: bytes) -> Arguments:
        """Send a declaration on a channel of its own, and return its -ok. Raises RefusedError."""
        await self._open(_ASKS)
        self._writer.write(method_frame(_ASKS, method, b"\0\0" + name + EMPTY_TABLE))
        _, arguments = await self._until(_ASKS, method + 1)
        await self._close(_ASKS)
        return arguments

    async def _open(self, channel: int) -> None:
        self._writer.write(channel_open(channel))
        await self._until(channel, CHANNEL_OPEN_OK)

    async def _close(self, channel: int) -> None:
        self._writer.write(close_frame(channel, REPLY_SUCCESS, "done"))
        await self._until(channel, CHANNEL_CLOSE_OK)

    async def _until(self, channel: int, *methods: int) -> tuple[int, Arguments]:
        """Return the next of these methods on a channel, and its arguments.

        Raises RefusedError if the peer closes that channel, and LostError if it closes another, or the connection.
        """
        async with self._in_time():
            while True:
                kind, number, frame = await self._read()
                if kind != METHOD:
                    continue  # a heartbeat, or the content of a returned message
                method, arguments = u32(frame, 7), Arguments(frame, 0, len(frame))
                if number == channel and method in methods:
                    return method, arguments
                if not number:
                    self._on_connection(method, arguments)
                elif method == CHANNEL_CLOSE:
                    self._writer.write(method_frame(number, CHANNEL_CLOSE_OK))
                    refused = RefusedError(arguments.short(), _text(arguments.short_string()))
                    if number != channel:
                        raise LostError(str(refused))
                    raise refused

    async def _content(self, kind: int) -> bytes:
        """Return the payload of the next frame of a content. Raises LostError where another frame comes."""
        async with self._in_time():
            while True:
                found, number, frame = await self._read()
                if found == kind and number == _CONSUMES:
                    return frame[7:-1]
                if found == METHOD and not number:
                    self._on_connection(u32(frame, 7), Arguments(frame, 0, len(frame)))
                elif number:
                    raise LostError("the peer sends another frame in the middle of a message")

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        """Raise LostError if what is done here takes longer than `ANSWERED_WITHIN`."""
        try:
            async with asyncio.timeout(ANSWERED_WITHIN):
                yield
        except TimeoutError:
            why = f": the broker takes no publishes: {self._blocked}" if self._blocked else ""
            raise LostError(f"no answer for {ANSWERED_WITHIN:g} s{why}") from None

    def _on_connection(self, method: int, arguments: Arguments) -> None:
        if method == CONNECTION_CLOSE:
            self._writer.write(method_frame(0, CONNECTION_CLOSE_OK))
            arguments.short()
            raise LostError(_text(arguments.short_string()))
        if method == CONNECTION_BLOCKED:
            self._blocked = _text(arguments.short_string()) or "no reason given"
        elif method == CONNECTION_UNBLOCKED:
            self._blocked = ""

    async def _read(self) -> tuple[int, int, bytes]:
        """Return type, channel and bytes of the next frame. Raises LostError."""
        try:
            # Kept, since whoever waits for a frame may give up before its rest comes.
            head = self._head = self._head or await self._reader.readexactly(OVERHEAD - 1)
            kind, number, size = FRAME.unpack(head)
            if size > max(self._frame_max, LEAST_FRAME_MAX):
                raise LostError(f"a frame of {size} bytes, which is not AMQP 0-9-1; {NOT_AMQP}")
            rest = await self._reader.readexactly(size + 1)
        except asyncio.IncompleteReadError:
            raise LostError("the peer has closed the connection") from None
        except TimeoutError:
            raise
        except OSError as error:
            raise LostError(str(error)) from None
        self._head = b""
        if rest[-1] != END or (kind == METHOD and size < 4):
            raise LostError(f"a frame that is not AMQP 0-9-1; {NOT_AMQP}")
        return kind, number, head + rest


@asynccontextmanager
async def connected(brokers: Brokers, login: tuple[str, str], vhost: str) -> AsyncIterator[Client]:
    """Give a client whose connection is open, and close it. Raises LostError, also for bytes that are not AMQP."""
    streams: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    def make() -> asyncio.StreamReaderProtocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(), lambda *both: streams.append(both))

    try:
        await brokers.dial(make)
    except OSError as error:
        raise LostError(str(error)) from None
    client = Client(*streams[-1])
    try:
        await client.open(*login, vhost, f"ring-proxy group redrive: {socket.gethostname()}, process {os.getpid()}")
        beats = asyncio.create_task(client.beat())
        try:
            yield client
        finally:
            beats.cancel()
    except (Fault, StructError, IndexError) as error:
        raise LostError(f"the peer sent what is not AMQP 0-9-1: {error}") from None
    finally:
        await client.close()


def _frame(kind: int, payload: bytes) -> bytes:
    return FRAME.pack(kind, _PUBLISHES, len(payload)) + payload + bytes((END,))


def _text(text: bytes) -> str:
    return text.decode(errors="replace")
