"""Waiting for what has no event to wait for."""

import asyncio
from collections.abc import Callable


async def eventually(holds: Callable[[], bool]) -> None:
    """Return once it holds; fail where it does not within many seconds."""
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
