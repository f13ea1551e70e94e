"""The assignment of a group's shards to its members: balanced, the same in every sidecar, and sticky."""

from collections.abc import Iterable, Mapping


def assign(
    members: Iterable[str], shards: Iterable[str], holders: Mapping[str, str], epochs: Mapping[str, int]
) -> dict[str, str]:
    """Return the member that each shard should belong to; nothing where there are no members.

    `holders` has the member that holds each shard now, as far as anybody does, and `epochs` a number that is the higher
    the later the holder has got it. Each member gets the mean number of shards, rounded down or up. Members keep what
    they hold up to that number, and first what they have held for longest, so no more shards move than must: those that
    hold the most round up. The order of the arguments does not matter, so all sidecars compute the same.
    """
    held: dict[str, list[str]] = {member: [] for member in sorted(set(members))}
    if not held:
        return {}
    free: list[str] = []
    every = sorted(set(shards), key=lambda shard: (epochs.get(shard, 0), shard))
    for shard in every:
        holder = holders.get(shard)
        held[holder].append(shard) if holder in held else free.append(shard)
    share, larger = divmod(len(every), len(held))
    by_most = sorted(held, key=lambda member: (-len(held[member]), member))
    quotas = {member: share + (number < larger) for number, member in enumerate(by_most)}
    assigned: dict[str, str] = {}
    for member, its in held.items():
        assigned |= dict.fromkeys(its[: quotas[member]], member)
        free += its[quotas[member] :]
    rest = iter(sorted(free))
    for member, its in held.items():
        for _ in range(quotas[member] - len(its)):
            assigned[next(rest)] = member
    return assigned
