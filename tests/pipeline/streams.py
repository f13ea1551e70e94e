"""Stream queues with what a test puts into them."""

import asyncio
import time
from collections.abc import Iterable
from urllib.parse import quote

import aio_pika
import pytest

from pipeline.__main__ import main
from pipeline.stream.queue import StreamQueue
from testbed.broker import Broker
from tests.integration.conftest import with_login

Sent = tuple[bytes, str]
"""A body and its type."""


def stream_queue(broker: Broker, vhost: str, name: str = "journal") -> StreamQueue:
    """For the broker's administrator."""
    user, _, password = broker.amqp_url.partition("://")[2].rpartition("@")[0].partition(":")
    return StreamQueue(with_login(broker.amqp_url, user, password, "/" + quote(vhost, safe="")), name)


def put(queue: StreamQueue, messages: Iterable[Sent], *, together: bool = True, **arguments: int) -> None:
    """Declare a stream queue and publish to it with confirms; one by one unless `together`.

    Arguments are written `x_max_length_bytes=1`.
    """

    async def run() -> None:
        async with await aio_pika.connect(queue.url) as connection:
            channel = await connection.channel()
            named = {name.replace("_", "-"): value for name, value in arguments.items()}
            await channel.declare_queue(queue.name, durable=True, arguments={"x-queue-type": "stream", **named})
            coming = [
                channel.default_exchange.publish(aio_pika.Message(body, type=kind), queue.name)
                for body, kind in messages
            ]
            if together:
                await asyncio.gather(*coming)
            else:
                for one in coming:
                    await one

    asyncio.run(run())


def settled(queue: StreamQueue) -> int:
    """Return the oldest offset, once retention, which follows in the background, has done its work."""
    oldest, now = -1, queue.first()
    while now != oldest:
        assert now is not None
        oldest = now
        time.sleep(0.5)
        now = queue.first()
    return oldest


def refused(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    """Return what the command says as it ends with 2."""
    capsys.readouterr()
    assert main(arguments) == 2
    (said,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("pipeline ")]
    return said
