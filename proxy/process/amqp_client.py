"""The connections of aio-pika, with limits of what a broker can make them hold.

aiormq, below aio-pika, reads as many bytes as the head of a frame announces, up to 4 GiB, and collects bodies of any
size. It imports much, so only what opens such a connection imports this module.
"""

import asyncio
import logging
import ssl
from typing import Any, Final, cast

import aio_pika
from aio_pika.abc import AbstractConnection
from aiormq.connection import TCPTransportFactory, TLSTransportFactory, TransportFactory
from yarl import URL

from proxy.settings.parse import Address

# They log a lost connection with tracebacks; here it is one line.
for _name in ("aiormq", "aio_pika"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)

MAX_FRAME: Final = 1024 * 1024
"""The most bytes of a frame's payload; RabbitMQ sends 128 KiB unless an operator has raised `frame_max`."""

MAX_BODY: Final = 16 * 1024 * 1024
"""The most bytes of a message, as in RabbitMQ 4 by default. A beat of a group has 2 MiB at most."""

_HEADER: Final = b"\2"
"""The type of a frame with a content header."""

_HEAD: Final = 6
"""The bytes of a frame between its type and its payload."""

_BODY_SIZE: Final = slice(4, 12)
"""The place of the body's size in a content header."""


class BoundedConnection(aio_pika.Connection):
    """A connection that ends when the broker announces a frame or a body beyond the limits."""

    def __init__(self, url: URL, *arguments: Any, **more: Any) -> None:
        """Take the arguments of aio-pika's connection."""
        super().__init__(url, *arguments, **more)
        self.kwargs["transport_factory"] = _BoundedTransport()

    def __del__(self) -> None:
        """Leave the connection as it is: its opener closes it, and one that could not be opened has no socket.

        aio-pika would begin to close it here. In a thread without an event loop, which may be the one that collects the
        connection, that comes to nothing but a warning in the log.
        """


async def connect(
    address: Address, login: tuple[str, str], vhost: str, context: ssl.SSLContext | None, name: str, **more: Any
) -> AbstractConnection:
    """Return a bounded connection to one node; without `context` over plain TCP. Raises OSError or an AMQP error.

    `name` is the connection's name in the broker's management pages; `more` are further arguments of aio-pika's.
    """
    connection: AbstractConnection = await aio_pika.connect(
        host=address.host,
        port=address.port,
        login=login[0],
        password=login[1],
        virtualhost=vhost,
        ssl=context is not None,
        ssl_context=context,
        client_properties={"connection_name": name},
        connection_class=BoundedConnection,
        **more,
    )
    return connection


class _BoundedTransport(TransportFactory):
    async def create(self, url: URL, **arguments: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection as aiormq would, with a reader that has limits."""
        factory = TLSTransportFactory() if url.scheme == "amqps" else TCPTransportFactory()
        reader, writer = await factory.create(url, **arguments)
        return cast(asyncio.StreamReader, _BoundedReader(reader)), writer


class _BoundedReader:
    """The part of a stream reader that aiormq uses. For each frame it reads the type, six bytes more, and the rest."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._type = b""

    def at_eof(self) -> bool:
        return self._reader.at_eof()

    async def readexactly(self, n: int) -> bytes:
        """Return that many bytes. Raises ConnectionError if they are of a frame or a body beyond the limits."""
        if n > MAX_FRAME + 1:
            raise ConnectionError(f"the broker sends a frame of {n - 1} bytes, more than {MAX_FRAME}")
        read = await self._reader.readexactly(n)
        if n == 1:
            self._type = read
        elif self._type == _HEADER and n > _HEAD and (size := int.from_bytes(read[_BODY_SIZE])) > MAX_BODY:
            raise ConnectionError(f"the broker sends a message of {size} bytes, more than {MAX_BODY}")
        return read
