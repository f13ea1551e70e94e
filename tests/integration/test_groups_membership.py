"""Groups of several sidecars on a real broker: they see each other come and go, and balance the shards in order."""

import asyncio
import contextlib
import itertools
import json
import re
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aio_pika
import pytest
from aio_pika.abc import AbstractConnection, AbstractIncomingMessage

from proxy.commands.group import MEMBERS_VIEW, show
from proxy.groups.membership import Membership
from testbed.broker import Broker
from testbed.node import Node as RabbitNode
from tests.integration.broker_api import BrokerApi, VirtualHost, wait_until
from tests.integration.conftest import USER, StartSidecar
from tests.integration.group_nodes import Node, address, connect, node, until
from tests.integration.own_node import own_node, private_only
from tests.integration.sidecar import Sidecar

SHARDS = [f"orders.{number}" for number in range(8)]


def sharded(vhost: VirtualHost, **arguments: object) -> None:
    vhost.exchange("orders")
    for shard in SHARDS:
        vhost.queue(shard, **({"x_queue_type": "quorum", "x_single_active_consumer": True} | arguments))
        vhost.bind("orders", shard)


@asynccontextmanager
async def publishing(broker: Broker, vhost: str) -> AsyncIterator[Counter[str]]:
    """Publish numbered messages to each shard all the while; gives how many each shard has got."""
    connection = await connect(broker, vhost)
    sent: Counter[str] = Counter()

    async def publish() -> None:
        channel = await connection.channel(publisher_confirms=False)
        for number in itertools.count():
            for shard in SHARDS:
                await channel.default_exchange.publish(aio_pika.Message(f"{shard} {number}".encode()), shard)
                sent[shard] += 1
            await asyncio.sleep(0.01)

    task = asyncio.create_task(publish())
    try:
        yield sent
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await connection.close()


def lately(nodes: list[Node], since: float) -> Counter[str]:
    """Count the shards that each member has got messages of since then."""
    found: Counter[str] = Counter()
    for each in nodes:
        for session in each.members:
            links = session.member.links.values()
            found[session.member.id] = sum(link.delivered_at > since for link in links)
    return found


async def balanced(nodes: list[Node], counts: list[int]) -> float:
    """Return after how many seconds each member alone gets messages of so many shards."""
    began = time.monotonic()
    while True:
        since = time.monotonic()
        await asyncio.sleep(0.5)
        found = sorted(lately(nodes, since).values())
        if found == counts:
            return time.monotonic() - began
        assert time.monotonic() - began < 60, found


def in_order(nodes: list[Node], got: list[dict[str, list[tuple[int, bool]]]]) -> None:
    """Check that no shard's first deliveries are out of order, whoever got them."""
    for each in nodes:
        got += [session.got for session in each.members]
    for shard in SHARDS:
        for one in got:
            first = [number for number, redelivered in one.get(shard, ()) if not redelivered]
            assert first == sorted(first), (shard, first)


async def test_joins_leaves_and_moves_are_told_and_shards_stand_by_their_numbers(
    broker: Broker, vhost: VirtualHost, start_sidecar: StartSidecar
) -> None:
    vhost.permit(USER, configure=r"^orders\.group", write=".*", read=r"^orders\.group")
    vhost.exchange("orders")
    shards = [f"orders.{number}" for number in range(1, 12)]
    for shard in shards:
        # Without messages, shards are claimed only once RabbitMQ would have given up a consumer whose node is lost.
        own = {"x_single_active_consumer": True, "x_consumer_disconnected_timeout": 1000}
        vhost.queue(shard, x_queue_type="quorum", **own)
        vhost.bind("orders", shard)
    sidecar = start_sidecar(groups="orders")

    async def consume(name: str) -> AbstractConnection:
        connection = await aio_pika.connect(
            address(broker, vhost.name, sidecar.amqp_port), client_properties={"connection_name": name}
        )
        channel = await connection.channel()
        await channel.set_qos(1)
        await (await channel.get_queue("orders", ensure=False)).consume(AbstractIncomingMessage.ack)
        return connection

    def told(text: str) -> bool:
        return bool(re.search(rf"group 'orders', virtual host {re.escape(repr(vhost.name))}: .*{text}", sidecar.log()))

    def shown() -> str:
        return show(sidecar.admin_url, vhost.name, "orders", MEMBERS_VIEW, as_json=False)

    async with await consume("billing-a"):
        await until("one joins", lambda: told(r"joined: \S+ billing-a"))
        await until("it gets shards", lambda: told(r"billing-a has orders\.\d+"), within=60)
        await until("it has all", lambda: f"has 11 shards, and should have 11: {', '.join(shards)}\n" in shown(), 60)
        assert re.findall(r"^shard +(\S+),", shown(), flags=re.M) == shards
        async with await consume("billing-b"):
            await until("another joins", lambda: told(r"joined: \S+ billing-b"))
            await until("it gets shards", lambda: told(r"billing-b has orders\.\d+"), within=60)
        await until("it leaves", lambda: told(r"left: \S+ billing-b"))


async def test_members_of_several_sidecars_share_the_shards_and_a_crash_moves_only_the_lost_ones(
    broker: Broker, vhost: VirtualHost
) -> None:
    sharded(vhost)
    async with node(broker, vhost.name) as a, node(broker, vhost.name) as b, node(broker, vhost.name) as c:
        nodes, told = [a, b, c], {}
        async with publishing(broker, vhost.name):
            await a.join()
            told["one member"] = await balanced(nodes, [8])
            await b.join()
            told["a second, in another sidecar"] = await balanced(nodes, [4, 4])
            third = await b.join()
            told["a third"] = await balanced(nodes, [2, 3, 3])
            await c.join()
            told["a fourth"] = await balanced(nodes, [2, 2, 2, 2])
            await b.leave(third)
            told["the third leaves"] = await balanced(nodes, [2, 3, 3])
            crashed = list(c.members)
            await c.crash()
            told["a sidecar is lost"] = await balanced([a, b], [4, 4])
            in_order([a, b], [session.got for session in (third, *crashed)])
        print("balanced after", {what: f"{seconds:.1f} s" for what, seconds in told.items()})


async def test_the_exchange_of_the_beats_stays_when_the_group_ends(broker: Broker, vhost: VirtualHost) -> None:
    """It is no auto-delete exchange, which RabbitMQ 4.3 may break: test_broker_auto_delete."""

    def bound() -> bool:
        found = vhost.api.ask("GET", "bindings", vhost.name)
        return any(binding["source"] == "orders.group" for binding in found)

    sharded(vhost)
    async with node(broker, vhost.name) as a:
        await a.join()
        await asyncio.to_thread(wait_until, "the sidecar's queue", bound)
    await asyncio.to_thread(wait_until, "no queue of a sidecar", lambda: not bound())
    for exchange, kind in (("orders.group", "fanout"), ("orders.group.asked", "direct")):
        shown = vhost.api.ask("GET", "exchanges", vhost.name, exchange)
        assert (shown["type"], shown["durable"], shown["auto_delete"]) == (kind, True, False)


async def test_a_question_tells_whether_the_queue_of_a_sidecar_is_there(broker: Broker, vhost: VirtualHost) -> None:
    """The asker's connection needs no other channel, and may be a new one after it was lost."""
    heard: list[bytes] = []
    queues: list[str] = []

    def hear(body: bytes) -> bool:
        heard.append(body)
        return False

    asked, asking = (Membership(lambda name: lambda: connect(broker, name)) for _ in range(2))
    room = asked.enter(vhost.name, "orders", "orders.group", hear, queues.append)
    other = asking.enter(vhost.name, "orders", "orders.group", hear, lambda queue: None)
    line = other.line

    async def told(wanted: bool) -> None:
        """A broker with much to do may not answer in time, and the queue is bound once the first beat is out."""
        tries = 0
        while await line.is_there("orders.group.asked", queue) is not wanted:
            tries += 1
            assert tries < 100
            await asyncio.sleep(0.05)

    try:
        await until("the queue", lambda: queues[-1] if queues else "")
        queue = queues[-1]
        room.send(b"a beat")
        await told(True)
        assert set(await asyncio.gather(*(line.is_there("orders.group.asked", queue) for _ in range(3)))) <= {
            True,
            None,
        }
        assert await line.is_there("orders.group.asked", "orders.group.none") in (False, None)
        assert await line.is_there("nothing.group.asked", "nothing.group.none") is None
        await line.beats.drop()
        await told(True)
        await asked.leave(room, b"farewell")
        await told(False)
        assert set(heard) <= {b"a beat", b"farewell"}
    finally:
        await asking.leave(other, b"farewell")


class Consumers:
    """Ordinary clients that consume from the name of the exchange, and what they got of each shard."""

    def __init__(self, broker: Broker | RabbitNode, vhost: str) -> None:
        self._broker, self._vhost = broker, vhost
        self._connections: dict[str, AbstractConnection] = {}
        self.latest: dict[str, dict[str, float]] = {}
        """By consumer and shard, when the last message came."""
        self._next: Counter[str] = Counter()
        self.redelivered: Counter[str] = Counter()
        """By shard, how many messages came again."""
        self.out_of_order: list[tuple[str, str, int, int]] = []
        """Consumer, shard, number and expected number of each message that came too early."""

    async def join(self, name: str, sidecar: Sidecar) -> None:
        """Start a consumer that acks each message a moment after it came."""
        connection = self._connections[name] = await aio_pika.connect(
            address(self._broker, self._vhost, sidecar.amqp_port), client_properties={"connection_name": name}
        )
        channel = await connection.channel(publisher_confirms=False)
        await channel.set_qos(5)
        queue = await channel.get_queue("orders", ensure=False)
        latest = self.latest[name] = {}

        async def received(message: AbstractIncomingMessage) -> None:
            shard, _, text = message.body.decode().partition(" ")
            number, expected = int(text), self._next[shard]
            latest[shard] = time.monotonic()
            if number > expected:
                self.out_of_order.append((name, shard, number, expected))
            self.redelivered[shard] += number < expected
            self._next[shard] = max(number + 1, expected)
            await asyncio.sleep(0.005)
            with contextlib.suppress(Exception):
                await message.ack()

        await queue.consume(received)

    async def leave(self, name: str) -> None:
        """The client says goodbye, with messages unacked."""
        del self.latest[name]
        await self._connections.pop(name).close()

    async def aclose(self) -> None:
        for connection in self._connections.values():
            with contextlib.suppress(Exception):
                await asyncio.wait_for(connection.close(), 2.0)

    async def balanced(self, counts: list[int]) -> float:
        """Return after how many seconds each consumer alone gets messages of so many shards."""
        began = time.monotonic()
        while True:
            since = time.monotonic()
            await asyncio.sleep(0.5)
            found = sorted(sum(at > since for at in latest.values()) for latest in self.latest.values())
            if found == counts:
                return time.monotonic() - began
            assert time.monotonic() - began < 60, found


async def test_clients_of_three_sidecars_of_which_one_is_killed(
    broker: Broker, vhost: VirtualHost, start_sidecar: StartSidecar
) -> None:
    sharded(vhost)
    vhost.permit(USER, configure=r"^orders\.group", write=".*", read=r"^orders\.group")
    a, b, c = (start_sidecar(groups="orders") for _ in range(3))
    consumers, told = Consumers(broker, vhost.name), {}
    async with publishing(broker, vhost.name):
        try:
            await consumers.join("first", a)
            told["one member"] = await consumers.balanced([8])
            await consumers.join("second", b)
            told["a second, in another sidecar"] = await consumers.balanced([4, 4])
            await consumers.join("third", b)
            told["a third"] = await consumers.balanced([2, 3, 3])
            await consumers.join("fourth", c)
            told["a fourth"] = await consumers.balanced([2, 2, 2, 2])
            assert (consumers.out_of_order, consumers.redelivered.total()) == ([], 0)
            await consumers.leave("second")
            told["the second leaves"] = await consumers.balanced([2, 3, 3])
            # The claims of the other sidecars are told with their next beat, which may come after the first deliveries.
            shares = [2, 3, 3], True, None
            await asyncio.to_thread(wait_until, "the same in the report", lambda: shown_by(a, vhost.name) == shares)
            c.kill()
            del consumers.latest["fourth"]
            told["a sidecar is killed"] = await consumers.balanced([4, 4])
            assert consumers.out_of_order == []
        finally:
            await consumers.aclose()
    print("balanced after", {what: f"{seconds:.1f} s" for what, seconds in told.items()}, consumers.redelivered)


def shown_by(sidecar: Sidecar, vhost: str) -> tuple[list[int], bool | None, str | None]:
    """Return what the report says: how many shards each member has, whether that is exact, and what is at fault."""
    shown = json.loads(show(sidecar.admin_url, vhost, "orders", MEMBERS_VIEW, as_json=True))
    return sorted(len(member["shards"]) for member in shown["members"]), shown["exact"], shown["membership"]


@private_only
@pytest.mark.long
async def test_while_the_broker_takes_no_messages_nobody_is_taken_for_gone(start_sidecar: StartSidecar) -> None:
    """With a memory alarm no beat comes through, so each sidecar could think that it is alone."""
    with own_node("") as (rabbit, ctl):
        home = VirtualHost(BrokerApi(rabbit.management_url), "/", [])
        # Without messages, shards are claimed only once RabbitMQ would have given up a consumer whose node is lost.
        sharded(home, x_consumer_disconnected_timeout=1000)
        urls = {"broker_url": rabbit.amqp_url, "management_url": rabbit.management_url}
        sidecars = [start_sidecar(**urls, groups="orders") for _ in range(2)]
        consumers = Consumers(rabbit, "/")
        try:
            for number, sidecar in enumerate(sidecars):
                await consumers.join(f"member {number}", sidecar)
            await until("both have half", lambda: figures(sidecars, "shards_held") == [4, 4])
            await until("nothing moves", lambda: figures(sidecars, "shards_moving") == [0, 0])
            moves = figures(sidecars, "moves_total")
            await asyncio.to_thread(ctl, "set_vm_memory_high_watermark", "absolute", "1MB")
            try:
                # The log's line takes much longer than until a silent sidecar counts as gone.
                await until("both know why", lambda: all("do not come back" in each.log() for each in sidecars), 60)
                assert figures(sidecars, "connected") == [0, 0]
                assert figures(sidecars, "moves_total") == moves
            finally:
                await asyncio.to_thread(ctl, "set_vm_memory_high_watermark", "0.6")
            await until("they hear each other again", lambda: figures(sidecars, "connected") == [1, 1], 60)
            await until("they know both members", lambda: figures(sidecars, "shards_wanted") == [4, 4])
            assert figures(sidecars, "moves_total") == moves
            assert figures(sidecars, "shards_held") == [4, 4]
        finally:
            await consumers.aclose()
            for sidecar in sidecars:
                await asyncio.to_thread(sidecar.stop)


def figures(sidecars: list[Sidecar], name: str) -> list[float]:
    """Return a figure of the group as each sidecar shows it."""
    return [sidecar.metric(f"ringproxy_group_{name}", exchange="orders") for sidecar in sidecars]
