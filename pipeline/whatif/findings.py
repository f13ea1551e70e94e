"""The findings on a proposed ring, for a demand by slot."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from pipeline.data.rings import RingSpec
from pipeline.stats.sampling import Estimate
from pipeline.whatif.advice import Advice, advise
from pipeline.whatif.prediction import Load, load, moved, native_part
from pipeline.whatif.published import Published, Share
from ring.destination import Destination
from ring.hashing import SLOTS

LOAD_SCHEMA = (
    "kind string, destination string, weight int, messages long, bytes long, share double, over_fair double,"
    " new_weight int, new_messages long, new_bytes long, new_share double, new_over_fair double,"
    " advised_weight int, advised_messages long, advised_share double, advised_over_fair double"
)
"""The columns of `Findings.rows`. A weight and the load over fair are null if that ring lacks the destination."""


@dataclass(frozen=True)
class OverFair:
    """The busiest destination's messages per weight over the mean per weight, by several rings."""

    present: Estimate
    """The figure of the present ring, by its own weights."""
    proposed: Estimate
    advised: Estimate
    """The figure of the advised ring, by the proposed weights."""
    least: Estimate
    """The least that any weights of the proposed destinations can reach."""


@dataclass(frozen=True)
class Findings:
    """The findings of one run of `whatif`, for its tables, verdict and report."""

    present: RingSpec
    proposed: RingSpec
    published: Published
    before: Load
    after: Load
    moved: Share
    native: Share
    """The share that RabbitMQ's own exchange of that type would move for the same edit, in the mean."""
    advice: Advice
    advised_moves: Share
    """The share that the advised weights would move from where the present ring has it."""
    max_over_fair: OverFair
    per_hour: Estimate | None = None
    """The most messages that a destination of the proposed ring gets in the busiest hour for each unit of its weight;
    None if it was not asked for."""

    @cached_property
    def got_before(self) -> dict[Destination, Estimate]:
        """The messages of each destination of the present ring, with their intervals."""
        return self.published.gets(self.present.ring)

    @cached_property
    def got_after(self) -> dict[Destination, Estimate]:
        """The messages of each destination of the proposed ring, with their intervals."""
        return self.published.gets(self.proposed.ring)

    @cached_property
    def got_advised(self) -> dict[Destination, Estimate]:
        """The messages of each destination of the advised ring, with their intervals."""
        return self.published.gets(self.advice.spec.ring)

    @property
    def weights_help(self) -> bool:
        """Whether other weights than the proposed even the load better."""
        return self.advice.spec is not self.proposed

    @property
    def advised(self) -> RingSpec:
        """The advised ring with the shares that are fair; proposed, it gives the figures that are told of it here."""
        return replace(self.advice.spec, fair=self.proposed.wanted)

    def rows(self) -> list[tuple[Any, ...]]:
        """Return a row for each destination of either ring, as LOAD_SCHEMA has it."""
        before, after, advised = (_by_destination(one) for one in (self.before, self.after, self.advice.load))
        rows: list[tuple[Any, ...]] = []
        for destination in sorted({**self.present.weights, **self.proposed.weights}):
            weight, messages, _, share, over_fair = advised.get(destination, _ABSENT)
            now, then = before.get(destination, _ABSENT), after.get(destination, _ABSENT)
            rows.append((*destination, *now, *then, weight, messages, share, over_fair))
        return rows


def find(present: RingSpec, proposed: RingSpec, published: Published, busiest: Published | None = None) -> Findings:
    """Return what is found of a proposed ring for a demand that has messages; `busiest` is that of the busiest hour."""
    demand, every = published.demand, np.arange(SLOTS)
    advice, before, after = (
        advise(proposed, demand),
        load(present.ring, demand),
        load(proposed.ring, demand, proposed.wanted),
    )
    return Findings(
        present,
        proposed,
        published,
        before,
        after,
        published.share(moved(present.ring, proposed.ring, every)),
        published.share_of(native_part(present, proposed)),
        advice,
        published.share(moved(present.ring, advice.spec.ring, every)),
        OverFair(
            published.max_over_fair(present.ring, before),
            published.max_over_fair(proposed.ring, after),
            published.max_over_fair(advice.spec.ring, advice.load),
            published.least_over_fair(after),
        ),
        busiest.per_weight(proposed.ring, proposed.wanted) if busiest is not None else None,
    )


_ABSENT = (None, 0, 0, 0.0, None)
"""The row of a destination that a ring lacks."""


def _by_destination(of: Load) -> dict[Destination, tuple[int | None, int, int, float, float | None]]:
    shares = (of.messages / of.messages.sum()).tolist()
    counts = np.rint(of.messages).astype(int).tolist(), np.rint(of.bytes).astype(int).tolist()
    rows = zip(of.weights, *counts, shares, of.over_fair.tolist(), strict=True)
    return dict(zip(of.destinations, rows, strict=True))
