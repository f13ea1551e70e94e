"""Who has connections, for how long, and what those who wait for one are told."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from proxy.outcome import Outcome
from proxy.publisher import pool as publisher_module
from proxy.publisher.connection import BrokerConnection
from proxy.publisher.dial import Brokers
from proxy.publisher.pool import ConnectionGroup, LoginRefused, Publisher, TooManyGuests, Unavailable
from proxy.routing.counters import Counters
from proxy.settings.missing_right import MissingRight
from proxy.settings.parse import Address
from tests.unit.proxy.eventually import eventually
from tests.unit.proxy.fake_broker import START, FakeBroker, free_address, listening
from tests.unit.proxy.publisher.client_wire import PERSISTENT_HEADER, TO_Q, Results, blocked
from tests.unit.proxy.session.wire import ack, close_channel

GUEST = "guest", "s3cret é"
CLOSE = 10, 50

LONG = 60.0
"""Seconds of a wait that would be noticed, however slow the machine is."""


@asynccontextmanager
async def publishing(
    broker: FakeBroker, *, before: Sequence[Address] = (), connections: int = 1, connect_timeout: float = 5
) -> AsyncIterator[Publisher]:
    """A publisher to a broker that listens; in the end every connection is closed, and nothing is in flight.

    `before` are addresses to try before the broker's.
    """
    async with listening(broker):
        made = Publisher(
            Brokers([*before, broker.address], None, 5).dial,
            lambda: ("me", "own"),
            connections=connections,
            connect_timeout=connect_timeout,
            confirm_timeout=10,
        )
        try:
            yield made
        finally:
            async with asyncio.timeout(5):
                await made.aclose()
        assert made.in_flight == 0
        await broker.until(lambda: all(visit.ended for visit in broker.visits))


def publish(connection: BrokerConnection, results: Results, exchange: bytes = b"", index: int = 0) -> None:
    assert connection.protocol is not None
    connection.protocol.publish(exchange, TO_Q, PERSISTENT_HEADER, b"", b"", b"x", (results, index, Counters()))
    connection.wake()


async def up(publisher: Publisher, group: ConnectionGroup, within: float = 10) -> BrokerConnection:
    await publisher.cleared(group.connection, within)
    assert group.connection.clear
    return group.connection


# Connections.


async def test_the_own_ones_are_kept_and_shared() -> None:
    broker = FakeBroker()
    async with publishing(broker, connections=3) as publisher:
        assert (publisher.faults(), publisher.cluster("v")[0]) == ({}, None)
        publisher.connect("v")
        assert publisher.faults() == {"v": "not connected yet"}
        group = publisher.group("v")
        await eventually(lambda: all(connection.clear for connection in group.connections))
        assert publisher.group("v") is group
        assert publisher.faults() == {"v": ""}
        assert (publisher.cluster("v")[0], publisher.cluster("w")[0]) == ("rabbit@fake", None)
        assert (len(broker.visits), publisher.connects) == (3, 3)
        assert {visit.vhost for visit in broker.visits} == {"v"}
        # Another virtual host has its own.
        other = await up(publisher, publisher.group("w"))
        assert other.vhost == "w"
        assert set(publisher.faults()) == {"v", "w"}


async def test_one_that_is_up_stands_for_all() -> None:
    broker = FakeBroker()
    async with publishing(broker, connections=2) as publisher:
        group = publisher.group("v")
        await eventually(lambda: all(connection.clear for connection in group.connections))
        broker.greeting = b""
        broker.visits[0].drop()
        await eventually(lambda: sum(connection.clear for connection in group.connections) == 1)
        assert publisher.faults() == {"v": ""}
        assert await up(publisher, group) in group.connections


async def test_the_next_address_where_the_first_refuses() -> None:
    async with publishing(FakeBroker(), before=[free_address()]) as publisher:
        await up(publisher, publisher.group("v"))


async def test_counts() -> None:
    broker = FakeBroker()
    async with publishing(broker) as publisher:
        own, guest = publisher.group("v"), publisher.group("v", GUEST)
        results = Results()
        for index, group in enumerate((own, guest)):
            publish(await up(publisher, group), results, index=index)
        assert (publisher.in_flight, publisher.connects) == (2, 2)
        await broker.until(lambda: all(visit.bodies for visit in broker.visits))
        broker.visits[0].say(ack(1, 1))
        await eventually(lambda: publisher.in_flight == 1)


async def test_what_the_broker_refuses_is_told_without_repetition() -> None:
    broker = FakeBroker()
    async with publishing(broker, connections=2) as publisher:
        assert publisher.refusals("v") == []
        group = publisher.group("v")
        await eventually(lambda: all(connection.clear for connection in group.connections))
        results = Results()
        for index, connection in enumerate(group.connections):
            publish(connection, results, b"e", index)
        await broker.until(lambda: all(visit.bodies for visit in broker.visits))
        for visit in broker.visits:
            why = b"ACCESS_REFUSED - write access to exchange 'e' in vhost 'v' refused for user 'u'"
            visit.say(close_channel(1, 403, why))
        await eventually(lambda: len(results.verdicts) == 2)
        (refusal,) = publisher.refusals("v")
        assert "exchange 'e'" in refusal
        assert publisher.lacking() == {MissingRight("v", "u", "write", "exchange 'e'", "^e$"): False}


# Waiting.


async def test_it_is_unavailable_in_time() -> None:
    async with publishing(FakeBroker(greeting=b""), connect_timeout=0.1) as publisher:
        with pytest.raises(Unavailable, match="no connection to the broker: "):
            await up(publisher, publisher.group("v"), within=0.1)
        await eventually(lambda: "no AMQP answer in time" in publisher.faults()["v"])
        assert (publisher.in_flight, publisher.connects) == (0, 0)


async def test_it_is_unavailable_while_the_broker_takes_no_publishes() -> None:
    broker = FakeBroker()
    async with publishing(broker) as publisher:
        connection = await up(publisher, publisher.group("v"))
        broker.visits[0].say(blocked("low on memory"))
        await eventually(lambda: not connection.clear)
        with pytest.raises(Unavailable, match="the broker takes no publishes: low on memory"):
            await publisher.cleared(connection, 0.1)
        assert publisher.faults() == {"v": ""}


async def test_all_that_wait_go_on_together() -> None:
    broker = FakeBroker(greeting=b"")
    async with publishing(broker) as publisher:
        group = publisher.group("v")
        waiting = [asyncio.create_task(up(publisher, group)) for _ in range(5)]
        visit = await broker.visit()
        assert not any(task.done() for task in waiting)
        visit.say(FakeBroker().greeting)
        assert {(await task).clear for task in waiting} == {True}


# Other users.


async def test_a_refused_guest_is_told_at_once_and_tried_anew() -> None:
    broker = FakeBroker(refuse=403)
    async with publishing(broker) as publisher:
        publisher.connect("other")
        started = time.monotonic()
        for n in range(2):
            with pytest.raises(LoginRefused, match="403 REFUSED - said the fake") as refused:
                await up(publisher, publisher.group("v", GUEST), within=60)
            assert refused.value.code == 403
            await eventually(lambda: ("v", GUEST) not in publisher._groups)
            assert sum(b"guest" in login for visit in broker.visits for login in visit.logins) == n + 1
        assert time.monotonic() - started < 30
        broker.refuse = 0
        await up(publisher, publisher.group("v", GUEST))
        assert f"\0{GUEST[0]}\0{GUEST[1]}".encode() in broker.visits[-1].logins[0]


async def test_one_login_of_its_own_refused_is_tried_again_by_itself() -> None:
    broker = FakeBroker(refuse=530)
    async with publishing(broker) as publisher:
        publisher.connect("v")
        group = publisher.group("v")
        with pytest.raises(LoginRefused) as refused:
            await up(publisher, group)
        assert refused.value.code == 530
        await broker.visit(2)
        broker.refuse = 0
        await eventually(lambda: publisher.faults() == {"v": ""})
        assert publisher.group("v") is group


async def test_guests_are_not_those_whose_faults_show() -> None:
    async with publishing(FakeBroker(refuse=403)) as publisher:
        with pytest.raises(LoginRefused):
            await up(publisher, publisher.group("v", GUEST))
        assert (publisher.faults(), publisher.refusals("v"), publisher.cluster("v")[0]) == ({}, [], None)


async def test_no_more_guests_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_module, "MOST_GUESTS", 2)
    async with publishing(FakeBroker(), connections=4) as publisher:
        publisher.connect("v")
        group = publisher.group("v", ("a", ""))
        assert len(group.connections) == 1
        await up(publisher, group)
        await up(publisher, publisher.group("w", ("a", "")))
        with pytest.raises(
            TooManyGuests, match="2 users other than this sidecar's own are logged in, which is the limit"
        ):
            publisher.group("v", ("b", ""))
        assert publisher.group("v", ("a", "")) is group
        # The sidecar's own are not counted.
        publisher.group("x")


async def test_logins_that_nobody_answers_keep_out_logins_and_no_one_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_module, "MOST_LOGINS", 2)
    broker = FakeBroker(greeting=b"")
    async with publishing(broker) as publisher:
        inside = publisher.group("v", GUEST)
        (await broker.visit(1)).say(START)
        await up(publisher, inside)
        bogus = [publisher.group("v", ("bogus", password)) for password in "ab"]
        assert publisher.group("v", ("bogus", "a")) is bogus[0]
        with pytest.raises(TooManyGuests, match="2 logins of users other than this sidecar's own wait for the broker"):
            publisher.group("v", ("late", ""))
        await broker.visit(3)
        # Who is in stays in, and may log in anew.
        assert publisher.group("v", GUEST) is inside
        monkeypatch.setattr(publisher_module, "GUEST_AGE", 0.0)
        anew = publisher.group("v", GUEST)
        assert anew is not inside
        monkeypatch.setattr(publisher_module, "GUEST_AGE", 60.0)
        (await broker.visit(4)).say(START)
        await up(publisher, anew)
        assert not any(group.over or group.let_in for group in bogus)
        # A login that has ended makes room for another.
        broker.visits[1].drop()
        await eventually(lambda: len(publisher._groups) == 2)
        late = publisher.group("v", ("late", ""))
        (await broker.visit(5)).say(START)
        await up(publisher, late)


async def test_a_login_under_way_takes_no_users_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_module, "MOST_GUESTS", 1)
    broker = FakeBroker(greeting=b"")
    async with publishing(broker) as publisher:
        for password in "abc":
            publisher.group("v", ("bogus", password))
        await broker.visit(3)
        inside = publisher.group("v", GUEST)
        (await broker.visit(4)).say(START)
        await up(publisher, inside)
        with pytest.raises(
            TooManyGuests, match="1 users other than this sidecar's own are logged in, which is the limit"
        ):
            publisher.group("v", ("late", ""))


async def test_a_login_anew_keeps_the_users_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_module, "MOST_GUESTS", 1)
    broker = FakeBroker()
    async with publishing(broker) as publisher:
        await up(publisher, publisher.group("v", GUEST))
        broker.greeting = b""
        monkeypatch.setattr(publisher_module, "GUEST_AGE", 0.0)
        anew = publisher.group("v", GUEST)
        # He waits for that answer, however long it takes.
        assert publisher.group("v", GUEST) is anew
        with pytest.raises(TooManyGuests, match="are logged in"):
            publisher.group("v", ("late", ""))


# The end.


async def test_idle_guests_are_closed_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = FakeBroker()
    async with publishing(broker) as publisher:
        own = publisher.group("v")
        connection = await up(publisher, publisher.group("v", GUEST))
        await up(publisher, own)
        results = Results()
        publish(connection, results)
        monkeypatch.setattr(publisher_module, "FORGET_AFTER", 0.0)
        visit = next(visit for visit in broker.visits if b"guest" in visit.logins[0])
        await broker.until(lambda: visit.bodies != [])
        assert CLOSE not in visit.methods
        visit.say(ack(1, 1))
        await eventually(lambda: list(publisher._groups) == [("v", None)])
        assert results.outcomes == {0: Outcome.CONFIRMED}
        assert CLOSE in visit.methods
        assert publisher.connects == 2
        # This sidecar's own stay as long as they are up.
        assert own.connection.clear
        # And a guest that comes again finds the door open.
        monkeypatch.undo()
        await up(publisher, publisher.group("v", GUEST))
        assert publisher.connects == 3


async def test_a_guest_of_a_broker_that_is_gone_is_told_at_once() -> None:
    """Nobody connects anew for one who may not be let in any more; the next request does."""
    broker = FakeBroker()
    async with publishing(broker) as publisher:
        group = publisher.group("v", GUEST)
        await up(publisher, group)
        broker.visits[0].drop()
        await eventually(lambda: not group.connection.clear)
        async with asyncio.timeout(5):
            with pytest.raises(Unavailable, match="connection was lost"):
                await publisher.cleared(group.connection, 60)
        await eventually(lambda: not publisher._groups)
        assert await up(publisher, publisher.group("v", GUEST)) is not group.connection


async def test_a_guest_logs_in_anew_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = FakeBroker()
    async with publishing(broker) as publisher:
        results = Results()
        publish(first := await up(publisher, publisher.group("v", GUEST)), results)
        assert publisher.group("v", GUEST).connection is first
        monkeypatch.setattr(publisher_module, "GUEST_AGE", 0.0)
        group = publisher.group("v", GUEST)
        assert group.connection is not first
        monkeypatch.setattr(publisher_module, "GUEST_AGE", 60.0)
        await up(publisher, group)
        # The other goes on for what is in flight, and is the publisher's until the end.
        assert first.clear
        assert (publisher.in_flight, publisher.connects) == (1, 2)
        publisher.abandon()
        assert results.outcomes == {0: Outcome.UNKNOWN}
        assert publisher.group("v", GUEST) is group


async def test_what_cannot_be_connected_is_given_up_unless_it_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_module, "FORGET_AFTER", 0.0)
    async with publishing(FakeBroker(refuse=530), connections=2) as publisher:
        publisher.connect("kept")
        publisher.group("gone")
        await eventually(lambda: set(publisher.faults()) == {"kept"})
        with pytest.raises(Unavailable):
            await up(publisher, publisher.group("gone"))


async def test_links_of_one_virtual_host_are_given_up_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that ended alone would be missed, for each message of its slots, as long as the others are up."""
    monkeypatch.setattr(publisher_module, "FORGET_AFTER", 0.0)
    broker = FakeBroker(refuse=530)
    async with publishing(broker, connections=2) as publisher:
        before = publisher.group("v")
        await eventually(lambda: before.over)
        # The other one may be waiting for its next try.
        monkeypatch.undo()
        broker.refuse = 0
        group = publisher.group("v")
        assert group is not before
        await eventually(lambda: all(connection.clear for connection in group.connections))
        await eventually(lambda: before.task is not None and before.task.done())
        assert publisher.group("v") is group
        assert not any(connection.protocol for connection in before.connections)


async def test_a_guest_is_no_other_user_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_module, "MOST_GUESTS", 1)
    async with publishing(FakeBroker()) as publisher:
        await up(publisher, publisher.group("v", GUEST))
        monkeypatch.setattr(publisher_module, "GUEST_AGE", 0.0)
        await up(publisher, publisher.group("v", GUEST))


async def test_closing_at_once() -> None:
    async with publishing(FakeBroker()) as publisher:
        group = publisher.group("v")
        await publisher.aclose()
        assert group.task is not None
        assert group.task.done()


async def test_abandoned() -> None:
    broker = FakeBroker()
    async with publishing(broker) as publisher:
        results = Results()
        for index, login in enumerate((None, GUEST)):
            publish(await up(publisher, publisher.group("v", login)), results, index=index)
        publisher.abandon()
        assert results.outcomes == {0: Outcome.UNKNOWN, 1: Outcome.UNKNOWN}
        assert results.of(0).detail == "this sidecar ended before the confirm came"
        assert publisher.in_flight == 0


@pytest.mark.parametrize("polite", [True, False])
async def test_closing_waits_for_a_broker_that_answers_and_for_no_other(
    polite: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if polite:  # what it waits for one that does not answer is what it does not wait here
        monkeypatch.setattr(publisher_module, "_CLOSE_TIMEOUT", LONG)
    broker = FakeBroker(polite=polite)
    results = Results()
    async with publishing(broker, connections=2) as publisher:
        group = publisher.group("v")
        await eventually(lambda: all(connection.clear for connection in group.connections))
        for index, connection in enumerate(group.connections):
            publish(connection, results, index=index)
        started = time.monotonic()
        await publisher.aclose()
        assert time.monotonic() - started < LONG
        assert results.outcomes == {0: Outcome.UNKNOWN, 1: Outcome.UNKNOWN}
        assert publisher._groups == {}
        await broker.until(lambda: all(visit.ended for visit in broker.visits))
        assert all(CLOSE in visit.methods for visit in broker.visits)


async def test_closing_while_it_connects() -> None:
    broker = FakeBroker(greeting=b"")
    async with publishing(broker, connect_timeout=LONG) as publisher:
        group = publisher.group("v")
        waiting = asyncio.create_task(publisher.cleared(group.connection, 0.3))
        visit = await broker.visit()
        started = time.monotonic()
        await publisher.aclose()
        assert time.monotonic() - started < LONG
        assert publisher._groups == {}
        with pytest.raises(Unavailable, match="no connection to the broker: not connected yet"):
            await waiting
        await broker.until(lambda: visit.ended)
        assert (len(broker.visits), publisher.connects) == (1, 0)


async def test_closing_what_never_began() -> None:
    broker = FakeBroker()
    async with publishing(broker) as publisher:
        await publisher.aclose()
        assert (broker.visits, publisher._groups, publisher.connects) == ([], {}, 0)
