"""An ordinary pika program with a pool of ten workers, one of whose messages fails; it knows nothing of ringproxy.

Arguments: URL KEY BODY FAILURES QUEUE.... The message with this routing key and body fails so often. The program says
"again, later" with a nack that requeues, and acks all others. It prints a line for each try: when it began and ended,
in monotonic seconds, the routing key, the body, and whether it succeeded (1 or 0).
"""

import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.spec import Basic, BasicProperties

WORKERS = 10
PREFETCH = 10
WORK_SECONDS = 0.005, 0.015
"""The least and the most that a worker takes for a message."""


class Pool:
    """The workers, and the failures that are still to come."""

    def __init__(self, key: str, body: str, failures: int) -> None:
        """Take the message that fails, and how often it does."""
        self._failing, self._failures = (key, body), failures
        self._workers = ThreadPoolExecutor(WORKERS)
        self._lock = threading.Lock()

    def received(self, channel: BlockingChannel, method: Basic.Deliver, _: BasicProperties, body: bytes) -> None:
        """Give a message to the next free worker."""
        self._workers.submit(self._work, channel, method.delivery_tag or 0, method.routing_key or "", body.decode())

    def _work(self, channel: BlockingChannel, tag: int, key: str, body: str) -> None:
        began = time.monotonic()
        time.sleep(random.uniform(*WORK_SECONDS))
        with self._lock:
            fails = (key, body) == self._failing and self._failures > 0
            self._failures -= fails
            print(f"{began:.6f} {time.monotonic():.6f} {key} {body} {int(not fails)}", flush=True)
        answer = channel.basic_nack if fails else channel.basic_ack
        channel.connection.add_callback_threadsafe(partial(answer, tag))


def main(url: str, key: str, body: str, failures: str, *queues: str) -> None:
    """Consume until the end of the process or of the connection."""
    channel = pika.BlockingConnection(pika.URLParameters(url)).channel()
    channel.basic_qos(prefetch_count=PREFETCH)
    pool = Pool(key, body, int(failures))
    for queue in queues:
        channel.basic_consume(queue, pool.received)
    channel.start_consuming()


if __name__ == "__main__":
    main(*sys.argv[1:])
