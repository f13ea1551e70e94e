"""Publishers and members of a group that note each key's messages, so that a test can tell whether one is overtaken."""

import asyncio
import itertools
import random
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Self

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

from tests.integration.broker_api import wait_until

UNDER_WAY = 40
"""The most publishes of one publisher without an answer."""

Key = tuple[int, int]
"""The number of a publisher, and that of one of its keys."""


class OrderedLoad:
    """Publishers, each with keys of its own whose messages it numbers, and members that ack what they get in order."""

    def __init__(self, urls: Sequence[str], consumed: Sequence[str], *, keys: int, rate: float, groups: Sequence[str]):
        """One publisher at each of `urls`, which sends `rate` messages a second, and one member of each group at each
        of `consumed`.
        """
        self._urls, self._consumed, self._keys, self._rate, self._groups = urls, consumed, keys, rate, groups
        self.confirmed: defaultdict[Key, list[int]] = defaultdict(list)
        self.got: dict[str, defaultdict[Key, list[int]]] = {group: defaultdict(list) for group in groups}
        self.slowest = 0.0
        """The longest time from a publish to its confirm, in seconds."""
        self._over, self._done = threading.Event(), threading.Event()
        self._faults: list[BaseException] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        wait_until("some messages", lambda: self.total > 50 or bool(self._faults))
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        try:
            wait_until("each group has all", lambda: bool(self._faults) or not self.missing, within=60)
        finally:
            self._done.set()
            self._thread.join(30)
        if self._faults:
            raise self._faults[0]

    @property
    def total(self) -> int:
        """How many messages are confirmed."""
        return sum(map(len, list(self.confirmed.values())))

    @property
    def missing(self) -> dict[str, int]:
        """By group, how many confirmed messages no member has got."""
        lacks = {
            group: sum(len(set(numbers) - set(got[key])) for key, numbers in list(self.confirmed.items()))
            for group, got in self.got.items()
        }
        return {group: count for group, count in lacks.items() if count}

    @property
    def overtaken(self) -> list[str]:
        """The first deliveries that came before an earlier one of their key, in words."""
        found = []
        for group, got in self.got.items():
            for key, numbers in got.items():
                first = list(dict.fromkeys(numbers))
                found += [
                    f"{group}, key {key}: {number} after {before}"
                    for before, number in itertools.pairwise(first)
                    if number < before
                ]
        return found

    def _run(self) -> None:
        try:
            asyncio.run(self._all())
        except BaseException as error:
            self._faults.append(error)

    async def _all(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            members = [tasks.create_task(self._consume(url, group)) for url in self._consumed for group in self._groups]
            publishers = [tasks.create_task(self._publish(url, number)) for number, url in enumerate(self._urls)]
            await asyncio.wait(publishers)
            await asyncio.to_thread(self._done.wait)
            for member in members:
                member.cancel()

    async def _publish(self, url: str, publisher: int) -> None:
        async with await aio_pika.connect(url) as connection:
            channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
            exchange = await channel.get_exchange("orders", ensure=False)
            room, draw = asyncio.Semaphore(UNDER_WAY), random.Random(publisher)
            numbers: defaultdict[int, int] = defaultdict(int)

            async def one(key: int, number: int) -> None:
                begun = time.monotonic()
                body = f"{publisher} {key} {number}".encode()
                try:
                    await exchange.publish(aio_pika.Message(body, delivery_mode=2), f"key {publisher} {key}")
                finally:
                    room.release()
                self.confirmed[publisher, key].append(number)
                self.slowest = max(self.slowest, time.monotonic() - begun)

            async with asyncio.TaskGroup() as tasks:
                while not self._over.is_set():
                    await room.acquire()
                    key = draw.randrange(self._keys)
                    numbers[key] += 1
                    tasks.create_task(one(key, numbers[key]))
                    await asyncio.sleep(draw.expovariate(self._rate))

    async def _consume(self, url: str, group: str) -> None:
        got = self.got[group]

        async def take(message: AbstractIncomingMessage) -> None:
            publisher, key, number = map(int, message.body.split())
            got[publisher, key].append(number)
            await asyncio.sleep(0)
            await message.ack()

        async with await aio_pika.connect(url) as connection:
            channel = await connection.channel()
            await channel.set_qos(20)
            await (await channel.get_queue(group, ensure=False)).consume(take)
            await asyncio.Future()
