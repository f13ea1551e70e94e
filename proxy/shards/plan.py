"""What a topology file would change: the steps, the keys that move, what waits where they leave, and rights. Pure."""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from proxy.shards.document import DocumentError, Sharded, clashes
from proxy.shards.state import State
from proxy.shards.steps import Difference, Step, compare
from ring.destination import Destination
from ring.hashing import SLOTS
from ring.ring import Ring

LOCK_QUEUE = "ring-proxy.topology"
"""The exclusive queue that whoever applies a file holds in each of the file's virtual hosts."""


class Move(NamedTuple):
    """The keys that one destination hands over to another one."""

    source: Destination
    target: Destination
    slots: int
    """How many of the `SLOTS` equal shares of all keys move so."""


@dataclass(frozen=True)
class Planned:
    """What is planned for one exchange."""

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
    """What a file would change."""

    exchanges: tuple[Planned, ...]
    rights: tuple[str, ...]
    """The rights that the users need, as lines for a shell."""

    @property
    def steps(self) -> tuple[tuple[str, Step], ...]:
        """All steps, each with its virtual host, in the order in which they are taken."""
        return tuple(
            (each.difference.exchange.vhost, step) for each in self.exchanges for step in each.difference.steps
        )

    @property
    def refusals(self) -> tuple[str, ...]:
        """All that cannot be done."""
        return tuple(line for each in self.exchanges for line in each.difference.refusals)

    @property
    def warnings(self) -> tuple[str, ...]:
        """All that exists as wanted and may lose messages, or surprise."""
        return tuple(line for each in self.exchanges for line in each.difference.warnings)


def make_plan(document: Sequence[Sharded], states: Mapping[str, State]) -> Plan:
    """Return what a file would change. `states` has what exists in each virtual host that the file names.

    Raises DocumentError if two exchanges come to share a queue or a lane.
    """
    differences = [compare(exchange, states[exchange.vhost]) for exchange in document]
    if lines := clashes((each.exchange, each.shards) for each in differences):
        raise DocumentError(lines)
    planned = [_planned(difference, states[difference.exchange.vhost]) for difference in differences]
    return Plan(tuple(planned), tuple(rights(differences)))


def _planned(difference: Difference, state: State) -> Planned:
    rings = rings_between(difference.before, difference.after)
    if rings is None:
        return Planned(difference, (), {})
    moves = moves_between(*rings)
    sources = dict.fromkeys(move.source for move in moves)
    waiting = {source: _waiting(source, state) for source in sources}
    one, other, _ = _owners(*rings)
    return Planned(difference, moves, waiting, one != other)


def _waiting(destination: Destination, state: State) -> int | None:
    queue = state.queues.get(destination.name) if destination.kind == "queue" else None
    return queue.waiting if queue is not None else None


def rings_between(before: Mapping[Destination, int], after: Mapping[Destination, int]) -> tuple[Ring, Ring] | None:
    """Return the rings that sidecars build of the weights before and after a change; None if no key moves."""
    if not before or not after or dict(before) == dict(after):
        return None
    old = Ring.build(before)
    return old, old.changed(after)


def moves_between(old: Ring, new: Ring) -> tuple[Move, ...]:
    """Return which keys move where if one ring replaces another."""
    one, other, destinations = _owners(old, new)
    found, counts = np.unique(one * len(destinations) + other, return_counts=True)
    moves = []
    for pair, slots in zip(found.tolist(), counts.tolist(), strict=True):
        source, target = divmod(pair, len(destinations))
        if source != target:
            moves.append(Move(destinations[source], destinations[target], slots))
    return tuple(moves)


def _owners(old: Ring, new: Ring) -> tuple[NDArray[np.int64], NDArray[np.int64], list[Destination]]:
    """Return the owner of each slot on both rings, as indices into one list of destinations, and that list."""
    destinations = sorted({*old.destinations, *new.destinations})
    index = {destination: at for at, destination in enumerate(destinations)}
    one, other = (np.array([index[d] for d in ring.destinations])[ring.table] for ring in (old, new))
    return one, other, destinations


def rights(differences: Iterable[Difference]) -> Iterator[str]:
    """Yield rabbitmqctl lines for the users: who publishes through sidecars, who consumes, and who applies the file."""
    by_vhost: dict[str, list[Difference]] = {}
    for difference in differences:
        by_vhost.setdefault(difference.exchange.vhost, []).append(difference)
    for vhost, found in by_vhost.items():
        rings = [each.exchange.name for each in found]
        shards = [shard for each in found for shard in each.shards]
        lanes = [shard.lane for shard in shards if shard.lane is not None]
        queues = [shard.queue for shard in shards]
        direct = ["amq.default"] if len(lanes) < len(queues) else []
        alternates = [str(a) for each in found if (a := each.exchange.arguments.get("alternate-exchange"))]
        dead = {str(a) for shard in shards if (a := shard.arguments.get("x-dead-letter-exchange"))}
        yield _permission(vhost, "WRITER", [], [*direct, *rings, *lanes], [])
        yield _permission(vhost, "READER", [], [], queues)
        # Declaring asks for configure; binding for write on the destination and read on the source; a dead-letter
        # or alternate exchange for write on it, and for read on what names it.
        yield _permission(
            vhost,
            "TOPOLOGY",
            [*rings, *lanes, *queues, LOCK_QUEUE],
            [*lanes, *queues, *alternates, *sorted(dead)],
            [*rings, *lanes, *(queues if dead else [])],
        )


def _permission(vhost: str, user: str, configure: list[str], write: list[str], read: list[str]) -> str:
    patterns = [shlex.quote(pattern(names)) for names in (configure, write, read)]
    return f"rabbitmqctl set_permissions -p {shlex.quote(vhost)} {user} {' '.join(patterns)}"


_NUMBERED = re.compile(r"(.*\.)[1-9][0-9]*", re.DOTALL)


def pattern(names: Iterable[str]) -> str:
    """Return a regular expression for RabbitMQ's permissions that matches these names.

    Names that end in a dot and a number stand for all numbers, so that shards to come need no further right.
    """
    parts: dict[str, None] = {}
    for name in names:
        numbered = _NUMBERED.fullmatch(name)
        parts[_escaped(numbered[1]) + "[0-9]+" if numbered else _escaped(name)] = None
    return f"^({'|'.join(parts)})$" if len(parts) > 1 else f"^{''.join(parts)}$"


def _escaped(text: str) -> str:
    """Return a regular expression that matches this text, for Erlang's re, which has no escape for other characters."""
    return re.sub(r"([.^$*+?()\[\]{}|\\])", r"\\\1", text)
