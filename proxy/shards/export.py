"""Write a topology file from what exists, so that a plan of it says that there is nothing to do. Pure.

A function raises ExportError for what a topology file cannot say.
"""

import json
import tomllib
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from proxy.shards.defaults import defaults
from proxy.shards.difference import AT_DECLARATION, compare
from proxy.shards.document import DocumentError, parse
from proxy.shards.shard import MAX_SHARDS, Sharded
from proxy.shards.state import FoundBinding, FoundExchange, FoundQueue, State
from proxy.topology.bindings import CONSISTENT_HASH, RING_TYPES, weight_of
from proxy.topology.names import natural, some
from ring.destination import Destination, WeightError

_EXCHANGE_KEYS = {
    "hash-header": "hash_header",
    "hash-property": "hash_property",
    "alternate-exchange": "alternate_exchange",
}
"""The arguments of an exchange that a file can express, and their keys."""

_NAMED = 5
"""The most bindings of one queue that an error names."""


class ExportError(Exception):
    """An exchange or queue has a property that a topology file cannot express; the message names both."""


class _Found(NamedTuple):
    """One shard that exists."""

    queue: str
    lane: str | None
    weight: int
    terms: str
    """The queue's type and arguments as lines of TOML."""
    groups: tuple[str, ...]
    """The names of the groups that have a queue of the shard, without that of the exchange's own."""


def export(state: State, name: str) -> str:
    """Return a topology file with one exchange, as it is. Raises ExportError."""
    exchange = state.exchanges.get(name)
    if exchange is None:
        raise ExportError(f"virtual host {state.vhost!r} has no exchange {name!r}")
    _check(exchange, name)
    if len(generations := state.generations(name)) > 1:
        raise ExportError(
            f"exchange {name!r} changes from generation {generations[0]} of its shards to {generations[-1]}; end that "
            "first: ring-proxy topology apply --ordered"
        )
    bindings = state.bindings.get(name, ())
    if generations != (1,):
        # Several bindings to one lane promise a shard to one group after the other.
        bindings = tuple({binding.destination: binding for binding in bindings}.values())
    if exchange.type != CONSISTENT_HASH:
        # There several bindings to one destination are its weight.
        bindings = tuple({binding.destination: binding for binding in bindings}.values())
    weights = state.weights(name)
    found = [_shard(state, exchange, name, binding, weights) for binding in bindings]
    if not found:
        raise ExportError(f"exchange {name!r} has no bindings")
    keys: dict[str, list[str]] = {}
    for shard, binding in zip(found, bindings, strict=True):
        through = f" of lane {shard.lane!r}" if shard.lane is not None else ""
        keys.setdefault(shard.queue, []).append(repr(binding.key) + through)
    if several := [queue for queue, of_it in keys.items() if len(of_it) > 1]:
        queue, of_it = several[0], keys[several[0]]
        # RabbitMQ removes a queue from its ring as soon as one of its bindings is removed (rabbitmq-server #9641).
        raise ExportError(
            f"queue {queue!r} is bound to exchange {name!r} more than once, with the keys {some(of_it, _NAMED)};"
            " remove all of these bindings, then bind it once: RabbitMQ gives nothing to a queue of which it has"
            " removed one of several bindings"
        )
    if len(found) > MAX_SHARDS:
        raise ExportError(f"exchange {name!r} has {len(found):,} queues; a topology file has {MAX_SHARDS:,} at most")
    text = _written(state, exchange, name, {shard.queue: shard for shard in found})
    _check_again(state, text)
    return text


def _check(exchange: FoundExchange, name: str) -> None:
    if exchange.type not in RING_TYPES:
        raise ExportError(
            f"exchange {name!r} is of type {exchange.type}; a ring's is {' or '.join(sorted(RING_TYPES))}"
        )
    if not exchange.lasting or exchange.internal:
        raise ExportError(
            f"exchange {name!r} is internal, not durable, or deleted by itself, which a topology file cannot say"
        )
    for argument, value in exchange.arguments.items():
        if argument not in _EXCHANGE_KEYS or not isinstance(value, str):
            raise ExportError(
                f"exchange {name!r} has the argument {argument} = {value!r}, which a topology file cannot say"
            )


def _shard(
    state: State, exchange: FoundExchange, name: str, binding: FoundBinding, weights: Mapping[Destination, int]
) -> _Found:
    """Return the shard that one binding of the exchange leads to."""
    at = state.behind(binding.destination)
    if at.kind == "exchange":
        raise ExportError(f"exchange {name!r} is bound to exchange {at.name!r}, which {state.lane_fault(at.name)}")
    lane = binding.destination.name if binding.destination.kind == "exchange" else None
    promised = state.lane(lane).promise if lane is not None else None
    # In a later generation the place on the ring is the name that the queue had in the first one.
    is_later = promised is not None and promised.generation > 1
    queue = state.queues.get(dict(promised.groups).get(name, "") if promised is not None and is_later else at.name)
    if queue is None:
        raise ExportError(f"queue {at.name!r} is bound and not listed; try again")
    if not queue.lasting:
        raise ExportError(
            f"queue {at.name!r} is not durable, exclusive, or deleted by itself, which a topology file cannot say"
        )
    try:
        weight_of(binding.key, exchange.type)
    except WeightError as error:
        raise ExportError(f"queue {at.name!r} is bound with the key {binding.key!r}, which is {error}") from None
    if is_later:
        lane = f"{name}.lane.{at.name.removeprefix(f'{name}.')}"
    groups = tuple(group for group, _ in promised.groups if group != name) if promised is not None else ()
    for group in groups:
        if not group.startswith(f"{name}/"):
            raise ExportError(f"lane {lane!r} leads to the group {group!r}, which a topology file cannot say")
    own = tuple(group.removeprefix(f"{name}/") for group in groups)
    return _Found(at.name, lane, weights[at], _terms(at.name, queue, state.version), own)


def _terms(name: str, queue: FoundQueue, version: tuple[int, ...]) -> str:
    """Return a queue's type and arguments as a file says them, without what is so by default."""
    arguments = {key: value for key, value in queue.arguments.items() if key not in AT_DECLARATION}
    for key, value in arguments.items():
        if not isinstance(value, str | bool | int | float):
            raise ExportError(f"queue {name!r} has the argument {key} = {value!r}, which a topology file cannot say")
    if queue.type != "stream":
        arguments.setdefault("x-single-active-consumer", False)
    for key, value in defaults(queue.type, arguments, version).items():
        if arguments.get(key) == value:
            del arguments[key]
    lines = [] if queue.type == "quorum" else [f"queue_type = {_toml(queue.type)}"]
    pairs = ", ".join(f"{_toml(key)} = {_toml(value)}" for key, value in arguments.items())
    return "\n".join([*lines, *([f"arguments = {{ {pairs} }}"] if pairs else [])])


def _written(state: State, exchange: FoundExchange, name: str, shards: Mapping[str, _Found]) -> str:
    numbered = _numbered(name, shards)
    ((terms, _),) = Counter(shard.terms for shard in shards.values()).most_common(1)
    lanes = any(shard.lane is not None for shard in shards.values())
    lines = [] if exchange.sharded is None else [f"# The exchange has the {exchange.sharded}."]
    lines += ["[[exchange]]", f"name = {_toml(name)}", f"vhost = {_toml(state.vhost)}"]
    if exchange.type != CONSISTENT_HASH:
        lines.append(f"type = {_toml(exchange.type)}")
    lines += [f"{_EXCHANGE_KEYS[key]} = {_toml(value)}" for key, value in exchange.arguments.items()]
    count = len(numbered)
    lines.append(f"shards = {count if sorted(numbered) == list(range(1, count + 1)) else sorted(numbered)}")
    if not lanes:
        lines.append("lanes = false")
    if groups := sorted({group for shard in shards.values() for group in shard.groups}):
        lines.append(f"groups = [{', '.join(map(_toml, groups))}]")
    if terms:
        lines.append(terms)
    for number in sorted(numbered):
        own = _own(name, number, numbered[number], lanes, terms)
        if own:
            lines += ["", "[[exchange.shard]]", f"number = {number}", *own]
    return "\n".join(lines) + "\n"


def _own(name: str, number: int, shard: _Found, lanes: bool, terms: str) -> list[str]:
    """Return the lines of a shard that differs from what the exchange says of all."""
    lines = []
    if shard.queue != f"{name}.{number}":
        lines.append(f"queue = {_toml(shard.queue)}")
    if lanes and shard.lane is None:
        lines.append("lane = false")
    elif shard.lane is not None and shard.lane != f"{name}.lane.{number}":
        lines.append(f"lane = {_toml(shard.lane)}")
    if shard.weight != 1:
        lines.append(f"weight = {shard.weight}")
    if shard.terms != terms:
        own = shard.terms.splitlines()
        if not shard.terms.startswith("queue_type") and terms.startswith("queue_type"):
            own.insert(0, 'queue_type = "quorum"')
        if "arguments = " not in shard.terms and "arguments = " in terms:
            own.append("arguments = {}")
        lines += own
    return lines


def _numbered(name: str, shards: Mapping[str, _Found]) -> dict[int, _Found]:
    """Return the shards by number: those named after a number have it, and the others get the first free ones."""
    bare = Sharded("", name)
    numbered = {number: shard for queue, shard in shards.items() if (number := bare.number_of(queue)) is not None}
    free = (number for number in range(1, MAX_SHARDS + 1) if number not in numbered)
    for queue in sorted(shards, key=natural):
        if bare.number_of(queue) is None:
            numbered[next(free)] = shards[queue]
    return numbered


def _check_again(state: State, text: str) -> None:
    """Raise ExportError unless a plan of the file says that there is nothing to do."""
    try:
        (exchange,) = parse(tomllib.loads(text))
    except DocumentError as error:
        raise ExportError("; ".join(error.lines)) from None
    difference = compare(exchange, state)
    if left := [*map(str, difference.steps), *difference.refusals]:
        raise ExportError(f"it cannot be written so that nothing is to do: {left[0]}")


def _toml(value: Any) -> str:
    match value:
        case bool() | int() | float():
            return json.dumps(value)
        case _:
            # TOML's basic strings are JSON's, but for this one character.
            return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
