"""A broker connection stays open behind a client that has left, and serves the next one with the same login only."""

import itertools
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from pamqp import base
from pamqp.commands import Basic, Channel, Connection, Queue, Tx
from pamqp.common import FieldTable

from testbed.broker import Broker, installation
from testbed.cluster import private_cluster
from testbed.node import Node
from tests.integration.broker_api import BrokerApi, VirtualHost, fresh_name, wait_until
from tests.integration.conftest import StartSidecar
from tests.integration.groups import sharded
from tests.integration.own_node import BROKER, Control, own_node, private_only, urls
from tests.integration.rings import owner
from tests.integration.sidecar import Sidecar
from tests.integration.wire_client import (
    PROTOCOL_HEADER,
    Client,
    Wire,
    encoded,
    publish_frames,
    publishing,
    wire,
)

pytestmark = pytest.mark.versions

QUEUES = ["q1", "q2", "q3"]


@dataclass(frozen=True)
class Keeper:
    """A sidecar that keeps connections, and its clients."""

    sidecar: Sidecar
    vhost: VirtualHost
    client: Client

    @property
    def kept(self) -> int:
        return int(self.sidecar.metric("ringproxy_kept_connections"))

    @property
    def reused(self) -> int:
        return int(self.sidecar.metric("ringproxy_kept_connections_reused_total"))

    @contextmanager
    def session(
        self,
        client: Client | None = None,
        vhost: VirtualHost | None = None,
        *,
        heartbeat: int = 0,
        channel_max: int = 0,
    ) -> Iterator[Wire]:
        """Yield a client's open connection, which is closed in good order at the end."""
        with (client or self.client).session(
            self.sidecar.amqp_port, (vhost or self.vhost).name, heartbeat=heartbeat, channel_max=channel_max
        ) as peer:
            yield peer
            peer.goodbye()

    def leave_one(self) -> None:
        """Have a client come and go, whose connection is kept."""
        with self.session() as peer:
            peer.channel()
        assert self.kept > 0


@pytest.fixture
def keeper(start_sidecar: StartSidecar, vhost: VirtualHost, client: Client) -> Keeper:
    vhost.ring("orders", QUEUES)
    made = Keeper(start_sidecar(kept_connections="2"), vhost, client)
    made.sidecar.wait_ready()
    return made


def test_by_default_no_connection_is_kept(sidecar: Sidecar, vhost: VirtualHost, client: Client) -> None:
    for _ in range(2):
        with client.session(sidecar.amqp_port, vhost.name) as peer:
            peer.channel()
            peer.goodbye()
    assert (
        sidecar.metric("ringproxy_kept_connections") == sidecar.metric("ringproxy_kept_connections_reused_total") == 0
    )


@pytest.mark.parametrize("closes_channels", [True, False])
def test_clients_one_after_the_other_share_a_connection(
    keeper: Keeper, broker: Broker, api: BrokerApi, closes_channels: bool
) -> None:
    for n in range(5):
        with keeper.session() as peer:
            peer.channel(1)
            peer.channel(7)
            peer.publish(7, "orders", f"key {n}")
            peer.confirm(7)
            if closes_channels:
                for number in (1, 7):
                    peer.ask(number, Channel.Close(200, "", 0, 0), Channel.CloseOk)
        assert (keeper.kept, keeper.reused) == (1, n)
    landed = {m.headers["x-ring-routing-key"]: queue for queue, got in keeper.vhost.drain_all().items() for m in got}
    assert landed == {f"key {n}": owner(QUEUES, f"key {n}") for n in range(5)}
    [left] = connections(api, keeper.vhost)
    assert left["client_properties"]["product"] == "wire"


def connections(api: BrokerApi, vhost: VirtualHost, count: int = 1) -> list[dict[str, Any]]:
    """Return the broker's connections to a virtual host, once there are so many; its statistics come late."""

    def found() -> list[dict[str, Any]]:
        told: list[dict[str, Any]] = api.ask("GET", "vhosts", vhost.name, "connections")
        return [one for one in told if "client_properties" in one]

    wait_until(f"{count} connections", lambda: len(found()) == count)
    return found()


def test_a_client_that_sends_all_of_its_handshake_at_once(keeper: Keeper) -> None:
    keeper.leave_one()
    client, tune = keeper.client, Wire(keeper.sidecar.amqp_port)
    tune.handshake(client.user, client.password)
    offered = tune.tune
    tune.close()
    with wire(keeper.sidecar.amqp_port) as peer:
        login = Connection.StartOk(
            {"product": "wire", "capabilities": {}}, "PLAIN", f"\0{client.user}\0{client.password}"
        )
        limits = Connection.TuneOk(offered.channel_max, offered.frame_max, 0)
        opening: list[base.Frame] = [login, limits, Connection.Open(keeper.vhost.name)]
        peer.send(PROTOCOL_HEADER, *(encoded(0, each) for each in opening), encoded(1, Channel.Open()))
        for channel, answer in (
            (0, Connection.Start),
            (0, Connection.Tune),
            (0, Connection.OpenOk),
            (1, Channel.OpenOk),
        ):
            peer.expect(channel, answer)
        peer.goodbye()
    assert (keeper.kept, keeper.reused) == (1, 1)


def test_publishes_without_confirms_are_all_at_the_broker_before_another_client_comes(keeper: Keeper) -> None:
    keys = [f"key {n}" for n in range(200)]
    for part in (keys[:100], keys[100:]):
        with keeper.session() as peer:
            peer.channel(confirm=False)
            peer.send(*(publishing(1, "orders", key) for key in part))
    assert keeper.reused == 1
    landed = [m.headers["x-ring-routing-key"] for got in keeper.vhost.drain_all().values() for m in got]
    assert sorted(landed) == sorted(keys)


def test_confirms_that_are_under_way_at_the_goodbye_come_before_its_answer(keeper: Keeper) -> None:
    with keeper.client.session(keeper.sidecar.amqp_port, keeper.vhost.name) as peer:
        peer.channel()
        goodbye = encoded(0, Connection.Close(200, "", 0, 0))
        peer.send(*(publishing(1, "orders", f"key {n}") for n in range(100)), goodbye)
        peer.confirm(1, last=100)
        peer.expect(0, Connection.CloseOk)


def test_a_client_that_hangs_up_behind_its_goodbye(keeper: Keeper) -> None:
    with keeper.client.session(keeper.sidecar.amqp_port, keeper.vhost.name) as peer:
        peer.channel(confirm=False)
        peer.send(publishing(1, "orders", "k"), encoded(0, Connection.Close(200, "", 0, 0)))
    wait_until("the connection", lambda: keeper.kept == 1)
    with keeper.session() as peer:
        peer.channel()
    assert keeper.reused == 1
    assert [m.headers["x-ring-routing-key"] for got in keeper.vhost.drain_all().values() for m in got] == ["k"]


def test_a_client_that_is_lost_leaves_no_connection(keeper: Keeper) -> None:
    with keeper.client.session(keeper.sidecar.amqp_port, keeper.vhost.name) as peer:
        peer.channel()
    wait_until("the end", lambda: keeper.sidecar.metric("ringproxy_amqp_sessions") == 0)
    assert keeper.kept == 0


# Channels end with their client


def test_a_consumer_ends_and_its_deliveries_come_again(keeper: Keeper) -> None:
    with keeper.session() as peer:
        peer.channel()
        peer.publish(1, "", "q1", b"one")
        peer.confirm(1)
        peer.ask(1, Basic.Consume(0, "q1", "me"), Basic.ConsumeOk)
        assert peer.content(1, Basic.Deliver).body == b"one"
    with keeper.session() as peer:
        peer.channel()
        peer.publish(1, "", "q1", b"two")
        peer.confirm(1)  # and no delivery before it
        again = peer.get(1, "q1")
        assert again is not None
        assert (again.body, getattr(again.method, "redelivered")) == (b"one", True)  # noqa: B009
    assert keeper.reused == 1


def test_a_transaction_that_was_not_committed_is_undone(keeper: Keeper) -> None:
    with keeper.session() as peer:
        peer.channel(confirm=False)
        peer.ask(1, Tx.Select(), Tx.SelectOk)
        peer.publish(1, "orders", "k")
    with keeper.session() as peer:
        peer.channel(confirm=False)
        peer.ask(1, Tx.Select(), Tx.SelectOk)
        peer.ask(1, Tx.Commit(), Tx.CommitOk)
    assert keeper.reused == 1
    assert not any(keeper.vhost.drain_all().values())


def test_an_exclusive_queue_ends_with_its_client(keeper: Keeper) -> None:
    with keeper.session() as peer:
        peer.channel()
        peer.ask(1, Queue.Declare(0, "mine", exclusive=True), Queue.DeclareOk)
    assert keeper.kept == 0
    with keeper.session() as peer:
        peer.channel()
        peer.tell(1, Queue.Declare(0, "mine", passive=True))
        assert peer.expect(1, Channel.Close).reply_code == 404
        peer.tell(1, Channel.CloseOk())


def test_a_content_that_has_not_come_whole_ends_the_connection(keeper: Keeper) -> None:
    with keeper.client.session(keeper.sidecar.amqp_port, keeper.vhost.name) as peer:
        peer.channel()
        peer.send(*publish_frames(1, "", "q1", b"x" * 10)[:2])
        peer.goodbye()
    assert keeper.kept == 0


def test_a_channel_that_the_broker_has_closed_ends_the_connection(keeper: Keeper) -> None:
    """The broker waits for a close-ok, which this client leaves out."""
    with keeper.client.session(keeper.sidecar.amqp_port, keeper.vhost.name) as peer:
        peer.channel()
        peer.publish(1, "no such exchange", "k")
        peer.expect(1, Channel.Close)
        peer.goodbye()
    assert keeper.kept == 0


def test_credentials_that_were_renewed_end_the_connection(keeper: Keeper) -> None:
    with keeper.session() as peer:
        peer.channel()
        peer.ask(0, Connection.UpdateSecret(keeper.client.password, "renewed"), Connection.UpdateSecretOk)
    assert keeper.kept == 0


def test_a_member_of_a_group_leaves_none_of_its_channels(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client
) -> None:
    sharded(vhost)
    keeper = Keeper(start_sidecar(kept_connections="2", groups="orders"), vhost, client)
    keeper.sidecar.wait_ready()
    keeper.leave_one()
    with keeper.session() as peer:
        peer.channel()
        peer.ask(1, Basic.Consume(0, "orders", "me"), Basic.ConsumeOk)
        peer.publish(1, "orders", "k", b"one")
        got = {type(peer.read()[1]) for _ in range(4)}  # the confirm, and the three frames of the delivery
        assert {Basic.Ack, Basic.Deliver} < got
    assert (keeper.kept, keeper.reused) == (0, 1)
    with keeper.session() as peer:
        peer.channel()
        peer.publish(1, "orders", "other")
        peer.confirm(1)  # and no delivery before it


# Another login


def others() -> dict[str, Callable[[Keeper], None]]:
    """Return clients that differ from the first one, by how."""

    def with_properties(keeper: Keeper) -> None:
        with wire(keeper.sidecar.amqp_port) as peer:
            peer.handshake(keeper.client.user, keeper.client.password, {"basic.nack": True})
            peer.open(keeper.vhost.name)
            peer.channel()
            peer.goodbye()

    def with_heartbeat(keeper: Keeper) -> None:
        with keeper.session(heartbeat=30) as peer:
            peer.channel()

    def with_few_channels(keeper: Keeper) -> None:
        with keeper.session(channel_max=10) as peer:
            peer.channel()

    return {"properties": with_properties, "heartbeat": with_heartbeat, "channel_max": with_few_channels}


@pytest.mark.parametrize("how", ["properties", "heartbeat", "channel_max"])
def test_another_client_gets_a_connection_of_its_own(keeper: Keeper, how: str) -> None:
    keeper.leave_one()
    others()[how](keeper)
    assert (keeper.kept, keeper.reused) == (2, 0)
    others()[how](keeper)
    assert (keeper.kept, keeper.reused) == (2, 1)


def test_another_virtual_host_gets_a_connection_of_its_own(keeper: Keeper, other_vhost: VirtualHost) -> None:
    keeper.leave_one()
    with keeper.session(vhost=other_vhost) as peer:
        peer.channel()
        peer.tell(1, Queue.Declare(0, "q1", passive=True))
        assert peer.expect(1, Channel.Close).reply_code == 404
        peer.tell(1, Channel.CloseOk())
    assert (keeper.kept, keeper.reused) == (2, 0)


@pytest.fixture
def other(api: BrokerApi, vhost: VirtualHost) -> Iterator[Client]:
    """Yield a user of the test's own."""
    made = Client(fresh_name("{}"), "first")
    api.ask("PUT", "users", made.user, body={"password": made.password, "tags": ""})
    vhost.permit(made.user, ".*", ".*", ".*")
    yield made
    api.ask("DELETE", "users", made.user)


def test_another_user_gets_a_connection_of_its_own(keeper: Keeper, other: Client) -> None:
    keeper.leave_one()
    with keeper.session(other) as peer:
        peer.channel()
        # The broker compares it with the user of the connection.
        peer.publish(1, "orders", "k", properties=Basic.Properties(user_id=other.user))
        peer.confirm(1)
    assert (keeper.kept, keeper.reused) == (2, 0)


def test_a_wrong_password_is_refused_by_the_broker(keeper: Keeper, other: Client) -> None:
    with keeper.session(other) as peer:
        peer.channel()
    refused(keeper, Client(other.user, "wrong"))
    assert (keeper.kept, keeper.reused) == (1, 0)


def refused(keeper: Keeper, client: Client) -> None:
    with wire(keeper.sidecar.amqp_port) as peer:
        peer.send(PROTOCOL_HEADER)
        peer.expect(0, Connection.Start)
        login = Connection.StartOk(
            {"product": "wire", "capabilities": {"authentication_failure_close": True}},
            "PLAIN",
            f"\0{client.user}\0{client.password}",
        )
        assert peer.ask(0, login, Connection.Close).reply_code == 403
        peer.tell(0, Connection.CloseOk())


def test_two_clients_at_once_never_share_a_connection(keeper: Keeper) -> None:
    keeper.leave_one()
    with keeper.session() as one, keeper.session() as two:
        for peer in (one, two):
            peer.channel()
            peer.publish(1, "orders", "k")
        for peer in (one, two):
            peer.confirm(1)
        assert (keeper.kept, keeper.reused) == (0, 1)
    assert keeper.kept == 2


# The end of a kept connection


def test_no_more_connections_are_kept_than_the_setting_says(keeper: Keeper, api: BrokerApi) -> None:
    with keeper.session(), keeper.session(), keeper.session():
        pass
    assert keeper.kept == 2
    assert len(connections(api, keeper.vhost, 2)) == 2


def test_a_connection_ends_some_time_after_its_login_however_often_it_is_used(
    start_sidecar: StartSidecar, vhost: VirtualHost, other: Client, api: BrokerApi
) -> None:
    keeper = Keeper(start_sidecar(kept_connections="2", kept_connection_time="8"), vhost, other)
    keeper.sidecar.wait_ready()
    began = time.monotonic()
    keeper.leave_one()
    api.ask("PUT", "users", other.user, body={"password": "second", "tags": ""})
    while keeper.reused < 3:
        with keeper.session() as peer:
            peer.channel()
    wait_until("its end", lambda: keeper.kept == 0)
    assert time.monotonic() - began < 16
    refused(keeper, other)


def test_a_connection_ends_before_the_broker_misses_a_heartbeat(keeper: Keeper) -> None:
    with keeper.session(heartbeat=2) as peer:
        peer.channel()
    assert keeper.kept == 1
    began = time.monotonic()
    wait_until("its end", lambda: keeper.kept == 0)
    assert time.monotonic() - began < 2


def test_a_connection_that_the_broker_closes_is_not_given_away(keeper: Keeper, other: Client, api: BrokerApi) -> None:
    with keeper.session(other) as peer:
        peer.channel()
    keeper.leave_one()
    assert keeper.kept == 2
    api.ask("DELETE", "users", other.user)
    wait_until("the deleted user's connection to end", lambda: keeper.kept == 1)
    refused(keeper, other)
    [left] = connections(api, keeper.vhost)
    api.ask("DELETE", "connections", str(left["name"]))
    wait_until("the other one's end", lambda: keeper.kept == 0)
    keeper.leave_one()
    api.ask("PUT", "users", other.user, body={"password": "any", "tags": ""})


# A broker of these tests' own

BLOCKED: FieldTable = {"connection.blocked": True}
"""The capability of a client that wants to hear of it."""
ABRUPT = "client unexpectedly closed TCP connection"


@pytest.fixture(scope="module")
def node() -> Iterator[tuple[Node, Control]]:
    with own_node("") as made:
        yield made


@pytest.fixture
def own(node: tuple[Node, Control], start_sidecar: StartSidecar) -> Keeper:
    home = VirtualHost(BrokerApi(node[0].management_url), "/", [])
    home.ring("orders", QUEUES)
    started = start_sidecar(broker_url=node[0].amqp_url, management_url=node[0].management_url, kept_connections="2")
    started.wait_ready()
    return Keeper(started, home, Client.of(node[0].amqp_url))


@private_only
def test_at_the_end_of_the_sidecar_connections_are_closed_in_good_order(
    node: tuple[Node, Control], own: Keeper
) -> None:
    own.leave_one()
    connections(own.vhost.api, own.vhost, 2)  # the other one is for HTTP
    began = time.monotonic()
    own.sidecar.signal(signal.SIGTERM)
    own.sidecar.process.wait(20)
    assert time.monotonic() - began < 5
    connections(own.vhost.api, own.vhost, 0)
    assert ABRUPT not in node[0].log.read_text()


@private_only
def test_at_the_end_of_the_sidecar_the_broker_could_tell(node: tuple[Node, Control], own: Keeper) -> None:
    """The line of the log that the test before looks for is the broker's for a connection without a close."""
    own.leave_one()
    own.sidecar.kill()
    wait_until("the line", lambda: ABRUPT in node[0].log.read_text())


@private_only
def test_a_connection_that_the_broker_has_blocked_is_not_kept(node: tuple[Node, Control], own: Keeper) -> None:
    _, control = node
    own.leave_one()
    with own.client.session(own.sidecar.amqp_port, "/", capabilities=BLOCKED) as peer:
        peer.channel()
        control("set_vm_memory_high_watermark", "0.00001")
        try:
            peer.publish(1, "orders", "k")
            peer.expect(0, Connection.Blocked)
        finally:
            control("set_vm_memory_high_watermark", "0.6")
        assert {type(peer.read()[1]) for _ in range(2)} == {Connection.Unblocked, Basic.Ack}
        peer.goodbye()
    assert (own.kept, own.reused) == (1, 0)


@private_only
def test_a_client_of_a_kept_connection_hears_that_the_broker_blocks(node: tuple[Node, Control], own: Keeper) -> None:
    _, control = node
    for _ in range(2):
        with own.client.session(own.sidecar.amqp_port, "/", capabilities=BLOCKED) as peer:
            peer.channel()
            peer.goodbye()
    assert (own.kept, own.reused) == (1, 1)
    control("set_vm_memory_high_watermark", "0.00001")
    try:
        wait_until("the alarm", lambda: own.vhost.api.ask("GET", "nodes")[0].get("mem_alarm"))
        with own.client.session(own.sidecar.amqp_port, "/", capabilities=BLOCKED) as peer:
            assert own.reused == 2
            peer.channel()
            peer.publish(1, "orders", "k")
            peer.expect(0, Connection.Blocked)
    finally:
        control("set_vm_memory_high_watermark", "0.6")


@private_only
def test_a_broker_that_restarts_ends_what_was_kept(node: tuple[Node, Control], own: Keeper) -> None:
    own.leave_one()
    node[0].stop()
    wait_until("its end", lambda: own.kept == 0)
    node[0].start()
    own.leave_one()


# A cluster of these tests' own


class Cluster:
    """Three nodes, and a sidecar of them that keeps three connections."""

    def __init__(self, nodes: list[Node], start_sidecar: StartSidecar) -> None:
        self.nodes = {node.name: node for node in nodes}
        self._home(nodes[0]).exchange("orders")
        for node, queue in zip(nodes, QUEUES, strict=True):
            self._home(node).queue(queue, x_queue_type="quorum")
            self._home(node).bind("orders", queue)
        sidecar = start_sidecar(**urls(*nodes), kept_connections="3", sync_interval="2")
        sidecar.wait_ready()
        self.keeper = Keeper(sidecar, self._home(nodes[0]), Client("guest", "guest"))
        self._numbers = itertools.count()
        self.keys: list[str] = []

    @staticmethod
    def _home(node: Node) -> VirtualHost:
        return VirtualHost(BrokerApi(node.management_url), "/", [])

    def publish(self, peer: Wire) -> None:
        """Have a client publish a message to an open channel, and get its confirm."""
        self.keys.append(f"key {next(self._numbers)}")
        peer.publish(1, "orders", self.keys[-1])
        peer.confirm(1)

    def three_clients(self) -> None:
        """Have three clients at once, each of which publishes a message."""
        with ExitStack() as stack:
            for peer in [stack.enter_context(self.keeper.session()) for _ in range(3)]:
                peer.channel()
                self.publish(peer)

    def connected(self, count: int, without: str = "") -> list[str]:
        """Return the nodes that clients' connections are to, once there are so many; ask a node of another name."""
        asked = next(node for name, node in self.nodes.items() if name != without)

        def found() -> list[str]:
            told = self._home(asked).api.ask("GET", "connections")
            return [one["node"] for one in told if one.get("client_properties", {}).get("product") == "wire"]

        return wait_until(f"{count} connections", lambda: len(found()) == count and found())

    def landed(self) -> list[str]:
        """Return the keys of all messages in the queues, sorted."""
        found = self._home(next(iter(self.nodes.values()))).drain_all()
        return sorted(m.headers["x-ring-routing-key"] for got in found.values() for m in got)


@pytest.fixture
def cluster(start_sidecar: StartSidecar) -> Iterator[Cluster]:
    with private_cluster(installation(BROKER), 3) as nodes:
        yield Cluster(nodes, start_sidecar)


@private_only
@pytest.mark.long
def test_a_node_that_stops_ends_its_kept_connection_alone(cluster: Cluster) -> None:
    keeper = cluster.keeper
    cluster.three_clients()
    assert (keeper.kept, keeper.reused) == (3, 0)
    stopped, *others = cluster.connected(3)
    left = [name for name in others if name != stopped]
    assert left
    cluster.nodes[stopped].stop()
    wait_until("its end", lambda: keeper.kept == len(left))
    cluster.three_clients()
    assert (keeper.kept, keeper.reused) == (3, len(left))
    assert stopped not in cluster.connected(3, without=stopped)
    cluster.nodes[stopped].start()
    assert cluster.landed() == sorted(cluster.keys)


@private_only
@pytest.mark.long
@pytest.mark.parametrize("end", [Node.stop, Node.kill], ids=["stopped", "killed"])
def test_a_node_that_ends_during_the_handshake_is_replaced_by_another(
    cluster: Cluster, end: Callable[[Node], None]
) -> None:
    keeper = cluster.keeper
    keeper.leave_one()
    [name] = cluster.connected(1)
    with wire(keeper.sidecar.amqp_port) as peer:
        peer.handshake("guest", "guest")
        end(cluster.nodes[name])
        assert keeper.kept == 0  # the sidecar, which answers this, has heard of the end
        peer.open("/")
        peer.channel()
        cluster.publish(peer)
        assert name not in cluster.connected(1, without=name)
        peer.goodbye()
    assert keeper.reused == 0
    cluster.nodes[name].start()
    assert cluster.landed() == sorted(cluster.keys)
