"""Have every node of a cluster know the bindings of groups, before anybody is told that a group is complete.

Theory
------

RabbitMQ answers a bind once the node that was asked routes by the binding. With Khepri, the metadata store of RabbitMQ
4.3 (an option of 4.0), the other nodes apply the change a moment later, and a slow node applies it seconds later. A
message that is published there meanwhile is confirmed, and the new group never gets it. With Mnesia, the store before,
the answer waits for all running nodes (`tests/integration/test_broker_bindings_cluster.py` shows both).

Nodes apply changes in the order of one log. A node that knows an exchange therefore knows all bindings that were made
before that exchange was declared. Each node is asked by an exchange of a new name, which is declared by way of that
node and then deleted: the node answers once it has applied the declaration itself. No message is published, which a
program could see. A node that comes back has applied the log before it takes connections.

The name is that of a fan with a number beyond those of shards, which the rights of a file with groups reach. A command
that ends in between leaves the exchange, and the next one deletes it.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from proxy.shards.apply import Say, StoppedError, take
from proxy.shards.broker import Broker
from proxy.shards.shard import MAX_SHARDS, Sharded
from proxy.shards.state import State
from proxy.shards.steps import DeclareExchange, DeleteExchange
from proxy.topology.management import ManagementError


async def fence(broker: Broker, document: Sequence[Sharded], say: Say) -> None:
    """Return once every running node routes by the bindings of the groups of a file, and say so.

    Nothing is done for a file without groups. Raises StoppedError if a node does not answer, and ManagementError or
    TopologyError.
    """
    grouped = [exchange for exchange in document if exchange.groups]
    of_vhost: Mapping[str, Sharded] = {exchange.vhost: exchange for exchange in grouped}
    states = await broker.states(of_vhost)
    for vhost, exchange in of_vhost.items():
        # Another file's order may have had a stopped command ask by another exchange.
        for each in grouped:
            for name in left_over(states[vhost], each) if each.vhost == vhost else ():
                await take(broker, vhost, DeleteExchange(name))
        nodes = states[vhost].nodes
        for node in nodes if len(nodes) > 1 else ():  # an only node has answered the bind itself
            await _known(broker, exchange, node)
    for exchange in grouped:
        names = ", ".join(f"{exchange.name}/{group}" for group in exchange.groups)
        count = len(states[exchange.vhost].nodes)
        through = f", through any of {count} running nodes" if count > 1 else ""
        say(f"{names}: every message that is published from now on{through}")


def left_over(state: State, exchange: Sharded) -> Iterator[str]:
    """Yield the exchanges by which a command that was stopped asked nodes."""
    prefix = _prefix(exchange)
    for name in state.exchanges:
        number = name.removeprefix(prefix)
        if number != name and number.isdecimal() and int(number) > MAX_SHARDS and not state.bindings.get(name):
            yield name


async def _known(broker: Broker, exchange: Sharded, node: str) -> None:
    """Return once a node knows all that was declared and bound before. Raises StoppedError."""
    name = f"{_prefix(exchange)}{time.time_ns()}"
    try:
        await take(broker, exchange.vhost, DeclareExchange(name, "fanout", {}, node))
    except ManagementError as error:
        with suppress(ManagementError):
            await take(broker, exchange.vhost, DeleteExchange(name))
        raise StoppedError(
            [
                f"all steps were taken, and node {node} does not tell that it knows them: {error}",
                "messages that are published through it may miss the file's groups for a while",
                "apply again: it asks all nodes again",
            ]
        ) from None
    await take(broker, exchange.vhost, DeleteExchange(name))


def _prefix(exchange: Sharded) -> str:
    return f"{exchange.name}.fan."
