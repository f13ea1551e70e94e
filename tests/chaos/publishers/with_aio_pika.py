"""Publishes with aio-pika, many messages at once, with confirms and not mandatory."""

import asyncio
import itertools
import time

import aio_pika
from aio_pika.abc import AbstractConnection, AbstractExchange
from aio_pika.exceptions import DeliveryError
from aiormq.exceptions import PublishError

from tests.chaos.publishers.notes import ANSWER_WITHIN, PAUSE, Notes, Task, task

AT_ONCE = 100
LOST = (Exception, asyncio.CancelledError)
"""Anything may be raised by aio-pika where a connection or a channel is lost, a bare Exception among it (aiormq,
measured).

A mistake of this program's own is seen all the same: nothing would be confirmed once all is well again.
"""


async def publish_one(exchange: AbstractExchange, notes: Notes, name: str) -> bool:
    """Return whether the channel may be used again."""
    number, key = notes.next()
    message = aio_pika.Message(notes.body(number).encode(), delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
    sent, outcome = time.monotonic(), "unknown"
    try:
        await exchange.publish(message, key, mandatory=False, timeout=ANSWER_WITHIN)
        outcome = "confirmed"
    except PublishError:
        outcome = "returned"
    except DeliveryError:
        outcome = "nacked"
    except LOST:
        pass
    notes.write(name, number, key, sent, outcome)
    return outcome != "unknown"


async def publish(connection: AbstractConnection, todo: Task, notes: Notes, name: str) -> None:
    """Until the connection is lost, or it is time to end."""
    channel = await connection.channel()
    exchange = await channel.get_exchange(todo.exchange, ensure=False)
    while not notes.over:
        await asyncio.sleep(notes.wait())
        if not all(await asyncio.gather(*(publish_one(exchange, notes, name) for _ in range(AT_ONCE)))):
            return


async def main() -> None:
    todo = task()
    ports = itertools.cycle(todo.ports)
    with Notes(todo) as notes:
        for incarnation in itertools.count(1):
            if notes.over:
                return
            try:
                connection = await aio_pika.connect(host="127.0.0.1", port=next(ports), heartbeat=2, timeout=3)
                try:
                    await publish(connection, todo, notes, str(incarnation))
                finally:
                    await asyncio.wait_for(connection.close(), 3)
            except LOST:
                await asyncio.sleep(PAUSE)


if __name__ == "__main__":
    asyncio.run(main())
