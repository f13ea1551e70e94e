"""Publishers and members of groups that note each key's messages, so that it can be told whether one is overtaken."""

import asyncio
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

from testbed.ordered_judge import Key, Published, Taken, lost, overtaken

UNDER_WAY = 40
"""The most publishes of one publisher without an answer."""

PREFETCH = 20


class OrderedLoad:
    """Publishers, each with keys of its own whose messages it numbers, and members that ack what they get in order."""

    def __init__(
        self,
        exchange: str,
        publishers: Sequence[str],
        members: Sequence[str],
        *,
        keys: int,
        groups: Sequence[str],
        work: float = 0.0,
    ) -> None:
        """Publish to `exchange` at each URL of `publishers`, with so many keys; consume as each group at each URL of
        `members`, where a member takes `work` seconds for a message, one after the other.
        """
        self._exchange, self._publishers, self._members = exchange, publishers, members
        self._keys, self._groups, self._work = keys, groups, work
        self._numbers: Counter[Key] = Counter()
        self.confirmed: defaultdict[Key, list[Published]] = defaultdict(list)
        self.taken: dict[str, defaultdict[Key, list[Taken]]] = {group: defaultdict(list) for group in groups}

    @property
    def total(self) -> int:
        """How many messages are confirmed."""
        return sum(map(len, list(self.confirmed.values())))

    @property
    def slowest(self) -> float:
        """The longest time from a publish to its confirm, in seconds."""
        times = (each.confirmed - each.at for key in list(self.confirmed.values()) for each in key)
        return max(times, default=0.0)

    @property
    def missing(self) -> dict[str, int]:
        """By group, how many confirmed messages no member has got."""
        lacks = {
            group: sum(lost(numbers, taken.get(key, ())) for key, numbers in list(self.confirmed.items()))
            for group, taken in self.taken.items()
        }
        return {group: count for group, count in lacks.items() if count}

    @property
    def overtaken(self) -> list[str]:
        """The first deliveries that came before an earlier one of their key, in words."""
        return [
            f"{group}, key {key}: {number} after {before}"
            for group, taken in self.taken.items()
            for key, each in taken.items()
            for before, number in overtaken(each)
        ]

    async def publish(self, rate: float, enough: Callable[[], bool]) -> None:
        """Publish until `enough`, `rate` messages a second at each URL; return once all are confirmed."""
        async with asyncio.TaskGroup() as tasks:
            for number, url in enumerate(self._publishers):
                tasks.create_task(self._publish(url, number, rate, enough))

    async def consume(self) -> None:
        """Consume with all members, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for url in self._members:
                for group in self._groups:
                    tasks.create_task(self._consume(url, group))

    async def _publish(self, url: str, publisher: int, rate: float, enough: Callable[[], bool]) -> None:
        async with await aio_pika.connect(url) as connection:
            channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
            exchange = await channel.get_exchange(self._exchange, ensure=False)
            room, draw = asyncio.Semaphore(UNDER_WAY), random.Random(publisher)

            async def one(key: int, number: int) -> None:
                begun = time.monotonic()
                body = f"{publisher} {key} {number}".encode()
                try:
                    await exchange.publish(aio_pika.Message(body, delivery_mode=2), f"key {publisher} {key}")
                finally:
                    room.release()
                self.confirmed[publisher, key].append(Published(number, begun, time.monotonic()))

            async with asyncio.TaskGroup() as tasks:
                while not enough():
                    await room.acquire()
                    key = draw.randrange(self._keys)
                    self._numbers[publisher, key] += 1
                    tasks.create_task(one(key, self._numbers[publisher, key]))
                    await asyncio.sleep(draw.expovariate(rate))

    async def _consume(self, url: str, group: str) -> None:
        all_taken, turn = self.taken[group], asyncio.Lock()

        async def take(message: AbstractIncomingMessage) -> None:
            async with turn:
                publisher, key, number = map(int, message.body.split())
                all_taken[publisher, key].append(Taken(number, time.monotonic()))
                await asyncio.sleep(self._work)
                await message.ack()

        async with await aio_pika.connect(url) as connection:
            channel = await connection.channel()
            await channel.set_qos(PREFETCH)
            await (await channel.get_queue(group, ensure=False)).consume(take)
            await asyncio.Future()
