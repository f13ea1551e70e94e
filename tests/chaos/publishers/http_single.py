"""Publishes single messages over HTTP, some at once, each worker over a connection that it keeps."""

import asyncio
import time

import aiohttp

from tests.chaos.publishers.notes import PAUSE, Notes, Task, task

WORKERS = 8
ANSWER_WITHIN = aiohttp.ClientTimeout(total=15, sock_connect=3)

TOLD = {
    "confirmed": "confirmed",
    "passed": "confirmed",
    "nacked": "nacked",
    "unroutable": "returned",
    "unavailable": "refused",
    "rejected": "refused",
    "unknown": "unknown",
}
"""By the outcome of an answer; any other is a mistake of this publisher, or an unexpected error, and ends it."""

LOST = (aiohttp.ClientError, TimeoutError)


async def ask(session: aiohttp.ClientSession, url: str, key: str, body: str) -> str:
    """Return what is told of one publish."""
    try:
        async with session.post(url, data=body.encode(), headers={"Routing-Key": key}) as response:
            return TOLD[(await response.json(content_type=None))["outcome"]]
    except aiohttp.ClientConnectorError:
        return "refused"
    except LOST:
        return "unknown"


async def work(todo: Task, notes: Notes, name: str) -> None:
    url = f"http://127.0.0.1:{todo.ports[0]}/v1/exchanges/{todo.exchange}/publish"
    async with aiohttp.ClientSession(timeout=ANSWER_WITHIN, connector=aiohttp.TCPConnector(limit=1)) as session:
        while not notes.over:
            await asyncio.sleep(notes.wait())
            number, key = notes.next()
            sent = time.monotonic()
            told = await ask(session, url, key, notes.body(number))
            notes.write(name, number, key, sent, told)
            if told != "confirmed":
                await asyncio.sleep(PAUSE)


async def main() -> None:
    todo = task()
    with Notes(todo) as notes:
        await asyncio.gather(*(work(todo, notes, str(worker)) for worker in range(WORKERS)))


if __name__ == "__main__":
    asyncio.run(main())
