"""The shards of one exchange on the nodes of a cluster: where new ones go, and what to take care of. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from proxy.shards.defaults import DISCONNECTED_TIMEOUT, WAITS_SINCE, declared_arguments
from proxy.shards.shard import Shard, Sharded
from proxy.shards.state import FoundQueue, State

_REPLICAS = 3
"""The replicas of a quorum queue with which it survives the loss of one node."""

Warned = tuple[str, str]
"""A subject of a warning, and the text on what there is to take care of."""


class Leaders:
    """The number of shards of one exchange that each running node leads, with those that are about to be declared."""

    def __init__(self, shards: Sequence[Shard], state: State) -> None:
        self._counts = Counter(dict.fromkeys(state.nodes, 0))
        found = [queue for shard in shards if (queue := state.queues.get(shard.queue)) is not None]
        self._all_known = all(queue.node is not None for queue in found)
        for queue in found:
            if queue.node is not None and queue.node in self._counts:
                self._counts[queue.node] += 1

    def take(self) -> str | None:
        """Return the node that leads the fewest shards, and count one more for it; None on a single node."""
        if len(self._counts) < 2:
            return None
        node = min(self._counts, key=lambda each: (self._counts[each], each))
        self._counts[node] += 1
        return node

    def idle(self) -> list[str]:
        """Return the nodes that lead no shard, sorted; none while the leader of some shard is not known."""
        return sorted(node for node, count in self._counts.items() if not count) if self._all_known else []


def lost_nodes(queues: Mapping[str, FoundQueue], state: State) -> frozenset[str]:
    """Return the nodes that do not run, and lead some of these queues or have replicas of them."""
    if not state.nodes:
        return frozenset()  # An API that tells of no nodes.
    return frozenset().union(*map(_homes, queues.values())) - frozenset(state.nodes)


def node_warnings(exchange: Sharded, shards: Sequence[Shard], state: State, leaders: Leaders) -> Iterator[Warned]:
    """Yield what to take care of. `leaders` has also the shards that are about to be declared."""
    queues = {shard.queue: q for shard in shards if (q := state.queues.get(shard.queue)) is not None}
    yield from _replicas(queues, state)
    if exchange.per_node is not None and len(state.nodes) > 1:
        yield from _idle(exchange.per_node, shards, state, leaders)
    yield from _disconnected(shards, state)


def _homes(queue: FoundQueue) -> frozenset[str]:
    """Return the nodes that lead a queue or have a replica of it."""
    return queue.members | ({queue.node} if queue.node else set())


def _replicas(queues: Mapping[str, FoundQueue], state: State) -> Iterator[Warned]:
    """Yield which nodes with shards do not run, and which shards have too few replicas."""
    for node in sorted(lost_nodes(queues, state)):
        count = sum(node in _homes(queue) for queue in queues.values())
        yield f"node {node!r}", f"does not run, and has replicas of {count} shards, which stay as they are"
    few = min(_REPLICAS, len(state.nodes))
    lacking = [name for name, queue in queues.items() if queue.type == "quorum" and len(queue.members) < few]
    if lacking:
        yield (
            f"{len(lacking)} shards, such as {lacking[0]!r},",
            f"have fewer than {few} replicas: rabbitmq-queues grow NODE all gives a node one of each quorum queue",
        )


def _idle(per_node: int, shards: Sequence[Shard], state: State, leaders: Leaders) -> Iterator[Warned]:
    """Yield the nodes that lead no shard, such as a node that has come in the place of another one."""
    for node in leaders.idle():
        yield (
            f"node {node!r}",
            f"leads no shard: there are {len(shards)}, and shards_per_node asks for {per_node * len(state.nodes)} on "
            f"{len(state.nodes)} running nodes; rabbitmq-queues grow {node} all gives it replicas of quorum queues, "
            "and then rabbitmq-queues rebalance quorum makes it a leader",
        )


def _disconnected(shards: Sequence[Shard], state: State) -> Iterator[Warned]:
    """Yield which existing shards wait for a consumer whose node is lost as long as the broker does by default."""
    if len(state.nodes) < 2 or state.version < WAITS_SINCE:
        return  # A single node is not lost to its own queues.
    slow = [each for each in shards if _waits_by_default(each, state)]
    if not slow:
        return
    wanted = declared_arguments(slow[0], state.version)[DISCONNECTED_TIMEOUT]
    yield (
        f"{len(slow)} shards, such as {slow[0].queue!r},",
        "give nothing to the next consumer until a consumer whose node is lost has been away for 60 s, RabbitMQ's "
        f"default: give them a policy with consumer-disconnected-timeout {wanted}",
    )


def _waits_by_default(shard: Shard, state: State) -> bool:
    """Return whether an existing shard waits RabbitMQ's default time for a consumer whose node is lost.

    Neither an argument nor a policy gives it a `DISCONNECTED_TIMEOUT` then.
    """
    found = state.queues.get(shard.queue)
    return (
        found is not None
        and found.type == shard.type
        and DISCONNECTED_TIMEOUT in declared_arguments(shard, state.version)
        and DISCONNECTED_TIMEOUT not in found.arguments
        and DISCONNECTED_TIMEOUT.removeprefix("x-") not in found.policy
    )
