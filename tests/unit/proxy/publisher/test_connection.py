"""A connection stays up whatever becomes of the sockets under it, and leaves no publish without an answer."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from proxy.outcome import Outcome
from proxy.publisher import connection as connection_module
from proxy.publisher.channel import PublishResult
from proxy.publisher.connection import BrokerConnection, Socket
from proxy.publisher.dial import Brokers
from proxy.routing.counters import Counters
from proxy.settings.connection_faults import NOT_AMQP
from proxy.wire.frames import PROTOCOL_HEADER
from tests.unit.proxy.eventually import eventually
from tests.unit.proxy.fake_broker import FakeBroker, Visit, free_address, listening
from tests.unit.proxy.publisher.client_wire import PERSISTENT_HEADER, TO_Q, blocked
from tests.unit.proxy.session.wire import ack, close_channel, close_connection, method

SECRET = "s3cret é"
CLOSE, CLOSE_OK = (10, 50), (10, 51)


class Results:
    """Keeps each verdict; fails for a second one."""

    def __init__(self) -> None:
        self.verdicts: dict[int, PublishResult] = {}

    def settled(self, index: int, verdict: PublishResult) -> None:
        assert index not in self.verdicts
        self.verdicts[index] = verdict

    @property
    def outcomes(self) -> list[Outcome]:
        return [self.verdicts[index].outcome for index in sorted(self.verdicts)]

    async def all(self, number: int) -> list[Outcome]:
        await eventually(lambda: len(self.verdicts) == number)
        return self.outcomes


def publish(connection: BrokerConnection, results: Results, index: int, body: bytes = b"x") -> None:
    assert connection.clear
    assert connection.protocol is not None
    connection.protocol.publish(b"", TO_Q, PERSISTENT_HEADER, b"", b"", body, (results, index, Counters()))
    connection.wake()


def wanted(connected: bool) -> bool:
    return True


def connection_to(
    broker: FakeBroker | Brokers, *, open_timeout: float = 10, confirm_timeout: float = 10, password: str = SECRET
) -> BrokerConnection:
    dial = broker.brokers().dial if isinstance(broker, FakeBroker) else broker.dial
    return BrokerConnection(
        dial, lambda: ("me", password), "v", open_timeout=open_timeout, confirm_timeout=confirm_timeout
    )


@asynccontextmanager
async def running(
    connection: BrokerConnection, wanted: Callable[[bool], bool] = wanted
) -> AsyncIterator[BrokerConnection]:
    task = asyncio.create_task(connection.run(wanted))
    try:
        yield connection
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def up(broker: FakeBroker, **options: float) -> AsyncIterator[tuple[BrokerConnection, Visit, Results]]:
    """A connection that is up, its first visit at a broker that listens."""
    async with listening(broker), running(connection_to(broker, **options)) as connection:  # type: ignore[arg-type]
        async with asyncio.timeout(20):
            await connection.settled()
        yield connection, broker.visits[0], Results()


async def again(connection: BrokerConnection, broker: FakeBroker, results: Results, index: int) -> None:
    """The connection comes up once more, and a publish is confirmed."""
    await eventually(lambda: connection.clear and len(broker.visits) > 1)
    publish(connection, results, index)
    visit = broker.visits[-1]
    await broker.until(lambda: visit.bodies != [])
    visit.say(ack(1, 1))
    await eventually(lambda: index in results.verdicts)
    assert results.verdicts[index].outcome is Outcome.CONFIRMED
    assert connection.protocol is not None
    assert (connection.protocol.in_flight, connection.fault) == (0, "")


# Up.


async def test_publishes_are_confirmed() -> None:
    async with up(FakeBroker(confirms=True)) as (connection, visit, results):
        for index in range(3):
            publish(connection, results, index, b"%d" % index)
        assert await results.all(3) == [Outcome.CONFIRMED] * 3
        assert visit.bodies == [b"0", b"1", b"2"]
        assert (visit.vhost, connection.cluster, connection.connects, connection.fault) == ("v", "rabbit@fake", 1, "")
        assert f"\0me\0{SECRET}".encode() in visit.logins[0]


async def test_large_bodies_arrive_whole() -> None:
    broker = FakeBroker()
    async with up(broker) as (connection, visit, results):
        publish(connection, results, 0, body := bytes(range(256)) * 20_000)
        await broker.until(lambda: sum(map(len, visit.bodies)) == len(body))
        assert b"".join(visit.bodies) == body
        visit.say(ack(1, 1))
        assert await results.all(1) == [Outcome.CONFIRMED]


# Lost.


async def test_lost_with_messages_in_flight(caplog: pytest.LogCaptureFixture) -> None:
    broker = FakeBroker()
    async with up(broker) as (connection, visit, results):
        for index in range(3):
            publish(connection, results, index)
        await broker.until(lambda: len(visit.bodies) == 3)
        visit.say(ack(1, 2))
        await results.all(1)
        visit.drop()
        assert await results.all(3) == [Outcome.UNKNOWN, Outcome.CONFIRMED, Outcome.UNKNOWN]
        assert "the connection was lost before the confirm" in results.verdicts[0].detail
        await again(connection, broker, results, 3)
        assert connection.connects == 2
        assert "connection was lost" in caplog.text


async def test_no_publish_is_taken_once_the_socket_is_gone() -> None:
    """Not even in the same turn of the loop: it would be unknown, while the next connection takes it."""
    async with up(FakeBroker()) as (connection, _, _):
        socket = connection._socket
        assert socket is not None
        assert socket.transport is not None
        socket.transport.abort()
        socket.connection_lost(None)
        assert not connection.clear
        assert "no connection to the broker" in connection.why


async def test_closed_by_the_broker() -> None:
    broker = FakeBroker()
    async with up(broker) as (connection, visit, results):
        publish(connection, results, 0)
        await broker.until(lambda: visit.bodies != [])
        visit.say(close_connection(320, b"CONNECTION_FORCED - shutdown"))
        assert await results.all(1) == [Outcome.UNKNOWN]
        assert "320 CONNECTION_FORCED - shutdown" in results.verdicts[0].detail
        await broker.until(lambda: visit.ended)
        assert visit.methods[-1] == CLOSE_OK
        assert not connection.login_refused
        await again(connection, broker, results, 1)


async def test_what_is_not_amqp() -> None:
    broker = FakeBroker()
    async with up(broker) as (connection, visit, results):
        publish(connection, results, 0)
        await broker.until(lambda: visit.bodies != [])
        visit.say(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        assert await results.all(1) == [Outcome.UNKNOWN]
        assert "not AMQP 0-9-1" in results.verdicts[0].detail
        await again(connection, broker, results, 1)


async def test_after_what_is_not_amqp_nothing_that_waits_is_written() -> None:
    broker = FakeBroker()
    async with up(broker) as (connection, visit, results):
        assert connection._socket is not None
        publish(connection, results, 0)
        connection._socket.data_received(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        assert await results.all(1) == [Outcome.UNKNOWN]
        await broker.until(lambda: visit.ended)
        assert visit.bodies == []


async def test_an_ack_too_many_ends_the_connection() -> None:
    broker = FakeBroker()
    async with up(broker) as (connection, visit, results):
        publish(connection, results, 0)
        await broker.until(lambda: visit.bodies != [])
        visit.say(ack(1, 2))
        assert await results.all(1) == [Outcome.UNKNOWN]
        await again(connection, broker, results, 1)


async def test_a_closed_channel_is_not_a_lost_connection() -> None:
    broker = FakeBroker()
    async with up(broker) as (connection, visit, results):
        for index in range(2):
            publish(connection, results, index)
        await broker.until(lambda: len(visit.bodies) == 2)
        visit.say(close_channel(1, 404, b"NOT_FOUND - x"))
        assert await results.all(2) == [Outcome.UNKNOWN] * 2
        publish(connection, results, 2)
        await broker.until(lambda: len(visit.bodies) == 3)
        visit.say(ack(1, 1))
        assert (await results.all(3))[2] is Outcome.CONFIRMED
        assert (20, 41) in visit.methods
        assert connection.connects == 1


async def test_a_missing_permission_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    broker = FakeBroker()
    async with up(broker) as (connection, visit, results):
        publish(connection, results, 0)
        await broker.until(lambda: visit.bodies != [])
        visit.say(close_channel(1, 403, b"ACCESS_REFUSED - no"))
        assert await results.all(1) == [Outcome.INVALID]
        assert "virtual host 'v': the broker's user needs write permission on amq.default" in caplog.text


# Slow.


async def test_heartbeats_both_ways() -> None:
    """A broker that is silent for two of them is gone; it hears of its client all the while."""
    broker = FakeBroker(heartbeat=1)
    async with up(broker) as (connection, visit, results):
        publish(connection, results, 0)
        assert await results.all(1) == [Outcome.UNKNOWN]
        assert "no heartbeat" in results.verdicts[0].detail
        assert visit.heartbeats >= 3
        await again(connection, broker, results, 1)


async def test_no_confirm_in_time() -> None:
    broker = FakeBroker()
    async with up(broker, confirm_timeout=0.3) as (connection, visit, results):
        publish(connection, results, 0)
        assert await results.all(1) == [Outcome.UNKNOWN]
        assert results.verdicts[0].detail == "no confirm within 0.3 s (confirm_timeout)"
        publish(connection, results, 1)
        await broker.until(lambda: len(visit.bodies) == 2)
        # The first one's comes too late; the second one's does not.
        visit.say(ack(1, 2, multiple=True))
        assert await results.all(2) == [Outcome.UNKNOWN, Outcome.CONFIRMED]
        assert connection.connects == 1


async def test_a_broker_that_reads_no_more_of_one_connection(caplog: pytest.LogCaptureFixture) -> None:
    """As RabbitMQ before 3.12 where a quorum queue was deleted: the next connection is read."""
    broker = FakeBroker()
    async with up(broker, confirm_timeout=0.3) as (connection, visit, results):
        visit.reads.clear()
        publish(connection, results, 0)
        assert await results.all(1) == [Outcome.UNKNOWN]
        assert results.verdicts[0].detail == "no confirm within 0.3 s (confirm_timeout)"
        await again(connection, broker, results, 1)
        assert "the broker has not read this connection for 0.3 s" in caplog.text


async def test_a_broker_that_reads_and_confirms_nothing_keeps_its_connection() -> None:
    broker = FakeBroker()
    async with up(broker, confirm_timeout=0.3) as (connection, visit, results):
        for index in range(4):
            publish(connection, results, index)
            await results.all(index + 1)
        assert set(results.outcomes) == {Outcome.UNKNOWN}
        # The first channel is the publishes'; each of the others asked whether it reads.
        assert visit.methods.count((20, 10)) > 2
        assert connection.connects == 1


async def test_a_broker_that_does_not_read() -> None:
    broker = FakeBroker()
    async with up(broker) as (connection, visit, results):
        visit.reads.clear()
        sent = 0
        while connection.clear:
            publish(connection, results, sent, bytes(1 << 20))
            sent += 1
            await asyncio.sleep(0)
            assert sent < 100
        assert "does not read" in connection.why
        visit.reads.set()
        await eventually(lambda: connection.clear)
        await broker.until(lambda: sum(map(len, visit.bodies)) == sent << 20)
        visit.say(ack(1, sent, multiple=True))
        assert await results.all(sent) == [Outcome.CONFIRMED] * sent


async def test_a_broker_that_takes_no_publishes() -> None:
    async with up(FakeBroker()) as (connection, visit, _):
        visit.say(blocked("low on disk"))
        await eventually(lambda: not connection.clear)
        assert connection.why == "the broker takes no publishes: low on disk"
        settled = asyncio.create_task(connection.settled())
        visit.say(method(0, 10, 61))
        async with asyncio.timeout(20):
            await settled
        assert connection.clear


# Never up.


async def test_nobody_listens(caplog: pytest.LogCaptureFixture) -> None:
    address = free_address()
    tries = Tries(Brokers([address], None, 1).dial)
    async with running(
        BrokerConnection(tries, lambda: ("me", SECRET), "v", open_timeout=1, confirm_timeout=1)
    ) as connection:
        await eventually(lambda: tries.count > 2)
        assert str(address) in connection.fault
        assert connection.why == f"no connection to the broker: {connection.fault}"
        # Tried several times, told once.
        assert len([record for record in caplog.records if record.name == "proxy.publisher.connection"]) == 1


@pytest.mark.parametrize("greeting", [b"", b"\x01"])
async def test_a_broker_that_does_not_answer(greeting: bytes) -> None:
    async with (
        listening(FakeBroker(greeting=greeting)) as broker,
        running(connection_to(broker, open_timeout=0.1)) as connection,
    ):
        await broker.visit(2)
        assert connection.fault == f"{broker.address}: no AMQP answer in time; {NOT_AMQP}"
        await broker.until(lambda: broker.visits[0].ended)


@pytest.mark.parametrize("greeting", [b"HTTP/1.1 400 Bad Request\r\n\r\n", PROTOCOL_HEADER + b"\0"])
async def test_what_is_no_broker(greeting: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with listening(FakeBroker(greeting=greeting)) as broker, running(connection_to(broker)) as connection:
        await broker.visit(2)
        await eventually(lambda: "not AMQP 0-9-1" in connection.fault)
        assert SECRET not in caplog.text + connection.fault


@pytest.mark.parametrize("code", [403, 530])
async def test_a_refused_login_is_told_at_once(code: int, caplog: pytest.LogCaptureFixture) -> None:
    async with listening(FakeBroker(refuse=code)) as broker:
        connection = connection_to(broker)
        async with asyncio.timeout(20):
            await connection.run(lambda connected: connected)
            await connection.settled()
        assert (connection.login_refused, connection.clear, connection.connects) == (code, False, 0)
        assert connection.fault == f"the broker closed the connection: {code} REFUSED - said the fake"
        await broker.until(lambda: broker.visits[0].ended)
        assert broker.visits[0].methods == [(10, 11), CLOSE_OK]
        # Let in later, it forgets.
        broker.refuse = 0
        async with running(connection):
            await eventually(lambda: connection.clear)
            assert not connection.login_refused
        assert SECRET not in caplog.text


class Tries:
    """A dial that counts, and may fail."""

    def __init__(self, dial: Callable[[Callable[[], Socket]], Awaitable[Socket]], *errors: Exception) -> None:
        self._dial, self._errors = dial, list(errors)
        self.count = 0

    async def __call__(self, make: Callable[[], Socket]) -> Socket:
        self.count += 1
        if self._errors:
            raise self._errors.pop(0)
        return await self._dial(make)


@pytest.mark.parametrize("error", [ZeroDivisionError("ours"), ValueError("theirs"), TimeoutError(), OSError("os")])
async def test_it_tries_again_whatever_was_raised(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    async with listening(FakeBroker()) as broker:
        tries = Tries(broker.brokers().dial, error, error)
        async with running(
            BrokerConnection(tries, lambda: ("me", SECRET), "v", open_timeout=5, confirm_timeout=5)
        ) as connection:
            await eventually(lambda: connection.clear)
            assert tries.count == 3
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [each for each in told if each.startswith("broker, virtual host 'v': ")]


async def test_a_login_that_cannot_be_had_is_no_end() -> None:
    asked = 0

    def login() -> tuple[str, str]:
        nonlocal asked
        asked += 1
        if asked < 3:
            raise ZeroDivisionError("no login")
        return "me", SECRET

    async with listening(FakeBroker()) as broker:
        connection = BrokerConnection(broker.brokers().dial, login, "v", open_timeout=5, confirm_timeout=5)
        async with running(connection):
            await eventually(lambda: connection.clear)


# The end.


async def test_closing_in_good_order_takes_the_last_confirms() -> None:
    broker = FakeBroker(polite=False)
    async with up(broker) as (connection, visit, results):
        publish(connection, results, 0)
        publish(connection, results, 1)
        closing = asyncio.create_task(connection.aclose())
        await broker.until(lambda: CLOSE in visit.methods)
        assert not connection.clear
        assert "no connection" in connection.why
        assert len(visit.bodies) == 2
        visit.say(ack(1, 1) + method(0, 10, 51))
        async with asyncio.timeout(5):
            await closing
        assert await results.all(2) == [Outcome.CONFIRMED, Outcome.UNKNOWN]
        await broker.until(lambda: visit.ended)


async def test_closing_waits_no_longer_than_opening() -> None:
    broker = FakeBroker(polite=False)
    async with up(broker, open_timeout=0.2) as (connection, visit, results):
        publish(connection, results, 0)
        async with asyncio.timeout(5):
            await connection.aclose()
        assert await results.all(1) == [Outcome.UNKNOWN]
        await broker.until(lambda: visit.ended)


async def test_closing_what_is_not_open() -> None:
    async with listening(FakeBroker(greeting=b"")) as broker:
        connection = connection_to(broker)
        await connection.aclose()
        async with running(connection):
            await eventually(lambda: connection._socket is not None)
            async with asyncio.timeout(5):
                await connection.aclose()
            await broker.until(lambda: broker.visits[0].ended)


@pytest.mark.parametrize("polite", [False, True])
async def test_nobody_wants_it_any_more(polite: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with listening(FakeBroker(polite=polite)) as broker:
        connection = connection_to(broker, open_timeout=0.3)
        results, stays = Results(), True
        task = asyncio.create_task(connection.run(lambda connected: stays))
        await eventually(lambda: connection.clear)
        publish(connection, results, 0)
        stays = False
        visit = broker.visits[0]
        await broker.until(lambda: visit.bodies != [])
        # Not while it is waited for.
        await asyncio.sleep(0.3)
        assert CLOSE not in visit.methods
        visit.say(ack(1, 1))
        async with asyncio.timeout(5):
            await task
        assert results.outcomes == [Outcome.CONFIRMED]
        assert CLOSE in visit.methods
        assert (connection.protocol, connection.clear) == (None, False)
        assert [r.levelname for r in caplog.records if "this sidecar closed" in r.message] == ["INFO"]


async def test_no_publish_falls_between_closing_and_the_next_connection() -> None:
    """One that comes while an idle connection is being closed waits until it is wanted, and up, again."""
    async with listening(FakeBroker(polite=False)) as broker:
        connection = connection_to(broker)
        stays = True
        async with running(connection, lambda connected: stays):
            await eventually(lambda: connection.clear)
            stays = False
            await broker.until(lambda: CLOSE in broker.visits[0].methods)
            assert not connection.clear
            stays = True
            broker.visits[0].say(method(0, 10, 51))
            await again(connection, broker, Results(), 0)


@pytest.mark.parametrize("polite", [True, False])
async def test_a_doubted_link_connects_anew(polite: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The link connects anew even where the broker does not answer its goodbye."""
    broker = FakeBroker(polite=polite)
    async with up(broker, open_timeout=0.3) as (connection, visit, results):
        connection.doubt()
        monkeypatch.setattr(connection_module, "DOUBT_AFTER", 0.0)
        publish(connection, results, 0)
        connection.doubt()
        connection.doubt()
        assert not connection.clear
        await broker.until(lambda: visit.ended)
        assert visit.methods.count(CLOSE) == 1
        assert await results.all(1) == [Outcome.UNKNOWN]
        await again(connection, broker, results, 1)


async def test_who_follows_logins_is_told_each_and_may_renew_or_end_it() -> None:
    """As the access token does, of which a socket takes a new one, or is closed."""
    told: list[tuple[Socket, tuple[str, str]]] = []

    async def opened(socket: Socket, login: tuple[str, str]) -> None:
        told.append((socket, login))

    logins = iter([("me", "first"), ("me", "second")])
    async with listening(FakeBroker(confirms=True)) as broker:
        connection = BrokerConnection(
            *(broker.brokers().dial, lambda: next(logins), "v"), open_timeout=5, confirm_timeout=5, opened=opened
        )
        async with running(connection):
            await eventually(lambda: told != [])
            ((socket, login),) = told
            assert (login, socket.is_closed) == (("me", "first"), False)
            results = Results()
            publish(connection, results, 0)
            await socket.update_secret("new", reason="renewed")
            assert await results.all(1) == [Outcome.CONFIRMED]
            await broker.until(lambda: (10, 70) in broker.visits[0].methods)
            await socket.close()
            assert not connection.clear
            await eventually(lambda: len(told) == 2)
            assert (told[1][1], socket.is_closed) == (("me", "second"), True)
            await socket.close()
            assert connection.clear


async def test_without_anything_to_log_in_with_nothing_is_dialled() -> None:
    def login() -> tuple[str, str]:
        raise ConnectionError("no token yet")

    connection = BrokerConnection(stuck, login, "v", open_timeout=5, confirm_timeout=5)
    async with running(connection):
        await eventually(lambda: connection.fault == "no token yet")
    assert connection.why == "no connection to the broker: no token yet"
    assert not connection.login_refused


@pytest.mark.parametrize("code", [403, 530])
async def test_who_follows_refusals_is_told_the_password(code: int) -> None:
    told: list[str] = []
    async with listening(FakeBroker(refuse=code)) as broker:
        connection = BrokerConnection(
            broker.brokers().dial, lambda: ("me", SECRET), "v", open_timeout=5, confirm_timeout=5, refused=told.append
        )
        async with running(connection):
            await eventually(lambda: told == [SECRET])
            broker.refuse = 0
            await eventually(lambda: connection.clear)
    # One refusal or more, and none for the login that was taken.
    assert len(told) == len(broker.visits) - 1


async def test_a_refusal_is_forgotten_once_there_is_nothing_to_log_in_with() -> None:
    has_token = True

    def login() -> tuple[str, str]:
        if not has_token:
            raise ConnectionError("no token")
        return "me", SECRET

    async with listening(FakeBroker(refuse=403)) as broker:
        connection = BrokerConnection(broker.brokers().dial, login, "v", open_timeout=5, confirm_timeout=5)
        async with running(connection):
            await eventually(lambda: connection.login_refused == 403)
            has_token = False
            await eventually(lambda: connection.fault == "no token")
            assert not connection.login_refused
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(connection.settled(), 0.05)


async def test_abandoned() -> None:
    broker = FakeBroker()
    async with up(broker) as (connection, visit, results):
        publish(connection, results, 0)
        await broker.until(lambda: visit.bodies != [])
        connection.abandon("the end")
        assert [(v.outcome, v.detail) for v in results.verdicts.values()] == [(Outcome.UNKNOWN, "the end")]
        connection_to(broker).abandon("never up")


async def stuck(make: Callable[[], Socket]) -> Socket:
    await asyncio.Event().wait()
    raise AssertionError


@pytest.mark.parametrize("greeting", [b"", None])
async def test_cancelled_while_it_connects(greeting: bytes | None) -> None:
    async with listening(FakeBroker(greeting=greeting or b"")) as broker:
        dial = stuck if greeting is None else broker.brokers().dial
        connection = BrokerConnection(dial, lambda: ("me", SECRET), "v", open_timeout=5, confirm_timeout=5)
        async with running(connection):
            await asyncio.sleep(0) if greeting is None else await broker.visit()
        assert (connection.clear, connection.protocol) == (False, None)
        await broker.until(lambda: all(visit.ended for visit in broker.visits))


@pytest.mark.parametrize("polite", [False, True])
async def test_cancelled_while_it_is_up(polite: bool) -> None:
    broker = FakeBroker(polite=polite)
    async with listening(broker):
        results = Results()
        async with running(connection_to(broker)) as connection:
            await eventually(lambda: connection.clear)
            publish(connection, results, 0)
        assert results.outcomes == [Outcome.UNKNOWN]
        await broker.until(lambda: broker.visits[0].ended)


async def test_cancelled_while_it_closes() -> None:
    broker = FakeBroker(polite=False)
    async with up(broker) as (connection, visit, results):
        publish(connection, results, 0)
        closing: asyncio.Task[None] = asyncio.create_task(connection.aclose())
        await broker.until(lambda: CLOSE in visit.methods)
        closing.cancel()
    assert results.outcomes == [Outcome.UNKNOWN]


async def test_whatever_happens_every_publish_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections that end in every way, under publishes that never stop."""
    monkeypatch.setattr(connection_module, "LONGEST_RECONNECT_PAUSE", 0.02)
    broker = FakeBroker()
    ends: list[Callable[[Visit], object]] = [
        Visit.drop,
        lambda visit: visit.say(close_connection(320, b"")),
        lambda visit: visit.say(b"rubbish, and more of it"),
        lambda visit: visit.say(close_channel(1, 541, b"") + ack(1, 1)),
        lambda visit: visit.say(ack(1, 1000)),
        lambda visit: visit.say(blocked("now") + close_connection(541, b"x")[:-5]),
    ]
    async with up(broker, confirm_timeout=0.5) as (connection, _, results):
        sent = 0

        async def publishing() -> None:
            nonlocal sent
            while True:
                if connection.clear:
                    publish(connection, results, sent, b"x" * 5000)
                    sent += 1
                await asyncio.sleep(0)

        async with running_beside(publishing()):
            for end in ends * 2:
                visits, before = len(broker.visits), sent
                await eventually(lambda before=before: sent > before + 10)  # type: ignore[misc]
                end(broker.visits[-1])
                if end in (ends[3], ends[5]):
                    broker.visits[-1].drop()
                await eventually(lambda visits=visits: len(broker.visits) > visits)  # type: ignore[misc]
        await results.all(sent)
    assert set(results.outcomes) <= {Outcome.UNKNOWN, Outcome.CONFIRMED}


@asynccontextmanager
async def running_beside(forever: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(forever)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
