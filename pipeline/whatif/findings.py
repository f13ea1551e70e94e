"""All that is found of a proposed ring, of a demand by slot."""

from dataclasses import dataclass

import numpy as np

from pipeline.rings import KnownRing
from pipeline.whatif.advice import Advice, advise
from pipeline.whatif.prediction import Demand, Load, Share, floor, load, moved, moved_natively, share
from ring.destination import Destination

LOAD_SCHEMA = (
    "kind string, destination string, weight int, messages long, bytes long, share double,"
    " new_weight int, new_messages long, new_bytes long, new_share double,"
    " advised_weight int, advised_messages long, advised_share double"
)
"""Of `Findings.rows`; a weight is null where the ring lacks the destination."""

LoadRow = tuple[str, str, int | None, int, int, float, int | None, int, int, float, int | None, int, float]


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
    least_over_mean: float
    """Under the proposed destinations no weights bring it lower: more than 1 where one slot outweighs the mean."""

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

    def rows(self) -> list[LoadRow]:
        """A row each destination of either ring, as LOAD_SCHEMA has it."""
        loads = [_by_destination(one) for one in (self.before, self.after, self.advice.load)]
        rows: list[LoadRow] = []
        for destination in sorted({**self.present.weights, **self.proposed.weights}):
            (w0, m0, b0, s0), (w1, m1, b1, s1), (w2, m2, _, s2) = (
                one.get(destination, (None, 0, 0, 0.0)) for one in loads
            )
            rows.append((destination.kind, destination.name, w0, m0, b0, s0, w1, m1, b1, s1, w2, m2, s2))
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


def _by_destination(of: Load) -> dict[Destination, tuple[int | None, int, int, float]]:
    shares = (of.messages / of.messages.sum()).tolist()
    rows = zip(of.weights, of.messages.astype(int).tolist(), of.bytes.astype(int).tolist(), shares, strict=True)
    return dict(zip(of.destinations, rows, strict=True))
