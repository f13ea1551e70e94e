"""What the broker should have answered by now, and has not."""

import asyncio
import time
from collections.abc import Callable

from proxy.session import closing
from proxy.session.channel import Channel
from proxy.session.connection import Connection
from proxy.session.end import CLOSE_WITHIN
from proxy.session.sockets import PeerSocket
from proxy.session.state import ChannelState, Phase
from proxy.wire.frames import INTERNAL_ERROR

PLACED_WITHIN = 15.0
"""Seconds that a message which came back, and the acks that wait for it, may take, before the session is closed."""

_LOOKS = 5
"""How often in `CLOSE_WITHIN` it is looked at whether a channel of ours is closed."""


class AnswerDeadlines:
    """Looks after messages that went out again, and channels that we close, while the broker is read."""

    def __init__(
        self,
        connection: Connection,
        broker: PeerSocket,
        *,
        guarded: Callable[[Callable[[], None]], None],
        go_on: Callable[[], None],
    ) -> None:
        """`guarded` calls a look and sees to its defects; `go_on` writes what a look has made to both sides."""
        self._connection, self._broker = connection, broker
        self._guarded, self._go_on = guarded, go_on
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.expired = False
        """A message was not confirmed in time, over which the session ends."""

    def watch(self) -> None:
        """Looks after the messages that are under way again, from now on if not already."""
        if self._connection.republishing.under_way and self._timer is None:
            self._timer = self._loop.call_later(PLACED_WITHIN / 10, self._guarded, self._look)

    def watch_close(self, channel: Channel) -> None:
        """Looks after a channel that we close."""
        self._look_again(channel, _LOOKS)

    def cancel(self) -> None:
        """The session is over."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        """Ends the session where a message that came back has no confirm for too long: nothing else can tell of it."""
        c, self._timer = self._connection, None
        since = c.republishing.since
        if since is None or not c.running:
            return
        # (Its confirm is not read while the broker is not, for the client's sake or for what waits.)
        if time.monotonic() - since > PLACED_WITHIN and not self._broker.is_held:
            text = f"a message that came back was published again, and not confirmed within {PLACED_WITHIN:g} s"
            closing.refuse(c, INTERNAL_ERROR, text)
            self.expired = True
        self._go_on()

    def _look_again(self, channel: Channel, looks: int) -> None:
        self._loop.call_later(CLOSE_WITHIN / _LOOKS, self._look_at, channel, looks)

    def _look_at(self, channel: Channel, looks: int) -> None:
        """Tells the client of its channel's end where the broker has not answered our channel.close in all that time.

        The broker may be busy with that channel alone, so the session and its other channels go on.
        """
        c = self._connection
        if c.phase is Phase.OVER or channel.state != ChannelState.REFUSING:
            return
        if not channel.away and not self._broker.is_held:
            # Else it may have, and that is not read yet.
            looks -= 1
        if looks:
            self._look_again(channel, looks)
        else:
            closing.abandon(c, channel)
            self._go_on()
