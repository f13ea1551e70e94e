"""The groups of one exchange: each has its own shards and members, and is judged for itself.

RabbitMQ confirms a publish once the queue of each group has it, so a confirmed message must come to a member of each
group. Order, balance and the number of consumers are judged among the members of one group.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from tests.chaos.groups.history import History
from tests.chaos.groups.judge import Limits, Verdict, judge

FURTHER = ("audit",)
"""The groups that an exchange may have beside its own, as in `groups` of the topology file."""


class Named(NamedTuple):
    """One group of an exchange."""

    name: str
    """The name that its members consume, such as `orders/audit`."""
    shards: tuple[str, ...]
    """Its queues, those of the shards 1, 2 and so on."""

    def shard_of(self, place: Callable[[str], int]) -> Callable[[str], str]:
        """Return the function that names the queue of a routing key; `place` returns the index of its shard."""
        return lambda key: self.shards[place(key)]


def named(exchange: str, count: int, shards: int) -> tuple[Named, ...]:
    """Return the first `count` groups of an exchange, its own first."""
    numbers = range(1, shards + 1)
    own = Named(exchange, tuple(f"{exchange}.{number}" for number in numbers))
    further = (
        Named(f"{exchange}/{group}", tuple(f"{exchange}.{group}.{number}" for number in numbers))
        for group in FURTHER[: count - 1]
    )
    return (own, *further)


def part_of(history: History, group: str) -> History:
    """Return what a history has of the members of one group, and all that was published and done to them."""
    groups = history.groups
    return replace(
        history,
        deliveries=[each for each in history.deliveries if groups[each.holder.member] == group],
        settlements=[each for each in history.settlements if groups[each.holder.member] == group],
        lives=[each for each in history.lives if groups[each.holder.member] == group],
        begins=[each for each in history.begins if groups[each.holder.member] == group],
        calms=[each for each in history.calms if each.group == group],
        dead_letters=[each for each in history.dead_letters if each.group == group],
    )


def judge_each(history: History, limits: Mapping[str, Limits]) -> dict[str, Verdict]:
    """Judge each group of a run by its limits; the faults are told with the name of their group."""
    verdicts = {group: judge(part_of(history, group), its) for group, its in limits.items()}
    for group, verdict in verdicts.items():
        verdict.faults = [f"{group}: {fault}" for fault in verdict.faults]
    return verdicts
