"""All that the ingresses count, as plain integers: the admin listener makes metrics of them at the time of a scrape.

`Counters` are of one exchange and one way, a `CounterTable` has those of one ingress, and `Counts` are everything.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator

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


LATENCY_BOUNDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Seconds; a confirm takes 0.2 ms on an idle broker beside us."""


class Latency:
    """A histogram of confirms: from a publish to the broker's word."""

    def __init__(self) -> None:
        """Empty."""
        self._counts = [0] * (len(LATENCY_BOUNDS) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        """Counts one."""
        self._counts[bisect_left(LATENCY_BOUNDS, seconds)] += 1
        self._sum += seconds

    def buckets(self) -> tuple[list[tuple[str, float]], float]:
        """Cumulative (bound, count) pairs, and the sum in seconds."""
        total, buckets = 0, []
        for bound, count in zip((*map(str, LATENCY_BOUNDS), "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        return buckets, self._sum


class Counts:
    """What the ingresses count: by counter_table all that went out, by outcome what never did."""

    def __init__(self) -> None:
        """All zero."""
        self.counter_table = {"http": CounterTable(), "amqp": CounterTable()}
        """By ingress."""
        self.http_latency, self.amqp_latency = Latency(), Latency()
        self.credentials: Counter[tuple[str, str]] = Counter()
        """Wrong credentials of HTTP clients, by kind, and such as were not looked at: `proxy.settings.guesses`."""
        self.unsent: Counter[tuple[str, Name, Outcome]] = Counter()
        """Messages that were never sent."""
        self.http_answers: dict[str, Counter[int]] = {"http": Counter(), "admin": Counter()}
        """HTTP answers by listener and status. This sidecar chooses the statuses, so there are few."""

    def names(self) -> set[Name]:
        """The exchanges of which something is counted, but for what is counted of names not known to exist."""
        counted = {name for counter_table in self.counter_table.values() for name, _ in counter_table.by_way}
        return (counted | {name for _, name, _ in self.unsent}) - {NOWHERE}

    def forget(self, name: Name) -> None:
        """Forgets what was counted of an exchange that is gone: its series end."""
        for counter_table in self.counter_table.values():
            counter_table.forget(name)
        for key in [key for key in self.unsent if key[1] == name]:
            del self.unsent[key]

    def forget_destination(self, name: Name, destination: Destination) -> None:
        """Forgets what was counted of a destination that a shadowed exchange has no more."""
        for counter_table in self.counter_table.values():
            for way, counters in counter_table.by_way.items():
                if way[0] == name:
                    counters.shadowed.pop(destination, None)

    def all_publishes(self) -> Counter[tuple[str, Name, Outcome]]:
        """By ingress, exchange and outcome."""
        total = self.unsent.copy()
        for ingress, name, reason, counters in self._counters():
            acknowledged = Outcome.CONFIRMED if reason is None else Outcome.PASSED
            for outcome, count in counters.outcomes(acknowledged).items():
                if count:
                    total[ingress, name, outcome] += count
        return total

    def all_passed(self) -> Counter[tuple[Name, str]]:
        """By exchange and reason."""
        total: Counter[tuple[Name, str]] = Counter()
        for _, name, reason, counters in self._counters():
            if reason is not None:
                total[name, reason] += counters.published
        return total

    def all_rerouted(self) -> Counter[tuple[str, Name]]:
        """By ingress and exchange."""
        total: Counter[tuple[str, Name]] = Counter()
        for ingress, name, _, counters in self._counters():
            if counters.rerouted:
                total[ingress, name] += counters.rerouted
        return total

    def all_shadowed(self) -> Counter[tuple[Name, Destination]]:
        """By exchange and where its ring would have sent them."""
        total: Counter[tuple[Name, Destination]] = Counter()
        for _, name, _, counters in self._counters():
            for destination, count in counters.shadowed.items():
                total[name, destination] += count
        return total

    def all_value_missing(self) -> Counter[Name]:
        """By exchange."""
        total: Counter[Name] = Counter()
        for _, name, _, counters in self._counters():
            if counters.value_missing:
                total[name] += counters.value_missing
        return total

    def _counters(self) -> Iterator[tuple[str, Name, PassReason | None, Counters]]:
        for ingress, counter_table in self.counter_table.items():
            for (name, reason), counters in list(counter_table.by_way.items()):
                yield ingress, name, reason, counters
