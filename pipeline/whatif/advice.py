"""Weights under which each destination gets its fair share of a demand, found by a search that ends after some seconds.

By weights w, slot i belongs to the destination d with the least E[i, d] / w[d], where E is the slot's score of that
destination at weight 1 (`ring.scores`). While all other weights stay, slot i goes to d as soon as w[d] exceeds the
threshold E[i, d] / min(E[i, j] / w[j] for other j). Between two thresholds nothing changes. One sort of the thresholds
therefore tells the load of all destinations for every weight that d may have, and the best of these is found exactly:
a step. Steps are made for the busiest destination and for random ones until none helps.

The first descent begins where corrections of all weights at once lead. It ends in the next valley. Where one slot has
much of the load, which destination has that slot decides most, and no small step moves it: so further descents begin
for each of the destinations with the largest fair shares, with the weight that gives the heaviest slot to it. Then some
weights of the best ones so far are changed at random before each descent, until the work is used up. The work is
counted in steps, not in seconds, so that the same demand gets the same advice on every machine.

Each of the heaviest slots is placed; of all others together a destination gets what it got in the last exact count,
times what its share of the weights has become since. The best weights are counted exactly by the ring itself, and the
search goes on from that count for some rounds.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.data.rings import RingSpec
from pipeline.whatif.prediction import Demand, Load, least_over_fair, load, load_by
from pipeline.whatif.topology import MODULUS
from ring.destination import MAX_WEIGHT
from ring.ring import owners, scores_of

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]

GOOD_ENOUGH = 1.01
"""A load within this factor of the least that weights can reach ends the search."""

_ROUNDS = 3
WORK = 80_000_000
"""The work of one round, by which the three rounds together take some five seconds of one core."""
_STEP = 20_000
"""The work of a step beside that for each slot and destination."""
_HEAVY = 1 << 12
"""How many of the heaviest slots are placed exactly in every step, fewer among many destinations."""
_MOST_SCORES = 1 << 20
"""The most scores that a step looks at."""
_CORRECTIONS = 40
_STARTS = 16
"""The most destinations that the heaviest slot is tried on."""
_ROOM = 4
"""The factor by which every weight may grow, as far as MAX_WEIGHT allows; the rest of it makes steps fine."""
_EVEN = 1e-3
"""The weight of the evenness of all loads beside the greatest load, so that a step helps that lowers a second one."""
_SEED = 1


@dataclass(frozen=True)
class Advice:
    """The weights found under which loads are nearest to the wanted proportions, and what each destination gets."""

    spec: RingSpec
    load: Load


def advise(proposed: RingSpec, demand: Demand) -> Advice:
    """Return weights under which the busiest destination gets the least, over its fair share.

    The proposed ring says which proportions are wanted, and the advised weights correct for where the slots fell. The
    proposed ones stay unless others are better by more than GOOD_ENOUGH.
    """
    wanted = proposed.wanted
    best = Advice(proposed, load(proposed.ring, demand, wanted))
    if proposed.exchange_type == MODULUS or len(wanted) == 1 or not demand.messages.any():
        return best
    enough = GOOD_ENOUGH * least_over_fair(best.load, float(demand.messages.max()), float(demand.messages.sum()))
    names, random = best.load.destinations, np.random.default_rng(_SEED)
    got = best.load
    for _ in range(_ROUNDS):
        if best.load.max_over_fair <= enough:
            break
        weights = _Search(got, demand, random).best(enough)
        tried = replace(proposed, weights={d: weights[names.index(d)] for d in proposed.weights})
        # Most demands have few of all slots: whole rings take longer.
        got = load_by(tried.weights, owners(tried.weights, demand.slots), demand, wanted)
        # The search goes on from worse weights too: the slots that moved show more than the estimate knew.
        if got.max_over_fair < best.load.max_over_fair / (GOOD_ENOUGH if best.spec is proposed else 1.0):
            best = Advice(tried, got)
    return best


class _Found(NamedTuple):
    """Weights and what they are worth: the less, the better."""

    cost: float
    weights: I64


class _Search:
    """One round of the search, which begins with the weights of a load that was counted."""

    def __init__(self, got: Load, demand: Demand, random: np.random.Generator) -> None:
        self._fair, self._random = got.fair, random
        self._total = float(got.messages.sum())
        which = np.argsort(-demand.messages, kind="stable")[: max(64, min(_HEAVY, _MOST_SCORES // len(got.fair)))]
        self._messages = demand.messages[which].astype(np.float64)
        self._scores = scores_of(got.destinations, demand.slots[which])
        weights = np.array(got.weights, np.float64)
        its = np.bincount(self._owners(weights), self._messages, len(weights))
        # For each destination, the messages that lighter slots brought for its share of the weights.
        self._light = np.maximum(0.0, got.messages - its) / weights * weights.sum()
        if not self._light.any() or len(which) == len(demand.messages):
            self._light[:] = 0.0
        self._start = self._scaled(weights)
        self._left = WORK

    def best(self, enough: float) -> list[int]:
        """Return the best weights that are found with the round's work."""
        best = _Found(np.inf, self._start)
        for start in self._starts():
            best = min(best, self._descended(start), key=lambda one: one.cost)
            if best.cost <= enough:
                break
        while self._left > 0 and best.cost > enough:
            best = min(best, self._descended(self._shaken(best.weights)), key=lambda one: one.cost)
        found: list[int] = best.weights.tolist()
        return found

    def _starts(self) -> Iterator[I64]:
        """Yield evened weights, and those by which the heaviest slot goes to one destination, for each of some."""
        yield self._evened()
        for d in np.argsort(-self._fair, kind="stable")[:_STARTS].tolist():
            weights = self._start.astype(np.float64)
            over = self._scores[0] / weights
            over[d] = np.inf
            weights[d] = max(1.0, self._scores[0, d] / over.min() * 1.001)
            yield self._scaled(weights)

    def _evened(self) -> I64:
        """Return the best weights of some corrections of all at once, by what each destination has over its fair share.

        A heavy slot goes back and forth between destinations as they grow light: hence ever smaller corrections, and
        the best one counts, not the last. Among many destinations they come far before a step was made for each.
        """
        weights = best = self._start
        least = np.inf
        for n in range(_CORRECTIONS):
            loads = self._loads(weights.astype(np.float64))
            self._left -= self._scores.size // 2
            if (cost := self._cost(loads)) < least:
                best, least = weights, cost
            over_fair = loads / self._fair / loads.sum()
            weights = self._scaled(weights * np.maximum(over_fair, 1 / 8) ** (-4 / (4 + n)))
        return best

    def _shaken(self, weights: I64) -> I64:
        """Return the weights with some of them changed at random, seldom many, and seldom by much."""
        count = len(weights)
        changed = self._random.random(count) < self._random.choice([2 / count, 0.5, 1.0])
        strength = self._random.choice([0.05, 0.2, 0.8])
        return self._scaled(weights * np.exp(changed * self._random.normal(0, strength, count)))

    def _descended(self, start: I64) -> _Found:
        """Return the weights after steps from these until none helps, or the work is used up."""
        weights = start.astype(np.float64)
        loads = self._loads(weights)
        now, idle, count = self._cost(loads), 0, len(weights)
        order: list[int] = []
        while idle <= count and self._left > 0:
            if not order:
                # The busiest first, since it has to become lighter, and then the others, in any order.
                order = [int(np.argmax(loads / self._fair)), *self._random.permutation(count).tolist()]
            d = order.pop(0)
            cost, weight = self._step(weights, d)
            if cost < now * (1 - 1e-9):
                weights[d], now, idle = weight, cost, 0
                loads = self._loads(weights)
            else:
                idle += 1
        return _Found(now, weights.astype(np.int64))

    def _step(self, weights: F64, d: int) -> tuple[float, float]:
        """Return the least cost that a change of one destination's weight can reach, and that weight."""
        self._left -= self._scores.size + _STEP
        over = self._scores / weights
        over[:, d] = np.inf
        rivals = over.argmin(axis=1)
        thresholds = self._scores[:, d] / over[np.arange(len(rivals)), rivals]
        order = np.argsort(thresholds)
        # A whole number above a threshold: the least that gets the slot.
        candidates = np.unique(np.clip(np.floor(thresholds[order]) + 1, 1, MAX_WEIGHT))
        candidates = np.unique(np.append(candidates, (1, weights[d])))
        if self._light.any():
            candidates = np.unique(
                np.append(candidates, np.rint(weights[d] * np.geomspace(0.5, 2, 33)).clip(1, MAX_WEIGHT))
            )
        # The messages of each destination after the first 0, 1, 2, ... slots have gone to this one.
        went = np.zeros((len(rivals) + 1, len(weights)))
        went[np.arange(1, len(rivals) + 1), rivals[order]] = self._messages[order]
        base = went.sum(axis=0)
        np.cumsum(went, axis=0, out=went)
        passed = went[np.searchsorted(thresholds[order], candidates)]
        loads = base - passed
        loads[:, d] = passed.sum(axis=1)
        if self._light.any():
            each = np.repeat(weights[None, :], len(candidates), axis=0)
            each[:, d] = candidates
            loads += self._light * each / each.sum(axis=1, keepdims=True)
        costs = self._costs(loads)
        least = int(costs.argmin())
        return float(costs[least]), float(candidates[least])

    def _loads(self, weights: F64) -> F64:
        its = np.bincount(self._owners(weights), self._messages, len(weights))
        loads: F64 = its + self._light * weights / weights.sum()
        return loads

    def _owners(self, weights: F64) -> NDArray[np.intp]:
        found: NDArray[np.intp] = (self._scores / weights).argmin(axis=1)
        return found

    def _cost(self, loads: F64) -> float:
        return float(self._costs(loads[None, :])[0])

    def _costs(self, loads: F64) -> F64:
        """Return what the loads in each row are worth: the greatest over fair, and a little of how uneven they are."""
        over_fair = loads / self._fair / loads.sum(axis=1, keepdims=True)
        costs: F64 = over_fair.max(axis=1) + _EVEN * ((over_fair - 1) ** 2).mean(axis=1)
        return costs

    def _scaled(self, weights: F64) -> I64:
        """Return the proportions of weights as whole numbers of which each has room to grow."""
        scaled = (
            np.rint(weights * (MAX_WEIGHT / _ROOM / weights.max())) if weights.max() * _ROOM < MAX_WEIGHT else weights
        )
        rounded: I64 = np.clip(np.rint(scaled), 1, MAX_WEIGHT).astype(np.int64)
        return rounded
