"""The rule by which Kubernetes scales: the algorithm of a HorizontalPodAutoscaler with behaviour, as its documents say.

KEDA makes such an autoscaler of a ScaledObject. Each metric proposes its value divided by its target, rounded up, or no
change within a tenth of the target; the largest proposal counts. Without one of the metrics nothing goes. Going up, the
least proposal of the window counts, and going down the largest. A policy limits how much may come or go in a period.
"""

from collections.abc import Mapping
from math import ceil
from typing import Any

TOLERANCE = 0.1
_DIRECTIONS = "scaleUp", "scaleDown"


class Autoscaler:
    """The autoscaler of one program: what it has proposed and done of late."""

    def __init__(
        self, behavior: Mapping[str, Any], minimum: int, maximum: int, targets: Mapping[str, float], pace: float = 1.0
    ) -> None:
        """`targets` are the average values by metric. All times of the behaviour are divided by `pace`."""
        self._behavior = {name: behavior[name] for name in _DIRECTIONS}
        self._minimum, self._maximum, self._targets, self._pace = minimum, maximum, targets, pace
        self._proposals: list[tuple[float, int]] = []
        self._changes: list[tuple[float, int]] = []

    def decide(self, now: float, current: int, values: Mapping[str, float | None]) -> int:
        """Return how many copies there should be now; the seconds of `now` count from anywhere."""
        known = {name: value for name, value in values.items() if value is not None}
        proposed = max((self._proposal(name, value, current) for name, value in known.items()), default=current)
        if len(known) < len(values):
            proposed = max(proposed, current)
        wanted = self._limited(now, current, self._stabilised(now, current, proposed))
        wanted = min(max(wanted, self._minimum), self._maximum)
        if wanted != current:
            self._changes.append((now, wanted - current))
        return wanted

    def _proposal(self, name: str, value: float, current: int) -> int:
        target = self._targets[name]
        return current if abs(1 - value / (target * current)) <= TOLERANCE else ceil(value / target)

    def _stabilised(self, now: float, current: int, proposed: int) -> int:
        self._proposals.append((now, proposed))
        begins = {name: now - each["stabilizationWindowSeconds"] / self._pace for name, each in self._behavior.items()}
        self._proposals = [each for each in self._proposals if each[0] > min(begins.values()) or each[0] == now]
        up, down = ([each for at, each in self._proposals if at > begins[name] or at == now] for name in _DIRECTIONS)
        return min(max(current, min(up)), max(down))

    def _limited(self, now: float, current: int, wanted: int) -> int:
        if wanted > current:
            return min(
                wanted, max(self._limit(now, current, policy, +1) for policy in self._behavior["scaleUp"]["policies"])
            )
        if wanted < current:
            return max(
                wanted, min(self._limit(now, current, policy, -1) for policy in self._behavior["scaleDown"]["policies"])
            )
        return current

    def _limit(self, now: float, current: int, policy: Mapping[str, Any], sign: int) -> int:
        """Return up or down to how many copies a policy lets go, from those at the beginning of its period."""
        begin = now - policy["periodSeconds"] / self._pace
        begun = current - sum(change for at, change in self._changes if at > begin)
        step = policy["value"] if policy["type"] == "Pods" else begun * policy["value"] / 100
        limit = ceil(begun + step) if sign > 0 else int(begun - step)
        return max(limit, current) if sign > 0 else min(limit, current)
