"""The parts of one shard that is retired, and the steps that take them away, by what a virtual host has. Pure.

Theory
------

A shard is a queue, the lane in front of it, and where its exchange has several groups, a fan between the lane and the
queue of each group. They go in this order:

1. The ring's binding to the lane. From here on nothing says any more which groups are promised copies.
2. The lane's own binding. It leads to the fan, if there is one, so that one step closes the shard for all groups: a
   message is in the queue of each of them, or comes back to its publisher. The lane leads to the queue and to the fan
   only as long as the exchange's second group is being added. Its way to the queue then goes first, since the fan leads
   to that queue as well.
3. The queues, once each of them is empty: those of further groups, and last that of the exchange's own group.
4. The lane and the fan.

A run that is killed is followed by one that finds its shard by what is left. The fan stays bound to the queues, so it
names those that a killed run has not deleted. A queue that is named `EXCHANGE.N` names the lane and the fan of the
number N, which are found even if they lead nowhere any more.

Anybody may bind a queue to the fan, as a tap, and that queue may hold what came another way. A queue of a further group
therefore counts only if its name is `EXCHANGE.GROUP.N`, and the ring promises copies to that group.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from proxy.shards.state import FoundBinding, State
from proxy.shards.steps import DeleteExchange, DeleteQueue, Removal, Unbind
from proxy.topology.bindings import GROUP_NAME, RING_TYPES, Leads
from proxy.topology.names import natural
from ring.destination import Destination


class RetireError(Exception):
    """A shard cannot be retired; the message says why. Nothing was changed."""


class Shard(NamedTuple):
    """A shard by the names that a request to retire it has."""

    exchange: str
    queue: str
    """The queue of the exchange's own group."""

    @property
    def number(self) -> str:
        """The number N of a queue that is named `EXCHANGE.N`, as digits; empty for a queue of another name."""
        found = re.fullmatch(re.escape(self.exchange) + r"\.([0-9]+)", self.queue)
        return found[1] if found is not None else ""


@dataclass(frozen=True)
class Parts:
    """The parts of a shard that exist."""

    bindings: tuple[FoundBinding, ...]
    """The bindings of the ring that lead to the shard."""
    lanes: tuple[str, ...]
    fans: tuple[str, ...]
    """The fanout exchange that gives each group a copy, if there is one."""
    queues: tuple[str, ...]
    """The queues, in the order in which they are deleted: that of the exchange's own group is the last one."""

    @property
    def exchanges(self) -> tuple[str, ...]:
        """The exchanges that may lead to other parts."""
        return (*self.lanes, *self.fans)

    @property
    def destinations(self) -> frozenset[Destination]:
        """The parts that a binding may lead to."""
        queues = (Destination("queue", name) for name in self.queues)
        return frozenset((*queues, *(Destination("exchange", name) for name in self.exchanges)))

    def __bool__(self) -> bool:
        """Return whether anything is left of the shard."""
        return bool(self.bindings or self.exchanges or self.queues)


@dataclass(frozen=True)
class Removals:
    """The steps that take a shard away, in order."""

    off_the_ring: tuple[Removal, ...]
    """The steps by which sidecars, and RabbitMQ itself, cease to route to the shard."""
    closing: tuple[Removal, ...] = ()
    """The steps from which on the broker returns what still comes to a lane, and a sidecar routes that anew."""
    deleting: tuple[Removal, ...] = ()
    """The steps that delete the queues, once they are empty, and then the lanes and the fan."""

    @property
    def steps(self) -> tuple[Removal, ...]:
        return (*self.off_the_ring, *self.closing, *self.deleting)


def parts_of(state: State, shard: Shard) -> Parts:
    """Return what exists of a shard, all of it or what an earlier run has left."""
    bindings = tuple(_bindings(state, shard))
    fans = tuple(dict.fromkeys(_fans(state, shard, bindings)))
    lanes = tuple(dict.fromkeys(_lanes(state, shard, bindings, fans)))
    further = {name for fan in fans for name in _queues_of(state, fan)}
    further.update(name for each in bindings if each.promise is not None for name in each.promise.queues)
    further = {name for name in further if _is_copy(state, shard, fans, name)}
    further.update(_named(state, shard, fans))
    others = sorted(further.intersection(state.queues) - {shard.queue}, key=natural)
    return Parts(bindings, lanes, fans, (*others, *([shard.queue] if shard.queue in state.queues else [])))


def removals(state: State, shard: Shard, parts: Parts, *, keep: bool) -> Removals:
    """Return the steps that take a shard away; with `keep` only those that take it off the ring."""
    off_the_ring = tuple(_unbinding(shard.exchange, each) for each in parts.bindings)
    if keep:
        return Removals(off_the_ring)
    closing = tuple(
        _unbinding(lane, each)
        for lane in parts.lanes
        for each in sorted(state.bindings.get(lane, ()), key=lambda each: each.destination.kind != "queue")
    )
    # A quorum queue takes no condition. A classic one does, so it cannot lose what came since.
    queues = (DeleteQueue(name, if_empty=state.queues[name].type == "classic") for name in parts.queues)
    return Removals(off_the_ring, closing, (*queues, *map(DeleteExchange, parts.exchanges)))


def check_generation(state: State, exchange: str, instead: str) -> None:
    """Raise RetireError if an exchange has later generations of shards than the first."""
    if (latest := max(state.generations(exchange), default=1)) > 1:
        raise RetireError(f"exchange {exchange!r} has shards of generation {latest}: {instead}")


def check(state: State, shard: Shard, parts: Parts, *, keep: bool) -> None:
    """Raise RetireError for what would lose messages, or would never end."""
    exchange = state.exchanges.get(shard.exchange)
    if exchange is None or exchange.type not in RING_TYPES:
        raise RetireError(f"virtual host {state.vhost!r} has no hash exchange {shard.exchange!r}")
    check_generation(state, shard.exchange, "change its shards with: ring-proxy topology apply --ordered")
    if parts.bindings and not state.weights(shard.exchange).keys() - {Destination("queue", shard.queue)}:
        raise RetireError(
            f"queue {shard.queue!r} is the only one of exchange {shard.exchange!r}, which would lose messages"
        )
    if not parts.bindings and (group := _group_of(shard, parts.fans)):
        raise RetireError(
            f"queue {shard.queue!r} is of group {group!r}: name the queue of the exchange's own group, or take the "
            "group away with: ring-proxy topology retire-group"
        )
    if not keep:
        _check_fans(state, shard, parts)
    for destination in sorted(parts.destinations):
        for source in sources(state, {destination}, (shard.exchange, *parts.exchanges)):
            raise RetireError(f"{destination} also gets messages from exchange {source!r}; unbind that first")
    if shard.queue in state.queues and not (parts.bindings or parts.exchanges or keep or shard.number):
        raise RetireError(
            f"exchange {shard.exchange!r} is not bound to queue {shard.queue!r}, and nothing tells that it was: delete "
            "the queue yourself if it is the one that you mean"
        )
    for name in parts.queues:
        if state.queues[name].type == "stream" and not keep:
            raise RetireError(f"queue {name!r} is a stream, which keeps its messages and is never empty: use --keep")


def _check_fans(state: State, shard: Shard, parts: Parts) -> None:
    """Raise RetireError for a queue behind a fan that is of no group: it would no longer get its copies."""
    for fan in parts.fans:
        for name in sorted({*_queues_of(state, fan)}.difference(parts.queues)):
            raise RetireError(
                f"queue {name!r} is bound to exchange {fan!r}, and is no queue of a group of exchange "
                f"{shard.exchange!r}; unbind it first"
            )


def sources(state: State, taken: Collection[Destination], but: Collection[str] = ()) -> list[str]:
    """Return the exchanges that are bound to any of these destinations, without those in `but`."""
    return sorted(
        source
        for source, bindings in state.bindings.items()
        if source not in but and any(each.destination in taken for each in bindings)
    )


def _bindings(state: State, shard: Shard) -> Iterator[FoundBinding]:
    """Yield the bindings of the ring that lead to the shard, or to its own lane if that leads nowhere any more."""
    ends = {Destination("queue", shard.queue)}
    own = f"{shard.exchange}.lane.{shard.number}"
    leads_nowhere = not state.bindings.get(own) or state.lane(own).leads is Leads.NOWHERE
    if shard.number and _is_fanout(state, own) and leads_nowhere:
        ends.add(Destination("exchange", own))
    return (each for each in state.bindings.get(shard.exchange, ()) if state.behind(each.destination) in ends)


def _fans(state: State, shard: Shard, found: Iterable[FoundBinding]) -> Iterator[str]:
    """Yield the fan of the shard: that of a lane on the ring, or one that an earlier run has left.

    A fan that was left is named `EXCHANGE.fan.SOMETHING` and leads to the queue. The fan `EXCHANGE.fan.N` of a queue
    `EXCHANGE.N` counts also once the queue is gone, unless it leads to queues that are no copies of that shard's.
    """
    for each in found:
        if each.destination.kind == "exchange" and (fan := state.lane(each.destination.name).fan):
            yield fan
    for name in state.exchanges:
        if not name.startswith(f"{shard.exchange}.fan.") or not _is_fanout(state, name):
            continue
        leads_to = list(_queues_of(state, name))
        is_own = name == f"{shard.exchange}.fan.{shard.number}" and shard.queue not in state.queues
        if shard.queue in leads_to or (is_own and all(_copy_of(shard, shard.number, each) for each in leads_to)):
            yield name


def _lanes(state: State, shard: Shard, found: Iterable[FoundBinding], fans: Collection[str]) -> Iterator[str]:
    """Yield the lanes of the shard: those on the ring, and those that an earlier run has left.

    Nothing is bound to a lane that was left, and it leads to the shard's fan, or it is named `EXCHANGE.lane.SOMETHING`
    and leads to the queue only. The lane of the number of the queue, or of the fan, counts also if it leads nowhere any
    more.
    """
    yield from (each.destination.name for each in found if each.destination.kind == "exchange")
    prefix = f"{shard.exchange}.lane."
    numbers = {shard.number, *(fan.removeprefix(f"{shard.exchange}.fan.") for fan in fans)} - {""}
    own = {prefix + number for number in numbers}
    queue, its = Destination("queue", shard.queue), {Destination("exchange", fan) for fan in fans}
    fed = {each.destination for bindings in state.bindings.values() for each in bindings}
    for name in state.exchanges:
        leads_to = {each.destination for each in state.bindings.get(name, ())}
        leads_here = bool(leads_to & its) or (name.startswith(prefix) and queue in leads_to)
        if not _is_fanout(state, name) or Destination("exchange", name) in fed or name in fans:
            continue
        if (leads_here and leads_to <= {queue, *its}) or (name in own and not leads_to):
            yield name


def _named(state: State, shard: Shard, fans: Collection[str]) -> Iterator[str]:
    """Yield the queues that are copies of the shard's by their names, and get messages of nobody else.

    Somebody may have unbound them from the fan.
    """
    if not shard.number:
        return
    for group in _groups(state, shard):
        name = f"{shard.exchange}.{group}.{shard.number}"
        is_other = f"{shard.exchange}.{group}" in state.exchanges  # which may have shards of these names
        if not is_other and not sources(state, {Destination("queue", name)}, fans):
            yield name


def _groups(state: State, shard: Shard) -> list[str]:
    """Return the further groups that bindings of the ring promise copies to, sorted: any binding, not the shard's only.

    A run that was killed has taken the shard's own bindings away.
    """
    promises = (each.promise for each in state.bindings.get(shard.exchange, ()))
    names = {name for promise in promises if promise is not None for name, _ in promise.groups}
    return sorted(name.removeprefix(f"{shard.exchange}/") for name in names - {shard.exchange})


def _is_copy(state: State, shard: Shard, fans: Iterable[str], queue: str) -> bool:
    """Return whether a queue is a further group's queue of the shard, by its name and what the ring promises."""
    numbers = {shard.number, *(fan.removeprefix(f"{shard.exchange}.fan.") for fan in fans)} - {""}
    return bool({_copy_of(shard, number, queue) for number in numbers}.intersection(_groups(state, shard)))


def _group_of(shard: Shard, fans: Iterable[str]) -> str:
    """Return the group whose queue of a shard the queue is, by the names of it and its fan; empty if it is of none."""
    numbers = (fan.removeprefix(f"{shard.exchange}.fan.") for fan in fans)
    return next(filter(None, (_copy_of(shard, number, shard.queue) for number in numbers)), "")


def _copy_of(shard: Shard, number: str, queue: str) -> str:
    """Return the group whose queue of a number is named like this, `EXCHANGE.GROUP.N`; empty if none is."""
    group = queue.removeprefix(f"{shard.exchange}.").removesuffix(f".{number}")
    return group if GROUP_NAME.fullmatch(group) and queue == f"{shard.exchange}.{group}.{number}" else ""


def _queues_of(state: State, fan: str) -> Iterator[str]:
    return (each.destination.name for each in state.bindings.get(fan, ()) if each.destination.kind == "queue")


def _is_fanout(state: State, name: str) -> bool:
    exchange = state.exchanges.get(name)
    return exchange is not None and exchange.type == "fanout"


def _unbinding(source: str, found: FoundBinding) -> Unbind:
    return Unbind(source, found.destination, found.key, found.properties_key)
