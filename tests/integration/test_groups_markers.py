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
from urllib.parse import quote

import pytest
from pamqp.commands import Basic, Channel, Queue

from proxy.commands.group import MEMBERS_VIEW, show
from proxy.topology.marker import DRAINER, LINK_PRIORITY
from proxy.wire.content import MARKER
from testbed.broker import Broker
from tests.integration import generations
from tests.integration.broker_api import VirtualHost, wait_until
from tests.integration.conftest import USER, StartSidecar
from tests.integration.groups import consume, deliveries, numbers, publish, sharded
from tests.integration.sidecar import Sidecar
from tests.integration.wire_client import Client, Wire, port_of, publish_frames

pytestmark = pytest.mark.versions

SHARDS = ["orders.0", "orders.1"]
ENDING = SHARDS[0]
"""The shard whose generation ends."""
BACKLOG = 40
REFUSED = "ringproxy_group_links_refused"


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

    def step_back(self) -> None:
        """Close the channel, so that all it has got goes back, and wait in line again."""
        self.line.tell(2, Channel.Close(200, "", 0, 0))
        while not isinstance(self.line.read()[1], Channel.CloseOk):
            pass
        self.line.channel(2, confirm=False)
        self.queue_up()

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


def ending(vhost: VirtualHost) -> None:
    """Make the exchange, and a later generation of one shard, which is open to no group."""
    sharded(vhost, SHARDS)
    generations.declare(vhost, 2, 1)
    generations.bind(vhost, 2, 0, 1)


@pytest.fixture
def grouping(start_sidecar: StartSidecar, vhost: VirtualHost) -> Sidecar:
    """Start a sidecar whose clients may consume from the name orders, with two shards of a generation that ends."""
    ending(vhost)
    vhost.permit(USER, configure=r"^orders\.group", write=".*", read=".*")
    return start_sidecar(groups="orders", groups_retry_delay="0.05", groups_retry_delay_max="0.2")


def backlog(client: Client, broker: Broker, vhost: VirtualHost, count: int = BACKLOG) -> None:
    """Put so many messages of four keys into each shard, whose bodies tell shard, key and number."""
    messages = [("", shard, b"%s k%d %d" % (shard.encode(), n % 4, n)) for n in range(count) for shard in SHARDS]
    publish(client, port_of(broker.amqp_url), vhost, messages)


def consumers(vhost: VirtualHost) -> list[str]:
    """Return the tags of the consumers of the shard that ends."""
    found = vhost.api.ask("GET", "consumers", vhost.name)
    return [each["consumer_tag"] for each in found if each["queue"]["name"] == ENDING]


def nothing_comes(wire: Wire) -> None:
    """Fail if anything else comes than the answer to a question that the broker gets now."""
    wire.ask(1, Basic.Qos(0, 10), Basic.QosOk)


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


def owned(sidecar: Sidecar, vhost: VirtualHost) -> list[str]:
    """Return the shards that members of a sidecar own."""
    members = sidecar.admin(f"/groups/{quote(vhost.name, safe='')}/orders").json["members"]
    return [shard for member in members if member["here"] for shard in member["shards"]]


def in_order(done: list[bytes]) -> bool:
    """Return whether each key's numbers ascend, without a number twice."""
    keys: dict[bytes, list[int]] = {}
    for body in done:
        shard, key, number = body.split()
        keys.setdefault(shard + key, []).append(int(number))
    return all(each == sorted(set(each)) for each in keys.values())


DELETED, LATE, BACK = "it deletes the queue", "it deletes the queue late", "it gives the shard back"


@pytest.mark.parametrize("then", [DELETED, LATE, BACK])
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
        owner = grouping if ENDING in owned(grouping, vhost) else other
        backlog(client, broker, vhost)
        command.put_marker()
        command.queue_up()
        command.put_marker()
        assert command.active() == [(b"", True)] * 2
        # The acks have reached the queue by now, so the clients have done all before the marker.
        done = works[0].of(ENDING) + works[1].of(ENDING)
        assert len(done) == BACKLOG
        if then == LATE:
            # No member comes while the command is there: it might come as the queue is deleted.
            wait_until("the command's consumer", lambda: len(consumers(vhost)) == 1)
            ends = time.monotonic() + 5
            while time.monotonic() < ends:
                assert len(consumers(vhost)) == 1
                time.sleep(0.1)
        if then != BACK:
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
        wait_until("no consumer lacks", lambda: not grouping.metric(REFUSED) and not other.metric(REFUSED))
    for sidecar in (grouping, other):
        assert sidecar.log().count("ends with its generation") == (owner is sidecar), sidecar.log()
        assert "has no consumer" not in sidecar.log(), sidecar.log()


def holding(wire: Wire, count: int, *, no_ack: bool = False) -> None:
    """Join the group, and get so many messages."""
    wire.channel(1, confirm=False)
    consume(wire, 1, prefetch=count, no_ack=no_ack)
    assert numbers(deliveries(wire, 1, count)) == list(range(count))


def test_what_a_killed_member_held_before_the_marker_comes_to_the_next_one_in_order(
    grouping: Sidecar, start_sidecar: StartSidecar, vhost: VirtualHost, client: Client, broker: Broker
) -> None:
    """The command is the next one in line: it gets messages, and steps back."""
    other = start_sidecar(groups="orders")
    publish(client, grouping.amqp_port, vhost, [("", ENDING, b"%d" % n) for n in range(BACKLOG)])
    with (
        commanding(client, broker, vhost) as command,
        client.session(grouping.amqp_port, vhost.name) as holder,
        client.session(other.amqp_port, vhost.name) as follower,
    ):
        holding(holder, 10)
        command.put_marker()
        command.queue_up()
        holder.tell(1, Basic.Ack(4, True))
        assert numbers(deliveries(holder, 1, 4)) == [10, 11, 12, 13]
        follower.channel(1, confirm=False)
        consume(follower, 1, prefetch=10)
        holder.close()
        assert command.active() == [(b"4", False), (b"5", False)]
        wait_until("the next member", lambda: len(consumers(vhost)) == 2, within=30)
        command.step_back()
        for start in range(4, BACKLOG, 10):
            batch = list(range(start, min(start + 10, BACKLOG)))
            assert numbers(deliveries(follower, 1, len(batch))) == batch
            follower.tell(1, Basic.Ack(0, True))
        command.put_marker()
        assert command.active() == [(b"", True)] * 2
        nothing_comes(follower)


def test_a_marker_without_its_command_is_looked_at_now_and_then_and_what_comes_once_it_is_gone_is_consumed(
    grouping: Sidecar, vhost: VirtualHost, client: Client, broker: Broker
) -> None:
    told = partial(show, grouping.admin_url, vhost.name, "orders", MEMBERS_VIEW, as_json=False)
    publish(client, grouping.amqp_port, vhost, [("", ENDING, b"%d" % n) for n in range(12)])
    with commanding(client, broker, vhost) as command, client.session(grouping.amqp_port, vhost.name) as member:
        holding(member, 10)
        command.put_marker()
        member.tell(1, Basic.Ack(0, True))
        assert numbers(deliveries(member, 1, 2)) == [10, 11]
        nothing_comes(member)
        member.tell(1, Basic.Ack(0, True))
        wait_until("the reason", lambda: "its generation ends" in told())
        time.sleep(4)
        assert grouping.metric("ringproxy_group_moves_total") == len(SHARDS)
        assert grouping.metric(REFUSED) == 0
        assert "redelivered" not in told()
        nothing_comes(member)
        # Somebody takes the marker out of the queue, and publishes.
        assert command.wire.ask(1, Queue.Purge(0, ENDING), Queue.PurgeOk).message_count == 1
        command.put(b"12")
        began = time.monotonic()
        assert numbers(deliveries(member, 1, 1)) == [12]
        print(f"after {time.monotonic() - began:.1f} s")
        member.tell(1, Basic.Ack(0, True))
    assert grouping.log().count("ends with its generation") == 1
    assert "has no consumer" not in grouping.log()
    # Once the member is gone, the log says that nobody has it.
    log = grouping.log()
    assert log.count(" has orders.0") - log.count("nobody has orders.0") == 1


def test_a_message_before_the_marker_may_take_longer_than_a_shard_that_moves_waits(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client, broker: Broker
) -> None:
    ending(vhost)
    sidecar = start_sidecar(groups="orders", groups_leave_timeout="1")
    publish(client, sidecar.amqp_port, vhost, [("", ENDING, b"%d" % n) for n in range(12)])
    with commanding(client, broker, vhost) as command, client.session(sidecar.amqp_port, vhost.name) as member:
        holding(member, 12)
        command.put_marker()
        command.queue_up()
        command.put_marker()
        time.sleep(3)
        nothing_comes(member)
        member.tell(1, Basic.Ack(0, True))
        assert command.active() == [(b"", True)] * 2
        nothing_comes(member)


def test_a_member_without_acks_gets_no_marker_and_lets_the_shard_go(
    grouping: Sidecar, vhost: VirtualHost, client: Client, broker: Broker
) -> None:
    """The broker has taken the marker out of the queue as it delivered it."""
    publish(client, grouping.amqp_port, vhost, [("", ENDING, b"%d" % n) for n in range(12)])
    with commanding(client, broker, vhost) as command, client.session(grouping.amqp_port, vhost.name) as member:
        holding(member, 12, no_ack=True)
        command.queue_up()
        command.put_marker()
        command.put_marker()
        command.put_marker()
        assert command.line.content(2, Basic.Deliver).body == b""
        nothing_comes(member)


def test_a_client_that_consumes_from_the_queue_itself_gets_the_marker(
    grouping: Sidecar, vhost: VirtualHost, client: Client, broker: Broker
) -> None:
    with commanding(client, broker, vhost) as command, client.session(grouping.amqp_port, vhost.name) as stranger:
        command.put_marker()
        stranger.channel(1, confirm=False)
        consume(stranger, 1, exchange=ENDING)
        content = stranger.content(1, Basic.Deliver)
        assert (content.properties.headers or {}).get(MARKER.decode()) == 1


@pytest.mark.parametrize("series", [{}, {"x-ring-in-series": True}], ids=["", "in series"])
def test_a_marker_that_somebody_forges_in_a_shard_that_does_not_end_stops_nothing(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client, broker: Broker, series: dict[str, Any]
) -> None:
    sharded(vhost, SHARDS)
    sidecar = start_sidecar(groups="orders")
    with commanding(client, broker, vhost) as forger, client.session(sidecar.amqp_port, vhost.name) as member:
        forger.put(b"0")
        for number in range(1, 4):
            forger.put_marker()
            forger.put(b"%d" % number)
        member.channel(1, confirm=False)
        member.ask(1, Basic.Qos(0, 10), Basic.QosOk)
        member.ask(1, Basic.Consume(0, "orders", "c", arguments=series), Basic.ConsumeOk)
        for number in range(4):
            assert numbers(deliveries(member, 1, 1)) == [number]
            member.tell(1, Basic.Ack(0, True))
        forger.put_marker()
        forger.put(b"4")
        assert numbers(deliveries(member, 1, 1)) == [4]
        member.tell(1, Basic.Ack(0, True))
        nothing_comes(member)
        # The broker has the acks of markers, too.
        member.close()
        wait_until("no consumer", lambda: not consumers(vhost))
        assert forger.wire.ask(1, Queue.Purge(0, ENDING), Queue.PurgeOk).message_count == 0
    assert sidecar.log().count("are taken away") == 1
    assert "ends with its generation" not in sidecar.log()


def test_a_marker_counts_as_soon_as_the_sidecar_knows_that_the_generation_ends(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client, broker: Broker
) -> None:
    """The command puts another one where its marker was taken away."""
    sharded(vhost, SHARDS)
    sidecar = start_sidecar(groups="orders", sync_interval="1")
    with commanding(client, broker, vhost) as command, client.session(sidecar.amqp_port, vhost.name) as member:
        member.channel(1, confirm=False)
        consume(member, 1, prefetch=10)
        wait_until("its link", lambda: len(consumers(vhost)) == 1)
        command.queue_up()
        command.put_marker()
        wait_until("it is taken away", lambda: "are taken away" in sidecar.log())
        generations.declare(vhost, 2, 1)
        generations.bind(vhost, 2, 0, 1)

        def known() -> bool:
            command.put_marker()
            return "ends with its generation" in sidecar.log()

        wait_until("it counts", known)
        assert command.line.content(2, Basic.Deliver).body == b""
        nothing_comes(member)
