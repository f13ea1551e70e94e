"""Publish over AMQP with aio-pika, any number of messages at a time: docs/how-to/publish-over-amqp.md."""

import asyncio
import random

import aio_pika
from aio_pika.exceptions import (
    AMQPException,
    ChannelClosed,
    ChannelNotFoundEntity,
    DeliveryError,
    ProbableAuthenticationError,
    PublishError,
)
from aiormq.exceptions import ChannelAccessRefused  # of the package that aio-pika is built on

TIME_LIMIT = 60  # seconds to wait for a connection, or for a confirm
FAILURES = AMQPException, OSError, asyncio.TimeoutError, RuntimeError  # the last where a connection has just ended


class NotPublishedError(Exception):
    """A message is refused for good, or the last attempt failed. With outcome "unknown" it may be in a queue."""

    def __init__(self, outcome, detail):
        super().__init__(f"{outcome}: {detail}")
        self.outcome = outcome


def outcome_of(error):
    """Return what became of the only publish on a channel."""
    if isinstance(error, PublishError):  # a DeliveryError, too
        return "unroutable"
    if isinstance(error, DeliveryError):
        return "nacked"
    if isinstance(error, (ChannelAccessRefused, ChannelNotFoundEntity)):  # 403, 404
        return "invalid"
    if isinstance(error, ChannelClosed) and error.args[0] == 541:
        return "unavailable"
    return "unknown"


class Publisher:
    """Publishes any number of messages at a time on one connection, each on a channel of its own."""

    def __init__(self, url):
        self.url = url
        self.connection = None
        self.connecting = asyncio.Lock()
        self.free = []  # open channels without a publish
        self.closing = set()  # tasks that close a channel

    async def publish(self, exchange, key, body, message_id, attempts=8):
        """Return once the message is in a queue. Raise NotPublishedError otherwise."""
        message = aio_pika.Message(body, message_id=message_id, content_type="application/json", delivery_mode=2)
        may_be_there = False
        for attempt in range(1, attempts + 1):
            error = await self.try_once(exchange, key, message)
            if error is None:
                return
            may_be_there = may_be_there or error.outcome == "unknown"
            if error.outcome == "invalid":
                break
            if attempt < attempts:
                await asyncio.sleep(min(30, 0.1 * 2**attempt) * random.uniform(1, 1.5))
        raise NotPublishedError("unknown", error) if may_be_there else error

    async def try_once(self, exchange, key, message):
        """Return None once the message is in a queue, or else why it may not be."""
        try:
            channel = await self.channel()
            target = await channel.get_exchange(exchange, ensure=False)
        except FAILURES as error:  # nothing was sent
            refused = isinstance(error, ProbableAuthenticationError)
            return NotPublishedError("invalid" if refused else "unavailable", repr(error))
        try:
            await target.publish(message, key, mandatory=True, timeout=TIME_LIMIT)
        except FAILURES as error:
            if isinstance(error, DeliveryError):
                self.free.append(channel)
            elif not channel.is_closed:
                closing = asyncio.ensure_future(channel.close())  # a late answer is not taken for the next one's
                self.closing.add(closing)
                closing.add_done_callback(self.closing.discard)
            return NotPublishedError(outcome_of(error), repr(error))
        self.free.append(channel)
        return None

    async def channel(self):
        async with self.connecting:
            if self.connection is None or not self.connection.connected.is_set():
                self.free.clear()
                self.connection = await aio_pika.connect(self.url, timeout=TIME_LIMIT)
        while self.free:
            channel = self.free.pop()
            if not channel.is_closed:
                return channel
        return await self.connection.channel(publisher_confirms=True, on_return_raises=True)


async def publish_all(publisher, key, orders):
    for order in orders:  # in order within a key
        await publisher.publish("orders", key, b'{"order": %d}' % order, f"order-{order}")


async def main():
    publisher = Publisher("amqp://orders-service:secret@127.0.0.1:5673/")
    await asyncio.gather(publish_all(publisher, "customer-4711", [9, 10]), publish_all(publisher, "customer-6", [11]))
    print("confirmed")
    try:
        await publisher.publish("amq.direct", "audit", b"{}", "audit-1")
    except NotPublishedError as error:
        print(error.outcome)
    await publisher.connection.close()


if __name__ == "__main__":
    asyncio.run(main())
