"""Decide which destination owns each slot: a contest of all destinations, or of some with the slot's present holder.

numpy does the work, one chunk of slots at a time. It releases the GIL during each pass over a chunk, so that the event
loop goes on while a thread builds a ring. The result equals that of plain integer arithmetic, to the last bit.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from ring.hashing import SLOTS
from ring.scores import DRAW_BITS, SCORE_BITS, U16, U64, draws, early_draws, finished, neg_log2, slot_streams

# Only two threads, since the application beside the sidecar needs the processor, too.
_THREADS = 2

# A chunk's four arrays of 8 bytes a slot fit a processor's second cache of 1 MiB. Chunks of 2^13 slots take 20 to 70%
# more CPU, since numpy is called more often, and chunks of 2^16 up to 40% (measured on 10 and 100 destinations).
_CHUNK = 1 << 15

_LEAST_SLOPE = 1.44
"""A lower bound of `neg_log2(draw)` divided by 1 - u: the exact bound is 1.4427, and the table is off by 7e-5 at
most."""

_MOST_ROUNDED = 64.0
"""Units of a score, more than rounding can change it: u to 53 bits by 23, and the division by a weight by 1."""

_HIGH_BITS = np.uint64(0xFFFFFFFE00000000)
"""The bits of a draw that `early_draws` already sets."""

_SIMILAR = 0.75
"""Weights down to this share of a greater weight are tested against its bound, which saves the computation of
another."""


def contest(seeds: U64, weights: U64, slots: NDArray[np.int64] | None = None) -> U16:
    """Return the owner of each of these slots, or of all slots if none are given.

    An owner is an index into `seeds` and `weights`, which list the destinations in their sorted order.
    """
    owners = np.zeros(SLOTS if slots is None else len(slots), dtype=np.uint16)
    _in_chunks(owners, False, seeds, weights, range(len(weights)), slots)
    return owners


def challenge(seeds: U64, weights: U64, holders: U16, challengers: Sequence[int]) -> U16:
    """Return the owner of every slot after `challengers` have contested it with its present holder.

    If `holders` won a contest of all destinations but the challengers, the result equals a contest of all.
    """
    owners = holders.copy()
    _in_chunks(owners, True, seeds, weights, challengers, None)
    return owners


def won(seeds: U64, weights: U64, entrants: Sequence[int]) -> NDArray[np.int64]:
    """Return the slots that any of `entrants` owns, in ascending order.

    A slot is given up as soon as another destination beats the entrants there. A few entrants among n others therefore
    take about as long as a contest of log2(n) destinations, instead of n.
    """
    slots, owners = np.arange(SLOTS), np.zeros(SLOTS, np.uint16)
    is_entrant = np.zeros(len(weights), np.bool_)
    is_entrant[entrants] = True
    _in_chunks(owners, False, seeds, weights, entrants, slots)
    others = _heaviest_first(np.flatnonzero(~is_entrant).tolist(), weights)
    met = len(entrants)
    while others:
        # Among equal weights, each round leaves the entrants about half of their slots.
        rivals, others = others[:met], others[met:]
        met += len(rivals)
        _in_chunks(owners, True, seeds, weights, rivals, slots)
        kept = is_entrant.take(owners)
        slots, owners = slots[kept], owners[kept]
    return slots


def _heaviest_first(entrants: Iterable[int], weights: U64) -> list[int]:
    """Return the entrants with the heaviest first: they win most slots, and the others then lose most contests without
    a logarithm.
    """
    return sorted(entrants, key=lambda i: (-int(weights[i]), i))


def _in_chunks(
    owners: U16, defended: bool, seeds: U64, weights: U64, entrants: Sequence[int], slots: NDArray[np.int64] | None
) -> None:
    """Write the owners of slots into `owners`, chunk by chunk, and in threads where there are several chunks."""
    heaviest_first = _heaviest_first(entrants, weights)

    def decide_chunk(chunk: slice) -> None:
        streams = slot_streams(np.arange(chunk.start, chunk.stop) if slots is None else slots[chunk])
        decide(streams, owners[chunk], defended, seeds, weights, heaviest_first)

    chunks = [slice(start, min(start + _CHUNK, len(owners))) for start in range(0, len(owners), _CHUNK)]
    if len(chunks) > 1:
        with ThreadPoolExecutor(_THREADS) as threads:
            deque(threads.map(decide_chunk, chunks), maxlen=0)
    elif chunks:
        decide_chunk(chunks[0])


def decide(streams: U64, owners: U16, defended: bool, seeds: U64, weights: U64, entrants: Sequence[int]) -> None:
    """Write the owner of each slot of `streams` into `owners`, after `entrants` have contested it.

    `entrants` are indices into `seeds` and `weights`; their order does not change the owners. If `defended`, the owner
    that a slot has in `owners` takes part in its contest; otherwise it is overwritten.
    """
    # Among equal weights the greatest draw has the least score, so scores need not be computed.
    alike = bool((weights == weights[0]).all())
    if not defended:
        first, *entrants = entrants
        owners[:] = first
    best_draw = draws(streams, seeds.take(owners) if defended else seeds[first])
    best_score = np.zeros_like(best_draw) if alike else neg_log2(best_draw) // weights.take(owners)
    bound, bound_weight = best_draw & _HIGH_BITS, 0.0
    draw, scratch, may_win = np.empty_like(streams), np.empty_like(streams), np.empty(len(streams), np.bool_)
    for entrant in entrants:
        weight = weights[entrant]
        if not alike and not bound_weight * _SIMILAR <= weight <= bound_weight:
            bound_weight = float(weight)
            bound = _least_draw(best_score, bound_weight)
        early_draws(streams, seeds[entrant], draw, scratch)
        # After the first entrants few slots are still in play: the k-th wins one in k. Only these rivals are computed.
        rivals = np.greater_equal(draw, bound, out=may_win).nonzero()[0]
        rival_draw = finished(draw[rivals])
        held_draw = best_draw[rivals]
        wins = rival_draw > held_draw
        equal = rival_draw == held_draw
        if equal.any():
            wins |= equal & (entrant < owners[rivals])
        if not alike:
            rival_score = neg_log2(rival_draw) // weight
            held_score = best_score[rivals]
            wins &= rival_score == held_score
            wins |= rival_score < held_score
        if not wins.all():
            rivals, rival_draw = rivals[wins], rival_draw[wins]
        owners[rivals] = entrant
        best_draw[rivals] = rival_draw
        if alike:
            bound[rivals] = rival_draw & _HIGH_BITS
        else:
            won_score = rival_score[wins]
            best_score[rivals] = won_score
            bound[rivals] = _least_draw(won_score, bound_weight)


def _least_draw(score: U64, weight: float) -> U64:
    """Return for each score a draw below which each draw of a destination with this weight, or less, has a worse score.

    Draws are meant as `early_draws` writes them. The bounds are a little lower than necessary, for the rounding of
    floats.
    """
    least = score.astype(np.float64)
    least += _MOST_ROUNDED
    # The score becomes the distance of the draw from the greatest one, in units of a draw.
    least *= weight / _LEAST_SLOPE * 2.0 ** (DRAW_BITS - SCORE_BITS)
    # Early draws differ from draws by less than 2^33. The rest of 2^34 allows for floats, which have 53 bits.
    np.subtract(2.0**DRAW_BITS - 2.0**34, least, out=least)
    np.maximum(least, 0.0, out=least)
    return least.astype(np.uint64)
