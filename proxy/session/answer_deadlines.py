"""The times within which the broker must answer what a session does by itself."""

import asyncio
import time
from collections.abc import Callable

from proxy.session import closing, time_limits
from proxy.session.channel import Channel
from proxy.session.connection import Connection
from proxy.session.sockets import PeerSocket
from proxy.session.state import ChannelState, Phase
from proxy.wire.frames import INTERNAL_ERROR

_CLOSE_CHECKS = 5
"""How often within `CLOSE_WITHIN` it is checked whether the broker has closed a channel."""


class AnswerDeadlines:
    """The deadlines of one session: of messages that went out again, and of channels that the session closes."""

    def __init__(
        self,
        connection: Connection,
        broker: PeerSocket,
        *,
        guarded: Callable[[Callable[[], None]], None],
        go_on: Callable[[], None],
    ) -> None:
        """`guarded` calls a function and handles its unexpected errors; `go_on` writes the bytes due to both peers."""
        self._connection, self._broker = connection, broker
        self._guarded, self._go_on = guarded, go_on
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.expired = False
        """Whether the session was ended because a message that came back was not confirmed in time."""

    def watch(self) -> None:
        """Look after the messages that are under way again, from now on if not already."""
        if self._connection.republishing.under_way and self._timer is None:
            self._timer = self._loop.call_later(time_limits.PLACED_WITHIN / 10, self._guarded, self._check_republished)

    def watch_close(self, channel: Channel) -> None:
        """Look after a channel that this proxy closes, from now on."""
        self._schedule_close_check(channel, _CLOSE_CHECKS)

    def cancel(self) -> None:
        """Look after nothing any more: the session is over."""
        if self._timer is not None:
            self._timer.cancel()

    def _check_republished(self) -> None:
        """End the session if a message that was published again has not been confirmed in time.

        Only the end of the session tells the message's publisher that it may be lost.
        """
        c, self._timer = self._connection, None
        since = c.republishing.since
        if since is None or not c.running:
            return
        # The confirm cannot be read while the broker is held, for the client's sake or for what waits.
        if time.monotonic() - since > time_limits.PLACED_WITHIN and not self._broker.is_held:
            limit = time_limits.PLACED_WITHIN
            text = f"a returned message was published again, and not confirmed within {limit:g} s"
            closing.refuse(c, INTERNAL_ERROR, text)
            self.expired = True
        self._go_on()

    def _schedule_close_check(self, channel: Channel, checks_left: int) -> None:
        self._loop.call_later(time_limits.CLOSE_WITHIN / _CLOSE_CHECKS, self._check_close, channel, checks_left)

    def _check_close(self, channel: Channel, checks_left: int) -> None:
        """Close a channel towards its client if the broker has not answered channel.close in time.

        The broker may be busy with only this channel, so the session and its other channels go on.
        """
        c = self._connection
        if c.phase is Phase.OVER or channel.state != ChannelState.REFUSING:
            return
        if not channel.unsettled_returns and not self._broker.is_held:
            # While the broker is held, its answer may have come without being read.
            checks_left -= 1
        if checks_left:
            self._schedule_close_check(channel, checks_left)
        else:
            closing.abandon(c, channel)
            self._go_on()
