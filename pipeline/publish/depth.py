"""Queues as the broker itself tells of them now, by passive declaration: whether they exist, and how deep they are."""

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType
from typing import Self

import aio_pika
import aiormq
from aio_pika.abc import AbstractChannel, AbstractConnection
from pamqp.commands import Queue

from pipeline import PipelineError
from pipeline.data.live import tls_of
from pipeline.publish.window import Window
from proxy.settings.config import Settings
from proxy.settings.credentials import of_url

log = logging.getLogger(__name__)

_REFUSALS = (aiormq.exceptions.AuthenticationError, aiormq.exceptions.ProbableAuthenticationError)


class AwayError(PipelineError):
    """An error for a broker or management API that does not answer now: asking again later may help."""


class Depths:
    """A channel on which queues are looked at, opened when it is first needed and again after it was lost.

    It is an async context manager, which closes its connection.
    """

    def __init__(self, settings: Settings) -> None:
        """Take the settings of the broker; connections are made as the user of broker_url, in its virtual host."""
        self._settings = settings
        self._connection: AbstractConnection | None = None
        self._channel: AbstractChannel | None = None

    async def __aenter__(self) -> Self:
        """Do nothing: `of` connects."""
        return self

    async def _connected(self) -> AbstractConnection:
        """Return a new connection, after a login at the first node that takes it.

        Raises PipelineError if a node refuses the login, and AwayError if none answers.
        """
        faults, refused = [], False
        for address in self._settings.brokers:
            try:
                return await self._connect(address.host, address.port)
            except (TimeoutError, OSError, aio_pika.exceptions.AMQPError) as error:
                faults.append(f"{address}: {' '.join(str(error).split()) or type(error).__name__}")
                refused = refused or isinstance(error, _REFUSALS)
        told = f"no connection to the broker: {'; '.join(faults)}"
        raise PipelineError(told) if refused else AwayError(told)

    async def _connect(self, host: str, port: int) -> AbstractConnection:
        settings = self._settings
        user, password = of_url(settings.broker_url)
        tls = tls_of(settings.broker_url, settings)
        async with asyncio.timeout(settings.lookup_timeout):
            return await aio_pika.connect(
                host=host,
                port=port,
                login=user,
                password=password,
                virtualhost=settings.default_vhost,
                ssl=tls is not None,
                ssl_context=tls() if tls is not None else None,
                client_properties={"connection_name": "ringproxy pipeline, depths"},
            )

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._drop()

    async def _drop(self) -> None:
        """Close the connection if there is one; the next look needs another."""
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            with suppress(TimeoutError, OSError, RuntimeError, aio_pika.exceptions.AMQPError):
                async with asyncio.timeout(self._settings.lookup_timeout):
                    await connection.close()

    async def of(self, queues: Iterable[str]) -> dict[str, int]:
        """Return the ready messages of each queue.

        Raises PipelineError for one that is not there or that the broker does not let this user see, AwayError for a
        broker that does not answer; asked again, it connects again.
        """
        found = {}
        queue = ""
        try:
            if self._connection is None:
                self._connection = await self._connected()
            async with asyncio.timeout(self._settings.confirm_timeout):
                if self._channel is None:
                    self._channel = await self._connection.channel()
                for queue in queues:
                    found[queue] = await _declared(self._channel, queue)
        except aio_pika.exceptions.ChannelNotFoundEntity:
            # The broker has closed the channel over it.
            self._channel = None
            raise PipelineError(f"queue {queue!r} is missing in {self._settings.default_vhost!r}") from None
        except (TimeoutError, OSError, RuntimeError, aio_pika.exceptions.AMQPError) as error:
            await self._drop()
            kind = PipelineError if isinstance(error, aio_pika.exceptions.AMQPChannelError) else AwayError
            raise kind(f"queue {queue!r} cannot be looked at: {error or 'no answer in time'}") from None
        return found


class Allowance:
    """How many rows each queue may be sent before it is looked at again, so that it gets no deeper than a limit.

    A queue that is near its limit is sent rows again once a quarter of the limit is free. Once the pauses have grown to
    the longest, any free room is enough. A queue whose consumers keep up is therefore not looked at for every row. One
    instance serves one task.
    """

    _SHORTEST, _LONGEST = 0.02, 1.0
    """The shortest and the longest time, in seconds, between two looks at one queue."""

    def __init__(self, depths: Depths, queues: tuple[str, ...], max_depth: int) -> None:
        """Start with no queue looked at, so that no queue may be sent a row yet."""
        self._depths, self._queues, self._max_depth = depths, queues, max_depth
        self.most = [0] * len(queues)
        """How many rows a task may have sent to each queue in all."""
        self._next = [0.0] * len(queues)
        """When each queue may be looked at again."""
        self._pause = self._SHORTEST

    async def look(self, index: int, window: Window, now: float) -> float:
        """Find how many rows a queue may be sent; return the seconds to pause, 0 if it may be sent some now.

        `index` is the queue's; `now` is in seconds, always of one clock. Raises PipelineError if the queue cannot be
        looked at. A row that is not confirmed yet may be in the queue or not: it is counted beside the queue's depth.
        """
        if now < self._next[index]:
            return self._next[index] - now
        queue, confirmed = self._queues[index], window.confirmed[index]
        depth = (await self._depths.of((queue,)))[queue]
        self._next[index] = now + self._SHORTEST
        most = confirmed + self._max_depth - depth
        room = most - window.sent(index)
        if room >= max(1, self._max_depth // 4) or (room > 0 and self._pause == self._LONGEST):
            self.most[index], self._pause = most, self._SHORTEST
            return 0.0
        pause, self._pause = self._pause, min(2 * self._pause, self._LONGEST)
        if pause < self._pause == self._LONGEST:
            log.warning("waiting: queue %r has %d ready messages, max_depth is %d", queue, depth, self._max_depth)
        return pause


class _Declare(Queue.Declare):
    """A queue.declare with any queue name that the broker takes; pamqp's own check refuses many characters."""

    def validate(self) -> None:
        """Check nothing: the broker refuses a name that is wrong."""


async def _declared(channel: AbstractChannel, queue: str) -> int:
    """Return the number of ready messages of a queue, by a passive declaration."""
    underlying = await channel.get_underlay_channel()
    assert isinstance(underlying, aiormq.Channel)
    answer = await underlying.rpc(_Declare(queue=queue, passive=True))
    assert isinstance(answer, Queue.DeclareOk)
    return answer.message_count or 0
