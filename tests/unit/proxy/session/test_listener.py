"""The end of the AMQP listener, with connections that still come."""

import asyncio
import contextlib
import socket
from collections import Counter
from unittest.mock import Mock

import pytest
import uvloop

from proxy.session.listener import Listener
from proxy.session.shared import Shared
from proxy.settings.parse import Address
from proxy.wire.frames import PROTOCOL_HEADER


@pytest.mark.parametrize("turns", range(8))
def test_a_connection_that_the_loop_hands_over_behind_the_end_is_closed(turns: int) -> None:
    """`turns` is how far the event loop is with the connection when the listener closes.

    The loop is that of a sidecar: asyncio's own leaves a connection open that it accepts as its server closes.
    """
    uvloop.run(_is_closed(turns))


async def _is_closed(turns: int) -> None:
    shared = Mock(spec=Shared, refusals=Counter(), tasks=set(), kept=None)
    listener = Listener(shared, 1)
    address = await listener.start(Address("127.0.0.1", 0))
    await listener.drain(0.1)
    with contextlib.closing(socket.create_connection((address.host, address.port))) as client:
        client.sendall(PROTOCOL_HEADER)
        for _ in range(turns):
            await asyncio.sleep(0)
        listener.close()
        client.setblocking(False)
        with contextlib.suppress(ConnectionResetError):
            async with asyncio.timeout(5):
                while await asyncio.get_running_loop().sock_recv(client, 1000):
                    pass
