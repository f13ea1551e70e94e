"""A TCP relay that does to connections what networks do."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

CHUNK = 1 << 16


class _Pair:
    """Both sockets of one connection through the relay."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client, self.server = client, server
        self.vanishing = False
        self.cut: asyncio.StreamWriter | None = None
        """Towards whom the next bytes are cut short."""

    def close(self) -> None:
        self.client.close()
        self.server.close()

    def reset(self) -> None:
        """With RST both ways: what was under way is lost."""
        for end in (self.client, self.server):
            if not end.is_closing():
                end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.transport.abort()


class Relay:
    """Forwards TCP to `target` until told otherwise. Its port stays the same; `relay` gives one."""

    def __init__(self, target: int) -> None:
        self.target = target
        """A port of this machine; a new one counts for new connections."""
        self.port = 0
        self._pairs: set[_Pair] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until either side ends it."""
        try:
            answers, server = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        pair = _Pair(writer, server)
        self._pairs.add(pair)
        try:
            await asyncio.gather(self._forward(reader, server, pair), self._forward(answers, writer, pair))
        finally:
            self._pairs.discard(pair)
            pair.close()

    async def _forward(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, pair: _Pair) -> None:
        with suppress(OSError):
            while data := await source.read(CHUNK):
                await self._flowing.wait()
                if pair.vanishing:
                    continue
                if sink.is_closing():
                    break
                if pair.cut is sink:
                    # Frames end where writes do, nearly always: so this is within the last one.
                    sink.write(data[:-3])
                    break
                sink.write(data)
                await sink.drain()
        if not pair.vanishing:
            pair.close()

    def reset(self) -> int:
        """Resets every connection; how many there were."""
        pairs = set(self._pairs)
        for pair in pairs:
            pair.reset()
        return len(pairs)

    async def stall(self, seconds: float) -> int:
        """Let nothing through for a time, and loses nothing."""
        self._flowing.clear()
        try:
            await asyncio.sleep(seconds)
        finally:
            self._flowing.set()
        return len(self._pairs)

    async def vanish(self, seconds: float) -> int:
        """Swallows all that comes over the connections there are, ends of file too, and resets them after a time."""
        pairs = set(self._pairs)
        for pair in pairs:
            pair.vanishing = True
        await asyncio.sleep(seconds)
        for pair in pairs:
            pair.reset()
        return len(pairs)

    async def cut(self, seconds: float, *, towards_client: bool) -> int:
        """Cut the next bytes of each connection short, within a frame, and close it; how many it came to in time."""
        pairs = set(self._pairs)
        for pair in pairs:
            pair.cut = pair.client if towards_client else pair.server
        await asyncio.sleep(seconds)
        for pair in pairs:
            pair.cut = None
        return len(pairs - self._pairs)


@asynccontextmanager
async def relay(target: int) -> AsyncIterator[Relay]:
    """Yield a relay that is always closed, with its connections."""
    made = Relay(target)
    serving: set[asyncio.Task[None]] = set()

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(made.accept(reader, writer))
        serving.add(task)
        task.add_done_callback(serving.discard)

    server = await asyncio.start_server(accepted, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        made.reset()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        await server.wait_closed()
