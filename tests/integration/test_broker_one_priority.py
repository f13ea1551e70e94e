"""RabbitMQ itself with consumers of one priority on queues with single active consumer: groups stand on it.

A is the active consumer, and others wait in their order of arrival. No sidecar takes part. `0-9R` are the messages 0 to
9, redelivered.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pytest
from pamqp.commands import Channel, Queue

from testbed.broker import installation
from testbed.cluster import private_cluster
from testbed.node import Node
from testbed.readiness import answering_version
from tests.integration.broker_api import wait_until
from tests.integration.consuming import (
    Behaviour,
    Connect,
    Consumer,
    Declare,
    Shard,
    behaviour,
    consumers,
    holder,
    runs,
    shard,
    waiting,
)
from tests.integration.own_node import BROKER, own_node, private_only
from tests.integration.wire_client import Client, port_of

pytestmark = [pytest.mark.long, pytest.mark.versions]

KINDS = ["quorum", "classic"]

HAND_OVERS = 20


def _has_more(member: Consumer, than: int) -> bool:
    return len(member.deliveries) > than


def _has(member: Consumer, number: int) -> bool:
    return number in [each.number for each in member.got()]


@contextmanager
def publishing(queue: Shard) -> Iterator[None]:
    """Publish all the while; at the end, all is published that was begun."""
    over = threading.Event()

    def publish() -> None:
        while not over.is_set():
            queue.send(5)
            time.sleep(0.005)

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("kind", KINDS)
def test_a_target_that_waits_goes_on_in_order_once_the_owner_has_closed_its_channel(
    connect_consumer: Connect, declare_shard: Declare, kind: str
) -> None:
    """Again and again, under load: each message comes once, in order, by whom the channel of the last one leaves it."""
    queue = declare_shard(kind=kind)
    members = [connect_consumer() for _ in range(3)]
    passed: list[int] = []
    marks = [0, 0, 0]
    owner, channel = 0, 2
    members[0].open(channel, 20)
    members[0].consume(channel, queue.name, "0", 1, acks=True)
    with publishing(queue):
        members[0].until("a message", lambda: bool(members[0].deliveries))
        for number in range(HAND_OVERS):
            target = (owner + 1 + number % 2) % 3
            members[target].open(channel + 1, 20)
            members[target].consume(channel + 1, queue.name, str(number + 1), 1, acks=True)
            passed += members[owner].withhold(marks[owner])
            members[owner].close(channel)
            marks[owner] = len(members[owner].deliveries)
            owner, channel = target, channel + 1
            came = members[owner]
            came.until("a message", partial(_has_more, came, marks[owner]))
    last = members[owner]
    last.until("the last message", lambda: last.deliveries[-1].number == queue.published - 1)
    passed += [each.number for each in last.deliveries[marks[owner] :]]
    assert passed == list(range(queue.published))


@pytest.mark.parametrize("kind", KINDS)
def test_equals_become_active_in_their_order_of_arrival(
    connect_consumer: Connect, declare_shard: Declare, kind: str
) -> None:
    queue = declare_shard(kind=kind)
    members = [holder(connect_consumer, queue, 10), *(waiting(connect_consumer, queue) for _ in range(3))]
    for number, member in enumerate(members[:-1]):
        member.close(2)
        queue.publish(10)
        following = members[number + 1]
        following.until("the last", partial(_has, following, queue.published - 1))
    # An ack may have been under way as its channel was closed: its message then comes again.
    fresh = [[each for each in member.got() if not each.redelivered] for member in members]
    assert [runs(each) for each in fresh] == ["0-9", "10-19", "20-29", "30-39"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_passive_declaration_counts_whether_a_shard_has_a_consumer(
    connect_consumer: Connect, declare_shard: Declare, kind: str
) -> None:
    """A sidecar that hears nobody asks so. How many wait is counted by some versions and types only."""
    queue = declare_shard(kind=kind)
    asker = connect_consumer()
    asker.open(1)

    def count() -> int:
        answer = asker.ask(1, Queue.Declare(0, queue.name, passive=True), Queue.DeclareOk)
        return answer.consumer_count or 0

    assert count() == 0
    a = holder(connect_consumer, queue, 10)
    assert count() == 1
    b = waiting(connect_consumer, queue)
    assert count() in (1, 2)
    a.close(2)
    b.wait_for(10)
    wait_until("one consumer", lambda: count() == 1)
    b.close(2)
    wait_until("no consumer", lambda: count() == 0)


@private_only
def test_in_a_memory_alarm_a_connection_that_never_published_is_answered() -> None:
    """By such a connection a sidecar asks for queues, since the one for its beats is not read then."""
    with own_node("") as (rabbit, ctl), ExitStack() as stack:
        client, port = Client.of(rabbit.amqp_url), port_of(rabbit.amqp_url)
        (asker, publisher) = stack.enter_context(consumers(client, port, "/", 2))
        queue = shard(publisher, "q")
        asker.open(1)
        ctl("set_vm_memory_high_watermark", "absolute", "1MB")
        queue.send(1)  # from here on the broker reads nothing of this connection
        answer = asker.ask(1, Queue.Declare(0, "q", passive=True), Queue.DeclareOk)
        assert answer.consumer_count == 0
        ctl("set_vm_memory_high_watermark", "0.6")


@pytest.fixture
def cluster() -> Iterator[tuple[list[Node], Behaviour]]:
    """Yield the three nodes of a running cluster, and what their version is known to do."""
    with private_cluster(installation(BROKER), 3) as nodes:
        version = answering_version(nodes[0].amqp_url, nodes[0].management_url)
        yield nodes, behaviour(version)


@private_only
def test_a_node_that_comes_back_leaves_a_consumer_behind_only_among_different_priorities(
    cluster: tuple[list[Node], Behaviour],
) -> None:
    """A's node is killed and comes back; B, which holds ten messages, then drops its connection; C goes on.

    With priorities, A's dead consumer is the highest as its node is back: 4.3.6 then takes B for one that gives way,
    and keeps it as its connection ends, so that C gets nothing. It gets all of it where the priorities are the same.
    """
    nodes, rabbitmq = cluster
    cases = {"different": (10, 9, 8), "same": (1, 1, 1)}
    with ExitStack() as stack:

        def connect(node: Node) -> Consumer:
            return stack.enter_context(consumers(Client.of(node.amqp_url), port_of(node.amqp_url), "/"))[0]

        members: dict[str, list[Consumer]] = {}
        arguments: dict[str, Any] = {"x-consumer-disconnected-timeout": 4000}
        for name, priorities in cases.items():
            queue = shard(connect(nodes[0]), name, **arguments)
            members[name] = []
            for node, tag, priority in zip((nodes[1], nodes[2], nodes[0]), "ABC", priorities, strict=True):
                member = connect(node)
                member.open(2, 10)
                member.consume(2, queue.name, tag, priority, acks=tag == "C")
                members[name].append(member)
            queue.publish(40)
            members[name][0].wait_for(10)
        nodes[1].kill()
        for _, b, _ in members.values():
            assert runs(b.wait_for(10)) == "0-9R"
        nodes[1].start()
        time.sleep(5)  # until the node's connections are known to be gone
        for _, b, _ in members.values():
            b.drop()
        assert runs(members["same"][2].wait_for(40)) == "0-9R 10-39"
        if rabbitmq.leaves_ghosts:
            members["different"][2].settle(2)
            assert not members["different"][2].got()


@private_only
def test_nobody_answers_for_an_exclusive_queue_whose_node_is_away(cluster: tuple[list[Node], Behaviour]) -> None:
    """The missing answer says nothing of a sidecar. Once the node is back, its queue is not there."""
    nodes, _ = cluster
    with ExitStack() as stack:

        def connect(node: Node) -> Consumer:
            return stack.enter_context(consumers(Client.of(node.amqp_url), port_of(node.amqp_url), "/"))[0]

        a, asker = connect(nodes[1]), connect(nodes[2])
        a.open(9)
        a.ask(9, Queue.Declare(0, "alive", exclusive=True), Queue.DeclareOk)

        def answer(channel: int, within: float) -> object:
            """Return the reply code of what the broker answers, or None for nothing in time."""
            asker.open(channel)
            asker.tell(channel, Queue.Declare(0, "alive", passive=True))

            def told() -> object:
                return next((value for number, value in asker.methods if number == channel), None)

            try:
                found = asker.until("an answer", told, within)
            except AssertionError:
                return None
            asker.methods.clear()
            assert isinstance(found, Channel.Close)
            asker.tell(channel, Channel.CloseOk())
            return found.reply_code

        assert answer(10, 5.0) == 405
        nodes[1].kill()
        assert answer(11, 3.0) in (None, 404)
        nodes[1].start()
        deadline, channel = time.monotonic() + 60, 12
        while (code := answer(channel, 5.0)) != 404:
            assert time.monotonic() < deadline, code
            channel += 1
