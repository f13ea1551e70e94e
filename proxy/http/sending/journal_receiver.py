"""The journalling of the broker's answer to a publish over HTTP."""

# mypyc: compiled

from proxy.journal.buffer import Journal, Record
from proxy.outcome import Outcome
from proxy.publisher.channel import PublishResult, Receiver


class JournalReceiver:
    """The receiver of one journalled message: it journals the broker's answer and passes it on."""

    __slots__ = ("_index", "_journal", "_receiver", "_record")

    def __init__(self, journal: Journal, record: Record, receiver: Receiver, index: int) -> None:
        """Stand in front of `receiver`, for its message number `index`."""
        self._journal, self._record, self._receiver, self._index = journal, record, receiver, index

    def settled(self, index: int, result: PublishResult) -> None:
        """Journal the broker's answer, and pass it on to the receiver behind."""
        outcome = result.outcome
        if outcome is Outcome.CONFIRMED and self._record.destination is None:
            outcome = Outcome.PASSED
        self._journal.add(self._record, outcome, self._journal.clock())
        self._receiver.settled(self._index, result)
