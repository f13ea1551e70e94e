"""From the management API's JSON to what a ring needs, with everything that was ignored and why. Pure: no I/O."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from ring.destination import Destination, Kind, WeightError, parse_weight
from ring.hashed import HASHED_PROPERTIES, HashedValue

CONSISTENT_HASH = "x-consistent-hash"
MODULUS_HASH = "x-modulus-hash"
RING_TYPES = frozenset({CONSISTENT_HASH, MODULUS_HASH})


class TopologyError(ValueError):
    """The management API's answer is not of the form it should have; the message names field and value."""


@dataclass(frozen=True)
class Exchange:
    """What the management API says of one exchange."""

    type: str
    internal: bool = False
    hashed: HashedValue = HashedValue()
    publish_in: int | None = None
    """Messages published into it so far, as the broker counts them; None where it does not say."""


class Binding(NamedTuple):
    """One binding of an exchange, without its arguments."""

    destination: Destination
    key: str


@dataclass(frozen=True)
class IgnoredBinding:
    """A binding whose key is no weight."""

    destination: Destination
    key: str
    reason: str


@dataclass(frozen=True)
class Bindings:
    """The bindings of one exchange as a ring sees them."""

    weights: Mapping[Destination, int] = field(default_factory=lambda: MappingProxyType({}))
    """Each destination once, with the largest of its weights."""
    ignored: tuple[IgnoredBinding, ...] = ()
    duplicates: tuple[Destination, ...] = ()
    """Destinations bound more than once. RabbitMQ counts the first binding only, and unbinding any of them takes the
    destination off its native ring, so nothing here advises an unbind."""


def parse_exchange(answer: object) -> Exchange:
    """Of `GET /api/exchanges/{vhost}/{name}`. Raises TopologyError."""
    table = _object(answer, "exchange")
    kind = _text(table, "type")
    hashed = HashedValue()
    # x-modulus-hash hashes the routing key whatever its arguments say.
    if kind == CONSISTENT_HASH:
        hashed = _hashed(_object(table.get("arguments", {}), "arguments"))
    return Exchange(kind, _flag(table, "internal"), hashed, _publish_in(table.get("message_stats")))


def find_exchange(answer: object, name: str) -> Exchange | None:
    """The exchange of that name in `GET /api/exchanges/{vhost}`; None where it is not there. Raises TopologyError."""
    if not isinstance(answer, list):
        raise TopologyError(f"exchanges: {_brief(answer)} is not a list")
    return next((parse_exchange(item) for item in answer if _object(item, "exchange").get("name") == name), None)


def parse_bindings(answer: object) -> tuple[Binding, ...]:
    """Of `GET /api/exchanges/{vhost}/{name}/bindings/source`.

    Raises TopologyError for an answer of another form: half of it is never believed.
    """
    if not isinstance(answer, list):
        raise TopologyError(f"bindings: {_brief(answer)} is not a list")
    tables = [_object(item, "binding") for item in answer]
    return tuple(
        Binding(Destination(_kind(table), _text(table, "destination")), _text(table, "routing_key")) for table in tables
    )


def weigh(bindings: Iterable[Binding], exchange_type: str) -> Bindings:
    """What an exchange of a ring's type makes of its bindings.

    A binding whose key is no weight is ignored and listed.
    """
    weights: dict[Destination, int] = {}
    ignored: list[IgnoredBinding] = []
    duplicates: dict[Destination, None] = {}
    seen: set[Destination] = set()
    for destination, key in bindings:
        if destination in seen:
            duplicates[destination] = None
        seen.add(destination)
        try:
            weight = weight_of(key, exchange_type)
        except WeightError as error:
            ignored.append(IgnoredBinding(destination, key, str(error)))
            continue
        weights[destination] = max(weight, weights.get(destination, 0))
    return Bindings(weights, tuple(ignored), tuple(duplicates))


def weight_of(key: str, exchange_type: str) -> int:
    """What a binding with that key weighs: for x-modulus-hash, which ignores keys, 1. Raises WeightError."""
    return 1 if exchange_type == MODULUS_HASH else parse_weight(key)


def parse_names(answer: object, what: str) -> frozenset[str]:
    """The `name` of each item of a list that the management API answered with. Raises TopologyError."""
    if not isinstance(answer, list):
        raise TopologyError(f"{what}: {_brief(answer)} is not a list")
    return frozenset(_text(_object(item, what), "name") for item in answer)


def parse_nodes(answer: object) -> frozenset[str]:
    """The nodes in the `cluster_state` of `GET /api/vhosts`, which not every API has. Raises TopologyError."""
    if not isinstance(answer, list):
        raise TopologyError(f"virtual host: {_brief(answer)} is not a list")
    states = (_object(item, "virtual host").get("cluster_state", {}) for item in answer)
    return frozenset(node for state in states for node in _object(state, "cluster_state"))


def default_names(cluster: str, nodes: Iterable[str]) -> frozenset[str]:
    """What its nodes call a cluster that nobody has named: each by its own name, with the host's domain.

    `cluster` is what one of them calls it; none where it is called otherwise.
    """
    _, _, host = cluster.partition("@")
    _, dot, domain = host.partition(".")
    names = set()
    for node in nodes:
        name, _, at = node.partition("@")
        names.add(f"{name}@{host if at == 'localhost' else at if '.' in at else at + dot + domain}")
    return frozenset(names) if cluster in names else frozenset()


def dead_letters_by_own_name(answer: object) -> str | None:
    """Return what makes a queue, of `GET /api/queues/{vhost}/{name}`, dead-letter without a routing key of its own.

    That is its argument or a policy, in words; empty where it does not. Published to through the default exchange,
    such a queue dead-letters under its own name instead of the original routing key. An argument and a policy count
    alike, each key by itself. None where the answer has no word of policies yet: RabbitMQ 3.10.8 has none before a
    queue's first statistics (observed). Raises TopologyError.
    """
    table = _object(answer, "queue")
    arguments = _object(table.get("arguments", {}), "arguments")
    # RabbitMQ's JSON has an empty list for an empty policy.
    policy = _object(table.get("effective_policy_definition") or {}, "effective_policy_definition")
    cause = "its argument x-dead-letter-exchange" if "x-dead-letter-exchange" in arguments else ""
    if not cause and "effective_policy_definition" not in table:
        return None
    if not cause and "dead-letter-exchange" in policy:
        name = table.get("policy")
        cause = f"policy {name!r}" if isinstance(name, str) and name else "a policy"
    return "" if "x-dead-letter-routing-key" in arguments or "dead-letter-routing-key" in policy else cause


def _hashed(arguments: Mapping[str, Any]) -> HashedValue:
    header, name = arguments.get("hash-header"), arguments.get("hash-property")
    if isinstance(header, str) and header:
        return HashedValue("header", _text(arguments, "hash-header"))
    if isinstance(name, str) and name:
        if name not in HASHED_PROPERTIES:
            raise TopologyError(f"hash-property: {name!r} is not one of {', '.join(sorted(HASHED_PROPERTIES))}")
        return HashedValue("property", name)
    # LavinMQ's argument; RabbitMQ has none of that name.
    header = arguments.get("x-hash-on")
    return HashedValue("header", _text(arguments, "x-hash-on")) if isinstance(header, str) and header else HashedValue()


def _publish_in(stats: object) -> int | None:
    """Of an exchange's `message_stats`, which is missing until its first publish, and where statistics are off.

    No form of it is a fault: a ring does not depend on statistics.
    """
    count = stats.get("publish_in") if isinstance(stats, dict) else None
    return count if type(count) is int and count >= 0 else None


def _object(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TopologyError(f"{what}: {_brief(value)} is not an object")
    return value


def _text(table: Mapping[str, Any], name: str) -> str:
    value = table.get(name)
    if not isinstance(value, str):
        raise TopologyError(f"{name}: {_brief(value)} is not a string")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise TopologyError(f"{name}: {value!r} is not UTF-8") from None
    return value


def _flag(table: Mapping[str, Any], name: str) -> bool:
    value = table.get(name, False)
    if not isinstance(value, bool):
        raise TopologyError(f"{name}: {_brief(value)} is not true or false")
    return value


def _kind(table: Mapping[str, Any]) -> Kind:
    value = table.get("destination_type")
    if value == "queue":
        return "queue"
    if value == "exchange":
        return "exchange"
    raise TopologyError(f"destination_type: {_brief(value)} is not 'queue' or 'exchange'")


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
