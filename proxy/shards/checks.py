"""The keys of a topology file, and the check of each key's value. Pure.

A check takes a value as TOML gives it, and returns it as `proxy/shards/shard.py` has it. It raises ConfigError, whose
message has the value.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_args

from proxy.settings.parse import ConfigError
from proxy.shards.shard import MAX_SHARDS, Arguments, QueueType
from proxy.topology.bindings import CONSISTENT_HASH, GROUP_NAME, MODULUS_HASH, MOST_GROUPS
from ring.destination import MAX_WEIGHT
from ring.hashed import HASHED_PROPERTIES

MAX_NAME = 255
"""The most bytes of a name in AMQP 0-9-1, whose names are short strings."""


def check_name(value: Any) -> str:
    """Return the name of a queue or an exchange that can be declared and asked for. Raises ConfigError."""
    name = _text(value)
    if "\r" in name or "\n" in name:
        # RabbitMQ 4.3.6 declares it under the name without them (measured), so it would never be there.
        raise ConfigError(f"{shown(name)} has the end of a line in it, which RabbitMQ takes out of a name")
    if name in (".", ".."):
        raise ConfigError(f"{shown(name)} cannot be asked for: RabbitMQ's management API takes it for a folder")
    if name.startswith("amq."):
        raise ConfigError(f"{shown(name)} begins with 'amq.', which RabbitMQ keeps for itself")
    return name


def _vhost(value: Any) -> str:
    if value in (".", "..") or not isinstance(value, str):
        raise ConfigError(f"{shown(value)} is not the name of a virtual host")
    return _text(value)


def _text(value: Any) -> str:
    """Return a text that AMQP can carry as a name."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise ConfigError(f"{shown(value)} is not a name")
    if (length := len(value.encode())) > MAX_NAME:
        raise ConfigError(f"{shown(value)} has {length} bytes; a name has {MAX_NAME} at most")
    return value


def check_number(value: Any) -> int:
    """Return the number of a shard, or a number of shards. Raises ConfigError."""
    return _integer(value, MAX_SHARDS)


def _weight(value: Any) -> int:
    return _integer(value, MAX_WEIGHT)


def _integer(value: Any, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ConfigError(f"{shown(value)} is not a whole number from 1 to {most}")
    return value


def _numbers(value: Any) -> tuple[int, ...]:
    """Return the numbers that a list has, ascending."""
    if not isinstance(value, list):
        raise ConfigError(f"{shown(value)} is not a list of shards' numbers")
    numbers = [check_number(each) for each in value]
    for number, times in Counter(numbers).items():
        if times > 1:
            raise ConfigError(f"{number} is in the list {times} times")
    return tuple(sorted(numbers))


_NOT_GROUPS = frozenset({"asked", "fan", "group", "lane", "operators", "pauses"})
"""Words that follow an exchange's name in the names of other exchanges and queues, so that no group is called so."""


def _groups(value: Any) -> tuple[str, ...]:
    """Return the names of groups, sorted."""
    if not isinstance(value, list):
        raise ConfigError(f"{shown(value)} is not a list of groups' names")
    for name in value:
        if not isinstance(name, str) or not GROUP_NAME.fullmatch(name):
            raise ConfigError(f"{shown(name)} is not the name of a group: a letter, then up to 63 of A-Z a-z 0-9 _ -")
        if name in _NOT_GROUPS:
            raise ConfigError(f"{shown(name)} cannot be the name of a group, as other names have that word")
        if value.count(name) > 1:
            raise ConfigError(f"{shown(name)} is in the list {value.count(name)} times")
    if len(value) >= MOST_GROUPS:
        raise ConfigError(f"{len(value)} groups: {MOST_GROUPS - 1} beside the exchange's own are the most")
    return tuple(sorted(value))


def _shards(value: Any) -> tuple[int, ...]:
    """Return the numbers of the shards: of a count those from 1 up, of a list its own."""
    if isinstance(value, list):
        if not value:
            raise ConfigError("the list is empty")
        return _numbers(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{shown(value)} is neither a number of shards nor a list of shards' numbers")
    return tuple(range(1, check_number(value) + 1))


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{shown(value)} is not true or false")
    return value


def _one_of(words: Iterable[str]) -> Callable[[Any], str]:
    known = tuple(words)

    def check(value: Any) -> str:
        if value not in known:
            raise ConfigError(f"{shown(value)} is not one of {', '.join(known)}")
        return str(value)

    return check


def _arguments(value: Any) -> Arguments:
    """Return a queue's arguments."""
    if not isinstance(value, dict):
        raise ConfigError(f"{shown(value)} is not a table of arguments")
    for name, each in value.items():
        if not name or len(name.encode()) > MAX_NAME:
            raise ConfigError(f"{shown(name)} is not the name of an argument")
        if name == "x-queue-type":
            raise ConfigError("x-queue-type: use the key queue_type instead")
        if not isinstance(each, str | bool | int | float):
            raise ConfigError(f"{name}: {shown(each)} is not a text, a number, true or false")
        if isinstance(each, float) and not math.isfinite(each):
            raise ConfigError(f"{name}: {shown(each)} is not a finite number")
        if not isinstance(each, str) and not -(2**63) <= each < 2**63:
            raise ConfigError(f"{name}: {shown(each)} does not fit into 64 bits")
        if name == "x-single-active-consumer" and not isinstance(each, bool):
            raise ConfigError(f"{name}: {shown(each)} is not true or false")
    return dict(value)


EXCHANGE_KEYS: Mapping[str, Callable[[Any], Any]] = {
    "name": check_name,
    "vhost": _vhost,
    "type": _one_of((CONSISTENT_HASH, MODULUS_HASH)),
    "shards": _shards,
    "shards_per_node": check_number,
    "retiring": _numbers,
    "lanes": _bool,
    "groups": _groups,
    "queue_type": _one_of(get_args(QueueType)),
    "arguments": _arguments,
    "hash_header": _text,
    "hash_property": _one_of(sorted(HASHED_PROPERTIES)),
    "alternate_exchange": _text,
}
"""The keys of `[[exchange]]` but `shard`, and the function that checks and returns the value of each."""

SHARD_KEYS: Mapping[str, Callable[[Any], Any]] = {
    "queue": check_name,
    "lane": lambda value: False if value is False else check_name(value),
    "weight": _weight,
    "queue_type": _one_of(get_args(QueueType)),
    "arguments": _arguments,
}
"""The keys of `[[exchange.shard]]` but `number`, and the function that checks and returns the value of each."""


def shown(value: Any) -> str:
    """Return a value as a message shows it: at most 60 characters, as TOML writes true and false."""
    try:
        text = str(value).lower() if isinstance(value, bool) else repr(value)
    except ValueError:  # Python writes no number of more than 4,300 digits, and TOML has such in hexadecimal.
        return "a value with thousands of digits"
    return text if len(text) <= 60 else f"{text[:57]}..."
