"""The judge: what publishers were told, against what was in the queues. Pure, and it knows nothing of the proxy."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

from tests.chaos.history import Deletion, Flap, Hang, History, Limits, Rings

UNKNOWN_FOR = 15.0
"""Seconds after a publisher gave up in which its bytes, held up somewhere, may still be routed."""

AROUND_A_DELETION = 0.5
"""Seconds before and after a deletion in which a message may have been on its way to the queue. They count from when
all that was in the queue was taken last.
"""

STANDSTILL = 3.0
"""Seconds for which a publisher may be confirmed nothing while the management API hangs: one request's time-out,
and twice as much for a machine whose processors are all busy. Six queues that are waited for in turn take six."""

UNANSWERED = 14.0
"""Seconds from which a publish counts as left without an answer: longer than an alarm, a lost connection or an election
of this suite. After 15 s without the confirm of a message that it publishes again, a sidecar ends the session.
"""

GONE_AFTER = 0.05
"""Seconds after its end from which the broker returns what is sent there, so that nothing of it may be missing."""


class Told(StrEnum):
    """The outcome of a message, as its publisher was told."""

    CONFIRMED = "confirmed"
    NACKED = "nacked"
    RETURNED = "returned"
    UNKNOWN = "unknown"
    REFUSED = "refused"
    """It was never sent: so said the proxy, or nobody took the connection."""


class Note(NamedTuple):
    """The note of one publisher on one message. Times are monotonic seconds."""

    publisher: str
    channel: str
    """The publisher's unit that keeps the order of a key, such as an AMQP channel or a batch."""
    number: int
    """Counts the messages of this publisher."""
    key: str
    sent: float
    told: float
    outcome: Told

    @property
    def latest(self) -> float:
        """Until when it may have been routed."""
        return self.told + UNKNOWN_FOR if self.outcome == Told.UNKNOWN else self.told


class Copy(NamedTuple):
    """A message as it was found in a queue."""

    queue: str
    publisher: str
    number: int
    exchange: str
    """The value of `x-ring-exchange`; empty where there is none."""
    key: str
    """The value of `x-ring-routing-key`; empty where there is none."""


@dataclass(frozen=True)
class Fleet:
    """The facts about publishers that the judge must know beside their notes."""

    exchange: str
    native: frozenset[str] = frozenset()
    """Those that publish at the broker itself: their messages are not judged for routing."""
    order_of_confirmed: frozenset[str] = frozenset()
    """Those for whom a channel keeps no order but that of confirmed messages: single HTTP requests."""
    lasting: frozenset[str] = frozenset()
    """Those whose sidecar goes on to route by a ring that nobody can read anew for longer than a run takes."""
    answered: bool = False
    """Whether RabbitMQ answers every publish. A cluster may leave publishes to a quorum queue without an answer, if the
    queue was deleted and made anew, or a node was killed meanwhile.
    """


@dataclass
class Verdict:
    """The faults that were found, in words, and how much was looked at."""

    faults: list[str] = field(default_factory=list)
    outcomes: dict[str, Counter[Told]] = field(default_factory=lambda: defaultdict(Counter))
    """By publisher."""
    found: Counter[Told] = field(default_factory=Counter)
    """Messages in a queue, by what their publishers were told."""
    exempt: Counter[str] = field(default_factory=Counter)
    """Confirmed messages that went with a queue as it was deleted, by queue."""
    duplicates: int = 0
    """Messages found twice that may be."""
    routed: int = 0
    """Copies of confirmed messages that were judged for routing."""
    by_one_ring: int = 0
    """Copies among these for which every ring that may have been in force agreed: how sharp this was."""
    in_order: int = 0
    """Pairs of messages of one key and channel, next to each other in a queue, that were in order."""
    stale_for: float = 0.0
    """Seconds in which nothing might be routed, as every ring was too old."""
    moved: int = 0
    """Pairs of this kind that were not in order, and need not be: `_ordered` says when."""
    flapped: int = 0
    """Messages of queues that flapped meanwhile, answered in time: none of them may come back."""
    unanswered: dict[str, float] = field(default_factory=dict)
    """By publisher: when it last gave up waiting for an answer that RabbitMQ may owe it."""
    standstills: dict[str, float] = field(default_factory=dict)
    """By publisher: the longest time, in seconds, in which it was confirmed nothing while the management API hung."""


def judge(notes: Iterable[Note], copies: Sequence[Copy], history: History, limits: Limits, fleet: Fleet) -> Verdict:
    """Judge a run. `copies` of one queue stand in the order that they were taken out in."""
    return _Judge(history, Rings(history, limits), fleet).judged(notes, copies)


class _Judge:
    def __init__(self, history: History, rings: Rings, fleet: Fleet) -> None:
        self._history, self._rings, self._fleet = history, rings, fleet
        self._verdict = Verdict()

    def judged(self, notes: Iterable[Note], copies: Sequence[Copy]) -> Verdict:
        self._verdict.stale_for = self._rings.stale_for()
        by_id: dict[tuple[str, int], Note] = {}
        for note in notes:
            if (note.publisher, note.number) in by_id:
                self._fault(f"{title(note)} was written down twice")
            by_id[note.publisher, note.number] = note
            self._verdict.outcomes[note.publisher][note.outcome] += 1
        times: Counter[tuple[str, int]] = Counter()
        last: dict[tuple[str, str, str, str], Note] = {}
        for copy in copies:
            found = by_id.get((copy.publisher, copy.number))
            if found is None:
                self._fault(f"{copy.publisher} {copy.number} is in {copy.queue}, and nobody says it was published")
                continue
            times[copy.publisher, copy.number] += 1
            self._placed(copy, found)
            if times[copy.publisher, copy.number] == 1:
                self._ordered(copy, found, last)
        for identity, note in by_id.items():
            self._counted(note, times[identity])
            self._answered(note)
        for flap in self._history.flaps:
            self._stood(flap, by_id.values())
        for hang in self._history.hangs:
            self._went_on(hang, by_id.values())
        return self._verdict

    def _placed(self, copy: Copy, note: Note) -> None:
        """Whether a ring of its time chose the queue, and whether it says where it was published."""
        if note.publisher in self._fleet.native:
            return
        if (copy.exchange, copy.key) != (self._fleet.exchange, note.key):
            self._fault(f"{title(note)} is in {copy.queue} and says {copy.exchange!r}, {copy.key!r}: no ring routed it")
            return
        owners = self._rings.owners(note.key, note.sent, note.latest)
        if note.outcome == Told.CONFIRMED:
            self._verdict.routed += 1
            self._verdict.by_one_ring += len(owners) == 1
        if note.publisher not in self._fleet.lasting and self._rings.stale(note.sent, note.latest):
            self._fault(f"{title(note)} is in {copy.queue}, and every ring was too old to route by")
        if copy.queue not in owners and copy.queue not in self._rings.kept(note.key, note.sent, note.latest):
            self._fault(f"{title(note)} is in {copy.queue}, and not in {sorted(owners)}")

    def _ordered(self, copy: Copy, note: Note, last: dict[tuple[str, str, str, str], Note]) -> None:
        """Whether it came behind what its channel published of its key before."""
        if note.publisher in self._fleet.order_of_confirmed and note.outcome != Told.CONFIRMED:
            return
        place = (copy.queue, note.publisher, note.channel, note.key)
        before = last.get(place)
        if before is None or before.number < note.number:
            self._verdict.in_order += before is not None
            last[place] = note
            return
        begin, end = min(before.sent, note.sent), max(before.latest, note.latest)
        queues = self._chosen(note, begin, end)
        deletion = self._deleted(queues, begin, end)
        if note.publisher in self._fleet.native or not note.outcome == before.outcome == Told.CONFIRMED:
            excuse = len(queues) > 1 or deletion is not None
        else:
            # A change of the ring is none: a sidecar sends a key's next message by another ring after the earlier ones.
            excuse = self._made_anew(copy.queue, begin, end)
        if excuse:
            self._verdict.moved += 1
        else:
            self._fault(f"{title(note)} is behind {title(before)} in {copy.queue}")

    def _counted(self, note: Note, times: int) -> None:
        """Whether it is as often in queues as its publisher was told."""
        self._verdict.found[note.outcome] += times > 0
        if times == 0 and note.outcome == Told.CONFIRMED:
            queues = self._chosen(note, note.sent, note.latest)
            deletion = self._deleted(queues, note.sent, note.latest, after=GONE_AFTER)
            if deletion:
                self._verdict.exempt[deletion.queue] += 1
            else:
                self._fault(f"{title(note)} was confirmed and is in no queue")
        if times and note.outcome == Told.REFUSED:
            self._fault(f"{title(note)} was never sent, its publisher was told, and is in a queue")
        if times > 1:
            queues = self._chosen(note, note.sent, note.latest)
            if note.outcome == Told.UNKNOWN or self._deleted(queues, note.sent, note.latest):
                self._verdict.duplicates += 1
            else:
                self._fault(f"{title(note)} is {times} times in queues")

    def _answered(self, note: Note) -> None:
        """Whether it was answered at all, where RabbitMQ answers everything."""
        if note.outcome != Told.UNKNOWN or note.told - note.sent < UNANSWERED:
            return
        if self._fleet.answered and note.publisher not in self._fleet.native:
            self._fault(f"{title(note)} was left without an answer")
        else:
            self._verdict.unanswered[note.publisher] = max(note.told, self._verdict.unanswered.get(note.publisher, 0.0))

    def _went_on(self, hang: Hang, notes: Iterable[Note]) -> None:
        """Whether what goes to queues that stayed was confirmed all the while, to those who were well before.

        A time in which no native publisher was confirmed anything either is the broker's or the machine's.
        """
        told: dict[str, list[float]] = defaultdict(list)
        natively: list[float] = []
        well: set[str] = set()
        for note in notes:
            if note.publisher in self._fleet.native and note.outcome == Told.CONFIRMED:
                natively += [note.told] if hang.begin < note.told < hang.end else []
            if note.publisher in self._fleet.lasting and note.outcome == Told.CONFIRMED:
                if hang.begin - STANDSTILL <= note.told <= hang.begin:
                    well.add(note.publisher)
                elif hang.begin < note.told < hang.end and self._stayed(note, hang):
                    told[note.publisher].append(note.told)
        for publisher in sorted(well):
            times = [hang.begin, *sorted(told[publisher]), hang.end]
            longest = max(after - before - _shared(before, after, natively) for before, after in pairwise(times))
            self._verdict.standstills[publisher] = max(longest, self._verdict.standstills.get(publisher, 0.0))
            if longest > STANDSTILL:
                self._fault(
                    f"{publisher} was confirmed nothing for the queues that stayed for {longest:.1f} s, while the"
                    f" management API hung from {hang.begin:.3f} to {hang.end:.3f}"
                )
        if not well:
            self._fault(f"nobody was well as the management API began to hang at {hang.begin:.3f}: this says nothing")

    def _stood(self, flap: Flap, notes: Iterable[Note]) -> None:
        """Judge whether messages of a queue that flapped went to a queue, as others stood all the while.

        A nack may be the broker's own, which nacks what reaches a queue as that goes.
        """
        judged = [note for note in notes if flapped(note, flap, self._rings, self._fleet)]
        self._verdict.flapped += len(judged)
        for note in judged:
            if note.outcome == Told.RETURNED:
                self._fault(f"{title(note)} came back while {flap.queue} flapped, and other queues stood")
        if not judged:
            self._fault(f"no message was judged while {flap.queue} flapped from {flap.begin:.3f}: this says nothing")

    def _stayed(self, note: Note, hang: Hang) -> bool:
        """Return whether no ring of the time before the hang had its key in a queue that went."""
        return self._rings.owners(note.key, hang.begin - STANDSTILL, hang.begin).isdisjoint(hang.queues)

    def _chosen(self, note: Note, begin: float, end: float) -> set[str]:
        """Where rings put its key between these times; anywhere, where the broker's own exchange did."""
        if note.publisher in self._fleet.native:
            return self._rings.queues(begin, end)
        return self._rings.owners(note.key, begin, end)

    def _deleted(self, queues: set[str], begin: float, end: float, after: float = AROUND_A_DELETION) -> Deletion | None:
        """Return a deletion of one of these queues between these times, or so many seconds before."""
        for deletion in self._history.deletions:
            since = min(deletion.begin, deletion.unread_from) - AROUND_A_DELETION
            near = since <= end and begin <= deletion.done + after
            if near and deletion.queue in queues:
                return deletion
        return None

    def _made_anew(self, queue: str, begin: float, end: float) -> bool:
        """Return whether a queue was deleted, and is bound again, between these times."""
        bound = [(change.begin, change.weights) for change in self._history.changes]
        for deletion in self._history.deletions:
            back = any(deletion.begin < at <= end and queue in weights for at, weights in bound)
            if deletion.queue == queue and begin <= deletion.done and back:
                return True
        return any(flap.queue == queue and flap.begin <= end and begin <= flap.end for flap in self._history.flaps)

    def _fault(self, words: str) -> None:
        self._verdict.faults.append(words)


def flapped(note: Note, flap: Flap, rings: Rings, fleet: Fleet) -> bool:
    """Return whether a message may have come back from a queue that flapped, and must have been published again."""
    return (
        flap.begin <= note.sent <= flap.end
        and note.publisher not in fleet.native
        and rings.prompt(note.sent, note.told)
        and flap.queue in rings.owners(note.key, note.sent, note.latest)
    )


def title(note: Note) -> str:
    """Return a message in words: enough to find all there is about it."""
    return (
        f"{note.publisher} {note.number} (channel {note.channel}, key {note.key}, {note.sent:.3f} to {note.told:.3f},"
        f" {note.outcome})"
    )


def _shared(begin: float, end: float, others: Collection[float]) -> float:
    """Return the longest part of a time, in seconds, in which none of the others was told anything; 0 without others.

    `others` are the times at which they were.
    """
    times = [begin, *sorted(told for told in others if begin < told < end), end]
    return max(after - before for before, after in pairwise(times)) if others else 0.0
