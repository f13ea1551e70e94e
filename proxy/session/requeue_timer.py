"""The moment for which a delivery that the client returns is kept, since the client may be about to leave."""

import asyncio
from collections.abc import Callable
from typing import Final

from proxy.session import settling
from proxy.session.connection import Connection

MOMENT: Final = 0.05
"""Seconds between a reject with requeue and its being sent to the broker, unless the member leaves meanwhile.

Pika rejects what it has not looked at yet one by one, right before it cancels its consumer.
"""


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
            self._timer = asyncio.get_running_loop().call_later(MOMENT, self._guarded, self._send)

    def cancel(self) -> None:
        """Send nothing any more, since the session is over."""
        if self._timer is not None:
            self._timer.cancel()

    def _send(self) -> None:
        self._timer = None
        if self._connection.running:
            settling.hand_back(self._connection)
            self._go_on()
