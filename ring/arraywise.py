"""The contest by arrays: numpy's passes over many slots at once, where `ring.slotwise` is not compiled."""

from typing import NamedTuple

import numpy as np

from ring.scores import SCORE_BITS, U16, U64, Indices, draws, neg_log2


class _State(NamedTuple):
    """A contest over n slots: the least score so far, its draw and the index of its destination, each of length n."""

    score: U64
    draw: U64
    owner: U16


def decide(streams: U64, owners: U16, defended: bool, seeds: U64, weights: U64, entrants: U16, ends: Indices) -> None:
    """Writes into `owners` whose each slot is, of n, once `entrants` have contested it: with its holder, if `defended`.

    `seeds` and `weights` are of all destinations, as they sort. `entrants` are indices of some, grouped by weight, and
    `ends` is where each group ends.
    """
    groups = np.split(entrants, ends[:-1])
    # Among equal weights draws decide, so they need no logarithms: as if all scores were equal.
    alike = bool((weights == weights[0]).all())

    def entered(draw: U64, owner: U16) -> _State:
        return _State(np.zeros_like(draw) if alike else neg_log2(draw) // weights.take(owner), draw, owner)

    if defended:
        state = entered(draws(streams, seeds.take(owners)), owners.copy())
    else:
        first, *groups = groups
        state = entered(*_greatest_draws(streams, seeds, first))
    # In floats, and with more than what those and the division may round off.
    bar = state.score.astype(np.float64)
    bar += 64
    for members in groups:
        draw, owner = _greatest_draws(streams, seeds, members)
        if alike:
            rivals = np.flatnonzero(draw >= state.draw)
        else:
            # -log2(u) > 1.375 (1 - u): most draws are seen to lose without their logarithm.
            least = (~draw).astype(np.float64)
            least *= 1.375 * 2.0 ** (SCORE_BITS - 64) / float(weights[members[0]])
            rivals = np.flatnonzero(least <= bar)
        held = _State(state.score[rivals], state.draw[rivals], state.owner[rivals])
        won = _better(held, entered(draw[rivals], owner[rivals]))
        state.score[rivals], state.draw[rivals], state.owner[rivals] = won
        bar[rivals] = won.score.astype(np.float64) + 64
    owners[:] = state.owner


def _greatest_draws(streams: U64, seeds: U64, members: U16) -> tuple[U64, U16]:
    """Of destinations with one weight: each slot's greatest draw and the index of the destination that drew it."""
    best = draws(streams, seeds[members[0]])
    owner = np.full(len(streams), members[0], dtype=np.uint16)
    if len(members) == 1:
        return best, owner
    z, scratch = np.empty_like(best), np.empty_like(best)
    greater = np.empty(len(streams), dtype=np.bool_)
    for i in members[1:]:
        draws(streams, seeds[i], z, scratch)
        # The k-th wins one slot in k: to write those alone takes a third less time in all than masks over every slot.
        won = np.greater(z, best, out=greater).nonzero()[0]
        best[won], owner[won] = z[won], i
    return best, owner


def _better(a: _State, b: _State) -> _State:
    """The better of two states, slot by slot: least score, then greatest draw, then first in sorting."""
    draw_wins = (b.draw > a.draw) | ((b.draw == a.draw) & (b.owner < a.owner))
    wins = (b.score < a.score) | ((b.score == a.score) & draw_wins)
    return _State(np.where(wins, b.score, a.score), np.where(wins, b.draw, a.draw), np.where(wins, b.owner, a.owner))
