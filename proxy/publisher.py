"""Publishes with confirms, through aio-pika: one connection a virtual host, one channel an exchange.

A channel an exchange, since a publish that the broker refuses (403, 404) closes its channel: only publishes to the same
exchange suffer. All publishes to queues share the default exchange's.
"""

import asyncio
import contextlib
import logging
import random
import re
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote
from weakref import WeakValueDictionary

import aio_pika
import aiormq
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractExchange, AbstractIncomingMessage
from pamqp.header import ContentHeader
from yarl import URL

from proxy import __version__
from proxy.config import hidden
from proxy.outcome import Outcome
from ring.hashing import RING_FORMAT

log = logging.getLogger(__name__)

MAX_CHANNELS = 256
"""Channels of one connection; where all are in use, a publish to one more exchange is unavailable."""

LONGEST_PAUSE = 10.0
"""Seconds between tries to connect, at most."""

FORGET_AFTER = 30.0
"""Seconds after which a virtual host that can't be reached, and to which nobody publishes any more, is left alone."""

HEARTBEAT = 20

STAMPS = frozenset({"x-ring-exchange", "x-ring-routing-key", "x-ring-id"})
"""The headers of our own; a client's are replaced."""

_FRAME_OVERHEAD = 8
_CANCEL_AGAIN = 1.0


class HeaderTooLargeError(ValueError):
    """The message's properties and headers do not fit into one frame of the broker's; nothing was sent."""


class Unavailable(Exception):  # noqa: N818 - the caller turns it into an outcome
    """Nothing was sent; the message says why."""


@dataclass(frozen=True)
class Publish:
    """One message and where it goes: `exchange` is empty for a queue, whose name is then the routing key."""

    exchange: str
    routing_key: str
    body: bytes
    headers: Mapping[str, object]
    content_type: str | None = None
    content_encoding: str | None = None
    message_id: str | None = None
    correlation_id: str | None = None
    timestamp: int | None = None


@dataclass(frozen=True)
class Verdict:
    """What the broker said of a publish: confirmed, nacked, unroutable or unknown, and its words where it had any."""

    outcome: Outcome
    detail: str = ""
    exchange_gone: bool = False
    """The broker said that the exchange which was published to does not exist."""


@dataclass
class _Channel:
    channel: AbstractChannel
    exchange: AbstractExchange
    frame_max: int
    refusals: dict[str, str]
    """Of the connection's virtual host: by exchange, why the broker refused the last publish."""
    in_flight: int = 0
    turns: "WeakValueDictionary[str, asyncio.Lock]" = field(default_factory=WeakValueDictionary)
    """Of the message ids in flight."""


@dataclass
class _Connection:
    """One virtual host's connection, present or being made."""

    connection: AbstractConnection | None = None
    cluster: str | None = None
    channels: dict[str, _Channel] = field(default_factory=dict)
    opening: dict[str, "asyncio.Task[_Channel]"] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    task: "asyncio.Task[None] | None" = None
    kept: bool = False
    wanted_at: float = 0.0
    """When a publish last asked for it."""
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    fault: str = "not connected yet"


class _TidyConnection(aio_pika.Connection):
    """Closes itself where it does not come up; aio-pika leaves that to the garbage collector, with a warning."""

    async def connect(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - the library's signature
        try:
            await super().connect(timeout)
        except BaseException:
            await self.close()
            raise


class Publisher:
    """Publishes to any virtual host of one broker; connects at the first publish to each and again after a loss."""

    def __init__(self, url: URL, *, connect_timeout: float, confirm_timeout: float) -> None:
        """`url` holds the credentials; its path is replaced by each virtual host. Times in seconds."""
        self._url = url
        self._connect_timeout, self._confirm_timeout = connect_timeout, confirm_timeout
        self._connections: dict[str, _Connection] = {}
        # Positive int64s: the nonce tells this process's publishes from those of others.
        self._nonce = (secrets.randbits(30) | 1 << 30) << 32
        self._number = 0
        self._returned: set[int] = set()
        self._waiting: set[asyncio.Task[object]] = set()
        """The tasks that wait for the broker's word."""
        self._abandoned = False
        self.connects = 0
        self.in_flight = 0

    def faults(self) -> Mapping[str, str]:
        """By virtual host: why its connection is down; empty where it is up."""
        return {vhost: "" if c.ready.is_set() else c.fault for vhost, c in self._connections.items()}

    def refusals(self, vhost: str) -> list[str]:
        """Why the broker refused the last publish to some exchanges of a virtual host."""
        connection = self._connections.get(vhost)
        return sorted(connection.refusals.values()) if connection else []

    def cluster(self, vhost: str) -> str | None:
        """The cluster that a virtual host's connection last reached, by its server properties; None before that."""
        connection = self._connections.get(vhost)
        return connection.cluster if connection else None

    def connect(self, vhost: str) -> None:
        """Starts connecting to a virtual host and stays connected for good; does not wait."""
        self._wanted(vhost).kept = True

    async def connected(self, vhost: str) -> None:
        """Returns once the connection to a virtual host is up. Raises Unavailable."""
        connection = self._wanted(vhost)
        try:
            async with asyncio.timeout(self._connect_timeout):
                await connection.ready.wait()
        except TimeoutError:
            raise Unavailable(f"no connection to the broker: {connection.fault}") from None

    def _wanted(self, vhost: str) -> _Connection:
        connection = self._connections.get(vhost)
        if connection is None:
            connection = self._connections[vhost] = _Connection()
            connection.task = asyncio.create_task(self._stay_connected(vhost, connection))
        connection.wanted_at = time.monotonic()
        return connection

    async def publish(self, vhost: str, publish: Publish) -> Verdict:
        """Publishes one message, mandatory and persistent, and waits for the broker's word on it.

        Raises Unavailable or HeaderTooLargeError where nothing was sent. Whatever goes wrong after that is `unknown`.
        """
        channel = await self._channel(vhost, publish.exchange)
        self._number += 1
        ring_id = self._nonce + self._number
        message = aio_pika.Message(
            publish.body,
            headers={**publish.headers, "x-ring-id": ring_id},  # type: ignore[dict-item]
            content_type=publish.content_type,
            content_encoding=publish.content_encoding,
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            message_id=publish.message_id,
            correlation_id=publish.correlation_id,
            timestamp=publish.timestamp,
        )
        _check_size(message, channel.frame_max)
        async with self._turn(channel, publish.message_id):
            return await self._sent(channel, message, ring_id, publish)

    @contextlib.asynccontextmanager
    async def _turn(self, channel: _Channel, message_id: str | None) -> AsyncIterator[None]:
        """One at a time of each message id. Raises Unavailable.

        aiormq ties a return to its publish by message id alone: of three in flight with one id, all returned, it loses
        a return, and the ack that follows would pass for a confirm.
        """
        if not message_id:
            yield
            return
        lock = channel.turns.setdefault(message_id, asyncio.Lock())
        try:
            async with asyncio.timeout(self._connect_timeout):
                await lock.acquire()
        except TimeoutError:
            raise Unavailable("another message with the same message id is still in flight") from None
        try:
            if channel.channel.is_closed:
                raise Unavailable("the channel was lost before this message's turn")
            yield
        finally:
            lock.release()

    async def _sent(self, channel: _Channel, message: aio_pika.Message, ring_id: int, publish: Publish) -> Verdict:
        channel.in_flight += 1
        self.in_flight += 1
        task = asyncio.current_task()
        if task is not None:
            self._waiting.add(task)
        try:
            answer = await channel.exchange.publish(
                message, publish.routing_key, mandatory=True, timeout=self._confirm_timeout
            )
            return self._verdict(channel, ring_id, answer, publish)
        except aiormq.exceptions.DeliveryError as error:
            return Verdict(Outcome.NACKED, f"the broker answered {type(error.frame).__name__}")
        except TimeoutError:
            return Verdict(Outcome.UNKNOWN, f"no confirm within {self._confirm_timeout:g} s")
        except asyncio.CancelledError:
            if task is None or not self._abandoned:
                raise
            task.uncancel()
            return Verdict(Outcome.UNKNOWN, "this sidecar ended before the confirm came")
        except aiormq.exceptions.ChannelNotFoundEntity as error:
            # Of all that were in flight on the channel: those before may have arrived.
            return Verdict(Outcome.UNKNOWN, f"the channel was lost before the confirm: {error}", exchange_gone=True)
        except aiormq.exceptions.ChannelAccessRefused as error:
            return Verdict(Outcome.UNKNOWN, self._refused(channel, publish.exchange, str(error)))
        except (aiormq.exceptions.AMQPError, aiormq.exceptions.ChannelInvalidStateError, OSError) as error:
            return Verdict(Outcome.UNKNOWN, f"the channel was lost before the confirm: {error}")
        finally:
            channel.in_flight -= 1
            self.in_flight -= 1
            if task is not None:
                self._waiting.discard(task)
            self._returned.discard(ring_id)

    def _refused(self, channel: _Channel, exchange: str, words: str) -> str:
        """Logs the first of equal refusals in a row, with what is missing."""
        wanted = f"exchange {exchange!r}" if exchange else "amq.default: publishes go straight to the queues"
        why = (
            words if "internal exchange" in words else f"the broker's user needs write permission on {wanted} ({words})"
        )
        if channel.refusals.get(exchange) != why:
            log.warning("%s", why)
        channel.refusals[exchange] = why
        return why

    def _verdict(self, channel: _Channel, ring_id: int, answer: object, publish: Publish) -> Verdict:
        # The ring id is ours alone, also where a late return comes for a message id that is in use again. A return
        # always comes before the ack of its message (measured: 5,413 of 5,413).
        if ring_id in self._returned:
            what = f"exchange {publish.exchange!r} has no queue" if publish.exchange else "there is no queue"
            return Verdict(Outcome.UNROUTABLE, f"{what} for routing key {publish.routing_key!r}")
        if isinstance(answer, aiormq.spec.Basic.Ack):
            channel.refusals.pop(publish.exchange, None)
            return Verdict(Outcome.CONFIRMED)
        return Verdict(Outcome.UNKNOWN, "a message with the same message id was returned meanwhile")

    def _on_return(self, _: object, message: AbstractIncomingMessage) -> None:
        ring_id = message.headers.get("x-ring-id")
        if isinstance(ring_id, int):
            self._returned.add(ring_id)

    async def _channel(self, vhost: str, exchange: str) -> _Channel:
        await self.connected(vhost)
        connection = self._wanted(vhost)
        try:
            async with asyncio.timeout(self._connect_timeout):
                channel = connection.channels.get(exchange)
                if channel is None or channel.channel.is_closed:
                    channel = await self._shared_opening(connection, exchange)
                return channel
        except TimeoutError:
            raise Unavailable(f"no channel on the broker: {connection.fault or 'no answer in time'}") from None
        except (aiormq.exceptions.AMQPError, aiormq.exceptions.ChannelInvalidStateError, OSError) as error:
            raise Unavailable(f"no channel on the broker: {error}") from None

    async def _shared_opening(self, connection: _Connection, exchange: str) -> _Channel:
        """Opens a channel; all who want the same one wait for one opening."""
        task = connection.opening.get(exchange)
        if task is None:
            task = connection.opening[exchange] = asyncio.create_task(self._open(connection, exchange))
            task.add_done_callback(lambda task: _done(task, connection.opening, exchange))
        return await asyncio.shield(task)

    async def _open(self, connection: _Connection, exchange: str) -> _Channel:
        if connection.connection is None:
            raise Unavailable(f"no connection to the broker: {connection.fault}")
        channels = connection.channels
        for name in [name for name, c in channels.items() if c.channel.is_closed]:
            del channels[name]
        if len(channels) >= MAX_CHANNELS:
            idle = next((name for name, c in channels.items() if not c.in_flight), None)
            if idle is None:
                raise Unavailable(f"all {MAX_CHANNELS} channels are in use")
            await channels.pop(idle).channel.close()
        channel = await connection.connection.channel(publisher_confirms=True, on_return_raises=False)
        channel.return_callbacks.add(self._on_return)
        target = await channel.get_exchange(exchange, ensure=False) if exchange else channel.default_exchange
        transport = connection.connection.transport
        frame_max = transport.connection.connection_tune.frame_max if transport else 0
        opened = channels[exchange] = _Channel(channel, target, frame_max, connection.refusals)
        return opened

    async def _stay_connected(self, vhost: str, state: _Connection) -> None:
        pause = 0.1
        while True:
            started = time.monotonic()
            try:
                await self._connected(vhost, state)
            except Exception as error:  # whatever it is, the next try may do better
                fault = _in_words(error)
            else:
                fault = "the connection was lost"
            state.ready.clear()
            state.channels.clear()
            state.connection = None
            if fault != state.fault:
                log.warning("broker %s, virtual host %r: %s", hidden(self._url.with_path("/")), vhost, fault)
            state.fault = fault
            if not state.kept and time.monotonic() - state.wanted_at > FORGET_AFTER:
                # Its virtual host may have been deleted, which must not keep this sidecar unready for ever.
                del self._connections[vhost]
                return
            pause = 0.1 if time.monotonic() - started > LONGEST_PAUSE else min(pause * 2, LONGEST_PAUSE)
            await asyncio.sleep(random.uniform(0, pause))

    async def _connected(self, vhost: str, state: _Connection) -> None:
        """Connects, and returns once the connection is lost."""
        if "%2F" in vhost:
            raise Unavailable("the AMQP library reads the '%2F' of this virtual host's name as '/'")
        connection = await aio_pika.connect(
            self._url.with_path("/" + quote(vhost, safe=""), encoded=True),
            timeout=self._connect_timeout,
            client_properties={
                "product": "ringproxy",
                "version": __version__,
                "ring_format": RING_FORMAT,
                "connection_name": f"ringproxy {vhost}",
            },
            heartbeat=HEARTBEAT,
            connection_class=_TidyConnection,
        )
        lost = asyncio.Event()
        connection.close_callbacks.add(lambda *_: lost.set())
        try:
            transport = connection.transport
            server = transport.connection.server_properties if transport else {}
            cluster = server.get("cluster_name") if isinstance(server, dict) else None
            state.cluster = cluster if isinstance(cluster, str) else None
            state.connection, state.fault = connection, ""
            self.connects += 1
            state.ready.set()
            log.info("connected to broker %s, virtual host %r", hidden(self._url.with_path("/")), vhost)
            await lost.wait()
        finally:
            state.ready.clear()
            with contextlib.suppress(Exception):
                await connection.close()

    def abandon(self) -> None:
        """Ends the wait of every publish in flight: each is `unknown`."""
        self._abandoned = True
        for task in self._waiting:
            task.cancel()

    async def aclose(self) -> None:
        """Closes every connection; what is still in flight becomes unknown."""
        tasks = {c.task for c in self._connections.values() if c.task}
        while tasks:
            for task in tasks:
                task.cancel()
            # Again and again: the AMQP library may answer a cancellation with an error of its own, or with silence.
            _, tasks = await asyncio.wait(tasks, timeout=_CANCEL_AGAIN)


def _done(task: "asyncio.Task[_Channel]", tasks: "dict[str, asyncio.Task[_Channel]]", key: str) -> None:
    tasks.pop(key, None)
    if not task.cancelled():
        task.exception()  # seen, also where everybody who waited has left


def _in_words(error: Exception) -> str:
    """Why a connection did not come up, without object addresses: equal faults read alike and are logged once."""
    text = str(error)
    if "Connection.OpenOk" in text and "Connection.Close" in text:
        # All that the library keeps of the broker's refusal is which answer it had hoped for.
        return "the broker refused the virtual host: it is missing, at a limit, or not for this user"
    if isinstance(error, TimeoutError):
        return "no AMQP answer in time"
    return re.sub(r"<?([\w.]+) object at 0x[0-9a-f]+>?", r"\1", text) or type(error).__name__


def _check_size(message: aio_pika.Message, frame_max: int) -> None:
    """Raises HeaderTooLargeError: the broker closes a connection, with all that is in flight, for a longer frame."""
    size = len(ContentHeader(properties=message.properties).marshal()) + _FRAME_OVERHEAD
    if 0 < frame_max < size:
        raise HeaderTooLargeError(f"properties and headers are {size} bytes, the broker takes {frame_max}")
