"""The publishes of a client's channel and the broker's answers to them, numbered from 1 in the order they go out.

This is one of the proxy's three books of delivery tags. It keeps each number, because it must say what an ack with
`multiple` settles when some of the acked publishes came back. `Republishing` has a dict of the few messages that are
under way again, which are found by ring id as well. `proxy/publisher/channel.py` keeps receivers, called in order.

Theory of operation
-------------------

A client with confirms gets exactly one answer for each publish, and the broker's ack of a publish that came back says
nothing: RabbitMQ acks what it has returned. Three facts decide on a publish, and they come in any order:

    the broker has answered it                       `open` no longer has it, or `waiting` or `due` remembers the ack
    it came back                                     `returned` has it, with None while it is on its way again
    what became of its second way                    `returned` has its settlement

The client gets its answer when the broker has acked the publish and either it has not come back, or its settlement is
known. An ack of one publish that is not settled yet waits in `waiting`. An ack of all publishes up to a number may
cover settled and unsettled ones. It is kept as that number, `due`, and is paid out from below (`_answers_due`): all up
to the lowest unsettled publish in one multiple ack, a settled failure as a nack of its own between two acks. The
publishes beyond the lowest unsettled one must not wait for it, because one slow queue would hold up every other queue
of the channel. They are answered one by one (`_beyond`), and from then on, up to `_apart`, no multiple ack is sent: it
would cover the publish that is still on its way.

As long as nothing has come back, none of this costs anything: an ack of a thousand publishes makes one answer, and
`Unsettled` counts them off page by page.
"""

# mypyc: compiled

from collections.abc import Iterable, Mapping
from heapq import heappop, heappush
from typing import Final, NamedTuple

from proxy.journal.buffer import Journal, Record
from proxy.outcome import Outcome
from proxy.routing.counters import Counters
from proxy.session.publishing.unsettled import Unsettled
from proxy.tracing.tracer import Span

MOST_UNSETTLED: Final = 32_768
"""The most publishes of one channel without an answer; its client is then not read until half of them have one."""

MOST_RECORDS: Final = 32_768
"""Unsettled publishes of one channel that are journalled: clients choose how many they do not wait for."""


class PublishNote(NamedTuple):
    """Facts about a publish that its message would not show if it came back."""

    put_back: bytes
    """The entries that were cut from the message's headers table."""
    sent_key: bytes = b""
    """The routing key that the message went out with, if the stamps did not fit into its header; else empty."""
    sent_to: bytes = b""
    """The exchange that a message without stamps went out to; empty for the default exchange."""
    exchange: bytes = b""
    """The exchange that the client published a message without stamps to."""
    routing_key: bytes = b""
    """The routing key that the client published a message without stamps with."""
    ring_id: int = 0
    """The ring id of a message without stamps; 0 for a message that has its stamps."""
    by_lane: bool = False
    """Whether a message without stamps went out through a lane."""


class Settlement(NamedTuple):
    """The outcome of a publish that came back, and the answer that its client gets."""

    outcome: Outcome
    acked: bool
    """Whether the client gets an ack; else it gets a nack."""


_ANSWERED = Settlement(Outcome.CONFIRMED, True)
"""Stands for a message that came back, and whose client has got an answer."""

Answer = tuple[int, bool, bool]
"""An answer to a publish, or to all up to it: number, multiple, and whether it is an ack."""


class Confirms:
    """The publishes of one channel and the broker's answers to them; it lives as long as the channel.

    Each publish is counted once, in the counters of its exchange, whatever mix of single and multiple answers comes.
    The broker's acks of publishes that came back and are on their way again wait: a publish is settled once its client
    has an answer.
    """

    __slots__ = (
        "_apart",
        "_first",
        "_journal",
        "_notes_before",
        "answered",
        "base",
        "counted_from",
        "due",
        "low",
        "notes",
        "number",
        "open",
        "records",
        "returned",
        "spans",
        "waiting",
    )  # fmt: skip

    def __init__(self) -> None:
        """Start with no publish, and with a broker that answers none."""
        self.number = 0
        """The number of the last publish; 0 before the first."""
        self.answered = False
        """Whether the broker answers publishes: the channel is in confirm mode or in transactions."""
        self.base = 0
        """The number of the last publish before the broker began to answer, from which the client's tags count."""
        self.counted_from = 0
        """The number from which the broker's delivery tags count: `base`, until the channel is opened again unseen."""
        self.low = 0
        """The highest number up to which all publishes are settled."""
        self.open = Unsettled()
        """The publishes that the broker has yet to answer."""
        self.returned: dict[int, Settlement | None] = {}
        """The settlement of each unsettled publish that came back, by number; None while it is on its way again."""
        self.waiting: set[int] = set()
        """The numbers of returned publishes that the broker has acked; the client's acks wait for their settlements."""
        self.due = 0
        """The number up to which the broker has acked all publishes, while the client's ack waits for some; else 0."""
        self._apart = 0
        """The number up to which the client gets one answer for each publish, never a multiple one.

        Publishes up to this number that are on their way again have no answer yet.
        """
        self._first: list[int] = []
        """A heap of the numbers that came back; some may have got their answer since."""
        self.notes: dict[int, PublishNote] = {}
        """The notes on unsettled publishes, by number; only on the last publishes if the broker answers none."""
        self._notes_before = False
        """Whether some notes are of publishes that went out before the broker began to answer."""
        self.records: dict[int, Record] = {}
        """The records of unsettled publishes that are to be journalled, by number."""
        self._journal: Journal | None = None
        self.spans: dict[int, Span] = {}
        """The spans of unsettled publishes that are traced, by number."""

    def start(self) -> None:
        """Note that the broker answers all publishes from the next one on."""
        if not self.answered:
            self.base = self.counted_from = self.low = self.number
            self.answered, self._notes_before = True, bool(self.notes)

    def publish(self, counters: Counters) -> None:
        """Number the next publish and count it as published; also as sent, if the broker answers none."""
        self.number += 1
        counters.published += 1
        if self.answered:
            self.open.add(self.number, counters)
        else:
            counters.sent += 1

    def record(self, journal: Journal, record: Record) -> None:
        """Have the last publish journalled, once it is known what became of it."""
        if self.answered and len(self.records) >= MOST_RECORDS:
            journal.drop()
        elif self.answered:
            self._journal, self.records[self.number] = journal, record
        else:
            journal.add(record, Outcome.SENT, record.published_at)

    def trace(self, span: Span) -> None:
        """Have the span of the last publish ended once it is known what became of it."""
        if self.answered:
            self.spans[self.number] = span
        else:
            span.settled(Outcome.SENT)

    @property
    def unsettled(self) -> int:
        """How many publishes the broker has yet to answer."""
        return self.open.count

    def settled(self, number: int) -> bool:
        return self.answered and self.base < number <= self.number and not self.open.has(number)

    def settle(self, number: int, multiple: bool, acked: bool) -> None:
        """Count an answer to one publish, or to all up to it; an answer to no publish is ignored."""
        if not self.low < number <= self.number:
            return
        if not multiple or number == self.low + 1:
            self._settle_one(number, acked)
        else:
            self._settle_all(self.low + 1, number, acked)

    def _settle_one(self, number: int, acked: bool) -> None:
        """Take the broker's answer to one publish; ignored if there is no such publish without an answer."""
        counters = self.open.take(number)
        if counters is None:
            return
        if self.records or self.spans:
            self._tell_all(number, number, acked)
        if self.returned or self.notes:
            self._settled(number, counters, acked)
        elif acked:
            counters.acked += 1
        else:
            counters.nacked += 1
        if number == self.low + 1:
            self._advance(number)

    def _settle_all(self, first: int, last: int, acked: bool) -> None:
        """Take the broker's answer to all publishes from `first` to `last` that have none."""
        if self.records or self.spans:
            self._tell_all(first, last, acked)
        if self.returned or self.notes:
            for number in self.open.within(first, last):
                counters = self.open.take(number)
                if counters is not None:
                    self._settled(number, counters, acked)
        else:
            self.open.count_off(first, last, acked=acked)
        self._advance(last)

    def _advance(self, number: int) -> None:
        """Raise `low`, now that all publishes up to that number are settled, and perhaps more."""
        self.low = self.open.first_beyond(number) - 1 if self.open.count else self.number

    def forget(self, number: int) -> None:
        """Forget all publishes up to this one, uncounted: tx.rollback has undone them."""
        for each in self.open.within(self.low + 1, number):
            self.open.take(each)
            self.returned.pop(each, None)
            self.records.pop(each, None)
            if (span := self.spans.pop(each, None)) is not None:
                span.forget()
            self.notes.pop(each, None)
        if number > self.low:
            self._advance(number)

    def came_back(self, number: int, settlement: Settlement | None) -> None:
        """Note that an unsettled publish came back, and what became of it; None if it goes out again."""
        self.returned[number] = settlement
        while self._first and self._first[0] not in self.returned:
            heappop(self._first)
        heappush(self._first, number)

    def acked(self, number: int, multiple: bool) -> list[Answer]:
        """Settle what the broker's ack of a publish, or of all up to it, may settle; return the client's answers.

        There is no answer yet to what came back and is on its way again, and a nack for what failed. An ack of no
        publish stays as it is.
        """
        if not self.low < number <= self.number:
            return [(number, multiple, True)]
        if not multiple and number in self.returned:
            self.waiting.add(number)
            return self._answer_to(number)
        if multiple:
            self.due = max(self.due, number)
            return self._answers_due()
        self.settle(number, False, True)
        return [(number, False, True)]

    def nacked(self, number: int, multiple: bool) -> list[Answer]:
        """Settle what the broker's nack of a publish, or of all up to it, settles; return the client's answers.

        A publish that came back and was on its way again is not waited for any more. Publishes that the broker has
        acked before, and whose acks wait, are not meant.
        """
        if not multiple or not (self.due or self.waiting):
            self.settle(number, multiple, False)
            return [(number, multiple, False)]
        answers = []
        for n in self.open.within(max(self.low, self.due) + 1, min(number, self.number)):
            if n not in self.waiting:
                self.settle(n, False, False)
                answers.append((n, False, False))
        return answers

    def decide(self, number: int, settlement: Settlement) -> list[Answer]:
        """Note what became of a publish that came back; settle what that allows and return the client's answers."""
        if number not in self.returned:
            return []
        self.returned[number] = settlement
        return self._answer_to(number) + (self._answers_due() if self.due else [])

    def _answer_to(self, number: int) -> list[Answer]:
        """Settle a publish that came back, once the broker's ack and its end are known; return the client's answer."""
        settlement = self.returned[number]
        if settlement is None or number not in self.waiting:
            return []
        self.waiting.discard(number)
        self.settle(number, False, settlement.acked)
        return [(number, False, settlement.acked)]

    def _answers_due(self) -> list[Answer]:
        """Return the answers that the client gets for the publishes up to `due`, the last one that the broker acked.

        A publish that came back holds the answers behind it up as long as its outcome is not known.
        """
        answers: list[Answer] = []
        while self._first and self._first[0] <= self.due:
            number = self._first[0]
            settlement = self.returned.get(number, _ANSWERED)
            if settlement is None:
                return answers + self._all_up_to(number - 1) + self._beyond(number)
            heappop(self._first)
            if not settlement.acked:
                answers += [*self._all_up_to(number - 1), (number, False, False)]
                self.settle(number, False, False)
        due, self.due = self.due, 0
        return answers + self._all_up_to(due)

    def _beyond(self, number: int) -> list[Answer]:
        """Settle each publish up to `due` that need not wait for a message under way; return one answer for each."""
        answers: list[Answer] = []
        for n in self.open.within(max(number, self._apart) + 1, self.due):
            settlement = self.returned.get(n, _ANSWERED)
            if settlement is None:
                self.waiting.add(n)
            else:
                self.settle(n, False, settlement.acked)
                answers.append((n, False, settlement.acked))
        self._apart = max(self._apart, self.due)
        return answers

    def _all_up_to(self, number: int) -> list[Answer]:
        """Settle all publishes up to `number` and return one ack for them; no ack if all have their answers."""
        # Clients may ignore an ack whose own number has its answer already (aiormq does).
        while number > self.low and not self.open.has(number):
            number -= 1
        if number <= self.low:
            return []
        self.settle(number, True, True)
        return [(number, True, True)]

    def restart(self, *, inside: bool) -> list[Answer]:
        """Nack all that the broker has not answered, as its channel is gone, and let a new one count from here.

        Returns the client's answers. `inside` says that the client is still sending the last publish, which gets its
        answer later.
        """
        unanswered = self.open.within(self.low + 1, self.number - inside)
        self.abandon()
        self.counted_from = self.number
        return [(unanswered[-1], True, False)] if unanswered else []

    def abandon(self) -> None:
        """Count all that the broker has not answered as unknown: the channel is gone."""
        if not self.answered:
            return
        for number in self.open.within(self.low + 1, self.number):
            counters = self.open.take(number)
            if counters is not None:
                counters.unknown += 1
        self._tell(self.records, Outcome.UNKNOWN)
        self._end_spans(self.spans, Outcome.UNKNOWN)
        self.open.drop()
        self.low = self.number
        self.returned.clear()
        self.waiting.clear()
        self.notes.clear()
        self._first.clear()
        self.due = 0

    def _settled(self, number: int, counters: Counters, acked: bool) -> None:
        """Count the answer to one publish, and forget what was known of it."""
        self.notes.pop(number, None)
        if self._notes_before:
            # The answer is to a later publish than those before confirm mode, so nothing of them comes back any more.
            self.notes = {n: note for n, note in self.notes.items() if n > self.base}
            self._notes_before = False
        settlement = self.returned.pop(number, None)
        self.waiting.discard(number)
        if settlement is not None:
            counters.add(settlement.outcome)
        elif acked:
            counters.acked += 1
        else:
            counters.nacked += 1

    def _tell_all(self, first: int, last: int, acked: bool) -> None:
        """Journal the answered publishes of a range, and end their spans."""
        outcome = Outcome.CONFIRMED if acked else Outcome.NACKED
        if self.records:
            self._tell(_within(self.records, first, last), outcome)
        if self.spans:
            self._end_spans(_within(self.spans, first, last), outcome)

    def _tell(self, numbers: Iterable[int], outcome: Outcome) -> None:
        """Journal the given publishes that have a record."""
        journal = self._journal
        if journal is None:
            return
        now = journal.clock()
        for number in list(numbers):
            record = self.records.pop(number, None)
            if record is None:
                continue
            settled = self._outcome_of(number, outcome)
            if settled is Outcome.CONFIRMED and record.destination is None:
                settled = Outcome.PASSED
            journal.add(record, settled, now)

    def _end_spans(self, numbers: Iterable[int], outcome: Outcome) -> None:
        """End the spans of the given publishes that have one."""
        for number in list(numbers):
            if (span := self.spans.pop(number, None)) is not None:
                span.settled(self._outcome_of(number, outcome))

    def _outcome_of(self, number: int, outcome: Outcome) -> Outcome:
        """Return the outcome of a publish by the broker's answer; one that came back has that which it settled with."""
        settlement = self.returned.get(number) if self.returned else None
        return settlement.outcome if settlement is not None else outcome


def _within(booked: Mapping[int, object], first: int, last: int) -> Iterable[int]:
    """Return the numbers of a range that may be in a book: look at the range or at the book, whichever is less."""
    span = range(first, last + 1)
    return span if len(span) <= len(booked) else [n for n in booked if first <= n <= last]
