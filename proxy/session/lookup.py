"""What waits in a session, and how it goes on: the backlog of a channel, or a message that came back."""

import asyncio
import time
from collections.abc import Callable

from proxy.routing.counters import NOWHERE
from proxy.routing.routes import Unread
from proxy.session import broker_loop, client_loop, closing, publishing
from proxy.session.backlog import Backlog, Wait
from proxy.session.channel import Channel
from proxy.session.connection import Connection
from proxy.session.context import Shared
from proxy.session.timeouts import AnswerDeadlines
from proxy.session.waiting import may_go_on
from proxy.wire.frames import CONNECTION_FORCED, INTERNAL_ERROR


class Waiter:
    """The waiting of one session; `channel` and `returned` each run in tasks of their own."""

    def __init__(
        self,
        shared: Shared,
        connection: Connection,
        deadlines: AnswerDeadlines,
        *,
        hand_on: Callable[[], None],
    ) -> None:
        """`hand_on` writes what the rewriting has made."""
        self._shared, self._connection, self._deadlines = shared, connection, deadlines
        self._hand_on = hand_on
        self.heard = asyncio.Event()
        """To be set whenever either side has sent something, once that is taken."""

    async def channel(self, channel: Channel) -> None:
        """Waits until nothing of a channel has to wait any more: it goes on, or it is closed."""
        c = self._connection
        asked = time.monotonic()
        while (backlog := channel.backlog) is not None and c.running:
            fault = await self._ready(channel, backlog, asked)
            c.now = time.monotonic()
            if channel.backlog is backlog and c.running:
                if fault:
                    self._refuse(channel, backlog, fault)
                backlog.awaited = None
                await self._taken(channel, backlog)
            following = channel.backlog
            if following is None or following.size < backlog.size:
                # Its first frame went on: the next that waits has the whole time again.
                asked = time.monotonic()

    async def _ready(self, channel: Channel, backlog: Backlog, asked: float) -> str:
        """Waits for what a backlog has waited for since `asked`, monotonic.

        Returns why that failed, or an empty string.
        """
        awaited = backlog.awaited
        if awaited is None:
            return ""
        if not isinstance(awaited, Wait):
            return await self._shared.resolve(self._connection, channel, backlog, awaited, asked)
        within = self._shared.answer_timeout
        while True:
            try:
                async with asyncio.timeout(asked + within - time.monotonic()):
                    await self._moved(channel, backlog)
                    return ""
            except TimeoutError:
                if may_go_on(channel, backlog):
                    return ""  # only the end of the client's frame is due
                if awaited is not Wait.BEING_CLOSED or not channel.away:
                    return f"{awaited.value} within {within:g} s"
            # A message of the channel of before is on its way, which has a limit of its own.
            asked = time.monotonic()

    async def _taken(self, channel: Channel, backlog: Backlog) -> None:
        """Takes a backlog again, as soon as the client is at the end of a frame."""
        self._connection.expire()
        client_loop.resume(self._connection)
        self._hand_on()
        await self._moved(channel, backlog)

    async def _moved(self, channel: Channel, backlog: Backlog) -> None:
        """Waits until a backlog has been taken again, or dropped."""
        while self._connection.running and channel.backlog is backlog:
            self.heard.clear()
            await self.heard.wait()

    def _refuse(self, channel: Channel, backlog: Backlog, why: str) -> None:
        """Closes a channel over the frame that it waits with: placing a key natively would be worse than an error."""
        c, awaited = self._connection, backlog.awaited
        if awaited is Wait.BEING_CLOSED:
            closing.refuse_open(c, channel, f"channel {channel.id} cannot be opened: {why}")
            return
        exchange = publishing.held_publish(channel)
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
        """Reads what the messages of an exchange that came back wait for, one thing after the other."""
        c = self._connection
        while (wanted := c.republishing.parking.wanted(exchange)) is not None:
            in_time = await self._shared.reread(c, wanted)
            c.now = time.monotonic()
            broker_loop.read_again(c, exchange, wanted, in_time=in_time)
            self._hand_on()
            # What was told just now may have been all that a channel, or the client, waited for.
            if c.waiting.channels or c.waiting.stalled:
                client_loop.resume(c)
            if c.crowded is not None:
                client_loop.from_client(c, b"")
            self._hand_on()
            self.heard.set()
