"""A member with pika's blocking connection."""

import itertools
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.adapters.utils.connection_workflow import AMQPConnectorException
from pika.exceptions import AMQPError, ConsumerCancelled

from tests.chaos.groups.consumers.member import CANCELLED_FOR, PAUSE, Acks, Commands, Lines, Task, task

T = TypeVar("T", bound=Task)


def connect(todo: Task, port: int) -> pika.BlockingConnection:
    return pika.BlockingConnection(
        pika.ConnectionParameters(
            "127.0.0.1",
            port,
            heartbeat=todo.heartbeat,
            socket_timeout=3,
            stack_timeout=10,
            client_properties={"connection_name": todo.name},
        )
    )


def start(channel: BlockingChannel, todo: Task, lines: Lines, acks: Acks) -> None:
    def cancelled(method: object) -> None:
        raise ConsumerCancelled(method)

    def delivered(
        _: BlockingChannel, deliver: pika.spec.Basic.Deliver, properties: pika.BasicProperties, body: bytes
    ) -> None:
        tag = deliver.delivery_tag or 0
        lines.delivered(tag, bool(deliver.redelivered), deliver.exchange or "", deliver.routing_key or "", body)
        acks.got(tag)

    channel.basic_qos(prefetch_count=todo.prefetch)
    channel.add_on_cancel_callback(cancelled)
    for source in todo.sources:
        channel.basic_consume(source, delivered)
    lines.write("j")


def consume(connection: pika.BlockingConnection, todo: Task, lines: Lines, commands: Commands) -> None:
    """Until the member is told to end."""
    acks, channel = Acks(todo), connection.channel()
    start(channel, todo, lines, acks)
    while not (ending := commands.ending()):
        connection.process_data_events(PAUSE / 10)
        for how, tag in () if commands.holding else acks.due():
            lines.write(how, tag)
            if how == "n":
                channel.basic_nack(tag, requeue=True)
            else:
                channel.basic_ack(tag, multiple=how == "m")
    if ending == "cancel":
        for consumer in list(channel.consumer_tags):
            channel.basic_cancel(consumer)
        connection.sleep(CANCELLED_FOR)
    lines.write("c")
    connection.close()


def run(todo: T, consume: Callable[[pika.BlockingConnection, T, Lines, Commands], None]) -> None:
    """Connect and consume again and again, until the member is told to end."""
    lines, commands = Lines(), Commands()
    ports = itertools.cycle(todo.ports)
    while True:
        try:
            connection = connect(todo, next(ports))
        except (AMQPError, AMQPConnectorException, OSError):
            time.sleep(PAUSE)
            continue
        lines.connection += 1
        try:
            consume(connection, todo, lines, commands)
        except (AMQPError, OSError) as error:
            lines.write("l", repr(error))
            if commands.over:
                return
            with suppress(AMQPError, OSError):  # the channel alone may be closed
                connection.close()
            time.sleep(PAUSE)
        else:
            return


if __name__ == "__main__":
    run(task(), consume)
