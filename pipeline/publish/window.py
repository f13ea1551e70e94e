"""The rows of one task that were sent and may have to be sent again, kept by queue."""

from collections import Counter, deque
from collections.abc import Callable, Sequence

from pipeline.publish.messages import RowMessage
from pipeline.publish.routes import in_words
from proxy.outcome import Outcome
from proxy.publisher.channel import PublishResult

_WORDS = {
    Outcome.UNROUTABLE: "returned, since there was no queue to take them",
    Outcome.NACKED: "refused by the broker (basic.nack)",
    Outcome.INVALID: "refused by the broker",
    Outcome.UNKNOWN: "without an answer",
}

_SAYS_ALL = frozenset({Outcome.UNROUTABLE, Outcome.NACKED})
"""The outcomes whose detail says no more than the outcome itself."""


class QueueWindow:
    """The rows that one task has sent to one queue, from the first that is not confirmed, in sending order.

    Rows are numbered from 0 on as they are sent. The broker connection calls `settled` once for each of them.
    """

    __slots__ = ("_outcomes", "_window", "first", "index", "messages")

    def __init__(self, window: "Window", index: int) -> None:
        """Begin without a row; `index` is the position of the queue in `Routes.queues`."""
        self._window, self.index = window, index
        self.messages: deque[RowMessage] = deque()
        self.first = 0
        """The number of the first row that is kept; the rows behind it are numbered on from there."""
        self._outcomes: dict[int, Outcome] = {}
        """The outcomes of those kept rows that are settled, by row number; a row that is in flight has none."""

    @property
    def next(self) -> int:
        """The number that the next row gets when it is sent."""
        return self.first + len(self.messages)

    def settled(self, number: int, verdict: PublishResult) -> None:
        """Note the outcome of the row with this number, and forget the rows at the front that are confirmed."""
        outcome, outcomes, freed = verdict.outcome, self._outcomes, 0
        if number == self.first and outcome is Outcome.CONFIRMED:
            freed = 1
            while outcomes and outcomes.get(number + freed) is Outcome.CONFIRMED:
                del outcomes[number + freed]
                freed += 1
            for _ in range(freed):
                self.messages.popleft()
            self.first += freed
        else:
            outcomes[number] = outcome
        self._window.settled(self.index, verdict, freed)

    def take_back(self) -> tuple[list[RowMessage], int, int]:
        """Empty the queue's window; return the rows to send again, how many of them the queue may have, and how many
        are done.

        The rows to send again are the unconfirmed ones, and later rows with the key of an unconfirmed row; the others
        are done. Every row must be settled.
        """
        again: list[RowMessage] = []
        keys: set[bytes] = set()
        repeated = 0
        for number, message in enumerate(self.messages, self.first):
            outcome = self._outcomes[number]
            if outcome is not Outcome.CONFIRMED or message.hashed in keys:
                keys.add(message.hashed)
                again.append(message)
                # A nack says no more than that the broker does not answer for the row: it comes also for what a queue
                # has on disk, whose process has ended (rabbit_classic_queue:handle_event, an abnormal exit).
                repeated += outcome is not Outcome.UNROUTABLE
        done = len(self.messages) - len(again)
        self.first = self.next
        self.messages.clear()
        self._outcomes.clear()
        return again, repeated, done


class Window:
    """The rows that were sent, of each queue from the first on that has no confirm yet, in the order of sending.

    After a loss (of a connection, a channel or an answer, or a refusal) one row is let out at first, and each confirm
    makes room for one more in flight: a queue that is full refuses most of a whole window, and what it takes of it
    comes twice.
    """

    def __init__(self, queues: Sequence[str], size: int, news: Callable[[], None]) -> None:
        """`size` rows are kept at most; `news` is called when a row is settled and few are kept or one is lost."""
        self._queues, self._size, self._news = queues, size, news
        self.by_queue = tuple(QueueWindow(self, index) for index in range(len(queues)))
        self.confirmed = [0] * len(queues)
        """The number of rows of each queue that were confirmed and never need to be sent again."""
        self.held = 0
        """The number of rows that are kept here, of all queues."""
        self.unsettled = 0
        """The number of kept rows whose outcome is not known yet."""
        self.repeated = 0
        """How many times a row was taken back that its queue may have already."""
        self._failed: dict[Outcome, Counter[str]] = {}
        self._why = ""
        self._opened(size)

    def _opened(self, most: int) -> None:
        """Set the most rows that are kept from now on."""
        self._open, self._few = most, most * 3 // 4

    @property
    def room(self) -> int:
        """The number of rows that the window has room for now; 0 or less while it is full and no row may be sent."""
        return self._open - self.held

    @property
    def roomy(self) -> bool:
        """Whether at most three quarters of the room are taken, so that it pays to send more; `news` is called then."""
        return self.held <= self._few

    @property
    def lost(self) -> bool:
        """Whether a row has to be sent again, by `take_back` once nothing is unsettled."""
        return bool(self._failed)

    @property
    def hopeless(self) -> bool:
        """Whether the broker refused a row in a way that sending it again cannot mend."""
        return Outcome.INVALID in self._failed

    @property
    def faults(self) -> str:
        """The lost rows in words, by queue and with the reason; empty if there are none."""
        told = [in_words(queues, _WORDS.get(outcome, outcome.value)) for outcome, queues in self._failed.items()]
        return "; ".join(text for text in (*told, self._why) if text)

    @property
    def total(self) -> int:
        """The number of confirmed rows of all queues."""
        return sum(self.confirmed)

    def sent(self, index: int) -> int:
        """Return how many rows a queue was sent, each counted once."""
        return self.confirmed[index] + len(self.by_queue[index].messages)

    def add(self, queue_window: QueueWindow, message: RowMessage) -> None:
        """Keep a row that was sent, as the next one of its queue."""
        queue_window.messages.append(message)
        self.held += 1
        self.unsettled += 1

    def settled(self, index: int, verdict: PublishResult, freed: int) -> None:
        """Count the outcome of one row of a queue; `freed` rows of the queue need to be kept no longer."""
        self.unsettled -= 1
        if verdict.outcome is Outcome.CONFIRMED:
            self.held -= freed
            self.confirmed[index] += freed
            if self._open < self._size:
                self._opened(self._open + 1)
        else:
            self._failed.setdefault(verdict.outcome, Counter())[self._queues[index]] += 1
            if verdict.outcome not in _SAYS_ALL:
                self._why = self._why or verdict.detail
        if self.held <= self._few or self._failed:
            self._news()

    def take_back(self) -> list[RowMessage]:
        """Return the rows that have to be sent again, each queue's in their order; from now on none is kept.

        They are the unconfirmed rows, and later rows with the key of an unconfirmed row, confirmed or not: else a
        row would stand last in its queue behind which its key has later ones. Nothing may be unsettled.
        """
        again: list[RowMessage] = []
        for queue_window in self.by_queue:
            rows, repeated, done = queue_window.take_back()
            again += rows
            self.repeated += repeated
            self.confirmed[queue_window.index] += done
        self.held, self._failed, self._why = 0, {}, ""
        self._opened(1)
        return again
