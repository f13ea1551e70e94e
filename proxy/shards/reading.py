"""Read what exists in one virtual host from the management API's lists.

A function raises TopologyError for an item or a field of another form.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from proxy.shards.state import FoundBinding, FoundExchange, FoundQueue, State, neither
from proxy.topology.answers import TopologyError
from proxy.topology.bindings import GENERATION_ARGUMENT, GROUPS_ARGUMENT, SHARD_ARGUMENT, SHARDS_ARGUMENT, promise_of
from proxy.topology.management import Management, ManagementError
from ring.destination import Destination, Kind

_VERSION = re.compile(r"[0-9]{1,5}(\.[0-9]{1,5})*")
"""The numbers at the beginning of a version such as ``4.3.0-rc.1``."""

READS = 3
"""The most readings of one virtual host until its lists agree with each other."""


async def read_state(api: Management, vhost: str, pause: float = 0.5) -> State:
    """Return what exists in a virtual host. Raises ManagementError or TopologyError.

    A node without quorum, or one that starts, may answer with lists that lack something. RabbitMQ lists the default
    exchange among the exchanges, and its binding for each queue that is not down, so a reading in which one of these
    is missing is repeated after `pause` seconds.
    """
    for _ in range(READS):
        state, fault = await _read(api, vhost)
        if not fault:
            return state
        await asyncio.sleep(pause)
    raise ManagementError(f"virtual host {vhost!r}: the management API's lists disagree: {fault}")


async def _read(api: Management, vhost: str) -> tuple[State, str]:
    """Return one reading of a virtual host, and what its lists disagree on; empty if they agree.

    Raises ManagementError or TopologyError if it cannot be read.
    """
    nodes = _nodes(await api.page(["vhosts"], ["name", "cluster_state"]), vhost)
    policies = _policies(await _listed(api, "policies", vhost, ["name", "definition"]))
    exchanges = {
        _text(item, "name"): _exchange(item, policies) for item in await _listed(api, "exchanges", vhost, _EXCHANGES)
    }
    queues = {_text(item, "name"): _queue(item) for item in await _listed(api, "queues", vhost, _QUEUES)}
    bindings: dict[str, list[FoundBinding]] = {}
    for item in await _listed(api, "bindings", vhost, _BINDINGS):
        destination = Destination(_kind(item), _text(item, "destination"))
        promise = promise_of(*map(_table(item, "arguments").get, _PROMISING))
        found = FoundBinding(destination, _text(item, "routing_key"), _text(item, "properties_key"), promise)
        bindings.setdefault(_text(item, "source"), []).append(found)
    by_default = {binding.destination.name for binding in bindings.pop("", ())}
    fault = ""
    if missing := queues.keys() - by_default:
        # Some may have ended since they were listed, such as queues for replies.
        there = {_text(item, "name") for item in await _listed(api, "queues", vhost, ["name"])}
        for name in missing - there:
            del queues[name]
        unlisted = sorted(name for name in missing & there if not queues[name].down)
        fault = f"no binding of the default exchange to queue {unlisted[0]!r}" if unlisted else ""
        for name in missing & there:
            queues[name] = replace(queues[name], bindings_known=False)
    if "" not in exchanges:
        fault = "no default exchange"
    version, exchange_types = await _overview(api)
    found_bindings = {name: tuple(of) for name, of in bindings.items()}
    return State(vhost, exchanges, queues, found_bindings, nodes, version, exchange_types), fault


_EXCHANGES = ("name", "type", "durable", "auto_delete", "internal", "arguments", "policy")
_QUEUES = (
    *("name", "type", "durable", "auto_delete", "exclusive", "arguments", "effective_policy_definition"),
    *("messages", "messages_ready", "messages_unacknowledged", "leader", "node", "members", "state"),
)
_PROMISING = (SHARD_ARGUMENT, GROUPS_ARGUMENT, GENERATION_ARGUMENT, SHARDS_ARGUMENT)
_BINDINGS = ("source", "destination", "destination_type", "routing_key", "properties_key", "arguments")


async def _listed(api: Management, what: str, vhost: str, columns: Sequence[str]) -> list[Mapping[str, Any]]:
    """Return the items of one of the API's lists for a virtual host. Raises ManagementError if the host is gone."""
    answer = await api.page([what, vhost], columns)
    if answer is None:
        raise ManagementError(f"/api/{what}: virtual host {vhost!r} is not there any more")
    if not isinstance(answer, list) or not all(isinstance(item, dict) for item in answer):
        raise TopologyError(f"{what}: {str(answer)[:60]!r} is not a list of objects")
    return answer


def _nodes(answer: object, vhost: str) -> tuple[str, ...]:
    """Return the nodes on which a virtual host runs. Raises ManagementError if the host is not listed."""
    if not isinstance(answer, list):
        raise TopologyError(f"vhosts: {str(answer)[:60]!r} is not a list")
    for item in answer:
        if isinstance(item, dict) and item.get("name") == vhost:
            return tuple(sorted(node for node, how in _table(item, "cluster_state").items() if how == "running"))
    raise ManagementError(f"virtual host {vhost!r} does not exist, or the management user may not see it")


async def _overview(api: Management) -> tuple[tuple[int, ...], frozenset[str] | None]:
    """Return the broker's version, such as (4, 3, 6), and its types of exchange; None in their place if not listed."""
    answer = await api.page(["overview"], ["rabbitmq_version", "exchange_types"])
    version = answer.get("rabbitmq_version") if isinstance(answer, dict) else None
    found = _VERSION.match(version) if isinstance(version, str) else None
    if found is None:
        raise TopologyError(f"rabbitmq_version: {str(version)[:60]!r} is not a version")
    types = answer.get("exchange_types") if isinstance(answer, dict) else None
    listed = isinstance(types, list) and all(isinstance(each, dict) for each in types)
    names = frozenset(str(each.get("name")) for each in types) if listed and types else None
    return tuple(map(int, found[0].split("."))), names


def _policies(items: list[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    return {_text(item, "name"): _table(item, "definition") for item in items}


def _exchange(item: Mapping[str, Any], policies: Mapping[str, Mapping[str, Any]]) -> FoundExchange:
    policy = item.get("policy")
    definition = policies.get(policy, {}) if isinstance(policy, str) else {}
    sharded = None
    if "shards-per-node" in definition:
        per_node, key = definition["shards-per-node"], definition.get("routing-key", "")
        sharded = f"policy {policy!r} of the sharding plugin (shards-per-node {per_node!r}, routing-key {key!r})"
    return FoundExchange(
        _text(item, "type"),
        _table(item, "arguments"),
        item.get("durable") is True and item.get("auto_delete") is False,
        item.get("auto_delete") is True,
        item.get("internal") is True,
        policy if "alternate-exchange" in definition else None,
        sharded,
    )


def _queue(item: Mapping[str, Any]) -> FoundQueue:
    node = item.get("leader") or item.get("node")
    ready, unacked = _count(item, "messages_ready"), _count(item, "messages_unacknowledged")
    return FoundQueue(
        _text(item, "type"),
        _table(item, "arguments"),
        item.get("durable") is True and item.get("auto_delete") is False and item.get("exclusive") is False,
        _table(item, "effective_policy_definition"),
        ready,
        unacked,
        neither(item.get("messages"), ready, unacked) if ready is not None and unacked is not None else 0,
        node if isinstance(node, str) else None,
        _members(item.get("members") or []),
        item.get("state") == "down",
    )


def _members(value: object) -> frozenset[str]:
    """Return the nodes that have a replica of a queue."""
    if not isinstance(value, list):
        raise TopologyError(f"members: {str(value)[:60]!r} is not a list")
    return frozenset(member for member in value if isinstance(member, str))


def _count(item: Mapping[str, Any], name: str) -> int | None:
    """Return a number of messages; None if the API does not show it yet."""
    value = item.get(name)
    return value if type(value) is int and value >= 0 else None


def _table(item: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a field that is an object; RabbitMQ's JSON has an empty list for an empty one, and may leave it out."""
    value = item.get(name) or {}
    if not isinstance(value, dict):
        raise TopologyError(f"{name}: {str(value)[:60]!r} is not an object")
    return value


def _text(item: Mapping[str, Any], name: str) -> str:
    """Return a field that must be a text."""
    value = item.get(name)
    if not isinstance(value, str):
        raise TopologyError(f"{name}: {str(value)[:60]!r} is not a string")
    return value


def _kind(item: Mapping[str, Any]) -> Kind:
    """Return the kind of a binding's destination."""
    value = item.get("destination_type")
    if value == "queue":
        return "queue"
    if value == "exchange":
        return "exchange"
    raise TopologyError(f"destination_type: {str(value)[:60]!r} is not 'queue' or 'exchange'")
