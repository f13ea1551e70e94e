"""Consume in series with aio-pika: docs/how-to/use-from.md."""

import asyncio
import signal

import aio_pika
from shop import charge

at_work = set()


async def work(message):
    at_work.add(asyncio.current_task())
    asyncio.current_task().add_done_callback(at_work.discard)
    async with message.process(requeue=True):
        await asyncio.to_thread(charge, message.routing_key, message.body.decode())


async def main():
    ending = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ending.set)
    connection = await aio_pika.connect_robust("amqp://billing:PASSWORD@localhost:5673/shop")
    channel = await connection.channel()
    await channel.set_qos(prefetch_count=50)
    orders = await channel.get_queue("orders")
    tag = await orders.consume(work)
    await ending.wait()
    if connection.connected.is_set():
        await orders.cancel(tag)
        await asyncio.gather(*at_work, return_exceptions=True)
    await connection.close()


asyncio.run(main())
