"""Sessions on a node of the test's own, whose settings and alarms the tests can change."""

from collections.abc import Iterator

import pytest
from pamqp.commands import Basic, Channel, Connection
from pika import BlockingConnection, ConnectionParameters
from pika.exceptions import AMQPConnectionError

from testbed.node import Node
from tests.integration.broker_api import DEADLINE_SECONDS, VirtualHost, wait_until
from tests.integration.conftest import StartSidecar
from tests.integration.own_node import Control, home_of, own_node, private_only
from tests.integration.relay import management_front
from tests.integration.rings import owner
from tests.integration.sidecar import Sidecar
from tests.integration.wire_client import Client

pytestmark = [private_only, pytest.mark.versions]

QUEUES = ["q1", "q2", "q3"]


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[Node, Control]]:
    """A node with one channel more than usual, and its rabbitmqctl."""
    with own_node("channel_max = 2048\n") as made:
        yield made


@pytest.fixture
def home(running: tuple[Node, Control]) -> VirtualHost:
    return home_of(running[0], QUEUES)


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


def test_a_cluster_that_is_renamed_keeps_its_sessions(
    beside: Sidecar, home: VirtualHost, running: tuple[Node, Control]
) -> None:
    """A broker tells its cluster's name as a connection begins only; HTTP's connection is of before, too."""
    _, ctl = running
    with Client("guest", "guest").session(beside.amqp_port, "/") as peer:
        peer.channel()
        peer.publish(1, "orders", "k", b"before")
        peer.confirm(1)
        beside.publish("orders", "k").receipt()
        ctl("set_cluster_name", f"renamed-{beside.amqp_port}")
        wait_until("seen", lambda: "which is the same one, renamed" in beside.log())
        beside.publish("orders", "k").receipt()
        peer.publish(1, "orders", "k", b"after")
        peer.confirm(1, 2, after=1)
        # It was looked at once: from now on the session has the new name.
        ctl("set_cluster_name", f"once-more-{beside.amqp_port}")
        wait_until("seen", lambda: beside.log().count("which is the same one, renamed") == 2)
        peer.publish(1, "orders", "k", b"last")
        peer.confirm(1, 3, after=2)
        peer.goodbye()
    assert [m.body for m in home.drain(owner(QUEUES, "k"))].count(b"after") == 1
    assert "FAIL" not in beside.admin("/readyz?verbose").text


def test_a_session_of_a_cluster_renamed_just_now_is_served(
    start_sidecar: StartSidecar, home: VirtualHost, running: tuple[Node, Control]
) -> None:
    """The management API was last asked before: it is asked again, once the broker's new name does not match."""
    node, ctl = running
    sidecar = start_sidecar(broker_url=node.amqp_url, management_url=node.management_url, sync_interval="100000")
    with Client("guest", "guest").session(sidecar.amqp_port, "/") as peer:
        peer.channel()
        peer.publish(1, "orders", "k")
        peer.confirm(1)
    ctl("set_cluster_name", f"renamed-{sidecar.amqp_port}")
    with Client("guest", "guest").session(sidecar.amqp_port, "/") as peer:
        peer.channel()
        peer.publish(1, "orders", "k")
        peer.confirm(1)
        peer.goodbye()


def test_a_session_of_another_cluster_is_refused(
    start_sidecar: StartSidecar, home: VirtualHost, running: tuple[Node, Control]
) -> None:
    """One that began before the API's cluster was another is told to connect again: its word may be outdated."""
    node, _ = running
    with management_front(node.management_url) as front:
        sidecar = start_sidecar(broker_url=node.amqp_url, management_url=front.url)
        with Client("guest", "guest").session(sidecar.amqp_port, "/") as peer:
            peer.channel()
            peer.publish(1, "orders", "k")
            peer.confirm(1)
            front.answer("/api/cluster-name", 200, {"name": "elsewhere"})
            front.answer("/api/vhosts", 200, [{"name": "/", "cluster_state": {"rabbit@elsewhere": "running"}}])
            wait_until("seen", lambda: "which is another one" in sidecar.log())
            peer.publish(1, "orders", "k", b"refused")
            closed = peer.expect(0, Connection.Close)
            assert closed.reply_code == 320
            assert closed.reply_text.endswith("'elsewhere'; connect again")
        with Client("guest", "guest").session(sidecar.amqp_port, "/") as peer:
            for _ in range(2):
                peer.channel()
                peer.publish(1, "orders", "k", b"refused")
                assert peer.expect(1, Channel.Close).reply_code == 541
                peer.tell(1, Channel.CloseOk())
        assert b"refused" not in [m.body for got in home.drain_all().values() for m in got]
