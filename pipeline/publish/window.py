"""The rows of one task that were sent and may have to be sent again: as many as the window has room for, by queue."""

from collections import Counter, deque
from collections.abc import Callable, Sequence

from pipeline.publish.messages import Message
from pipeline.publish.routes import in_words
from proxy.amqp.confirm_channel import Verdict
from proxy.outcome import Outcome

_WORDS = {
    Outcome.UNROUTABLE: "returned, since there was no queue to take them",
    Outcome.NACKED: "refused by the broker (basic.nack)",
    Outcome.INVALID: "refused by the broker",
    Outcome.UNKNOWN: "without an answer",
}


class Row:
    """One row that was sent: it is told of its fate once, by the client that sent it."""

    __slots__ = ("_window", "message", "outcome")

    def __init__(self, window: "Window", message: Message) -> None:
        """Not settled yet."""
        self._window, self.message = window, message
        self.outcome: Outcome | None = None

    def settled(self, index: int, verdict: Verdict) -> None:
        """Take the row's fate; `index` is of its queue."""
        self.outcome = verdict.outcome
        self._window.settled(index, verdict)


class Window:
    """The rows that were sent, of each queue from the first on that has no confirm yet, in the order of sending.

    After a loss (of a connection, a channel or an answer, or a refusal) one row is let out at first, and one more for
    each confirm: a queue that is full refuses most of a whole window, and what it takes of it comes twice.
    """

    def __init__(self, queues: Sequence[str], size: int, news: Callable[[], None]) -> None:
        """`size` rows are kept at most; `news` is called when a row is settled and few are kept or one is lost."""
        self._queues, self._size, self._open, self._news = queues, size, size, news
        self._lines: tuple[deque[Row], ...] = tuple(deque() for _ in queues)
        self.confirmed = [0] * len(queues)
        """Rows by queue that were confirmed and never need to be sent again."""
        self.held = 0
        """Rows that are kept here."""
        self.unsettled = 0
        """Those of them whose fate is not known."""
        self._failed: dict[Outcome, Counter[str]] = {}
        self._why = ""

    @property
    def room(self) -> int:
        """How many more rows may be sent now; none where it is below 1."""
        return self._open - self.held

    @property
    def roomy(self) -> bool:
        """Whether so few rows are kept that it pays to send more; `news` is called then."""
        return self.held <= self._open * 3 // 4

    @property
    def lost(self) -> bool:
        """Whether a row has to be sent again: `take_back` it, once nothing is unsettled."""
        return bool(self._failed)

    @property
    def hopeless(self) -> bool:
        """Whether the broker refused a row in such a way that sending it again cannot help."""
        return Outcome.INVALID in self._failed

    @property
    def faults(self) -> str:
        """What became of the rows that were lost, in words: by queue, then why; empty where there are none."""
        told = [in_words(queues, _WORDS.get(outcome, outcome.value)) for outcome, queues in self._failed.items()]
        return "; ".join(text for text in (*told, self._why) if text)

    @property
    def total(self) -> int:
        """The sum of `confirmed`."""
        return sum(self.confirmed)

    def sent(self, index: int) -> int:
        """Return how many rows a queue was sent, each counted once."""
        return self.confirmed[index] + len(self._lines[index])

    def add(self, index: int, row: Row) -> None:
        """Keep a row that was sent to the queue with that index."""
        self._lines[index].append(row)
        self.held += 1
        self.unsettled += 1

    def settled(self, index: int, verdict: Verdict) -> None:
        """Take the fate of one row of that queue, which the row itself has noted already."""
        self.unsettled -= 1
        if verdict.outcome is Outcome.CONFIRMED:
            line, before = self._lines[index], self.held
            while line and line[0].outcome is Outcome.CONFIRMED:
                line.popleft()
                self.held -= 1
            self.confirmed[index] += before - self.held
            if self._open < self._size:
                self._open += 1
        else:
            self._failed.setdefault(verdict.outcome, Counter())[self._queues[index]] += 1
            self._why = self._why or verdict.detail
        if self._failed or self.held <= self._open * 3 // 4:
            self._news()

    def take_back(self) -> list[Message]:
        """Return the rows that have to be sent again, each queue's in their order; from now on none is kept.

        They are those without a confirm, and those behind one of them that have the same key, confirmed or not: else a
        row would stand last in its queue behind which its key has later ones. Nothing may be unsettled.
        """
        again: list[Message] = []
        for index, line in enumerate(self._lines):
            keys: set[bytes] = set()
            for row in line:
                key = row.message.hashed
                if row.outcome is Outcome.CONFIRMED and key not in keys:
                    self.confirmed[index] += 1
                else:
                    keys.add(key)
                    again.append(row.message)
            line.clear()
        self.held, self._open, self._failed, self._why = 0, 1, {}, ""
        return again
