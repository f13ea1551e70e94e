"""A connection to the broker that is made again after each loss, and written to once in a turn of the event loop."""

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import cast

from proxy.publisher.channel import ConfirmChannel
from proxy.publisher.protocol import PublisherProtocol, Stage
from proxy.settings.connection_faults import NOT_AMQP, in_words
from proxy.settings.parse import Address
from proxy.wire import writing
from proxy.wire.frames import ACCESS_REFUSED, HEARTBEAT_FRAME, NOT_ALLOWED, PROTOCOL_HEADER, Fault

log = logging.getLogger(__name__)

LONGEST_RECONNECT_PAUSE = 10.0
"""The upper limit, in seconds, of the random pause between two tries to connect."""

BUFFER = 1 << 20
"""Bytes that wait to be sent from which on nothing more is published, since the broker reads too slowly."""

_CLOSED = "this sidecar closed the connection"

DOUBT_AFTER = 5.0
"""Seconds for which the cluster's name is trusted that the broker gave when it was connected to."""

_MARKS = 100
"""The parts into which `confirm_timeout` is divided: a publish is given up about one part late, at most."""

_TICK = 0.1
"""Seconds between looks at which confirms and heartbeats are overdue."""


class Socket(asyncio.Protocol):
    """One socket to the broker: an incarnation of a `BrokerConnection`, from its dial to its loss."""

    def __init__(self, connection: "BrokerConnection", protocol: PublisherProtocol) -> None:
        """Take the protocol of the new connection; the event loop gives the transport later."""
        self.connection, self.protocol = connection, protocol
        self.transport: asyncio.Transport | None = None
        self.closed = asyncio.get_running_loop().create_future()
        self.peer = ""
        """The address that was connected to, as it is written."""
        self.paused = False
        self.heard_at = self.wrote_at = time.monotonic()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the protocol header, which AMQP expects before anything else (section 4.2.2)."""
        transport = cast(asyncio.Transport, transport)  # uvloop's are not of the class
        transport.set_write_buffer_limits(high=BUFFER)
        self.transport = transport
        # A connection that is lost at once has no peer any more.
        if (name := transport.get_extra_info("peername")) is not None:
            self.peer = str(Address(*name[:2]))
        transport.write(PROTOCOL_HEADER)

    def data_received(self, data: bytes) -> None:
        """Give the broker's bytes to the protocol, log its news, and tell the connection if its state has changed."""
        self.heard_at = time.monotonic()
        protocol = self.protocol
        before = protocol.stage, protocol.blocked
        try:
            protocol.feed(data)
        except Fault as fault:
            protocol.fault, protocol.stage = f"the broker sent what is not AMQP 0-9-1: {fault}", Stage.CLOSED
            protocol.pack()
            protocol.out.clear()
        if protocol.out:
            # Not written at once: receivers may publish more in this turn of the loop, and one write costs less.
            self.connection.wake()
        while protocol.news:
            log.warning("broker, virtual host %r: %s", self.connection.vhost, protocol.news.pop())
        if (protocol.stage, protocol.blocked) != before:
            self.connection.changed()
        if protocol.stage is Stage.CLOSED:
            self.flush()
            self.end()

    def flush(self) -> None:
        """Write all that the protocol has made in this turn of the event loop."""
        out = self.protocol.out
        self.protocol.pack()
        if out and self.transport is not None:
            self.wrote_at = time.monotonic()
            writing.write(self.transport, out)
        out.clear()

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be sent any more."""
        return self.closed.done()

    async def update_secret(self, new_secret: str, *, reason: str) -> None:
        """Have the broker know this connection's user by another secret from now on; its answer is not awaited."""
        self.protocol.update_secret(new_secret.encode(), reason.encode())
        self.connection.wake()

    async def close(self) -> None:
        """Have the connection closed in good order, and made again; its end is not awaited."""
        self.connection.leave(self)

    def end(self) -> None:
        """Close the socket, and give what is still to be written one second."""
        transport = self.transport
        if transport is not None:
            transport.close()
            asyncio.get_running_loop().call_later(1.0, transport.abort)

    def abort(self) -> None:
        """Close the socket at once; what was not written is lost."""
        if self.transport is not None:
            self.transport.abort()

    def pause_writing(self) -> None:
        """Stop publishing, since more than `BUFFER` bytes wait: the broker reads too slowly."""
        self.paused = True
        self.connection.changed()

    def resume_writing(self) -> None:
        """Publish again, since the broker has read most of what waited."""
        self.paused = False
        self.connection.changed()

    def connection_lost(self, error: Exception | None) -> None:
        """Mark the protocol as closed, and wake whoever waits for the end of the socket."""
        self.transport = None
        if error is not None and not self.protocol.fault:
            self.protocol.fault = f"the connection was lost: {in_words(error)}"
        self.protocol.stage = Stage.CLOSED
        self.connection.changed()
        if not self.closed.done():
            self.closed.set_result(None)


class BrokerConnection:
    """A connection as one user to one virtual host; it outlives its sockets, which `run` makes one after the other."""

    def __init__(
        self,
        dial: Callable[[Callable[[], Socket]], Awaitable[Socket]],
        login: Callable[[], tuple[str, str]],
        vhost: str,
        *,
        open_timeout: float,
        confirm_timeout: float,
        inventory: Mapping[str, str] | None = None,
        opened: Callable[[Socket, tuple[str, str]], Awaitable[None]] | None = None,
        refused: Callable[[str], None] | None = None,
    ) -> None:
        """Take how to reach the broker; nothing is dialled before `run`. Times are in seconds.

        `dial` raises OSError; `login` returns user and password, and is asked at each try, since they may change.
        It raises OSError if there is nothing to log in with. `inventory` are the client properties that say who
        connects; without them those of a sidecar do. `opened` is told each socket that has logged in, and by what,
        and `refused` each password with which the broker has refused this user, or this user the virtual host.
        """
        self._dial, self._login, self.vhost, self._inventory = dial, login, vhost, inventory
        self._opened, self._refused = opened, refused
        self._open_timeout, self._confirm_timeout = open_timeout, confirm_timeout
        self.protocol: PublisherProtocol | None = None
        """The protocol of the present socket once its handshake is over; None while there is none."""
        self.clear = False
        """Whether a publish may be sent now: the handshake is over, and the broker takes and reads publishes."""
        self._news = asyncio.Event()
        """An event that is set, and replaced by a new one, at each change of state."""
        self.fault = "not connected yet"
        """Why there is no connection; empty while there is one."""
        self.login_refused = 0
        """The reply code with which the broker last refused this user, or this user the virtual host; 0 for neither."""
        self.cluster: str | None = None
        """The name of the cluster that was connected to last; None before the first connection, or if it has none."""
        self.cluster_told_at = 0.0
        """When the broker had given the cluster's name, in monotonic seconds; 0 before."""
        self.connects = 0
        """How many handshakes have succeeded."""
        self._socket: Socket | None = None
        self._loop = asyncio.get_running_loop()
        self._due = False
        """Whether a write at the end of this turn of the loop is scheduled."""
        self._over = False
        """Whether `run` has ended, since nobody wanted the connection any more."""
        self._marks: deque[tuple[float, list[tuple[ConfirmChannel, int]]]] = deque()
        """Times, and the last publish of each channel by then: what confirms are overdue is read off the oldest."""
        self._probed: tuple[float, int] | None = None
        """When the broker was asked whether it reads, and how many methods it had sent by then; None if not asked."""

    @property
    def why(self) -> str:
        """The reason why no publish can be sent now, in words; meaningless while `clear` is true."""
        if self.protocol is None or self.protocol.stage is not Stage.OPEN:
            return f"no connection to the broker: {self.fault or 'it was lost just now'}"
        if self.protocol.blocked:
            return f"the broker takes no publishes: {self.protocol.blocked}"
        return "the broker does not read what this sidecar sends"

    def changed(self) -> None:
        """Find out anew whether publishes may be sent, and wake whoever waits for that."""
        socket = self._socket
        self.clear = False
        if socket is not None and socket.protocol.stage is Stage.OPEN:
            protocol = socket.protocol
            if self.protocol is None:
                self.protocol, self.fault, self.cluster, self.login_refused = protocol, "", protocol.cluster, 0
                self.connects += 1
                self.cluster_told_at = time.monotonic()
            self.clear = not protocol.blocked and not socket.paused
        self._news.set()
        self._news = asyncio.Event()

    async def settled(self) -> None:
        """Return once a publish may be sent, or the broker has refused this user, or `run` has ended."""
        while not (self.clear or self.login_refused or self._over):
            await self._news.wait()

    def doubt(self) -> None:
        """Close the connection, so that it is made anew: the cluster may have been renamed since it gave its name.

        A connection that is younger than `DOUBT_AFTER` stays.
        """
        socket = self._socket
        if socket is not None and time.monotonic() - self.cluster_told_at > DOUBT_AFTER:
            self.leave(socket)

    def leave(self, socket: Socket) -> None:
        """Close a socket in good order if it is open, so that another one is made; confirms may still come."""
        if socket.protocol.stage is Stage.OPEN:
            self._close(socket)
            self._loop.call_later(self._open_timeout, socket.abort)

    def wake(self) -> None:
        """Have all that was published in this turn of the event loop written at its end, in one write."""
        if not self._due:
            self._due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._due = False
        if self._socket is not None:
            self._socket.flush()

    async def run(self, wanted: Callable[[bool], bool]) -> None:
        """Connect again and again for as long as `wanted` returns true; its argument says whether one is up."""
        pause = 0.1
        while True:
            started = time.monotonic()
            try:
                fault = await self._connection(wanted)
            except Exception as error:
                log.exception("unexpected error of the connection to the broker; connecting again")
                fault = f"unexpected error, see this sidecar's log: {type(error).__name__}"
            if fault != self.fault:
                level = logging.INFO if fault == _CLOSED else logging.WARNING
                log.log(level, "broker, virtual host %r: %s", self.vhost, fault)
            self.fault = fault
            if not wanted(False):
                self._over = True
                self.changed()
                return
            pause = (
                0.1 if time.monotonic() - started > LONGEST_RECONNECT_PAUSE else min(pause * 2, LONGEST_RECONNECT_PAUSE)
            )
            await asyncio.sleep(random.uniform(0, pause))

    async def _connection(self, wanted: Callable[[bool], bool]) -> str:
        """Make one connection, look after it to its end, and return why it ended."""
        try:
            login = self._login()
        except OSError as error:
            # An earlier refusal was that of another login, and publishes wait for the next one.
            self.login_refused = 0
            self.changed()
            return str(error)
        protocol = PublisherProtocol(*login, self.vhost, self._inventory)
        socket: Socket | None = None
        try:
            async with asyncio.timeout(self._open_timeout):
                socket = self._socket = await self._dial(lambda: Socket(self, protocol))
                # The broker's first bytes may have come before `self._socket` was set: their answer waits.
                socket.flush()
                self.changed()
                while protocol.stage is Stage.OPENING and not socket.closed.done():
                    await self._wait(socket)
            if protocol.stage is Stage.OPEN:
                log.info("connected to the broker, virtual host %r", self.vhost)
                if self._opened is not None:
                    await self._opened(socket, login)
            while not socket.closed.done():
                await self._wait(socket)
                self._tick(socket, time.monotonic())
                if not protocol.in_flight and not wanted(True):
                    await self.aclose()
        except TimeoutError:
            return "no answer in time" if socket is None else f"{socket.peer}: no AMQP answer in time; {NOT_AMQP}"
        except OSError as error:
            return str(error)
        finally:
            self._ended(protocol, socket)
            if self.login_refused and self._refused is not None:
                self._refused(login[1])
        return self._in_words(protocol, socket)

    async def _wait(self, socket: Socket) -> None:
        await asyncio.wait((socket.closed,), timeout=_TICK)

    def _tick(self, socket: Socket, now: float) -> None:
        """Give up publishes whose confirm is overdue, send heartbeats, and end a connection without any."""
        protocol, marks = socket.protocol, self._marks
        if protocol.in_flight and (not marks or now - marks[-1][0] >= self._confirm_timeout / _MARKS):
            marks.append((now, protocol.marks()))
        given_up = 0
        while marks and marks[0][0] + self._confirm_timeout <= now:
            for channel, number in marks.popleft()[1]:
                given_up += protocol.give_up(
                    channel, number, f"no confirm within {self._confirm_timeout:g} s (confirm_timeout)"
                )
        self._probe(socket, now, given_up > 0)
        if now - socket.heard_at > 2 * protocol.heartbeat:
            protocol.fault = "the broker has sent no heartbeat"
            socket.abort()
        elif now - socket.wrote_at > protocol.heartbeat / 2 and socket.transport is not None and not socket.paused:
            socket.wrote_at = now
            socket.transport.write(HEARTBEAT_FRAME)

    def _probe(self, socket: Socket, now: float, given_up: bool) -> None:
        """Ask whether the broker reads this connection if publishes were given up, and end it if the broker does not.

        RabbitMQ may stop reading one connection for ever while its heartbeats come and others are read
        (docs/development/chaos.md, "What long runs have found"). In an alarm it reads nothing, but says so.
        """
        protocol = socket.protocol
        if self._probed is not None:
            asked, methods = self._probed
            if protocol.blocked or protocol.methods != methods:
                self._probed = None
            elif now - asked > self._confirm_timeout:
                protocol.fault = f"the broker has not read this connection for {self._confirm_timeout:g} s"
                socket.abort()
        elif given_up and not protocol.blocked and protocol.stage is Stage.OPEN and protocol.probe():
            self._probed = now, protocol.methods
            self.wake()

    def _ended(self, protocol: PublisherProtocol, socket: Socket | None) -> None:
        """Give each publish under way its result, as the connection is lost; note whether the login was refused."""
        refused = protocol.code in (ACCESS_REFUSED, NOT_ALLOWED) and self.protocol is None
        self.login_refused = protocol.code if refused else 0
        self.protocol = self._socket = self._probed = None
        self._marks.clear()
        self.changed()
        protocol.lost(f"the connection was lost before the confirm: {self._in_words(protocol, socket)}")
        if socket is not None:
            socket.abort()

    def _in_words(self, protocol: PublisherProtocol, socket: Socket | None) -> str:
        if protocol.code:
            return f"the broker closed the connection: {protocol.code} {protocol.fault}"
        if protocol.fault or protocol.methods or socket is None:
            return protocol.fault or "the connection was lost"
        return f"{socket.peer}: the connection was lost before AMQP began; {NOT_AMQP}"

    def abandon(self, why: str) -> None:
        """Wait for no confirm any more: each publish in flight becomes UNKNOWN, for the reason `why`."""
        if self.protocol is not None:
            for channel, number in self.protocol.marks():
                self.protocol.give_up(channel, number, why)

    async def aclose(self) -> None:
        """Close the connection by connection.close, and drop its socket if the broker does not answer in time."""
        socket = self._socket
        if socket is None:
            return
        if socket.protocol.stage is Stage.OPEN:
            self._close(socket)
            await asyncio.wait((socket.closed,), timeout=self._open_timeout)
        socket.abort()

    def _close(self, socket: Socket) -> None:
        """Send connection.close; nothing more is published on this socket; confirms may still come."""
        socket.protocol.close()
        socket.protocol.fault = _CLOSED
        socket.flush()
        self.changed()
