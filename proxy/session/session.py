"""One session: what its two legs bring goes through the rewriting, and what that asks for is done."""

import asyncio
import functools
import logging
import time
from collections.abc import Callable

from proxy.session import closing, relay
from proxy.session.channel import Channel
from proxy.session.context import Shared
from proxy.session.end import CLOSE_WITHIN, SHUTTING_DOWN, End
from proxy.session.handshake import is_protocol_header
from proxy.session.lookup import Held
from proxy.session.parked import MOST_PARKED
from proxy.session.sockets import BUFFER, Leg
from proxy.session.state import Connection, Declared, Phase, Refused
from proxy.session.timeouts import Overdue
from proxy.wire.frames import CONNECTION_FORCED, HEARTBEAT_FRAME, PROTOCOL_HEADER

log = logging.getLogger(__name__)

HEADER_WITHIN = 10.0
"""Seconds in which a client's first eight bytes must come, as RabbitMQ has it."""

HANDSHAKE_WITHIN = 30.0
"""Seconds for the handshake behind them; RabbitMQ ends it after 10."""

GONE_WITHIN = 30.0
"""Seconds in which what a client sent before it left may still be waited for."""

LEAVE_WITHIN = 5.0
"""Seconds that a client's connection.close waits for the broker's answers to what was published."""


class Session:
    """A client connection and the broker connection that belongs to it."""

    def __init__(self, shared: Shared, ended: Callable[["Session"], None]) -> None:
        """`ended` is called once both sockets are closed."""
        self._shared, self._ended = shared, ended
        self.end: End | None = None
        self.client, self.broker = Leg(self), Leg(self)
        self.client.other, self.broker.other = self.broker, self.client
        self.connection = Connection(shared.tables.table, shared.confirmed, shared.allowed_mechanisms)
        self.connection.without_spare = shared.without_spare
        self._loop = asyncio.get_running_loop()
        self._head = b""
        self._dialling: asyncio.Task[None] | None = None
        self._waits: dict[Channel, asyncio.Task[None]] = {}
        """The task that looks after each channel that waits."""
        self._rereadings: dict[bytes, asyncio.Task[None]] = {}
        """The tasks that read what messages which came back wait for, by their exchange."""
        self._opening = True
        """The handshake is not over."""
        self._paused = False
        """The client is not read: see `Connection.paused`."""
        self._brimming = False
        """The broker is not read for what waits for a reading, or for the end of the client's frame."""
        self._brimming_since = 0.0
        """When that began, monotonic."""
        self._leaving = False
        """The client's connection.close waits for answers."""
        self._connected = self._draining = self._stopped = self._client_ended = self._over = False
        self._deadline: asyncio.TimerHandle | None = None
        self._heartbeat: asyncio.TimerHandle | None = None
        self._overdue = Overdue(self.connection, self.broker, guarded=self._guarded, go_on=self._go_on)
        self._held = Held(
            shared,
            self.connection,
            self._overdue,
            hand_on=self._hand_on,
        )
        self._within(HEADER_WITHIN, End.PROTOCOL)

    @property
    def unsettled(self) -> int:
        """Publishes that the broker has yet to answer."""
        return sum(channel.confirms.unsettled for channel in self.connection.channels.values())

    # What the legs tell.

    def received(self, leg: Leg, data: bytes) -> None:
        """Bytes of either side."""
        self.connection.now = time.monotonic()
        try:
            if leg is self.broker:
                self._shared.broker_bytes += len(data)
                self._from_broker(data)
                if self._paused:
                    self._from_client(b"")
                self._go_on()
            else:
                self._shared.client_bytes += len(data)
                if self._draining:
                    self._rest_of_frame(data)
                    self._go_on()
                elif self._connected:
                    self._from_client(data)
                    self._go_on()
                else:
                    self._start(data)
            self._held.heard.set()
        except Exception:
            self._defect()

    def at_end(self, leg: Leg) -> None:
        """One side sends no more: the other gets what it sent, then the end of file."""
        if leg is self.broker:
            self.connection.broker_done = True
            self.end = self.end or End.BROKER
        else:
            self.connection.client_done = self._client_ended = True
            self.end = self.end or End.CLIENT
            if not self._connected:
                self._stop(End.CLIENT)
                return
            if self._waits or self.connection.phase is Phase.LEAVING:
                # What it sent waits for a look-up, or for answers.
                if self._deadline is None:
                    self._within(GONE_WITHIN, End.CLIENT)
                return
        if self.connection.phase is Phase.REFUSING:
            self._refused()
            return
        other = self.client if leg is self.broker else self.broker
        other.finish()
        self._within(CLOSE_WITHIN, self.end)

    def lost(self, leg: Leg) -> None:
        """One socket is closed."""
        if not self._over:
            self.at_end(leg)
        if not self.client.is_open and not self.broker.is_open and not self._over:
            self._settle()

    def flows_again(self, leg: Leg, since: float) -> None:
        """A peer reads again, and so is the other one read."""
        if leg is self.client:
            self._excuse(since)

    def _excuse(self, since: float) -> None:
        """The broker was not read since then, so that its answers are not late."""
        if self.connection.reroutes is not None:
            self.connection.reroutes.excuse(since, time.monotonic())

    # The beginning.

    def _start(self, data: bytes) -> None:
        """The protocol header; with it, a broker is dialled."""
        self._head += data
        if self._dialling is not None or self.end is not None:
            return
        match is_protocol_header(self._head):
            case True:
                self._within(None, End.CLIENT)
                self._head = self._head[len(PROTOCOL_HEADER) :]
                self.client.hold()
                self._dialling = self._loop.create_task(self._dial())
            case False:
                # AMQP section 4.2.2: the answer is the header that would be taken.
                log.info("client %s: not the header of AMQP 0-9-1", self.client.peer)
                self._count_refusal(0)
                self.end = End.PROTOCOL
                self.client.write([PROTOCOL_HEADER])
                self.client.finish()
                self._within(CLOSE_WITHIN, End.PROTOCOL)
            case None:
                pass

    async def _dial(self) -> None:
        try:
            await self._shared.dial(lambda: self.broker)
        except OSError as error:
            log.warning("client %s: no broker: %s", self.client.peer, error)
            self._stop(End.UNREACHABLE)
            return
        except Exception:
            self._defect()
            return
        self._dialling, self._connected = None, True
        self._within(HANDSHAKE_WITHIN, End.BROKER)
        self.broker.write([PROTOCOL_HEADER])
        if self._head:
            self._shared.client_bytes -= len(self._head)
            self.received(self.client, self._head)
        self.client.release()

    # The middle.

    def _from_client(self, data: bytes) -> None:
        self.connection.expire()
        relay.from_client(self.connection, data)

    def _rest_of_frame(self, data: bytes) -> None:
        """While it drains no more is taken: the end of this frame, for nothing else can go to the broker before it."""
        c = self.connection
        rest = c.client_skip
        if rest:
            self._from_client(data[:rest])
        if c.running:
            c.client_rest += data[rest:]
            self._stop_reading()
        else:
            self._from_client(data[rest:])

    def _from_broker(self, data: bytes) -> None:
        """Ends the session where that is not AMQP."""
        try:
            relay.from_broker(self.connection, data)
            if self.connection.waiting:
                # The broker may have answered what a channel waits for; a declaration counts from its -ok on.
                self._do()
                relay.resume(self.connection)
        except relay.BrokerFault as fault:
            log.warning("client %s: the broker sent what is not AMQP 0-9-1: %s", self.client.peer, fault)
            self._stop(End.BROKER)

    def _go_on(self) -> None:
        """Hands on what the rewriting made, and waits for what it asked for."""
        c = self.connection
        self._hand_on()
        self._pace()
        if c.waiting and c.running:
            self._wait()
        if c.parked:
            self._read_again()
        if c.for_broker or c.parked or self._brimming:
            self._hold_back()
        self._overdue.watch()
        if self._draining and self._stopped and c.client_skip:
            # What waited for a look-up ended within a frame.
            self._stopped = False
            self.client.release()
        if c.opened and self._opening:
            self._opening = False
            self._within(None, End.BROKER)
        if c.phase is Phase.LEAVING:
            self._leave()
        elif self._draining and c.running and not self._waits:
            self._end_drain()
        if c.phase is Phase.REFUSING:
            self._refused()

    def _pace(self) -> None:
        """Reads a client no further that is ahead of the broker."""
        if self.connection.paused != self._paused:
            self._paused = not self._paused
            if self._paused:
                self.client.hold()
                self._keep_alive()
            else:
                self.client.release()

    def _guarded(self, do: Callable[[], None]) -> None:
        """Does it for a task's end or a timer, above which nobody sees to a defect."""
        try:
            do()
        except Exception:
            self._defect()

    def _hand_on(self) -> None:
        """Tells of events, and writes to both sides."""
        c = self.connection
        if c.events:
            self._do()
        self.broker.write(c.to_broker)
        self.client.write(c.to_client)

    def _hold_back(self) -> None:
        """Reads no more from the broker while much that came back waits, for a reading or the client's frame's end."""
        c = self.connection
        brimming = sum(map(len, c.for_broker)) > BUFFER or (c.parked.size > MOST_PARKED and c.parked.waits)
        if brimming and not self._brimming:
            self.broker.hold()
            self._brimming, self._brimming_since = True, time.monotonic()
            self._keep_alive()
        elif self._brimming and not brimming:
            self.broker.release()
            self._excuse(self._brimming_since)
        self._brimming = brimming

    def _leave(self) -> None:
        """Passes the client's connection.close on, once that loses nothing, or a while later."""
        if not closing.awaits_answers(self.connection):
            self._left()
        elif not self._leaving:
            self._leaving = True
            self._within(None, End.CLIENT)
            self._deadline = self._loop.call_later(LEAVE_WITHIN, self._guarded, self._left)

    def _left(self) -> None:
        c = self.connection
        self._within(None, End.CLIENT)
        if c.phase is Phase.LEAVING:
            closing.left(c)
            self.broker.write(c.to_broker)
            if self._client_ended:
                self.at_end(self.client)

    def _do(self) -> None:
        c = self.connection
        events, c.events = c.events, []
        for event in events:
            if isinstance(event, Declared):
                self._shared.sync.declared(c.vhost, event.declaration)
            elif isinstance(event, Refused):
                self._count_refusal(event.code)
                if event.channel is not None:
                    self._overdue.watch_close(event.channel)
                log.warning("client %s, virtual host %r: %d %s", self.client.peer, c.vhost, event.code, event.text)
            else:
                self._shared.refresh(event.name, event.destination)

    def _count_refusal(self, code: int) -> None:
        self._shared.refusals[code] = self._shared.refusals.get(code, 0) + 1

    def _wait(self) -> None:
        """Has each channel that waits looked after, by a task of its own."""
        for channel in self.connection.waiting.values():
            if channel not in self._waits:
                task = self._waits[channel] = self._loop.create_task(self._held.channel(channel))
                # A task that is cancelled before it begins would come to no `finally`.
                task.add_done_callback(functools.partial(self._waited, channel))

    def _waited(self, channel: Channel, task: asyncio.Task[None]) -> None:
        del self._waits[channel]
        self._resume(task)
        if self._client_ended and not task.cancelled() and task.exception() is None:
            self._guarded(lambda: self.at_end(self.client))

    def _read_again(self) -> None:
        """Has what messages that came back wait for read, for each exchange by itself."""
        for exchange in self.connection.parked.exchanges:
            if exchange not in self._rereadings and self.connection.parked.wanted(exchange) is not None:
                task = self._rereadings[exchange] = self._loop.create_task(self._held.returned(exchange))
                task.add_done_callback(functools.partial(self._reread_ended, exchange))

    def _reread_ended(self, exchange: bytes, task: asyncio.Task[None]) -> None:
        del self._rereadings[exchange]
        self._held.heard.set()
        self._resume(task)

    def _resume(self, task: asyncio.Task[None]) -> None:
        """Goes on behind it, unless it was ended, or ended by a defect."""
        if not task.cancelled() and not self._over:
            self._guarded(self._go_on if task.exception() is None else task.result)

    def _keep_alive(self) -> None:
        """Sends heartbeats to each side in the stead of the other one, while that is not read."""
        c = self.connection
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        if not (self._draining or self._paused or self._brimming) or not c.heartbeat or self._over:
            return
        if (self._draining or self._paused) and not c.client_skip and c.opened:
            self.broker.write([HEARTBEAT_FRAME])
        if self._brimming and not c.broker_skip and c.running:
            self.client.write([HEARTBEAT_FRAME])
        self._heartbeat = self._loop.call_later(self.connection.heartbeat / 2, self._guarded, self._keep_alive)

    # The end.

    def drain(self) -> None:
        """Takes no more of the client, and closes the connection once the broker has answered what was sent."""
        c = self.connection
        if c.phase is Phase.LEAVING:
            return  # which ends it as well
        if c.phase in (Phase.ENDING, Phase.REFUSING):
            if self._deadline is None:
                self._within(CLOSE_WITHIN, End.SHUTDOWN)
            return
        if not c.broker_frames:
            # It has not got connection.start, and so takes no close.
            self._stop(End.SHUTDOWN)
            return
        self.end = self.end or End.SHUTDOWN
        if not c.opened:
            self._shut()
            return
        self._draining = True
        self._stop_reading()
        self._keep_alive()
        self._go_on()

    def _stop_reading(self) -> None:
        """Reads the client no more, once it is at the end of a frame."""
        if not self._stopped and not self.connection.client_skip and not self.connection.broker_done:
            self._stopped = True
            self.client.hold()

    def _end_drain(self) -> None:
        """Closes the connection once nothing of what was published can come back any more."""
        c = self.connection
        if closing.awaits_answers(c):
            return
        goodbyes = closing.part(c)
        if goodbyes:
            c.tell_broker(goodbyes)
            self._hand_on()
        else:
            self._shut()

    def shut(self) -> None:
        """Closes the connection now: the time to drain is over."""
        for task in self._waits.values():
            task.cancel()
        if self.connection.running:
            self._shut()

    def _shut(self) -> None:
        self._draining = False
        self._within(CLOSE_WITHIN, End.SHUTDOWN)
        if self._stopped:
            self.client.release()
        closing.refuse(self.connection, CONNECTION_FORCED, SHUTTING_DOWN)
        self._go_on()

    def _refused(self) -> None:
        """After connection.close of ours: waits for both sides to agree, not for long."""
        c = self.connection
        if self.end is None:
            self.end = End.BROKER if self._overdue.expired else End.PROTOCOL
            self._within(CLOSE_WITHIN, self.end)
        for task in self._rereadings.values():
            task.cancel()
        if c.broker_lost:
            c.broker_lost, c.broker_done = False, True
            self.broker.finish()
        if c.client_done and c.broker_done:
            self.client.close()
            self.broker.close()

    def abort(self) -> None:
        """Drops both sockets."""
        self._stop(End.SHUTDOWN)

    def _within(self, seconds: float | None, end: End) -> None:
        """Drops both sockets after that time; None takes the limit off."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self._loop.call_later(seconds, self._stop, end) if seconds is not None else None

    def _stop(self, end: End) -> None:
        self.end = self.end or end
        self._cancel()
        self.client.abort()
        self.broker.abort()

    def _cancel(self) -> None:
        for task in (self._dialling, *self._rereadings.values(), *self._waits.values()):
            if task is not None:
                task.cancel()

    def _defect(self) -> None:
        log.exception("a defect while serving client %s", self.client.peer)
        self._stop(End.DEFECT)

    def _settle(self) -> None:
        self._over = True
        self._within(None, End.CLIENT)
        self._overdue.cancel()
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        self._cancel()
        for channel in self.connection.channels.values():
            channel.confirms.abandon()
        # Session, legs and tasks are a cycle, whose memory comes back when the collector next looks at old objects.
        # That can be hours away, and each client whose login is refused may have left hundreds of KiB here.
        self._head = self.connection.client_rest = self.connection.broker_rest = b""
        self.connection.channels.clear()
        self._ended(self)
