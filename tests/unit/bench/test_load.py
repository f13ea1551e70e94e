"""The clients of the freeze tell of every answer, and of connections that end without one."""

import asyncio
import itertools

from bench import wire
from bench.load import Client
from bench.wire import Answer

ANSWERS = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    b"",
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n",
]


async def test_a_client_goes_on_after_refusals_and_lost_connections() -> None:
    answers, told, served = iter(ANSWERS), list[Answer | None](), list[asyncio.Task[None] | None]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The next answer to each request; an empty one ends the connection."""
        served.append(asyncio.current_task())
        while await reader.read(65536) and (answer := next(answers)):
            writer.write(answer)
            if b"close" in answer:
                break
        writer.close()
        await writer.wait_closed()

    def answered(answer: Answer | None, took: float) -> None:
        told.append(answer)
        if len(told) == len(ANSWERS):
            client.stop()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    client = Client(url, itertools.repeat(wire.post("/", b"x", {})), answered)
    async with asyncio.timeout(10):
        await client.run()
        await asyncio.gather(*filter(None, served))
    server.close()
    assert told == [Answer(200, False), Answer(429, True), None, Answer(503, False)]
    assert client.waits_since is None
