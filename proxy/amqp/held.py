"""What a frame that is held waits for, and how it goes on: a publish of the client's, or a message that came back."""

import asyncio
import time
from collections.abc import Callable

from proxy.amqp import closing, publishing
from proxy.amqp.channel import State
from proxy.amqp.connection import Connection, Phase, Stale
from proxy.amqp.frames import CONNECTION_FORCED, FRAME, INTERNAL_ERROR
from proxy.amqp.overdue import Overdue
from proxy.amqp.reroute import RECENT
from proxy.amqp.routes import BEING_CLOSED, UNANSWERED, Unread
from proxy.amqp.shared import Shared
from proxy.tally import NOWHERE


class Held:
    """The waiting of one session; `publish` and `returned` each run in a task of their own."""

    def __init__(
        self,
        shared: Shared,
        connection: Connection,
        overdue: Overdue,
        *,
        from_client: Callable[[bytes], None],
        from_broker: Callable[[bytes], None],
        hand_on: Callable[[], None],
    ) -> None:
        """`from_client` and `from_broker` feed the rewriting; `hand_on` writes what that makes."""
        self._shared, self._connection, self._overdue = shared, connection, overdue
        self._from_client, self._from_broker, self._hand_on = from_client, from_broker, hand_on
        self.heard = asyncio.Event()
        """To be set whenever the broker has sent something."""

    async def publish(self) -> None:
        """Until the publish that is held can go on, or its channel is closed."""
        c = self._connection
        asked = time.monotonic()
        while (unread := c.held) is not None and c.phase is Phase.RUNNING:
            waiting = len(c.client_rest)
            if unread in (UNANSWERED, BEING_CLOSED):
                await self._answered(unread)
                fault, asked = "", time.monotonic()
            else:
                fault = await self._shared.resolve(c, unread, asked)
            if not c.running:
                break
            c.now = time.monotonic()
            if fault:
                self._refuse_publish(unread, fault)
            c.held = None
            self._from_client(b"")
            c.forced = None
            self._hand_on()
            if len(c.client_rest) < waiting:
                asked = time.monotonic()

    async def returned(self) -> None:
        """Until the messages that came back can be placed, as far as a reading helps with that."""
        c = self._connection
        while (wanted := c.broker_held) is not None:
            asked = time.monotonic()
            await self._shared.reread(c, wanted)
            c.now = time.monotonic()
            if isinstance(wanted, Stale):
                c.reread = {stale: at for stale, at in c.reread.items() if c.now - at < RECENT}
                # As long as it took nobody is made to wait for it again.
                c.reread[wanted] = 2 * c.now - asked
            c.broker_held = None
            self._from_broker(b"")
            self._hand_on()

    async def _answered(self, unread: Unread) -> None:
        """Until the broker has answered what the frame that is held came after, however long it takes."""
        c = self._connection
        _, number, _ = FRAME.unpack_from(c.client_rest)
        channel = c.channels[number]
        while c.running and c.channels.get(number) is channel:
            if unread is UNANSWERED and not (channel.declaring and channel.state == State.OPEN):
                break
            self.heard.clear()
            await self.heard.wait()

    def _refuse_publish(self, unread: Unread, why: str) -> None:
        """Closes the channel of the publish that is held: placing its key natively would be worse than an error."""
        c = self._connection
        channel, exchange = publishing.held_publish(c)
        name = (c.vhost, exchange.decode(errors="replace"))
        c.tallies.of(name if name in self._shared.tables.router.entries else NOWHERE, None).unavailable += 1
        text = f"the ring of exchange '{name[1]}' is not known: {why}"
        if unread.refused:
            text = f"exchange '{unread.name[1]}' takes no publishes: {why}"
        if unread.other_cluster and self._shared.is_outdated(c):
            closing.refuse(c, CONNECTION_FORCED, f"{text}; connect again")
            return
        closing.refuse_channel(c, channel, INTERNAL_ERROR, text)
        self._overdue.watch_close(channel)
