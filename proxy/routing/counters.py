"""What became of the publishes that an ingress took, as plain integers that a scrape reads."""

from collections import Counter

from proxy.outcome import Outcome
from proxy.topology.table import Name, PassReason
from ring.destination import Destination

NOWHERE: Name = ("", "")
"""Counts under this name are of requests for exchanges not known to exist: a label must not hold clients' names."""


class Counters:
    """Counts of one exchange's publishes by one way: its ring, or a reason to pass. They only ever grow."""

    __slots__ = (
        "acked", "nacked", "published", "rerouted", "sent", "shadowed", "unavailable", "unknown", "unroutable",
        "value_missing",
    )  # fmt: skip

    published: int
    """Handed to the broker."""
    acked: int
    """Of these, acknowledged by the broker."""
    shadowed: Counter[Destination]
    """Where a shadowed ring would have sent them."""
    rerouted: int
    """Of those that came back, such as were published again."""

    def __init__(self) -> None:
        """All zero."""
        self.published = self.acked = self.nacked = self.unroutable = 0
        self.rerouted = self.sent = self.unknown = self.unavailable = self.value_missing = 0
        self.shadowed = Counter()

    def add(self, outcome: Outcome) -> None:
        """Counts one that came back, by what became of it in the end."""
        match outcome:
            case Outcome.CONFIRMED:
                self.acked += 1
            case Outcome.NACKED:
                self.nacked += 1
            case Outcome.UNROUTABLE:
                self.unroutable += 1
            case _:
                self.unknown += 1

    def outcomes(self, acknowledged: Outcome) -> dict[Outcome, int]:
        """By outcome; `acknowledged` is what an ack means here: confirmed by a ring's queue, or passed."""
        return {
            acknowledged: self.acked,
            Outcome.NACKED: self.nacked,
            Outcome.UNROUTABLE: self.unroutable,
            Outcome.SENT: self.sent,
            Outcome.UNKNOWN: self.unknown,
            Outcome.UNAVAILABLE: self.unavailable,
        }


class CounterTable:
    """A counters for each exchange and way."""

    def __init__(self) -> None:
        """None yet."""
        self.by_way: dict[tuple[Name, PassReason | None], Counters] = {}

    def of(self, name: Name, reason: PassReason | None) -> Counters:
        """The counters of an exchange's publishes that its ring routes (None), or that pass for a reason."""
        return self.by_way.setdefault((name, reason), Counters())

    def forget(self, name: Name) -> None:
        """Forgets what was counted of an exchange that is gone."""
        for way in [way for way in self.by_way if way[0] == name]:
            del self.by_way[way]
