"""The readings of a group's shards from the management API, for reports, alerts, warnings and starved links.

They tell whether shards can move between members without messages of a key changing their order. The answer depends on
the version of RabbitMQ, and on the type, arguments and consumers of the shards. They also tell which shards have
messages that no member gets.
"""

import asyncio
import logging
import re
import time
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta, Struct

from proxy.groups.group import Group
from proxy.groups.lag import Lag, lag_of
from proxy.topology.bindings import TopologyError
from proxy.topology.management import Management, ManagementError
from proxy.topology.marker import is_drainer, is_link
from proxy.topology.names import natural, some
from proxy.topology.table import Entry

log = logging.getLogger(__name__)

READ_EVERY: Final = 15.0
"""Seconds between two readings of a group's shards by the first of its sidecars."""

READ_SELDOM: Final = 60.0
"""Seconds between two such readings by each other sidecar."""

READ_A_SECOND: Final = 40
"""The shards that all sidecars of a large group together read each second, in each of these two ways. One shard takes
RabbitMQ 4.3.6 about 1.1 ms of CPU time (measured)."""

LONGEST_SELDOM: Final = 600.0
"""The most seconds between two readings of all shards by one sidecar, however large the group is."""

STATISTICS: Final = 5.0
"""Seconds by which the figures of the management API may be old."""

FRESH: Final = 5.0
"""The age, in seconds, from which on the figures of a small group's shards are read anew for who asks."""

OUTDATED: Final = 60.0
"""Seconds after a reading should have followed from which on its figures are not told as the lag any more."""

PRIORITIES_FOR: Final = 3600.0
"""Seconds after a reading with messages of several priorities for which a shard counts as one that gets such messages.

A reading shows what waits at one moment, and most often that is nothing: by single readings such a group would be
exact, and then not exact, every few seconds.
"""

AT_ONCE: Final = 4
"""The most shards that are read at the same time."""

_NAMED: Final = 3
"""The most shards that one reason names; it tells how many more there are."""

_DELAYED: Final = ("all", "failed", "returned")
"""The values of x-delayed-retry-type with which a quorum queue of RabbitMQ 4.3 delays messages that come back."""

_DELAYS: Final = "a message that comes back is delayed (x-delayed-retry-type), so later ones of its key overtake it"
_PRIORITIES: Final = (
    "messages of several priorities wait, or did so in the last hour, and higher ones overtake lower ones of the same"
    " key"
)

_Count = Annotated[int, Meta(ge=0)]
_Number = Annotated[float, Meta(ge=0)]

# RabbitMQ's JSON has an empty list for an empty table.
_Nothing = Annotated[list[Any], Meta(max_length=0)] | None


class _Rate(Struct, frozen=True):
    """Messages a second, by the broker's last two statistics."""

    rate: _Number = 0.0


class _Rates(Struct):
    """The rates of a queue; what has not happened to it yet has none."""

    publish_details: _Rate = _Rate()
    ack_details: _Rate = _Rate()
    deliver_no_ack_details: _Rate = _Rate()
    get_no_ack_details: _Rate = _Rate()


class _Queue(Struct):
    """The answer to `GET /api/queues/{vhost}/{name}`; a queue without statistics, or that is down, has no counts."""

    type: str = "classic"
    arguments: dict[str, Any] | _Nothing = None
    effective_policy_definition: dict[str, Any] | _Nothing = None
    messages_ready: _Count | None = None
    messages_unacknowledged: _Count | None = None
    message_stats: _Rates | _Nothing = None
    consumer_details: list[Any] = []
    messages_by_priority: dict[str, _Count] | _Nothing = None
    """Those that are ready, by each of the 32 priorities of RabbitMQ 4.3."""
    messages_ready_high: _Count = 0
    messages_ready_normal: _Count = 0
    """Those of the two priorities of RabbitMQ 4.0 to 4.2."""


class Reading(NamedTuple):
    """One shard as the management API showed it at one time."""

    type: str
    is_single: bool
    """Whether the queue has a single active consumer."""
    loses: bool
    """Whether the queue deletes a message that was returned too often, as it has no dead-letter exchange."""
    lag: Lag
    consumers: int
    links: int
    """The number of the queue's consumers that are members' links, also of members that are gone."""
    direct: int
    """The number of the queue's consumers that do not consume through a group, nor end its generation."""
    waits_by_default: bool
    """Whether the queue waits for a consumer whose node is lost, for 60 s, as nothing sets another time."""
    read_at: float
    """When the request to the management API began, in monotonic seconds."""
    delays: bool = False
    """Whether the queue delivers a message that comes back only after a delay, and later ones meanwhile."""
    priorities_at: float = float("-inf")
    """When a reading last showed messages of several priorities, of which the queue delivers the higher ones first."""

    @property
    def has_priorities(self) -> bool:
        """Whether the queue gets messages of several priorities, as far as is known."""
        return self.read_at - self.priorities_at <= PRIORITIES_FOR


@dataclass(frozen=True)
class Exactness:
    """The shards of one group as last read, and the judgement whether the group can be balanced in order."""

    reasons: tuple[str, ...] = ()
    """Why the group cannot be balanced in order, one text for each cause; empty if it can."""
    warnings: tuple[str, ...] = ()
    """Causes for which messages of the group may be deleted, or held up for a minute, one text for each."""
    shards: Mapping[str, Reading] = field(default_factory=dict)

    @property
    def read_at(self) -> float:
        """When the oldest reading of a shard began, in monotonic seconds; minus infinity if no shard was read."""
        return min((shard.read_at for shard in self.shards.values()), default=float("-inf"))


async def read(api: Management, vhost: str, shards: Sequence[str], known: Mapping[str, Reading]) -> Exactness:
    """Read `shards` from the management API, and return the judgement of them together with those in `known`.

    Raises ManagementError or TopologyError.
    """
    overview = await api.page(["overview"], ["rabbitmq_version", "rates_mode"])
    version, has_rates = parse_version(overview), parse_has_rates(overview)
    read_now = set(shards)
    found = {shard: of_it for shard, of_it in known.items() if shard not in read_now}
    for start in range(0, len(shards), AT_ONCE):
        batch, began = shards[start : start + AT_ONCE], time.monotonic()
        answers = await asyncio.gather(
            *(api.page(["queues", vhost, shard], _Queue.__struct_fields__) for shard in batch), return_exceptions=True
        )
        for shard, answer in zip(batch, answers, strict=True):
            if isinstance(answer, BaseException):
                raise answer
            if answer is not None:
                found[shard] = parse_shard(shard, answer, version, began, known.get(shard), has_rates=has_rates)
    return judge(found)


def judge(shards: Mapping[str, Reading]) -> Exactness:
    """Return whether a group of these shards can be balanced in order, and why not."""
    unfenced: dict[str, list[str]] = {}
    for name, shard in shards.items():
        if shard.type not in ("quorum", "classic"):
            why = f"a {shard.type} queue, and only quorum and classic queues have one consumer at a time"
        elif not shard.is_single:
            why = "a queue without x-single-active-consumer, so several members get its messages at once"
        else:
            continue
        unfenced.setdefault(why, []).append(name)
    reasons = [
        f"{_named(names)} {'is' if len(names) == 1 else 'are each'} {why}" for why, names in sorted(unfenced.items())
    ]
    delaying = [name for name, shard in shards.items() if shard.delays]
    several = [name for name, shard in shards.items() if shard.has_priorities]
    reasons += [f"{_named(names)}: {why}" for why, names in ((_DELAYS, delaying), (_PRIORITIES, several)) if names]
    direct = [name for name, shard in shards.items() if shard.direct]
    reasons += [
        f"shard {name!r} has {shards[name].direct} consumers that are not of the group" for name in direct[:_NAMED]
    ]
    if len(direct) > _NAMED:
        reasons.append(f"{len(direct) - _NAMED} more shards have consumers that are not of the group")
    warnings = []
    if losing := [name for name, shard in shards.items() if shard.loses]:
        warnings.append(
            f"a delivery limit and no dead-letter exchange: {_named(losing)}; the broker deletes a message that"
            " consumers have returned, or left behind, too often"
        )
    if keeping := [name for name, shard in shards.items() if shard.waits_by_default]:
        warnings.append(
            f"no x-consumer-disconnected-timeout: {_named(keeping)}; if a node of RabbitMQ is lost, the shards of"
            " members that were connected to it wait for 60 s"
        )
    return Exactness(tuple(reasons), tuple(warnings), shards)


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


def partly_in_series(in_series: Set[bool]) -> tuple[str, ...]:
    """Return why a group is not exact if some of its members consume in series and others do not; empty otherwise.

    `in_series` has the different answers of the members: one or both.
    """
    if len(in_series) < 2:
        return ()
    return (
        "some members consume in series and others do not, so two messages of a key may be worked on at a time; use the"
        " setting groups_in_series on all sidecars, or the argument x-ring-in-series in all programs",
    )


def unfed(missing: Collection[str]) -> tuple[str, ...]:
    """Return why a group is not exact of which these queues get no copies; empty if there are none."""
    if not missing:
        return ()
    told = _named(sorted(missing))
    return (f"{told}: no fan leads there, so the group loses messages; run ring-proxy topology apply",)


def _named(names: Sequence[str]) -> str:
    told = some([repr(name) for name in sorted(names, key=natural)], _NAMED)
    return f"shard{'s' if len(names) > 1 else ''} {told}"


def parse_version(answer: object) -> tuple[int, int]:
    """Return the major and minor version of RabbitMQ in an answer to `GET /api/overview`. Raises TopologyError."""
    found = answer.get("rabbitmq_version") if isinstance(answer, dict) else None
    matched = re.match(r"(\d{1,4})\.(\d{1,4})(?!\d)", found, re.ASCII) if isinstance(found, str) else None
    if matched is None:
        raise TopologyError(f"rabbitmq_version: {repr(found)[:60]} is no version")
    return int(matched[1]), int(matched[2])


def parse_has_rates(answer: object) -> bool:
    """Return whether queues have rates, by an answer to `GET /api/overview`: the broker may be told to make none."""
    return isinstance(answer, dict) and answer.get("rates_mode") != "none"


def parse_shard(
    name: str,
    answer: object,
    version: tuple[int, int],
    read_at: float,
    before: Reading | None = None,
    *,
    has_rates: bool = True,
) -> Reading:
    """Return the shard that an answer to `GET /api/queues/...` describes; `before` is its last reading.

    Raises TopologyError for an answer of another form.
    """
    try:
        queue = msgspec.convert(answer, _Queue)
    except msgspec.ValidationError as error:
        raise TopologyError(f"queue {name!r}: {error}") from None
    arguments, policy = queue.arguments, queue.effective_policy_definition
    arguments, policy = (each if isinstance(each, dict) else {} for each in (arguments, policy))
    is_quorum = queue.type == "quorum"
    dead_letters = "x-dead-letter-exchange" in arguments or "dead-letter-exchange" in policy
    limits = (arguments.get("x-consumer-disconnected-timeout"), policy.get("consumer-disconnected-timeout"))
    priorities_at = before.priorities_at if before is not None else float("-inf")
    return Reading(
        queue.type,
        arguments.get("x-single-active-consumer") is True or policy.get("single-active-consumer") is True,
        is_quorum and not dead_letters and _has_limit(arguments, policy, version),
        _lag(queue, has_rates=has_rates),
        len(queue.consumer_details),
        sum(map(_is_link, queue.consumer_details)),
        sum(map(_is_direct, queue.consumer_details)),
        # From 4.3 on a quorum queue waits for the consumer of a lost node, and can delay what comes back.
        is_quorum and version >= (4, 3) and limits == (None, None),
        read_at,
        is_quorum and version >= (4, 3) and _delays(arguments, policy),
        read_at if is_quorum and _shows_priorities(queue) else priorities_at,
    )


def _lag(queue: _Queue, *, has_rates: bool) -> Lag:
    """Return the lag of a queue, as the management API shows it. Without `has_rates` the API tells no rates at all."""
    # A queue of which the broker makes no statistics has no rates either; one to which nothing happened has none yet.
    if queue.messages_ready is None or not has_rates:
        return lag_of(queue.messages_ready, queue.messages_unacknowledged, None, None)
    rates = queue.message_stats if isinstance(queue.message_stats, _Rates) else _Rates()
    consumed = (rates.ack_details, rates.deliver_no_ack_details, rates.get_no_ack_details)
    return lag_of(
        queue.messages_ready,
        queue.messages_unacknowledged,
        rates.publish_details.rate,
        sum(each.rate for each in consumed),
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


def _shows_priorities(queue: _Queue) -> bool:
    """Return whether messages of several priorities are ready."""
    by_priority = queue.messages_by_priority if isinstance(queue.messages_by_priority, dict) else {}
    counts = (*by_priority.values(), queue.messages_ready_high, queue.messages_ready_normal)
    return len([count for count in counts if count]) > 1


def _is_link(consumer: object) -> bool:
    return isinstance(consumer, dict) and is_link(consumer.get("consumer_tag"), consumer.get("arguments"))


def _is_direct(consumer: object) -> bool:
    """Return whether a consumer is neither of a group nor of the command that ends a generation."""
    return not _is_link(consumer) and not (isinstance(consumer, dict) and is_drainer(consumer.get("consumer_tag")))


def between(shards: int, least: float) -> float:
    """Return the seconds between two readings of so many shards: `least`, or more for many."""
    return max(least, shards / READ_A_SECOND)


def queues_of(entry: Entry, group: str, exchange: str) -> list[str]:
    """Return the queues that a group consumes, sorted: one of each shard that is open to it, in every generation.

    `group` is the name that clients consume.
    """
    opened = [groups for _, groups in entry.shards_of(exchange)]
    opened += [shard.groups for each in entry.others for shard in each.shards.values()]
    return sorted({queue for groups in opened for name, queue in groups if name == group})


def ending(entry: Entry) -> frozenset[str] | None:
    """Return the queues of generations before the ring's, which end; None if an earlier process has read the entry."""
    if entry.restored:
        return None
    shards = (shard for each in entry.others if each.number < entry.generation for shard in each.shards.values())
    return frozenset(queue for shard in shards for _, queue in shard.groups)


def no_group(group: str, exchange: str, entry: Entry) -> str:
    """Return why nobody can consume a group that an exchange does not have, and what to do about it."""
    own = group.removeprefix(f"{exchange}/")
    told = some([repr(each) for each in sorted(entry.groups)], 3) if entry.groups else repr(exchange)
    return f"exchange {exchange!r} has no group {own!r}, only {told}: add it to groups in the topology file, and apply"


def unreadable(error: Exception) -> Exactness:
    """Return the judgement of a group whose shards cannot be read: it may not be balanced, since nothing is known."""
    return Exactness((f"the management API does not tell what the shards are: {error}",))


class Readings:
    """The readings of one group's shards, made now and then as long as the group runs, and on request."""

    def __init__(self, title: str, vhost: str, api: Management, state: Group, seen: Exactness | None) -> None:
        """Begin. Log lines start with `title`. `seen` is a reading that was just made, if there is one."""
        self._title, self._vhost, self._api, self._state = title, vhost, api, state
        self.exactness = Exactness()
        """The last judgement; it has no shards as long as none has been read."""
        self.waiting: Mapping[str, float] = {}
        """The shards with messages that no member gets, by the last two readings: since when, in monotonic seconds.

        It is empty if another sidecar reads the shards.
        """
        self.missing: frozenset[str] = frozenset()
        """The queues of the group that get no copies, as their fan does not lead to them."""
        self._looking = asyncio.Lock()
        self._reading_for_report: asyncio.Task[None] | None = None
        """The last reading that a report has asked for; None before the first."""
        self._told: tuple[str, ...] = ()
        """The reasons of the last log lines."""
        if seen is not None:
            self._judge(seen)

    def lag(self, shard: str, now: float) -> Lag:
        """Return the lag of a shard, without figures if these are outdated."""
        found = self.exactness.shards.get(shard)
        every = between(len(self._state.shards), READ_EVERY)
        return found.lag if found is not None and now - found.read_at <= every + OUTDATED else Lag()

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the group is not exact; empty if it is, or as long as no shard has been read."""
        return (
            *unfed(self.missing),
            *self.exactness.reasons,
            *mixed(self._state.prefetches),
            *partly_in_series(self._state.in_series),
        )

    async def run(self) -> None:
        """Read all shards now and then, and in between those that members of this sidecar own.

        All sidecars together then read each shard about once in `READ_EVERY`, or less often in a large group.
        """
        state = self._state
        while True:
            shards, sidecars = len(state.shards), 1 + len(state.peers.all)
            await self.look(min(max(READ_SELDOM, shards * sidecars / READ_A_SECOND), LONGEST_SELDOM))
            await asyncio.sleep(between(shards, READ_EVERY))
            await self._read(state.owned(is_first=state.is_first))

    async def look(self, age: float) -> None:
        """Read all shards, unless all that is known of them was read within `age` seconds."""
        async with self._looking:
            if time.monotonic() - self.exactness.read_at >= age:
                await self._read(self._state.present)

    async def read_for_report(self, within: float) -> None:
        """Have all shards read, unless that was done of late; return after `within` seconds in any case.

        The reading goes on then, so that however long it takes, the next caller has its figures.
        """
        if self._reading_for_report is None or self._reading_for_report.done():
            self._reading_for_report = asyncio.create_task(self.look(between(len(self._state.shards), FRESH)))
        await asyncio.wait({self._reading_for_report}, timeout=within)

    def end(self) -> None:
        """End the reading that a report has asked for."""
        if self._reading_for_report is not None:
            self._reading_for_report.cancel()

    def tell(self) -> None:
        """Log why the group is not exact, if that has changed."""
        before, self._told = self._told, self.reasons
        if self._told != before:
            for reason in self._told:
                log.warning("%s: not exact: %s", self._title, reason)
            if not self._told:
                log.info("%s: exact from now on", self._title)

    async def _read(self, shards: Sequence[str]) -> None:
        """Read these shards. After a failed reading the former figures stay."""
        present = set(self._state.present)
        before = {shard: it for shard, it in self.exactness.shards.items() if shard in present}
        try:
            seen = await read(self._api, self._vhost, shards, before)
        except (ManagementError, TopologyError) as error:
            if not self.exactness.shards:
                self._judge(unreadable(error))
            return
        owned = set(self._state.owned(is_first=True)).difference(self._state.paused_shards)
        got = self._got()
        since = {shard: self._waits_since(shard, seen.shards.get(shard), got.get(shard, 0.0)) for shard in owned}
        self.waiting = {shard: at for shard, at in since.items() if at is not None}
        self._judge(seen)

    def _got(self) -> dict[str, float]:
        """Return when members last got something of each shard, as far as is known: infinity where they hold some."""
        found: dict[str, float] = {}
        for member in self._state.local.values():
            for shard, link in member.links.items():
                found[shard] = max(found.get(shard, 0.0), link.delivered_at, link.changed_at)
        for told in self._state.members(time.monotonic()).values():
            found |= {shard: float("inf") for shard, link in told.links.items() if link.unacked}
        return found

    def _waits_since(self, shard: str, it: Reading | None, got: float) -> float | None:
        """Return since when two readings in a row show messages of a shard that no member gets; None if they do not.

        `got` is when a member last got one, in monotonic seconds, and infinity where one holds any.
        """
        was, before = self.exactness.shards.get(shard), self.waiting.get(shard)
        if it is None or was is None or it is was or it.read_at - was.read_at < STATISTICS:
            return before if it is not None else None
        waits = it.lag.messages if self._is_alone(shard, it) else it.lag.ready
        waited = was.lag.messages if self._is_alone(shard, was) else was.lag.ready
        return (before or was.read_at) if waits and waited and got < was.read_at - STATISTICS else None

    def _is_alone(self, shard: str, it: Reading) -> bool:
        """Return whether the link of a member of this sidecar is the only consumer that can have a shard's messages.

        Where a command that ends the generation waits in the line, it is behind the member.
        """
        has_link = any(shard in member.links for member in self._state.local.values())
        return has_link and it.type == "quorum" and it.is_single and it.links == 1 and not it.direct

    def starved(self, shard: str) -> float:
        """Return for how many seconds, by readings, the only consumer of a shard has got nothing; 0 if not known."""
        since, it = self.waiting.get(shard), self.exactness.shards.get(shard)
        return it.read_at - since if since is not None and it is not None and self._is_alone(shard, it) else 0.0

    def _judge(self, seen: Exactness) -> None:
        before, self.exactness = self.exactness, seen
        self.tell()
        for warning in set(seen.warnings) - set(before.warnings):
            log.warning("%s: %s", self._title, warning)
