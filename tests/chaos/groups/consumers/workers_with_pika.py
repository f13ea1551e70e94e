"""A member in series with pika's blocking connection and threads that work."""

import queue
import threading
import time
from contextlib import suppress
from functools import partial

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError, ConsumerCancelled

from tests.chaos.groups.consumers.member import CANCELLED_FOR, PAUSE, Commands, Lines
from tests.chaos.groups.consumers.with_pika import run
from tests.chaos.groups.consumers.worker import Job, Try, job, plan


class Pool:
    """The workers of one connection."""

    def __init__(
        self, todo: Job, connection: pika.BlockingConnection, channel: BlockingChannel, lines: Lines, commands: Commands
    ) -> None:
        self._connection, self._channel, self._lines, self._commands = connection, channel, lines, commands
        self._waiting: queue.SimpleQueue[tuple[int, Try]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        """Held as a line is written, so that no worker writes one of a connection that has ended."""
        self._over = False
        for _ in range(todo.workers):
            threading.Thread(target=self._work, daemon=True).start()

    def got(self, tag: int, planned: Try) -> None:
        self._waiting.put((tag, planned))

    def end(self) -> None:
        """Have nothing more begun or settled."""
        with self._lock:
            self._over = True

    def _work(self) -> None:
        while True:
            with suppress(queue.Empty):
                tag, planned = self._waiting.get(timeout=1)
                with self._lock:
                    if self._over:
                        return
                    self._lines.write("b", tag, planned.attempt)
                time.sleep(planned.seconds)
                while self._commands.holding:
                    time.sleep(PAUSE / 10)
                with suppress(AMQPError):  # the connection is lost
                    self._connection.add_callback_threadsafe(partial(self._settle, tag, planned.fails))
            if self._over:
                return

    def _settle(self, tag: int, fails: bool) -> None:
        if self._over:
            return
        self._lines.write("n" if fails else "a", tag)
        if not fails:
            self._channel.basic_ack(tag)
        elif tag % 2:
            self._channel.basic_nack(tag, requeue=True)
        else:
            self._channel.basic_reject(tag, requeue=True)


def start(channel: BlockingChannel, todo: Job, lines: Lines, pool: Pool) -> None:
    def cancelled(method: object) -> None:
        raise ConsumerCancelled(method)

    def delivered(
        _: BlockingChannel, deliver: pika.spec.Basic.Deliver, properties: pika.BasicProperties, body: bytes
    ) -> None:
        tag = deliver.delivery_tag or 0
        lines.delivered(tag, bool(deliver.redelivered), deliver.exchange or "", deliver.routing_key or "", body)
        pool.got(tag, plan(todo, body, properties.headers))

    channel.basic_qos(prefetch_count=todo.prefetch)
    channel.add_on_cancel_callback(cancelled)
    for source in todo.sources:
        channel.basic_consume(source, delivered, arguments={"x-ring-in-series": todo.in_series})
    lines.write("j")


def consume(connection: pika.BlockingConnection, todo: Job, lines: Lines, commands: Commands) -> None:
    """Until the member is told to end."""
    channel = connection.channel()
    pool = Pool(todo, connection, channel, lines, commands)
    try:
        start(channel, todo, lines, pool)
        while not (ending := commands.ending()):
            connection.process_data_events(PAUSE / 10)
        pool.end()
        if ending == "cancel":
            for consumer in list(channel.consumer_tags):
                channel.basic_cancel(consumer)
            connection.sleep(CANCELLED_FOR)
        lines.write("c")
        connection.close()
    finally:
        pool.end()


if __name__ == "__main__":
    run(job(), consume)
