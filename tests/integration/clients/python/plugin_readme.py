"""The Python examples in the README of RabbitMQ's consistent hash exchange plugin, written anew.

The same calls of pika in the same order, with the same names, weights and number of messages; left out is the pause at
the end, in which the README has its reader's statistics catch up. They hash the routing key, a header, a property.
"""

import os
import sys

import pika
from pika.adapters.blocking_connection import BlockingChannel

MESSAGES = 100_000
WEIGHTS = {"q1": "1", "q2": "1", "q3": "2", "q4": "2"}


def set_up(channel: BlockingChannel, exchange: str, arguments: dict[str, str] | None) -> None:
    channel.exchange_declare(exchange=exchange, exchange_type="x-consistent-hash", arguments=arguments, durable=True)
    for queue in WEIGHTS:
        channel.queue_declare(queue=queue, durable=True)
        channel.queue_purge(queue=queue)
    for queue, weight in WEIGHTS.items():
        channel.queue_bind(exchange=exchange, queue=queue, routing_key=weight)


def hash_the_routing_key(channel: BlockingChannel) -> None:
    set_up(channel, "e", None)
    for number in range(MESSAGES):
        channel.basic_publish(exchange="e", routing_key=str(number), body="")


def hash_a_header(channel: BlockingChannel) -> None:
    set_up(channel, "e2", {"hash-header": "hash-on"})
    for number in range(MESSAGES):
        properties = pika.BasicProperties(content_type="text/plain", delivery_mode=2, headers={"hash-on": str(number)})
        channel.basic_publish(exchange="e2", routing_key="", body="", properties=properties)


def hash_a_property(channel: BlockingChannel) -> None:
    set_up(channel, "e3", {"hash-property": "message_id"})
    for number in range(MESSAGES):
        properties = pika.BasicProperties(content_type="text/plain", delivery_mode=2, message_id=str(number))
        channel.basic_publish(exchange="e3", routing_key="", body="", properties=properties)


EXAMPLES = {"e": hash_the_routing_key, "e2": hash_a_header, "e3": hash_a_property}


def main() -> None:
    # The README names no port, and means 5672; another is for a machine that has something there.
    port = int(os.environ.get("AMQP_PORT", "5672"))
    connection = pika.BlockingConnection(pika.ConnectionParameters(host="localhost", port=port))
    EXAMPLES[sys.argv[1]](connection.channel())
    connection.close()


if __name__ == "__main__":
    main()
