"""The judge: is every message once in a queue that a ring in force between its send and its confirm says?

It knows the bindings from whoever changed them, never from the proxy.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ring.destination import Destination
from ring.ring import Ring


@dataclass(frozen=True)
class Sent:
    """A message that was confirmed. Times are monotonic seconds."""

    number: int
    key: str
    sent: float
    confirmed: float
    queue: str = ""
    """Where the proxy's receipt says it is; empty over AMQP, which has no receipts."""


@dataclass(frozen=True)
class Era:
    """A ring, from the moment its bindings began to change to the last moment at which it may have been in force."""

    ring: Ring
    begin: float
    end: float


class History:
    """The bindings as they changed, and from them the rings and when each may have been in force."""

    def __init__(self, weights: Mapping[str, int], grace: float) -> None:
        """`grace`: seconds that a proxy may take to follow a change."""
        self._grace = grace
        self._weights = dict(weights)
        self._changes: list[tuple[Ring, float, float]] = [(self._ring(), float("-inf"), float("-inf"))]

    def changed(self, weights: Mapping[str, int], begun: float, done: float) -> None:
        """Note that the bindings became these, by a request that ran from `begun` to `done`."""
        self._weights = dict(weights)
        self._changes.append((self._ring(), begun, done))

    def eras(self) -> list[Era]:
        """Return the eras in order; each ends a grace time after the change that ended it was done."""
        ends = [done + self._grace for _, _, done in self._changes[1:]] + [float("inf")]
        return [Era(ring, begun, end) for (ring, begun, _), end in zip(self._changes, ends, strict=True)]

    def _ring(self) -> Ring:
        return Ring.build({Destination("queue", name): weight for name, weight in self._weights.items()})


@dataclass(frozen=True)
class Verdict:
    """The judgement on the messages: what was wrong, in words, and how sharp the judgement was."""

    faults: list[str]
    judged: int
    by_one_ring: int
    """Messages for which one ring alone was in force, or all in force agreed."""


def judge(sent: Iterable[Sent], found: Mapping[str, Iterable[int]], eras: Sequence[Era]) -> Verdict:
    """Judge confirmed messages by where they were found: numbers of messages by queue."""
    places: dict[int, list[str]] = {}
    for queue, numbers in found.items():
        for number in numbers:
            places.setdefault(number, []).append(queue)
    faults: list[str] = []
    judged = sharp = 0
    for message in sent:
        judged += 1
        at = places.pop(message.number, [])
        allowed = {
            era.ring.owner_of(message.key.encode()).name
            for era in eras
            if message.sent <= era.end and message.confirmed >= era.begin
        }
        sharp += len(allowed) == 1
        if len(at) != 1:
            faults.append(f"message {message.number} was confirmed and is in {len(at)} queues: {at}")
        elif at[0] not in allowed:
            faults.append(f"message {message.number}, key {message.key}, is in {at[0]}, not in {sorted(allowed)}")
        elif message.queue and at[0] != message.queue:
            faults.append(f"message {message.number} is in {at[0]}, and its receipt says {message.queue}")
    for number, queues in places.items():
        faults.append(f"message {number} is in {queues}, and was never confirmed")
    return Verdict(faults, judged, sharp)


def chi_squared(counts: Mapping[str, int], weights: Mapping[str, int]) -> float:
    """Pearson's statistic of counts by queue against the shares that the weights give."""
    total, weight = sum(counts.values()), sum(weights.values())
    expected = {queue: total * w / weight for queue, w in weights.items()}
    return sum((counts.get(queue, 0) - e) ** 2 / e for queue, e in expected.items())


def moved(before: Mapping[str, str], after: Mapping[str, str]) -> float:
    """Return the share of the keys of both, 0 to 1, whose queue differs."""
    both = before.keys() & after.keys()
    return sum(before[key] != after[key] for key in both) / len(both)
