"""The journal as messages of a stream queue (https://www.rabbitmq.com/docs/streams), by aio-pika: a few a second."""

import asyncio
import contextlib
import gzip
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection

from proxy.config import Settings
from proxy.files import Files
from proxy.journal.writer import StoreError

log = logging.getLogger(__name__)

RECORDS, RING = "ringproxy.records.v1", "ringproxy.ring.v1"
"""Types of messages."""

_PAUSE = 1.0
"""Seconds between tries."""

_LAST_TRY = 2.0
"""Seconds for each message at the end."""

Connect = Callable[[], Awaitable[AbstractConnection]]


class StreamStore:
    """Publishes to a stream queue, with confirms. The thread waits for each message; what came in doubt comes twice."""

    def __init__(self, connect: Connect, queue: str, proxy: str, *, patience: float) -> None:
        """`connect` raises OSError or an AMQP error; a message is tried again for `patience` seconds."""
        self._connect, self._queue, self._proxy, self._patience = connect, queue, proxy, patience
        self._loop = asyncio.get_running_loop()
        self._connection: AbstractConnection | None = None
        self._channel: AbstractChannel | None = None
        self._closing = False
        self._limit: asyncio.Timeout | None = None

    def ring(self, fingerprint: str, content: bytes) -> None:
        """Publishes a ring."""
        self._send(content, RING, None)

    def write(self, lines: bytes, records: int, first: int, at: float) -> None:
        """Publishes lines as one message."""
        self._send(gzip.compress(lines, 1), RECORDS, "gzip")

    def hurry(self) -> None:
        """What is being sent gets one more try."""
        self._closing = True
        if self._limit is not None:
            self._limit.reschedule(min(self._limit.when() or 0.0, self._loop.time() + _LAST_TRY))

    def look(self) -> None:
        """Nothing is ever unfinished."""

    def give_up(self) -> int:
        """Nothing is ever unfinished."""
        return 0

    def close(self) -> None:
        """Closes the connection."""
        self._wait(asyncio.run_coroutine_threadsafe(self._disconnect(), self._loop))

    def _send(self, body: bytes, kind: str, encoding: str | None) -> None:
        message = aio_pika.Message(
            body,
            type=kind,
            content_type="application/x-ndjson" if encoding else "application/json",
            content_encoding=encoding,
            app_id=f"ringproxy {self._proxy}",
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        )
        self._wait(asyncio.run_coroutine_threadsafe(self._publish(message), self._loop))

    def _wait(self, sent: "Future[None]") -> None:
        try:
            sent.result(self._patience + _PAUSE)
        except (TimeoutError, CancelledError) as error:
            sent.cancel()
            raise StoreError("the stream queue did not confirm in time") from error

    async def _publish(self, message: aio_pika.Message) -> None:
        fault = ""
        try:
            async with asyncio.timeout(_LAST_TRY if self._closing else self._patience) as self._limit:
                while True:
                    try:
                        channel = await self._open()
                        await channel.default_exchange.publish(message, self._queue, mandatory=True)
                    except (OSError, aio_pika.exceptions.AMQPError, RuntimeError) as error:
                        await self._disconnect()
                        if self._closing:
                            raise StoreError(f"stream queue {self._queue!r}: {error}") from error
                        if str(error) != fault:
                            log.warning("stream queue %r of the journal: %s; the next try follows", self._queue, error)
                        fault = str(error)
                        await asyncio.sleep(_PAUSE)
                    else:
                        return
        except TimeoutError:
            raise StoreError(f"stream queue {self._queue!r} takes nothing") from None
        finally:
            self._limit = None

    async def _open(self) -> AbstractChannel:
        """A channel in confirm mode on which the queue is known to exist."""
        if self._channel is not None and not self._channel.is_closed:
            return self._channel
        await self._disconnect()
        self._connection = await self._connect()
        channel = await self._connection.channel()
        try:
            await channel.declare_queue(self._queue, passive=True)
        except aio_pika.exceptions.ChannelNotFoundEntity:
            channel = await self._connection.channel()
            await channel.declare_queue(self._queue, durable=True, arguments={"x-queue-type": "stream"})
        self._channel = channel
        return channel

    async def _disconnect(self) -> None:
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            with contextlib.suppress(Exception):
                await connection.close()


def connector(settings: Settings, files: Files) -> Connect:
    """Connects as the sidecar itself to the default virtual host, by the first node that takes it."""

    async def connect() -> AbstractConnection:
        faults = []
        user, password = files.broker_login()
        for address in settings.brokers:
            context = files.broker_tls() if files.broker_tls is not None else None
            try:
                async with asyncio.timeout(settings.lookup_timeout):
                    return await aio_pika.connect(
                        host=address.host,
                        port=address.port,
                        login=user,
                        password=password,
                        virtualhost=settings.default_vhost,
                        ssl=context is not None,
                        ssl_context=context,
                        client_properties={"connection_name": "ringproxy journal"},
                    )
            except (OSError, aio_pika.exceptions.AMQPError) as error:
                faults.append(f"{address}: {error}")
        raise OSError("; ".join(faults))

    return connect
