"""Sends and receives the beats of groups through the broker, and asks it for queues.

A group has two durable exchanges: a fanout for beats, to which each sidecar binds its exclusive queue, and a direct
one, to which it binds the same queue by its name. A question whether a sidecar's queue is there is a mandatory message
to that name, which comes back if it is not. A passive declaration would cost the broker more: of the queue of another
connection it is an error, which closes the channel and stands in the broker's log. Where `groups_operators` names
users, a second fanout has their orders.

There is one connection for the beats of each virtual host with members, and for these questions. Another one counts
consumers, opened when the first are to be counted, and reads orders to pause (`pause_log.py`). An alarm of the broker
stops connections that publish, and the second one never does.
"""

import asyncio
import contextlib
import logging
import random
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractExchange, AbstractIncomingMessage
from aiormq.exceptions import ChannelAccessRefused, PublishError

from proxy.groups.beats import MAX_BYTES
from proxy.groups.operators import Sent
from proxy.groups.timing import ANSWERED_WITHIN
from proxy.topology.bindings import ASKED_SUFFIX, ORDERS_SUFFIX

log = logging.getLogger(__name__)

Connect = Callable[[], Awaitable[AbstractConnection]]
"""A coroutine function that returns a new connection. Raises OSError or an AMQP error."""

TRY: Final = 5.0
"""Seconds that the broker has to open a channel with its queue, and to take one beat."""

FIRST_REJOIN_PAUSE: Final = 0.5
LONGEST_REJOIN_PAUSE: Final = 8.0
"""Seconds from the loss of the channel of beats to the next try to open one: the pause doubles up to the longest."""

NO_ECHO: Final = 20.0
"""Seconds after a beat of this sidecar after which its channel is replaced if none has come back over it."""

ASK_AGAIN: Final = 30.0
"""Seconds after which it is asked again whether this sidecar may answer orders."""

MOST_ANSWERS: Final = 20
"""The most answers to orders that are on their way at once: each has a channel on the connection of the beats."""

TELL_EVERY: Final = 60.0
"""Seconds until the log tells again of answers that were not sent."""

_FAREWELL: Final = 0.5
"""Seconds that the broker has to take the last beat, and to close a channel or a connection."""

_ARGUMENTS: Final[dict[str, Any]] = {
    "x-max-length": 5_000,
    "x-max-length-bytes": 32 * MAX_BYTES,
    "x-message-ttl": 10_000,
}
"""Arguments of a sidecar's queue, so that a sidecar which hangs fills no memory of the broker."""


class MissingError(Exception):
    """The broker has no queue of this name."""


class Room:
    """The exchange of one group, and this sidecar's queue on it, kept up until it is closed."""

    def __init__(
        self,
        line: "Line",
        group: str,
        exchange: str,
        heard: Callable[[bytes], bool],
        changed: Callable[[str], None],
        ordered: Callable[[Sent], None] | None = None,
    ) -> None:
        """`group` is the group's name, and `exchange` that of the exchange by which it is balanced.

        `heard` gets each message, and returns whether it is a beat of this sidecar, so that the channel works.
        `changed` gets the name of the exclusive queue by which beats come, whenever it is another one; empty for none.
        `ordered` gets each message to the exchange of operators' orders, which is there only if it is not None.
        """
        self.line, self._group, self._name = line, group, exchange
        self._heard, self._ordered, self._changed = heard, ordered, changed
        self.orders = f"{exchange}{ORDERS_SUFFIX}" if ordered is not None else ""
        """The name of the exchange of operators' orders; empty where there is none."""
        self.fault = "not connected yet"
        """Why no beats are sent or received; empty while they are."""
        self.is_refused = False
        """Whether the broker has last refused the rights that beats need, so that none come soon."""
        self._next: bytes | None = None
        self._wake = asyncio.Event()
        self._sent_at = 0.0
        """When the first beat was sent since the last one came back, in monotonic seconds; 0 where all came back."""
        self._has_warned = False
        """Whether the log has told that orders are not taken."""
        self._is_closing = False
        self._task = asyncio.create_task(self._run())

    @property
    def asked(self) -> str:
        """The name of the exchange by which sidecars ask for each other's queues."""
        return f"{self._name}{ASKED_SUFFIX}"

    def send(self, body: bytes) -> None:
        """Send a beat as soon as the broker takes it; a beat that waits is replaced, since only the last counts."""
        self._next = body
        self._wake.set()

    async def aclose(self, last: bytes) -> None:
        """Send one last beat and close the channel; takes twice `_FAREWELL` at most."""
        self._is_closing = True
        self.send(last)
        await asyncio.wait({self._task}, timeout=2 * _FAREWELL)
        self._task.cancel()

    async def _run(self) -> None:
        """Send beats over a channel of this group until `aclose`; after a fault, open another one after a pause.

        Never raises: the fault is told to the log and the report.
        """
        pause = FIRST_REJOIN_PAUSE
        while not self._is_closing:
            channel: AbstractChannel | None = None
            try:
                async with asyncio.timeout(TRY):
                    channel = await self.line.beats.channel()
                    exchange, queue = await self._enter(channel)
                pause = FIRST_REJOIN_PAUSE
                self._sent_at, self.is_refused = 0.0, False
                self._tell("", queue)
                await self._send_all(channel, exchange, queue)
            except TimeoutError:
                # Which of the group's channels hangs cannot be told from here, so the connection is given up.
                self._tell("the broker does not answer in time")
                await self.line.beats.drop()
            except Exception as error:  # aio-pika raises many kinds, and none may end the beats
                # A refusal at first is of rights that beats need. After a later one, others may still be heard.
                self.is_refused = isinstance(error, ChannelAccessRefused) and bool(self.fault)
                self._tell(" ".join(str(error).split()) or type(error).__name__)
            finally:
                await closed(channel)
            if not self._is_closing:
                await asyncio.sleep(random.uniform(pause / 2, pause))
                pause = min(2 * pause, LONGEST_REJOIN_PAUSE)

    async def _enter(self, channel: AbstractChannel) -> tuple[AbstractExchange, str]:
        """Have beats come; return the exchange that they go to, and the name of the queue by which they come."""
        # It stays when the group ends: RabbitMQ 4.3 may break an auto-delete one for good, and no node starts then.
        exchange = await channel.declare_exchange(self._name, aio_pika.ExchangeType.FANOUT, durable=True)
        name = f"{self._name}.{secrets.token_hex(8)}"
        queue = await channel.declare_queue(name, exclusive=True, auto_delete=True, arguments=_ARGUMENTS)
        await queue.bind(exchange)
        await queue.consume(self._received, no_ack=True)
        return exchange, name

    async def _be_asked_for(self, channel: AbstractChannel, queue: str) -> None:
        """Have the broker answer others whether this sidecar's queue is there."""
        asked = await channel.declare_exchange(self.asked, aio_pika.ExchangeType.DIRECT, durable=True)
        own = await channel.get_queue(queue, ensure=False)
        await own.bind(asked, queue)

    async def _take_orders(self, channel: AbstractChannel, queue: str) -> bool:
        """Have orders of operators come; return whether they do. An order that nobody could answer must not be done."""
        exchange = await channel.declare_exchange(self.orders, aio_pika.ExchangeType.FANOUT, durable=True)
        if may_answer := await self.line.may_answer():
            await (await channel.get_queue(queue, ensure=False)).bind(exchange)
        elif may_answer is False and not self._has_warned:
            self._has_warned = True
            log.warning(
                "group %r, virtual host %r: takes no orders of operators: this sidecar's own user needs write on"
                " amq.default, to answer",
                *(self._group, self.line.vhost),
            )
        return bool(may_answer)

    async def _received(self, message: AbstractIncomingMessage) -> None:
        """Take a message of this sidecar's queue: a beat of the group, or an operator's order; ignore any other."""
        # A message that was published elsewhere, and has come here over a binding or by the queue's name, is no beat:
        # its publisher needed no right on this exchange. A dead-lettered message names the dead-letter exchange as its
        # exchange, and is known by a header that RabbitMQ adds.
        if "x-death" in message.headers:
            return
        if message.exchange == self._name and self._heard(message.body):
            self._sent_at = 0.0
        elif self._ordered is not None and message.exchange == self.orders:
            self._ordered(Sent(message.user_id or "", message.body, message.reply_to or ""))

    async def _send_all(self, channel: AbstractChannel, exchange: AbstractExchange, queue: str) -> None:
        """Send beats until the room is closed.

        Raises OSError if they do not arrive, and TimeoutError if one is not taken.
        """
        is_bound, ask_at = False, 0.0
        takes_orders = self._ordered is None
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._wake.wait()
            self._wake.clear()
            if channel.is_closed or not self.line.beats.is_up:
                raise OSError("the connection or the channel was lost")
            body, self._next = self._next, None
            if body is not None:
                self._sent_at = self._sent_at or time.monotonic()
                async with asyncio.timeout(_FAREWELL if self._is_closing else TRY):
                    await exchange.publish(aio_pika.Message(body, content_type="application/json"), "")
            if self._is_closing:
                return
            if not is_bound:
                # The first beat goes first: members wait for it, and nobody asks for this sidecar before it is late.
                async with asyncio.timeout(TRY):
                    await self._be_asked_for(channel, queue)
                is_bound = True
            if not takes_orders and time.monotonic() >= ask_at:
                async with asyncio.timeout(TRY):
                    takes_orders = await self._take_orders(channel, queue)
                ask_at = time.monotonic() + ASK_AGAIN
            if self._sent_at and time.monotonic() - self._sent_at > NO_ECHO:
                raise OSError("its own beats do not come back; the broker may have an alarm")

    def _tell(self, fault: str, queue: str = "") -> None:
        """Note why no beats are sent, or with an empty `fault` that they are, and log it if it is new.

        `queue` is the name of the queue by which this sidecar gets beats; empty while there is none.
        """
        before, self.fault = self.fault, fault
        if fault and fault != before:
            log.warning("group %r, virtual host %r: members are not balanced: %s", self._group, self.line.vhost, fault)
        elif not fault:
            log.info("group %r, virtual host %r: beats are sent and received", self._group, self.line.vhost)
        self._changed(queue)


class Line:
    """The connections for the groups of one virtual host, each opened when it is needed."""

    def __init__(self, vhost: str, connect: Connect) -> None:
        """Take how to connect to the virtual host."""
        self.vhost = vhost
        self.beats, self.counts = Connection(connect), Connection(connect)
        self._questions: AbstractChannel | None = None
        """The channel for questions, on the connection for beats; None where there is none yet."""
        self._opening = asyncio.Lock()
        self._answers, self._unsent, self._tell_from = 0, 0, 0.0
        """How many answers are on their way, how many were not sent, and from when on the log may tell of those."""
        self.rooms = 0
        """How many groups of the virtual host there are."""

    async def is_there(self, asked: str, queue: str) -> bool | None:
        """Return whether a sidecar's queue of this name exists; None if the broker does not tell within a second.

        `asked` is the exchange by which the sidecars of its group ask for each other's queues.
        """
        try:
            async with asyncio.timeout(ANSWERED_WITHIN):
                async with self._opening:
                    if self._questions is None or self._questions.is_closed:
                        self._questions = await self.beats.channel(is_confirmed=True)
                    channel = self._questions
                exchange = await channel.get_exchange(asked, ensure=False)
                await exchange.publish(aio_pika.Message(b""), queue, mandatory=True)
        except PublishError:
            return False
        except Exception:  # aio-pika raises many kinds, and none says more than that it is not known
            return None
        return True

    async def may_answer(self) -> bool | None:
        """Return whether this sidecar's user may publish to the queues of askers; None where that is not known.

        A message to a queue that is not there comes back, unless the user lacks the right.
        """
        channel: AbstractChannel | None = None
        try:
            async with asyncio.timeout(ANSWERED_WITHIN):
                channel = await self.beats.channel(is_confirmed=True)
                await channel.default_exchange.publish(aio_pika.Message(b""), secrets.token_hex(16), mandatory=True)
        except PublishError:
            return True
        except ChannelAccessRefused:
            return False
        except Exception:  # aio-pika raises many kinds, and none says more than that it is not known
            return None
        finally:
            await closed(channel)
        return True

    async def answer(self, queue: str, body: bytes) -> None:
        """Publish an answer to a queue; that it may be lost, or is refused, is told to nobody.

        It is not sent while MOST_ANSWERS are on their way: whoever may give orders must not have this sidecar open any
        number of channels.
        """
        if self._answers >= MOST_ANSWERS:
            self._unsent += 1
            if time.monotonic() >= self._tell_from:
                self._tell_from = time.monotonic() + TELL_EVERY
                log.warning(
                    "virtual host %r: answers to operators are not sent, %d so far, as %d others are on their way",
                    *(self.vhost, self._unsent, MOST_ANSWERS),
                )
            return
        self._answers += 1
        try:
            await self._answer(queue, body)
        finally:
            self._answers -= 1

    async def _answer(self, queue: str, body: bytes) -> None:
        channel: AbstractChannel | None = None
        try:
            async with asyncio.timeout(ANSWERED_WITHIN):
                # A right that is missing closes the channel, which is no other's.
                channel = await self.beats.channel()
                await channel.default_exchange.publish(aio_pika.Message(body), queue)
        except Exception as error:  # aio-pika raises many kinds, and the asker finds out by itself
            log.debug("virtual host %r: no answer to an order: %s", self.vhost, error)
        finally:
            await closed(channel)

    async def consumers(self, queue: str) -> int | None:
        """Return how many consumers a queue has, by a passive declaration; None where the broker does not tell.

        RabbitMQ counts no more than one for a quorum queue with single active consumer, and none if the queue's leader
        does not tell within 250 ms (by its source). A link that is opened for that waits, and ends as a spare one.
        Raises MissingError if there is no such queue.
        """
        try:
            return await self._declared(queue)
        except aio_pika.exceptions.ChannelNotFoundEntity:
            raise MissingError(queue) from None
        except Exception:  # aio-pika raises many kinds
            return None

    async def _declared(self, queue: str) -> int:
        """Declare a queue passively, on a channel of its own; return the number of its consumers.

        The connection is given up where the broker does not answer in time. Raises an error of the broker's.
        """
        channel: AbstractChannel | None = None
        try:
            async with asyncio.timeout(ANSWERED_WITHIN):
                channel = await self.counts.channel()
                found = await channel.declare_queue(queue, passive=True)
                return found.declaration_result.consumer_count or 0
        except TimeoutError:
            await self.counts.drop()
            raise
        finally:
            await closed(channel)

    async def aclose(self) -> None:
        """Close both connections."""
        await asyncio.gather(self.beats.drop(), self.counts.drop())


class Connection:
    """One connection of a line, opened again when it is needed and lost."""

    def __init__(self, connect: Connect) -> None:
        """Take how to connect."""
        self._connect = connect
        self._connection: AbstractConnection | None = None
        self._lock = asyncio.Lock()

    @property
    def is_up(self) -> bool:
        """Whether the connection is open, as far as this process knows."""
        return self._connection is not None and self._connection.connected.is_set()

    async def channel(self, *, is_confirmed: bool = False) -> AbstractChannel:
        """Return a new channel, on a new connection if there is none. Raises OSError or an AMQP error.

        With `is_confirmed` a publish waits for the broker's confirm, and a message that comes back is an error.
        """
        async with self._lock:
            if not self.is_up:
                await self.drop()
                self._connection = await self._connect()
            assert self._connection is not None
            connection = self._connection
        # Beats go without confirms: the next one is worth more than to know that the last one came.
        return await connection.channel(publisher_confirms=is_confirmed, on_return_raises=is_confirmed)

    async def drop(self) -> None:
        """Close the connection, which ends all of its channels."""
        connection, self._connection = self._connection, None
        await closed(connection)


async def closed(it: AbstractChannel | AbstractConnection | None) -> None:
    if it is not None:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_FAREWELL):
                await it.close()


class Membership:
    """The rooms of all groups of this sidecar."""

    def __init__(self, connect: Callable[[str], Connect]) -> None:
        """`connect` returns how to connect to a virtual host."""
        self._connect = connect
        self._lines: dict[str, Line] = {}

    def enter(
        self,
        vhost: str,
        group: str,
        exchange: str,
        heard: Callable[[bytes], bool],
        changed: Callable[[str], None],
        ordered: Callable[[Sent], None] | None = None,
    ) -> Room:
        """Return the room of a group, which is opened in its own time and closed by `leave`.

        The group is balanced by the exchange of this name.
        """
        line = self._lines.setdefault(vhost, Line(vhost, self._connect(vhost)))
        line.rooms += 1
        return Room(line, group, exchange, heard, changed, ordered)

    async def leave(self, room: Room, last: bytes) -> None:
        """Send one last beat to a group, and close its room, and with the last room the connection."""
        line = room.line
        line.rooms -= 1
        is_last = not line.rooms
        if is_last:
            del self._lines[line.vhost]
        await room.aclose(last)
        if is_last:
            await line.aclose()
