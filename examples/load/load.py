"""Publish 20,000 messages over AMQP, 200 at once, and tell how many were confirmed a second: docs/how-to/measure.md."""

import asyncio
import sys
import time

import aio_pika

MESSAGES, AT_ONCE = 20_000, 200


async def main(url: str) -> None:
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel(publisher_confirms=True)
        exchange = await channel.get_exchange("orders", ensure=False)
        places, latencies = asyncio.Semaphore(AT_ONCE), []

        async def publish(number: int) -> None:
            async with places:
                begun = time.perf_counter()
                await exchange.publish(aio_pika.Message(b'{"order": 1}'), f"customer-{number % 10_000}")
                latencies.append(time.perf_counter() - begun)

        begun = time.perf_counter()
        await asyncio.gather(*map(publish, range(MESSAGES)))
        seconds = time.perf_counter() - begun
        latencies.sort()
        print(f"{MESSAGES / seconds:,.0f} confirmed a second, 99% within {latencies[-MESSAGES // 100] * 1000:.0f} ms")


asyncio.run(main(sys.argv[1]))
