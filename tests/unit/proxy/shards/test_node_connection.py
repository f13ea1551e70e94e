"""A connection to one node that coroutines of a topology command share."""

import asyncio
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import pytest

from proxy.shards import broker
from proxy.shards.broker import NodeConnection


def opened() -> Mock:
    """Return a connection as aio-pika has it: its end clears `connected`, and sets nothing else."""
    connection = Mock(close=AsyncMock(), connected=asyncio.Event())
    connection.connected.set()
    return connection


@pytest.fixture
def connects(monkeypatch: pytest.MonkeyPatch) -> AsyncMock:
    made = AsyncMock(side_effect=lambda *_: opened())
    monkeypatch.setattr(broker, "connected_to", made)
    return made


def node() -> NodeConnection:
    return NodeConnection(cast(Any, None), "/", "test", cast(Any, None))


async def test_all_who_ask_share_one_connection(connects: AsyncMock) -> None:
    shared = node()
    first, *others = await asyncio.gather(*(shared.open() for _ in range(5)))
    assert all(each is first for each in others)
    assert connects.await_count == 1


async def test_a_lost_connection_is_opened_anew_once(connects: AsyncMock) -> None:
    shared = node()
    lost = await shared.open()
    lost.connected.clear()
    first, second = await asyncio.gather(shared.open(), shared.open())
    assert first is second is not lost
    assert connects.await_count == 2
    cast(Mock, lost.close).assert_awaited_once()


async def test_a_node_that_takes_no_connection_is_tried_again_only_after_a_while(
    connects: AsyncMock, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, make = node(), connects.side_effect
    connects.side_effect = OSError("no route")
    for _ in range(100):
        with pytest.raises(OSError, match="no route"):
            await shared.open()
    assert connects.await_count == 1
    connects.side_effect = make
    monkeypatch.setattr(broker, "_TRIED_AGAIN", 0.0)
    assert (await shared.open()).connected.is_set()
