"""Bytes that are written in one go arrive whole and in order, joined or not, also where the peer reads late."""

import asyncio
import socket
from collections.abc import Callable

import pytest
import uvloop

from proxy.wire.writing import write

PIECES = {
    "one": [b"a"],
    "small": [b"a", b"bc", b"", b"d" * 100],
    "many": [b"%d," % n for n in range(1000)],
    "many large": [b"%d," % n * 2000 for n in range(40)],
    "large": [b"head", b"x" * 200_000, b"end", b"y" * 5_000_000, b"last"],
    "views": [b"head", memoryview(b"-" + b"z" * 300_000)[1:], b"end"],
}


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("pieces", PIECES.values(), ids=PIECES)
def test_all_of_it_in_order(
    pieces: list[bytes | memoryview], new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def sent() -> bytes:
        loop = asyncio.get_running_loop()
        here, there = socket.socketpair()
        with here, there:
            there.setblocking(False)
            transport, _ = await loop.create_connection(asyncio.Protocol, sock=here)
            for _ in range(3):
                given = list(pieces)
                write(transport, given)
                given.clear()
            transport.write_eof()
            got = bytearray()
            async with asyncio.timeout(10):
                while data := await loop.sock_recv(there, 1 << 18):
                    got += data
            transport.close()
        return bytes(got)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(sent()) == b"".join(pieces) * 3
