"""A member in series with aio-pika and tasks that work."""

import asyncio
import itertools
from contextlib import suppress

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

from tests.chaos.groups.consumers.member import CANCELLED_FOR, PAUSE, Commands, Lines
from tests.chaos.groups.consumers.with_aio_pika import LOST, Gone
from tests.chaos.groups.consumers.worker import Job, job, plan


async def work(waiting: "asyncio.Queue[AbstractIncomingMessage]", todo: Job, lines: Lines, commands: Commands) -> None:
    """Take one message after the other, until cancelled or the connection is lost."""
    while True:
        message = await waiting.get()
        tag, planned = message.delivery_tag or 0, plan(todo, message.body, message.headers)
        lines.write("b", tag, planned.attempt)
        await asyncio.sleep(planned.seconds)
        while commands.holding:  # noqa: ASYNC110 - a thread writes it
            await asyncio.sleep(PAUSE / 10)
        lines.write("n" if planned.fails else "a", tag)
        # It is sent also if the member is told to end at this moment.
        await asyncio.shield(settle(message, fails=planned.fails))


async def settle(message: AbstractIncomingMessage, *, fails: bool) -> None:
    """Ack a message, or give it back in one of the two ways."""
    if not fails:
        await message.ack()
    elif (message.delivery_tag or 0) % 2:
        await message.nack(requeue=True)
    else:
        await message.reject(requeue=True)


async def consume(connection: aio_pika.abc.AbstractConnection, todo: Job, lines: Lines, commands: Commands) -> None:
    """Until the member is told to end."""
    waiting: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()

    async def delivered(message: AbstractIncomingMessage) -> None:
        tag = message.delivery_tag or 0
        lines.delivered(tag, bool(message.redelivered), message.exchange or "", message.routing_key or "", message.body)
        waiting.put_nowait(message)

    channel = await connection.channel()
    await channel.set_qos(prefetch_count=todo.prefetch)
    queues = [await channel.get_queue(source, ensure=False) for source in todo.sources]
    workers = [asyncio.create_task(work(waiting, todo, lines, commands)) for _ in range(todo.workers)]
    try:
        tags = [await queue.consume(delivered, arguments={"x-ring-in-series": todo.in_series}) for queue in queues]
        lines.write("j")
        while not (ending := commands.ending()):
            await asyncio.sleep(PAUSE / 10)
            if connection.is_closed or channel.is_closed or any(worker.done() for worker in workers):
                raise Gone
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    if ending == "cancel":
        for queue, consumer in zip(queues, tags, strict=True):
            await queue.cancel(consumer)
        await asyncio.sleep(CANCELLED_FOR)
    lines.write("c")
    await connection.close()


async def main() -> None:
    todo, lines, commands = job(), Lines(), Commands()
    ports = itertools.cycle(todo.ports)
    while True:
        try:
            url = f"amqp://guest:guest@127.0.0.1:{next(ports)}/?heartbeat={todo.heartbeat}&name={todo.name}"
            connection = await aio_pika.connect(url, timeout=5)
        except LOST:
            if commands.ending():
                return
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
    asyncio.run(main())
