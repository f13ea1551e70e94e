"""The ordered load of the testbed, in a thread beside a test."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Self

from testbed import ordered_load
from tests.integration.broker_api import wait_until


class OrderedLoad(ordered_load.OrderedLoad):
    """Publishers and members that are at work while a test does something else."""

    def __init__(self, urls: Sequence[str], consumed: Sequence[str], *, keys: int, rate: float, groups: Sequence[str]):
        """One publisher at each of `urls`, which sends `rate` messages a second, and one member of each group at each
        of `consumed`.
        """
        super().__init__("orders", urls, consumed, keys=keys, groups=groups)
        self._rate = rate
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

    def _run(self) -> None:
        try:
            asyncio.run(self._all())
        except BaseException as error:
            self._faults.append(error)

    async def _all(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            members = tasks.create_task(self.consume())
            await self.publish(self._rate, self._over.is_set)
            await asyncio.to_thread(self._done.wait)
            members.cancel()
