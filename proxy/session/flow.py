"""The flow control of a session's two sockets: neither peer may send much more than the other peer takes."""

import asyncio
import time
from collections.abc import Callable

from proxy.session.connection import Connection
from proxy.session.publishing.parking import MOST_PARKED
from proxy.session.sockets import BUFFER, PeerSocket
from proxy.session.state import Phase
from proxy.wire.frames import HEARTBEAT_FRAME


class FlowControl:
    """The holds on the two sockets of one session, and the heartbeats in the stead of a peer that is not read."""

    def __init__(
        self,
        connection: Connection,
        client: PeerSocket,
        broker: PeerSocket,
        guarded: Callable[[Callable[[], None]], None],
    ) -> None:
        """Begin with both sockets read. `guarded` calls a timer's function and handles its exceptions."""
        self._connection, self._client, self._broker, self._guarded = connection, client, broker, guarded
        self.is_paused = False
        """Whether the client is not read until the broker has sent more, or a channel that waits goes on."""
        self._stopped = False
        """Whether the client is held because this proxy takes no more bytes from it."""
        self._brimming_since: float | None = None
        """The monotonic time since which the broker is not read because many bytes wait; None while it is read."""
        self._heartbeat: asyncio.TimerHandle | None = None
        self._told_at = 0.0
        """The monotonic time at which the broker's bytes were last the client's as well."""

    def pace(self) -> None:
        """Hold or release both sockets, as the state of the connection now asks for."""
        c = self._connection
        if c.paused != self.is_paused:
            self.is_paused = c.paused
            if self.is_paused:
                self._client.hold()
                self.keep_alive()
            else:
                self._client.release()
        if c.to_broker.queued or c.republishing.parking or self._brimming_since is not None:
            self._hold_back()
        if self._stopped and (c.to_broker.body_left or c.phase > Phase.LEAVING):
            # The look-up may have ended within a frame, whose end has to come; or the client's close-ok is due.
            self.go_on_reading()

    def _hold_back(self) -> None:
        """Stop reading the broker while returned messages of many bytes wait, and read it again afterwards.

        They wait for a reading of their exchange, or for the end of a frame of the client's.
        """
        c = self._connection
        parking = c.republishing.parking
        brimming = sum(map(len, c.to_broker.queued)) > BUFFER or (parking.size > MOST_PARKED and parking.waits)
        since = self._brimming_since
        if brimming and since is None:
            self._broker.hold()
            self._brimming_since = time.monotonic()
            self.keep_alive()
        elif since is not None and not brimming:
            self._brimming_since = None
            self._broker.release()
            self.excuse(since)

    def excuse(self, since: float) -> None:
        """Leave the time since `since` (monotonic), when the broker was not read, out of its answers' deadlines."""
        self._connection.republishing.excuse(since, time.monotonic())

    def stop_reading(self) -> None:
        """Read the client no more, once it is at the end of a frame."""
        c = self._connection
        if not self._stopped and not c.to_broker.body_left and not c.to_client.ended:
            self._stopped = True
            self._client.hold()

    def go_on_reading(self) -> None:
        """Read the client again, if `stop_reading` has held it."""
        if self._stopped:
            self._stopped = False
            self._client.release()

    def told(self) -> None:
        """Send the client a heartbeat if it has got nothing for a while of what the broker sends.

        The broker sends no heartbeat while it sends frames on hidden channels, of which the client may get none.
        """
        c = self._connection
        if c.to_client.out or c.now - self._told_at > c.handshake.heartbeat / 2 > 0:
            self._told_at = c.now
            if not c.to_client.out and not c.to_client.body_left and c.running:
                c.to_client.insert(HEARTBEAT_FRAME)

    def keep_alive(self) -> None:
        """Send heartbeats to each peer in the stead of the opposite peer, from now on until both are read.

        A peer closes the connection after two heartbeat intervals without a byte (AMQP section 4.2.7).
        """
        c = self._connection
        self.cancel()
        held = self._stopped or self.is_paused or c.phase is Phase.DRAINING
        brimming = self._brimming_since is not None
        if not (held or brimming) or not c.handshake.heartbeat or c.phase is Phase.OVER:
            return
        if held and not c.to_broker.body_left and c.opened:
            self._broker.write([HEARTBEAT_FRAME])
        if brimming and not c.to_client.body_left and c.running:
            self._client.write([HEARTBEAT_FRAME])
        loop = asyncio.get_running_loop()
        self._heartbeat = loop.call_later(c.handshake.heartbeat / 2, self._guarded, self.keep_alive)

    def cancel(self) -> None:
        """Send no more heartbeats."""
        if self._heartbeat is not None:
            self._heartbeat.cancel()
