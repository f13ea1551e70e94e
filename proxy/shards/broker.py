"""Connections to the broker for the topology commands: the management API, and the lock over AMQP."""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import aio_pika
from aio_pika.abc import AbstractConnection, AbstractQueue

from proxy.settings.config import Settings
from proxy.settings.files import Files
from proxy.shards.plan import LOCK_QUEUE
from proxy.shards.reading import read_state
from proxy.shards.state import State
from proxy.topology.cluster import ClusterIdentity
from proxy.topology.management import Management, ManagementError

# They log a lost connection with tracebacks; here it is one line.
for name in ("aiormq", "aio_pika"):
    logging.getLogger(name).setLevel(logging.CRITICAL)

_OWNER_KNOWN_WITHIN = 15.0
"""Seconds to wait until the management API tells which connection holds a queue: it makes its statistics every 5 s."""

_TAKEN_WITHIN = 15.0
"""Seconds in which the lock must be taken while no holder can be seen, as when one has just given it back."""

_COUNTED_WITHIN = 15.0
"""Seconds that the broker has to count the messages of a queue over AMQP."""

_PAUSE = 0.5
"""Seconds between two attempts at the lock, and between two questions for its holder."""


class LockedError(Exception):
    """Somebody else holds the lock; the message says who."""


class LockLostError(Exception):
    """The connection that held the lock is gone, so somebody else may hold the lock now."""


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
    api = Management(settings.management_url, settings.management_timeout, files.management_login, files.management_tls)
    async with api:
        # From here on a node of another cluster is not asked, should management_url name one.
        identity = ClusterIdentity(api, lambda: None)
        await identity.ask()
        yield Broker(settings, files, api, identity)


class Lock:
    """Exclusive queues, one in each virtual host, that this process holds for as long as their connections live."""

    def __init__(self, connections: Mapping[str, AbstractConnection]) -> None:
        """Take the open connections that hold the queues, by virtual host."""
        self._connections = connections

    def check(self) -> None:
        """Raise LockLostError unless every connection is still open."""
        # is_closed tells only whether this process has closed the connection, not whether the broker has.
        if not all(connection.connected.is_set() for connection in self._connections.values()):
            raise LockLostError("the connection that holds the lock was lost, so another process may hold it now")

    async def count_ready(self, vhost: str, queue: str) -> int:
        """Return how many messages of a queue are ready now, by a passive declaration, which needs no permission.

        Raises LockLostError, or ManagementError if the broker gives no count.
        """
        self.check()
        try:
            async with asyncio.timeout(_COUNTED_WITHIN):
                channel = await self._connections[vhost].channel(publisher_confirms=False)
                declared = (await channel.declare_queue(queue, passive=True)).declaration_result
                await channel.close()
        except (TimeoutError, OSError, RuntimeError, aio_pika.exceptions.AMQPError) as error:
            raise ManagementError(f"queue {queue!r} cannot be counted over AMQP: {error or 'no answer'}") from None
        if declared.message_count is None:
            raise ManagementError(f"queue {queue!r} cannot be counted over AMQP: the answer has no count")
        return declared.message_count


@asynccontextmanager
async def locked(broker: Broker, vhosts: Iterable[str], purpose: str) -> AsyncIterator[Lock]:
    """Hold the lock of these virtual hosts; `purpose` is what others are told who ask for it.

    Raises LockedError if somebody else holds it, and OSError if no connection can be made.
    """
    # In one order for all, so that no two processes wait for each other.
    async with AsyncExitStack() as stack:
        connections = {}
        for vhost in sorted(set(vhosts)):
            connection = await _connect(broker, vhost, purpose)
            stack.push_async_callback(_close, connection)
            queue = await _take(broker, connection, vhost)
            # RabbitMQ deletes it some time after the connection has closed, and whoever comes next need not wait.
            stack.push_async_callback(_give_back, queue)
            connections[vhost] = connection
        yield Lock(connections)


async def _take(broker: Broker, connection: AbstractConnection, vhost: str) -> AbstractQueue:
    """Declare the exclusive queue of one virtual host. Raises LockedError or OSError."""
    loop = asyncio.get_running_loop()
    until = loop.time() + _TAKEN_WITHIN
    while True:
        try:
            channel = await connection.channel(publisher_confirms=False)
            return await channel.declare_queue(LOCK_QUEUE, exclusive=True)
        except aio_pika.exceptions.AMQPError as error:
            if "RESOURCE_LOCKED" not in str(error):
                raise OSError(f"virtual host {vhost!r}: no lock: {error}") from None
        if (holder := await _holder(broker, vhost)) is not None:
            raise LockedError(f"virtual host {vhost!r}: the lock is held by {holder}")
        if loop.time() > until:
            unseen = "a connection that the management API does not show"
            raise LockedError(f"virtual host {vhost!r}: the lock is held by {unseen}")
        await asyncio.sleep(_PAUSE)


async def _give_back(queue: AbstractQueue) -> None:
    with contextlib.suppress(Exception):
        async with asyncio.timeout(1.0):
            await queue.delete(if_unused=False, if_empty=False)


async def _connect(broker: Broker, vhost: str, purpose: str) -> AbstractConnection:
    """Return a connection to the first node that takes one. Raises OSError."""
    settings, files, faults = broker.settings, broker.files, []
    user, password = files.broker_login()
    name = f"ring-proxy topology {purpose}: {socket.gethostname()}, process {os.getpid()}"
    for address in settings.brokers:
        context = files.broker_tls() if files.broker_tls is not None else None
        try:
            async with asyncio.timeout(settings.management_timeout):
                connection = await aio_pika.connect(
                    host=address.host,
                    port=address.port,
                    login=user,
                    password=password,
                    virtualhost=vhost,
                    ssl=context is not None,
                    ssl_context=context,
                    client_properties={"connection_name": name},
                )
        except TimeoutError:
            faults.append(f"{address}: no answer within {settings.management_timeout:g} s")
        except (OSError, aio_pika.exceptions.AMQPError) as error:
            faults.append(f"{address}: {error}")
        else:
            if why := broker.identity.mismatch(_cluster_of(connection)):
                await _close(connection)
                raise OSError(f"broker_url: {why}")
            return connection
    raise OSError(f"broker_url: no connection to virtual host {vhost!r}: {'; '.join(faults)}")


def _cluster_of(connection: AbstractConnection) -> str | None:
    """Return the name of the cluster that a connection's broker reports; None if it reports none."""
    transport = connection.transport
    properties = getattr(transport.connection, "server_properties", {}) if transport is not None else {}
    cluster = properties.get("cluster_name") if isinstance(properties, dict) else None
    return cluster.decode() if isinstance(cluster, bytes) else cluster


async def _close(connection: AbstractConnection) -> None:
    with contextlib.suppress(Exception):
        async with asyncio.timeout(1.0):
            await connection.close()


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
