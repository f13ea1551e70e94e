"""The growth of this sidecar's counts within the last ten minutes, in steps of 15 s, and percentiles of latencies.

The steps are there before a page is opened. A step keeps only what has grown, and of that the largest part, so that the
number of exchanges does not count.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from proxy.routing.counters import LATENCY_BOUNDS

STEP: Final = 15.0
"""Seconds between two steps."""

STEPS: Final = 40
"""The most steps that are kept: ten minutes."""

KEPT: Final = STEPS * STEP
"""Seconds for which the steps reach back."""

MOST_COUNTED: Final = 400
"""The most counts of one step, those that have grown most."""

LIVE: Final = 10.0
"""Seconds over which the rate of now is taken."""

Counted = tuple[str, str, str, str]
"""A count: its kind, the virtual host and the exchange or group that it is of, and which of the kind it is."""


class Totals(NamedTuple):
    """All counts of one moment, which only grow."""

    at: float
    """In monotonic seconds."""
    counts: Counter[Counted]
    latencies: Mapping[str, Sequence[int]]
    """By ingress, how many confirms fell into each bucket of `LATENCY_BOUNDS`, and into the one above them."""


class Step(NamedTuple):
    """The growth of all counts within one step."""

    ended: float
    """In seconds since 1970."""
    seconds: float
    grown: Counter[Counted]
    latencies: Mapping[str, Sequence[int]]


class History:
    """The last steps, and the moment at which the running one began; lives as long as the process."""

    def __init__(self, totals: Callable[[], Totals]) -> None:
        """`totals` returns the counts of now. The first step begins here."""
        self._totals = totals
        self._began = totals()
        self.steps: deque[Step] = deque(maxlen=STEPS)
        """The steps that have ended, the oldest first."""
        self._recent: deque[Totals] = deque([self._began])
        """Moments of the last `LIVE` seconds, and one before."""

    def end_step(self) -> None:
        """End the running step, and begin the next one."""
        now = self._totals()
        grown = now.counts - self._began.counts
        if len(grown) > MOST_COUNTED:
            grown = Counter(dict(grown.most_common(MOST_COUNTED)))
        latencies = {ingress: _less(n, self._began.latencies[ingress]) for ingress, n in now.latencies.items()}
        self.steps.append(Step(time.time(), now.at - self._began.at, grown, latencies))
        self._began = now
        if now.at - self._recent[-1].at > LIVE:
            # Nobody has looked of late, and who looks next wants the rate of now.
            self._recent = deque([now])

    def look(self) -> "Look":
        """Return the growth up to now, over `LIVE` seconds and over all steps; to be called once a second at most."""
        now = self._totals()
        before = self._recent[0]
        while len(self._recent) > 1 and now.at - self._recent[1].at >= LIVE:
            self._recent.popleft()
            before = self._recent[0]
        self._recent.append(now)
        late = now.counts - self._began.counts
        for step in self.steps:
            late.update(step.grown)
        return Look(max(now.at - before.at, 0.001), now.counts - before.counts, late, now.counts)


class Look(NamedTuple):
    """The growth of counts up to one moment."""

    seconds: float
    """The seconds over which `live` has grown."""
    live: Counter[Counted]
    late: Counter[Counted]
    """The growth over all steps that are kept, and the running one."""
    total: Counter[Counted]

    def rates(self, kind: str, vhost: str, exchange: str) -> dict[str, float]:
        """Return how much each count of one exchange grows in a second now, without those that do not."""
        of = (kind, vhost, exchange)
        return {key[3]: round(n / self.seconds, 1) for key, n in self.live.items() if key[:3] == of}


def _less(one: Sequence[int], other: Sequence[int]) -> list[int]:
    return [a - b for a, b in zip(one, other, strict=True)]


def quantile(buckets: Sequence[int], share: float) -> float | None:
    """Return the seconds within which this share of the confirms came, linear within a bucket; None without any.

    The bucket above all bounds counts as its lower bound.
    """
    rank, below = share * sum(buckets), 0
    if not rank:
        return None
    for number, (bound, count) in enumerate(zip(LATENCY_BOUNDS, buckets, strict=False)):
        if below + count >= rank:
            lower = LATENCY_BOUNDS[number - 1] if number else 0.0
            return lower + (bound - lower) * (rank - below) / count
        below += count
    return LATENCY_BOUNDS[-1]
