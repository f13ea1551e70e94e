"""Decide when a binding that readings do not show any more counts as removed. Pure: readings, times in, weights out.

Additions and new weights count at once. A removal that no second source confirms must be seen to last a settle time, so
that an unbind followed by a bind does not move keys twice, and a node's passing lie, or two in a row, do not empty a
ring.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")
"""The item that readings show: a destination of a hash exchange, or a binding of an upstream exchange."""

_LOOKS = 3
"""The number of readings in a settle time, after the first one that lacks a destination."""

_LONGEST_GAP = 1 / 2
"""The largest share of a settle time that the gap between two readings may count for: the destination may have been
bound during the gap, unseen."""


@dataclass(frozen=True)
class WeightsInForce(Generic[T]):
    """The weights to route by after one reading, and since when some of them are missing from the readings.

    Each reading makes a new one of the one before. Bindings of an upstream exchange have the weight 1.
    """

    weights: Mapping[T, int] = field(default_factory=dict)
    """The weight of each destination that counts, including those that are missing but not yet taken as removed."""
    missing: Mapping[T, float] = field(default_factory=dict)
    """The monotonic time since which each missing destination counts as missing.

    It is moved to a later time by a long gap between readings, in which the destination may have been bound unseen.
    """
    laid_over: frozenset[T] = frozenset()
    """The missing destinations whose removal has settled, but which a declaration still keeps in force."""
    came: float = float("-inf")
    """When the last reading ended, in monotonic seconds; minus infinity before the first one and after a failed one."""

    def after(
        self,
        reading: Mapping[T, int],
        started: float,
        came: float,
        settle_time: float,
        confirmed_removals: Collection[T] = (),
        shown: Collection[T] | None = None,
    ) -> "WeightsInForce[T]":
        """Return the weights in force after a reading that started, and came back, at these times (monotonic seconds).

        `confirmed_removals` are destinations whose removal a second source confirmed: a return, an event, an -ok.
        `shown` is what the reading showed itself, where `reading` has declarations laid over it: a removal settles
        also while it is hidden by a declaration, and counts as soon as that does not.
        """
        shown = reading if shown is None else shown
        unseen = max(started - self.came - settle_time * _LONGEST_GAP, 0.0)
        missing = {
            # The time counts from the end of the first reading without the destination: it may have been bound before.
            destination: self.missing.get(destination, came)
            + (unseen if destination in self.missing and destination not in self.laid_over else 0)
            for destination in self.weights
            if destination not in shown and destination not in confirmed_removals
        }
        # A single reading never settles a removal, unless settle_time is 0.
        settled = {d for d, since in missing.items() if started - since >= settle_time or not settle_time}
        laid_over = frozenset(settled & reading.keys())
        missing = {d: since for d, since in missing.items() if d not in settled or d in laid_over}
        return WeightsInForce({**{d: self.weights[d] for d in missing}, **reading}, missing, laid_over, came)

    def after_failure(self) -> "WeightsInForce[T]":
        """Return the weights in force once a reading has failed: what was missing may have been there meanwhile."""
        return WeightsInForce(self.weights)

    def look_again_at(self, settle_time: float) -> float | None:
        """Return when to read next, monotonic, to see whether what is missing still is; None if nothing is."""
        unsettled = [since for destination, since in self.missing.items() if destination not in self.laid_over]
        return min(self.came + settle_time / _LOOKS, min(unsettled) + settle_time) if unsettled else None
