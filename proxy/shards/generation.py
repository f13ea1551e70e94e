"""The change from one generation of an exchange's shards to the next: what may not begin, and what is left. Pure.

Theory
------

A change of the number of shards, or of weights, moves keys to other queues. A key that moves has messages in its old
queue, and a consumer of its new one would get later ones first. A generation is a set of shards of its own, with
queues of its own. The change goes in this order:

1. **Made.** The next generation's queues and lanes are declared, and the exchange is bound to the lanes. A sidecar
   takes a generation for the ring once all of its lanes are bound. Placement is by number, so that a number that both
   generations have keeps its keys, but for those that go to new numbers.
2. **Closed.** The bindings to old lanes come to name the queues behind, so that whoever starts later knows what is to
   be drained. Then the old lanes are unbound from their queues. RabbitMQ returns from then on what a late publisher
   sends there, and its sidecar publishes that again by the new ring, before later messages of the key.
3. **Settled.** A probe through each node comes back, and each sidecar says that nothing is unsettled of what it has
   published by an earlier ring. An old queue gets nothing more from now on (docs/development/generations.md).
4. **Drained.** A marker goes into each old queue. The member that gets it lets the queue go once all before it is
   acked. The command waits in the queue's line of consumers, finds nothing but markers, and deletes it.
5. **Opened.** A group may consume a new shard once each old queue of the group that had keys of it is gone. A binding
   says so: it promises the new queue to the group.
6. **Removed.** An old lane is deleted, and the exchange's bindings to it with it, once all queues behind it are gone.

All state stands in the broker, so that a change that was stopped goes on by whoever takes it up. Each step has been
taken if what it makes is there, or if what it takes away is gone. Where an old lane is gone, a ring of those that are
left gives its keys to them, so that more old queues must be empty before a new shard opens: later, and never earlier.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from proxy.shards.consumers import Consumer
from proxy.shards.defaults import UNLIMITED_SINCE
from proxy.shards.shard import Sharded
from proxy.shards.state import State
from proxy.shards.steps import Bind, DeleteExchange, DeleteQueue, Removal, Unbind
from proxy.topology.bindings import CONSISTENT_HASH, UNREADABLE, Promise
from ring.destination import Destination, WeightError, parse_weight
from ring.hashing import SLOTS
from ring.ring import owners

STEPS: Final = 4
"""The steps that are told: a generation is made, the other one is closed, settled and drained."""

HINDRANCES: Final[Mapping[str, str]] = {
    "x-message-ttl": "a marker could expire",
    "message-ttl": "a marker could expire",
    "x-delayed-retry-type": "messages that wait for a delayed retry are behind the marker",
    "delayed-retry-type": "messages that wait for a delayed retry are behind the marker",
    "x-max-length": "a marker could push a message out",
    "max-length": "a marker could push a message out",
    "x-max-length-bytes": "a marker could push a message out",
    "max-length-bytes": "a marker could push a message out",
    "x-dead-letter-strategy": "messages that wait to be dead-lettered would go with the queue",
    "dead-letter-strategy": "messages that wait to be dead-lettered would go with the queue",
    "x-expires": "the queue is deleted while nobody consumes it",
    "expires": "the queue is deleted while nobody consumes it",
}
"""The arguments and policy keys of a queue that is not drained in order, and why."""


DRAINED: Final = "x-ring-drained"
"""The argument of an exchange with an old queue's name, by which the queue was drained, and is being deleted.

RabbitMQ 4.3.6 may keep a quorum queue where nodes end during its deletion, while some of its replicas are gone. The
queue may never have an active consumer again, so that nobody could find it empty once more, and can be deleted all the
same (measured)."""


class Old(NamedTuple):
    """One shard of the generation that ends."""

    place: str
    """The shard's name on the ring."""
    lane: str
    weight: int
    queues: Mapping[str, str]
    """The queue of each group, by the name that clients consume."""
    fan: str
    """The name of the fan behind the lane, if there is one."""


class New(NamedTuple):
    """One shard of the generation that begins."""

    lane: str
    weight: int
    promise: Promise
    """The promise to all groups, of which the bindings make only that to groups that may consume the shard."""


@dataclass(frozen=True)
class Change:
    """A change of an exchange from one generation to the next, as far as it has come."""

    exchange: Sharded
    """The exchange with the generation that begins."""
    old: tuple[Old, ...]
    """The shards of the generation that ends to whose lanes the exchange is still bound."""
    new: tuple[New, ...]
    sources: Mapping[str, frozenset[str]]
    """By the place of a new shard, those of the old ones that have had keys of it."""

    def left(self, gone: Collection[str]) -> dict[str, tuple[str, str]]:
        """Return by name the old queues that are not known to be gone, each with its group and its shard's place."""
        return {
            queue: (group, each.place) for each in self.old for group, queue in each.queues.items() if queue not in gone
        }

    def promised(self, state: State) -> Iterator[Bind]:
        """Yield the bindings that name the queues behind old lanes, where none does: a closed lane leads to none."""
        for each in self.old:
            if state.promise(self.exchange.name, each.lane) is None:
                promise = Promise(each.place, tuple(sorted(each.queues.items())))
                yield Bind(self.exchange.name, Destination("exchange", each.lane), str(each.weight), promise)

    def opened(self, state: State, gone: Collection[str]) -> Iterator[Bind]:
        """Yield the bindings that open a new shard to a group whose old queues with keys of it are gone."""
        busy = {(group, place) for group, place in self.left(gone).values()}
        for shard in self.new:
            told = state.promise(self.exchange.name, shard.lane)
            known = {group for group, _ in told.groups} if told is not None else set()
            free = tuple(
                (group, queue)
                for group, queue in shard.promise.groups
                if group not in known and not any((group, place) in busy for place in self.sources[shard.promise.shard])
            )
            if free:
                promise = shard.promise._replace(groups=free)
                yield Bind(self.exchange.name, Destination("exchange", shard.lane), str(shard.weight), promise)


def begun(exchange: Sharded, state: State) -> Sharded | None:
    """Return the exchange with the generation that its change has begun to make; None if no change is under way."""
    found = state.generations(exchange.name)
    if len(found) < 2:
        return None
    return replace(exchange, generation=max(found), made_with=state.made_with(exchange.name, max(found)))


def next_of(exchange: Sharded, state: State) -> Sharded:
    """Return the exchange with the generation that comes next."""
    wanted = exchange.shards((), 1)
    return replace(exchange, generation=max(state.generations(exchange.name), default=0) + 1, made_with=len(wanted))


def change_of(exchange: Sharded, state: State) -> Change:
    """Return the change to the generation of `exchange`, by what is there. Raises ValueError for no shards."""
    old = tuple(_old(exchange, state))
    new = tuple(
        New(shard.lane, shard.weight, shard.promise)
        for shard in exchange.shards((), 1)
        if shard.lane is not None and shard.promise is not None
    )
    weights = {each.promise.shard: each.weight for each in new}
    return Change(exchange, old, new, _sources({each.place: each.weight for each in old}, weights))


def _old(exchange: Sharded, state: State) -> Iterator[Old]:
    """Yield the shards of the generation before that the exchange is bound to."""
    seen: set[str] = set()
    for generation in state.generations(exchange.name):
        for each in state.of_generation(exchange.name, generation) if generation < exchange.generation else ():
            lane = each.destination.name
            before = replace(exchange, generation=generation)
            number = before.number_of_lane(lane) if each.destination.kind == "exchange" else None
            try:
                weight = parse_weight(each.key)
            except WeightError:
                continue
            if number is None or lane in seen:
                continue
            seen.add(lane)
            promise, place = state.promise(exchange.name, lane), before.shard(number).place
            groups = dict(promise.groups) if promise is not None else {exchange.name: place}
            yield Old(place, lane, weight, groups, f"{exchange.name}.fan.{before.label(number)}")


def _unknown(exchange: Sharded, state: State) -> Iterator[str]:
    """Yield what is bound to an exchange of which nobody can tell whether it can be closed and drained."""
    known = {each.lane: each for each in _old(exchange, state)}
    for each in state.bindings.get(exchange.name, ()):
        lane = each.destination.name
        if each.promise == UNREADABLE:
            yield f"the binding to {each.destination} has arguments with x-ring-generation of another form; unbind it"
        elif each.destination.kind != "exchange":
            yield f"{each.destination} is bound without a lane: only a lane can be closed; apply lanes = true"
        elif (old := known.get(lane)) is not None:
            if each.key != str(old.weight):
                yield f"lane {lane!r} is bound with the keys {str(old.weight)!r} and {each.key!r}; unbind one of them"
        elif each not in state.of_generation(exchange.name, exchange.generation):
            yield f"lane {lane!r}, key {each.key!r}, is no lane of a shard of the file; unbind it"


def _sources(old: Mapping[str, int], new: Mapping[str, int]) -> dict[str, frozenset[str]]:
    """Return by new shard the old ones with which it has slots in common; `old` and `new` are weights by place."""
    if not old:
        return dict.fromkeys(new, frozenset())
    was, will = ({Destination("queue", place): weight for place, weight in each.items()} for each in (old, new))
    slots = np.arange(SLOTS)
    pairs = np.unique(owners(was, slots).astype(np.int64) * len(will) + owners(will, slots))
    before, after = sorted(was), sorted(will)
    found: dict[str, set[str]] = {place: set() for place in new}
    for pair in pairs.tolist():
        found[after[pair % len(after)].name].add(before[pair // len(after)].name)
    return {place: frozenset(of) for place, of in found.items()}


def standing(name: str, state: State) -> Iterator[str]:
    """Yield in lines which generation of an exchange's shards is there, and how far a change to another one is."""
    found = state.generations(name)
    if not found:
        yield f"{name}: is bound to nothing"
        return
    latest = max(found)
    bound = {each.destination.name for each in state.of_generation(name, latest)}
    if len(found) == 1:
        yield f"{name}: generation {latest} with {len(bound)} shards, and no change is under way"
        return
    made_with = state.made_with(name, latest)
    yield f"{name}: changes to generation {latest} with {made_with} shards"
    if len(bound) < made_with:
        yield f"  step 1 of {STEPS}: {len(bound)} of {made_with} lanes are bound; it can be taken back with --abort"
        return
    old = tuple(_old(Sharded("", name, generation=latest, made_with=made_with), state))
    if open_lanes := [each.lane for each in old if state.bindings.get(each.lane)]:
        yield f"  step 2 of {STEPS}: {len(old) - len(open_lanes)} of {len(old)} old lanes are closed"
    else:
        yield f"  steps 3 and 4 of {STEPS}: settles all that was published before, and drains"
    yield f"  {_backlog(old, state.made_with(name, found[0]), state)}"
    for each in old:
        for group, queue in each.queues.items():
            if (at := state.queues.get(queue)) is not None:
                yield f"  to drain, of group {group}: {queue} with {at.content}"
    promises = [promise for lane in sorted(bound) if (promise := state.promise(name, lane)) is not None]
    groups = {group for each in old for group in each.queues} | {group for each in promises for group, _ in each.groups}
    for group in sorted(groups):
        count = sum(any(group == each for each, _ in promise.groups) for promise in promises)
        yield f"  open to group {group}: {count} of {len(bound)} new shards"


def _backlog(old: Collection[Old], of: int, state: State) -> str:
    """Return how many old shards are left, of so many if that is known, and their messages, in words."""
    queues = [queue for each in old for queue in each.queues.values()]
    waiting = [found.waiting for queue in queues if (found := state.queues.get(queue)) is not None]
    unknown = f", {waiting.count(None)} queues are not counted yet" if None in waiting else ""
    shards = f"{of - len(old)} of {of} old shards are drained" if of else f"{len(old)} old shards are left"
    return f"{shards}, {sum(each or 0 for each in waiting):,} messages are left{unknown}"


def taken_back(exchange: Sharded, state: State) -> tuple[list[Removal], str]:
    """Return the steps that take a generation back that is not the ring yet, and why that cannot be; empty if it can.

    `exchange` has the generation that a change has begun to make.
    """
    bound = state.of_generation(exchange.name, exchange.generation)
    if len({each.destination for each in bound}) >= exchange.made_with:
        return [], (
            f"generation {exchange.generation} is the ring already, and its queues may have messages; end the change, "
            "and make another one with the former file"
        )
    shards = exchange.shards((), 1)
    queues = [name for shard in shards for name in shard.queues if name in state.queues]
    if full := next((name for name in queues if state.queues[name].waiting != 0), ""):
        return [], f"queue {full!r} has messages of programs without a sidecar, or is not counted yet"
    steps: list[Removal] = [Unbind(exchange.name, each.destination, each.key, each.properties_key) for each in bound]
    fanouts = [name for shard in shards for name in (shard.lane, shard.fan) if name is not None]
    steps += [DeleteExchange(name) for name in fanouts if name in state.exchanges]
    steps += [DeleteQueue(name, if_empty=state.queues[name].type == "classic") for name in queues]
    return steps, ""


class Permission(NamedTuple):
    """The rights of one user in a virtual host: regular expressions that match somewhere in a name."""

    user: str
    write: str
    read: str


def unpermitted(change: Change, permissions: Iterable[Permission]) -> list[str]:
    """Return the rights that users have on old shards and not on new ones, a line for each user and kind."""
    lanes = [each.lane for each in change.old], [each.lane for each in change.new]
    old = [queue for each in change.old for queue in each.queues.values()]
    queues = old, [queue for each in change.new for _, queue in each.promise.groups]
    lines = []
    for user, write, read in permissions:
        for right, pattern, (before, after) in (("write", write, lanes), ("read", read, queues)):
            try:
                has = next((name for name in before if re.search(pattern, name)), "")
                lacks = next((name for name in after if not re.search(pattern, name)), "")
            except re.error:
                continue  # a pattern that only RabbitMQ's library understands
            if has and lacks:
                lines.append(
                    f"user {user!r} may {right} on {has!r} and not on {lacks!r}, by the pattern {pattern!r}: give it a "
                    "pattern that takes both, with (g[0-9]+\\.)?[0-9]+ for the number"
                )
    return lines


def strangers(change: Change, consumers: Iterable[Consumer], by_empty: Collection[str] = ()) -> list[str]:
    """Return the consumers of old queues that do not come through sidecars, a line for each.

    They would get markers, and nothing tells when they have done all before one. `by_empty` are queues whose programs
    are waited for instead: see `proxy/shards/drain.py`.
    """
    queues = {queue for each in change.old for queue in each.queues.values()}.difference(by_empty)
    return [
        f"queue {each.queue!r} has the consumer {each.tag[:60]!r}, which "
        "does not consume as a group through a sidecar: "
        "have it consume the exchange's name, or stop it"
        for each in consumers
        if each.queue in queues and each.is_program
    ]


def is_drained(queue: str, state: State) -> bool:
    """Return whether an old queue was drained before, and its deletion may not have ended."""
    found = state.exchanges.get(queue)
    return found is not None and DRAINED in found.arguments


def differs(exchange: Sharded, state: State) -> bool:
    """Return whether the file wants other shards, or other weights, than the generation that is there."""
    wanted = {Destination("queue", shard.place): shard.weight for shard in next_of(exchange, state).shards((), 1)}
    return dict(state.weights(exchange.name)) != wanted


def refusals(exchange: Sharded, state: State) -> list[str]:
    """Return why an exchange cannot change its generation in order, a line for each reason."""
    lines: list[str] = []
    found = state.exchanges.get(exchange.name)
    if found is None:
        return [f"{exchange.place}: exchange {exchange.name!r} does not exist: apply without --ordered makes it"]
    if exchange.type != CONSISTENT_HASH or found.type != CONSISTENT_HASH:
        lines.append(f"type: {found.type}: only the weights of {CONSISTENT_HASH} tell which shard a lane is for")
    if exchange.numbers is None:
        lines.append("shards_per_node: a generation has a number of shards; write shards = N")
    if exchange.retiring:
        lines.append(f"retiring: {sorted(exchange.retiring)}: a new generation leaves shards out; remove the key")
    if not exchange.has_own_names:
        lines.append("lanes, [[exchange.shard]]: a shard of a later generation has a lane, and no name of its own")
    is_begun = begun(exchange, state) is not None
    for each in state.bindings.get(exchange.name, ()):
        is_lane = each.destination.kind == "exchange"
        if is_lane and not is_begun and (fault := state.lane_fault(each.destination.name)):
            lines.append(f"lane {each.destination.name!r} {fault}")
    target = begun(exchange, state) or next_of(exchange, state)
    lines += _unknown(target, state)
    old = tuple(_old(target, state))
    lines += [line for each in old for line in _hindrances(each, state)]
    wanted = {exchange.name, *(f"{exchange.name}/{group}" for group in exchange.groups)}
    if ended := sorted({group for each in old for group in each.queues} - wanted):
        lines.append(f"groups: group {ended[0]!r} is not in the file, and would get nothing any more: add it")
    if is_begun:
        lines += _unlike(target, state)
    return [f"{exchange.place}: {line}" for line in lines]


def _unlike(target: Sharded, state: State) -> Iterator[str]:
    """Yield why a file is not the one with which a generation was begun."""
    first, *further = state.generations(target.name)
    if further != [first + 1]:
        yield f"generations {first} and {further} are bound: nobody can tell which of them is being made"
    shards = {shard.lane: shard for shard in target.shards((), 1)}
    bound = {each.destination.name: each.key for each in state.of_generation(target.name, target.generation)}
    other = any(lane not in shards or key != str(shards[lane].weight) for lane, key in bound.items())
    if other or len(shards) != target.made_with:
        yield (
            f"generation {target.generation} with {target.made_with} shards is being made, and the file says other "
            "shards, or other weights: end it with the file that it was begun with"
        )


def has_no_limit(queue: str, state: State) -> bool:
    """Return whether nothing is done to a message of a queue however often it is delivered and comes back."""
    found = state.queues.get(queue)
    if found is None:
        return False  # the management API may leave it out
    if found.type != "quorum":
        return True
    of_argument, of_policy = found.arguments.get("x-delivery-limit"), found.policy.get("delivery-limit")
    limits = [limit for limit in (of_argument, of_policy) if limit is not None]
    if state.version < UNLIMITED_SINCE:
        return not limits
    # RabbitMQ takes the larger one where one of both is negative.
    return bool(limits) and all(isinstance(limit, int) and limit < 0 for limit in limits)


def _hindrances(old: Old, state: State) -> Iterator[str]:
    """Yield why an old shard's queues cannot be drained in order."""
    for name in old.queues.values():
        queue = state.queues.get(name)
        if queue is None:
            continue
        if queue.type == "stream":
            yield f"queue {name!r} is a stream, which keeps its messages and is never drained"
        elif queue.arguments.get("x-single-active-consumer") is not True:
            yield f"queue {name!r} has no single active consumer, so nobody can tell that all before a marker is acked"
        terms = {**queue.policy, **queue.arguments}
        for key, why in HINDRANCES.items():
            if key in terms and terms[key] != "at-most-once":
                yield f"queue {name!r} has {key}: {why}"
