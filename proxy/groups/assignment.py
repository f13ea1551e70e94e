"""The assignment of a group's shards to its members: balanced, the same in every sidecar, and sticky."""

from collections.abc import Iterable, Mapping


def assign(
    members: Iterable[str], shards: Iterable[str], owners: Mapping[str, str], since: Mapping[str, float]
) -> dict[str, str]:
    """Return the target of each shard, the member that should consume it; nothing where there are no members.

    `owners` has the member that owns each shard now, as far as anybody does, and `since` a number that is the higher
    the later the owner has got it. Each member gets the mean number of shards, rounded down or up. Members keep what
    they own up to that number, and first what they have owned for longest, so no more shards move than must: those that
    own the most round up. The order of the arguments does not matter, so all sidecars compute the same.
    """
    kept: dict[str, list[str]] = {member: [] for member in sorted(set(members))}
    if not kept:
        return {}
    free: list[str] = []
    every = sorted(set(shards), key=lambda shard: (since.get(shard, 0), shard))
    for shard in every:
        owner = owners.get(shard)
        kept[owner].append(shard) if owner in kept else free.append(shard)
    share, larger = divmod(len(every), len(kept))
    by_most = sorted(kept, key=lambda member: (-len(kept[member]), member))
    quotas = {member: share + (number < larger) for number, member in enumerate(by_most)}
    targets: dict[str, str] = {}
    for member, its in kept.items():
        targets |= dict.fromkeys(its[: quotas[member]], member)
        free += its[quotas[member] :]
    rest = iter(sorted(free))
    for member, its in kept.items():
        for _ in range(quotas[member] - len(its)):
            targets[next(rest)] = member
    return targets
