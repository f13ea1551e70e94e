"""The time within which a client must ack the messages of members that have left their groups."""

import asyncio
import time
from collections.abc import Callable

from proxy.session import links
from proxy.session.connection import Connection

_LOOKS = 4
"""How often the links are checked within the time limit, at least."""

_LOOK_EVERY = 15.0
"""The most seconds between two checks: RabbitMQ takes messages back out of order a minute after the time limit."""


class AckDeadline:
    """The time limit of one session for links that are leaving: each ends once the client has acked its messages.

    Links of members that have not left have the same limit, which `RunningGroup` keeps.
    """

    def __init__(
        self,
        connection: Connection,
        within: float,
        *,
        guarded: Callable[[Callable[[], None]], None],
        go_on: Callable[[], None],
    ) -> None:
        """`within` is in seconds, 0 for no limit. `guarded` calls a function and handles its defects.

        `go_on` writes the bytes due to both peers.
        """
        self._connection, self._within, self._guarded, self._go_on = connection, within, guarded, go_on
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Check the links that are leaving from now on, if not already."""
        consuming = self._connection.consuming
        if consuming is not None and consuming.leaving and self._within and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(min(self._within / _LOOKS, _LOOK_EVERY), self._guarded, self._look)

    def cancel(self) -> None:
        """Stop checking, since the session is over."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        if self._connection.running:
            links.close_unsettled(self._connection, time.monotonic() - self._within)
            self._go_on()
