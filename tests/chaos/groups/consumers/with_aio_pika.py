"""A member with aio-pika, on connections that do not connect again by themselves."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

import aio_pika
from aio_pika.abc import AbstractConnection, AbstractIncomingMessage

from tests.chaos.groups.consumers.member import CANCELLED_FOR, PAUSE, Acks, Commands, Lines, Task, task

T = TypeVar("T", bound=Task)

LOST = (Exception, asyncio.CancelledError)
"""Anything may be raised by aio-pika where a connection or a channel is lost."""


class Gone(Exception):  # noqa: N818
    """The connection or the channel is closed."""


async def consume(connection: AbstractConnection, todo: Task, lines: Lines, commands: Commands) -> None:
    """Until the member is told to end."""
    acks, unsettled = Acks(todo), dict[int, AbstractIncomingMessage]()

    async def delivered(message: AbstractIncomingMessage) -> None:
        tag = message.delivery_tag or 0
        lines.delivered(tag, bool(message.redelivered), message.exchange or "", message.routing_key or "", message.body)
        unsettled[tag] = message
        acks.got(tag)

    channel = await connection.channel()
    await channel.set_qos(prefetch_count=todo.prefetch)
    queues = [await channel.get_queue(source, ensure=False) for source in todo.sources]
    tags = [await queue.consume(delivered) for queue in queues]
    lines.write("j")
    while not (ending := commands.ending()):
        await asyncio.sleep(PAUSE / 10)
        if connection.is_closed or channel.is_closed:
            raise Gone
        for how, tag in () if commands.holding else acks.due():
            message = unsettled.pop(tag)
            lines.write(how, tag)
            if how == "n":
                await message.nack(requeue=True)
            else:
                await message.ack(multiple=how == "m")
    if ending == "cancel":
        for queue, consumer in zip(queues, tags, strict=True):
            await queue.cancel(consumer)
        await asyncio.sleep(CANCELLED_FOR)
    lines.write("c")
    await connection.close()


async def run(todo: T, consume: Callable[[AbstractConnection, T, Lines, Commands], Awaitable[None]]) -> None:
    """Connect and consume again and again, until the member is told to end."""
    lines, commands = Lines(), Commands()
    ports = itertools.cycle(todo.ports)
    while True:
        try:
            url = f"amqp://guest:guest@127.0.0.1:{next(ports)}/?heartbeat={todo.heartbeat}&name={todo.name}"
            connection = await aio_pika.connect(url, timeout=5)
        except LOST:
            await asyncio.sleep(PAUSE)
            continue
        lines.connection += 1
        try:
            await consume(connection, todo, lines, commands)
        except LOST as error:
            lines.write("l", repr(error))
            if commands.over:
                return
            with suppress(*LOST):
                await asyncio.wait_for(connection.close(), 3)
            await asyncio.sleep(PAUSE)
        else:
            return


if __name__ == "__main__":
    asyncio.run(run(task(), consume))
