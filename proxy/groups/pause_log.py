"""Reads the orders to pause and resume shards of one group from its stream in the broker, as long as the group runs.

Why a stream: any number of sidecars read it without taking anything from it, so that no crash of a reader loses or
hides an order. A queue of one message hides it from all others while one reader has it. On a quorum queue an older one
that comes back takes the place of a newer one, and after 20 returns RabbitMQ 4 drops it (tried on 3.10, 4.0 and 4.3:
`tests/integration/test_broker_last_order.py`).

A stream is read from its first message on. A second reader, which begins with the last message, tells where its end
is. An empty stream tells nothing, not even that it is empty, so whoever finds none puts in a mark: an empty message.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable
from typing import Any, Final

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractExchange, AbstractIncomingMessage

from proxy.groups.membership import FIRST_REJOIN_PAUSE, LONGEST_REJOIN_PAUSE, TRY, Line, closed
from proxy.groups.operators import Sent
from proxy.topology.bindings import PAUSES_SUFFIX

log = logging.getLogger(__name__)

EMPTY_AFTER: Final = 0.5
"""Seconds without a message after which a stream may be empty, and gets a mark."""

_PREFETCH: Final = 500
"""The most orders that the broker sends ahead; a stream cannot be consumed without a limit."""

_ACKED: Final = 50
"""The orders of the past of which only the last is acked, for all of them."""

STREAM_SUFFIX: Final = ".log"
"""The end of the stream's name, which follows that of the exchange whose messages it keeps.

They have different names so that a right to publish orders is none on the stream: RabbitMQ does not check the user_id
of what comes in by its stream protocol.
"""

_ARGUMENTS: Final[dict[str, Any]] = {
    "x-queue-type": "stream",
    "x-max-length-bytes": 4 * 1024 * 1024,
    "x-stream-max-segment-size-bytes": 1024 * 1024,
}
"""Arguments of the stream. It keeps some 14,000 orders, which are read within 5 s (measured)."""


async def declare(channel: AbstractChannel, balanced_by: str) -> AbstractExchange:
    """Make the exchange and the stream of a group's orders, if they are not there; return the exchange.

    `balanced_by` is the name of the exchange by which the group is balanced.
    """
    name = f"{balanced_by}{PAUSES_SUFFIX}"
    exchange = await channel.declare_exchange(name, aio_pika.ExchangeType.FANOUT, durable=True)
    stream = await channel.declare_queue(f"{name}{STREAM_SUFFIX}", durable=True, arguments=_ARGUMENTS)
    await stream.bind(exchange)
    return exchange


class PauseLog:
    """The orders of one group, read until it is closed."""

    def __init__(
        self,
        line: Line,
        title: str,
        balanced_by: str,
        begun: Callable[[], None],
        taken: Callable[[Sent], None],
        known: Callable[[], None],
    ) -> None:
        """Begin. Log lines start with `title`.

        `begun` is called before each reading from the first order on, `taken` with each order, and `known` once it is
        the last one that was there when the reading began.
        """
        self._line, self._title, self._balanced_by = line, title, balanced_by
        self._begun, self._taken, self._known = begun, taken, known
        self.fault = ""
        """Why orders are not read; empty while they are, or as long as nothing is known."""
        self._ended = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    async def aclose(self) -> None:
        """End the reading."""
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _run(self) -> None:
        pause = FIRST_REJOIN_PAUSE
        while True:
            reading = _Reading(f"{self._balanced_by}{PAUSES_SUFFIX}", self._taken)
            try:
                async with contextlib.AsyncExitStack() as opened:
                    channel = await self._begin(opened, reading)
                    await self._all_of_the_past(reading)
                    pause = FIRST_REJOIN_PAUSE
                    self._tell("")
                    self._known()
                    await self._until_lost(channel)
            except TimeoutError:
                self._tell("the broker does not answer in time")
            except Exception as error:  # aio-pika raises many kinds, and none may end the reading
                self._tell(" ".join(str(error).split()) or type(error).__name__)
            finally:
                reading.is_over = True
            await asyncio.sleep(random.uniform(pause / 2, pause))
            pause = min(2 * pause, LONGEST_REJOIN_PAUSE)

    async def _begin(self, opened: contextlib.AsyncExitStack, reading: "_Reading") -> AbstractChannel:
        """Have all orders come, and return the channel by which they do; it is closed with the stack."""
        self._ended.clear()
        # This connection publishes nothing, so that an alarm of the broker does not stop it. The second channel is for
        # acks of many messages by one on the first.
        channel, other = await self._channel(opened), await self._channel(opened)
        async with asyncio.timeout(TRY):
            await channel.set_qos(_PREFETCH)
            await other.set_qos(1)
            exchange = await declare(channel, self._balanced_by)
            stream = f"{exchange.name}{STREAM_SUFFIX}"
            underlay = await channel.get_underlay_channel()
            underlay.on_consumer_cancel_callbacks.add(self._cancelled)
            self._begun()
            for its, read, offset in ((channel, reading.read, "first"), (other, reading.end_seen, "last")):
                await (await its.get_queue(stream, ensure=False)).consume(read, arguments={"x-stream-offset": offset})
        return channel

    async def _channel(self, opened: contextlib.AsyncExitStack) -> AbstractChannel:
        """Return a new channel.

        The connection, which all groups of the virtual host have, is given up only if that hangs. Raises TimeoutError
        if the broker does not open it in time.
        """
        try:
            async with asyncio.timeout(TRY):
                channel = await self._line.counts.channel()
        except TimeoutError:
            await self._line.counts.drop()
            raise
        opened.push_async_callback(closed, channel)
        return channel

    async def _all_of_the_past(self, reading: "_Reading") -> None:
        """Return once all orders have come that were there before. Raises TimeoutError where nothing comes for long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EMPTY_AFTER):
                await reading.news.wait()
        if reading.is_empty:
            async with asyncio.timeout(TRY):
                await self._mark(reading.exchange)
        while not reading.is_whole:
            reading.news.clear()
            async with asyncio.timeout(TRY):
                await reading.news.wait()

    async def _mark(self, exchange: str) -> None:
        """Put a mark into an empty stream."""
        channel = await self._line.beats.channel()
        try:
            await (await channel.get_exchange(exchange, ensure=False)).publish(aio_pika.Message(b""), "")
        finally:
            await closed(channel)

    def _cancelled(self, *_: object) -> None:
        self._ended.set()

    async def _until_lost(self, channel: AbstractChannel) -> None:
        """Return never. Raises OSError once no orders come any more."""
        while not channel.is_closed and self._line.counts.is_up:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._ended.wait()
                    raise OSError("the stream was deleted, or its node is away")
        raise OSError("the connection or the channel was lost")

    def _tell(self, fault: str) -> None:
        before, self.fault = self.fault, fault
        if fault and fault != before:
            log.warning("%s: orders to pause are not read, so what is paused stays so: %s", self._title, fault)
        elif before and not fault:
            log.info("%s: orders to pause are read again", self._title)


class _Reading:
    """One reading of a stream, from its first message on."""

    def __init__(self, exchange: str, taken: Callable[[Sent], None]) -> None:
        self.exchange, self._taken = exchange, taken
        self._read, self._end = -1, -1
        """The offsets of the last message that was read, and of one at the end of those of the past."""
        self.news = asyncio.Event()
        """Set with each message."""
        self.is_over = False
        """Whether another reading follows: what still comes of this one comes again."""

    @property
    def is_empty(self) -> bool:
        """Whether no message has come."""
        return self._read == self._end == -1

    @property
    def is_whole(self) -> bool:
        """Whether all is read that was there at the beginning."""
        return 0 <= self._end <= self._read

    async def read(self, message: AbstractIncomingMessage) -> None:
        """Take the next message."""
        if self.is_over:
            return
        self._read = _offset(message)
        # A message that came over a binding, or from a queue as a dead letter, needed no right on the exchange.
        if message.body and message.exchange == self.exchange and "x-death" not in message.headers:
            self._taken(Sent(message.user_id or "", message.body, message.reply_to or ""))
        self.news.set()
        if self.is_whole or self._read % _ACKED == 0:
            # The channel may have ended, which its reader finds out by itself.
            with contextlib.suppress(
                aio_pika.exceptions.AMQPError, aio_pika.exceptions.ChannelInvalidStateError, OSError
            ):
                await message.ack(multiple=True)

    async def end_seen(self, message: AbstractIncomingMessage) -> None:
        """Take a message of the last ones, the only one that comes, as it is not acked."""
        self._end = _offset(message)
        self.news.set()


def _offset(message: AbstractIncomingMessage) -> int:
    offset = message.headers.get("x-stream-offset")
    return offset if isinstance(offset, int) else 0
