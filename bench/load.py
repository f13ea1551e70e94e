"""Clients that publish as fast as they are answered, refusals included, and tell of every answer."""

import asyncio
import time
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

from bench.wire import Answer, Answers

Answered = Callable[[Answer | None, float], None]
"""A function that is called with each answer and the seconds since its request; the answer is None where there is
none.
"""

_AGAIN = 0.05
"""The seconds until a connection that could not be made is tried again."""


class Client:
    """One connection that always has one request under way, made again whenever it ends."""

    def __init__(self, url: str, requests: Iterator[bytes], answered: Answered) -> None:
        """`requests` never end."""
        address = urlsplit(url)
        self._host, self._port = address.hostname or "127.0.0.1", address.port or 80
        self._requests, self._answered = requests, answered
        self._stopping = False
        self.waits_since: float | None = None
        """When the request was sent that is not answered yet (time.perf_counter)."""

    async def run(self) -> None:
        """Publish until stopped and answered."""
        while not self._stopping:
            try:
                transport, connection = await asyncio.get_running_loop().create_connection(
                    lambda: _Connection(self), self._host, self._port
                )
            except OSError:
                self._answered(None, 0.0)
                await asyncio.sleep(_AGAIN)
                continue
            await connection.ended
            transport.close()

    def stop(self) -> None:
        """Send nothing more."""
        self._stopping = True

    def next(self) -> bytes | None:
        """Return the next request, None for no more."""
        if self._stopping:
            return None
        self.waits_since = time.perf_counter()
        return next(self._requests)

    def settle(self, answer: Answer | None) -> None:
        """Take the answer, or the connection's end without one."""
        since, self.waits_since = self.waits_since, None
        if since is not None:
            self._answered(answer, time.perf_counter() - since)


class _Connection(asyncio.Protocol):
    def __init__(self, client: Client) -> None:
        self._client = client
        self._answers = Answers()
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._send()

    def data_received(self, data: bytes) -> None:
        for answer in self._answers.feed(data):
            self._client.settle(answer)
            if answer.closes:
                self._end()
            else:
                self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.settle(None)
        self._end()

    def _send(self) -> None:
        request = self._client.next()
        if request is None:
            self._end()
        else:
            self._transport.write(request)

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
