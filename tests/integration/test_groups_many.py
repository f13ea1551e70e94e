"""Groups of very many shards: what a connection cannot hold is refused, and what it can is balanced in time."""

import asyncio
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import aio_pika
import pytest
from aio_pika.abc import AbstractConnection, AbstractIncomingMessage
from pamqp.commands import Basic, Queue

from proxy.shards.defaults import DISCONNECTED_MILLISECONDS, DISCONNECTED_TIMEOUT
from testbed.node import Node
from tests.integration.broker_api import BrokerApi, VirtualHost, wait_until
from tests.integration.conftest import StartSidecar
from tests.integration.group_nodes import until
from tests.integration.own_node import own_node, private_only
from tests.integration.sidecar import Sidecar
from tests.integration.wire_client import Client, encoded, port_of

pytestmark = [private_only, pytest.mark.long]

DOCUMENT = Path(__file__).parents[2] / "docs/reference/memory.md"

AT_ONCE = 50
"""How many queues are declared before the broker is asked whether it has them."""


SLOW = {"lookup_timeout": "60"}
"""The setting for rings that take seconds to be built: every queue has a score for each of 1,048,576 slots."""


@pytest.fixture
def node() -> Iterator[Node]:
    """Yield a broker of the test's own, since to delete so many queues takes half a minute."""
    with own_node("") as (node, _):
        yield node


def declare(node: Node, exchange: str, shards: Sequence[str], **arguments: object) -> None:
    """Make a hash exchange with these shards over AMQP, which is quicker than over HTTP."""
    VirtualHost(BrokerApi(node.management_url), "/", []).exchange(exchange)
    with Client.of(node.amqp_url).session(port_of(node.amqp_url), "/") as wire:
        wire.channel(1, confirm=False)
        for start in range(0, len(shards), AT_ONCE):
            for shard in shards[start : start + AT_ONCE]:
                queue = Queue.Declare(0, shard, durable=True, nowait=True, arguments=dict(arguments))  # type: ignore[arg-type]
                wire.send(encoded(1, queue), encoded(1, Queue.Bind(0, shard, exchange, "1", nowait=True)))
            wire.ask(1, Basic.Qos(0, 1), Basic.QosOk)
        wire.goodbye()


def urls(node: Node) -> dict[str, str]:
    return {"broker_url": node.amqp_url, "management_url": node.management_url}


def test_an_only_member_with_2000_shards_has_those_that_its_connection_can_have(
    start_sidecar: StartSidecar, node: Node
) -> None:
    """The others wait for another member, and are named as refused, with the reason."""
    declare(node, "orders", [f"orders.{n}" for n in range(2_000)])
    grouping = start_sidecar(groups="orders", **urls(node), **SLOW)
    with Client.of(node.amqp_url).session(grouping.amqp_port, "/") as wire:
        wire.channel(1, confirm=False)
        wire.ask(1, Basic.Qos(0, 10), Basic.QosOk)
        wire.ask(1, Basic.Consume(0, "orders"), Basic.ConsumeOk)

        def figures() -> list[float]:
            names = ("ringproxy_group_shards_held", "ringproxy_group_links_refused")
            return [grouping.metric(name, exchange="orders") for name in names]

        wait_until("1,023 of them", lambda: figures() == [1023, 977], within=60)
        (group,) = grouping.admin("/groups").json["groups"]
        assert group["refused"][0]["why"] == "all 1023 hidden channels of the client's connection are in use"
        wire.ask(1, Basic.Qos(0, 10), Basic.QosOk)
        wire.goodbye()


class Consumers:
    """Members of the group that ack what they get."""

    def __init__(self) -> None:
        self.connections: list[AbstractConnection] = []
        self.got: list[tuple[int, str]] = []
        """Which member got each message, and its body."""

    async def join(self, sidecar: Sidecar) -> None:
        number = len(self.connections)
        self.connections.append(await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{sidecar.amqp_port}/"))
        channel = await self.connections[-1].channel(publisher_confirms=False)
        queue = await channel.get_queue("orders", ensure=False)

        async def received(message: AbstractIncomingMessage) -> None:
            self.got.append((number, message.body.decode()))
            await message.ack()

        await queue.consume(received)


async def test_as_many_shards_as_a_connection_can_have_are_balanced(start_sidecar: StartSidecar, node: Node) -> None:
    """1,022 shards and two sidecars, each with a member; then one of the members leaves."""
    shards = [f"orders.{n}" for n in range(1_022)]
    arguments = {
        "x-queue-type": "quorum",
        "x-single-active-consumer": True,
        DISCONNECTED_TIMEOUT: DISCONNECTED_MILLISECONDS,
    }
    await asyncio.to_thread(declare, node, "orders", shards, **arguments)
    sidecars = [start_sidecar(groups="orders", **urls(node), **SLOW) for _ in range(2)]
    consumers, told = Consumers(), {}

    async def balanced(*counts: int) -> float:
        began = time.monotonic()
        await until(f"{counts}", lambda: held(sidecars) == list(counts), within=120)
        return time.monotonic() - began

    await consumers.join(sidecars[0])
    told["one member"] = await balanced(1_022, 0)
    await consumers.join(sidecars[1])
    told["a second, in another sidecar"] = await balanced(511, 511)
    for _ in range(5):  # the raises may not all have come through
        consumers.got.clear()
        await asyncio.to_thread(publish, node, shards)
        await until("a message of each shard", lambda: len(consumers.got) == 1_022, within=60)
        assert sorted(body for _, body in consumers.got) == sorted(shards)
        if (got := [sum(number == member for number, _ in consumers.got) for member in (0, 1)]) == [511, 511]:
            break
    assert got == [511, 511]
    await consumers.connections[0].close()
    told["the first leaves"] = await balanced(0, 1_022)
    await consumers.connections[1].close()
    print("balanced after", {what: f"{seconds:.1f} s" for what, seconds in told.items()})


def held(sidecars: list[Sidecar]) -> list[float]:
    """Return how many shards the members of each sidecar hold."""
    return [sidecar.metric("ringproxy_group_shards_held", exchange="orders") for sidecar in sidecars]


def publish(node: Node, shards: Sequence[str]) -> None:
    """Publish one message to each shard, with the shard's name as its body."""
    with Client.of(node.amqp_url).session(port_of(node.amqp_url), "/") as wire:
        wire.channel(1)
        for shard in shards:
            wire.publish(1, "", shard, shard.encode())
        wire.confirm(1, len(shards))
        wire.goodbye()


def test_links_and_deliveries_take_as_much_memory_as_the_documents_say(start_sidecar: StartSidecar, node: Node) -> None:
    """One member has 1,022 shards, and holds 50 messages of each."""
    shards, each = [f"orders.{n}" for n in range(1_022)], 50
    declare(node, "orders", shards, **{"x-single-active-consumer": True})
    sidecar = start_sidecar(groups="orders", **urls(node), **SLOW)
    client = Client.of(node.amqp_url)
    wait_until("the ring", lambda: sidecar.weights("/", "orders"), within=60)
    with client.session(sidecar.amqp_port, "/") as wire:
        wire.channel(1, confirm=False)
        wire.ask(1, Basic.Qos(0, each), Basic.QosOk)
        before = sidecar.memory()
        wire.ask(1, Basic.Consume(0, "orders"), Basic.ConsumeOk)
        wait_until("all shards", lambda: held([sidecar]) == [len(shards)], within=60)
        linked = sidecar.memory()
        for _ in range(each):
            publish(node, shards)
            for _ in shards:
                wire.content(1, Basic.Deliver)
        full = sidecar.memory()
        link, delivery = (linked - before) / len(shards), (full - linked) / (each * len(shards))
        print(f"{link / 1024:.2f} KiB a link, {delivery / 1024:.3f} KiB a delivery")
        text = " ".join(DOCUMENT.read_text().split())
        most = [
            float(re.findall(rf"{words} takes ([0-9.]+) KiB", text)[0]) * 1024 for words in ("a group", "not acked")
        ]
        assert (link < most[0], delivery < most[1]) == (True, True)
