"""Generations of shards as `ring-proxy topology apply --ordered` makes them, made by hand."""

from collections.abc import Iterable
from typing import Any

from proxy.topology.bindings import Promise
from tests.integration.broker_api import VirtualHost

SHARD = {"x_queue_type": "quorum", "x_single_active_consumer": True}


def queue(generation: int, shard: int) -> str:
    return f"orders.g{generation}.{shard}" if generation > 1 else f"orders.{shard}"


def queues(generation: int, shards: int) -> list[str]:
    return [queue(generation, shard) for shard in range(shards)]


def lane(generation: int, shard: int) -> str:
    return f"orders.lane.g{generation}.{shard}" if generation > 1 else f"orders.lane.{shard}"


def declare(vhost: VirtualHost, generation: int, shards: int, **arguments: Any) -> None:
    """Make the queues and lanes of a generation, and bind none of them to the exchange.

    `arguments` are of the queues, which else are a group's shards, of which nobody may get single messages.
    """
    for shard in range(shards):
        vhost.queue(queue(generation, shard), **(arguments or SHARD))
        vhost.exchange(lane(generation, shard), "fanout")
        vhost.bind(lane(generation, shard), queue(generation, shard), "")


def bind(vhost: VirtualHost, generation: int, shard: int, of: int, groups: Iterable[str] = ()) -> None:
    """Bind the lane of a shard, which opens the shard to these groups."""
    opened = tuple((group, queue(generation, shard)) for group in groups)
    later = (generation, of) if generation > 1 else ()
    body = {"routing_key": "1", "arguments": Promise(queue(1, shard), opened, *later).as_arguments()}
    vhost.api.ask("POST", "bindings", vhost.name, "e", "orders", "e", lane(generation, shard), body=body)


def made(vhost: VirtualHost, shards: int, **arguments: Any) -> None:
    """Make the exchange with its first generation."""
    vhost.exchange("orders")
    declare(vhost, 1, shards, **arguments)
    for shard in range(shards):
        bind(vhost, 1, shard, 0, ["orders"])


def fence(vhost: VirtualHost, generation: int, shards: int) -> None:
    """Unbind the lanes of a generation from their queues, so that what is sent there comes back."""
    for shard in range(shards):
        vhost.unbind(lane(generation, shard), queue(generation, shard), "")
