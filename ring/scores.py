"""Weighted rendezvous scores in integer arithmetic, so that every machine and numpy build agrees to the last bit.

Every destination draws a 64-bit number for every slot: output `slot` of SplitMix64 started at the destination's seed.
The score is that draw turned into an exponential variate with the weight as its rate, -log2(u) / weight (Efraimidis
and Spirakis 2006; Schindelhauer and Schomaker 2005), in fixed point; the least score owns the slot, a greater draw
breaks a tie, and the destination that sorts first breaks the rest. Among equal weights the greatest draw has the least
score, so a logarithm is taken once a slot and weight, not once a slot and destination.
"""

import functools
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ring.hashing import SLOTS

U64 = NDArray[np.uint64]
U16 = NDArray[np.uint16]

# SplitMix64 (Steele, Lea, Flood 2014): the increment and the two multipliers.
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)

# Slots worked on at a time: a handful of such arrays stay in a core's second-level cache.
_CHUNK = 1 << 15

# A whole ring's, by so many threads (numpy lets go of the GIL meanwhile): with fewer slots they wait for the GIL. Two,
# for the application beside a sidecar has work, too.
_THREADS, _THREAD_CHUNK = 2, 1 << 16

_LOG_STEPS = 12  # the table holds log2 at 2^12 steps of [1, 2]
_LOG_BITS = 39  # fractional bits of its entries
_FRACTION_BITS = 36  # bits of the place between two steps; 28-bit step * 36 bits fits 64
_SCORE_BITS = 57  # fractional bits of -log2(u), which is at most 53


class _Rivals(NamedTuple):
    """n slots with a challenger's draw, and its index; each of length n."""

    slots: NDArray[np.int64]
    draw: U64
    owner: U16


class _State(NamedTuple):
    """A contest over n slots: the least score so far, its draw and the index of its destination, each of length n."""

    score: U64
    draw: U64
    owner: U16


def slot_streams(slots: NDArray[np.int64]) -> U64:
    """What SplitMix64 adds to a seed to reach each slot's output."""
    streams = slots.astype(np.uint64)
    streams += np.uint64(1)
    streams *= _GAMMA
    return streams


def draws(streams: U64, seeds: U64 | np.uint64, out: U64 | None = None, scratch: U64 | None = None) -> U64:
    """The 64-bit draw of each slot for one destination's seed, or for a seed a slot."""
    z = np.add(streams, seeds, out=out)
    t = np.right_shift(z, np.uint64(30), out=scratch)
    np.bitwise_xor(z, t, out=z)
    np.multiply(z, _MIX_1, out=z)
    np.right_shift(z, np.uint64(27), out=t)
    np.bitwise_xor(z, t, out=z)
    np.multiply(z, _MIX_2, out=z)
    np.right_shift(z, np.uint64(31), out=t)
    np.bitwise_xor(z, t, out=z)
    return z


@functools.cache
def log2_table() -> U64:
    """round(log2(1 + i/4096) * 2^39) for i of 0 to 4096, from integers alone: no libm may round it differently.

    Sums ln((n+1)/n) = 2 atanh(1/(2n+1)) for n of 4096 to 8191 with 128 fractional bits.
    """
    one = 1 << 128
    steps = 1 << _LOG_STEPS
    sums = [0]
    for n in range(steps, 2 * steps):
        base = 2 * n + 1
        power, divisor, term, total = one // base, 1, one // base, 0
        while term:
            total += term
            power //= base * base
            divisor += 2
            term = power // divisor
        sums.append(sums[-1] + 2 * total)
    ln2 = sums[-1]
    return np.array([((s << (_LOG_BITS + 1)) // ln2 + 1) >> 1 for s in sums], dtype=np.uint64)


@functools.cache
def _log2_rises() -> U64:
    return np.diff(log2_table())


def neg_log2(draw: U64) -> U64:
    """-log2(u) in units of 2^-57 for u = (the draw's top 53 bits + 1) / 2^53; never grows with the draw.

    The table's straight lines meet -log2 at their ends, so the relative error stays under 7e-5 down to u = 1.
    """
    # Exact: every integer up to 2^53 is a float64, and its bits are the exponent and the mantissa that are needed.
    bits = ((draw >> np.uint64(11)) + np.uint64(1)).astype(np.float64).view(np.uint64)
    exponent = (bits >> np.uint64(52)) - np.uint64(1023)
    step = ((bits >> np.uint64(52 - _LOG_STEPS)) & np.uint64((1 << _LOG_STEPS) - 1)).astype(np.intp)
    fraction = (bits >> np.uint64(52 - _LOG_STEPS - _FRACTION_BITS)) & np.uint64((1 << _FRACTION_BITS) - 1)
    log2 = (log2_table()[step] << np.uint64(_SCORE_BITS - _LOG_BITS)) + (
        (_log2_rises()[step] * fraction) >> np.uint64(_LOG_BITS + _FRACTION_BITS - _SCORE_BITS)
    )
    return ((np.uint64(53) - exponent) << np.uint64(_SCORE_BITS)) - log2


def contest(seeds: U64, weights: U64, slots: NDArray[np.int64] | None = None) -> U16:
    """The owner of each of these slots, or of all, by the seeds and weights of destinations in the order they sort."""
    groups = _by_weight(weights, range(len(weights)))
    owners = np.empty(SLOTS if slots is None else len(slots), dtype=np.uint16)

    def decide(part: slice) -> None:
        streams = slot_streams(np.arange(part.start, part.stop) if slots is None else slots[part])
        owners[part] = _contest(streams, seeds, groups).owner

    parts = _chunks(len(owners), _THREAD_CHUNK)
    if len(parts) > 1:
        with ThreadPoolExecutor(_THREADS) as threads:
            deque(threads.map(decide, parts), maxlen=0)
    elif parts:
        decide(parts[0])
    return owners


def challenge(seeds: U64, weights: U64, holders: U16, challengers: Sequence[int]) -> U16:
    """The owner of every slot once `challengers` have contested it with its holder; what `contest` of all would say."""
    groups = _by_weight(weights, challengers)
    rivals: list[list[_Rivals]] = [[] for _ in groups]
    alike = bool((weights == weights[0]).all())
    for part in _chunks(SLOTS, _CHUNK):
        streams, owner = slot_streams(np.arange(part.start, part.stop)), holders[part]
        # Rings keep no draws beside them: a holder's is computed again from the owner alone.
        held = draws(streams, seeds.take(owner))
        for (weight, members), found in zip(groups, rivals, strict=True):
            draw, challenger = _greatest_draws(streams, seeds, members)
            # Among equal weights the greater draw wins.
            at = np.flatnonzero(draw >= held) if alike else _may_win(draw, float(weight), held, owner, weights)
            found.append(_Rivals(at + part.start, draw[at], challenger[at]))
    owners = holders.copy()
    for (weight, _), found in zip(groups, rivals, strict=True):
        every = _Rivals(*map(np.concatenate, zip(*found, strict=True)))
        for part in _chunks(len(every.slots), _CHUNK):
            slots, draw = every.slots[part], every.draw[part]
            owner = owners[slots]
            held = draws(slot_streams(slots), seeds[owner])
            new = _State(neg_log2(draw) // weight, draw, every.owner[part])
            owners[slots] = _better(_State(neg_log2(held) // weights[owner], held, owner), new).owner
    return owners


def _may_win(draw: U64, weight: float, held: U64, owner: U16, weights: U64) -> NDArray[np.intp]:
    """The slots where a draw's score may be the lesser: all where it is, and few more, so few logarithms are taken.

    By d = 1 - u, in units of 2^-64: d <= -ln u <= d / u. The margins are for the table's error, for the bits of a draw
    that it leaves out (up to 2^16 units), and for what scores and floats are rounded by.
    """
    # At first as if every holder had the least weight and u of all, for then no look at each is needed. Here in terms
    # of u, which saves two passes: 2^64 - far >= 2^64 - (held_far * factor + margin).
    ratio = weight / (float(weights.min()) * max(float(held.min()) * 2.0**-64, 2.0**-64))
    least = held.astype(np.float64)
    least *= 1.001 * ratio
    least += 2.0**64 * (1 - 1.001 * ratio) - ((1 << 18) * ratio + 8192 * weight)
    at = np.flatnonzero(draw.astype(np.float64) >= least)
    far, held_far = (~draw[at]).astype(np.float64), (~held[at]).astype(np.float64)
    held_weight = weights[owner[at]] * (1 - held_far * 2.0**-64)
    return at[far * held_weight <= (held_far * 1.001 + (1 << 17) + 8192 * held_weight) * weight]


def ranking(stream: np.uint64, seeds: U64, weights: U64) -> NDArray[np.intp]:
    """All destinations' indices in the order in which they would own one slot, were those before them gone."""
    draw = draws(np.full(len(seeds), stream), seeds)
    return np.lexsort((np.arange(len(seeds)), ~draw, neg_log2(draw) // weights))


def _chunks(length: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


def _by_weight(weights: U64, entrants: Sequence[int]) -> list[tuple[np.uint64, list[int]]]:
    groups: dict[int, list[int]] = {}
    for i in entrants:
        groups.setdefault(int(weights[i]), []).append(i)
    # The likeliest winners first, so that the others are seen to lose early.
    by_share = sorted(groups.items(), key=lambda group: -group[0] * len(group[1]))
    return [(np.uint64(weight), members) for weight, members in by_share]


def _contest(streams: U64, seeds: U64, groups: list[tuple[np.uint64, list[int]]]) -> _State:
    (weight, members), *others = groups
    draw, owner = _greatest_draws(streams, seeds, members)
    state = _State(neg_log2(draw) // weight, draw, owner)
    if others:
        # In floats, and with more than what those and the division may round off.
        bar = state.score.astype(np.float64)
        bar += 64
    for weight, members in others:
        draw, owner = _greatest_draws(streams, seeds, members)
        # -log2(u) > 1.375 (1 - u): most draws are seen to lose without their logarithm.
        least = (~draw).astype(np.float64)
        least *= 1.375 * 2.0 ** (_SCORE_BITS - 64) / float(weight)
        rivals = np.flatnonzero(least <= bar)
        challenger = _State(neg_log2(draw[rivals]) // weight, draw[rivals], owner[rivals])
        won = _better(_State(state.score[rivals], state.draw[rivals], state.owner[rivals]), challenger)
        state.score[rivals], state.draw[rivals], state.owner[rivals] = won
        bar[rivals] = won.score.astype(np.float64) + 64
    return state


def _greatest_draws(streams: U64, seeds: U64, members: list[int]) -> tuple[U64, U16]:
    """Of destinations with one weight: each slot's greatest draw and the index of the destination that drew it."""
    rows = _CHUNK // max(len(streams), 1)
    if rows > 1:
        return _greatest_in_rows(streams, seeds, np.array(members), rows)
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


def _greatest_in_rows(streams: U64, seeds: U64, members: NDArray[np.intp], rows: int) -> tuple[U64, U16]:
    """The same for few slots: so many destinations at a time, in one array."""
    every = np.arange(len(streams))
    best, owner = np.zeros_like(streams), np.full(len(streams), members[0], dtype=np.uint16)
    for start in range(0, len(members), rows):
        drawn = draws(
            np.broadcast_to(streams, (len(members[start : start + rows]), len(streams))),
            seeds[members[start : start + rows], np.newaxis],
        )
        first = drawn.argmax(axis=0)
        greatest = drawn[first, every]
        won = greatest > best
        best[won], owner[won] = greatest[won], members[start + first[won]]
    return best, owner


def _better(a: _State, b: _State) -> _State:
    """The better of two states, slot by slot: least score, then greatest draw, then first in sorting."""
    draw_wins = (b.draw > a.draw) | ((b.draw == a.draw) & (b.owner < a.owner))
    wins = (b.score < a.score) | ((b.score == a.score) & draw_wins)
    return _State(np.where(wins, b.score, a.score), np.where(wins, b.draw, a.draw), np.where(wins, b.owner, a.owner))
