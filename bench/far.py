"""A TCP relay that makes a broker far: `python -m bench.far HOST:PORT SECONDS` prints its port.

SECONDS are the round-trip time that it adds: half of it to all bytes, each way, and the whole of it once to the first
bytes of a connection, as the TCP handshake takes one round trip.
"""

import asyncio
import selectors
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast


class _Way(asyncio.Protocol):
    """One side of a connection; what comes in goes out at the other side, later."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.other: _Way | None = None
        self.transport: asyncio.Transport | None = None
        self._waiting: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        for data in self._waiting:
            self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        asyncio.get_running_loop().call_later(self._seconds, self._pass_on, data)

    def _pass_on(self, data: bytes) -> None:
        assert self.other is not None
        if self.other.transport is None:
            self.other._waiting.append(data)
        else:
            self.other.transport.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        asyncio.get_running_loop().call_later(self._seconds, self._end)

    def _end(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()


class _Arrival(_Way):
    """The side of whoever connects."""

    def __init__(self, host: str, port: int, seconds: float) -> None:
        super().__init__(seconds / 2)
        self._address, self._round_trip = (host, port), seconds

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.other = _Way(self._seconds)
        self.other.other = self
        asyncio.get_running_loop().call_later(self._round_trip, self._dial, self.other)

    def _dial(self, other: _Way) -> None:
        self._task = asyncio.get_running_loop().create_task(
            asyncio.get_running_loop().create_connection(lambda: other, *self._address)
        )


@contextmanager
def far(host: str, port: int, seconds: float) -> Iterator[int]:
    """Run a relay to this port while the context lasts, and yield its own port on 127.0.0.1."""
    command = [sys.executable, "-m", "bench.far", f"{host}:{port}", f"{seconds}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()


async def _serve(target: str, seconds: float) -> None:
    host, _, port = target.rpartition(":")
    server = await asyncio.get_running_loop().create_server(lambda: _Arrival(host, int(port), seconds), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def _precise_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop with timers of less than the millisecond of epoll and uvloop."""
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=_precise_loop) as runner:
        runner.run(_serve(sys.argv[1], float(sys.argv[2])))
