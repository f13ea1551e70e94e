"""The publisher of the demo: plain HTTP, a few requests at a time, every receipt kept."""

import asyncio
import time
from collections.abc import Callable, Sequence

import aiohttp

from testbed.demo.oracle import Sent

IN_FLIGHT = 32


class Load:
    """Publishes keys in turn, round and round, until told to stop; message numbers never repeat."""

    def __init__(self, http_url: str, vhost: str, exchange: str, keys: Sequence[str]) -> None:
        """Take the URL of a sidecar's HTTP listener."""
        self._url = f"{http_url}/v1/exchanges/{exchange}/publish"
        self._vhost, self._keys = vhost, keys
        self._next = 0
        self.sent: list[Sent] = []
        self.problems: list[str] = []
        """The answers other than 200, of which the demo expects none."""

    async def run(self, enough: Callable[[], bool]) -> None:
        """Publish until `enough`."""
        connector = aiohttp.TCPConnector(limit=IN_FLIGHT)
        async with aiohttp.ClientSession(connector=connector) as session:
            await asyncio.gather(*(self._publisher(session, enough) for _ in range(IN_FLIGHT)))

    async def _publisher(self, session: aiohttp.ClientSession, enough: Callable[[], bool]) -> None:
        while not enough() and not self.problems:
            number, self._next = self._next, self._next + 1
            key = self._keys[number % len(self._keys)]
            begun = time.monotonic()
            async with session.post(
                self._url, params={"vhost": self._vhost}, data=str(number).encode(), headers={"Routing-Key": key}
            ) as response:
                receipt = await response.json(content_type=None)
            if response.status != 200:
                self.problems.append(f"message {number}, key {key}: {receipt}")
                return
            self.sent.append(Sent(number, key, begun, time.monotonic(), receipt["destination"]["name"]))
