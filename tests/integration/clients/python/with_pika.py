"""The steps that tests/integration/test_clients.py asks of each client, done with pika."""

import json
import sys
from collections.abc import Callable
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, UnroutableError

QUEUES = ["orders.1", "orders.2", "orders.3"]
COUNT = 300
PROPERTIES = (
    "content_type", "delivery_mode", "priority", "correlation_id", "reply_to", "expiration", "message_id", "timestamp",
    "type", "app_id",
)  # fmt: skip


def body_of(number: int) -> str:
    return {0: "", 1: "x" * 200_000}.get(number, f"order {number}")


def properties_of(number: int) -> pika.BasicProperties:
    headers: dict[str, Any] = {
        "number": number,
        "name": f"Žofie {number}",
        "first": number == 0,
        "more": {"deep": [1, "two"]},
    }
    return pika.BasicProperties(
        content_type="text/plain",
        delivery_mode=2,
        priority=3,
        correlation_id=f"c-{number}",
        reply_to="answers",
        expiration="600000",
        message_id=f"id-{number}",
        timestamp=1_700_000_000 + number,
        type="order",
        app_id="clients",
        headers=None if number % 2 else headers,
    )


def seen(queue: str, method: Any, properties: pika.BasicProperties, body: bytes) -> dict[str, object]:
    return {
        "queue": queue,
        "exchange": method.exchange,
        "routing_key": method.routing_key,
        "redelivered": method.redelivered,
        "properties": {name: value for name in PROPERTIES if (value := getattr(properties, name)) is not None},
        "headers": properties.headers or {},
        "body": body.decode(),
    }


def publish_all(channel: BlockingChannel) -> tuple[int, list[dict[str, object]]]:
    """Return how many confirms came, and what was returned."""
    # Each publish waits for its confirm: a nack, or a return, is an exception.
    for number in range(COUNT):
        channel.basic_publish("orders", f"customer-{number}", body_of(number).encode(), properties_of(number))
    channel.basic_publish("amq.direct", "audit", b"noted", pika.BasicProperties(message_id="audit"))
    returned: list[dict[str, object]] = []
    try:
        channel.basic_publish("", "no such queue", b"lost", pika.BasicProperties(message_id="lost"), mandatory=True)
    except UnroutableError as error:
        for back in error.messages:
            method: Any = back.method
            returned.append(
                {
                    "code": method.reply_code,
                    "text": method.reply_text,
                    "exchange": method.exchange,
                    "routing_key": method.routing_key,
                    "message_id": back.properties.message_id,
                    "body": back.body.decode(),
                }
            )
    return COUNT + 1 + len(returned), returned


def consume_all(channel: BlockingChannel) -> list[dict[str, object]]:
    messages: list[dict[str, object]] = []

    def take(queue: str) -> Callable[[BlockingChannel, Any, pika.BasicProperties, bytes], None]:
        def taken(channel: BlockingChannel, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
            messages.append(seen(queue, method, properties, body))
            channel.basic_ack(method.delivery_tag)
            if len(messages) == COUNT:
                channel.stop_consuming()

        return taken

    channel.basic_qos(prefetch_count=20)
    for queue in QUEUES:
        channel.basic_consume(queue, take(queue))
    channel.start_consuming()
    return messages


def closed_by(connection: pika.BlockingConnection, mistake: Callable[[BlockingChannel], object]) -> list[object]:
    """Return the code and the text that a channel ends with over a mistake."""
    channel = connection.channel()
    channel.confirm_delivery()
    try:
        mistake(channel)
    except ChannelClosedByBroker as closed:
        return [closed.reply_code, closed.reply_text]
    return []


def main() -> None:
    host, port, user, password, vhost = sys.argv[1:]
    credentials = pika.PlainCredentials(user, password)
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, int(port), vhost, credentials))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.exchange_declare("orders", "x-consistent-hash", durable=True)
    for queue in QUEUES:
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, "orders", "1")
    channel.queue_declare("audit", durable=True)
    channel.queue_bind("audit", "amq.direct", "audit")
    acked, returned = publish_all(channel)
    got: Any = channel.basic_get("audit")
    channel.basic_ack(got[0].delivery_tag)
    empty = channel.basic_get("audit")[0] is None
    messages = consume_all(channel)
    missing_queue = closed_by(connection, lambda other: other.queue_declare("no such queue", passive=True))
    missing_exchange = closed_by(connection, lambda other: other.basic_publish("no such exchange", "k", b""))
    deleted: dict[str, int] = {}
    for queue in [*QUEUES, "audit"]:
        method: Any = channel.queue_delete(queue).method
        deleted[queue] = method.message_count
    channel.exchange_delete("orders")
    channel.close()
    server: Any = connection._impl.server_properties  # type: ignore[attr-defined]
    connection.close()
    json.dump(
        {
            "product": server["product"],
            "acked": acked,
            "nacked": 0,
            "returned": returned,
            "got": seen("audit", *got),
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
    main()
