"""An ordinary pika program: consumes from a name, acks each message, and knows nothing of ringproxy.

Arguments: URL QUEUE. It prints a line for each message: when it came, in monotonic seconds, whether it was redelivered
(1 or 0), its routing key and its body.
"""

import sys
import time

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.spec import Basic, BasicProperties

PREFETCH = 20
WORK_SECONDS = 0.002
"""The seconds that this program takes for a message, before it acks it."""


def received(channel: BlockingChannel, method: Basic.Deliver, _: BasicProperties, body: bytes) -> None:
    """Print a message, work on it, and ack it."""
    print(f"{time.monotonic():.6f} {int(method.redelivered)} {method.routing_key} {body.decode()}", flush=True)
    time.sleep(WORK_SECONDS)
    channel.basic_ack(method.delivery_tag or 0)


def main(url: str, queue: str) -> None:
    """Consume until the end of the process or of the connection."""
    channel = pika.BlockingConnection(pika.URLParameters(url)).channel()
    channel.basic_qos(prefetch_count=PREFETCH)
    channel.basic_consume(queue, received)
    channel.start_consuming()


if __name__ == "__main__":
    main(*sys.argv[1:])
