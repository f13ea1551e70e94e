"""Read a topology file: TOML that says which exchanges there are and which shards each has. Pure but for the reading.

Every mistake is one line that names the place in the file, the key and the value.
"""

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from proxy.settings.contents import bounded
from proxy.settings.parse import ConfigError, did_you_mean
from proxy.shards.checks import EXCHANGE_KEYS, SHARD_KEYS, check_name, check_number, shown
from proxy.shards.shard import OwnTerms, Shard, Sharded
from proxy.topology.bindings import CONSISTENT_HASH, GROUP_SUFFIX, MODULUS_HASH, MOST_BALANCED, ORDERS_SUFFIX


class DocumentError(Exception):
    """A topology file has mistakes; `lines` has one line for each."""

    def __init__(self, lines: Sequence[str]) -> None:
        """Take the lines, at least one."""
        super().__init__("\n".join(lines))
        self.lines = tuple(lines)


def load(file: Path) -> tuple[Sharded, ...]:
    """Return the exchanges of a topology file. Raises DocumentError with every mistake that was found."""
    try:
        table = tomllib.loads(bounded(file).decode())
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
            mistakes.add(f"[[exchange]] {position}", "", f"{shown(item)} is not a table")
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
            for queue in shard.queues:
                if other := queues.get((each.vhost, queue)):
                    lines.append(f"{place}: queue: {queue!r} is the queue of {other} too")
                queues[each.vhost, queue] = place
            for what, name in (("lane", shard.lane), ("fan", shard.fan)):
                if name is None:
                    continue
                if other := exchanges.get((each.vhost, name)):
                    lines.append(f"{place}: {what}: {name!r} is the name of {other} too")
                exchanges[each.vhost, name] = f"the {what} of {place}"
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
        place += f", {shown(item['name'])}"
    _unknown(item, (*EXCHANGE_KEYS, "shard"), place, mistakes)
    values = {
        key: mistakes.checked(place, key, check, item[key])
        for key, check in EXCHANGE_KEYS.items()
        if item.get(key) is not None
    }
    own = _own(item.get("shard", []), place, mistakes)
    for why in _mistakes_of_one_exchange(values, item, own):
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
        groups=values.get("groups", ()),
        queue_type=values.get("queue_type", "quorum"),
        queue_arguments=values.get("arguments", {}),
        own=own,
    )
    for group in made.groups:
        balancing = f"{made.name}{GROUP_SUFFIX}.{group}{ORDERS_SUFFIX}"
        if len(balancing) > MOST_BALANCED:
            more = f"exchange {shown(balancing)} would have {len(balancing)} characters, {MOST_BALANCED} are the most"
            mistakes.add(place, "groups", f"{shown(group)} cannot be balanced: its {more}; shorten a name")
            return None
    for shard in _known_shards(made):
        if shard.lane is None and made.groups:
            mistakes.add(place, "groups", f"shard {shard.number} has no lane, and only a lane leads to several groups")
            return None
        names = (("lane", shard.lane), ("groups", shard.fan), *(("queue", queue) for queue in shard.queues))
        for key, name in names:
            # One is enough: thousands of names are made of the same exchange's name.
            if name is not None and mistakes.checked(f"{place}, shard {shard.number}", key, check_name, name) is None:
                return None
    return made


def _known_shards(exchange: Sharded) -> tuple[Shard, ...]:
    """Return the shards that a file alone tells; for `shards_per_node` those on one node, and those that it names."""
    shards = exchange.shards((), 1)
    numbers = {shard.number for shard in shards}
    return (*shards, *(exchange.shard(number) for number in exchange.own if number not in numbers))


def _mistakes_of_one_exchange(
    checked: Mapping[str, Any], written: Mapping[str, Any], own: Mapping[int, OwnTerms]
) -> Iterable[tuple[str, str]]:
    """Yield (key, why) for the keys of one exchange that are missing, contradict each other or have no effect.

    `written` is the exchange's table as it is in the file; `checked` has the values of its known keys that are right
    on their own; `own` has what each `[[exchange.shard]]` of it says, by number.
    """
    if "name" not in written:
        yield "name", "missing"
    if "hash_header" in written and "hash_property" in written:
        yield "hash_property", "hash_header is given too; an exchange hashes one of them"
    yield from _miscounted(checked, written, own)
    if checked.get("type") == MODULUS_HASH:
        yield from _without_effect(written)


def _miscounted(
    checked: Mapping[str, Any], written: Mapping[str, Any], own: Mapping[int, OwnTerms]
) -> Iterable[tuple[str, str]]:
    """Yield (key, why) for what one exchange says wrongly of how many shards it has, and which."""
    if "shards" in written and "shards_per_node" in written:
        yield "shards", "shards_per_node is given too; an exchange has one of them"
    elif "shards" not in written and "shards_per_node" not in written:
        yield "shards", "missing"
    if checked.get("shards") is None:
        return
    wanted, retiring = set(checked["shards"]), set(checked.get("retiring") or ())
    for number in own.keys() - wanted - retiring:
        yield f"shard {number}", "its number is neither in shards nor in retiring"
    if wanted <= retiring:
        yield "retiring", "every shard is retiring, so that the exchange would have none"


def _without_effect(item: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Yield (key, why) for the keys of an exchange of type x-modulus-hash that it would ignore."""
    for key in ("hash_header", "hash_property"):
        if key in item:
            yield key, f"{MODULUS_HASH} hashes the routing key only"


def _own(items: Any, place: str, mistakes: _Mistakes) -> Mapping[int, OwnTerms]:
    """Return what the `[[exchange.shard]]` of one exchange say, by number."""
    if not isinstance(items, list):
        mistakes.add(place, "shard", f"{shown(items)} is not a list of tables, each written [[exchange.shard]]")
        return {}
    found: dict[int, OwnTerms] = {}
    for position, item in enumerate(items, 1):
        at = f"{place}, [[exchange.shard]] {position}"
        if not isinstance(item, dict):
            mistakes.add(at, "", f"{shown(item)} is not a table")
            continue
        _unknown(item, ("number", *SHARD_KEYS), at, mistakes)
        values = {k: mistakes.checked(at, k, check, item[k]) for k, check in SHARD_KEYS.items() if k in item}
        number = mistakes.checked(at, "number", check_number, item["number"]) if "number" in item else None
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
            mistakes.add(place, "", f"unknown key {shown(key)}{did_you_mean(key, known)}")
