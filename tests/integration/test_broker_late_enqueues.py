"""A cluster of RabbitMQ: messages that were routed before an unbind, and reach the queue behind a later marker.

Clients publish by way of the fourth node, and the fence works on another one. No sidecar takes part. The figures are in
docs/development/generations.md.
"""

import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress

import pytest
from pamqp.commands import Basic, Exchange, Queue
from pamqp.common import FieldTable

from testbed.broker import installation
from testbed.cluster import private_cluster
from testbed.node import Node
from testbed.readiness import answering_version
from tests.integration.broker_api import DEADLINE_SECONDS, wait_until
from tests.integration.consuming import consumers
from tests.integration.lane_load import is_returned, opened
from tests.integration.own_node import BROKER, private_only
from tests.integration.wire_client import Client, port_of, publishing

pytestmark = [private_only, pytest.mark.long, pytest.mark.versions]

LOG = logging.getLogger(__name__)

FREEZES = 3
QUEUES = 24
BEFORE = 100
"""Messages of each queue that are sent before the fault."""
MOST = 600
MARKER = 1_000_000
"""The number of the first marker; later ones have the following numbers."""

_RETURN, _ACK, _NACK = b"\x00\x3c\x00\x32", b"\x00\x3c\x00\x50", b"\x00\x3c\x00\x78"


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Node]]:
    with private_cluster(installation(BROKER), 4, running=3) as made:
        if answering_version(made[0].amqp_url, made[0].management_url).startswith("3."):
            pytest.skip("3.10.8 nacks for 30 s and more what is published to a queue whose leader was killed")
        yield made


def join(node: Node) -> None:
    """Start the fourth node if no test has done so."""
    try:
        assert node.pid
    except RuntimeError:
        node.start()


class Stream:
    """A client that publishes numbers into lanes, one channel for each, and waits for nothing."""

    def __init__(self, node: Node, lanes: Sequence[str]) -> None:
        self._wire = opened(node)
        self._lanes = lanes
        for channel in range(1, len(lanes) + 1):
            self._wire.channel(channel)
        self.sent = 0
        """Publishes on each channel."""
        self.begun: list[float] = []
        """The second before each of them."""
        self._open = {lane: set[int]() for lane in lanes}
        self.outcomes = {lane: Counter[str]() for lane in lanes}
        self._over = threading.Event()
        self._wire.socket.settimeout(None)
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._write, self._read)]
        for thread in self._threads:
            thread.start()

    def _write(self) -> None:
        while not self._over.is_set() and self.sent < MOST:
            number = self.sent
            self.begun.append(time.monotonic())
            for lane in self._lanes:
                self._open[lane].add(number + 1)
            data = (
                publishing(channel, lane, "k", b"%d" % number, mandatory=True)
                for channel, lane in enumerate(self._lanes, 1)
            )
            try:
                self._wire.send(*data)
            except OSError:
                return
            self.sent += 1
            time.sleep(0.0005)

    def _read(self) -> None:
        while True:
            try:
                _, channel, payload = self._wire.read_frame()
            except (EOFError, OSError):
                return
            lane = self._lanes[channel - 1]
            if payload[:4] == _RETURN:
                self.outcomes[lane]["returned"] += 1
            elif payload[:4] in (_ACK, _NACK):
                tag = int.from_bytes(payload[4:12], "big")
                waiting = self._open[lane]
                tags = {each for each in tuple(waiting) if each <= tag} if payload[12] & 1 else {tag}
                waiting -= tags
                self.outcomes[lane]["acked" if payload[:4] == _ACK else "nacked"] += len(tags)

    def unsettled(self, lane: str) -> int:
        return len(self._open[lane])

    def stop(self) -> None:
        """Publish no more, and return once the last publish is sent."""
        self.end()
        self._threads[0].join()

    def end(self) -> None:
        """Begin no more publishes."""
        self._over.set()

    def settle(self, lanes: Sequence[str]) -> None:
        """Return once all publishes into the lanes are settled."""
        wait_until("confirms", lambda: not any(map(self.unsettled, lanes)), 2 * DEADLINE_SECONDS)

    def routed(self, lane: str) -> int:
        return self.outcomes[lane]["acked"] - self.outcomes[lane]["returned"]

    def drop(self) -> None:
        """Let the socket go, without a word."""
        self.end()
        with suppress(OSError):
            self._wire.socket.shutdown(socket.SHUT_RDWR)
        self._wire.close()


class Fence:
    """The connection that unbinds lanes, and puts markers into their queues."""

    def __init__(self, node: Node) -> None:
        self.wire = opened(node)
        self.wire.socket.settimeout(2 * DEADLINE_SECONDS)
        self.wire.channel(1, confirm=False)
        self.wire.channel(2)
        self._markers = 0

    def declare(self, lanes: Sequence[str]) -> None:
        arguments: FieldTable = {"x-queue-type": "quorum", "x-queue-leader-locator": "client-local"}
        for name in lanes:
            self.wire.ask(1, Exchange.Declare(0, name, "fanout", durable=True), Exchange.DeclareOk)
            self.wire.ask(1, Queue.Declare(0, name, durable=True, arguments=arguments), Queue.DeclareOk)
            self.wire.ask(1, Queue.Bind(0, name, name, ""), Queue.BindOk)

    def unbind(self, lanes: Sequence[str]) -> float:
        """Return the second after the last unbind-ok."""
        for name in lanes:
            self.wire.ask(1, Queue.Unbind(0, name, name, ""), Queue.UnbindOk)
        return time.monotonic()

    def mark(self, lanes: Sequence[str], *numbers: int) -> None:
        """Put a marker, or whatever these numbers are, into each queue, and return once it is there."""
        for number in numbers:
            for name in lanes:
                self.wire.publish(2, "", name, b"%d" % number, Basic.Properties(delivery_mode=2))
        count = len(numbers) * len(lanes)
        self.wire.confirm(2, self._markers + count, self._markers)
        self._markers += count


@contextmanager
def fence(node: Node) -> Iterator[Fence]:
    made = Fence(node)
    try:
        yield made
    finally:
        made.wire.close()


def contents(node: Node, counts: dict[str, int]) -> dict[str, list[int]]:
    """Take so many messages out of each queue, and those that come within a second behind; return their numbers."""
    with ExitStack() as stack:
        made = {}
        for name, count in counts.items():
            (made[name],) = stack.enter_context(consumers(Client.of(node.amqp_url), port_of(node.amqp_url), "/"))
            made[name].open(1)
            made[name].consume(1, name, name, acks=True)
            made[name].wait_for(count)
        time.sleep(1)
        return {name: [each.number for each in consumer.got()] for name, consumer in made.items()}


def behind(numbers: list[int], marker: int) -> list[int]:
    return [each for each in numbers[numbers.index(marker) + 1 :] if each < MARKER]


def test_what_was_in_flight_as_the_leader_was_killed_arrives_behind_a_marker_unless_that_waits_for_the_confirms(
    nodes: list[Node],
) -> None:
    """The clients' node has no replica. It is frozen before the unbind, and until the first markers are there.

    Where it is not frozen, it sends again before the marker comes (4.3.6: none late in 32 queues). With Mnesia the
    unbind is answered only once the node is not frozen any more.
    """
    near = nodes[3]
    late: dict[str, list[int]] = {"at once": [], "settled": []}
    made = [[f"killed.{number}.{each}" for each in range(QUEUES)] for number in range(3)]
    for lanes, leader in zip(made, nodes, strict=False):
        with fence(leader) as maker:
            maker.declare(lanes)
    join(near)
    for number, (lanes, leader) in enumerate(zip(made, nodes, strict=False)):
        at_once, settled = lanes[::2], lanes[1::2]
        stream = Stream(near, lanes)
        with fence(nodes[(number + 1) % 3]) as closing, ThreadPoolExecutor(1) as pool:
            wait_until("some publishes", lambda stream=stream: stream.sent >= BEFORE)  # type: ignore[misc]
            with near.frozen():
                open_ones = sum(map(stream.unsettled, lanes))
                stream.end()
                unbound = pool.submit(closing.unbind, lanes)
                if in_time := is_answered(unbound, 3):
                    leader.kill()
                    closing.mark(at_once, MARKER)
            unbound.result()
            if not in_time:
                leader.kill()
                closing.mark(at_once, MARKER)
            stream.stop()
            stream.settle(settled)
            closing.mark(settled, MARKER)
            stream.settle(lanes)
        nacked = sum(stream.outcomes[name]["nacked"] for name in lanes)
        found = contents(nodes[(number + 1) % 3], {name: stream.routed(name) + 1 for name in lanes})
        for kind, names in (("at once", at_once), ("settled", settled)):
            late[kind] += [len(behind(found[name], MARKER)) for name in names]
        LOG.info("kill %d: %d unsettled, %d nacked, in time %s, late %s", number, open_ones, nacked, in_time, late)
        # The order of each channel holds all the same.
        for numbers in found.values():
            assert (own := [each for each in numbers if each < MARKER]) == sorted(own)
        stream.drop()
        leader.start()
    for kind, counts in late.items():
        some = sum(map(bool, counts))
        LOG.info("killed, marker %s: late in %d of %d, %d messages", kind, some, len(counts), sum(counts))
    assert not any(late["settled"])


def is_answered(request: "Future[float]", within: float) -> bool:
    deadline = time.monotonic() + within
    while not request.done() and time.monotonic() < deadline:
        time.sleep(0.005)
    return request.done()


def test_what_a_frozen_node_had_taken_arrives_behind_a_marker_also_from_a_client_that_is_gone(
    nodes: list[Node],
) -> None:
    """No leader changes. Half the queues get theirs from a connection that drops while the node is frozen.

    Three markers: by another node while the clients' node is frozen, by another node once that one returns, and by
    that node itself. With Mnesia the unbind is answered, and the first marker sent, once the node is not frozen.
    """
    leader, other, _, near = nodes
    join(near)
    late: dict[str, list[list[int]]] = {"connected": [[], [], []], "dropped": [[], [], []]}
    for number in range(FREEZES):
        lanes = [f"frozen.{number}.{each}" for each in range(QUEUES)]
        with fence(leader) as maker:
            maker.declare(lanes)
        connected, dropped = lanes[::2], lanes[1::2]
        staying, leaving = Stream(near, connected), Stream(near, dropped)
        with fence(other) as closing, fence(near) as local, ThreadPoolExecutor(1) as pool:
            wait_until("some publishes", lambda: min(staying.sent, leaving.sent) >= BEFORE)  # noqa: B023
            with near.frozen():
                unbound = pool.submit(closing.unbind, lanes)
                in_time = is_answered(unbound, 3)
                staying.end()
                leaving.drop()
                if in_time:
                    closing.mark(lanes, MARKER)
            unbound.result()
            if not in_time:
                closing.mark(lanes, MARKER)
            local.wire.channel(3)
            probes = 0
            while not is_returned(local.wire, 3, lanes[-1], probes):
                probes += 1
            closing.mark(lanes, MARKER + 1)
            local.mark(lanes, MARKER + 2)
            staying.stop()
            staying.settle(connected)
        found = contents(other, {name: staying.routed(name) + 3 for name in connected} | dict.fromkeys(dropped, 3))
        for kind, names in (("connected", connected), ("dropped", dropped)):
            for at in range(3):
                late[kind][at] += [len(behind(found[name], MARKER + at)) for name in names]
        staying.drop()
    for kind, markers in late.items():
        for at, counts in enumerate(markers, 1):
            some = sum(map(bool, counts))
            LOG.info("frozen, %s, marker %d: late in %d of %d, %d messages", kind, at, some, len(counts), sum(counts))
    assert not any(late["connected"][2])
    assert not any(late["dropped"][2])


def test_a_marker_stays_last_when_the_leader_is_killed_amid_deliveries(nodes: list[Node]) -> None:
    leader, other = nodes[:2]
    names = [f"moved.{each}" for each in range(8)]
    numbers = range(1000)
    with ExitStack() as stack:
        maker = stack.enter_context(fence(leader))
        maker.declare(names)
        maker.mark(names, *numbers, MARKER)
        members = []
        for name in names:
            (member,) = stack.enter_context(consumers(Client.of(other.amqp_url), port_of(other.amqp_url), "/"))
            member.open(1, 10)
            member.consume(1, name, name, acks=True)
            members.append(member)
        for member in members:
            member.wait_for(20)
        leader.kill()
        amid = [len(member.got()) for member in members]
        for member in members:
            member.wait_for(len(numbers) + 1)
            wait_until("the marker", lambda: member.got()[-1].number == MARKER)  # noqa: B023
            before = [each.number for each in member.got() if each.number != MARKER]
            assert set(before) == set(numbers)
            fresh = list(dict.fromkeys(before))
            assert fresh == sorted(fresh)
            assert member.got()[-1].number == MARKER
    LOG.info("moved: the leader was killed after %s deliveries", amid)
    leader.start()
