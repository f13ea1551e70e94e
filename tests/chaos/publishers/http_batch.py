"""Publishes batches over HTTP, one after the other."""

import asyncio
import itertools
import json
import time

import aiohttp

from tests.chaos.publishers.http_single import ANSWER_WITHIN, LOST, TOLD
from tests.chaos.publishers.notes import PAUSE, Notes, task

SIZE = 1500


async def ask(session: aiohttp.ClientSession, url: str, lines: list[str]) -> list[str]:
    """Return what is told of each message."""
    try:
        headers = {"Content-Type": "application/x-ndjson"}
        async with session.post(url, data="".join(lines).encode(), headers=headers) as response:
            answer = await response.json(content_type=None)
    except aiohttp.ClientConnectorError:
        return ["refused"] * len(lines)
    except LOST:
        return ["unknown"] * len(lines)
    results = answer.get("results") or [answer] * len(lines)
    return [TOLD[result["outcome"]] for result in results]


async def main() -> None:
    todo = task()
    url = f"http://127.0.0.1:{todo.ports[0]}/v1/exchanges/{todo.exchange}/publish/batch"
    with Notes(todo) as notes:
        async with aiohttp.ClientSession(timeout=ANSWER_WITHIN) as session:
            for name in itertools.count(1):
                if notes.over:
                    return
                await asyncio.sleep(notes.wait())
                messages = [notes.next() for _ in range(SIZE)]
                lines = [json.dumps({"key": key, "payload": notes.body(number)}) + "\n" for number, key in messages]
                sent = time.monotonic()
                told = await ask(session, url, lines)
                for (number, key), outcome in zip(messages, told, strict=True):
                    notes.write(str(name), number, key, sent, outcome)
                if "confirmed" not in told:
                    await asyncio.sleep(10 * PAUSE)


if __name__ == "__main__":
    asyncio.run(main())
