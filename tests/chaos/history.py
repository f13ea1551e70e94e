"""The bindings, deletions and outages as they really were: written down by whoever did it, never by the proxy."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, combinations
from typing import NamedTuple

from ring.destination import Destination
from ring.hashing import slot_of
from ring.ring import Ring

Weights = Mapping[str, int]
"""The weights of the queues that are bound."""


class Change(NamedTuple):
    """The bindings became these, by a request that ran from `begin` to `done`. Times are monotonic seconds."""

    begin: float
    done: float
    weights: Weights


class Deletion(NamedTuple):
    """A queue was deleted, by a request that ran from `begin` to `done`."""

    queue: str
    begin: float
    done: float
    unread_from: float = float("inf")
    """The time up to which all that had reached the queue was surely consumed. Infinite if nothing of it is lost."""


class Span(NamedTuple):
    """A time in which no reading of the bindings could be relied on."""

    begin: float
    end: float


class Hang(NamedTuple):
    """The management API took requests and answered none, and these queues were deleted together as that began."""

    begin: float
    end: float
    queues: tuple[str, ...]


class Flap(NamedTuple):
    """A bound queue was deleted, and made anew and deleted again several times; it was bound in the end."""

    queue: str
    begin: float
    end: float


@dataclass(frozen=True)
class Limits:
    """How long a proxy may route by bindings that have changed since, and wait for new ones, in seconds."""

    grace: float
    """Once the bindings can be read: the sync interval, the settle time, and what a busy machine takes."""
    stale_after: float
    """While they cannot be read at all: `ring_max_age` of a proxy that then refuses to route, and some more."""
    waits: float
    """For a reading that tells where a message goes which came back: `lookup_timeout`."""


@dataclass
class History:
    """All of a run, in the order that it happened in."""

    weights: Weights
    """The weights before the first change."""
    changes: list[Change] = field(default_factory=list)
    deletions: list[Deletion] = field(default_factory=list)
    impaired: list[Span] = field(default_factory=list)
    down: list[Span] = field(default_factory=list)
    """Times in which no request for bindings was answered at all; impaired they are, too."""
    hangs: list[Hang] = field(default_factory=list)
    flaps: list[Flap] = field(default_factory=list)
    lanes_deleted: list[Deletion] = field(default_factory=list)
    """The deletions of lanes, by the queue behind each."""

    @property
    def current(self) -> Weights:
        return self.changes[-1].weights if self.changes else self.weights

    def is_impaired(self, begin: float, end: float) -> bool:
        """Return whether bindings could not be relied on to be readable at some moment between these times."""
        return any(begin < span.end and span.begin < end for span in self.impaired)

    def impaired_for(self) -> float:
        """Return the seconds in all."""
        total, until = 0.0, float("-inf")
        for span in sorted(self.impaired):
            total += max(span.end - max(span.begin, until), 0.0)
            until = max(until, span.end)
        return total

    def seen_deletions(self, around: float) -> int:
        """Deletions of bound queues, where the bindings could be read for so many seconds before and after, too."""
        left = {change.begin for change in self.changes}
        return sum(
            deleted.begin in left and not self.is_impaired(deleted.begin - around, deleted.done + around)
            for deleted in self.deletions
        )


REFUSED_FOR = 10.0
"""Seconds for which a sidecar takes it that a lane is gone to which a publish was refused, whatever a reading shows: a
change made elsewhere counts after that (docs/explanation/reliability.md, "A ring follows the bindings").
"""


class Era(NamedTuple):
    """A ring, from the moment its bindings began to change to the last at which it may have been in force."""

    ring: Ring
    begin: float
    end: float


class Rings:
    """Which ring may have been in force when."""

    def __init__(self, history: History, limits: Limits) -> None:
        self._history, self._limits = history, limits
        self._slots: dict[str, int] = {}
        self._mixed: dict[frozenset[tuple[Destination, int]], Ring] = {}

    @cached_property
    def _eras(self) -> list[Era]:
        changes = [Change(float("-inf"), float("-inf"), self._history.weights), *self._history.changes]
        ends = [self._outlived(change.done) for change in changes[1:]] + [float("inf")]
        rings = self._rings([change.weights for change in changes])
        return [Era(ring, change.begin, end) for ring, change, end in zip(rings, changes, ends, strict=True)]

    @cached_property
    def _begins(self) -> list[float]:
        return [era.begin for era in self._eras]

    def owners(self, key: str, sent: float, latest: float) -> set[str]:
        """Return the queues of a key on every ring that may have been in force between these times."""
        slot = self._slots.get(key)
        if slot is None:
            slot = self._slots[key] = slot_of(key.encode())
        return {era.ring.owner(slot).name for era in self._between(sent, latest)}

    def kept(self, key: str, sent: float, latest: float) -> set[str]:
        """Return the queues of a key on rings of new bindings with old ones kept beside them, as a proxy has it.

        A new binding counts at once, and one that has left must settle, after an outage anew. But a queue that was
        deleted leaves at once where a message has come back from it. And a queue whose lane was deleted may be off the
        new ring although its lane was made anew.
        """
        eras, slot = list(self._between(sent, latest)), slot_of(key.encode())
        deleted, refused = self._deleted(eras[-1].begin, latest), self._refused(sent, latest)
        found = set()
        if refused:
            for era in eras:
                rest = {queue: weight for queue, weight in era.ring.as_weights().items() if queue not in refused}
                found.add(self._of(era.ring, rest).owner(slot).name)
        for at, newer in enumerate(eras):
            older: dict[Destination, int] = {}
            for era in eras[at + 1 :]:
                older = {**era.ring.as_weights(), **older}
                left = [queue for queue in older if queue in deleted and queue not in newer.ring.destinations]
                for told in chain.from_iterable(combinations(left, n) for n in range(len(left) + 1)):
                    kept = {queue: weight for queue, weight in older.items() if queue not in told}
                    found.add(self._mix(newer.ring, kept).owner(slot).name)
        return found

    def _mix(self, newer: Ring, kept: Mapping[Destination, int]) -> Ring:
        return self._of(newer, {**kept, **newer.as_weights()})

    def _of(self, like: Ring, weights: Mapping[Destination, int]) -> Ring:
        """Return the ring of these weights, built of one that is like it, and never twice."""
        known = frozenset(weights.items())
        if known not in self._mixed:
            self._mixed[known] = like.changed(weights)
        return self._mixed[known]

    def _refused(self, begin: float, end: float) -> set[Destination]:
        """Return the queues that may have been left out between these times, as a publish to the lane was refused."""
        return {
            Destination("queue", lost.queue)
            for lost in self._history.lanes_deleted
            if lost.begin <= end and begin <= self._bound_again(lost) + REFUSED_FOR + self._limits.grace
        }

    def _bound_again(self, lost: Deletion) -> float:
        """Return when a queue was bound again after the deletion of its lane; infinity if it was not."""
        later = (change for change in self._history.changes if change.begin > lost.done)
        return next((change.done for change in later if lost.queue in change.weights), float("inf"))

    def _deleted(self, begin: float, end: float) -> set[Destination]:
        """Return the queues that were deleted between these times."""
        return {
            Destination("queue", deletion.queue)
            for deletion in self._history.deletions
            if begin <= deletion.done and deletion.begin <= end
        }

    def queues(self, sent: float, latest: float) -> set[str]:
        """Return the queues that were bound, or may have seemed so, between these times."""
        return {destination.name for era in self._between(sent, latest) for destination in era.ring.destinations}

    def prompt(self, sent: float, told: float) -> bool:
        """Return whether a message was answered before its wait for a reading may have ended without one."""
        return told - sent < self._limits.waits and not self._history.is_impaired(sent, told)

    def stale(self, sent: float, told: float) -> bool:
        """Whether every ring was too old to route by, from before a message was sent until after it was answered."""
        return any(begin < sent and told < end for begin, end in self._stale)

    def stale_for(self) -> float:
        """Return the seconds in all in which every ring was too old."""
        return sum(end - begin for begin, end in self._stale)

    @cached_property
    def _stale(self) -> list[Span]:
        spans = [Span(down.begin + self._limits.stale_after, down.end) for down in self._history.down]
        return [span for span in spans if span.begin < span.end]

    def _between(self, sent: float, latest: float) -> Iterator[Era]:
        for at in range(bisect_right(self._begins, latest) - 1, -1, -1):
            era = self._eras[at]
            if era.end < sent:  # and so did all before it
                return
            yield era

    def _outlived(self, done: float) -> float:
        """Return the last moment at which what a change took away may still be believed."""
        end = done + self._limits.grace
        for span in sorted(self._history.impaired):
            if span.begin < end and span.end > done:
                end = max(end, span.end + self._limits.grace)
        return end

    @staticmethod
    def _rings(all_weights: list[Weights]) -> list[Ring]:
        """One for each, built of the one before, and never twice."""
        made: dict[frozenset[tuple[str, int]], Ring] = {}
        rings: list[Ring] = []
        for weights in all_weights:
            known = frozenset(weights.items())
            if known not in made:
                wanted = {Destination("queue", name): weight for name, weight in weights.items()}
                made[known] = rings[-1].changed(wanted) if rings else Ring.build(wanted)
            rings.append(made[known])
        return rings
