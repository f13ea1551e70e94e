"""The steps that tests/integration/test_clients.py asks of each client, done with aio-pika."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import aio_pika
from aio_pika.abc import (
    AbstractChannel,
    AbstractConnection,
    AbstractExchange,
    AbstractIncomingMessage,
    AbstractQueue,
    HeadersType,
)
from aio_pika.exceptions import ChannelClosed, DeliveryError, QueueEmpty
from aiormq.abc import DeliveredMessage
from pamqp import commands

QUEUES = ["orders.1", "orders.2", "orders.3"]
COUNT = 300
PROPERTIES = (
    "content_type", "priority", "correlation_id", "reply_to", "expiration", "message_id", "type", "app_id",
)  # fmt: skip


def message_of(number: int) -> aio_pika.Message:
    body = {0: "", 1: "x" * 200_000}.get(number, f"order {number}")
    headers: HeadersType = {
        "number": number,
        "name": f"Žofie {number}",
        "first": number == 0,
        "more": {"deep": [1, "two"]},
    }
    return aio_pika.Message(
        body.encode(),
        content_type="text/plain",
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        priority=3,
        correlation_id=f"c-{number}",
        reply_to="answers",
        expiration=600,
        message_id=f"id-{number}",
        timestamp=datetime.fromtimestamp(1_700_000_000 + number, UTC),
        type="order",
        app_id="clients",
        headers=None if number % 2 else headers,
    )


def seen(queue: str, message: AbstractIncomingMessage) -> dict[str, object]:
    properties = {name: value for name in PROPERTIES if (value := getattr(message, name)) is not None}
    properties["delivery_mode"] = int(message.delivery_mode or 0)
    if message.timestamp:
        properties["timestamp"] = int(message.timestamp.timestamp())
    return {
        "queue": queue,
        "exchange": message.exchange,
        "routing_key": message.routing_key,
        "redelivered": message.redelivered,
        "properties": properties,
        "headers": message.headers,
        "body": message.body.decode(),
    }


async def publish_all(channel: AbstractChannel, orders: AbstractExchange) -> tuple[int, int]:
    """Return the numbers of acks and of nacks."""
    direct = await channel.get_exchange("amq.direct")
    lost = aio_pika.Message(b"lost", message_id="lost")
    answers = await asyncio.gather(
        *(orders.publish(message_of(number), f"customer-{number}", mandatory=False) for number in range(COUNT)),
        direct.publish(aio_pika.Message(b"noted", message_id="audit"), "audit"),
        channel.default_exchange.publish(lost, "no such queue", mandatory=True),
        return_exceptions=True,
    )
    nacked = sum(isinstance(answer, DeliveryError) for answer in answers)
    # aio-pika answers a publish that came back with the message; its ack comes later.
    assert all(isinstance(answer, (commands.Basic.Ack, DeliveredMessage, DeliveryError)) for answer in answers)
    return len(answers) - nacked, nacked


async def consume_all(queues: list[AbstractQueue]) -> list[dict[str, object]]:
    messages: list[dict[str, object]] = []
    done = asyncio.Event()

    def take(queue: str) -> Callable[[AbstractIncomingMessage], Awaitable[None]]:
        async def taken(message: AbstractIncomingMessage) -> None:
            messages.append(seen(queue, message))
            await message.ack()
            if len(messages) == COUNT:
                done.set()

        return taken

    tags = [await queue.consume(take(queue.name)) for queue in queues]
    await done.wait()
    for queue, tag in zip(queues, tags, strict=True):
        await queue.cancel(tag)
    return messages


async def closed_by(
    connection: AbstractConnection, mistake: Callable[[AbstractChannel], Awaitable[object]]
) -> list[object]:
    """Return what a channel ends with over a mistake: this client's name of the code, and the text."""
    channel = await connection.channel()
    try:
        await mistake(channel)
    except ChannelClosed as closed:
        return [type(closed).__name__, *closed.args]
    return []


async def to_nowhere(channel: AbstractChannel) -> None:
    exchange = await channel.get_exchange("no such exchange", ensure=False)
    await exchange.publish(aio_pika.Message(b""), "k")


async def main() -> None:
    host, port, user, password, vhost = sys.argv[1:]
    connection = await aio_pika.connect(host=host, port=int(port), login=user, password=password, virtualhost=vhost)
    channel = await connection.channel()
    returned: list[dict[str, object]] = []

    def came_back(_: object, message: AbstractIncomingMessage) -> None:
        returned.append(
            {
                "exchange": message.exchange,
                "routing_key": message.routing_key,
                "message_id": message.message_id,
                "body": message.body.decode(),
            }
        )

    channel.return_callbacks.add(came_back)
    await channel.set_qos(20)
    orders = await channel.declare_exchange("orders", "x-consistent-hash", durable=True)
    queues = [await channel.declare_queue(name, durable=True) for name in QUEUES]
    for queue in queues:
        await queue.bind(orders, "1")
    audit = await channel.declare_queue("audit", durable=True)
    await audit.bind("amq.direct", "audit")
    acked, nacked = await publish_all(channel, orders)
    got = await audit.get()
    assert got is not None
    await got.ack()
    try:
        empty = await audit.get() is None
    except QueueEmpty:
        empty = True
    messages = await consume_all(queues)
    missing_queue = await closed_by(connection, lambda other: other.get_queue("no such queue"))
    missing_exchange = await closed_by(connection, to_nowhere)
    deleted = {queue.name: (await queue.delete()).message_count for queue in [*queues, audit]}
    await orders.delete()
    await channel.close()
    transport = connection.transport
    assert transport is not None
    server = transport.connection.server_properties
    await connection.close()
    json.dump(
        {
            "product": server["product"],
            "acked": acked,
            "nacked": nacked,
            "returned": returned,
            "got": seen("audit", got),
            "empty": empty,
            "messages": messages,
            "missing_queue": missing_queue,
            "missing_exchange": missing_exchange,
            "deleted": deleted,
            "closed": connection.is_closed,
        },
        sys.stdout,
    )


if __name__ == "__main__":
    asyncio.run(main())
