"""Weights under which each destination gets its fair share of a demand, found by trying."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pipeline.rings import RingSpec
from pipeline.whatif.prediction import Demand, Load, Weights, least_over_fair, load, load_by
from pipeline.whatif.topology import MODULUS
from ring.destination import MAX_WEIGHT, Destination
from ring.ring import owners

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]

GOOD_ENOUGH = 1.01
"""A load within this factor of the least that weights can reach ends the search."""

_ROUNDS, _PATIENCE, _STEPS = 8, 2, 40
_BETTER = 1.002
"""The factor by which a round must improve on the best load to count."""
_HEAVY = 1 << 12
"""How many of the heaviest slots are placed exactly in every step."""
_LEAST_WEIGHT = 1000
"""The smallest of the weights that are tried, if MAX_WEIGHT leaves room, so that steps are of a thousandth."""


@dataclass(frozen=True)
class Advice:
    """The weights found under which loads are nearest to the wanted proportions, and what each destination gets."""

    spec: RingSpec
    load: Load


def advise(proposed: RingSpec, demand: Demand) -> Advice:
    """Return weights under which the busiest destination gets the least, over its fair share by the proposed weights.

    So the proposed weights say which proportions are wanted, and the advised ones correct for where the slots fell. The
    proposed ones stay unless others are better by more than GOOD_ENOUGH.
    """
    wanted = proposed.weights
    best = Advice(proposed, load(proposed.ring, demand))
    if proposed.exchange_type == MODULUS or len(wanted) == 1 or not demand.messages.any():
        return best
    least = least_over_fair(best.load, float(demand.messages.max()), float(demand.messages.sum()))
    got, enough, heavy = best.load, GOOD_ENOUGH * least, _heaviest(demand)
    better_at = -1
    for done in range(_ROUNDS):
        if best.load.max_over_fair <= enough or done - better_at > _PATIENCE:
            break
        weights = _evened(got, heavy, enough)
        tried = replace(proposed, weights={d: weights[d] for d in wanted})
        # Most demands have few of all slots: whole rings take longer.
        got = load_by(weights, owners(weights, demand.slots), demand, wanted)
        # Also from what is worse the search goes on: of where the slots went it shows more than the estimate knew.
        if got.max_over_fair < best.load.max_over_fair / (GOOD_ENOUGH if best.spec is proposed else _BETTER):
            best, better_at = Advice(tried, got), done
    return best


def _heaviest(demand: Demand) -> Demand:
    """Return the demand of the heaviest slots, which make a difference wherever they go."""
    which = np.argsort(-demand.messages, kind="stable")[:_HEAVY]
    return Demand(demand.slots[which], demand.messages[which], demand.bytes[which])


def _evened(got: Load, heavy: Demand, enough: float) -> dict[Destination, int]:
    """Return the best weights that are found by an estimate, beginning with those of `got`.

    The estimate places the few heavy slots exactly; of all others a destination gets what it got, times what its
    share of the weights has become. Each step corrects a destination's weight by what it got over its fair share. A
    heavy slot goes back and forth between destinations as they grow light: hence ever smaller steps, and the best
    one counts, not the last.
    """
    shares = np.array(got.weights) / sum(got.weights)
    light = (got.messages - _of(heavy, dict(zip(got.destinations, got.weights, strict=True)))) / shares
    over_fair, least = got.over_fair, np.inf
    weights = best = np.array(got.weights)
    for step in range(_STEPS):
        weights = _corrected(weights, over_fair, 4 / (4 + step))
        by_destination = dict(zip(got.destinations, weights.tolist(), strict=True))
        messages = light * (weights / weights.sum()) + _of(heavy, by_destination)
        over_fair = messages / (got.fair * messages.sum())
        if over_fair.max() < least:
            best, least = weights, over_fair.max()
        if least <= enough:
            break
    return dict(zip(got.destinations, best.tolist(), strict=True))


def _of(heavy: Demand, weights: Weights) -> F64:
    """Return the messages that each destination gets of the heavy slots, in the order of destinations."""
    return load_by(weights, owners(weights, heavy.slots), heavy).messages


def _corrected(weights: I64, over_fair: F64, step: float) -> I64:
    """Return weights by which each destination comes nearer to its fair share.

    `step` is how far they go, 0 to 1: with 1, a destination that got nothing gets eight times its weight, the most.
    """
    corrected = weights * np.maximum(over_fair, 1 / 8) ** -step
    corrected *= min(_LEAST_WEIGHT / corrected.min(), MAX_WEIGHT / corrected.max())
    rounded: I64 = np.clip(np.rint(corrected), 1, MAX_WEIGHT).astype(np.int64)
    return rounded
