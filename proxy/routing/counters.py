"""All that the ingresses, HTTP and AMQP, count as plain integers; a scrape of the admin listener makes metrics of it.

`Counters` belong to one exchange and one way, a `CounterTable` holds those of one ingress, and `Counts` holds all.
"""

# mypyc: compiled

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterator

from proxy.outcome import Outcome
from proxy.topology.table import Name, PassReason
from ring.destination import Destination

NOWHERE: Name = ("", "")
"""The name for publishes to exchanges not known to exist: clients' names must not become labels of metrics."""


class Tally:
    """The number of publishes that were sent to one destination of a ring, for as long as the ring has it."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        """Begin at zero."""
        self.count = 0


class Counters:
    """The counts of one exchange's publishes by one way: through its ring, or passed for a reason. They only grow."""

    __slots__ = (
        "acked", "nacked", "placed", "published", "rerouted", "sent", "shadowed", "unavailable", "unknown",
        "unroutable", "value_missing",
    )  # fmt: skip

    published: int
    """Publishes that were handed to the broker."""
    acked: int
    """Publishes that the broker has acknowledged, without the ones that it returned as unroutable."""
    shadowed: Counter[Destination]
    """Publishes by the destination to which the shadowed ring would have sent them."""
    placed: dict[Destination, Tally]
    """Publishes by the destination to which the ring has sent them, those that came back by their first."""
    rerouted: int
    """Publishes that came back as unroutable and were published again."""

    def __init__(self) -> None:
        """Set every count to zero."""
        self.published = self.acked = self.nacked = self.unroutable = 0
        self.rerouted = self.sent = self.unknown = self.unavailable = self.value_missing = 0
        self.shadowed = Counter()
        self.placed = {}

    def tally(self, destination: Destination) -> Tally:
        """Return the tally of a destination of the ring, made when first asked for."""
        return self.placed.setdefault(destination, Tally())

    def add(self, outcome: Outcome) -> None:
        """Count a publish that came back, by its outcome in the end."""
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
        """Return the counts by outcome. `acknowledged` is what an ack means: CONFIRMED by a ring's queue, or PASSED."""
        return {
            acknowledged: self.acked,
            Outcome.NACKED: self.nacked,
            Outcome.UNROUTABLE: self.unroutable,
            Outcome.SENT: self.sent,
            Outcome.UNKNOWN: self.unknown,
            Outcome.UNAVAILABLE: self.unavailable,
        }


class CounterTable:
    """The counters of one ingress: one `Counters` for each exchange and way, made when first asked for."""

    def __init__(self) -> None:
        """Begin without any counters."""
        self.by_way: dict[tuple[Name, PassReason | None], Counters] = {}
        """The counters by exchange and reason to pass; None for publishes that the ring routes."""

    def of(self, name: Name, reason: PassReason | None) -> Counters:
        """Return the counters of an exchange's publishes that pass for `reason`; None stands for its ring."""
        return self.by_way.setdefault((name, reason), Counters())

    def forget(self, name: Name) -> None:
        """Drop the counters of an exchange that is gone."""
        for way in [way for way in self.by_way if way[0] == name]:
            del self.by_way[way]


LATENCY_BOUNDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Upper bounds of the histogram's buckets, in seconds; an idle broker on the same host confirms within 0.2 ms."""


class Latency:
    """A histogram of the time from a publish to its confirm, for one ingress."""

    def __init__(self) -> None:
        """Begin with empty buckets."""
        self._counts = [0] * (len(LATENCY_BOUNDS) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        """Count one confirm that took so many seconds."""
        self._counts[bisect_left(LATENCY_BOUNDS, seconds)] += 1
        self._sum += seconds

    def counts(self) -> list[int]:
        """Return the count of each bucket, and of the one above them all."""
        return list(self._counts)

    def buckets(self) -> tuple[list[tuple[str, float]], float]:
        """Return (bound, cumulative count) pairs, as Prometheus wants them, and the sum in seconds."""
        total, buckets = 0, []
        for bound, count in zip((*map(str, LATENCY_BOUNDS), "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        return buckets, self._sum


class Counts:
    """All counts of this process: of publishes that were sent, of messages that never were, and of HTTP answers."""

    def __init__(self) -> None:
        """Set every count to zero."""
        self.counter_table = {"http": CounterTable(), "amqp": CounterTable()}
        """The counters of publishes that were sent, by ingress."""
        self.http_latency, self.amqp_latency = Latency(), Latency()
        self.credentials: Counter[tuple[str, str]] = Counter()
        """Credentials of HTTP clients that were wrong, or not looked at, by the labels of `proxy.settings.guesses`."""
        self.unsent: Counter[tuple[str, Name, Outcome]] = Counter()
        """Messages that were never sent, by ingress, exchange and outcome."""
        self.http_answers: dict[str, Counter[int]] = {"http": Counter(), "admin": Counter()}
        """HTTP answers by listener and status. This sidecar chooses the statuses, so there are few."""

    def names(self) -> set[Name]:
        """Return the exchanges of which something is counted, without `NOWHERE`."""
        counted = {name for counter_table in self.counter_table.values() for name, _ in counter_table.by_way}
        return (counted | {name for _, name, _ in self.unsent}) - {NOWHERE}

    def forget(self, name: Name) -> None:
        """Drop all that was counted of an exchange that is gone, which ends its time series."""
        for counter_table in self.counter_table.values():
            counter_table.forget(name)
        for key in [key for key in self.unsent if key[1] == name]:
            del self.unsent[key]

    def forget_destinations(self, name: Name, destinations: Collection[Destination]) -> None:
        """Drop what was counted of destinations that an exchange has no more."""
        for counter_table in self.counter_table.values():
            for reason in (None, *PassReason):
                counters = counter_table.by_way.get((name, reason))
                if counters is not None:
                    for destination in destinations:
                        counters.shadowed.pop(destination, None)
                        counters.placed.pop(destination, None)

    def all_publishes(self) -> Counter[tuple[str, Name, Outcome]]:
        """Return how many messages there were by ingress, exchange and outcome."""
        total = self.unsent.copy()
        for ingress, name, reason, counters in self._counters():
            acknowledged = Outcome.CONFIRMED if reason is None else Outcome.PASSED
            for outcome, count in counters.outcomes(acknowledged).items():
                if count:
                    total[ingress, name, outcome] += count
        return total

    def all_passed(self) -> Counter[tuple[Name, str]]:
        """Return how many publishes passed their exchange unrouted, by exchange and reason."""
        total: Counter[tuple[Name, str]] = Counter()
        for _, name, reason, counters in self._counters():
            if reason is not None:
                total[name, reason] += counters.published
        return total

    def all_rerouted(self) -> Counter[tuple[str, Name]]:
        """Return how many publishes came back and were published again, by ingress and exchange."""
        total: Counter[tuple[str, Name]] = Counter()
        for ingress, name, _, counters in self._counters():
            if counters.rerouted:
                total[ingress, name] += counters.rerouted
        return total

    def all_destinations(self) -> dict[Name, set[Destination]]:
        """Return the destinations that publishes are counted for, by exchange."""
        found: dict[Name, set[Destination]] = {}
        for _, name, _, counters in self._counters():
            found.setdefault(name, set()).update(counters.shadowed, counters.placed)
        return found

    def all_shadowed(self) -> Counter[tuple[Name, Destination]]:
        """Return how many publishes shadowed rings would have sent to each destination, by exchange and destination."""
        total: Counter[tuple[Name, Destination]] = Counter()
        for _, name, _, counters in self._counters():
            for destination, count in counters.shadowed.items():
                total[name, destination] += count
        return total

    def placed(self, name: Name) -> Counter[Destination]:
        """Return how many publishes the ring of one exchange has sent to each destination, or would in shadow."""
        total: Counter[Destination] = Counter()
        for _, counted, reason, counters in self._counters():
            if counted == name and reason is not PassReason.SHARE:
                total.update({destination: tally.count for destination, tally in counters.placed.items()})
                total.update(counters.shadowed)
        return total

    def all_value_missing(self) -> Counter[Name]:
        """Return how many publishes lacked the header or property that a ring hashes, by exchange."""
        total: Counter[Name] = Counter()
        for _, name, _, counters in self._counters():
            if counters.value_missing:
                total[name] += counters.value_missing
        return total

    def _counters(self) -> Iterator[tuple[str, Name, PassReason | None, Counters]]:
        for ingress, counter_table in self.counter_table.items():
            for (name, reason), counters in list(counter_table.by_way.items()):
                yield ingress, name, reason, counters
