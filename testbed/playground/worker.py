"""An ordinary pika program with ten threads; it knows of ringproxy only the header that counts a message's tries.

Arguments: URL QUEUE. A message with the header `fails` fails as often as that says: the program answers with a nack
that requeues, which in series means "again, later". It prints a line for each try: the routing key, the body, and
whether it succeeded (1 or 0).
"""

import random
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.spec import Basic, BasicProperties

THREADS = 10
PREFETCH = 20
WORK_SECONDS = 0.02, 0.06
"""The least and the most that a thread takes for a message."""

threads = ThreadPoolExecutor(THREADS)
printing = threading.Lock()


def received(channel: BlockingChannel, method: Basic.Deliver, properties: BasicProperties, body: bytes) -> None:
    """Give a message to the next free thread."""
    threads.submit(work, channel, method.delivery_tag or 0, method.routing_key or "", properties.headers or {}, body)


def work(channel: BlockingChannel, tag: int, key: str, headers: Mapping[str, Any], body: bytes) -> None:
    """Work on a message, and ack or nack it."""
    time.sleep(random.uniform(*WORK_SECONDS))
    succeeds = headers.get("x-ring-attempt", 1) > headers.get("fails", 0)
    with printing:
        print(f"{key} {body.decode()} {int(succeeds)}", flush=True)
    answer = channel.basic_ack if succeeds else channel.basic_nack
    channel.connection.add_callback_threadsafe(partial(answer, tag))


def main(url: str, queue: str) -> None:
    """Consume until the end of the process or of the connection."""
    channel = pika.BlockingConnection(pika.URLParameters(url)).channel()
    channel.basic_qos(prefetch_count=PREFETCH)
    channel.basic_consume(queue, received)
    channel.start_consuming()


if __name__ == "__main__":
    main(*sys.argv[1:])
