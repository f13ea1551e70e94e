"""Patterns of RabbitMQ's permissions, as people grant them: regular expressions that match names whole. Pure."""

import re
from collections.abc import Iterable

_LANE = ".lane."
"""The part of a lane's name between the exchange's name and the rest, as `ring-proxy topology` names lanes."""


def pattern(parts: Iterable[str]) -> str:
    """Return a regular expression for RabbitMQ's permissions that matches what one of these expressions matches."""
    different = dict.fromkeys(parts)
    return f"^({'|'.join(different)})$" if len(different) > 1 else f"^{''.join(different)}$"


def escaped(text: str) -> str:
    """Return a regular expression for this text, for Erlang's re, which has no escape for other characters."""
    return re.sub(r"([.^$*+?()\[\]{}|\\])", r"\\\1", text)


def to_lanes(exchange: str) -> str:
    """Return the pattern of write for the lanes of an exchange and the exchange itself, by the name of one lane.

    A publisher who lacks the right on one lane mostly lacks it on all. The result is empty for a name that is not a
    lane's.
    """
    ring, lane, _ = exchange.rpartition(_LANE)
    return f"^{escaped(ring)}(\\.lane\\..*)?$" if lane and ring else ""


def to_shards(exchange: str, shards: Iterable[str] = ()) -> str:
    """Return a pattern of read for the name of a group and its shards; most often the name is a hash exchange's.

    A shard whose name is the group's, a dot and a number stands for all such names, with a dot for the slash in the
    name of the group. `shards` are the known shards;
    without any, all are taken to have such names.
    """
    name = escaped(exchange)
    stem = escaped(".".join(exchange.rsplit("/", 1)))
    parts = dict.fromkeys(_numbered(shard, (name, stem)) for shard in shards)
    if not parts or list(parts) == [f"{name}\\.[0-9]+"]:
        return f"^{name}(\\.[0-9]+)?$"
    return pattern([name, *parts])


def _numbered(shard: str, stems: Iterable[str]) -> str:
    """Return the pattern of a shard's name, with any number for its own if one of the stems is before it."""
    before, _, number = shard.rpartition(".")
    return f"{escaped(before)}\\.[0-9]+" if escaped(before) in stems and number.isdecimal() else escaped(shard)


def to_group(exchange: str) -> str:
    """Return the pattern of all three rights that a sidecar's own user needs to balance the group of an exchange."""
    return f"{escaped(exchange)}\\.group(\\..*)?"
