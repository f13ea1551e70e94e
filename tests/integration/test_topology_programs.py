"""`ring-proxy topology apply --ordered --drained-by empty`: programs that consume queues by their own names."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from threading import Thread

import aio_pika
import pytest
from aio_pika.abc import AbstractIncomingMessage
from pamqp.commands import Basic

from proxy.shards import command
from proxy.topology.marker import LINK_PRIORITY, MARKER
from testbed.broker import Broker
from testbed.ordered_judge import Taken
from tests.integration.broker_api import VirtualHost, wait_until
from tests.integration.conftest import StartSidecar
from tests.integration.groups import consume, deliveries
from tests.integration.ordered_load import OrderedLoad
from tests.integration.test_topology_ordered import FILE, WAITS, fleet, queues, through
from tests.integration.topology import Topology, between_looks
from tests.integration.wire_client import Client, Wire, port_of

FLAGS = ("--ordered", "--drained-by", "empty")


@pytest.fixture(autouse=True)
def waits(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait only as long as this broker takes to count."""
    for name in WAITS:
        monkeypatch.setattr(name, between_looks(broker))


@pytest.fixture
def hears(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str], None]], None]:
    """Have a function called with each line that a command of this process prints."""

    def hear(react: Callable[[str], None]) -> None:
        def tell(line: str) -> None:
            command._say(line)
            react(line)

        monkeypatch.setattr(command, "_tell", tell)

    return hear


class Programs(OrderedLoad):
    """Publishers through a sidecar, and programs that each consume one queue by its name, as an operator starts and
    stops them. A message counts as taken once its program has done it.
    """

    def __init__(self, urls: list[str], broker_url: str, queues: list[str]) -> None:
        super().__init__(urls, urls, keys=40, rate=100, groups=["programs"])
        self._url, self._at_first = broker_url, queues
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked: asyncio.Queue[str] = asyncio.Queue()
        self._stops: dict[str, asyncio.Event] = {}
        self.strange: list[bytes] = []
        """The bodies of markers that programs have got."""

    def operate(self, line: str) -> None:
        """Do what a line of the command asks for."""
        queue = line.split()[0].rstrip(":")
        assert self._loop is not None
        if "stop it" in line:
            self._loop.call_soon_threadsafe(self._stops[queue].set)
        elif "may be consumed by its name" in line:
            self._loop.call_soon_threadsafe(self._asked.put_nowait, queue)

    async def consume(self) -> None:
        self._loop = asyncio.get_running_loop()
        for queue in self._at_first:
            self._asked.put_nowait(queue)
        async with asyncio.TaskGroup() as tasks:
            while True:
                queue = await self._asked.get()
                tasks.create_task(self._program(queue))

    async def _program(self, name: str) -> None:
        stop = self._stops[name] = asyncio.Event()
        inbox: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
        async with await aio_pika.connect(self._url) as connection:
            channel = await connection.channel()
            await channel.set_qos(20)
            queue = await channel.get_queue(name, ensure=False)
            tag = await queue.consume(inbox.put, consumer_tag=f"program of {name}")
            while not stop.is_set():
                with suppress(TimeoutError):
                    await self._do(await asyncio.wait_for(inbox.get(), 0.05))
            await queue.cancel(tag)
            await asyncio.sleep(3)  # what it has got by then is done late, and nobody may go on before that
            while not inbox.empty():
                await self._do(inbox.get_nowait())

    async def _do(self, message: AbstractIncomingMessage) -> None:
        if MARKER in message.headers:
            self.strange.append(message.body)
        else:
            publisher, key, number = map(int, message.body.split())
            loop = asyncio.get_running_loop()
            self.taken["programs"][publisher, key].append(Taken(number, loop.time()))
        await asyncio.sleep(0.003)
        await message.ack()


@pytest.mark.versions
def test_programs_that_do_as_they_are_told_do_each_key_in_order(
    start_sidecar: StartSidecar, topology: Topology, hears: Callable[[Callable[[str], None]], None]
) -> None:
    topology.write(FILE.format(3))
    topology.did("apply")
    sidecar = start_sidecar(sync_interval="3")
    with Programs([through(sidecar, topology.vhost.name)], topology.amqp_url, sorted(queues(topology))) as load:
        hears(load.operate)
        for shards in (5, 2):
            topology.write(FILE.format(shards))
            begun = load.total
            told = topology.did("apply", *FLAGS, str(topology.file), *fleet(topology))
            assert "take care: a program that consumes a new queue before" in told
            topology.did("check")
            wait_until("messages of this generation", lambda begun=begun: load.total > begun + 100)  # type: ignore[misc]
            print(told)
    assert not load.overtaken
    assert not load.missing
    assert not load.strange
    assert queues(topology) == {"orders.g3.1", "orders.g3.2"}


def filled(vhost: VirtualHost, queue: str, count: int) -> None:
    for number in range(count):
        properties = {"delivery_mode": 2}
        body = {"routing_key": queue, "payload": f"{number}", "payload_encoding": "string", "properties": properties}
        assert vhost.api.ask("POST", "exchanges", vhost.name, "amq.default", "publish", body=body)["routed"]


def test_what_a_program_that_has_stopped_holds_is_waited_for_and_what_comes_back_is_done_first(
    topology: Topology, client: Client, hears: Callable[[Callable[[str], None]], None]
) -> None:
    topology.write(FILE.format(1))
    topology.did("apply")
    vhost, port = topology.vhost, port_of(topology.amqp_url)
    filled(vhost, "orders.1", 10)
    topology.write(FILE.format(2))
    done: list[bytes] = []
    with client.session(port, vhost.name) as first, client.session(port, vhost.name) as second:
        for each in (first, second):
            each.channel(1, confirm=False)
        consume(first, 1, "first", "orders.1", prefetch=20)
        assert len(deliveries(first, 1, 10)) == 10
        wait_until("it is listed", lambda: bool(vhost.api.ask("GET", "consumers", vhost.name)))

        def operate(line: str) -> None:
            if "'first' has got all: stop it" in line:
                first.ask(1, Basic.Cancel("first"), Basic.CancelOk)
            elif "holds messages still" in line:
                assert "orders.1" in queues(topology)
                first.close()  # with all ten
            elif "no program consumes it: start one again" in line and not done:
                consume(second, 1, "second", "orders.1", prefetch=20)
                done.extend(each.body for each in deliveries(second, 1, 10))
                second.tell(1, Basic.Ack(0, True))
            elif "'second' has got all: stop it" in line:
                second.close()

        hears(operate)
        told = topology.did("apply", *FLAGS, str(topology.file), *fleet(topology))
    assert done == [b"%d" % number for number in range(10)]
    assert queues(topology) == {"orders.g2.1", "orders.g2.2"}
    assert told.index("orders.1 is drained, and deleted") < told.index("orders.g2.1 may be consumed by its name")


@pytest.mark.versions
def test_what_comes_back_from_a_dead_member_reaches_the_next_one_in_its_order(
    topology: Topology, client: Client, hears: Callable[[Callable[[str], None]], None]
) -> None:
    """The command is the next in line. Members here are consumers that let go at a marker, as those of sidecars do."""
    topology.write(FILE.format(1))
    topology.did("apply")
    vhost, port = topology.vhost, port_of(topology.amqp_url)
    filled(vhost, "orders.1", 30)
    topology.write(FILE.format(2))
    done: list[bytes] = []

    def join(wire: Wire) -> None:
        wire.channel(1, confirm=False)
        wire.ask(1, Basic.Qos(0, 20), Basic.QosOk)
        wire.ask(1, Basic.Consume(0, "orders.1", "c", arguments={"x-priority": LINK_PRIORITY}), Basic.ConsumeOk)

    with client.session(port, vhost.name) as first, client.session(port, vhost.name) as second:
        join(first)
        assert len(deliveries(first, 1, 20)) == 20

        def die_before_the_command() -> None:
            wait_until("the command", lambda: len(vhost.api.ask("GET", "consumers", vhost.name)) == 2)
            first.close()

        death = Thread(target=die_before_the_command)

        def operate(line: str) -> None:
            if "drains 1 queues" in line:
                death.start()
            elif "no member of the group consumes it" in line and not done:
                join(second)
                done.extend(each.body for each in deliveries(second, 1, 20))
                second.tell(1, Basic.Ack(0, True))
                done.extend(each.body for each in deliveries(second, 1, 10))
                second.tell(1, Basic.Ack(0, True))
                assert second.content(1, Basic.Deliver).body == b""
                second.close()

        hears(operate)
        topology.did("apply", "--ordered", str(topology.file), *fleet(topology))
        death.join()
    assert done == [b"%d" % number for number in range(30)]


def test_the_command_goes_on_when_the_broker_closes_its_connection(
    topology: Topology, client: Client, hears: Callable[[Callable[[str], None]], None]
) -> None:
    topology.write(FILE.format(1))
    topology.did("apply")
    api, vhost, port = topology.vhost.api, topology.vhost, port_of(topology.amqp_url)
    filled(vhost, "orders.1", 1)
    topology.write(FILE.format(2))

    def in_line() -> set[str]:
        return {each["consumer_tag"] for each in api.ask("GET", "consumers", vhost.name)} - {"member"}

    with client.session(port, vhost.name) as member:
        member.channel(1, confirm=False)
        member.ask(1, Basic.Consume(0, "orders.1", "member", arguments={"x-priority": LINK_PRIORITY}), Basic.ConsumeOk)
        assert len(deliveries(member, 1, 1)) == 1

        def of_the_drain() -> list[str]:
            listed = api.ask("GET", "connections", query="columns=name,user_provided_name,vhost")
            mine = [each for each in listed if each["vhost"] == vhost.name]
            return [each["name"] for each in mine if "apply --ordered, " in each.get("user_provided_name", "")]

        def close_and_end() -> None:
            try:
                wait_until("the command", lambda: bool(in_line()))
                before = in_line()
                wait_until("its connection is listed", lambda: bool(of_the_drain()))
                api.ask("DELETE", "connections", *of_the_drain())
                wait_until("the command again", lambda: bool(in_line() - before))
                member.tell(1, Basic.Ack(0, True))
                assert member.content(1, Basic.Deliver).body == b""
            finally:
                member.close()

        ending = Thread(target=close_and_end)
        hears(lambda line: ending.start() if "drains 1 queues" in line else None)
        told = topology.did("apply", "--ordered", str(topology.file), *fleet(topology))
        ending.join()
    assert "orders.1 is drained, and deleted" in told
    assert "has ended" in told or "CONNECTION_FORCED" in told


def test_the_program_of_a_classic_queue_is_not_waited_for(topology: Topology, client: Client) -> None:
    topology.write(FILE.format(1) + 'queue_type = "classic"\n')
    topology.did("apply")
    before, vhost = topology.made(), topology.vhost
    topology.write(FILE.format(2) + 'queue_type = "classic"\n')
    with client.session(port_of(topology.amqp_url), vhost.name) as wire:
        wire.channel(1)
        consume(wire, 1, "mine", "orders.1")
        wait_until("it is listed", lambda: bool(vhost.api.ask("GET", "consumers", vhost.name)))
        told = topology.run("apply", *FLAGS, str(topology.file), *fleet(topology))
    assert told.returncode == 2
    assert "queue 'orders.1' has the consumer 'mine'" in told.stderr
    assert "a classic queue does not tell what a program holds that has stopped" in told.stderr
    assert topology.made() == before


def test_a_program_that_consumes_a_new_queue_too_soon_is_named(
    topology: Topology, client: Client, hears: Callable[[Callable[[str], None]], None]
) -> None:
    topology.write(FILE.format(1))
    topology.did("apply")
    vhost, port = topology.vhost, port_of(topology.amqp_url)
    filled(vhost, "orders.1", 5)
    topology.write(FILE.format(2))
    with client.session(port, vhost.name) as old, client.session(port, vhost.name) as early:
        for each in (old, early):
            each.channel(1, confirm=False)
        consume(old, 1, "old", "orders.1", prefetch=1)
        wait_until("it is listed", lambda: bool(vhost.api.ask("GET", "consumers", vhost.name)))
        told = []

        def operate(line: str) -> None:
            told.append(line)
            if "'old' has messages to do" in line:
                consume(early, 1, "early", "orders.g2.2")
            elif "orders.g2.2 is consumed by 'early' before the old queues are done" in line:
                deliveries(old, 1, 1)
                for _ in range(4):
                    old.tell(1, Basic.Ack(0, True))
                    deliveries(old, 1, 1)
                old.tell(1, Basic.Ack(0, True))
            elif "'old' has got all: stop it" in line:
                old.close()

        hears(operate)
        topology.did("apply", *FLAGS, str(topology.file), *fleet(topology))
    assert sum("is consumed by 'early'" in line for line in told) == 1
