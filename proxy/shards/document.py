"""Read a topology file: TOML that says which exchanges there are and which shards each has. Pure but for the reading.

Every mistake is one line that names the place in the file, the key and the value.
"""

import math
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from proxy.settings.parse import ConfigError, did_you_mean
from proxy.topology.bindings import CONSISTENT_HASH, MODULUS_HASH
from ring.destination import MAX_WEIGHT
from ring.hashed import HASHED_PROPERTIES

QueueType = Literal["quorum", "classic", "stream"]
Value = str | int | float | bool
"""The value of an argument of a queue or an exchange."""
Arguments = Mapping[str, Value]

MAX_SHARDS = 10_000
"""The most shards of one exchange, and the greatest number of a shard."""

MAX_NAME = 255
"""The most bytes of a name in AMQP 0-9-1, whose names are short strings."""


class Shard(NamedTuple):
    """One shard as a file wants it: a queue, the lane that leads to it, and its weight on the ring."""

    number: int
    queue: str
    lane: str | None
    """The name of the fanout exchange in front of the queue; None if the ring's exchange is bound to the queue."""
    weight: int
    type: QueueType
    arguments: Arguments
    """The queue's arguments as the file has them, without those that are set by default."""


@dataclass(frozen=True)
class OwnTerms:
    """What one `[[exchange.shard]]` says of its shard; None for what it leaves to the exchange."""

    queue: str | None = None
    lane: str | Literal[False] | None = None
    """The lane's name; False for a shard without a lane."""
    weight: int | None = None
    queue_type: QueueType | None = None
    arguments: Arguments | None = None


@dataclass(frozen=True)
class Sharded:
    """One `[[exchange]]` of a file."""

    place: str
    """The place in the file, as messages name it: ``[[exchange]] 2, "orders"``."""
    name: str
    vhost: str = "/"
    type: str = CONSISTENT_HASH
    arguments: Arguments = field(default_factory=dict)
    """The exchange's arguments, such as `hash-header`."""
    numbers: tuple[int, ...] | None = None
    """The numbers of the wanted shards, ascending; None if `per_node` says how many there are."""
    per_node: int | None = None
    """The number of shards for each node of the cluster; None if `numbers` names them."""
    retiring: frozenset[int] = frozenset()
    """The numbers of shards that are being retired: nothing is done to them."""
    lanes: bool = True
    queue_type: QueueType = "quorum"
    queue_arguments: Arguments = field(default_factory=dict)
    own: Mapping[int, OwnTerms] = field(default_factory=dict)
    """What the file says of single shards, by number."""

    def shard(self, number: int) -> Shard:
        """Return the shard with this number."""
        own = self.own.get(number, OwnTerms())
        lane = self.lanes if own.lane is None else own.lane
        return Shard(
            number,
            own.queue or f"{self.name}.{number}",
            f"{self.name}.lane.{number}" if lane is True else lane or None,
            own.weight or 1,
            own.queue_type or self.queue_type,
            self.queue_arguments if own.arguments is None else own.arguments,
        )

    def number_of(self, queue: str) -> int | None:
        """Return the number of the shard whose queue has this name; None if no shard of this exchange can have it."""
        for number, own in self.own.items():
            if own.queue == queue:
                return number
        found = _number_after(f"{self.name}.", queue)
        return found if found is not None and self.shard(found).queue == queue else None

    def number_of_lane(self, lane: str) -> int | None:
        """Return the number of the shard whose lane has this name; None if no shard of this exchange can have it."""
        for number, own in self.own.items():
            if own.lane == lane:
                return number
        found = _number_after(f"{self.name}.lane.", lane)
        return found if found is not None and self.shard(found).lane == lane else None

    def shards(self, existing: Iterable[int], nodes: int) -> tuple[Shard, ...]:
        """Return the wanted shards, ascending by number.

        `existing` are the numbers of shards that are there and `nodes` is the number of running nodes. Both count only
        for `shards_per_node`: there are never fewer shards than exist, so a node that leaves takes none away.
        """
        if self.numbers is not None:
            return tuple(self.shard(number) for number in self.numbers if number not in self.retiring)
        wanted = set(existing) - self.retiring
        number = 1
        while len(wanted) < min((self.per_node or 0) * nodes, MAX_SHARDS):
            if number not in self.retiring:
                wanted.add(number)
            number += 1
        return tuple(map(self.shard, sorted(wanted)))


def _number_after(prefix: str, name: str) -> int | None:
    """Return the number of a shard that follows a prefix in a name; None if none does."""
    digits = name.removeprefix(prefix)
    if digits == name or not (digits.isascii() and digits.isdigit()) or digits.startswith("0"):
        return None
    number = int(digits) if len(digits) <= len(str(MAX_SHARDS)) else MAX_SHARDS + 1
    return number if number <= MAX_SHARDS else None


class DocumentError(Exception):
    """A topology file has mistakes; `lines` has one line for each."""

    def __init__(self, lines: Sequence[str]) -> None:
        """Take the lines, at least one."""
        super().__init__("\n".join(lines))
        self.lines = tuple(lines)


def load(file: Path) -> tuple[Sharded, ...]:
    """Return the exchanges of a topology file. Raises DocumentError with every mistake that was found."""
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise DocumentError([f"{file}: cannot be read: {error}"]) from None
    except (ValueError, RecursionError) as error:
        raise DocumentError([f"{file}: not TOML: {error}"]) from None
    try:
        return parse(table)
    except DocumentError as error:
        raise DocumentError([f"{file}: {line}" for line in error.lines]) from None


def parse(table: Mapping[str, Any]) -> tuple[Sharded, ...]:
    """Return the exchanges of a file that was read as TOML. Raises DocumentError with every mistake."""
    mistakes = _Mistakes()
    _unknown(table, ("exchange",), "", mistakes)
    items = table.get("exchange")
    if not isinstance(items, list) or not items:
        raise DocumentError([*mistakes.lines, "exchange: the file has no [[exchange]]"])
    found = []
    for position, item in enumerate(items, 1):
        if not isinstance(item, dict):
            mistakes.add(f"[[exchange]] {position}", "", f"{_shown(item)} is not a table")
        elif (exchange := _exchange(item, position, mistakes)) is not None:
            found.append(exchange)
    if not mistakes.lines:
        mistakes.lines += clashes([(each, _known_shards(each)) for each in found])
    if mistakes.lines:
        raise DocumentError(mistakes.lines)
    return tuple(found)


def clashes(all_shards: Iterable[tuple[Sharded, Iterable[Shard]]]) -> list[str]:
    """Return a line for each name that two exchanges, or two shards, of a virtual host share."""
    exchanges: dict[tuple[str, str], str] = {}
    other: str | None
    queues: dict[tuple[str, str], str] = {}
    lines = []
    every = [(each, list(shards)) for each, shards in all_shards]
    for each, _ in every:
        if (other := exchanges.setdefault((each.vhost, each.name), each.place)) is not each.place:
            lines.append(f"{each.place}: name: {each.name!r} is the name of {other} too")
    for each, shards in every:
        for shard in shards:
            place = f"{each.place}, shard {shard.number}"
            if other := queues.get((each.vhost, shard.queue)):
                lines.append(f"{place}: queue: {shard.queue!r} is the queue of {other} too")
            queues[each.vhost, shard.queue] = place
            if shard.lane is None:
                continue
            if other := exchanges.get((each.vhost, shard.lane)):
                lines.append(f"{place}: lane: {shard.lane!r} is the name of {other} too")
            exchanges[each.vhost, shard.lane] = f"the lane of {place}"
    return lines


class _Mistakes:
    """The mistakes of a file that were found so far, each in a line."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, place: str, key: str, why: str) -> None:
        self.lines.append(": ".join(part for part in (place, key, why) if part))

    def checked(self, place: str, key: str, check: Callable[[Any], Any], value: Any) -> Any:
        """Return the value as `check` returns it; None, once the mistake is noted, if it raises ConfigError."""
        try:
            return check(value)
        except ConfigError as error:
            self.add(place, key, str(error))
            return None


def _exchange(item: Mapping[str, Any], position: int, mistakes: _Mistakes) -> Sharded | None:
    """Return the exchange of one table; None, once its mistakes are noted, if it has any."""
    before = len(mistakes.lines)
    place = f"[[exchange]] {position}"
    if isinstance(item.get("name"), str):
        place += f", {_shown(item['name'])}"
    _unknown(item, (*_CHECKS, "shard"), place, mistakes)
    values = {
        key: mistakes.checked(place, key, check, item[key])
        for key, check in _CHECKS.items()
        if item.get(key) is not None
    }
    own = _own(item.get("shard", []), place, mistakes)
    for why in _contradictions(values, item, own):
        mistakes.add(place, *why)
    if len(mistakes.lines) > before:
        return None
    arguments = {
        "hash_header": "hash-header",
        "hash_property": "hash-property",
        "alternate_exchange": "alternate-exchange",
    }
    made = Sharded(
        place=place,
        name=values["name"],
        vhost=values.get("vhost", "/"),
        type=values.get("type", CONSISTENT_HASH),
        arguments={name: values[key] for key, name in arguments.items() if key in values},
        numbers=values.get("shards"),
        per_node=values.get("shards_per_node"),
        retiring=frozenset(values.get("retiring", ())),
        lanes=values.get("lanes", True),
        queue_type=values.get("queue_type", "quorum"),
        queue_arguments=values.get("arguments", {}),
        own=own,
    )
    for shard in _known_shards(made):
        for key, name in (("queue", shard.queue), ("lane", shard.lane)):
            # One is enough: thousands of names are made of the same exchange's name.
            if name is not None and mistakes.checked(f"{place}, shard {shard.number}", key, _name, name) is None:
                return None
    return made


def _known_shards(exchange: Sharded) -> tuple[Shard, ...]:
    """Return the shards that a file alone tells; for `shards_per_node` those on one node, and those that it names."""
    shards = exchange.shards((), 1)
    numbers = {shard.number for shard in shards}
    return (*shards, *(exchange.shard(number) for number in exchange.own if number not in numbers))


def _contradictions(
    values: Mapping[str, Any], item: Mapping[str, Any], own: Mapping[int, OwnTerms]
) -> Iterable[tuple[str, str]]:
    """Yield the keys of one exchange that contradict each other, each with the reason."""
    if "name" not in item:
        yield "name", "missing"
    if "hash_header" in item and "hash_property" in item:
        yield "hash_property", "hash_header is given too; an exchange hashes one of them"
    yield from _miscounted(values, item, own)
    if values.get("type") == MODULUS_HASH:
        yield from _without_effect(item)


def _miscounted(
    values: Mapping[str, Any], item: Mapping[str, Any], own: Mapping[int, OwnTerms]
) -> Iterable[tuple[str, str]]:
    """Yield the contradictions in how many shards an exchange has, and which."""
    if "shards" in item and "shards_per_node" in item:
        yield "shards", "shards_per_node is given too; an exchange has one of them"
    elif "shards" not in item and "shards_per_node" not in item:
        yield "shards", "missing"
    if values.get("shards") is None:
        return
    wanted, retiring = set(values["shards"]), set(values.get("retiring") or ())
    for number in own.keys() - wanted - retiring:
        yield f"shard {number}", "its number is neither in shards nor in retiring"
    if wanted <= retiring:
        yield "retiring", "every shard is retiring, so that the exchange would have none"


def _without_effect(item: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Yield what x-modulus-hash would ignore."""
    for key in ("hash_header", "hash_property"):
        if key in item:
            yield key, f"{MODULUS_HASH} hashes the routing key only"


def _own(items: Any, place: str, mistakes: _Mistakes) -> Mapping[int, OwnTerms]:
    """Return what the `[[exchange.shard]]` of one exchange say, by number."""
    if not isinstance(items, list):
        mistakes.add(place, "shard", f"{_shown(items)} is not a list of tables, each written [[exchange.shard]]")
        return {}
    found: dict[int, OwnTerms] = {}
    for position, item in enumerate(items, 1):
        at = f"{place}, [[exchange.shard]] {position}"
        if not isinstance(item, dict):
            mistakes.add(at, "", f"{_shown(item)} is not a table")
            continue
        _unknown(item, ("number", *_SHARD_CHECKS), at, mistakes)
        values = {k: mistakes.checked(at, k, check, item[k]) for k, check in _SHARD_CHECKS.items() if k in item}
        number = mistakes.checked(at, "number", _number, item["number"]) if "number" in item else None
        if "number" not in item:
            mistakes.add(at, "number", "missing")
        elif number in found:
            mistakes.add(at, "number", f"{number} is the number of another [[exchange.shard]] too")
        elif number is not None:
            found[number] = OwnTerms(**values)
    return found


def _unknown(table: Mapping[str, Any], known: Iterable[str], place: str, mistakes: _Mistakes) -> None:
    """Note the keys of a table that are not known."""
    known = tuple(known)
    for key in table:
        if key not in known:
            mistakes.add(place, "", f"unknown key {_shown(key)}{did_you_mean(key, known)}")


def _name(value: Any) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ConfigError(f"{_shown(value)} is not a name")
    if (length := len(value.encode())) > MAX_NAME:
        raise ConfigError(f"{_shown(value)} has {length} bytes; a name has {MAX_NAME} at most")
    if value in (".", ".."):
        raise ConfigError(f"{_shown(value)} cannot be asked for: RabbitMQ's management API takes it for a folder")
    if value.startswith("amq."):
        raise ConfigError(f"{_shown(value)} begins with 'amq.', which RabbitMQ keeps for itself")
    return value


def _vhost(value: Any) -> str:
    if not isinstance(value, str) or not value or value in (".", ".."):
        raise ConfigError(f"{_shown(value)} is not the name of a virtual host")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{_shown(value)} is not a name")
    return value


def _number(value: Any) -> int:
    return _integer(value, MAX_SHARDS)


def _weight(value: Any) -> int:
    return _integer(value, MAX_WEIGHT)


def _integer(value: Any, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ConfigError(f"{_shown(value)} is not a whole number from 1 to {most}")
    return value


def _numbers(value: Any) -> tuple[int, ...]:
    """Return the numbers that a list has, ascending."""
    if not isinstance(value, list):
        raise ConfigError(f"{_shown(value)} is not a list of shards' numbers")
    numbers = [_number(each) for each in value]
    for number, times in Counter(numbers).items():
        if times > 1:
            raise ConfigError(f"{number} is in the list {times} times")
    return tuple(sorted(numbers))


def _shards(value: Any) -> tuple[int, ...]:
    """Return the numbers of the shards: of a count those from 1 up, of a list its own."""
    if isinstance(value, list):
        if not value:
            raise ConfigError("the list is empty")
        return _numbers(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{_shown(value)} is neither a number of shards nor a list of shards' numbers")
    return tuple(range(1, _number(value) + 1))


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{_shown(value)} is not true or false")
    return value


def _one_of(words: Iterable[str]) -> Callable[[Any], str]:
    known = tuple(words)

    def check(value: Any) -> str:
        if value not in known:
            raise ConfigError(f"{_shown(value)} is not one of {', '.join(known)}")
        return str(value)

    return check


def _arguments(value: Any) -> Arguments:
    """Return a queue's arguments."""
    if not isinstance(value, dict):
        raise ConfigError(f"{_shown(value)} is not a table of arguments")
    for name, each in value.items():
        if not name or len(name.encode()) > MAX_NAME:
            raise ConfigError(f"{_shown(name)} is not the name of an argument")
        if name == "x-queue-type":
            raise ConfigError("x-queue-type: use the key queue_type instead")
        if not isinstance(each, str | bool | int | float):
            raise ConfigError(f"{name}: {_shown(each)} is not a text, a number, true or false")
        if isinstance(each, int) and not -(2**63) <= each < 2**63:
            raise ConfigError(f"{name}: {_shown(each)} does not fit into 64 bits")
        if isinstance(each, float) and not math.isfinite(each):
            raise ConfigError(f"{name}: {_shown(each)} is not a finite number")
        if name == "x-single-active-consumer":
            _bool_argument(name, each)
    return dict(value)


def _bool_argument(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"{name}: {_shown(value)} is not true or false")


_CHECKS: Mapping[str, Callable[[Any], Any]] = {
    "name": _name,
    "vhost": _vhost,
    "type": _one_of((CONSISTENT_HASH, MODULUS_HASH)),
    "shards": _shards,
    "shards_per_node": _number,
    "retiring": _numbers,
    "lanes": _bool,
    "queue_type": _one_of(get_args(QueueType)),
    "arguments": _arguments,
    "hash_header": _text,
    "hash_property": _one_of(sorted(HASHED_PROPERTIES)),
    "alternate_exchange": _text,
}
"""The keys of `[[exchange]]` but `shard`, and the function that checks and returns the value of each."""

_SHARD_CHECKS: Mapping[str, Callable[[Any], Any]] = {
    "queue": _name,
    "lane": lambda value: False if value is False else _name(value),
    "weight": _weight,
    "queue_type": _one_of(get_args(QueueType)),
    "arguments": _arguments,
}
"""The keys of `[[exchange.shard]]` but `number`, and the function that checks and returns the value of each."""


def _shown(value: Any) -> str:
    """Return a value as a message shows it: at most 60 characters, as TOML writes true and false."""
    try:
        text = str(value).lower() if isinstance(value, bool) else repr(value)
    except ValueError:  # Python writes no number of more than 4,300 digits, and TOML has such in hexadecimal.
        return "a value with thousands of digits"
    return text if len(text) <= 60 else f"{text[:57]}..."
