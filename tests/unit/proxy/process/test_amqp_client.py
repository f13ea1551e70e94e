"""The limits of aio-pika's connections, with a broker that announces too much. No real one does."""

import asyncio
import gc
import struct
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aio_pika
import pytest
import yarl

from proxy.process.amqp_client import MAX_BODY, MAX_FRAME, BoundedConnection

START, HEADER = b"\1\0\0", b"\2\0\1"
MOST_TAKEN = 8 * 1024 * 1024
"""Bytes that two buffers of sockets and a reader's may hold."""


@asynccontextmanager
async def broker_that_sends(head: bytes, taken: list[int]) -> AsyncIterator[int]:
    """Give the port of a broker that sends some bytes and zeros behind them, and counts how many are taken."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken.append(0)
        await reader.readexactly(8)
        writer.write(head)
        try:
            while taken[0] < 256 * 1024 * 1024:
                writer.write(bytes(1 << 16))
                await writer.drain()
                taken[0] += 1 << 16
        except ConnectionError:
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


def content_header(size: int) -> bytes:
    payload = struct.pack(">HHQH", 60, 0, size, 0)
    return HEADER + struct.pack(">I", len(payload)) + payload + b"\xce"


@pytest.mark.parametrize(
    ("head", "told"),
    [
        (START + struct.pack(">I", 0xFFFFFFFF), f"a frame of {0xFFFFFFFF} bytes, more than {MAX_FRAME}"),
        (START + struct.pack(">I", MAX_FRAME + 1), f"a frame of {MAX_FRAME + 1} bytes"),
        (content_header(2**62), f"a message of {2**62} bytes, more than {MAX_BODY}"),
        (content_header(MAX_BODY + 1), f"a message of {MAX_BODY + 1} bytes"),
    ],
)
async def test_what_is_announced_beyond_a_limit_is_not_read(head: bytes, told: str) -> None:
    taken: list[int] = []
    async with broker_that_sends(head, taken) as port:
        with pytest.raises(aio_pika.exceptions.AMQPError, match=told):
            await aio_pika.connect(port=port, connection_class=BoundedConnection)
    assert taken[0] < MOST_TAKEN


async def test_a_frame_and_a_message_of_the_most_bytes_are_read() -> None:
    """They are read to their ends, and refused only because they are no connection.start."""
    for head in (START + struct.pack(">I", MAX_FRAME), content_header(MAX_BODY)):
        async with broker_that_sends(head, []) as port:
            with pytest.raises((aio_pika.exceptions.AMQPError, ValueError)) as raised:
                await aio_pika.connect(port=port, connection_class=BoundedConnection)
        assert "more than" not in str(raised.value)


async def test_a_connection_that_was_never_open_is_collected_in_silence_in_any_thread() -> None:
    """Threads build rings meanwhile, and any of them may collect it."""
    kept = [BoundedConnection(yarl.URL("amqp://127.0.0.1:1/"))]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        await asyncio.to_thread(kept.clear)
        gc.collect()
    assert [str(each.message) for each in told] == []
