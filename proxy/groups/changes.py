"""Say in one line how a group has changed: who joined, who left, and which member got which shards."""

from collections.abc import Iterable, Mapping
from typing import Final

from proxy.topology.names import natural

SHOWN: Final = 10
"""The most names that a list in the line has, since a group may have thousands of shards."""


class Changes:
    """The members of a group and the holders of its shards, as they were when they were last told."""

    def __init__(self) -> None:
        """Begin with a group that has no members."""
        self._members: Mapping[str, str] = {}
        self._holders: Mapping[str, str] = {}

    def news(self, members: Mapping[str, str], holders: Mapping[str, str]) -> str:
        """Return how the group has changed since the last call, in words; empty if it has not.

        `members` has the name that each member shows, by its id, and `holders` the id of each shard's member.
        """
        before, self._members = self._members, members
        held, self._holders = self._holders, holders
        if before == members and held == holders:
            return ""
        got: dict[str, list[str]] = {}
        for shard in held.keys() | holders.keys():
            if held.get(shard) != (now := holders.get(shard)):
                got.setdefault(members.get(now, "a member that has left") if now else "nobody", []).append(shard)
        parts = [
            *_list("joined: ", (name for member, name in members.items() if member not in before)),
            *_list("left: ", (name for member, name in before.items() if member not in members)),
            *some([part for name in sorted(got, key=natural) for part in _list(f"{name} has ", got[name])]),
        ]
        return "; ".join(parts)


def _list(title: str, names: Iterable[str]) -> list[str]:
    """Return the title with the first of the names; nothing if there are none."""
    found = sorted(names, key=natural)
    return [title + ", ".join(some(found))] if found else []


def some(texts: list[str]) -> list[str]:
    """Return the first of the texts, and as the last one how many more there are."""
    more = [f"and {len(texts) - SHOWN} more"] if len(texts) > SHOWN else []
    return texts[:SHOWN] + more
