"""A shard in a cluster of RabbitMQ when a node is killed: the leader's, or the active consumer's.

The queue has a replica on each of three nodes. No sidecar takes part.
"""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from pamqp.commands import Basic, Queue

from proxy.shards.defaults import DISCONNECTED_MILLISECONDS, DISCONNECTED_TIMEOUT
from testbed.broker import installation
from testbed.cluster import private_cluster
from testbed.node import Node
from testbed.readiness import answering_version
from tests.integration.consuming import Behaviour, Consumer, behaviour, consumers, runs, shard
from tests.integration.own_node import BROKER, private_only
from tests.integration.wire_client import Client, port_of

pytestmark = [private_only, pytest.mark.long, pytest.mark.versions]


@pytest.fixture
def cluster() -> Iterator[tuple[list[Node], Behaviour]]:
    """Yield the three nodes of a running cluster, and what their version is known to do."""
    with private_cluster(installation(BROKER), 3) as nodes:
        version = answering_version(nodes[0].amqp_url, nodes[0].management_url)
        yield nodes, behaviour(version)


@pytest.mark.parametrize("by_policy", [False, True])
def test_a_shard_moves_on_in_order_when_nodes_are_killed(
    cluster: tuple[list[Node], Behaviour], by_policy: bool
) -> None:
    """A on the second node holds 0 to 9. The leader's node, the first, is killed and comes back; then A's is killed.

    The first kill leaves A's messages with A. After the second, B on the third node gets them, in order. 4.3.6 would
    wait 60 s for A if the shard had not the argument that `ring-proxy topology` gives it, or later got the policy.
    """
    nodes, rabbitmq = cluster
    with ExitStack() as stack:
        publisher, a, b = (
            stack.enter_context(consumers(Client.of(node.amqp_url), port_of(node.amqp_url), "/"))[0]
            for node in (nodes[2], nodes[1], nodes[2])
        )
        declarer = stack.enter_context(consumers(Client.of(nodes[0].amqp_url), port_of(nodes[0].amqp_url), "/"))[0]
        arguments: dict[str, Any] = {} if by_policy else {DISCONNECTED_TIMEOUT: DISCONNECTED_MILLISECONDS}
        shard(declarer, "q", **arguments)  # the leader is where the queue is declared first
        queue = shard(publisher, "q", **arguments)
        for member, tag in ((a, "A"), (b, "B")):
            member.open(2, 10)
            member.consume(2, "q", tag, 1)
        queue.publish(20)
        a.wait_for(10)
        if by_policy and rabbitmq.timeout_cancels:
            definition = json.dumps({DISCONNECTED_TIMEOUT.removeprefix("x-"): 3000})
            nodes[0].control("set_policy", "lost", "^q$", definition, "--apply-to", "quorum_queues")
        nodes[0].kill()
        queue.publish(10)
        assert not b.got()
        nodes[0].start()
        nodes[1].kill()
        assert runs(b.wait_for(10)) == "0-9R"
        b.tell(2, Basic.Ack(0, True))
        assert runs(b.wait_for(20)) == "0-9R 10-19"


def test_a_consumer_that_comes_after_the_loss_with_a_higher_priority_makes_the_shard_wait(
    cluster: tuple[list[Node], Behaviour],
) -> None:
    """A, of priority 1, holds ten messages of either queue as its node is killed. C comes then, once above A, once not.

    4.3.6 gives C the one queue after A's `x-consumer-disconnected-timeout`, and the other one after A's consumer
    timeout: it then takes A's messages back one by one, so that newer ones may come in between.
    """
    nodes, rabbitmq = cluster
    above, below = 4, 1
    arguments: dict[str, Any] = {DISCONNECTED_TIMEOUT: 4000}
    with ExitStack() as stack:

        def connect(node: Node) -> Consumer:
            return stack.enter_context(consumers(Client.of(node.amqp_url), port_of(node.amqp_url), "/"))[0]

        for level in (above, below):
            queue = shard(connect(nodes[0]), f"q{level}", **arguments)
            a = connect(nodes[1])
            a.open(2, 10)
            a.consume(2, queue.name, "A", 1, arguments={"x-consumer-timeout": 15_000})
            queue.publish(20)
            a.wait_for(10)
        nodes[1].kill()
        came = {level: connect(nodes[2]) for level in (above, below)}
        for level, c in came.items():
            c.open(2, 10)
            c.consume(2, f"q{level}", "C", level, acks=True)
        assert runs(came[below].wait_for(20)) == "0-9R 10-19"
        if rabbitmq.timeout_cancels:
            assert not came[above].got()
        got = came[above].wait_for(20)
        assert sorted(each.number for each in got if each.redelivered) == list(range(10))


def test_a_leader_that_changes_while_the_node_of_the_active_consumer_is_away_lets_newer_messages_overtake(
    cluster: tuple[list[Node], Behaviour],
) -> None:
    """A on the third node holds 0 and 1 as that is killed. The leader then moves from the first node to the second.

    4.3.6 hears of A's loss once more from the new leader, and takes A for inactive though A still has its messages. B
    gets the newer ones at once, and A's after A's consumer timeout. Older versions return them when A is lost.
    """
    nodes, rabbitmq = cluster
    with ExitStack() as stack:
        first, a, b = (
            stack.enter_context(consumers(Client.of(node.amqp_url), port_of(node.amqp_url), "/"))[0]
            for node in (nodes[0], nodes[2], nodes[1])
        )
        queue = shard(first, "q")
        a.open(2, 2)
        a.consume(2, "q", "A", 1, arguments={"x-consumer-timeout": 15_000})
        queue.publish(6)
        a.wait_for(2)
        nodes[2].kill()
        time.sleep(2)  # until the leader has seen it
        nodes[0].control("eval", _MOVE_LEADER.replace("NODE", nodes[1].name))
        time.sleep(1)
        b.open(2, 10)
        b.consume(2, "q", "B", 1)
        assert runs(b.wait_for(6)) == ("2-5 0-1R" if rabbitmq.timeout_cancels else "0-1R 2-5")


_MOVE_LEADER = (
    '{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"q">>)),'
    " rabbit_quorum_queue:transfer_leadership(Q, 'NODE')."
)
"""The expression by which a node has another one lead the queue `q`."""


def test_a_consumer_by_a_node_whose_replica_does_not_run_is_active_and_gets_nothing(
    cluster: tuple[list[Node], Behaviour],
) -> None:
    """A on the second node is the active consumer. The replica of that node stops, as one does that crashed.

    The queue has a leader and a majority, so publishes are confirmed. A's channel.close has B get all, in order.
    """
    nodes, _ = cluster
    with ExitStack() as stack:
        publisher, a, b = (
            stack.enter_context(consumers(Client.of(node.amqp_url), port_of(node.amqp_url), "/"))[0]
            for node in (nodes[0], nodes[1], nodes[2])
        )
        queue = shard(publisher, "q")  # the leader is where the queue is declared first
        for member, tag in ((a, "A"), (b, "B")):
            member.open(2, 10)
            member.consume(2, "q", tag, 0)
        queue.publish(5)
        a.wait_for(5)
        a.tell(2, Basic.Ack(0, True))
        nodes[1].control("eval", "ra:stop_server(quorum_queues, {'%2F_q', node()}).")
        queue.publish(20)
        time.sleep(5)
        assert len(a.got()) == 5
        assert not b.got()
        a.close(2)
        assert runs(b.wait_for(10)) == "5-14R"
        b.tell(2, Basic.Ack(0, True))
        assert runs(b.wait_for(20)) == "5-14R 15-24"


def test_a_queue_without_a_majority_has_no_active_consumer_and_can_be_deleted(
    cluster: tuple[list[Node], Behaviour],
) -> None:
    """The replicas of two nodes stop, as after an interrupted deletion. RabbitMQ deletes it by force in seconds."""
    nodes, _ = cluster
    with ExitStack() as stack:
        a = stack.enter_context(consumers(Client.of(nodes[0].amqp_url), port_of(nodes[0].amqp_url), "/"))[0]
        shard(a, "q").publish(5)
        for node in nodes[1:]:
            node.control("eval", "ra:stop_server(quorum_queues, {'%2F_q', node()}).")
        a.open(2, 10)
        a.wire.tell(2, Basic.Consume(0, "q", "A"))
        time.sleep(5)
        assert not a.got()
        a.open(3)
        a.wire.tell(3, Queue.Delete(0, "q"))
        a.expect(3, Queue.DeleteOk)
