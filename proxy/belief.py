"""What to believe of a reading that shows less than before. Pure: readings and times in, weights out.

Additions and new weights count at once. A removal that nothing vouches for must last a settle time and show in a second
reading, so that an unbind followed by a bind does not move keys twice and a node's passing lie does not empty a ring.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from ring.destination import Destination


@dataclass(frozen=True)
class Belief:
    """The weights to route by, and since when some of them are missing from the readings."""

    weights: Mapping[Destination, int] = field(default_factory=dict)
    missing_since: Mapping[Destination, float] = field(default_factory=dict)

    def after(
        self,
        reading: Mapping[Destination, int],
        now: float,
        settle_time: float,
        vouched: Collection[Destination] = (),
    ) -> "Belief":
        """The belief once a reading that started at `now` (monotonic seconds) came back.

        `vouched` are destinations whose removal a second source told of: a return, an event, an -ok.
        """
        missing = {
            destination: self.missing_since.get(destination, now)
            for destination in self.weights
            if destination not in reading and destination not in vouched
        }
        missing = {d: since for d, since in missing.items() if now - since < settle_time}
        return Belief({**{d: self.weights[d] for d in missing}, **reading}, missing)

    def settles_at(self, settle_time: float) -> float | None:
        """When the next reading can settle a removal; None where nothing is missing."""
        return min(self.missing_since.values()) + settle_time if self.missing_since else None
