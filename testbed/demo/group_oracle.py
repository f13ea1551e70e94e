"""The judge of what the demo's consumers received: who had which shards, and whether each key came in order."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Received:
    """A message as a consumer got it."""

    at: float
    """When, in monotonic seconds."""
    number: int
    key: str
    consumer: str
    redelivered: bool = False


@dataclass(frozen=True)
class Verdict:
    """The judgement on what the consumers received: what was wrong, in words, and how many messages came again."""

    faults: list[str]
    judged: int
    again: int


def owners(received: Iterable[Received], shards: Mapping[str, str], begin: float, end: float) -> dict[str, str]:
    """Return who got the last message of each shard from `begin` to `end`; `shards` has the shard of each key."""
    last: dict[str, str] = {}
    for message in sorted(received):
        if begin <= message.at < end:
            last[shards[message.key]] = message.consumer
    return last


def is_balanced(had: Mapping[str, str], shards: int, consumers: Sequence[str]) -> bool:
    """Return whether so many shards are shared by these consumers alone, with counts that differ by one at most."""
    counts = Counter(had.values())
    each = [counts[consumer] for consumer in consumers]
    return len(had) == sum(each) == shards and max(each) - min(each) <= 1


def judge_order(confirmed: Iterable[int], received: Iterable[Received]) -> Verdict:
    """Judge what came of the confirmed messages, whose numbers rise in the order in which each key was published.

    The first delivery of each message must come behind that of every earlier message of its key; a message that comes
    again must be marked as redelivered.
    """
    faults: list[str] = []
    seen: set[int] = set()
    newest: dict[str, int] = {}
    again = 0
    for message in sorted(received):
        what = f"message {message.number}, key {message.key}, for {message.consumer}"
        if message.number in seen:
            again += 1
            if not message.redelivered:
                faults.append(f"{what}: came again, and is not marked as redelivered")
            continue
        seen.add(message.number)
        if message.number < newest.get(message.key, -1):
            faults.append(f"{what}: came for the first time behind message {newest[message.key]}")
        newest[message.key] = max(message.number, newest.get(message.key, -1))
    wanted = set(confirmed)
    faults += [f"message {number} was confirmed, and nobody got it" for number in sorted(wanted - seen)]
    return Verdict(faults, len(wanted), again)
