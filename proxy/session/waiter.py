"""The tasks of a session that wait for a reading or an answer, and take up a backlog or what came back again."""

import asyncio
import functools
import logging
import time
from collections.abc import Callable

from proxy.routing.counters import NOWHERE
from proxy.session import broker_loop, client_loop, closing, time_limits
from proxy.session.backlog import Backlog, Wait
from proxy.session.channel import Channel
from proxy.session.connection import Connection
from proxy.session.publishing.publish import held_publish
from proxy.session.shared import Shared
from proxy.session.waiting import may_go_on
from proxy.topology.table import Unread
from proxy.wire.frames import CONNECTION_FORCED, INTERNAL_ERROR

log = logging.getLogger(__name__)


class Waiter:
    """The waiting of one session, for as long as the session lives; `channel` and `returned` run in tasks."""

    def __init__(
        self,
        shared: Shared,
        connection: Connection,
        *,
        hand_on: Callable[[], None],
        ended: Callable[["asyncio.Task[None]", bool], None],
        is_held: Callable[[], bool],
    ) -> None:
        """`hand_on` writes what the loops have made to both peers. `is_held` says whether the broker is not read.

        `ended` is called with each task that has ended, and whether that waited for a channel.
        """
        self._shared, self._connection = shared, connection
        self._hand_on, self._ended, self._is_held = hand_on, ended, is_held
        self.heard = asyncio.Event()
        """An event that the session sets whenever either peer has sent something, once that is taken."""
        self.channels: dict[Channel, asyncio.Task[None]] = {}
        """The tasks that wait for the reading or answer that a backlog needs, by channel."""
        self._readings: dict[bytes, asyncio.Task[None]] = {}
        """The tasks that make the readings which returned messages wait for, by exchange."""

    def begin(self) -> None:
        """Begin a task for each channel, and each exchange of messages that came back, that has come to wait."""
        c = self._connection
        if c.running:
            for channel in c.waiting.channels.values():
                if channel not in self.channels:
                    task = self.channels[channel] = asyncio.create_task(self.channel(channel))
                    # A task that is cancelled before it begins would come to no `finally`.
                    task.add_done_callback(functools.partial(self._waited, channel))
        parking = c.republishing.parking
        for exchange in parking.exchanges:
            if exchange not in self._readings and parking.wanted(exchange) is not None:
                task = self._readings[exchange] = asyncio.create_task(self.returned(exchange))
                task.add_done_callback(functools.partial(self._has_read, exchange))

    def _waited(self, channel: Channel, task: "asyncio.Task[None]") -> None:
        del self.channels[channel]
        self._ended(task, True)

    def _has_read(self, exchange: bytes, task: "asyncio.Task[None]") -> None:
        del self._readings[exchange]
        self.heard.set()
        self._ended(task, False)

    def cancel_channels(self) -> None:
        """Wait for no channel any more."""
        for task in self.channels.values():
            task.cancel()

    def cancel_readings(self) -> None:
        """Read nothing any more for messages that came back."""
        for task in self._readings.values():
            task.cancel()

    async def channel(self, channel: Channel) -> None:
        """Have each frame in a channel's backlog go on once what it waits for has come, until none waits.

        Each has `lookup_timeout`, or `answer_timeout`, seconds; the channel is closed if one of them has waited longer.
        """
        c = self._connection
        asked = time.monotonic()
        while (backlog := channel.backlog) is not None and c.running:
            awaited = backlog.awaited
            fault = await self._ready(channel, backlog, asked)
            c.now = time.monotonic()
            if channel.backlog is backlog and c.running:
                if fault:
                    self._refuse(channel, backlog, fault)
                backlog.awaited = None
                await self._resume(channel, backlog)
            following = channel.backlog
            is_other = following is not None and Wait.OTHER_RING in (awaited, following.awaited)
            if following is None or following.size < backlog.size or is_other:
                # Its first frame went on, or waits for something of another kind: it has the whole time again.
                asked = time.monotonic()

    async def _ready(self, channel: Channel, backlog: Backlog, asked: float) -> str:
        """Wait for what a backlog has waited for since `asked`, monotonic.

        Returns why that failed, or an empty string.
        """
        awaited = backlog.awaited
        if awaited is None:
            return ""
        if not isinstance(awaited, Wait):
            return await self._shared.resolve(self._connection, channel, backlog, awaited, asked)
        within = time_limits.ORDERED_WITHIN if awaited is Wait.OTHER_RING else self._shared.answer_timeout
        if awaited is Wait.INTERCEPTED:
            within += self._shared.readings.lookup_timeout
        while True:
            try:
                async with asyncio.timeout(asked + within - time.monotonic()):
                    await self._backlog_ended(channel, backlog)
                    return ""
            except TimeoutError:
                if may_go_on(channel, backlog, self._connection.interceptor):
                    return ""  # all that is due is the end of the client's frame
                if awaited is Wait.OTHER_RING and not channel.unsettled_returns and not self._is_held():
                    self._give_up_order(channel)
                    return ""
                if awaited is not Wait.OTHER_RING and not (awaited is Wait.BEING_CLOSED and channel.unsettled_returns):
                    return f"{awaited.value} within {within:g} s"
            # A message of the channel, or of the number's last one, is on its way again: that has a limit of its own.
            # Or the broker is not read, for which the client has itself to thank.
            asked = time.monotonic()

    def _give_up_order(self, channel: Channel) -> None:
        """Let a channel take another ring although publishes before have no answer."""
        number, count = channel.confirms.number, channel.confirms.unsettled
        channel.order.give_up(number)
        log.warning(
            "virtual host %r, channel %d: a ring has changed, and %d publishes have had no answer for %g s; those "
            "of them that come back now are nacked, as later ones of their keys go on",
            *(self._connection.vhost, channel.id, count, time_limits.ORDERED_WITHIN),
        )

    async def _resume(self, channel: Channel, backlog: Backlog) -> None:
        """Let the client's frames in a backlog go on, after what they waited for or after a refusal.

        Returns once they have been taken or dropped. They can be taken once the client is not in the midst of a frame.
        """
        self._connection.drop_old_routes()
        client_loop.resume(self._connection)
        self._hand_on()
        await self._backlog_ended(channel, backlog)

    async def _backlog_ended(self, channel: Channel, backlog: Backlog) -> None:
        """Wait until a backlog has been taken again, or dropped."""
        while self._connection.running and channel.backlog is backlog:
            self.heard.clear()
            await self.heard.wait()

    def _refuse(self, channel: Channel, backlog: Backlog, why: str) -> None:
        """Close a channel over the frame that it waits with: routing a key natively would be worse than an error."""
        c, awaited = self._connection, backlog.awaited
        if awaited is Wait.BEING_CLOSED:
            closing.refuse_open(c, channel, f"channel {channel.id} cannot be opened: {why}")
            return
        if awaited is Wait.INTERCEPTED and c.interceptor is not None:
            c.interceptor.refuse(channel, why)
            return
        exchange = held_publish(channel)
        name = (c.vhost, exchange.decode(errors="replace"))
        c.counter_table.of(name if name in self._shared.tables.router.entries else NOWHERE, None).unavailable += 1
        text = f"the ring of exchange '{name[1]}' is not known: {why}"
        if isinstance(awaited, Unread) and awaited.refused:
            text = f"exchange '{awaited.name[1]}' takes no publishes: {why}"
        if isinstance(awaited, Unread) and awaited.other_cluster and self._shared.is_outdated(c):
            closing.refuse(c, CONNECTION_FORCED, f"{text}; connect again")
            return
        closing.refuse_channel(c, channel, INTERNAL_ERROR, text)

    async def returned(self, exchange: bytes) -> None:
        """Make the readings that the returned messages of an exchange wait for, one at a time, until none is wanted."""
        c = self._connection
        while (wanted := c.republishing.parking.wanted(exchange)) is not None:
            asked = time.monotonic()
            in_time = await self._shared.reread(c, wanted)
            c.now = time.monotonic()
            broker_loop.after_reading(c, exchange, wanted, asked, in_time=in_time)
            self._hand_on()
            # These answers may have been all that a channel, or the client, waited for.
            if c.waiting.channels or c.waiting.stalled:
                client_loop.resume(c)
            if c.crowded is not None:
                client_loop.from_client(c, b"")
            self._hand_on()
            self.heard.set()
