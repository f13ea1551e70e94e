"""All that is found of a proposed ring, of a demand by slot."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.rings import KnownRing
from pipeline.whatif.advice import Advice, advise
from pipeline.whatif.prediction import Demand, Load, Share, floor, load, moved, moved_natively, share
from ring.destination import Destination

LOAD_SCHEMA = (
    "kind string, destination string, weight int, messages long, bytes long, share double, over_fair double,"
    " new_weight int, new_messages long, new_bytes long, new_share double, new_over_fair double,"
    " advised_weight int, advised_messages long, advised_share double, advised_over_fair double"
)
"""The columns of `Findings.rows`. A weight and what is over fair are null where that ring lacks the destination."""


@dataclass(frozen=True)
class Findings:
    """What the jobs' tables, verdict and report say."""

    present: KnownRing
    proposed: KnownRing
    demand: Demand
    before: Load
    after: Load
    moved: Share
    native: Share
    """What RabbitMQ's own exchange of that type would move for the same edit, in the mean."""
    advice: Advice
    advised_moves: Share
    """What the advised weights would move from where the present ring has it."""
    heaviest_slot: int
    least_over_fair: float
    """What no weights of the proposed destinations bring `max_over_fair` below."""

    @property
    def weights_help(self) -> bool:
        """Whether other weights than the proposed even the load better."""
        return self.advice.known is not self.proposed

    @property
    def messages(self) -> int:
        """All."""
        return int(self.demand.messages.sum())

    @property
    def bytes(self) -> int:
        """All."""
        return int(self.demand.bytes.sum())

    def rows(self) -> list[tuple[Any, ...]]:
        """Return a row for each destination of either ring, as LOAD_SCHEMA has it."""
        before, after, advised = (_by_destination(one) for one in (self.before, self.after, self.advice.load))
        rows: list[tuple[Any, ...]] = []
        for destination in sorted({**self.present.weights, **self.proposed.weights}):
            weight, messages, _, share, over_fair = advised.get(destination, _ABSENT)
            now, then = before.get(destination, _ABSENT), after.get(destination, _ABSENT)
            rows.append((*destination, *now, *then, weight, messages, share, over_fair))
        return rows


def find(present: KnownRing, proposed: KnownRing, demand: Demand) -> Findings:
    """All of it; the demand has messages."""
    advice, after = advise(proposed, demand), load(proposed.ring, demand)
    return Findings(
        present,
        proposed,
        demand,
        load(present.ring, demand),
        after,
        share(demand, moved(present.ring, proposed.ring, demand.slots)),
        moved_natively(present, proposed, demand),
        advice,
        share(demand, moved(present.ring, advice.known.ring, demand.slots)),
        int(demand.slots[np.argmax(demand.messages)]),
        floor(after, demand),
    )


_ABSENT = (None, 0, 0, 0.0, None)
"""What a ring gives to a destination that it lacks."""


def _by_destination(of: Load) -> dict[Destination, tuple[int | None, int, int, float, float | None]]:
    shares = (of.messages / of.messages.sum()).tolist()
    counts = of.messages.astype(int).tolist(), of.bytes.astype(int).tolist()
    rows = zip(of.weights, *counts, shares, of.over_fair.tolist(), strict=True)
    return dict(zip(of.destinations, rows, strict=True))
