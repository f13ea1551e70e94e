"""A sidecar that is frozen while its exchange gets other shards: what waits in its sockets arrives in order, or is lost
to its publisher with the connection, unconfirmed.
"""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pamqp.commands import Basic, Connection

from proxy.shards import apply
from proxy.shards.steps import Bind
from testbed.broker import Broker
from testbed.ordered_judge import Published
from tests.integration.broker_api import wait_until
from tests.integration.conftest import StartSidecar
from tests.integration.ordered_load import OrderedLoad
from tests.integration.sidecar import Sidecar
from tests.integration.test_topology_ordered import FILE, WAITS, fleet, ordered, queues, through
from tests.integration.topology import Topology, between_looks
from tests.integration.wire_client import Client, Wire, shown

KEYS = 20
PUBLISHER = 9
"""The number of the publisher whose sidecar is frozen, for the judge."""

SENT = 400
"""How many messages it sends before its sidecar is frozen, and how many afterwards."""


class Publisher:
    """Sends numbered messages of each key in turn over one connection, and notes which were confirmed."""

    def __init__(self, load: OrderedLoad) -> None:
        self._load = load
        self._sent: list[int] = []
        """The message of each delivery tag of this connection."""
        self.unconfirmed: dict[int, float] = {}
        """When each message was sent that has no answer, the oldest first."""
        self.nacked = 0
        """How many messages were nacked, which are not sent again: the ring could not be read in time, for example."""

    def connect(self, wire: Wire) -> None:
        """Publish over this connection from now on, first all that is unconfirmed."""
        self._wire, self._sent = wire, []
        wire.channel(1)
        self.send(list(self.unconfirmed))

    def send(self, messages: list[int]) -> None:
        for message in messages:
            key, number = message % KEYS, message // KEYS + 1
            self._wire.publish(1, "orders", f"key {PUBLISHER} {key}", f"{PUBLISHER} {key} {number}".encode())
            self._sent.append(message)
            self.unconfirmed.setdefault(message, time.monotonic())

    def read(self) -> None:
        """Read until each message has its answer. Raises EOFError where the connection ends before."""
        while self.unconfirmed:
            _, value = self._wire.read()
            if isinstance(value, Connection.Close):
                raise EOFError(shown(value))
            assert isinstance(value, Basic.Ack | Basic.Nack), shown(value)
            tag = value.delivery_tag or 0
            for message in self._sent[:tag] if value.multiple else [self._sent[tag - 1]]:
                if (sent := self.unconfirmed.pop(message, None)) is None:
                    continue
                if isinstance(value, Basic.Nack):
                    self.nacked += 1
                else:
                    published = Published(message // KEYS + 1, sent, time.monotonic())
                    self._load.confirmed[PUBLISHER, message % KEYS].append(published)


@pytest.fixture(autouse=True)
def waits(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait only as long as this broker takes to count."""
    for name in WAITS:
        monkeypatch.setattr(name, between_looks(broker))


@contextmanager
def frozen_at_the_switch(sidecar: Sidecar) -> Iterator[None]:
    """Freeze a sidecar before the ring changes, and do not wait long until all have the new one."""

    async def take(broker: Any, vhost: str, step: Any) -> None:
        if isinstance(step, Bind) and step.source == "orders":
            sidecar.signal(signal.SIGSTOP)
        await apply.take(broker, vhost, step)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("proxy.shards.reshard.take", take)
        patched.setattr("proxy.shards.reshard._SWITCHED_WITHIN", 2.0)
        yield


@pytest.mark.versions
@pytest.mark.long
def test_a_sidecar_that_slept_through_a_change_puts_nothing_behind_its_markers(
    start_sidecar: StartSidecar, topology: Topology, client: Client
) -> None:
    topology.write(FILE.format(3))
    topology.did("apply")
    vhost = topology.vhost
    sleeper, other = (start_sidecar(groups="orders", sync_interval="3") for _ in range(2))
    url, process = through(other, vhost.name), sleeper.id
    with OrderedLoad([url], [url, url], keys=KEYS, rate=100, groups=("orders",)) as load:
        publisher = Publisher(load)
        with client.session(sleeper.amqp_port, vhost.name, heartbeat=2) as wire:
            publisher.connect(wire)
            publisher.send(list(range(SENT)))
            sleeper.signal(signal.SIGSTOP)
            try:
                publisher.send(list(range(SENT, 2 * SENT)))
                wait_until("its connections are dropped", lambda: not listed(topology, process), within=90)
                topology.write(FILE.format(5))
                told = topology.did("apply", "--ordered", str(topology.file), f"--sidecar={other.admin_url}")
                topology.did("check")
            finally:
                sleeper.signal(signal.SIGCONT)
            with pytest.raises(EOFError):
                publisher.read()
        assert publisher.unconfirmed
        with client.session(sleeper.amqp_port, vhost.name) as wire:
            publisher.connect(wire)
            publisher.send(list(range(2 * SENT, 3 * SENT)))
            publisher.read()
            wire.goodbye()
    judge(load, publisher)
    assert queues(topology) == {f"orders.g2.{n}" for n in range(1, 6)}
    print(told, f"{load.total} messages, slowest confirm {load.slowest:.2f} s", sep="\n")


@pytest.mark.versions
@pytest.mark.long
def test_a_sidecar_that_is_frozen_at_the_switch_holds_up_the_change_and_its_messages_come_back(
    start_sidecar: StartSidecar, topology: Topology, client: Client
) -> None:
    topology.write(FILE.format(3))
    topology.did("apply")
    vhost = topology.vhost
    sleeper, other = (start_sidecar(groups="orders", sync_interval="3") for _ in range(2))
    url = through(other, vhost.name)
    with OrderedLoad([url], [url, url], keys=KEYS, rate=100, groups=("orders",)) as load:
        publisher = Publisher(load)
        with client.session(sleeper.amqp_port, vhost.name) as wire:
            publisher.connect(wire)
            publisher.send(list(range(SENT)))
            publisher.read()
            topology.write(FILE.format(5))
            with frozen_at_the_switch(sleeper):
                try:
                    flags = [str(topology.file), *fleet(topology), "--timeout=5"]
                    told = topology.run("apply", "--ordered", *flags)
                    publisher.send(list(range(SENT, 2 * SENT)))
                finally:
                    sleeper.signal(signal.SIGCONT)
            assert told.returncode == 2
            assert "waited 5 s for the fleet" in told.stderr
            assert sleeper.admin_url in told.stderr
            publisher.read()
            rerouted = sleeper.metric("ringproxy_rerouted_total", ingress="amqp", vhost=vhost.name, exchange="orders")
            assert rerouted + publisher.nacked > 0
            print(f"{rerouted:g} messages came back and were published again, {publisher.nacked} were nacked")
            ordered(topology)
            publisher.send(list(range(2 * SENT, 3 * SENT)))
            publisher.read()
            wire.goodbye()
    judge(load, publisher)
    assert queues(topology) == {f"orders.g2.{n}" for n in range(1, 6)}


def listed(topology: Topology, process: str) -> bool:
    """Return whether RabbitMQ lists a connection of a sidecar."""
    connections = topology.vhost.api.ask("GET", "connections", query="columns=client_properties")
    return any(each["client_properties"].get("ringproxy_id") == process for each in connections)


def judge(load: OrderedLoad, publisher: Publisher) -> None:
    assert not load.overtaken
    assert not load.missing
    confirmed = [each for key in range(KEYS) for each in load.confirmed[PUBLISHER, key]]
    assert len(confirmed) == 3 * SENT - publisher.nacked
