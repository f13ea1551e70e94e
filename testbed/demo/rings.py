"""A ring as a sidecar's admin listener tells of it."""

import asyncio
from collections.abc import Mapping

import aiohttp

from ring.destination import Destination
from ring.ring import fingerprint
from testbed.demo.world import HASH


class Rings:
    """One exchange's ring, as it changes."""

    def __init__(self, admin_url: str, vhost: str, exchange: str) -> None:
        """Take the URL of a sidecar's admin listener, and names that need no percent-encoding."""
        self._url = f"{admin_url}/rings/{vhost}/{exchange}"

    async def until(self, weights: Mapping[str, int], within: float = 30.0) -> None:
        """Return once the ring of these weights is in force. Raises TimeoutError if that takes too long, in seconds."""
        wanted = fingerprint({Destination("queue", q): w for q, w in weights.items()}, HASH, "routing_key")
        async with aiohttp.ClientSession() as session, asyncio.timeout(within):
            while True:
                async with session.get(self._url) as response:
                    if (await response.json())["ring"] == wanted:
                        return
                await asyncio.sleep(0.02)
