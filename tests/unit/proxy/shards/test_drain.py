"""A drainer's way from one node to the next, with connections that fail as a frozen or lost node's do."""

import itertools
from collections.abc import Callable
from unittest.mock import AsyncMock, Mock

import aio_pika
import pytest

from proxy.shards import drain
from proxy.shards.drain import Line, Queue


def node(fault: Exception | None = None) -> Mock:
    """Return a node whose channels are there, or cannot be had for a fault."""
    channel = AsyncMock(side_effect=fault, return_value=Mock(close=AsyncMock()))
    return Mock(open=AsyncMock(return_value=Mock(channel=channel)), channel=channel)


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Line]:
    """Return what makes a line whose tries end as given, the last one again and again."""
    monkeypatch.setattr(drain, "_FIRST_PAUSE", 0.001)

    def made(*nodes: Mock, ends: tuple[object, ...] = (True,)) -> Line:
        its, results = Line(nodes, Queue("q", 1), AsyncMock()), itertools.chain(ends, itertools.repeat(ends[-1]))

        async def joined(*_: object, **__: object) -> object:
            if isinstance(end := next(results), Exception):
                raise end
            return end

        monkeypatch.setattr(its, "_joined_and_empty", joined)
        return its

    return made


ROOM = Mock(__aenter__=AsyncMock(), __aexit__=AsyncMock(return_value=False))


@pytest.mark.parametrize("fault", [OSError("no answer in time"), aio_pika.exceptions.AMQPError("it is gone")])
async def test_a_node_that_does_not_answer_leaves_the_queue_to_the_next_one(
    line: Callable[..., Line], fault: Exception
) -> None:
    frozen, other, said = node(fault), node(), Mock()
    assert await line(frozen, other).drained(ROOM, said) is other.channel.return_value
    said.assert_called_once_with(f"  q: {fault}")


async def test_a_node_that_takes_no_connection_leaves_the_queue_to_the_next_one(line: Callable[..., Line]) -> None:
    lost, other = Mock(open=AsyncMock(side_effect=OSError("broker_url: no connection"))), node()
    assert await line(lost, other).drained(ROOM, Mock()) is other.channel.return_value


async def test_a_try_without_a_delivery_is_followed_by_one_at_another_node(line: Callable[..., Line]) -> None:
    nodes = [node() for _ in range(3)]
    assert await line(*nodes, ends=(False, False, True)).drained(ROOM, Mock()) is nodes[2].channel.return_value
    for left in nodes[:2]:
        left.channel.return_value.close.assert_awaited_once()


async def test_a_queue_is_gone_once_the_broker_has_said_so_twice(line: Callable[..., Line]) -> None:
    absent, down = (
        aio_pika.exceptions.ChannelNotFoundEntity(text) for text in ("no queue 'q' in vhost '/'", "home node is down")
    )
    nodes = [node(), node()]
    assert await line(*nodes, ends=(absent, down, absent, absent)).drained(ROOM, Mock()) is None
    assert sum(each.channel.await_count for each in nodes) == 4
