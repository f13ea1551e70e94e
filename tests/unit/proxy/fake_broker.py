"""A listener in the broker's place that does as a test asks: faults that no real broker makes to order."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from struct import unpack_from

from pamqp import commands

from proxy.publisher.dial import Brokers
from proxy.settings.parse import Address
from proxy.wire.frames import FRAME
from tests.unit.proxy.session.wire import ack, close_connection, made, method

START = made(0, commands.Connection.Start(0, 9, {"cluster_name": "rabbit@fake"}, "PLAIN", "en_US"))


class Visit:
    """One connection of a client, with the handshake as the broker's settings have it."""

    def __init__(self, broker: "FakeBroker", reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._broker, self._reader, self._writer = broker, reader, writer
        self.logins: list[bytes] = []
        self.vhost = ""
        self.methods: list[tuple[int, int]] = []
        """All that came, in their order."""
        self.bodies: list[bytes] = []
        """The bodies of the publishes on any channel."""
        self.heartbeats = 0
        self.reads = asyncio.Event()
        """Cleared, it reads no more."""
        self.reads.set()
        self.ended = False
        """The client's half of the connection."""

    def say(self, data: bytes) -> None:
        self._writer.write(data)

    def drop(self) -> None:
        """Ends the connection without a word."""
        self._writer.transport.abort()

    async def serve(self) -> None:
        try:
            await self._reader.readexactly(8)
            self.say(self._broker.greeting)
            while True:
                await self.reads.wait()
                kind, channel, size = FRAME.unpack(await self._reader.readexactly(FRAME.size))
                payload = (await self._reader.readexactly(size + 1))[:-1]
                self._on_frame(kind, channel, payload)
                self._broker.tell()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.ended = True
            self._broker.tell()

    def _on_frame(self, kind: int, channel: int, payload: bytes) -> None:
        self.heartbeats += kind == 8
        if kind == 3:
            self.bodies.append(payload)
            if self._broker.confirms:
                self.say(ack(channel, len(self.bodies)))
        elif kind == 1:
            self._on_method(channel, unpack_from(">HH", payload), payload)

    def _on_method(self, channel: int, which: tuple[int, ...], payload: bytes) -> None:
        broker = self._broker
        self.methods.append((which[0], which[1]))
        match which:
            case (10, 11):
                self.logins.append(payload)
                refused = broker.refuse and close_connection(broker.refuse, b"REFUSED - said the fake")
                self.say(refused or made(0, commands.Connection.Tune(2047, 131072, broker.heartbeat)))
            case (10, 40):
                self.vhost = payload[5 : 5 + payload[4]].decode()
                self.say(made(0, commands.Connection.OpenOk()))
            case (10, 50) if broker.polite:
                self.say(method(0, 10, 51))
            case (20, 10):
                self.say(method(channel, 20, 11, bytes(4)))


class FakeBroker:
    """Keeps every visit."""

    def __init__(
        self,
        *,
        heartbeat: int = 20,
        refuse: int = 0,
        confirms: bool = False,
        polite: bool = True,
        greeting: bytes = START,
    ) -> None:
        """`refuse` is a reply code at login. One that `confirms` acks each body on a connection's first channel.

        One that is not `polite` does not answer connection.close.
        """
        self.heartbeat, self.refuse, self.confirms = heartbeat, refuse, confirms
        self.polite, self.greeting = polite, greeting
        self.visits: list[Visit] = []
        self.address = Address("", 0)
        self._news = asyncio.Event()

    def tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Looks each time that anything came."""
        async with asyncio.timeout(20):
            while not holds():
                await self._news.wait()

    async def visit(self, number: int = 1) -> Visit:
        """Return the visit of this number, once it is there."""
        await self.until(lambda: len(self.visits) >= number)
        return self.visits[number - 1]

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visit = Visit(self, reader, writer)
        self.visits.append(visit)
        self.tell()
        try:
            await visit.serve()
        finally:
            writer.transport.abort()

    def brokers(self, timeout: float = 5) -> Brokers:
        return Brokers([self.address], None, timeout)


@asynccontextmanager
async def listening(broker: FakeBroker) -> AsyncIterator[FakeBroker]:
    """On a loopback port, with small buffers: what is not read is soon felt."""
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        bound.bind(("127.0.0.1", 0))
        broker.address = Address("127.0.0.1", bound.getsockname()[1])
        tasks: set[asyncio.Task[None]] = set()

        def come(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(broker.answer(reader, writer))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        server = await asyncio.start_server(come, sock=bound)
        try:
            yield broker
        finally:
            server.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def free_address() -> Address:
    """Where nobody listens."""
    with contextlib.closing(socket.socket()) as bound:
        bound.bind(("127.0.0.1", 0))
        return Address("127.0.0.1", bound.getsockname()[1])
