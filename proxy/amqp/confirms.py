"""Which of a channel's publishes the broker has answered; numbers count them from 1, in the order they go out."""

from collections import deque
from heapq import heappop, heappush
from typing import Final, NamedTuple

from proxy.journal.buffer import Journal, Record
from proxy.outcome import Outcome
from proxy.tally import Tally

MOST_RECORDS: Final = 32_768
"""Unsettled publishes of one channel that are journalled: clients choose how many they do not wait for."""


class Fate(NamedTuple):
    """What became of a publish that came back."""

    outcome: Outcome
    acked: bool
    """What the client is told: an ack or a nack."""


_TOLD = Fate(Outcome.CONFIRMED, True)
"""Stands for one whose client has been told of it."""

Told = tuple[int, bool, bool]
"""An answer to a publish, or to all up to it: number, multiple, and whether it is an ack."""


class Confirms:
    """Counts each publish once, in the tally of its exchange, whatever mix of single and multiple answers comes.

    Publishes that came back and are on their way again keep the broker's acks for them waiting: a publish is settled
    once its client is told.
    """

    __slots__ = (
        "_first", "_journal", "above", "answered", "base", "due", "low", "number", "records", "returned", "runs",
        "tally", "waiting",
    )  # fmt: skip

    number: int
    """Of the last publish."""
    answered: bool
    """The broker answers publishes: the channel is in confirm mode or in transactions."""
    base: int
    """The last publish before that; delivery tags count from there."""
    low: int
    """All publishes up to this one are settled."""
    above: set[int]
    """Beyond `low`, those that are settled too."""
    returned: dict[int, Fate | None]
    """Unsettled publishes that came back; None for one that is on its way again."""
    waiting: set[int]
    """Of those, such as the broker has acked; the client is told once it is known what became of them."""
    due: int
    """The broker has acked all up to this one, which the client has not been told for the sake of some of those."""

    def __init__(self) -> None:
        """Before the first publish; nothing is answered yet."""
        self.number = self.base = self.low = self.due = 0
        self.answered = False
        self.above = set()
        self.returned = {}
        self.waiting = set()
        self._first: list[int] = []
        """A heap of what came back; some may have been told of since."""
        self.tally: Tally | None = None
        self.runs: deque[tuple[Tally, int]] = deque()
        """Of publishes before the present run of one tally: the tally and the last number of each run."""
        self.records: dict[int, Record] = {}
        """Of unsettled publishes that are to be journalled."""
        self._journal: Journal | None = None

    def start(self) -> None:
        """The broker answers all publishes from the next one on."""
        if not self.answered:
            self.base = self.low = self.number
            self.tally = None
            self.answered = True

    def turn(self, tally: Tally) -> None:
        """Publishes count in this tally from the next one on."""
        if self.answered and self.tally is not None and self.number > self.low:
            self.runs.append((self.tally, self.number))
        self.tally = tally

    def record(self, journal: Journal, record: Record) -> None:
        """Journals the last publish, once it is known what became of it."""
        if self.answered and len(self.records) >= MOST_RECORDS:
            journal.drop()
        elif self.answered:
            self._journal, self.records[self.number] = journal, record
        else:
            journal.add(record, Outcome.SENT, record.published_at)

    @property
    def unsettled(self) -> int:
        """Publishes that the broker has yet to answer."""
        return self.number - self.low - len(self.above) if self.answered else 0

    def settled(self, number: int) -> bool:
        """Whether the broker has answered that publish."""
        return self.answered and (self.base < number <= self.low or number in self.above)

    def settle(self, number: int, multiple: bool, acked: bool) -> None:
        """Counts an answer to one publish, or to all up to it; an answer to nothing is ignored."""
        if number > self.number or number <= self.low:
            return
        low = self.low
        if not multiple and number != low + 1:
            if number not in self.above:
                self._count(self._tally_of(number), number, number, 1, acked)
                self.above.add(number)
            return
        if number == low + 1:
            # One at a time, in order: no look at all that is settled beyond, or many acks would take their square.
            self._count(self._tally_of(number), number, number, 1, acked)
        else:
            for tally, first, last in self._runs(low + 1, number):
                self._count(tally, first, last, last - first + 1 - self._within(first, last), acked)
            self.above.difference_update(self._part_of_above(low + 1, number))
        self.low = number
        while self.low + 1 in self.above:
            self.low += 1
            self.above.remove(self.low)
        while self.runs and self.runs[0][1] <= self.low:
            self.runs.popleft()

    def forget(self, number: int) -> None:
        """All publishes up to this one were rolled back: they never were."""
        if number > self.low:
            self.low = number
            self.returned = {n: fate for n, fate in self.returned.items() if n > number}
            self.records = {n: record for n, record in self.records.items() if n > number}
            while self.runs and self.runs[0][1] <= self.low:
                self.runs.popleft()

    def came_back(self, number: int, fate: Fate | None) -> None:
        """An unsettled publish came back; None where it goes out again."""
        self.returned[number] = fate
        while self._first and self._first[0] not in self.returned:
            heappop(self._first)
        heappush(self._first, number)

    def answers(self, number: int, multiple: bool) -> list[Told]:
        """What to tell the client, which is settled with that, for the broker's ack of a publish, or of all up to it.

        Nothing yet of what came back and is on its way again; a nack for what failed. An ack of nothing stays as it is.
        """
        if not self.low < number <= self.number:
            return [(number, multiple, True)]
        if not multiple and number in self.returned:
            self.waiting.add(number)
            return self._told_of(number)
        if multiple:
            self.due = max(self.due, number)
            return self._overdue()
        self.settle(number, False, True)
        return [(number, False, True)]

    def refused(self, number: int, multiple: bool) -> list[Told]:
        """The same for its nack: what came back and was on its way again is not waited for any more.

        It does not mean those that the broker has acked and the client has not been told of.
        """
        if not multiple or not (self.due or self.waiting):
            self.settle(number, multiple, False)
            return [(number, multiple, False)]
        told = []
        for n in range(max(self.low, self.due) + 1, min(number, self.number) + 1):
            if n not in self.above and n not in self.waiting:
                self.settle(n, False, False)
                told.append((n, False, False))
        return told

    def decide(self, number: int, fate: Fate) -> list[Told]:
        """What to tell the client, and is settled with that, now that it is known what became of one that came back."""
        if number not in self.returned:
            return []
        self.returned[number] = fate
        return self._told_of(number) + (self._overdue() if self.due else [])

    def _told_of(self, number: int) -> list[Told]:
        """The answer to one that came back, if both are known: the broker's ack, and what became of it."""
        fate = self.returned[number]
        if fate is None or number not in self.waiting:
            return []
        self.waiting.discard(number)
        self.settle(number, False, fate.acked)
        return [(number, False, fate.acked)]

    def _overdue(self) -> list[Told]:
        """The answers to all up to `due`, as far as what became of those that came back is known."""
        told: list[Told] = []
        while self._first and self._first[0] <= self.due:
            number = self._first[0]
            fate = self.returned.get(number, _TOLD)
            if fate is None:
                return told + self._all_up_to(number - 1)
            heappop(self._first)
            if not fate.acked:
                told += [*self._all_up_to(number - 1), (number, False, False)]
                self.settle(number, False, False)
        due, self.due = self.due, 0
        return told + self._all_up_to(due)

    def _all_up_to(self, number: int) -> list[Told]:
        """One ack for all up to that number that the client has not been told of, if there are any."""
        # Clients may ignore an ack that names what they have been told of (aiormq does).
        while number in self.above:
            number -= 1
        if number <= self.low:
            return []
        self.settle(number, True, True)
        return [(number, True, True)]

    def abandon(self) -> None:
        """The channel is gone: of what the broker has not answered, nobody knows."""
        if self.answered:
            for tally, first, last in self._runs(self.low + 1, self.number):
                tally.unknown += last - first + 1 - self._within(first, last)
            if self.records:
                self._tell(self.low + 1, self.number, Outcome.UNKNOWN)
            self.low = self.number
            self.above.clear()
            self.returned.clear()
            self.waiting.clear()
            self._first.clear()
            self.due = 0

    def _count(self, tally: Tally, first: int, last: int, count: int, acked: bool) -> None:
        """Counts the `count` publishes of a range that were not settled before."""
        if self.records:
            self._tell(first, last, Outcome.CONFIRMED if acked else Outcome.NACKED)
        if self.returned:
            span = range(first, last + 1)
            for number in span if len(span) < len(self.returned) else [n for n in self.returned if n in span]:
                fate = self.returned.pop(number, None)
                self.waiting.discard(number)
                if fate is not None:
                    tally.add(fate.outcome)
                    count -= 1
        if acked:
            tally.acked += count
        else:
            tally.nacked += count

    def _tell(self, first: int, last: int, outcome: Outcome) -> None:
        """Journals the publishes of a range, but those that came back by what became of them."""
        journal, records = self._journal, self.records
        assert journal is not None
        now = journal.clock()
        span = last - first + 1
        for number in range(first, last + 1) if span <= len(records) else [n for n in records if first <= n <= last]:
            record = records.pop(number, None)
            if record is None:
                continue
            told = outcome
            if self.returned and (fate := self.returned.get(number)) is not None:
                told = fate.outcome
            if told is Outcome.CONFIRMED and record.destination is None:
                told = Outcome.PASSED
            journal.add(record, told, now)

    def _within(self, first: int, last: int) -> int:
        return len(self._part_of_above(first, last)) if self.above else 0

    def _part_of_above(self, first: int, last: int) -> list[int]:
        """Looks at the range or at all of it, whichever is less."""
        if last - first < len(self.above):
            return [n for n in range(first, last + 1) if n in self.above]
        return [n for n in self.above if first <= n <= last]

    def _tally_of(self, number: int) -> Tally:
        for tally, upto in self.runs:
            if number <= upto:
                return tally
        assert self.tally is not None
        return self.tally

    def _runs(self, first: int, last: int) -> list[tuple[Tally, int, int]]:
        """The part of each run that lies in a range."""
        parts = []
        for tally, upto in self.runs:
            if first <= upto:
                parts.append((tally, first, min(upto, last)))
                first = upto + 1
                if first > last:
                    return parts
        if self.tally is not None and first <= last:
            parts.append((self.tally, first, last))
        return parts
