"""The journal as messages of a stream queue (https://www.rabbitmq.com/docs/streams): a few a second, by aio-pika."""

import asyncio
import contextlib
import gzip
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future
from typing import Any

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection

from proxy.journal.store import StoreError
from proxy.process.amqp_client import connect as connect_to
from proxy.settings.config import Settings
from proxy.settings.connection_faults import in_words
from proxy.settings.files import Files

log = logging.getLogger(__name__)

RECORDS, RING = "ringproxy.records.v1", "ringproxy.ring.v1"
"""The values of the AMQP property `type` for messages of records and of rings."""

_PAUSE = 1.0
"""Seconds between two tries to publish a message, and for the broker to close a connection."""

_TRY = 10.0
"""Seconds of one try, as the peer of a connection may be gone without a sign."""

_ARGUMENTS: dict[str, Any] = {"x-queue-type": "stream", "x-max-length-bytes": 10 * 1024**3}
"""Arguments with which a missing queue is declared: without a limit it would fill the broker's disk in the end."""

_LAST_TRY = 2.0
"""Seconds for which a message is tried once `hurry` was called."""

Connect = Callable[[], Awaitable[AbstractConnection]]
"""A coroutine function that returns a new connection. Raises OSError, or an AMQP error."""


class StreamStore:
    """A store that publishes to a stream queue with confirms, each message before the next; see `store.Store`.

    A message whose confirm was lost is published again, so it may be in the queue twice.
    """

    def __init__(self, connect: Connect, queue: str, proxy: str, *, patience: float) -> None:
        """Take the queue's name and how to connect; a message is tried again for `patience` seconds."""
        self._connect, self._queue, self._proxy, self._patience = connect, queue, proxy, patience
        self._loop = asyncio.get_running_loop()
        self._connection: AbstractConnection | None = None
        self._channel: AbstractChannel | None = None
        self._closing = self._confirmed = False
        self._limit: asyncio.Timeout | None = None

    def ring(self, fingerprint: str, content: bytes) -> None:
        """Publish a ring as one message."""
        self._send(content, RING, None)

    def write(self, lines: bytes, records: int, first: int, at: float) -> None:
        """Publish lines as one gzipped message."""
        self._send(gzip.compress(lines, 1), RECORDS, "gzip")

    def hurry(self) -> None:
        """Give what is being sent two more seconds, and have every failure from now on be the last."""
        self._closing = True
        if self._limit is not None:
            with contextlib.suppress(RuntimeError):  # which it raises where it is over already
                self._limit.reschedule(min(self._limit.when() or 0.0, self._loop.time() + _LAST_TRY))

    def finish_if_due(self) -> bool:
        """Return whether the last message was confirmed; nothing is ever unfinished here."""
        return self._confirmed

    def give_up(self) -> int:
        """Return 0: what was confirmed is safe, so there is nothing to drop."""
        return 0

    def close(self) -> bool:
        """Close the connection, and return whether the last message was confirmed."""
        self._wait(asyncio.run_coroutine_threadsafe(self._disconnect(), self._loop))
        return self._confirmed

    def _send(self, body: bytes, kind: str, encoding: str | None) -> None:
        """Publish a body from the writer's thread, and wait for its confirm. Raises StoreError."""
        message = aio_pika.Message(
            body,
            type=kind,
            content_type="application/x-ndjson" if encoding else "application/json",
            content_encoding=encoding,
            app_id=f"ringproxy {self._proxy}",
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        )
        self._confirmed = False
        self._wait(asyncio.run_coroutine_threadsafe(self._publish(message), self._loop))
        self._confirmed = True

    def _wait(self, sent: "Future[None]") -> None:
        """Return once work in the loop is done. Raises StoreError if it is not in time, and the error of the work."""
        try:
            sent.result(self._patience + 2 * _PAUSE)
        except (TimeoutError, CancelledError) as error:
            sent.cancel()
            raise StoreError("the stream queue did not confirm in time") from error

    async def _publish(self, message: aio_pika.Message) -> None:
        """Publish a message until it is confirmed, connecting anew after each fault. Raises StoreError at the end."""
        fault = ""
        try:
            async with asyncio.timeout(_LAST_TRY if self._closing else self._patience) as self._limit:
                while True:
                    try:
                        async with asyncio.timeout(_TRY):
                            channel = await self._open()
                            await channel.default_exchange.publish(message, self._queue, mandatory=True)
                    except (OSError, TimeoutError, aio_pika.exceptions.AMQPError, RuntimeError) as error:
                        await self._disconnect()
                        why = str(error) or "no answer in time"
                        if self._closing:
                            raise StoreError(f"stream queue {self._queue!r}: {why}") from error
                        if why != fault:
                            log.warning(
                                "journal_stream: %r takes no records: %s; the next try follows", self._queue, why
                            )
                        fault = why
                        await asyncio.sleep(_PAUSE)
                    else:
                        return
        except TimeoutError:
            await self._disconnect()
            raise StoreError(f"stream queue {self._queue!r} takes nothing: {fault}") from None
        finally:
            self._limit = None

    async def _open(self) -> AbstractChannel:
        """Return a channel in confirm mode, after the queue was found or declared."""
        if self._channel is not None and not self._channel.is_closed:
            return self._channel
        await self._disconnect()
        self._connection = await self._connect()
        # A returned message raises an error: the queue may be deleted at any time.
        channel = await self._connection.channel(on_return_raises=True)
        try:
            await channel.declare_queue(self._queue, passive=True)
        except aio_pika.exceptions.ChannelNotFoundEntity:
            channel = await self._connection.channel(on_return_raises=True)
            await channel.declare_queue(self._queue, durable=True, arguments=_ARGUMENTS)
        self._channel = channel
        return channel

    async def _disconnect(self) -> None:
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(_PAUSE):
                    await connection.close()


def connector(settings: Settings, files: Files, vhost: str, name: str) -> Connect:
    """Return how to connect to a virtual host as this sidecar's own user, at the first node that takes it.

    `name` is the connection's name in the broker's management pages.
    """

    async def connect() -> AbstractConnection:
        faults = []
        login = files.broker_login()
        for address in settings.brokers:
            context = files.broker_tls() if files.broker_tls is not None else None
            try:
                async with asyncio.timeout(settings.lookup_timeout):
                    connection = await connect_to(address, login, vhost, context, name)
            except (OSError, aio_pika.exceptions.AMQPError) as error:
                faults.append(f"{address}: {in_words(error)}")
            else:
                await files.follow(connection, login)
                return connection
        raise OSError("; ".join(faults))

    return connect
