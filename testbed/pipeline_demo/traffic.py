"""The traffic of the demo, over AMQP and by HTTP, and the consumer that notes what arrives."""

import asyncio
import itertools
import json
import random
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import aio_pika
import aiohttp
import pyarrow as pa
import pyarrow.parquet as pq
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractQueue

from testbed import SetupError

HOT = "customer-0"
"""The key of most messages over AMQP: more than any queue's fair share of all."""

IN_FLIGHT = 100
"""Messages over AMQP, or of one request, that wait for their confirms together."""

LEFT_OUT, DOUBLED = 3, 2
"""Messages that the consumer does not note, and notes twice."""

PATIENCE = 60.0
"""Seconds for what is published to arrive."""


def keys(count: int, seed: int, prefix: str = "", hot: float = 1 / 8) -> list[str]:
    """HOT, of that share, and 2,000 others of which the n-th is there 1 / n as often; the same for the same seed."""
    chance = random.Random(seed)
    others, weights = range(1, 2001), [1 / n for n in range(1, 2001)]
    chosen = chance.choices(others, weights, k=count)
    return [prefix + (HOT if chance.random() < hot else f"customer-{number}") for number in chosen]


@dataclass
class Publisher:
    """Publishes messages whose ids are the exchange's name and their numbers, and counts what is confirmed."""

    exchange: str
    confirmed: list[str] = field(default_factory=list)
    """Message ids."""
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    async def by_amqp(self, channel: AbstractChannel, batch: Sequence[str]) -> None:
        """A message for each key, on a channel of a sidecar's, in confirm mode."""
        target = await channel.get_exchange(self.exchange, ensure=False)
        for some in _parts(batch):
            ids = self._ids(some)
            messages = [aio_pika.Message(b"x" * 200, message_id=one, delivery_mode=1) for one in ids]
            await asyncio.gather(*(target.publish(m, key) for m, key in zip(messages, some, strict=True)))
            self.confirmed += ids

    async def by_http(self, http_url: str, vhost: str, batch: Sequence[str]) -> None:
        """A message for each key, in requests to a sidecar."""
        url = f"{http_url}/v1/exchanges/{self.exchange}/publish/batch"
        async with aiohttp.ClientSession() as session:
            for some in _parts(batch):
                ids = self._ids(some)
                told = [
                    {"key": key, "payload": "x" * 400, "properties": {"message_id": one}}
                    for key, one in zip(some, ids, strict=True)
                ]
                async with session.post(url, params={"vhost": vhost}, json={"messages": told}) as answer:
                    if answer.status != 200:
                        raise SetupError(f"the sidecar: {await answer.text()}")
                self.confirmed += ids

    def _ids(self, some: Sequence[str]) -> list[str]:
        return [f"{self.exchange}-{next(self._numbers)}" for _ in some]


def _parts(batch: Sequence[str]) -> Iterable[Sequence[str]]:
    return (batch[n : n + IN_FLIGHT] for n in range(0, len(batch), IN_FLIGHT))


class Seen(NamedTuple):
    """A message that came."""

    message_id: str | None
    queue: str
    time: int
    """Microseconds since 1970."""


class Consumer:
    """Takes all there is out of queues, and notes what it saw."""

    def __init__(self, channel: AbstractChannel) -> None:
        """Take a channel straight to the broker."""
        self._channel = channel
        self._consumed: list[tuple[AbstractQueue, str]] = []
        self.seen: list[Seen] = []

    async def consume(self, queue: str) -> None:
        """Begin to consume."""
        declared = await self._channel.get_queue(queue, ensure=False)

        async def note(message: AbstractIncomingMessage) -> None:
            self.seen.append(Seen(message.message_id, queue, time.time_ns() // 1000))

        self._consumed.append((declared, await declared.consume(note, no_ack=True)))

    async def leave(self) -> None:
        """Consume nothing any more."""
        for queue, tag in self._consumed:
            await queue.cancel(tag)
        self._consumed.clear()

    async def until(self, count: int) -> None:
        """Return once so many have come, and no more do."""
        async with asyncio.timeout(PATIENCE):
            while len(self.seen) < count:  # noqa: ASYNC110 - nothing tells of each message
                await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)  # for one that comes twice

    def write(self, path: Path, left_out: int = 0, doubled: int = 0) -> None:
        """As a table: message_id, queue, time in microseconds since 1970, and the order in which they came.

        The last `left_out` are not in it, and the first `doubled` are there twice, as if they were lost and repeated.
        """
        noted = self.seen[: len(self.seen) - left_out]
        twice = [row for n, row in enumerate(noted) for _ in range(2 if n < doubled else 1)]
        rows = [row._asdict() | {"sequence": n} for n, row in enumerate(twice)]
        pq.write_table(pa.Table.from_pylist(rows), path)


@asynccontextmanager
async def channel_to(url: str) -> AsyncIterator[AbstractChannel]:
    """Yield a channel in confirm mode."""
    async with await aio_pika.connect(url) as connection:
        yield await connection.channel()


def write_rows(path: Path, count: int) -> None:
    """Rows to publish: `key`, `body`, `message_id`."""
    path.mkdir()
    rows = [
        {"key": key, "body": json.dumps({"row": n}), "message_id": f"row-{n}"}
        for n, key in enumerate(keys(count, seed=11))
    ]
    pq.write_table(pa.Table.from_pylist(rows), path / "rows.parquet")
