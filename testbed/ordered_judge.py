"""The judge of an ordered load: which messages were overtaken, which are lost, and how long a change of shards took."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

Key = tuple[int, int]
"""The number of a publisher, and that of one of its keys."""


class Published(NamedTuple):
    """A confirmed message; the times are monotonic seconds."""

    number: int
    """The messages of a key are numbered from 1 on, in the order of their publishes."""
    at: float
    confirmed: float


class Taken(NamedTuple):
    """A delivery, as a member of a group begins to work on it, in monotonic seconds."""

    number: int
    at: float


def overtaken(taken: Iterable[Taken]) -> list[tuple[int, int]]:
    """Return the first deliveries of one key that came before an earlier one, each with that earlier one's number."""
    first = list(dict.fromkeys(each.number for each in taken))
    return [(before, number) for before, number in itertools.pairwise(first) if number < before]


def lost(published: Iterable[Published], taken: Iterable[Taken]) -> int:
    """Return how many confirmed messages of one key no member has got."""
    return len({each.number for each in published} - {each.number for each in taken})


class Change(NamedTuple):
    """When a change of shards began, and when all sidecars routed by the new ring; in monotonic seconds."""

    begun: float
    switched: float


class Figures(NamedTuple):
    """The figures of one change, as one group of consumers has seen it."""

    keys: int
    out_of_order: int
    """The keys of which at least one message was overtaken."""
    lost: int
    slowest: float
    """The longest time from a publish to its confirm, of the publishes from the begin to the end of the change."""
    ended: float
    """The seconds until all keys were consumed by the new ring, and nothing of the old ring was left to consume."""


def figures(
    published: Mapping[Key, Sequence[Published]], taken: Mapping[Key, Sequence[Taken]], change: Change
) -> Figures:
    """Return the figures of a change. A message that was published before the switch counts as one of the old ring."""
    ends = [_end(numbers, taken.get(key, ()), change.switched) for key, numbers in published.items()]
    end = max(ends, default=change.begun)
    during = (each for numbers in published.values() for each in numbers if change.begun <= each.at <= end)
    return Figures(
        keys=len(published),
        out_of_order=sum(bool(overtaken(each)) for each in taken.values()),
        lost=sum(lost(numbers, taken.get(key, ())) for key, numbers in published.items()),
        slowest=max((each.confirmed - each.at for each in during), default=0.0),
        ended=end - change.begun,
    )


def _end(published: Iterable[Published], taken: Iterable[Taken], switched: float) -> float:
    """Return when a key's last message of the old ring was taken, or its first of the new ring if that was later."""
    first: dict[int, float] = {}
    for each in taken:
        first.setdefault(each.number, each.at)
    got = [each for each in published if each.number in first]
    old = max((first[each.number] for each in got if each.at < switched), default=switched)
    new = min((first[each.number] for each in got if each.at >= switched), default=switched)
    return max(old, new)
