"""One session: it feeds the bytes of its two sockets to the loops over frames, and does what the loops ask for."""

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from proxy.session import broker_loop, client_loop, closing, time_limits
from proxy.session.answer_deadlines import AnswerDeadlines
from proxy.session.attendant import Attendant
from proxy.session.connection import Connection
from proxy.session.direction import Direction
from proxy.session.end import SHUTTING_DOWN, End
from proxy.session.events import Declared, Lacks, Missing, NoQueue, Refused, Reopened
from proxy.session.flow import FlowControl
from proxy.session.handshake import is_protocol_header
from proxy.session.kept import Terms
from proxy.session.shared import Shared
from proxy.session.sockets import PeerSocket
from proxy.session.state import Phase
from proxy.session.waiter import Waiter
from proxy.wire.frames import CONNECTION_FORCED, PROTOCOL_HEADER

log = logging.getLogger(__name__)

TURN: Final = 0.003
"""Seconds for which the bytes of one read are worked on before other sessions have a turn.

Most reads take less: 256 KiB with 1,000 small publishes take 1 to 2 ms.
"""


class Session:
    """A client connection and the broker connection that belongs to it, until both are closed."""

    def __init__(self, shared: Shared, ended: Callable[["Session"], None]) -> None:
        """`ended` is called once both sockets are closed."""
        self._shared, self._ended = shared, ended
        self.end: End | None = None
        self.client, self.broker = PeerSocket(self), PeerSocket(self)
        self.client.other, self.broker.other = self.broker, self.client
        self.connection = Connection(shared.tables.table, shared.confirmed, shared.allowed_mechanisms)
        self.connection.republishing.barred = shared.without_spare
        self._loop = asyncio.get_running_loop()
        self._head = b""
        self._dialling: asyncio.Task[None] | None = None
        self._seen = Phase.HEADER
        """The phase that the connection had when `_after_input` looked last."""
        self._deadline: asyncio.TimerHandle | None = None
        self._draining = False
        """Whether this proxy shuts down."""
        self._held = False
        """Whether the session is to close, and its attendant does not let it yet."""
        self._resting: set[PeerSocket] = set()
        """The sockets that are not read until other sessions have had a turn."""
        self._flow = FlowControl(self.connection, self.client, self.broker, self._guarded)
        self._deadlines = AnswerDeadlines(self.connection, self.broker, guarded=self._guarded, go_on=self._after_input)
        self._waiter = Waiter(
            shared, self.connection, hand_on=self._hand_on, ended=self._task_ended, is_held=lambda: self.broker.is_held
        )
        self._attendant = Attendant()
        if shared.attend is not None:
            c = self.connection
            acted = partial(self._guarded, self._on_interceptor_action)
            self._attendant = shared.attend(c, lambda: self.client.peer, self._guarded, acted)
            c.interceptor, c.handshake.kept_back = self._attendant.interceptor, self._attendant.kept_back
        if shared.kept is not None:
            self.connection.handshake.terms = []
            self.connection.handshake.wanted = self._is_wanted
        self._within(time_limits.HEADER_WITHIN, End.PROTOCOL)

    @property
    def unsettled(self) -> int:
        """How many publishes the broker has yet to answer."""
        return sum(channel.confirms.unsettled for channel in self.connection.channels.values())

    def _is_wanted(self) -> bool:
        """Return whether the broker connection would be kept for another client."""
        kept, terms = self._shared.kept, self.connection.handshake.terms
        return kept is not None and terms is not None and kept.wants(self.broker, terms[0])

    # Input from the sockets

    def received(self, peer: PeerSocket, data: bytes) -> None:
        """Take bytes of a peer's socket, for TURN seconds; go on with the rest after other sessions."""
        c = self.connection
        c.now = time.monotonic()
        c.turn_ends = c.now + TURN
        try:
            if peer is self.broker:
                self._shared.broker_bytes += len(data)
                self._from_broker(data)
                if c.interceptor is not None:
                    self._flow.told()
                if self._flow.is_paused:
                    self._from_client(b"")
                self._after_input()
            else:
                self._shared.client_bytes += len(data)
                if c.phase < Phase.HANDSHAKE:
                    self._start(data)
                else:
                    take = self._rest_of_frame if c.phase is Phase.DRAINING else self._from_client
                    take(data)
                    self._after_input()
            self._waiter.heard.set()
            if time.monotonic() > c.turn_ends:
                # The event loop would read again at once, up to 32 times, as long as reads are full.
                self._rest(peer)
        except Exception:
            self._defect()

    def _rest(self, peer: PeerSocket) -> None:
        """Read a peer no more until other sessions have had a turn, and then go on with what it has sent."""
        if peer not in self._resting:
            self._resting.add(peer)
            peer.hold()
            self._loop.call_soon(self._guarded, partial(self._next_turn, peer))

    def _next_turn(self, peer: PeerSocket) -> None:
        self._resting.discard(peer)
        if self.connection.phase is not Phase.OVER and self._way_of(peer).more:
            self.received(peer, b"")
        peer.release()

    def _way_of(self, peer: PeerSocket) -> Direction:
        return self.connection.to_client if peer is self.broker else self.connection.to_broker

    def at_end(self, peer: PeerSocket) -> None:
        """Note that a peer sends no more; the opposite peer gets all that it has sent, then the end of the stream.

        Before the handshake the end of a client just ends the session. While frames of the client wait, the end of its
        stream waits too, for GONE_WITHIN at most. May be called again.
        """
        c = self.connection
        while self._way_of(peer).more and c.running:
            self.received(peer, b"")
        if peer is self.broker:
            c.to_client.ended = True
            self.end = self.end or End.BROKER
        else:
            c.to_broker.ended = True
            self.end = self.end or End.CLIENT
            if c.phase < Phase.HANDSHAKE:
                self._stop(End.CLIENT)
                return
            if self._waiter.channels or c.phase is Phase.LEAVING:
                # Frames of the client wait for a look-up, or for answers.
                if self._deadline is None:
                    self._within(time_limits.GONE_WITHIN, End.CLIENT)
                return
            if c.phase is Phase.RUNNING and self.end is End.CLIENT:
                self._attendant.client_lost()
        if c.phase is Phase.REFUSING:
            self._refused()
            return
        other = self.client if peer is self.broker else self.broker
        other.finish()
        self._within(time_limits.CLOSE_WITHIN, self.end)

    def lost(self, peer: PeerSocket) -> None:
        """Note that a peer's socket is closed; the session is over with the second one."""
        if self.connection.phase is Phase.OVER:
            return
        self.at_end(peer)
        if not self.client.is_open and not self.broker.is_open:
            self._finish()

    def flows_again(self, peer: PeerSocket, since: float) -> None:
        """Note that a peer reads again; the opposite peer, unread since the time `since`, is read again."""
        if peer is self.client:
            self._flow.excuse(since)

    # The beginning.

    def _start(self, data: bytes) -> None:
        """Take the client's protocol header; once it is whole, a broker is dialled."""
        self._head += data
        if self.connection.phase is Phase.DIALLING or self.end is not None:
            return
        match is_protocol_header(self._head):
            case True:
                self._within(None, End.CLIENT)
                self._head = self._head[len(PROTOCOL_HEADER) :]
                self.client.hold()
                self.connection.enter(Phase.DIALLING)
                self._dialling = self._loop.create_task(self._dial())
            case False:
                # AMQP section 4.2.2: the answer is the header that would be taken.
                log.info("client %s: not the header of AMQP 0-9-1", self.client.peer)
                self._shared.refusals[0] += 1
                self.end = End.PROTOCOL
                self.client.write([PROTOCOL_HEADER])
                self.client.finish()
                self._within(time_limits.CLOSE_WITHIN, End.PROTOCOL)

    async def _dial(self) -> None:
        """Connect to a broker, and begin the handshake with what the client has sent meanwhile; or end the session."""
        try:
            await self._shared.dial(lambda: self.broker)
        except OSError as error:
            log.warning("client %s: no connection to the broker: %s", self.client.peer, error)
            self._stop(End.UNREACHABLE)
            return
        except Exception:
            self._defect()
            return
        self._dialling = None
        self.connection.enter(Phase.HANDSHAKE)
        self._within(time_limits.HANDSHAKE_WITHIN, End.BROKER)
        self.broker.write([PROTOCOL_HEADER])
        if self._head:
            self._shared.client_bytes -= len(self._head)
            self.received(self.client, self._head)
        self.client.release()

    # The middle.

    def _from_client(self, data: bytes) -> None:
        self.connection.drop_old_routes()
        client_loop.from_client(self.connection, data)

    def _rest_of_frame(self, data: bytes) -> None:
        """Take the end of the client's frame and no more: no method can go to the broker amidst a frame."""
        c = self.connection
        rest = c.to_broker.body_left
        if rest:
            self._from_client(data[:rest])
        if c.running:
            c.to_broker.rest += data[rest:]
            c.to_broker.more = False
            self._flow.stop_reading()
        else:
            self._from_client(data[rest:])

    def _from_broker(self, data: bytes) -> None:
        """Take bytes of the broker's, and end the session if they are not AMQP."""
        try:
            broker_loop.from_broker(self.connection, data)
            if self.connection.events:
                # The broker's news count before more of the client's frames are read: a declaration from its -ok on.
                self._handle_events()
            if self.connection.waiting.channels:
                # The broker may have answered what a channel waits for.
                client_loop.resume(self.connection)
        except broker_loop.BrokerFault as fault:
            log.warning("client %s: the broker sent what is not AMQP 0-9-1: %s", self.client.peer, fault)
            self._stop(End.BROKER)

    def _after_input(self) -> None:
        """Hand on what the loops made, and wait for what they asked for."""
        c = self.connection
        self._hand_on()
        if self._held and self._attendant.may_close:
            self._held = False
            self.drain()
            return
        if c.waiting.channels or c.republishing.parking:
            self._waiter.begin()
        self._flow.pace()
        self._deadlines.watch()
        seen, self._seen = self._seen, c.phase
        if seen < Phase.RUNNING and c.opened:
            self._within(None, End.BROKER)
        if c.phase is Phase.LEAVING:
            self._delay_client_close(is_new=seen is not Phase.LEAVING)
        elif c.phase is Phase.DRAINING and not self._waiter.channels:
            self._end_drain()
        elif seen is Phase.DRAINING and c.phase > Phase.LEAVING and self._deadline is None:
            # Something else than the drain ends the session.
            self._within(time_limits.CLOSE_WITHIN, End.SHUTDOWN)
        if c.phase is Phase.REFUSING:
            self._refused()

    def _on_interceptor_action(self) -> None:
        """Hand on what the attendant has done, and let channels go on that have waited for it."""
        c = self.connection
        c.now = time.monotonic()
        if c.waiting.channels:
            self._handle_events()
            client_loop.resume(c)
        self._after_input()
        self._waiter.heard.set()

    def _guarded(self, do: Callable[[], None]) -> None:
        """Call a function for a task's end or a timer; handle its unexpected errors, which nobody else would see."""
        try:
            do()
        except Exception:
            self._defect()

    def _hand_on(self) -> None:
        """See to the events of the core, and write to both peers."""
        c = self.connection
        if c.events:
            self._handle_events()
        self._attendant.go_on()
        self.broker.write(c.to_broker.out)
        self.client.write(c.to_client.out)
        if c.to_broker.more:
            self._rest(self.client)

    def _delay_client_close(self, *, is_new: bool) -> None:
        """Pass the client's connection.close on, once that loses nothing, or a while later."""
        if not closing.awaits_answers(self.connection):
            self._forward_client_close()
        elif is_new:
            self._within(None, End.CLIENT)
            self._deadline = self._loop.call_later(time_limits.LEAVE_WITHIN, self._guarded, self._forward_client_close)

    def _forward_client_close(self) -> None:
        """Pass the client's connection.close on, which has waited until no published message can come back."""
        c = self.connection
        self._within(None, End.CLIENT)
        if c.phase is Phase.LEAVING:
            kept = self._shared.kept
            if kept is not None and closing.is_clean(c) and kept.keep(self.broker, Terms(*c.handshake.terms or ())):
                closing.answer_goodbye(c)
                self.client.write(c.to_client.out)
                self.client.finish()
                self._within(time_limits.CLOSE_WITHIN, End.CLIENT)
                return
            closing.pass_goodbye(c)
            self.broker.write(c.to_broker.out)
            if self.client.has_ended:
                self.at_end(self.client)

    def _handle_events(self) -> None:
        """Do what the session's core has asked for: readings, log lines, counts and deadlines."""
        c = self.connection
        events, c.events = c.events, []
        for event in events:
            if isinstance(event, Declared):
                self._shared.readings.scheduler.declared(c.vhost, event.declaration)
            elif isinstance(event, Missing):
                self._shared.readings.scheduler.found_missing(c.vhost, event.exchange)
            elif isinstance(event, NoQueue):
                self._shared.want(c.vhost, event)
            elif isinstance(event, Reopened):
                self._shared.tell_reopened(c.vhost, self.client.peer, event)
            elif isinstance(event, Lacks):
                self._shared.note_lacking(event.right)
            elif isinstance(event, Refused):
                self._shared.refusals[event.code] += 1
                if event.channel is not None:
                    self._deadlines.watch_close(event.channel)
                log.warning("client %s, virtual host %r: %d %s", self.client.peer, c.vhost, event.code, event.text)
            else:
                self._shared.have_read_again(event.name, event.destination)

    def _task_ended(self, task: "asyncio.Task[None]", of_channel: bool) -> None:
        """Go on after a task's end, unless it was cancelled; an unexpected error of the task ends the session."""
        if task.cancelled():
            return
        is_sound = task.exception() is None
        if self.connection.phase is not Phase.OVER:
            self._guarded(self._after_input if is_sound else task.result)
        if of_channel and is_sound and self.client.has_ended:
            self._guarded(lambda: self.at_end(self.client))

    # The end.

    def drain(self) -> None:
        """Take no more of the client, and close the connection once the broker has answered what was sent.

        The client is read on for as long as its attendant does not let the session close.
        """
        c = self.connection
        if c.running and not self._may_close():
            return
        if c.phase in (Phase.DRAINING, Phase.LEAVING):
            return  # which end it as well
        if c.phase > Phase.LEAVING:
            if self._deadline is None:
                self._within(time_limits.CLOSE_WITHIN, End.SHUTDOWN)
            return
        if not c.to_client.frames:
            # The client has not got connection.start, and so takes no close.
            self._stop(End.SHUTDOWN)
            return
        self.end = self.end or End.SHUTDOWN
        if not c.opened:
            self._shut()
            return
        c.enter(Phase.DRAINING)
        self._flow.stop_reading()
        self._flow.keep_alive()
        self._after_input()

    def _may_close(self) -> bool:
        """Return whether the attendant lets the session close; if not, `_after_input` asks again."""
        if not self._draining:
            self._draining = True
            self._attendant.drain()
        self._held = not self._attendant.may_close
        if self._held:
            self._after_input()
        return not self._held

    def _end_drain(self) -> None:
        """Close the connection once nothing of what was published can come back any more."""
        c = self.connection
        if closing.awaits_answers(c):
            return
        goodbyes = closing.close_unconfirmed(c)
        if goodbyes:
            c.to_broker.insert(goodbyes)
            self._hand_on()
        else:
            self._shut()

    def shut(self) -> None:
        """Close the connection now: the time to drain is over."""
        self._waiter.cancel_channels()
        if self.connection.running:
            self._shut()

    def _shut(self) -> None:
        self._within(time_limits.CLOSE_WITHIN, End.SHUTDOWN)
        self._flow.go_on_reading()
        closing.refuse(self.connection, CONNECTION_FORCED, SHUTTING_DOWN)
        self._after_input()

    def _refused(self) -> None:
        """Wait for both peers' close-ok after this proxy's connection.close, not for long."""
        c = self.connection
        if self.end is None:
            self.end = End.BROKER if self._deadlines.expired else End.PROTOCOL
            self._within(time_limits.CLOSE_WITHIN, self.end)
        self._waiter.cancel_readings()
        if c.to_broker.cut_off:
            c.to_broker.cut_off, c.to_client.ended = False, True
            self.broker.finish()
        if c.to_broker.ended and c.to_client.ended:
            self.client.close()
            self.broker.close()

    def abort(self) -> None:
        self._stop(End.SHUTDOWN)

    def _within(self, seconds: float | None, end: End) -> None:
        """Drop both sockets once `seconds` have passed, with the reason `end`; None takes the limit off."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self._loop.call_later(seconds, self._stop, end) if seconds is not None else None

    def _stop(self, end: End) -> None:
        self.end = self.end or end
        self._cancel()
        self.client.abort()
        self.broker.abort()

    def _cancel(self) -> None:
        if self._dialling is not None:
            self._dialling.cancel()
        self._waiter.cancel_channels()
        self._waiter.cancel_readings()

    def _defect(self) -> None:
        log.exception("unexpected error while serving client %s", self.client.peer)
        self._stop(End.DEFECT)

    def _finish(self) -> None:
        """End the session, whose sockets are closed, and let go of all that it holds."""
        self.connection.enter(Phase.OVER)
        self._attendant.lost()
        self._within(None, End.CLIENT)
        self._deadlines.cancel()
        self._flow.cancel()
        self._cancel()
        for channel in self.connection.channels.values():
            channel.confirms.abandon()
        # Session, sockets and tasks are a cycle, whose memory comes back when the collector next looks at old objects.
        # The collector may come hours later, and each client whose login is refused may have left hundreds of KiB here.
        self._head = self.connection.to_broker.rest = self.connection.to_client.rest = b""
        self.connection.channels.clear()
        self._ended(self)
