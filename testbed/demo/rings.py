"""A ring as a sidecar's admin listener tells of it."""

import asyncio
from collections.abc import Mapping

import aiohttp

from ring.destination import Destination
from ring.ring import fingerprint
from testbed.demo.world import HASH
from testbed.sidecar import Sidecar


class Rings:
    """One exchange's ring, as it changes."""

    def __init__(self, sidecar: Sidecar, vhost: str, exchange: str) -> None:
        """Names that need no percent-encoding."""
        self._url = f"{sidecar.admin_url}/rings/{vhost}/{exchange}"

    async def until(self, weights: Mapping[str, int]) -> None:
        """Return once the ring of these weights is in force."""
        wanted = fingerprint({Destination("queue", q): w for q, w in weights.items()}, HASH, "routing_key")
        async with aiohttp.ClientSession() as session, asyncio.timeout(30):
            while True:
                async with session.get(self._url) as response:
                    if (await response.json())["ring"] == wanted:
                        return
                await asyncio.sleep(0.02)
