"""The attendants of a listener's sessions, as far as sessions do not show it."""

import asyncio
from collections.abc import Callable
from typing import cast
from unittest.mock import Mock

import pytest
from pamqp import commands

from proxy.groups.consuming.attendant import MOST_NAMED, Attendants
from proxy.groups.consuming.events import DeclaredGroup, Shadowed
from proxy.groups.groups import Groups
from proxy.session import client_loop
from proxy.session.state import Phase
from proxy.settings.config import Settings
from proxy.topology.lookups import Absent, NotReadable
from tests.unit.proxy.groups.consuming.grouping import FIRST, Grouping
from tests.unit.proxy.session.wire import close_channel, made, split


class Shards:
    """In the place of the groups: the shards of each exchange, or the error with which reading them ends."""

    consumer_timeout = 0.0

    def __init__(self, found: list[str] | Exception | None) -> None:
        self.found, self.may_answer = found, asyncio.Event()

    def match(self, vhost: str, exchange: str) -> bool:
        return True

    async def shards(self, name: tuple[str, str]) -> list[str] | None:
        await self.may_answer.wait()
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


class Attended(Grouping):
    """A session's core with its attendant, whose client asks for the queue x, which is an exchange."""

    def __init__(self, groups: Shards) -> None:
        super().__init__()
        self.groups, self.errors, self.acted = groups, list[Exception](), 0
        self.attendant = Attendants(cast(Groups, groups), Settings(), Mock())(
            self.c, lambda: "peer", self._guarded, self._acted
        )
        self.consuming = self.c.interceptor = self.attendant.interceptor
        self.consuming.opened(FIRST, 20)
        self.client(made(1, commands.Queue.Declare(queue="x")))
        missing = close_channel(FIRST, 404, b"NOT_FOUND - no queue 'x' in vhost '/'", (50, 10))
        self.both(made(FIRST, commands.Channel.OpenOk()) + missing)
        self.both(made(FIRST, commands.Channel.OpenOk()) + made(FIRST, commands.Exchange.DeclareOk()))
        self.attendant.go_on()

    def _guarded(self, do: Callable[[], None]) -> None:
        try:
            do()
        except Exception as error:
            self.errors.append(error)

    def _acted(self) -> None:
        self.acted += 1
        client_loop.resume(self.c)

    async def answered(self) -> None:
        self.groups.may_answer.set()
        for _ in range(5):
            await asyncio.sleep(0)


def test_the_log_tells_of_each_name_once_and_of_so_many_names_only() -> None:
    attendants = Attendants(cast(Groups, Shards(None)), Settings(), Mock())
    assert attendants.tells_first("/", DeclaredGroup("x"))
    assert not attendants.tells_first("/", DeclaredGroup("x"))
    assert attendants.tells_first("/", Shadowed("x"))
    assert attendants.tells_first("other", DeclaredGroup("x"))
    told = sum(attendants.tells_first("/", DeclaredGroup(f"made up {n}")) for n in range(2 * MOST_NAMED))
    assert told == MOST_NAMED - 3


async def test_a_waiting_declaration_goes_on_with_the_shards_of_its_exchange() -> None:
    wire = Attended(Shards(["q1", "q2"]))
    await wire.answered()
    assert [(each.channel, each.id) for each in split(wire.to_broker())] == 2 * [(FIRST, (50, 10))]
    assert (wire.acted, wire.errors) == (1, [])


@pytest.mark.parametrize(
    ("error", "why"),
    [(NotReadable("no answer"), "no answer"), (Absent("gone"), "the management API does not show the exchange")],
)
async def test_a_waiting_declaration_is_refused_where_the_shards_cannot_be_read(error: Exception, why: str) -> None:
    wire = Attended(Shards(error))
    await wire.answered()
    assert {(each.channel, each.id) for each in split(wire.to_broker())} == {(1, (20, 40)), (FIRST, (20, 40))}
    refused = wire.broker(made(1, commands.Channel.CloseOk()))
    assert f"it is not known whether 'x' is a group: {why}".encode() in refused


async def test_an_unexpected_error_of_the_reading_ends_the_session() -> None:
    wire = Attended(Shards(KeyError("oops")))
    await wire.answered()
    assert [type(error) for error in wire.errors] == [KeyError]


@pytest.mark.parametrize("end", ["channel", "session", "lost"])
async def test_shards_that_come_after_the_end_change_nothing(end: str) -> None:
    wire = Attended(Shards(["q1"]))
    if end == "channel":
        wire.both(close_channel(1, 406, b"PRECONDITION_FAILED"))
    elif end == "session":
        wire.c.enter(Phase.CLOSING)
    else:
        wire.attendant.lost()
    wire.to_broker()
    await wire.answered()
    assert [each for each in split(wire.to_broker()) if each.channel == FIRST] == []
    assert (wire.acted, wire.errors) == (int(end == "channel"), [])


@pytest.mark.parametrize(
    ("settings", "spares"),
    [
        (Settings(), True),
        (Settings(groups_retry_then="stop"), False),
        (Settings(groups=("x",), groups_dead_letter="dead"), False),
    ],
)
def test_a_message_that_ends_its_clients_stands_still_only_where_that_is_asked_for(
    settings: Settings, spares: bool
) -> None:
    assert Attendants(cast(Groups, Shards([])), settings, Mock()).rules.spares is spares
