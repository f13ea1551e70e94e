"""The check whether shards can move between members without messages of a key changing their order.

The answer depends on the version of RabbitMQ, and on the type, arguments and consumers of the shards. The management
API shows all of them.
"""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from proxy.topology.bindings import TopologyError
from proxy.topology.management import Management
from proxy.topology.names import natural

DISCONNECTED_FROM: Final = (4, 3)
"""The first version in which a quorum queue waits for a consumer whose node is lost, for 60 s by default."""

AT_ONCE: Final = 4
"""The most shards that are read at the same time."""

_NAMED: Final = 3
"""The most shards that one reason names; it tells how many more there are."""

_OVERVIEW: Final = ("overview",)

_COLUMNS: Final = (
    *("type", "arguments", "effective_policy_definition", "messages_ready", "messages_unacknowledged"),
    *("consumer_details", "messages_by_priority", "messages_ready_high", "messages_ready_normal"),
)

DELAYED_FROM: Final = (4, 3)
"""The first version in which a quorum queue can delay what comes back; 3.10.8 takes the arguments and ignores them."""

_DELAYED: Final = ("all", "failed", "returned")
"""The values of x-delayed-retry-type with which a quorum queue of RabbitMQ 4.3 delays messages that come back."""

_DELAYS: Final = "a message that comes back is delayed (x-delayed-retry-type), so later ones of its key overtake it"
_PRIORITIES: Final = "messages of several priorities wait, and higher ones overtake lower ones of the same key"


class Shard(NamedTuple):
    """One shard (a queue of the ring) as the management API showed it at one time."""

    type: str
    is_single: bool
    """Whether the queue has a single active consumer."""
    loses: bool
    """Whether the queue deletes a message that was returned too often, as it has no dead-letter exchange."""
    ready: int
    unacked: int
    direct: int
    """The number of the queue's consumers without x-priority, which do not consume through a group."""
    waits_by_default: bool
    """Whether the queue waits for a consumer whose node is lost, for 60 s, as nothing sets another time."""
    read_at: float
    """When the request to the management API began, in monotonic seconds."""
    delays: bool = False
    """Whether the queue delivers a message that comes back only after a delay, and later ones meanwhile."""
    has_priorities: bool = False
    """Whether messages of several priorities are ready, of which the queue delivers the higher ones first."""


@dataclass(frozen=True)
class Exactness:
    """The shards of one group as last read, and the judgement whether the group can be balanced in order."""

    reasons: tuple[str, ...] = ()
    """Why the group cannot be balanced in order, one text for each cause; empty if it can."""
    warnings: tuple[str, ...] = ()
    """What may delete messages of the group, or hold them up for a minute, one text for each cause."""
    shards: Mapping[str, Shard] = field(default_factory=dict)

    @property
    def read_at(self) -> float:
        """When the oldest reading of a shard began, in monotonic seconds; minus infinity if no shard was read."""
        return min((shard.read_at for shard in self.shards.values()), default=float("-inf"))


async def read(api: Management, vhost: str, shards: Sequence[str], known: Mapping[str, Shard]) -> Exactness:
    """Read `shards` from the management API, and return the judgement of them together with those in `known`.

    Raises ManagementError or TopologyError.
    """
    version = parse_version(await api.page(_OVERVIEW, ["rabbitmq_version"]))
    read_now = set(shards)
    found = {shard: of_it for shard, of_it in known.items() if shard not in read_now}
    for start in range(0, len(shards), AT_ONCE):
        batch, began = shards[start : start + AT_ONCE], time.monotonic()
        answers = await asyncio.gather(
            *(api.page(["queues", vhost, shard], _COLUMNS) for shard in batch), return_exceptions=True
        )
        for shard, answer in zip(batch, answers, strict=True):
            if isinstance(answer, BaseException):
                raise answer
            if answer is not None:
                found[shard] = parse_shard(shard, answer, version, began)
    return judge(found)


def judge(shards: Mapping[str, Shard]) -> Exactness:
    """Return whether a group of these shards can be balanced in order, and why not."""
    unfenced: dict[str, str] = {}
    direct: list[str] = []
    for name, shard in shards.items():
        if shard.type not in ("quorum", "classic"):
            unfenced[name] = f"a {shard.type} queue, and only quorum and classic queues have one consumer at a time"
        elif not shard.is_single:
            unfenced[name] = "a queue without x-single-active-consumer, so several members get its messages at once"
        if shard.direct:
            direct.append(f"shard {name!r} has {shard.direct} consumers that are not of the group")
    reasons = [f"{_which(unfenced, why)} {why}" for why in sorted(Counter(unfenced.values()))]
    reasons += _reordered(shards)
    losing = [name for name, shard in shards.items() if shard.loses]
    warnings = []
    if losing:
        warnings.append(
            f"a delivery limit and no dead-letter exchange: {_named(losing)}; the broker deletes a message that"
            " consumers have returned, or left behind, too often"
        )
    if keeping := [name for name, shard in shards.items() if shard.waits_by_default]:
        warnings.append(
            f"no x-consumer-disconnected-timeout: {_named(keeping)}; if a node of RabbitMQ is lost, the shards of"
            " members that were connected to it wait for 60 s"
        )
    if len(direct) > _NAMED:
        direct = [*direct[:_NAMED], f"{len(direct) - _NAMED} more shards have consumers that are not of the group"]
    return Exactness((*reasons, *direct), tuple(warnings), shards)


def _reordered(shards: Mapping[str, Shard]) -> list[str]:
    """Return why the broker by itself delivers messages of these shards out of order; empty if it does not."""
    found = {
        _DELAYS: [name for name, shard in shards.items() if shard.delays],
        _PRIORITIES: [name for name, shard in shards.items() if shard.has_priorities],
    }
    return [f"{_named(names)}: {why}" for why, names in found.items() if names]


def mixed(prefetches: Collection[int]) -> tuple[str, ...]:
    """Return why a group whose members have these prefetches is not exact; empty if it is. Those of 0 do not count.

    A quorum queue puts what comes back behind what came back before. If a member ends and the next one has a smaller
    prefetch, it takes a part of what came back. Should it end as well, that part comes behind the rest.
    """
    counted = sorted({prefetch for prefetch in prefetches if prefetch})
    if len(counted) < 2:
        return ()
    told = ", ".join(map(str, counted[:_NAMED])) + (f" to {counted[-1]}" if len(counted) > _NAMED else "")
    return (
        f"members have different prefetches ({told}), so if two members end one after the other, a key's messages that"
        " come back may be out of order",
    )


def _which(unfenced: Mapping[str, str], why: str) -> str:
    names = [name for name, reason in unfenced.items() if reason == why]
    return f"{_named(names)} {'is' if len(names) == 1 else 'are each'}"


def _named(names: Sequence[str]) -> str:
    told = ", ".join(repr(name) for name in sorted(names, key=natural)[:_NAMED])
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"shard{'s' if len(names) > 1 else ''} {told}{more}"


def parse_version(answer: object) -> tuple[int, int]:
    """Return the major and minor version of RabbitMQ in an answer to `GET /api/overview`. Raises TopologyError."""
    found = answer.get("rabbitmq_version") if isinstance(answer, dict) else None
    matched = re.match(r"(\d{1,4})\.(\d{1,4})(?!\d)", found, re.ASCII) if isinstance(found, str) else None
    if matched is None:
        raise TopologyError(f"rabbitmq_version: {repr(found)[:60]} is no version")
    return int(matched[1]), int(matched[2])


def parse_shard(name: str, answer: object, version: tuple[int, int], read_at: float) -> Shard:
    """Return the shard that an answer to `GET /api/queues/...` describes. Raises TopologyError."""
    if not isinstance(answer, dict):
        raise TopologyError(f"queue {name!r}: {repr(answer)[:60]} is no object")
    arguments = _table(name, answer, "arguments")
    policy = _table(name, answer, "effective_policy_definition")
    kind = answer.get("type", "classic")
    if not isinstance(kind, str):
        raise TopologyError(f"queue {name!r}: type: {repr(kind)[:60]} is no text")
    dead_letters = "x-dead-letter-exchange" in arguments or "dead-letter-exchange" in policy
    waits = kind == "quorum" and version >= DISCONNECTED_FROM
    limits = (arguments.get("x-consumer-disconnected-timeout"), policy.get("consumer-disconnected-timeout"))
    return Shard(
        kind,
        arguments.get("x-single-active-consumer") is True or policy.get("single-active-consumer") is True,
        kind == "quorum" and not dead_letters and _has_limit(arguments, policy, version),
        _count(name, answer, "messages_ready"),
        _count(name, answer, "messages_unacknowledged"),
        _direct(name, answer.get("consumer_details", [])),
        waits and limits == (None, None),
        read_at,
        kind == "quorum" and version >= DELAYED_FROM and _delays(arguments, policy),
        kind == "quorum" and _has_priorities(name, answer),
    )


def _has_limit(arguments: Mapping[str, Any], policy: Mapping[str, Any], version: tuple[int, int]) -> bool:
    """Return whether a quorum queue has a delivery limit; from RabbitMQ 4.0 on it has one by default."""
    limits = [each for each in (arguments.get("x-delivery-limit"), policy.get("delivery-limit")) if each is not None]
    return limits != [-1] * len(limits) if limits else version >= (4, 0)


def _delays(arguments: Mapping[str, Any], policy: Mapping[str, Any]) -> bool:
    """Return whether a quorum queue delays what comes back; a policy wins over an argument (seen on 4.3.6).

    A queue without a shortest delay delays nothing.
    """
    kind, shortest = (
        policy.get(f"delayed-retry-{what}", arguments.get(f"x-delayed-retry-{what}")) for what in ("type", "min")
    )
    return kind in _DELAYED and shortest is not None


def _has_priorities(name: str, answer: Mapping[str, Any]) -> bool:
    """Return whether messages of several priorities are ready: of 32 on RabbitMQ 4.3, of two from 4.0 on."""
    counts = _table(name, answer, "messages_by_priority")
    of_two = ("messages_ready_high", "messages_ready_normal")
    ready = [_count(name, counts, each) for each in counts] or [_count(name, answer, each) for each in of_two]
    return sum(each > 0 for each in ready) > 1


def _table(name: str, answer: Mapping[str, Any], field_name: str) -> Mapping[str, Any]:
    # RabbitMQ's JSON has an empty list for an empty table.
    table = answer.get(field_name) or {}
    if not isinstance(table, dict):
        raise TopologyError(f"queue {name!r}: {field_name}: {repr(table)[:60]} is no object")
    return table


def _count(name: str, answer: Mapping[str, Any], field_name: str) -> int:
    # A queue whose statistics do not show yet, or that is down, has no count.
    count = answer.get(field_name, 0)
    if type(count) is not int or count < 0:
        raise TopologyError(f"queue {name!r}: {field_name}: {repr(count)[:60]} is no count")
    return count


def _direct(name: str, details: object) -> int:
    """Return how many of a queue's consumers have no x-priority. Every consumer of a group has one."""
    if not isinstance(details, list):
        raise TopologyError(f"queue {name!r}: consumer_details: {repr(details)[:60]} is no list")
    return sum(not _is_link(each) for each in details)


def _is_link(consumer: object) -> bool:
    arguments = consumer.get("arguments") if isinstance(consumer, dict) else None
    return isinstance(arguments, dict) and type(arguments.get("x-priority")) is int


def unreadable(error: Exception) -> Exactness:
    """Return the judgement of a group whose shards cannot be read: it may not be balanced, since nothing is known."""
    return Exactness((f"the management API does not tell what the shards are: {error}",))
