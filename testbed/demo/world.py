"""The broker's side of the demo: a virtual host of its own, two exchanges alike, and what lies in their queues."""

import asyncio
import functools
import json
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from urllib.parse import quote, urlsplit

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage
from yarl import URL

from testbed.broker import Broker

HASH = "x-consistent-hash"


class World:
    """A virtual host with a channel on it."""

    def __init__(self, channel: AbstractChannel) -> None:
        """Take a channel of the demo's virtual host."""
        self._channel = channel
        self.strange_keys = 0
        """The messages that a consumer got with another routing key than they were published with."""

    async def declare(self, exchange: str, queues: Mapping[str, int]) -> None:
        """Declare a consistent-hash exchange and queues, bound with their weights."""
        await self._channel.declare_exchange(exchange, HASH, durable=True)
        for queue, weight in queues.items():
            await self.bind(exchange, queue, weight)

    async def bind(self, exchange: str, queue: str, weight: int) -> None:
        """Declare a queue and bind it with a weight."""
        declared = await self._channel.declare_queue(queue, durable=True)
        await declared.bind(exchange, routing_key=str(weight))

    async def unbind(self, exchange: str, queue: str, weight: int) -> None:
        """Undo `bind`; the queue stays."""
        declared = await self._channel.get_queue(queue)
        await declared.unbind(exchange, routing_key=str(weight))

    async def publish_natively(self, exchange: str, keys: Iterable[str]) -> None:
        """Publish each key as a message to the exchange itself, without confirms."""
        target = await self._channel.get_exchange(exchange)
        for key in keys:
            await target.publish(aio_pika.Message(key.encode(), delivery_mode=1), key, mandatory=False)

    async def drain(
        self, queues: Iterable[str], expected: int, key_of: Callable[[bytes], str]
    ) -> dict[str, list[bytes]]:
        """Take `expected` messages, or all there are, out of the queues: bodies by queue.

        `key_of` gives the routing key with which a message was published, by its body.
        """
        found: dict[str, list[bytes]] = {queue: [] for queue in queues}
        for queue, bodies in found.items():
            declared = await self._channel.get_queue(queue)
            consumer = await declared.consume(functools.partial(self._keep, bodies, key_of), no_ack=True)
            while True:
                before = len(bodies)
                left = (await self._channel.declare_queue(queue, passive=True)).declaration_result.message_count
                if not left and len(bodies) == before:
                    break
                await asyncio.sleep(0.05)
            await declared.cancel(consumer)
        while sum(map(len, found.values())) < expected and await self._more(found, key_of):
            pass
        return found

    async def purge(self, queue: str) -> int:
        """Empty a queue; how many messages were in it."""
        return (await (await self._channel.get_queue(queue)).purge()).message_count or 0

    async def _more(self, found: dict[str, list[bytes]], key_of: Callable[[bytes], str]) -> bool:
        """One more look for messages that had not reached their queue yet; whether there were any."""
        await asyncio.sleep(0.2)
        seen = False
        for queue, bodies in found.items():
            declared = await self._channel.get_queue(queue)
            while message := await declared.get(no_ack=True, fail=False):
                await self._keep(bodies, key_of, message)
                seen = True
        return seen

    async def _keep(
        self, bodies: list[bytes], key_of: Callable[[bytes], str], message: AbstractIncomingMessage
    ) -> None:
        bodies.append(message.body)
        self.strange_keys += message.routing_key != key_of(message.body)


@asynccontextmanager
async def new_world(broker: Broker, vhost: str) -> AsyncIterator[World]:
    """Make a virtual host, and delete it with all that is in it at the end."""
    path = f"/api/vhosts/{quote(vhost, safe='')}"
    user = urlsplit(broker.management_url).username or "guest"
    await asyncio.to_thread(request, broker, "PUT", path, {})
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    await asyncio.to_thread(request, broker, "PUT", f"/api/permissions/{quote(vhost, safe='')}/{user}", everything)
    try:
        async with await aio_pika.connect(URL(broker.amqp_url).with_path("/") / vhost) as connection:
            yield World(await connection.channel(publisher_confirms=False))
    finally:
        await asyncio.to_thread(request, broker, "DELETE", path, None)


def request(broker: Broker, method: str, path: str, body: Mapping[str, str] | None) -> None:
    """Ask the broker's management API, as its administrator, for a change."""
    url = URL(broker.management_url)
    passwords = urllib.request.HTTPPasswordMgrWithDefaultRealm()
    plain = url.with_user(None)
    passwords.add_password(None, str(plain), url.user or "guest", url.password or "guest")
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPBasicAuthHandler(passwords)
    )
    request = urllib.request.Request(
        str(plain).rstrip("/") + path,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
        method=method,
    )
    with opener.open(request, timeout=30):
        pass
