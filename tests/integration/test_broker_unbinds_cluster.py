"""A cluster of RabbitMQ: until when a node routes by the binding of a lane that was unbound by way of another node.

The fence of generations stands on this (docs/development/generations.md has the figures). No sidecar takes part.
"""

import itertools
import logging
import random
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

import pytest
from pamqp.commands import Exchange, Queue
from pamqp.common import FieldTable

from testbed.broker import installation
from testbed.cluster import private_cluster
from testbed.node import Node
from tests.integration.broker_api import DEADLINE_SECONDS, BrokerApi, wait_until
from tests.integration.lane_load import Batches, LanePublisher, all_behind, is_returned, lane_load, opened
from tests.integration.load import meanwhile
from tests.integration.own_node import BROKER, private_only
from tests.integration.wire_client import Wire

pytestmark = [private_only, pytest.mark.long, pytest.mark.versions]

LOG = logging.getLogger(__name__)

IDLE_ROUNDS = 200
LOADED_ROUNDS = 60
FROZEN_ROUNDS = 10
FROZEN_SECONDS = 1.5
SETTLED_SECONDS = 0.15
"""Time for which a node is watched once it is known to return."""

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Node]]:
    with private_cluster(installation(BROKER), 3) as made:
        yield made


def has_khepri(node: Node) -> bool:
    flags = BrokerApi(node.management_url).ask("GET", "feature-flags")
    return any(flag["name"] == "khepri_db" and flag["state"] == "enabled" for flag in flags)


@dataclass
class Lane:
    """A fanout exchange before a quorum queue, and a connection to each node that binds, unbinds and asks."""

    name: str
    wires: list[Wire]
    probes: list[int] = field(default_factory=lambda: [0, 0, 0])
    """How many probes were published by way of each node."""

    def bind(self, node: int) -> None:
        self.wires[node].ask(1, Queue.Bind(0, self.name, self.name, ""), Queue.BindOk)

    def unbind(self, node: int) -> None:
        self.wires[node].ask(1, Queue.Unbind(0, self.name, self.name, ""), Queue.UnbindOk)

    def probe(self, node: int) -> bool:
        """Return whether what is published by way of the node comes back."""
        self.probes[node] += 1
        wire, number = self.wires[node], self.probes[node] - 1
        return is_returned(wire, 2, self.name, number)

    def count(self) -> int:
        """Return how many messages are ready."""
        return self.wires[0].ask(1, Queue.Declare(0, self.name, passive=True), Queue.DeclareOk).message_count or 0

    def declare(self, node: int) -> None:
        """Declare an exchange of a new name by way of the node, and delete it."""
        name = f"known.{next(_numbers)}"
        self.wires[node].ask(1, Exchange.Declare(0, name, "fanout"), Exchange.DeclareOk)
        self.wires[node].ask(1, Exchange.Delete(0, name), Exchange.DeleteOk)


@contextmanager
def lane(nodes: Sequence[Node], name: str, kind: str = "quorum") -> Iterator[Lane]:
    """Yield a lane that is bound; its queue keeps the last 100 messages, and is led by the first node."""
    wires = [opened(node) for node in nodes]
    try:
        for wire in wires:
            wire.channel(1, confirm=False)
            wire.channel(2)
        arguments: FieldTable = {"x-queue-type": kind, "x-max-length": 100}
        wires[0].ask(1, Exchange.Declare(0, name, "fanout", durable=True), Exchange.DeclareOk)
        wires[0].ask(1, Queue.Declare(0, name, durable=True, arguments=arguments), Queue.DeclareOk)
        made = Lane(name, wires)
        made.bind(0)
        yield made
    finally:
        for wire in wires:
            wire.close()


@dataclass
class Found:
    """For one node: how long after unbind-ok it still routed, and after a sign that it does not, in ms."""

    late: list[float] = field(default_factory=list)
    """For each round, the last publish that was begun after unbind-ok and got through; 0 for none."""
    through: int = 0
    """How many were begun after unbind-ok and got through."""
    through_own: int = 0
    """How many of them in the rounds in which this node was asked to unbind."""
    after_sign: int = 0
    """How many were begun after the sign and got through."""
    begun: int = 0
    """How many were begun after the sign."""

    def text(self) -> str:
        late = sorted(self.late)
        some = [each for each in late if each]
        middle = some[len(some) // 2] if some else 0.0
        return (
            f"late in {len(some)} of {len(late)} rounds, median of those {middle:.1f}, max {late[-1]:.1f} ms;"
            f" {self.through} got through ({self.through_own} where it was asked itself);"
            f" after the sign {self.after_sign} of {self.begun}"
        )


Sign = Callable[[Lane, int], None]


def until_returned(lane: Lane, node: int) -> None:
    """Publish by way of the node until it returns."""
    while not lane.probe(node):
        pass


def until_known(lane: Lane, node: int) -> None:
    """Declare something by way of the node."""
    lane.declare(node)


def rounds(nodes: Sequence[Node], lane: Lane, publishers: list[LanePublisher], count: int, sign: Sign) -> list[Found]:
    """Unbind and bind again so many times, each time by way of the next node, and return what was found for each."""
    found = [Found() for _ in nodes]
    with ThreadPoolExecutor(len(nodes)) as pool:
        for number in range(count):
            for each in publishers:
                each.forget()
            # At any moment of a publish.
            all_behind(publishers, time.monotonic() + random.uniform(0, 0.01), "routed")
            lane.unbind(number % len(nodes))
            ok = time.monotonic()

            def signed(node: int) -> float:
                sign(lane, node)
                return time.monotonic()

            signs = list(pool.map(signed, range(len(nodes))))
            all_behind(publishers, max(signs) + SETTLED_SECONDS)
            for at, node in enumerate(nodes):
                told = [one for each in publishers if each.node is node for one in each.told() if one.begun > ok]
                through = [one.begun for one in told if one.outcome == "routed"]
                found[at].late.append(1000 * (max(through) - ok) if through else 0.0)
                found[at].through += len(through)
                found[at].through_own += len(through) * (at == number % len(nodes))
                found[at].begun += sum(one.begun > signs[at] for one in told)
                found[at].after_sign += sum(begun > signs[at] for begun in through)
            lane.bind(number % len(nodes))
            all_behind(publishers, time.monotonic(), "routed")
    return found


def show(what: str, nodes: Sequence[Node], found: list[Found]) -> None:
    store = "Khepri" if has_khepri(nodes[0]) else "Mnesia"
    for at, each in enumerate(found):
        LOG.info("%s, %s, node %d: %s", what, store, at, each.text())


@pytest.mark.parametrize("sign", [until_returned, until_known])
def test_once_an_idle_node_returns_or_has_declared_it_routes_nothing_any_more(nodes: list[Node], sign: Sign) -> None:
    with lane(nodes, f"idle.{sign.__name__}") as made, lane_load(nodes, made.name) as publishers:
        found = rounds(nodes, made, publishers, IDLE_ROUNDS // 2, sign)
    show(f"idle, {sign.__name__}", nodes, found)
    assert not sum(each.after_sign + each.through_own for each in found)


def churn(nodes: Sequence[Node]) -> None:
    """Open a connection, declare and bind a queue, and take both away."""
    number = next(_numbers)
    wire = opened(nodes[number % len(nodes)])
    try:
        wire.channel(1, confirm=False)
        name = f"churn.{number}"
        kind: FieldTable = {"x-queue-type": "quorum" if number % 4 == 0 else "classic"}
        wire.ask(1, Queue.Declare(0, name, durable=True, arguments=kind), Queue.DeclareOk)
        wire.ask(1, Queue.Bind(0, name, "amq.fanout", ""), Queue.BindOk)
        wire.ask(1, Queue.Delete(0, name), Queue.DeleteOk)
    finally:
        wire.close()


@pytest.mark.parametrize("sign", [until_returned, until_known])
def test_under_load_the_same_holds_for_all_channels_of_a_node(nodes: list[Node], sign: Sign) -> None:
    """Twelve channels a node publish without waiting for one another, and queues and connections come and go."""
    with (
        lane(nodes, f"loaded.{sign.__name__}") as made,
        lane_load(nodes, made.name, connections=2, channels=6, each=3) as publishers,
        meanwhile(lambda: churn(nodes)),
    ):
        begun = time.monotonic()
        found = rounds(nodes, made, publishers, LOADED_ROUNDS // 2, sign)
        seconds = time.monotonic() - begun
    show(f"loaded, {sign.__name__}", nodes, found)
    LOG.info("loaded: some %.0f publishes/s after the signs", sum(each.begun for each in found) / seconds)
    assert not sum(each.after_sign + each.through_own for each in found)


def is_answered(request: "Future[None]", within: float = FROZEN_SECONDS) -> bool:
    deadline = time.monotonic() + within
    while not request.done() and time.monotonic() < deadline:
        time.sleep(0.005)
    return request.done()


def test_an_unbind_is_answered_while_a_node_is_frozen_and_that_node_routes_some_messages_before_it_knows(
    nodes: list[Node],
) -> None:
    """With Khepri. With Mnesia the answer waits for the node, and nothing gets through afterwards."""
    is_early = has_khepri(nodes[0])
    answered = through = sent = 0
    late: list[float] = []
    with lane(nodes, "frozen") as made, ThreadPoolExecutor(4) as pool:
        for number in range(FROZEN_ROUNDS):
            slow = 1 + number % 2
            asked = 0 if number % 4 < 2 else 3 - slow
            wire = opened(nodes[slow])
            with lane_load([nodes[slow]], made.name, channels=4) as publishers:
                knocking = Batches(wire, made.name, 10, 20)
                all_behind(publishers, time.monotonic(), "routed")
                with nodes[slow].frozen():
                    unbound = pool.submit(made.unbind, asked)
                    in_time = is_answered(unbound)
                    begun = knocking.send()
                woken = time.monotonic()
                unbound.result()
                ok = time.monotonic()
                told = knocking.told(begun)
                if in_time:
                    answered += 1
                    sent += len(told)
                    through += sum(one.outcome == "routed" for one in told)
                until_returned(made, slow)
                sign = time.monotonic()
                all_behind(publishers, sign + SETTLED_SECONDS)
                after = [one.begun for one in publishers[0].told() if one.outcome == "routed"]
                late.append(1000 * (max(after) - woken))
                assert not [begun for begun in after if begun > sign]
                if not is_early:
                    assert not [begun for begun in after if begun > ok]
                made.bind(asked)
            wire.close()
            wait_until("the binding everywhere", lambda: not any(made.probe(node) for node in range(3)))
    LOG.info(
        "frozen: unbind-ok came in %d of %d; of %d publishes begun after it %d got through; last one, ms after: %s",
        answered,
        FROZEN_ROUNDS,
        sent,
        through,
        [round(each, 1) for each in late],
    )
    if is_early:
        assert answered
    else:
        assert not answered


def cut(nodes: Sequence[Node], lost: Node) -> None:
    """Take a node out of the cluster's network: neither side knows the secret of the other any more."""
    others = [node for node in nodes if node is not lost]
    for node in others:
        node.control("eval", f"erlang:set_cookie('{lost.name}', one).")
    # From one side at once: a node that has lost only some of the others has those lose one another, too.
    names = ",".join(f"'{node.name}'" for node in others)
    lost.control(
        "eval", f"[erlang:set_cookie(N, other) || N <- [{names}]], [erlang:disconnect_node(N) || N <- [{names}]]."
    )


def mend(nodes: Sequence[Node], lost: Node) -> None:
    others = [node for node in nodes if node is not lost]
    for node in others:
        node.control("eval", f"erlang:set_cookie('{lost.name}', erlang:get_cookie()).")
        lost.control("eval", f"erlang:set_cookie('{node.name}', erlang:get_cookie()).")
    for node in others:
        lost.control("eval", f"net_kernel:connect_node('{node.name}').")


def test_a_node_without_the_others_routes_by_the_old_binding_and_its_messages_arrive_later() -> None:
    """The third node has lost the others as the lane is unbound.

    With Khepri, what it takes meanwhile is confirmed once it is back, and lies in the queue. With Mnesia it goes on
    routing by the old binding when it is back, though it declares whatever it is asked to.
    """
    with (
        private_cluster(installation(BROKER), 3) as nodes,
        lane(nodes, "parted") as made,
        closing(opened(nodes[2])) as wire,
        ThreadPoolExecutor(1) as pool,
    ):
        batches = Batches(wire, made.name, 4, 10)
        assert {one.outcome for one in batches.told(batches.send())} == {"routed"}
        cut(nodes, nodes[2])
        made.unbind(0)
        assert made.probe(0)
        assert made.probe(1)
        made.wires[0].ask(1, Queue.Purge(0, made.name), Queue.PurgeOk)
        settled = pool.submit(batches.told, batches.send())
        with pytest.raises(TimeoutError):
            settled.result(5)
        mend(nodes, nodes[2])
        if has_khepri(nodes[0]):
            told = settled.result(DEADLINE_SECONDS)
            assert [one.outcome for one in told] == ["routed"] * 40
            assert made.count() == 40
            until_returned(made, 2)
        else:
            made.declare(2)
            assert not any(made.probe(2) for _ in range(100))
            wire.socket.shutdown(socket.SHUT_RDWR)
            assert isinstance(settled.exception(), EOFError)
