"""How long a reading of the bindings takes, done all the time by the recorder itself, as a sidecar does it."""

import asyncio
import time

import aiohttp

from ring.destination import Destination
from ring.ring import Ring
from tests.chaos.history import History, Span
from tests.chaos.queues import CHANGING, EXCHANGE, STEADY

PROMPT = 0.75
"""Seconds. A slower answer, on processors that are all busy, counts as a time in which nobody could have read."""

BETWEEN = 0.5


async def watch(port: int, history: History) -> None:
    """Write down when readings were not prompt, until cancelled."""
    async with aiohttp.ClientSession(
        f"http://127.0.0.1:{port}", auth=aiohttp.BasicAuth("guest", "guest"), timeout=aiohttp.ClientTimeout(total=5)
    ) as session:
        while True:
            begin = time.monotonic()
            try:
                await _read(session)
                prompt = time.monotonic() - begin < PROMPT
            except (aiohttp.ClientError, TimeoutError):
                prompt = False
            if not prompt:
                history.impaired.append(Span(begin - BETWEEN, time.monotonic()))
            await asyncio.sleep(BETWEEN)


async def _read(session: aiohttp.ClientSession) -> None:
    """The requests of one reading, and the work of a ring."""
    await _ask(session, f"exchanges/%2F/{EXCHANGE}")
    await _ask(session, f"exchanges/%2F/{EXCHANGE}/bindings/source")
    for queues in (STEADY, CHANGING):
        await asyncio.gather(*(_ask(session, f"queues/%2F/{queue}") for queue in queues))
    await asyncio.to_thread(Ring.build, {Destination("queue", queue): 1 for queue in STEADY})


async def _ask(session: aiohttp.ClientSession, path: str) -> None:
    """A queue may be deleted just then."""
    async with session.get(f"/api/{path}") as response:
        if response.status != 404:
            response.raise_for_status()
        await response.read()
