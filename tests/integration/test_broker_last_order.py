"""How RabbitMQ keeps the last value for many readers, of whom any may crash: in a stream, and not in a queue.

Orders to pause are kept so (`proxy/groups/pause_log.py`). No sidecar takes part but by that module's reader.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage
from pamqp.common import FieldTable

from proxy.groups.membership import Line
from proxy.groups.operators import Sent
from proxy.groups.pause_log import PauseLog, declare
from testbed.broker import Broker
from tests.integration.broker_api import VirtualHost
from tests.integration.group_nodes import connect, until

pytestmark = [pytest.mark.long, pytest.mark.versions]

READERS = 30


@pytest.fixture
async def connection(broker: Broker, vhost: VirtualHost) -> AsyncIterator[AbstractConnection]:
    vhost.permit("guest", ".*", ".*", ".*")
    made = await connect(broker, vhost.name)
    yield made
    await made.close()


async def last_value(channel: AbstractChannel, kind: str) -> None:
    """Make a queue for one value, of which a new one takes the place."""
    arguments: FieldTable = {"x-queue-type": kind, "x-max-length": 1, "x-overflow": "drop-head"}
    await channel.declare_queue("value", durable=True, arguments=arguments)


async def put(channel: AbstractChannel, value: bytes) -> None:
    await channel.default_exchange.publish(aio_pika.Message(value), "value")


async def got(channel: AbstractChannel) -> AbstractIncomingMessage | None:
    return await (await channel.get_queue("value", ensure=False)).get(fail=False)


@pytest.mark.parametrize("kind", ["classic", "quorum"])
async def test_a_value_in_a_queue_is_hidden_from_all_while_one_reader_has_it(
    connection: AbstractConnection, kind: str
) -> None:
    """A reader whose machine is lost has it until the broker misses its heartbeats."""
    one, other = await connection.channel(), await connection.channel()
    await last_value(one, kind)
    await put(one, b"paused")
    held = await got(one)
    assert held is not None
    assert await got(other) is None
    await held.nack(requeue=True)


async def test_an_older_value_that_comes_back_takes_the_place_of_a_newer_one_in_a_quorum_queue(
    connection: AbstractConnection,
) -> None:
    one, other = await connection.channel(), await connection.channel()
    await last_value(one, "quorum")
    await put(one, b"old")
    old = await got(one)
    await put(one, b"new")
    new = await got(other)
    assert old is not None
    assert new is not None
    await new.nack(requeue=True)
    # The answer to a question on the same channel comes once the broker has taken the nack.
    await other.declare_queue("value", passive=True)
    await old.nack(requeue=True)
    await one.declare_queue("value", passive=True)
    for _ in range(100):
        if (left := await got(one)) is not None:
            break
        await asyncio.sleep(0.02)
    assert left is not None
    assert left.body == b"old"
    assert await got(other) is None


async def test_a_quorum_queue_of_rabbitmq_4_drops_a_value_that_was_read_too_often(
    connection: AbstractConnection, broker: Broker
) -> None:
    """Each reader that ends without an answer counts towards the delivery limit, 20 by default."""
    channel = await connection.channel()
    await last_value(channel, "quorum")
    await put(channel, b"paused")
    reads = misses = 0
    while reads < READERS and misses < 50:
        reader = await connection.channel()
        if await got(reader) is None:
            misses += 1
            await asyncio.sleep(0.02)
        else:
            reads, misses = reads + 1, 0
        await reader.close()
    assert reads == (21 if int(broker.version.split(".")[0]) >= 4 else READERS)


# Streams


class Reader:
    """One reader of a stream by the module of the groups, with a connection of its own."""

    def __init__(self, broker: Broker, vhost: str) -> None:
        self.read: list[Sent] = []
        self.known: list[int] = []
        """How many orders had come each time that all of the past were known."""
        self.line = Line(vhost, lambda: connect(broker, vhost))
        self.log = PauseLog(self.line, "a group", "orders.group", self.read.clear, self.read.append, self._all_known)

    def _all_known(self) -> None:
        self.known.append(len(self.read))

    @property
    def bodies(self) -> list[bytes]:
        return [sent.body for sent in self.read]


@asynccontextmanager
async def readers(broker: Broker, vhost: VirtualHost, count: int) -> AsyncIterator[list[Reader]]:
    made = [Reader(broker, vhost.name) for _ in range(count)]
    try:
        yield made
    finally:
        for each in made:
            await each.log.aclose()
            await each.line.aclose()


async def ordered(connection: AbstractConnection, *bodies: bytes) -> None:
    """Publish orders as the user of the connection, and have each confirmed."""
    channel = await connection.channel(on_return_raises=True)
    exchange = await declare(channel, "orders.group")
    for body in bodies:
        await exchange.publish(aio_pika.Message(body, user_id="guest"), "", mandatory=True)
    await channel.close()


def all_know(made: list[Reader], bodies: list[bytes]) -> Callable[[], bool]:
    return lambda: all(each.known and each.bodies == bodies for each in made)


async def test_a_stream_gives_all_orders_to_any_number_of_readers_at_once_and_to_those_that_come_later(
    broker: Broker, vhost: VirtualHost, connection: AbstractConnection
) -> None:
    async with readers(broker, vhost, READERS) as made:
        await until("all know that there is none", all_know(made, []))
        await ordered(connection, b"1", b"2")
        await until("all know both", all_know(made, [b"1", b"2"]))
        assert {sent.user for each in made for sent in each.read} == {"guest"}
        async with readers(broker, vhost, READERS) as later:
            await until("all know both", all_know(later, [b"1", b"2"]))
            # They are known as a whole, and no reader takes a part of the past for all of it.
            assert {tuple(each.known) for each in later} == {(2,)}


async def test_readers_that_crash_take_nothing_from_a_stream_and_read_all_again(
    broker: Broker, vhost: VirtualHost, connection: AbstractConnection
) -> None:
    bodies = [b"%d" % number for number in range(300)]
    await ordered(connection, *bodies)
    async with readers(broker, vhost, 5) as made:
        await until("all know all", all_know(made, bodies))
        for each in made:
            # The broker sees the end of the connection, as if the process had ended.
            await each.line.counts.drop()
        await ordered(connection, b"last")
        await until("all have read it again", lambda: all(len(each.known) == 2 for each in made))
        await until("all know all", all_know(made, [*bodies, b"last"]))


async def test_what_was_published_beside_the_exchange_is_no_order(
    broker: Broker, vhost: VirtualHost, connection: AbstractConnection
) -> None:
    """Messages of other exchanges and dead letters needed no right to publish orders. 3.10 puts none into a stream."""
    channel = await connection.channel()
    await declare(channel, "orders.group")
    await channel.default_exchange.publish(aio_pika.Message(b"beside", user_id="guest"), "orders.group.pauses.log")
    dead: FieldTable = {"x-dead-letter-exchange": "orders.group.pauses", "x-message-ttl": 0}
    await channel.declare_queue("expires", arguments=dead)
    await channel.default_exchange.publish(aio_pika.Message(b"dead", user_id="guest"), "expires")
    counted = await channel.get_queue("orders.group.pauses.log", ensure=False)
    bodies = set[bytes]()

    async def take(message: AbstractIncomingMessage) -> None:
        bodies.add(message.body)
        await message.ack()

    await channel.set_qos(10)
    await counted.consume(take, arguments={"x-stream-offset": "first"})
    there = {b"beside"} | ({b"dead"} if int(broker.version.split(".")[0]) >= 4 else set())
    await until("they are in the stream", lambda: bodies == there)
    await ordered(connection, b"order")
    async with readers(broker, vhost, 1) as (reader,):
        await until("only the order counts", all_know([reader], [b"order"]))
