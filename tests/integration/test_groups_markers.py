"""Markers behind the messages of a shard whose generation ends: no member gets one, and the command in line gets it.

The command is a consumer of the test, second in the line of the shard's single active consumers.
"""

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from threading import Event, Thread
from typing import Any

import pytest
from pamqp.commands import Basic, Queue

from proxy.commands.group import MEMBERS_VIEW, show
from proxy.topology.marker import DRAINER, LINK_PRIORITY
from proxy.wire.content import MARKER
from testbed.broker import Broker
from tests.integration.broker_api import VirtualHost, wait_until
from tests.integration.conftest import USER, StartSidecar
from tests.integration.groups import publish, sharded
from tests.integration.sidecar import Sidecar
from tests.integration.wire_client import Client, Wire, port_of, publish_frames

pytestmark = pytest.mark.versions

SHARDS = ["orders.0", "orders.1"]
ENDING = SHARDS[0]
"""The shard whose generation ends."""
BACKLOG = 40


class Command:
    """The command that ends the generation: it puts markers, and waits in the line of the shard."""

    def __init__(self, wire: Wire, line: Wire) -> None:
        """It publishes by one connection, and consumes by the other."""
        self.wire, self.line = wire, line
        wire.channel(1)
        line.channel(2, confirm=False)

    def put_marker(self) -> None:
        self.put(b"", headers={MARKER.decode(): 1}, priority=0)

    def put(self, body: bytes, **properties: Any) -> None:
        wanted = Basic.Properties(delivery_mode=2, **properties)
        self.wire.send(*publish_frames(1, "", ENDING, body, wanted))
        self.wire.expect(1, Basic.Ack)

    def queue_up(self) -> None:
        request = Basic.Consume(0, ENDING, f"{DRAINER}.1", arguments={"x-priority": LINK_PRIORITY})
        self.line.ask(2, request, Basic.ConsumeOk)

    def active(self) -> list[tuple[bytes, bool]]:
        """Return the body of each of two deliveries, and whether it is a marker."""
        found = []
        for _ in range(2):
            content = self.line.content(2, Basic.Deliver)
            found.append((content.body, MARKER.decode() in (content.properties.headers or {})))
        return found


@contextmanager
def commanding(client: Client, broker: Broker, vhost: VirtualHost) -> Iterator[Command]:
    """Yield a command on the broker itself."""
    port = port_of(broker.amqp_url)
    with client.session(port, vhost.name) as wire, client.session(port, vhost.name) as line:
        yield Command(wire, line)


@pytest.fixture
def grouping(start_sidecar: StartSidecar, vhost: VirtualHost) -> Sidecar:
    """Start a sidecar whose clients may consume from the name orders, which has two shards."""
    sharded(vhost, SHARDS)
    vhost.permit(USER, configure=r"^orders\.group", write=".*", read=".*")
    return start_sidecar(groups="orders", groups_retry_delay="0.05", groups_retry_delay_max="0.2")


def backlog(client: Client, broker: Broker, vhost: VirtualHost, count: int = BACKLOG) -> None:
    """Put so many messages of four keys into each shard, whose bodies tell shard, key and number."""
    messages = [("", shard, b"%s k%d %d" % (shard.encode(), n % 4, n)) for n in range(count) for shard in SHARDS]
    publish(client, port_of(broker.amqp_url), vhost, messages)


class Work:
    """A client that works until it is told to end, in a thread of its own."""

    def __init__(self, client: Client, port: int, vhost: VirtualHost, prefetch: int, *, in_series: bool) -> None:
        self.client, self.port, self.vhost, self.prefetch, self.in_series = client, port, vhost, prefetch, in_series
        self.done: list[bytes] = []
        self.seen: list[bytes] = []
        self.over = Event()
        self.thread = Thread(target=self._run)

    def _run(self) -> None:
        chance = random.Random(1)
        with self.client.pika(self.port, self.vhost.name) as channel:
            channel.basic_qos(prefetch_count=self.prefetch)

            def got(_: Any, method: Any, __: Any, body: bytes) -> None:
                self.seen.append(body)
                if self.in_series and chance.random() < 0.2:
                    channel.basic_nack(method.delivery_tag)
                    return
                self.done.append(body)
                channel.basic_ack(method.delivery_tag)

            arguments = {"x-ring-in-series": True} if self.in_series else {}
            channel.basic_consume("orders", got, arguments=arguments)
            while not self.over.is_set():
                channel.connection.process_data_events(time_limit=0.05)

    def of(self, shard: str) -> list[bytes]:
        return [body for body in self.done if body.startswith(shard.encode())]


@contextmanager
def working(*works: Work) -> Iterator[None]:
    for each in works:
        each.thread.start()
    try:
        yield
    finally:
        for each in works:
            each.over.set()
        for each in works:
            each.thread.join(30)
            assert not each.thread.is_alive()


def in_order(done: list[bytes]) -> bool:
    """Return whether each key's numbers ascend, without a number twice."""
    keys: dict[bytes, list[int]] = {}
    for body in done:
        shard, key, number = body.split()
        keys.setdefault(shard + key, []).append(int(number))
    return all(each == sorted(set(each)) for each in keys.values())


def consumers(vhost: VirtualHost, shard: str = ENDING) -> list[str]:
    return [
        each["consumer_tag"] for each in vhost.api.ask("GET", "consumers", vhost.name) if each["queue"]["name"] == shard
    ]


MEMBERS = pytest.mark.parametrize(
    ("prefetch", "in_series"),
    [pytest.param(1, False, id="prefetch 1"), pytest.param(10, False, id="prefetch 10"), (10, True), (0, False)],
    ids=["prefetch 1", "prefetch 10", "in series", "no prefetch"],
)


@pytest.mark.parametrize("then", ["it deletes the queue", "it gives the shard back"])
@pytest.mark.parametrize(("prefetch", "in_series"), [(1, False), (10, False), (0, False), (10, True)])
def test_members_do_all_before_the_marker_and_the_command_gets_nothing_but_markers(
    grouping: Sidecar,
    start_sidecar: StartSidecar,
    vhost: VirtualHost,
    client: Client,
    broker: Broker,
    prefetch: int,
    in_series: bool,
    then: str,
) -> None:
    """Two members at two sidecars. In series, each fifth message is returned."""
    other = start_sidecar(groups="orders", groups_retry_delay="0.05", groups_retry_delay_max="0.2")
    works = [Work(client, each.amqp_port, vhost, prefetch, in_series=in_series) for each in (grouping, other)]
    told = partial(show, other.admin_url, vhost.name, "orders", MEMBERS_VIEW, as_json=False)
    with commanding(client, broker, vhost) as command, working(*works):
        wait_until("the links", lambda: told().count("has 1 shard,") == 2)
        backlog(client, broker, vhost)
        command.put_marker()
        command.queue_up()
        command.put_marker()
        assert command.active() == [(b"", True)] * 2
        # The acks have reached the queue by now, so the clients have done all before the marker.
        done = works[0].of(ENDING) + works[1].of(ENDING)
        assert len(done) == BACKLOG
        if then == "it deletes the queue":
            command.wire.ask(1, Queue.Delete(0, ENDING), Queue.DeleteOk)
        else:
            command.line.tell(2, Basic.Ack(0, True))
            command.put(b"orders.0 k0 1000")
            command.line.close()
            began = time.monotonic()
            wait_until("the new message", lambda: len(works[0].of(ENDING) + works[1].of(ENDING)) == BACKLOG + 1)
            print(f"after {time.monotonic() - began:.1f} s")
        publish(client, port_of(broker.amqp_url), vhost, [("", SHARDS[1], b"orders.1 k0 1000")])
        wait_until("the other shard", lambda: len(works[0].of(SHARDS[1]) + works[1].of(SHARDS[1])) == BACKLOG + 1)
    for work in works:
        assert in_order(work.done)
        assert b"" not in work.seen
