"""Connections to the broker for the topology commands: the management API, and the lock over AMQP."""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractQueue

from proxy.process.amqp_client import connect
from proxy.settings.config import Settings
from proxy.settings.connection_faults import in_words
from proxy.settings.files import Files
from proxy.settings.parse import Address
from proxy.shards.plan import LOCK_QUEUE
from proxy.shards.reading import read_state
from proxy.shards.state import State
from proxy.topology.cluster import ClusterIdentity
from proxy.topology.management import Management, ManagementError

_OWNER_KNOWN_WITHIN = 15.0
"""Seconds to wait until the management API tells which connection holds a queue: it makes its statistics every 5 s."""

_TAKEN_WITHIN = 15.0
"""Seconds in which the lock must be taken while no holder can be seen, as when one has just given it back."""

ANSWERED_WITHIN = 15.0
"""Seconds that the broker has to answer a request over AMQP."""

_CLOSED_WITHIN = 1.0
"""Seconds that the broker has to take the lock back, and to close its connection."""

_HEARTBEAT = 10
"""Seconds between the heartbeats of the connection that holds the lock; the broker drops it after some three."""

_TRIED_AGAIN = 10.0
"""Seconds for which a node that took no connection is not tried again, since a try at one that is away takes long."""

T = TypeVar("T")

_PAUSE = 0.5
"""Seconds between two attempts at the lock, and between two questions for its holder."""


class LockedError(Exception):
    """Somebody else holds the lock; the message says who."""


class LockLostError(Exception):
    """The broker does not say that this process holds the lock, so somebody else may hold it now."""


@dataclass(frozen=True)
class Broker:
    """The cluster that a topology command works on."""

    settings: Settings
    files: Files
    api: Management
    identity: ClusterIdentity

    async def states(self, vhosts: Iterable[str]) -> dict[str, State]:
        """Return what exists in each of these virtual hosts. Raises ManagementError or TopologyError."""
        return {vhost: await read_state(self.api, vhost) for vhost in dict.fromkeys(vhosts)}


@asynccontextmanager
async def reached(settings: Settings) -> AsyncIterator[Broker]:
    """Give the cluster that the settings name, once its management API has answered.

    Raises ManagementError, TopologyError or ConfigError.
    """
    files = Files(settings)
    api = Management(
        settings.management_url, settings.management_timeout, files.management_authorization, files.management_tls
    )
    async with files.logging_in(), api:
        # From here on a node of another cluster is not asked, should management_url name one.
        identity = ClusterIdentity(api)
        await identity.ask()
        yield Broker(settings, files, api, identity)


class Held(NamedTuple):
    """The exclusive queue of one virtual host, by which its lock is held."""

    connection: AbstractConnection
    channel: AbstractChannel
    queue: AbstractQueue


class Lock:
    """Exclusive queues, one in each virtual host, that this process holds for as long as their connections live."""

    def __init__(self, held: Mapping[str, Held]) -> None:
        """Take the queues, by virtual host."""
        self._held = held

    async def check(self) -> None:
        """Raise LockLostError unless the broker says that each queue is there, and this process's own.

        A connection may be lost and not know it, and a policy with `expires` deletes a queue that nobody uses. A
        passive declaration counts as a use.
        """
        for vhost, held in self._held.items():
            try:
                await answered(held.channel.declare_queue(LOCK_QUEUE, passive=True), ANSWERED_WITHIN)
            except (OSError, aio_pika.exceptions.AMQPError) as error:
                why = str(error)
                if isinstance(error, aio_pika.exceptions.ChannelNotFoundEntity):
                    why = f"queue {LOCK_QUEUE!r} is gone; no policy with expires may apply to it"
                raise LockLostError(
                    f"virtual host {vhost!r}: the lock was lost, so another process may hold it now: {why}"
                ) from None

    async def count_ready(self, vhost: str, queue: str) -> int:
        """Return how many messages of a queue are ready now, by a passive declaration.

        Raises LockLostError, or ManagementError if the broker gives no count.
        """
        await self.check()
        try:
            asked = _declare(self._held[vhost].connection, queue, passive=True)
            count = (await answered(asked, ANSWERED_WITHIN)).queue.declaration_result.message_count
        except (OSError, aio_pika.exceptions.AMQPError) as error:
            raise ManagementError(f"queue {queue!r} cannot be counted over AMQP: {error}") from None
        if count is None:
            raise ManagementError(f"queue {queue!r} cannot be counted over AMQP: the answer has no count")
        return count


@asynccontextmanager
async def locked(broker: Broker, vhosts: Iterable[str], purpose: str) -> AsyncIterator[Lock]:
    """Hold the lock of these virtual hosts; `purpose` is what others are told who ask for it.

    Raises LockedError if somebody else holds it, and OSError if no connection can be made.
    """
    # In one order for all, so that no two processes wait for each other.
    async with AsyncExitStack() as stack:
        all_held = {}
        for vhost in sorted(set(vhosts)):
            connection = await connected_to(broker, vhost, purpose, broker.settings.brokers)
            stack.push_async_callback(let_go, connection)
            all_held[vhost] = held = await _acquire_lock(broker, connection, vhost)
            # RabbitMQ deletes it some time after the connection has closed, and whoever comes next need not wait.
            stack.push_async_callback(_release_lock, held.queue)
        yield Lock(all_held)


async def answered(request: Awaitable[T], within: float = ANSWERED_WITHIN) -> T:
    """Return the broker's answer to a request over AMQP.

    Raises AMQPError if the broker refuses it, and OSError if there is no answer, or no connection any more.
    """
    task = asyncio.current_task()
    try:
        async with asyncio.timeout(within):
            return await request
    except TimeoutError:
        raise OSError(f"no answer over AMQP within {within:g} s") from None
    except RuntimeError:
        raise OSError("the channel or its connection has ended") from None
    except asyncio.CancelledError:
        # aiormq cancels whoever waits for a connection on which no heartbeat has come (observed).
        if task is None or task.cancelling():
            raise
        raise OSError("the connection was lost") from None


async def _declare(connection: AbstractConnection, name: str, *, passive: bool) -> Held:
    """Declare a queue on a channel of its own: passively, or as the exclusive queue of a lock."""
    channel = await connection.channel(publisher_confirms=False)
    return Held(connection, channel, await channel.declare_queue(name, passive=passive, exclusive=not passive))


async def _acquire_lock(broker: Broker, connection: AbstractConnection, vhost: str) -> Held:
    """Declare the exclusive queue of one virtual host. Raises LockedError or OSError."""
    loop = asyncio.get_running_loop()
    until = loop.time() + _TAKEN_WITHIN
    while True:
        try:
            return await answered(_declare(connection, LOCK_QUEUE, passive=False), ANSWERED_WITHIN)
        except (OSError, aio_pika.exceptions.AMQPError) as error:
            if "RESOURCE_LOCKED" not in str(error):
                raise OSError(f"virtual host {vhost!r}: no lock: {error}") from None
        if (holder := await _holder(broker, vhost)) is not None:
            raise LockedError(f"virtual host {vhost!r}: the lock is held by {holder}")
        if loop.time() > until:
            unseen = "a connection that the management API does not show"
            raise LockedError(f"virtual host {vhost!r}: the lock is held by {unseen}")
        await asyncio.sleep(_PAUSE)


async def _release_lock(queue: AbstractQueue) -> None:
    with contextlib.suppress(Exception):
        await answered(queue.delete(if_unused=False, if_empty=False), _CLOSED_WITHIN)


async def connected_to(broker: Broker, vhost: str, purpose: str, addresses: Iterable[Address]) -> AbstractConnection:
    """Return a connection to the first node that takes one. Raises OSError."""
    settings, files, faults = broker.settings, broker.files, []
    login = files.broker_login()
    name = f"ring-proxy topology {purpose}: {socket.gethostname()}, process {os.getpid()}"
    for address in addresses:
        context = files.broker_tls() if files.broker_tls is not None else None
        opening = connect(address, login, vhost, context, name, heartbeat=_HEARTBEAT)
        try:
            connection = await answered(opening, settings.management_timeout)
        except (OSError, aio_pika.exceptions.AMQPError) as error:
            faults.append(f"{address}: {in_words(error)}")
        else:
            if why := broker.identity.mismatch(_cluster_of(connection)):
                await let_go(connection)
                raise OSError(f"broker_url: {why}")
            await files.follow(connection, login)
            return connection
    raise OSError(f"broker_url: no connection to virtual host {vhost!r}: {'; '.join(faults)}")


class NodeConnection:
    """A connection to one node that coroutines share: whoever asks for it once it is lost has it opened anew.

    RabbitMQ ends a connection with 541, for one, if a queue is deleted in the moment in which it is consumed.
    """

    def __init__(self, broker: Broker, vhost: str, purpose: str, address: Address) -> None:
        self._broker, self._vhost, self._purpose, self._address = broker, vhost, purpose, address
        self._opening = asyncio.Lock()
        self._connection: AbstractConnection | None = None
        self._fault, self._tried_at = "", 0.0
        """Why the last try failed, empty if it did not, and when that was, in seconds of the loop's clock."""

    async def open(self) -> AbstractConnection:
        """Return the connection. Raises OSError if the node takes none, or took none a moment ago."""
        loop = asyncio.get_running_loop()
        async with self._opening:
            if self._connection is None or not self._connection.connected.is_set():
                if self._fault and loop.time() < self._tried_at + _TRIED_AGAIN:
                    raise OSError(self._fault)
                await self.close()
                try:
                    self._connection = await connected_to(self._broker, self._vhost, self._purpose, [self._address])
                except OSError as error:
                    self._fault, self._tried_at = str(error), loop.time()
                    raise
                self._fault = ""
            return self._connection

    async def close(self) -> None:
        if self._connection is not None:
            await let_go(self._connection)


def _cluster_of(connection: AbstractConnection) -> str | None:
    """Return the name of the cluster that a connection's broker reports; None if it reports none."""
    transport = connection.transport
    properties = getattr(transport.connection, "server_properties", {}) if transport is not None else {}
    cluster = properties.get("cluster_name") if isinstance(properties, dict) else None
    return cluster.decode() if isinstance(cluster, bytes) else cluster


async def let_go(connection: AbstractConnection) -> None:
    with contextlib.suppress(Exception):
        await answered(connection.close(), _CLOSED_WITHIN)


async def _holder(broker: Broker, vhost: str) -> str | None:
    """Return who holds the lock of a virtual host, as far as the management API knows; None if nobody does."""
    loop = asyncio.get_running_loop()
    until = loop.time() + _OWNER_KNOWN_WITHIN
    while loop.time() < until:
        answer = await broker.api.page(["queues", vhost, LOCK_QUEUE], ["owner_pid_details"])
        if not isinstance(answer, dict):
            return None
        details = answer.get("owner_pid_details")
        if isinstance(details, dict) and isinstance(details.get("name"), str):
            return await _in_words(broker, details["name"])
        await asyncio.sleep(_PAUSE)
    return "another process, of which the management API does not tell more"


async def _in_words(broker: Broker, name: str) -> str:
    """Return a connection by its name, with the name that its client gave it and its user, if these may be seen."""
    answer: object = None
    with contextlib.suppress(ManagementError):
        answer = await broker.api.page(["connections", name], ["user_provided_name", "user"])
    if not isinstance(answer, dict):
        return f"connection {name!r}"
    given, user = answer.get("user_provided_name") or "without a name", answer.get("user")
    return f"connection {name!r} ({given}) of user {user!r}"
