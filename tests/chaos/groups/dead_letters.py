"""The dead-letter exchange of groups in series, and what its queue has at the end of a run."""

import pika

from testbed.node import Node
from tests.chaos.groups.history import DeadLetter

QUIET = 3.0
"""Seconds in which no dead letter comes, after which there are no more."""


def declare(node: Node, name: str) -> None:
    """Declare an exchange with one queue of the same name, which gets all messages."""
    with pika.BlockingConnection(pika.URLParameters(node.amqp_url)) as connection:
        channel = connection.channel()
        channel.exchange_declare(name, "fanout", durable=True)
        channel.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum"})
        channel.queue_bind(name, name)


def read(node: Node, name: str) -> list[DeadLetter]:
    """Take all messages from the queue."""
    letters = []
    with pika.BlockingConnection(pika.URLParameters(node.amqp_url)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=100)
        for method, properties, body in channel.consume(name, inactivity_timeout=QUIET):
            if method is None or properties is None or body is None:
                break
            publisher, number = body.decode().split()
            headers = properties.headers or {}
            attempt, group = int(str(headers.get("x-ring-attempt", 0))), str(headers.get("x-ring-group", ""))
            letters.append(DeadLetter(publisher, int(number), method.routing_key or "", attempt, group))
            channel.basic_ack(method.delivery_tag or 0)
        channel.cancel()
    return letters
