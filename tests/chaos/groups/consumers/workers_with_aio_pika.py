"""A member in series with aio-pika and tasks that work."""

import asyncio

from aio_pika.abc import AbstractConnection, AbstractIncomingMessage

from tests.chaos.groups.consumers.member import CANCELLED_FOR, PAUSE, Commands, Lines
from tests.chaos.groups.consumers.with_aio_pika import Gone, run
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


async def consume(connection: AbstractConnection, todo: Job, lines: Lines, commands: Commands) -> None:
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


if __name__ == "__main__":
    asyncio.run(run(job(), consume))
