"""The reading of orders to pause on a broker that ceases to answer: which connections and channels are given up."""

import asyncio
from typing import Any

import pytest

from proxy.groups import pause_log
from proxy.groups.membership import Line
from proxy.groups.pause_log import PauseLog
from tests.unit.proxy.eventually import eventually


class Channel:
    """A channel on which the broker answers nothing but its close."""

    def __init__(self) -> None:
        self.is_closed = False

    async def set_qos(self, _: int) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None:
        self.is_closed = True


class Connection:
    """A connection that opens a few channels, and then no more."""

    def __init__(self, opens: int) -> None:
        self.connected, self.is_closed = asyncio.Event(), False
        self.connected.set()
        self._opens = opens
        self.channels: list[Channel] = []

    async def channel(self, **_: object) -> Channel:
        if len(self.channels) == self._opens:
            await asyncio.Event().wait()
        self.channels.append(Channel())
        return self.channels[-1]

    async def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("opens", [0, 1, 2])
async def test_the_connection_of_all_groups_is_given_up_only_if_it_opens_no_channel(
    monkeypatch: pytest.MonkeyPatch, opens: int
) -> None:
    monkeypatch.setattr(pause_log, "TRY", 0.05)
    made: list[Connection] = []

    async def connect() -> Any:
        made.append(Connection(opens))
        return made[-1]

    line = Line("/", connect)
    reading = PauseLog(line, "group", "orders", lambda: None, lambda _: None, lambda: None)
    await eventually(lambda: reading.fault != "")
    assert reading.fault == "the broker does not answer in time"
    assert [(each.is_closed, len(each.channels)) for each in made] == [(opens < 2, opens)]
    assert all(channel.is_closed for channel in made[0].channels)
    await reading.aclose()
    await line.aclose()
