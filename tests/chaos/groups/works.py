"""The judge of the work on each key: what workers of members in series began, completed and failed.

Theory
------

Each member writes down when a worker begins a message, and when it acks the message or nacks it, just before it does
so. In series four things hold for each key, whatever happens to members, sidecars and nodes:

- No two messages are at work at one time. A message counts as at work from its begin to its ack or nack. It no longer
  counts once it may have been taken from its member: as the connection ended, or as the member did not ack in time.
- The first completions come in the order of the publishes of one channel. A message that is completed again, as its
  ack was lost, is a repeat. A message that is given up has its place at its last try.
- Each confirmed message is completed, or is in the dead-letter queue.
- A message is in the dead-letter queue only if members failed it as often as the limit says. A move or a crash may make
  the sidecar forget tries, which makes it later, and never earlier. No try shows a higher number than the failures
  before it explain.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tests.chaos.groups.history import Begin, DeadLetter, Holder, How, Settlement
from tests.chaos.oracle import Note, Told, title

Identity = tuple[str, int]
"""A message: its publisher, and its number."""


@dataclass
class Worked:
    """How much work was looked at."""

    tries: int = 0
    failed: int = 0
    completed: int = 0
    """Messages that a member completed."""
    repeats: int = 0
    """Completions of a message that a member had completed before."""
    dead: int = 0
    """Messages in the dead-letter queue."""
    dead_again: int = 0
    """Dead letters of a message that is there already, or was completed: its ack was lost."""
    in_order: int = 0
    """Pairs of first completions of a key and channel, in the order of their publishes."""
    close: int = 0
    """Pairs among these of which the later message was published before the earlier one was done."""
    taken: Counter[str] = field(default_factory=Counter)
    """Works that were no more their member's when another began, by why that may be."""


class Works:
    """Takes begins and ends of work in the order of time, and finds what is wrong."""

    def __init__(self, limit: int, taken: Callable[[Begin, float], str], fault: Callable[[str], None]) -> None:
        """Start with no work.

        `limit` is how often a client gets a message; 0 for any number. `taken` returns why a delivery that is at work
        may have been taken from its member by a time; empty if it may not. `fault` is called with each fault in words.
        """
        self._limit, self._taken, self._fault = limit, taken, fault
        self.worked = Worked()
        self._at_work: defaultdict[str, dict[Begin, Note]] = defaultdict(dict)
        """By key, the works that have begun and not ended."""
        self._begun: dict[tuple[Holder, int], Begin] = {}
        """By holder and tag."""
        self._failed: Counter[Identity] = Counter()
        self._completed: set[Identity] = set()
        self._done_at: dict[Identity, float] = {}
        """When messages were completed or given up for the first time."""
        self._last: dict[tuple[str, str, str], tuple[Note, float]] = {}
        """By publisher, channel and key: the message that was done last for the first time, and when."""

    def done_at(self, note: Note) -> float | None:
        """Return when a message was completed or given up; None if it is not so far."""
        return self._done_at.get((note.publisher, note.number))

    def begun(self, begin: Begin, note: Note) -> None:
        """Take it that a worker begins."""
        self.worked.tries += 1
        failures = self._failed[note.publisher, note.number]
        if begin.attempt > failures + 1:
            self._fault(
                f"{title(note)} came to {_name(begin)} at {begin.at:.3f} as try {begin.attempt}, and members had"
                f" failed it {failures} times"
            )
        if 0 < self._limit < begin.attempt:
            self._fault(f"{title(note)} came to {_name(begin)} at {begin.at:.3f} as try {begin.attempt}")
        self._alone(begin, note)
        self._at_work[note.key][begin] = note
        self._begun[begin.holder, begin.tag] = begin

    def _alone(self, begin: Begin, note: Note) -> None:
        """Judge whether nobody else works on the key."""
        at_work = self._at_work[note.key]
        mine = self._taken(begin, begin.at)
        for other, theirs in list(at_work.items()):
            why = self._taken(other, begin.at)
            if why:
                del at_work[other]
            if why or mine:
                self.worked.taken[why or mine] += 1
                continue
            self._fault(
                f"{title(note)} was begun by {_name(begin)} at {begin.at:.3f} while {_name(other)} worked on"
                f" {theirs.publisher} {theirs.number} of the same key since {other.at:.3f}"
            )

    def ended(self, settlement: Settlement, note: Note) -> None:
        """Take it that a member acks or nacks a delivery."""
        begin = self._begun.get((settlement.holder, settlement.tag))
        if begin is None:
            self._fault(f"{title(note)} was settled at {settlement.at:.3f} and never begun")
            return
        self._at_work[note.key].pop(begin, None)
        identity = (note.publisher, note.number)
        if settlement.how is How.NACK:
            self.worked.failed += 1
            self._failed[identity] += 1
            if 0 < self._limit <= begin.attempt and self.done_at(note) is None:
                self._done(note, settlement.at, f"given up by {_name(begin)}")
        elif identity in self._completed:
            self.worked.repeats += 1
        else:
            self._completed.add(identity)
            if self.done_at(note) is None:
                self._done(note, settlement.at, f"completed by {_name(begin)}")

    def _done(self, note: Note, at: float, how: str) -> None:
        self._done_at[note.publisher, note.number] = at
        place = (note.publisher, note.channel, note.key)
        before, since = self._last.get(place, (None, 0.0))
        if before is not None and before.number > note.number:
            self._fault(f"{title(note)} was {how} at {at:.3f}, behind {title(before)}")
            return
        self._last[place] = (note, at)
        if before is not None:
            self.worked.in_order += 1
            self.worked.close += note.sent < since

    def judge_ends(self, notes: Iterable[Note], dead_letters: Iterable[DeadLetter]) -> Worked:
        """Judge what has become of each message once all is over."""
        told = {(note.publisher, note.number): note for note in notes}
        dead: set[Identity] = set()
        for letter in dead_letters:
            identity = (letter.publisher, letter.number)
            note, failures = told.get(identity), self._failed[identity]
            if note is None:
                self._fault(f"{letter.publisher} {letter.number} is a dead letter, and nobody published it")
                continue
            if not self._limit or failures < self._limit:
                self._fault(f"{title(note)} was dead-lettered, and members had failed it {failures} times")
            if letter.attempt != self._limit or letter.key != note.key:
                self._fault(f"{title(note)} was dead-lettered as try {letter.attempt} with the key {letter.key}")
            self.worked.dead_again += identity in dead or identity in self._completed
            dead.add(identity)
        for identity, note in told.items():
            if note.outcome == Told.CONFIRMED and identity not in self._completed and identity not in dead:
                self._fault(f"{title(note)} was confirmed and neither completed nor dead-lettered")
        self.worked.completed, self.worked.dead = len(self._completed), len(dead)
        return self.worked


def _name(begin: Begin) -> str:
    return f"{begin.holder.member} (connection {begin.holder.connection})"
