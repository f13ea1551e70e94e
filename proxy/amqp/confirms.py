"""Which of a channel's publishes the broker has answered; numbers count them from 1, in the order they go out."""

from collections import deque

from proxy.tally import Tally


class Confirms:
    """Counts each publish once, in the tally of its exchange, whatever mix of single and multiple answers comes."""

    __slots__ = ("above", "answered", "base", "low", "number", "returned", "runs", "tally")

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
    returned: dict[int, bool]
    """Unsettled publishes that came back, and whether the client must be told that they failed."""

    def __init__(self) -> None:
        """Before the first publish; nothing is answered yet."""
        self.number = self.base = self.low = 0
        self.answered = False
        self.above = set()
        self.returned = {}
        self.tally: Tally | None = None
        self.runs: deque[tuple[Tally, int]] = deque()
        """Of publishes before the present run of one tally: the tally and the last number of each run."""

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

    @property
    def unsettled(self) -> int:
        """Publishes that the broker has yet to answer."""
        return self.number - self.low - len(self.above) if self.answered else 0

    def settled(self, number: int) -> bool:
        """Whether the broker has answered that publish."""
        return self.answered and (self.base < number <= self.low or number in self.above)

    def settle(self, number: int, multiple: bool, acked: bool) -> None:
        """Counts the broker's answer to one publish, or to all up to it; an answer to nothing is ignored."""
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
            self.above = {n for n in self.above if n > number}
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
            self.returned = {n: tell for n, tell in self.returned.items() if n > number}
            while self.runs and self.runs[0][1] <= self.low:
                self.runs.popleft()

    def answers(self, number: int, multiple: bool) -> list[tuple[int, bool, bool]]:
        """What to tell the client for the broker's ack of a publish, or of all up to it: (number, multiple, is an ack).

        A publish that came back without the client's knowledge is nacked instead. An ack of nothing stays as it is.
        """
        if not self.low < number <= self.number:
            return [(number, multiple, True)]
        told, low = [], self.low
        for failed in sorted(n for n, tell in self.returned.items() if tell):
            if failed == number or (multiple and failed < number):
                # Clients may ignore an ack that names what they have been told of (aiormq does).
                last = failed - 1
                while last in self.above:
                    last -= 1
                if multiple and last > low:
                    told.append((last, True, True))
                told.append((failed, False, False))
                low = failed
        if number > low:
            told.append((number, multiple, True))
        return told

    def abandon(self) -> None:
        """The channel is gone: of what the broker has not answered, nobody knows."""
        if self.answered:
            for tally, first, last in self._runs(self.low + 1, self.number):
                tally.unknown += last - first + 1 - self._within(first, last)
            self.low = self.number
            self.above.clear()
            self.returned.clear()

    def _count(self, tally: Tally, first: int, last: int, count: int, acked: bool) -> None:
        """Counts the `count` publishes of a range that were not settled before."""
        if self.returned:
            for number in [n for n in self.returned if first <= n <= last]:
                del self.returned[number]
                tally.unroutable += 1
                count -= 1
        if acked:
            tally.settled += count
        else:
            tally.nacked += count

    def _within(self, first: int, last: int) -> int:
        return sum(first <= n <= last for n in self.above) if self.above else 0

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
