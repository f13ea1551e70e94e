"""Say in one line how a group has changed: who joined, who left, and which member got which shards."""

from collections.abc import Iterable
from typing import Final

from proxy.groups.decide import Decision
from proxy.topology.names import natural

SHOWN: Final = 10
"""The most names that a list in the line has, since a group may have thousands of shards."""


def news(before: Decision, after: Decision) -> str:
    """Return how the group has changed from one decision to another, in words; empty if it has not."""
    was, now = _names(before), _names(after)
    if was == now and before.owners == after.owners:
        return ""
    got: dict[str, list[str]] = {}
    for shard in before.owners.keys() | after.owners.keys():
        owner = after.owners.get(shard)
        if owner != before.owners.get(shard):
            got.setdefault(now.get(owner, "a member that has left") if owner else "nobody", []).append(shard)
    parts = [
        *_list("joined: ", (name for member, name in now.items() if member not in was)),
        *_list("left: ", (name for member, name in was.items() if member not in now)),
        *some([part for name in sorted(got, key=natural) for part in _list(f"{name} has ", got[name])]),
    ]
    return "; ".join(parts)


def _names(decision: Decision) -> dict[str, str]:
    """Return the name that each member shows which has not left, by its id."""
    return {each.id: each.client or each.id for each in decision.members.values() if not each.is_leaving}


def _list(title: str, names: Iterable[str]) -> list[str]:
    """Return the title with the first of the names; nothing if there are none."""
    found = sorted(names, key=natural)
    return [title + ", ".join(some(found))] if found else []


def some(texts: list[str]) -> list[str]:
    """Return the first of the texts, and as the last one how many more there are."""
    more = [f"and {len(texts) - SHOWN} more"] if len(texts) > SHOWN else []
    return texts[:SHOWN] + more
