"""The preview of a topology file: the steps, the keys that move, what waits where they leave, and rights. Pure."""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from proxy.settings.rights import escaped, pattern, to_group
from proxy.shards.difference import Difference, compare
from proxy.shards.document import DocumentError, clashes
from proxy.shards.generation import begun, differs, refusals
from proxy.shards.shard import Sharded
from proxy.shards.state import State
from proxy.shards.steps import Step, Unbind
from proxy.topology.names import natural
from ring.destination import Destination
from ring.hashing import SLOTS
from ring.ring import Changes, changes

LOCK_QUEUE = "ring-proxy.topology"
"""The exclusive queue that whoever applies a file holds in each of the file's virtual hosts."""


class Move(NamedTuple):
    """The keys that one destination hands over to another one."""

    source: Destination
    target: Destination
    slots: int
    """The number of slots that change hands; `SLOTS` slots are all keys."""


@dataclass(frozen=True)
class Planned:
    """The changes of one exchange, its shards and its lanes, and the keys that they move."""

    difference: Difference
    moves: tuple[Move, ...]
    """The keys that change their destination; empty if the ring stays, or if there was none."""
    waiting: Mapping[Destination, int | None]
    """The messages, ready and unacked, in each destination that hands over keys; None if that is not known."""
    moved_slots: NDArray[np.bool_] | None = None
    """For each slot whether it moves; None if no slot moves."""

    @property
    def moved(self) -> float:
        """The share of all keys that move, 0 to 1, exact for keys that are spread evenly over the slots."""
        return sum(move.slots for move in self.moves) / SLOTS


@dataclass(frozen=True)
class Plan:
    """All changes that would make the broker agree with a topology file, and the rights that they need."""

    exchanges: tuple[Planned, ...]
    rights: tuple[str, ...]
    """The rights that the users need before, while and after the file is applied, as lines for a shell."""
    rights_applied: tuple[str, ...]
    """The rights that the users need once the file is applied: the same, or fewer."""
    rights_ordered: tuple[str, ...] = ()
    """The rights that the users need for `apply --ordered`; empty if that would change nothing, or refuses the file."""

    @property
    def steps(self) -> tuple[tuple[str, Step], ...]:
        """All steps, each with its virtual host, in the order in which `apply` takes them.

        Steps that every exchange of the file needs come before any exchange is bound. An exchange that another one
        names is bound before that one: a message must not be dead-lettered to an exchange that leads nowhere yet. A
        text may show them by exchange, as `plan_text` does.
        """
        differences = named_first([each.difference for each in self.exchanges])
        return tuple(
            (difference.exchange.vhost, step)
            for phase in zip(*(difference.phases for difference in differences), strict=True)
            for difference, steps in zip(differences, phase, strict=True)
            for step in steps
        )

    @property
    def refusals(self) -> tuple[str, ...]:
        return tuple(line for each in self.exchanges for line in each.difference.refusals)

    @property
    def warnings(self) -> tuple[str, ...]:
        """All that exists as wanted and may lose messages, or surprise."""
        differences = [each.difference for each in self.exchanges]
        return (*(line for each in differences for line in each.warnings), *_circles(named_first(differences)))


def make_plan(document: Sequence[Sharded], states: Mapping[str, State]) -> Plan:
    """Return what a file would change. `states` has what exists in each virtual host that the file names.

    Raises DocumentError if two exchanges come to share a queue or a lane.
    """
    names: dict[str, frozenset[str]] = {}
    for exchange in document:
        names[exchange.vhost] = names.get(exchange.vhost, frozenset()) | {exchange.name}
    differences = [compare(exchange, states[exchange.vhost], names[exchange.vhost]) for exchange in document]
    if lines := clashes((each.exchange, each.shards) for each in differences):
        raise DocumentError(lines)
    planned = [_planned(difference, states[difference.exchange.vhost]) for difference in differences]
    now, later = (tuple(rights(differences, states, applied=applied)) for applied in (False, True))
    ordered = [each for each in differences if _changes_in_order(each.exchange, states[each.exchange.vhost])]
    vhosts = {each.exchange.vhost for each in ordered}
    found = [each for each in differences if each.exchange.vhost in vhosts]
    return Plan(tuple(planned), now, later, tuple(rights(found, states, applied=False, ordered=True)))


def _changes_in_order(exchange: Sharded, state: State) -> bool:
    """Return whether `apply --ordered` would change the generation of an exchange, or end such a change."""
    return not refusals(exchange, state) and (begun(exchange, state) is not None or differs(exchange, state))


def named_first(differences: Sequence[Difference]) -> list[Difference]:
    """Return the exchanges of a file, each behind those that it names as alternate or dead-letter exchange.

    Where exchanges name each other in a circle, there is no such order: one of them comes before an exchange it names.
    """
    by_name = {(each.exchange.vhost, each.exchange.name): each for each in differences}
    ordered: dict[tuple[str, str], Difference] = {}
    begun = set[tuple[str, str]]()
    for start in by_name:
        path = [] if start in begun else [start]
        while path:
            at = path[-1]
            begun.add(at)
            named = ((at[0], name) for name in sorted(by_name[at].names))
            if (first := next((each for each in named if each in by_name and each not in begun), None)) is not None:
                path.append(first)
            else:
                ordered[at] = by_name[at]
                path.pop()
    return list(ordered.values())


def _circles(ordered: Sequence[Difference]) -> Iterator[str]:
    """Yield what is lost while exchanges are made that name each other in a circle; `ordered` is by `named_first`."""
    bound = set[tuple[str, str]]()
    behind = {(each.exchange.vhost, each.exchange.name) for each in ordered if not each.before}
    for each in ordered:
        vhost = each.exchange.vhost
        bound.add((vhost, each.exchange.name))
        for name in sorted(each.names):
            if each.bound and (vhost, name) in behind - bound:
                yield (
                    f"{each.exchange.place}: is bound before exchange {name!r}, since each of them gets messages of "
                    "the other; what is dead-lettered in between is lost, so do not publish until all steps are done"
                )


def _planned(difference: Difference, state: State) -> Planned:
    before, after = difference.before, difference.after
    if not moves_keys(before, after):
        return Planned(difference, (), {})
    found = changes(before, after)
    moves = _moves(found, sorted(before), sorted(after))
    moved_slots = np.zeros(SLOTS, np.bool_)
    moved_slots[found.slots] = True
    waiting = {source: _waiting(source, state) for source in dict.fromkeys(move.source for move in moves)}
    return Planned(difference, moves, waiting, moved_slots)


def _waiting(destination: Destination, state: State) -> int | None:
    """Return the messages in a queue, ready and unacked; None if that is not known, as of an exchange."""
    queue = state.queues.get(destination.name) if destination.kind == "queue" else None
    return queue.waiting if queue is not None else None


def moves_keys(before: Mapping[Destination, int], after: Mapping[Destination, int]) -> bool:
    """Return whether keys move if a ring of one set of weights replaces another; none do if either ring is empty."""
    return bool(before) and bool(after) and dict(before) != dict(after)


def _moves(found: Changes, old: Sequence[Destination], new: Sequence[Destination]) -> tuple[Move, ...]:
    """Return the moves between two rings whose sorted destinations are `old` and `new`."""
    pairs, counts = np.unique(found.sources.astype(np.int64) * len(new) + found.targets, return_counts=True)
    moves = [
        Move(old[pair // len(new)], new[pair % len(new)], slots)
        for pair, slots in zip(pairs.tolist(), counts.tolist(), strict=True)
    ]
    return tuple(sorted(moves, key=lambda move: (natural(move.source.name), natural(move.target.name))))


def rights(
    differences: Iterable[Difference], states: Mapping[str, State], *, applied: bool, ordered: bool = False
) -> Iterator[str]:
    """Yield rabbitmqctl lines for the users.

    They are for who publishes through sidecars, consumes from the shards, or consumes by group; for the sidecars whose
    clients consume by group; and for who applies the file. They are enough before, while and after the steps are taken;
    with `applied` only once all are taken. With `ordered` they are for `apply --ordered`, and reach all generations.
    """
    by_vhost: dict[str, list[Difference]] = {}
    for difference in differences:
        by_vhost.setdefault(difference.exchange.vhost, []).append(difference)
    for vhost, found in by_vhost.items():
        rings = [escaped(each.exchange.name) for each in found]
        direct, lanes, queues, fans = False, list[str](), list[str](), list[str]()
        for each in found:
            destinations = _destinations(each, states[vhost], applied)
            direct = direct or any(destination.kind == "queue" for destination in destinations)
            names = [destination.name for destination in destinations if destination.kind == "exchange"]
            lanes += [_numbered(f"{each.exchange.name}.lane.", name, ordered) for name in names]
            bound = _queues(each, states[vhost], destinations)
            queues += [_numbered(f"{each.exchange.name}.", name, ordered) for name in bound]
            for shard in each.shards:
                label = each.exchange.label(shard.number)
                queues += [_numbered(name.removesuffix(label), name, ordered) for name in shard.queues[1:]]
                fans += [_numbered(f"{each.exchange.name}.fan.", shard.fan, ordered)] if shard.fan is not None else []
            # A fan stays when the last group but the exchange's own has gone, until its shard is retired.
            left = (states[vhost].lane(name).fan for name in names)
            fans += [_numbered(f"{each.exchange.name}.fan.", fan, ordered) for fan in left if fan]
        alternates = [str(a) for each in found if (a := each.exchange.arguments.get("alternate-exchange"))]
        shards = [shard for each in found for shard in each.shards]
        named = {shard.arguments.get("x-dead-letter-exchange") for shard in shards}
        # The empty name is the default exchange's, which rights call amq.default.
        dead = {name or "amq.default" for name in named if isinstance(name, str)}
        marked = {"amq.default"} if ordered else set()
        written = [*(["amq\\.default"] if direct else []), *rings, *lanes]
        yield _permission(vhost, "WRITER", [], written, [])
        yield _permission(vhost, "READER", [], [], queues)
        # A member joins once RabbitMQ has said that no queue has the exchange's name. RabbitMQ 4.3 says that only to a
        # user with a right on the name.
        named_groups = [escaped(f"{each.exchange.name}/{group}") for each in found for group in each.exchange.groups]
        yield _permission(vhost, "MEMBER", [], [], [*rings, *named_groups, *queues])
        groups = [to_group(each.exchange.name) for each in found]
        yield _permission(vhost, "SIDECAR", groups, [*written, *groups], groups)
        # Declaring asks for configure; binding for write on the destination and read on the source; a dead-letter
        # or alternate exchange for write on it, and for read on what names it. Markers go through the default exchange,
        # and the command consumes the queues behind them.
        yield _permission(
            vhost,
            "TOPOLOGY",
            [*rings, *lanes, *fans, *queues, escaped(LOCK_QUEUE)],
            [*lanes, *fans, *queues, *map(escaped, alternates), *map(escaped, sorted(marked | dead))],
            [*rings, *lanes, *fans, *(queues if dead or ordered else [])],
        )


def _destinations(difference: Difference, state: State, applied: bool) -> list[Destination]:
    """Return the queues and exchanges to which sidecars may publish what comes to an exchange.

    They are those of the wanted shards, what else is bound now, and the lanes that `retire` has not deleted yet. With
    `applied`, what the steps unbind is not among them.
    """
    exchange = difference.exchange
    wanted = [
        Destination("exchange", shard.lane) if shard.lane else Destination("queue", shard.queue)
        for shard in difference.shards
    ]
    unbound = {
        (step.destination, step.key, step.properties_key)
        for step in difference.steps
        if applied and isinstance(step, Unbind) and step.source == exchange.name
    }
    bound = {each.destination for each in state.bindings.get(exchange.name, ()) if each[:3] not in unbound}
    lanes = (exchange.shard(number).lane for number in exchange.retiring)
    left = {Destination("exchange", lane) for lane in lanes if lane is not None and lane in state.exchanges}
    return list(dict.fromkeys((*wanted, *sorted(bound | left))))


def _queues(difference: Difference, state: State, destinations: Iterable[Destination]) -> Iterator[str]:
    """Yield the names of the queues from which the messages of an exchange are consumed."""
    exchange = difference.exchange
    yield from (shard.queue for shard in difference.shards)
    behind = map(state.behind, destinations)
    yield from (destination.name for destination in behind if destination.kind == "queue")
    retiring = (exchange.shard(number).queue for number in sorted(exchange.retiring))
    yield from (queue for queue in retiring if queue in state.queues)


def _permission(vhost: str, user: str, configure: list[str], write: list[str], read: list[str]) -> str:
    patterns = [shlex.quote(pattern(parts)) for parts in (configure, write, read)]
    return f"rabbitmqctl set_permissions -p {shlex.quote(vhost)} {user} {' '.join(patterns)}"


def _numbered(prefix: str, name: str, ordered: bool) -> str:
    """Return a regular expression for the name of a shard's queue or lane.

    A name that is `prefix` and a number stands for all numbers, so that shards to come need no further right. In a
    later generation, or with `ordered`, it stands for all numbers of all generations.
    """
    label = name.removeprefix(prefix)
    if label != name and re.fullmatch("[1-9][0-9]*", label) and not ordered:
        return escaped(prefix) + "[0-9]+"
    if label != name and re.fullmatch("(g[1-9][0-9]*[.])?[1-9][0-9]*", label):
        return escaped(prefix) + "(g[0-9]+\\.)?[0-9]+"
    return escaped(name)
