"""An HTTP client that limits what a server can make it hold and do; aiohttp itself waits for the end of everything."""

import asyncio
import functools
from collections.abc import Callable
from typing import Any, Final

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import RawResponseMessage
from aiohttp.streams import StreamReader

MOST_INTERIM: Final = 8
"""The most interim answers (1xx) before the final one. Each costs kilobytes, and aiohttp takes any number of them."""

_PIECE: Final = 4096
"""The most bytes that are parsed at a time before the head of an answer has come; some 100 interim answers."""


def session(timeout: float, connections: int) -> aiohttp.ClientSession:
    """Return a session in which a request may take `timeout` seconds, with its body.

    It opens as many connections as given, keeps no cookies, and takes no compressed answers: a few bytes of these may
    stand for gigabytes, and to compress its lists costs the broker CPU time. It must be made inside the event loop.
    """
    connector = aiohttp.TCPConnector(limit=connections)
    protocol: Callable[..., ResponseHandler] = _Protocol
    connector._factory = functools.partial(protocol, loop=asyncio.get_running_loop())
    return aiohttp.ClientSession(
        connector=connector,
        headers={"Accept": "application/json", "Accept-Encoding": "identity"},
        timeout=aiohttp.ClientTimeout(total=timeout),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        # Proxies in the environment are for the way out, not for the broker beside us.
        trust_env=False,
    )


async def limited(response: aiohttp.ClientResponse, most: int) -> bytearray:
    """Return the body of an answer. Raises ValueError if it is longer than `most` bytes, or compressed."""
    coding = response.headers.get("Content-Encoding", "identity")
    if coding.strip().lower() not in ("", "identity"):
        raise ValueError(f"Content-Encoding: {coding[:40]!r} was not asked for")
    body = bytearray()
    if (response.content_length or 0) > most:
        raise ValueError(f"longer than {most} bytes")
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > most:
            body.clear()  # or it would live as long as the error, whose traceback has this frame
            raise ValueError(f"longer than {most} bytes")
    return body


class _Protocol(ResponseHandler):
    """A connection that ends if the server sends more than MOST_INTERIM interim answers to one request."""

    _interim = 0
    """The number of interim answers to this request."""
    _final = False
    """Whether the head of the answer itself has come."""

    def set_response_params(self, **parameters: Any) -> None:
        self._interim, self._final = 0, False
        super().set_response_params(**parameters)

    def data_received(self, data: bytes) -> None:
        """Parse what a server sent: in pieces until its final answer comes, so that interim ones (1xx) are counted."""
        if self._final:
            super().data_received(data)
            return
        # One read may have thousands of interim answers, and all of a piece are parsed before the first is counted.
        for start in range(0, max(1, len(data)), _PIECE):
            if self._interim <= MOST_INTERIM:
                super().data_received(data[start : start + _PIECE])

    def feed_data(self, data: tuple[RawResponseMessage, StreamReader], size: int = 0) -> None:
        """Count interim answers, and end the connection beyond MOST_INTERIM."""
        self._final = not 100 <= data[0].code < 200
        self._interim += not self._final
        if self._interim <= MOST_INTERIM:
            super().feed_data(data, size)
        elif self._interim == MOST_INTERIM + 1:
            self.abort()  # which forgets the exception
            self.set_exception(aiohttp.ClientPayloadError(f"more than {MOST_INTERIM} interim answers (1xx)"))
