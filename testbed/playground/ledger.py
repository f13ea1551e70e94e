"""The ledger of the playground: what was confirmed, what was done, and whether each key was done in order."""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class Ledger:
    """Orders by their keys; the orders of a key are numbered from 1 on, in the order of their publishes."""

    confirmed: dict[str, int] = field(default_factory=dict)
    """How many orders of each key the broker has confirmed."""
    tries: int = 0
    failed: int = 0
    again: int = 0
    """Orders that were done once more: their worker was killed before its ack had reached the queue."""
    faults: list[str] = field(default_factory=list)
    """In words, what was done behind a later order of its key, or before an earlier one."""
    _done: dict[str, int] = field(default_factory=dict)
    """The last order of each key that was done."""
    _since: dict[str, float] = field(default_factory=dict)
    """When each key's last order was done."""

    def publish(self, key: str, at: float) -> int:
        """Return the number of a key's next order."""
        self._since.setdefault(key, at)
        return self.confirmed.get(key, 0) + 1

    def confirm(self, key: str, number: int) -> None:
        """Take it that the broker has confirmed an order."""
        self.confirmed[key] = number

    def tried(self, key: str, number: int, succeeded: bool, at: float) -> None:
        """Take it that a worker has tried an order."""
        self.tries += 1
        last = self._done.get(key, 0)
        if not succeeded:
            self.failed += 1
        elif number <= last:
            self.again += 1
        else:
            if number > last + 1:
                self.faults.append(f"{key}: order {number} was done before order {last + 1}")
            self._done[key], self._since[key] = number, at

    def left(self) -> int:
        """Return how many confirmed orders are not done."""
        return sum(max(0, count - self._done.get(key, 0)) for key, count in self.confirmed.items())

    def waiting(self, at: float, seconds: float) -> Iterable[str]:
        """Yield the keys of which no order was done for so many seconds, though one is there."""
        for key, count in self.confirmed.items():
            if count > self._done.get(key, 0) and at - self._since[key] > seconds:
                yield key
