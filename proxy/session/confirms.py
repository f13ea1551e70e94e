"""Which of a channel's publishes the broker has answered; numbers count them from 1, in the order they go out."""

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Final, NamedTuple

from proxy.journal.buffer import Journal, Record
from proxy.outcome import Outcome
from proxy.routing.counters import Counters
from proxy.session.unsettled import Unsettled

MOST_UNSETTLED: Final = 32_768
"""Publishes of one channel without an answer from which its client is not read until half of them have one."""

MOST_RECORDS: Final = 32_768
"""Unsettled publishes of one channel that are journalled: clients choose how many they do not wait for."""


class Kept(NamedTuple):
    """What a message that comes back cannot say of itself."""

    put_back: bytes
    """Table entries that were cut from its headers."""
    sent_key: bytes = b""
    """Where the stamps did not fit: the routing key and the exchange that it went out with,"""
    sent_to: bytes = b""
    exchange: bytes = b""
    """those of the client,"""
    routing_key: bytes = b""
    ring_id: int = 0
    """and its id; else 0."""


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
    """Counts each publish once, in the counters of its exchange, whatever mix of single and multiple answers comes.

    Publishes that came back and are on their way again keep the broker's acks for them waiting: a publish is settled
    once its client is told.
    """

    __slots__ = (
        "_apart", "_first", "_journal", "_kept_before", "answered", "base", "due", "kept", "low", "number", "open",
        "records", "returned", "waiting",
    )  # fmt: skip

    number: int
    """Of the last publish."""
    answered: bool
    """The broker answers publishes: the channel is in confirm mode or in transactions."""
    base: int
    """The last publish before that; delivery tags count from there."""
    low: int
    """All publishes up to this one are settled, and the next one is not."""
    open: Unsettled
    """The publishes that the broker has yet to answer."""
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
        self.open = Unsettled()
        self.returned = {}
        self.waiting = set()
        self._apart = 0
        """All up to this one that are not on their way again have been answered, while one before them is."""
        self._first: list[int] = []
        """A heap of what came back; some may have been told of since."""
        self.kept: dict[int, Kept] = {}
        """Of unsettled publishes, or where nothing is answered of the last ones: what their returns will not say."""
        self._kept_before = False
        """Some of them are of publishes before the first that is answered."""
        self.records: dict[int, Record] = {}
        """The records of unsettled publishes that are to be journalled, by number."""
        self._journal: Journal | None = None

    def start(self) -> None:
        """The broker answers all publishes from the next one on."""
        if not self.answered:
            self.base = self.low = self.number
            self.answered, self._kept_before = True, bool(self.kept)

    def publish(self, counters: Counters) -> None:
        """Number the next publish, and count it as published in its counters: as sent where nothing is answered."""
        self.number += 1
        counters.published += 1
        if self.answered:
            self.open.add(self.number, counters)
        else:
            counters.sent += 1

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
        return self.open.count

    def settled(self, number: int) -> bool:
        """Whether the broker has answered that publish."""
        return self.answered and self.base < number <= self.number and not self.open.has(number)

    def settle(self, number: int, multiple: bool, acked: bool) -> None:
        """Counts an answer to one publish, or to all up to it; an answer to nothing is ignored."""
        if not self.low < number <= self.number:
            return
        if not multiple or number == self.low + 1:
            self._settle_one(number, acked)
        else:
            self._settle_all(self.low + 1, number, acked)

    def _settle_one(self, number: int, acked: bool) -> None:
        counters = self.open.take(number)
        if counters is None:
            return
        if self.records:
            self._tell_all(number, number, acked)
        if self.returned or self.kept:
            self._settled(number, counters, acked)
        elif acked:
            counters.acked += 1
        else:
            counters.nacked += 1
        if number == self.low + 1:
            self._advance(number)

    def _settle_all(self, first: int, last: int, acked: bool) -> None:
        if self.records:
            self._tell_all(first, last, acked)
        if self.returned or self.kept:
            for number in self.open.within(first, last):
                counters = self.open.take(number)
                if counters is not None:
                    self._settled(number, counters, acked)
        else:
            self.open.count_off(first, last, acked=acked)
        self._advance(last)

    def _advance(self, number: int) -> None:
        """All up to that number are settled, and perhaps more."""
        self.low = self.open.first_beyond(number) - 1 if self.open.count else self.number

    def forget(self, number: int) -> None:
        """All publishes up to this one were rolled back: they never were."""
        for each in self.open.within(self.low + 1, number):
            self.open.take(each)
            self.returned.pop(each, None)
            self.records.pop(each, None)
            self.kept.pop(each, None)
        if number > self.low:
            self._advance(number)

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
        for n in self.open.within(max(self.low, self.due) + 1, min(number, self.number)):
            if n not in self.waiting:
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
                return told + self._all_up_to(number - 1) + self._beyond(number)
            heappop(self._first)
            if not fate.acked:
                told += [*self._all_up_to(number - 1), (number, False, False)]
                self.settle(number, False, False)
        due, self.due = self.due, 0
        return told + self._all_up_to(due)

    def _beyond(self, number: int) -> list[Told]:
        """An answer of its own for each publish up to `due` that need not wait for one that is on its way again."""
        told: list[Told] = []
        for n in self.open.within(max(number, self._apart) + 1, self.due):
            fate = self.returned.get(n, _TOLD)
            if fate is None:
                self.waiting.add(n)
            else:
                self.settle(n, False, fate.acked)
                told.append((n, False, fate.acked))
        self._apart = max(self._apart, self.due)
        return told

    def _all_up_to(self, number: int) -> list[Told]:
        """One ack for all up to that number that the client has not been told of, if there are any."""
        # Clients may ignore an ack that names what they have been told of (aiormq does).
        while number > self.low and not self.open.has(number):
            number -= 1
        if number <= self.low:
            return []
        self.settle(number, True, True)
        return [(number, True, True)]

    def abandon(self) -> None:
        """The channel is gone: of what the broker has not answered, nobody knows."""
        if not self.answered:
            return
        for number in self.open.within(self.low + 1, self.number):
            counters = self.open.take(number)
            if counters is not None:
                counters.unknown += 1
        if self.records:
            self._tell(self.records, Outcome.UNKNOWN)
        self.open.drop()
        self.low = self.number
        self.returned.clear()
        self.waiting.clear()
        self.kept.clear()
        self._first.clear()
        self.due = 0

    def _settled(self, number: int, counters: Counters, acked: bool) -> None:
        """Counts the answer to one publish, and forgets what was known of it."""
        self.kept.pop(number, None)
        if self._kept_before:
            # An answer to what was published later: those are done with.
            self.kept = {n: kept for n, kept in self.kept.items() if n > self.base}
            self._kept_before = False
        fate = self.returned.pop(number, None)
        self.waiting.discard(number)
        if fate is not None:
            counters.add(fate.outcome)
        elif acked:
            counters.acked += 1
        else:
            counters.nacked += 1

    def _tell_all(self, first: int, last: int, acked: bool) -> None:
        """Journals those of a range that are to be: looks at the range or at all of them, whichever is less."""
        records, span = self.records, range(first, last + 1)
        numbers = span if len(span) <= len(records) else [n for n in records if first <= n <= last]
        self._tell(numbers, Outcome.CONFIRMED if acked else Outcome.NACKED)

    def _tell(self, numbers: Iterable[int], outcome: Outcome) -> None:
        """Journals such of these publishes as are to be: those that came back by what became of them."""
        journal = self._journal
        assert journal is not None
        now = journal.clock()
        for number in list(numbers):
            record = self.records.pop(number, None)
            if record is None:
                continue
            told = outcome
            if self.returned and (fate := self.returned.get(number)) is not None:
                told = fate.outcome
            if told is Outcome.CONFIRMED and record.destination is None:
                told = Outcome.PASSED
            journal.add(record, told, now)
