"""Sessions on a node of the test's own, whose settings and alarms the tests can change."""

from collections.abc import Iterator

import pytest
from pamqp.commands import Basic, Connection
from pika import BlockingConnection, ConnectionParameters
from pika.exceptions import AMQPConnectionError

from testbed.node import Node
from tests.integration.broker_api import DEADLINE_SECONDS, BrokerApi, VirtualHost, wait_until
from tests.integration.conftest import StartSidecar
from tests.integration.own_node import Control, own_node, private_only
from tests.integration.rings import owner
from tests.integration.sidecar import Sidecar
from tests.integration.wire_client import Client

pytestmark = private_only

QUEUES = ["q1", "q2", "q3"]


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[Node, Control]]:
    """A node with one channel more than usual, and its rabbitmqctl."""
    with own_node("channel_max = 2048\n") as made:
        yield made


@pytest.fixture
def home(running: tuple[Node, Control]) -> VirtualHost:
    made = VirtualHost(BrokerApi(running[0].management_url), "/", [])
    made.ring("orders", QUEUES)
    made.drain_all()
    return made


@pytest.fixture
def beside(start_sidecar: StartSidecar, running: tuple[Node, Control]) -> Sidecar:
    """A sidecar of that node."""
    node = running[0]
    return start_sidecar(broker_url=node.amqp_url, management_url=node.management_url)


def test_one_channel_fewer_than_the_broker_has(beside: Sidecar, home: VirtualHost) -> None:
    with Client("guest", "guest").session(beside.amqp_port, "/") as peer:
        assert peer.tune.channel_max == 2047
        for number in range(1, 2048):
            peer.channel(number)
        for number in range(1, 2048):
            peer.publish(number, "orders", f"{number}", b"%d" % number)
        confirmed: set[int] = set()
        while len(confirmed) < 2047:
            number, frame = peer.read()
            assert isinstance(frame, Basic.Ack)
            confirmed.add(number)
        peer.goodbye()
    landed = {m.body: queue for queue, got in home.drain_all().items() for m in got}
    assert landed == {b"%d" % n: owner(QUEUES, f"{n}") for n in range(1, 2048)}


def test_a_blocked_connection_hears_of_it(beside: Sidecar, home: VirtualHost, running: tuple[Node, Control]) -> None:
    """The broker's memory alarm reaches the client, publishes wait, and go on when it is over."""
    _, ctl = running
    client = Client("guest", "guest")
    with client.session(beside.amqp_port, "/", capabilities={"connection.blocked": True}) as peer:
        peer.channel()
        peer.publish(1, "orders", "before")
        peer.confirm(1)
        ctl("set_vm_memory_high_watermark", "absolute", "1MB")
        try:
            # RabbitMQ tells those who publish, and takes that one yet.
            peer.publish(1, "orders", "blocks")
            told = [peer.read()[1] for _ in range(2)]
            assert {type(frame) for frame in told} == {Connection.Blocked, Basic.Ack}
            for n in range(10):
                peer.publish(1, "orders", f"{n}", b"%d" % n)
            wait_until("all sent", lambda: beside.metric("ringproxy_in_flight") == 10)
        finally:
            ctl("set_vm_memory_high_watermark", "0.6")
        peer.expect(0, Connection.Unblocked)
        peer.confirm(1, 12, after=2)
        peer.goodbye()
    assert sum(map(len, home.drain_all().values())) == 12


def test_a_killed_broker_ends_its_sessions(beside: Sidecar, home: VirtualHost, running: tuple[Node, Control]) -> None:
    node, _ = running
    pika = BlockingConnection(ConnectionParameters("127.0.0.1", beside.amqp_port, heartbeat=0))
    with Client("guest", "guest").session(beside.amqp_port, "/") as peer:
        peer.channel()
        peer.publish(1, "orders", "k", b"kept", Basic.Properties(delivery_mode=2))
        peer.confirm(1)
        node.kill()
        assert peer.at_end()
    with pytest.raises(AMQPConnectionError):
        pika.process_data_events(DEADLINE_SECONDS)
    assert pika.is_closed
    wait_until("ended", lambda: beside.metric("ringproxy_amqp_session_ends_total", reason="broker") == 2)
    node.start()
    with Client("guest", "guest").session(beside.amqp_port, "/") as peer:
        peer.channel()
        peer.publish(1, "orders", "k", b"kept")
        peer.confirm(1)
    assert [m.body for m in home.drain(owner(QUEUES, "k"))] == [b"kept"] * 2
