"""A cluster of RabbitMQ: its counts of messages in a queue just filled, just emptied, or without a leader.

The management API counts each 5 s here, as it does by default. No sidecar takes part (docs/development/generations.md
has the figures).
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from pamqp.commands import Basic, Queue

from testbed.broker import installation
from testbed.cluster import private_cluster
from testbed.node import Node
from tests.integration.broker_api import BrokerApi, wait_until
from tests.integration.consuming import Consumer, consumers, shard
from tests.integration.own_node import BROKER, private_only
from tests.integration.wire_client import Client, port_of

pytestmark = [private_only, pytest.mark.long, pytest.mark.versions]

LOG = logging.getLogger(__name__)

ROUNDS = 2
COUNT = 50


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Node]]:
    with private_cluster(installation(BROKER), 3) as made:
        yield made


@pytest.fixture
def connect(nodes: list[Node]) -> Iterator[Callable[[Node], Consumer]]:
    with ExitStack() as stack:
        yield lambda node: stack.enter_context(consumers(Client.of(node.amqp_url), port_of(node.amqp_url), "/"))[0]


def shown(node: Node, name: str) -> tuple[object, ...]:
    """Return what the management API of a node says: messages, ready, unacknowledged."""
    found = BrokerApi(node.management_url).ask("GET", "queues", "/", name, missing={})
    return tuple(found.get(each) for each in ("messages", "messages_ready", "messages_unacknowledged"))


def counts(asker: Consumer, name: str) -> tuple[int, int]:
    """Return what a passive declaration says: messages that are ready, and consumers."""
    answer = asker.ask(9, Queue.Declare(0, name, passive=True), Queue.DeclareOk)
    return answer.message_count or 0, answer.consumer_count or 0


def listed(node: Node, name: str) -> int:
    """Return what rabbitmqctl list_queues says of the messages."""
    node.control("list_queues", "--quiet", "name", "messages")
    lines = (node.folder / "rabbitmqctl.log").read_text().splitlines()
    return next(int(line.split()[1]) for line in reversed(lines) if line.split()[:1] == [name])


def seconds_until(node: Node, name: str, messages: int) -> float:
    begun = time.monotonic()
    wait_until(f"{messages} messages", lambda: shown(node, name)[0] == messages)
    return time.monotonic() - begun


@pytest.mark.parametrize("kind", ["quorum", "classic"])
def test_the_management_api_is_seconds_late_and_a_passive_declaration_is_not(
    nodes: list[Node], connect: Callable[[Node], Consumer], kind: str
) -> None:
    late: dict[str, list[float]] = {"filled": [], "held": [], "emptied": []}
    queue = shard(connect(nodes[0]), f"counted.{kind}", kind)
    a, asker = connect(nodes[2]), connect(nodes[1])
    a.open(2)
    asker.open(9)
    for number in range(ROUNDS):
        queue.publish(COUNT)
        assert counts(asker, queue.name)[0] == COUNT
        late["filled"].append(seconds_until(nodes[number % 3], queue.name, COUNT))
        a.consume(2, queue.name, f"A{number}")
        a.wait_for((number + 1) * COUNT)
        assert counts(asker, queue.name) == (0, 1)
        begun = time.monotonic()
        wait_until("held", lambda: shown(nodes[0], queue.name) == (COUNT, 0, COUNT))
        late["held"].append(time.monotonic() - begun)
        a.tell(2, Basic.Ack(0, True))
        a.cancel(2, f"A{number}")
        a.settle(2)
        late["emptied"].append(seconds_until(nodes[number % 3], queue.name, 0))
    queue.publish(COUNT)
    begun = time.monotonic()
    told = listed(nodes[0], queue.name)
    LOG.info("%s: list_queues says %d of %d, within %.1f s", kind, told, COUNT, time.monotonic() - begun)
    for what, seconds in late.items():
        LOG.info("%s, %s: the API knows after %s s", kind, what, [round(each, 1) for each in seconds])
    assert max(late["emptied"]) > 1


def test_a_passive_declaration_says_that_a_queue_without_a_leader_has_no_message_and_no_consumer(
    nodes: list[Node], connect: Callable[[Node], Consumer]
) -> None:
    queue = shard(connect(nodes[0]), "led", **{"x-queue-leader-locator": "client-local"})
    queue.publish(COUNT)
    a, asker = connect(nodes[2]), connect(nodes[2])
    asker.open(9)
    a.open(2, 1)
    a.consume(2, "led", "A")
    a.wait_for(1)
    wait_until("its count", lambda: shown(nodes[2], "led")[0] == COUNT)
    with nodes[0].frozen():
        frozen = _said(asker, None, 4)
    woken = _said(asker, nodes[2], 8)
    nodes[0].kill()
    killed = _said(asker, nodes[2], 12)
    for how, said in (("frozen", frozen), ("woken", woken), ("killed", killed)):
        LOG.info("%s: %s", how, said)
    assert (0, 0) in [each[1] for each in frozen]
    assert killed[-1][1] == (COUNT - 1, 1)


def _said(asker: Consumer, node: Node | None, within: float) -> list[tuple[float, tuple[int, int], object]]:
    """Return what is told for so many seconds, each time it changes: when, by a declaration, by the management API.

    The API gives no answer while a node is frozen, so it is asked only if a node is named.
    """
    said: list[tuple[float, tuple[int, int], object]] = []
    begun = time.monotonic()
    while (now := time.monotonic() - begun) < within:
        told = counts(asker, "led"), shown(node, "led")[0] if node else None
        if not said or said[-1][1:] != told:
            said.append((round(now, 1), *told))
    return said
