"""The contenders' rounds: each runs for some seconds, in turn, again and again, so that all meet the same machine."""

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from bench.process import cpu_seconds, memory

T = TypeVar("T")

_REST = 0.1
"""The seconds between contenders, in which what one has left behind is cleared away."""


class Spread(NamedTuple):
    """The median, least and greatest value of one figure over the rounds."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, figures: Sequence[float]) -> "Spread":
        """Return the spread of these figures."""
        return cls(statistics.median(figures), min(figures), max(figures))


class Throughput(NamedTuple):
    """The figures of one round of a contender."""

    rate: float
    """The rate of confirmed messages a second."""
    broker: float | None
    """CPU time of the broker per message, in microseconds; None where it has no part."""
    server: float | None
    """CPU time per message of the sidecar or the bare handler, in microseconds; None where neither has a part."""


@dataclass(frozen=True)
class Contender:
    """One way to publish whose throughput is measured."""

    title: str
    run: Callable[[float], tuple[float, int]]
    """A function that publishes for some seconds, and returns messages a second and messages."""
    broker: int | None
    server: int | None
    """The pid of the process that takes the requests; None, as `broker` may be, where it has no part."""

    def memory(self) -> int:
        """Return the resident bytes of the process that takes the contender's messages."""
        pid = self.server or self.broker
        assert pid is not None
        return memory(pid)

    def measure(self, seconds: float) -> Throughput:
        """Run one round of some seconds, and return its figures."""
        before = [_cpu_seconds(pid) for pid in (self.broker, self.server)]
        rate, count = self.run(seconds)
        after = [_cpu_seconds(pid) for pid in (self.broker, self.server)]
        spent = [a if a is None or b is None else (a - b) / count * 1e6 for a, b in zip(after, before, strict=True)]
        return Throughput(rate, *spent)


def _cpu_seconds(pid: int | None) -> float | None:
    return None if pid is None else cpu_seconds(pid)


def in_turn(
    measures: Mapping[str, Callable[[float], T]], rounds: int, seconds: float, warm_up: float = 1
) -> dict[str, list[T]]:
    """Call each measure `rounds` times for `seconds`, in turn; return the results by title, in order.

    Every round begins with another measure. A first round, of `warm_up` seconds, does not count.
    """
    found: dict[str, list[T]] = {title: [] for title in measures}
    order = list(measures.items())
    for number in range(rounds + 1):
        order = [*order[1:], order[0]]
        for title, measure in order:
            result = measure(seconds if number else warm_up)
            time.sleep(_REST)
            if number:
                found[title].append(result)
                print(f"round {number}  {title}: {result}", file=sys.stderr, flush=True)
    return found


def told(rounds: int, seconds: float) -> str:
    """Return how the figures of contenders in turn are made, in a sentence for their tables."""
    return (
        f"Medians of {rounds} rounds of {seconds:g} s (less at a fixed rate), with the least and the most. The"
        " contenders of a table take turns; ratios and differences are taken within a round."
    )
