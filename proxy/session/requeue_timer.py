"""The moment for which a delivery that the client returns is kept, since the client may be about to leave."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from proxy.session import settling
from proxy.session.connection import Connection

MOMENT: Final = 0.05
"""Seconds between the last reject with requeue of a link and its being sent to the broker, unless the member leaves.

Pika rejects what it has not looked at yet one by one, right before it cancels its consumer.
"""

LONGEST: Final = 1.0
"""Seconds after the first of such rejects in a row in which all are sent, though there are always further ones."""


class RequeueTimer:
    """The timer of one session for what its client returns of links."""

    def __init__(
        self,
        connection: Connection,
        *,
        guarded: Callable[[Callable[[], None]], None],
        go_on: Callable[[], None],
    ) -> None:
        """`guarded` calls a function and handles its defects; `go_on` writes the bytes due to both peers."""
        self._connection, self._guarded, self._go_on = connection, guarded, go_on
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Send what the client has returned in a moment, if there is anything."""
        consuming = self._connection.consuming
        if consuming is not None and consuming.requeued and self._timer is None:
            due = min(min(at.last + MOMENT, at.first + LONGEST) for at in consuming.requeued.values())
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(due - time.monotonic(), 0.0), self._guarded, self._send)

    def cancel(self) -> None:
        """Send nothing any more, since the session is over."""
        if self._timer is not None:
            self._timer.cancel()

    def _send(self) -> None:
        self._timer = None
        if self._connection.running:
            now = time.monotonic()
            settling.hand_back(self._connection, now - MOMENT, now - LONGEST)
            self._go_on()
