"""Weighted rendezvous scores in integer arithmetic, so that every machine and numpy build agrees to the last bit.

Every destination draws a 64-bit number for every slot: output `slot` of SplitMix64 started at the destination's seed.
The score is that draw turned into an exponential variate with the weight as its rate, -log2(u) / weight (Efraimidis
and Spirakis 2006; Schindelhauer and Schomaker 2005), in fixed point; the least score owns the slot, a greater draw
breaks a tie, and the destination that sorts first breaks the rest. Among equal weights the greatest draw has the least
score, so a logarithm is taken once a slot and weight, not once a slot and destination.
"""

import functools

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]
U16 = NDArray[np.uint16]
Indices = NDArray[np.intp]

# SplitMix64 (Steele, Lea, Flood 2014): the increment and the two multipliers.
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)

_LOG_STEPS = 12  # the table holds log2 at 2^12 steps of [1, 2]
_LOG_BITS = 39  # fractional bits of its entries
_FRACTION_BITS = 36  # bits of the position between two steps: a 28-bit rise times 36 bits fits 64 bits
DRAW_BITS = 64
"""The number of bits of a draw."""

SCORE_BITS = 57
"""The number of fractional bits of -log2(u), whose value is at most 53."""


def slot_streams(slots: NDArray[np.int64]) -> U64:
    """Return what SplitMix64 adds to a seed to reach the output of each of these slots."""
    streams = slots.astype(np.uint64)
    streams += np.uint64(1)
    streams *= _GAMMA
    return streams


def draws(streams: U64, seeds: U64 | np.uint64) -> U64:
    """Return the 64-bit draw of each slot, for the seed of one destination or for one seed for each slot."""
    draw = np.empty_like(streams)
    early_draws(streams, seeds, draw, np.empty_like(streams))
    return finished(draw)


def early_draws(streams: U64, seeds: U64 | np.uint64, out: U64, scratch: U64) -> None:
    """Write each slot's draw into `out`, without SplitMix64's last step, which changes only the lower 33 bits.

    `scratch` is overwritten. Both arrays have the shape of `streams`; the caller passes them to avoid allocations.
    """
    np.add(streams, seeds, out=out)
    np.right_shift(out, np.uint64(30), out=scratch)
    np.bitwise_xor(out, scratch, out=out)
    np.multiply(out, _MIX_1, out=out)
    np.right_shift(out, np.uint64(27), out=scratch)
    np.bitwise_xor(out, scratch, out=out)
    np.multiply(out, _MIX_2, out=out)


def finished(early: U64) -> U64:
    """Return the draws that result from SplitMix64's last step on the output of `early_draws`."""
    return early ^ (early >> np.uint64(31))


@functools.cache
def log2_table() -> U64:
    """Return round(log2(1 + i/4096) * 2^39) for i from 0 to 4096, computed with integers, so that no libm can differ.

    It sums ln((n+1)/n) = 2 atanh(1/(2n+1)) for n of 4096 to 8191 with 128 fractional bits.
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
    """Return the differences between neighbouring entries of `log2_table`."""
    return np.diff(log2_table())


def neg_log2(draw: U64) -> U64:
    """Return -log2(u) in units of 2^-57, for u = (the draw's top 53 bits + 1) / 2^53. A greater draw never has more.

    The straight lines between the table's entries meet -log2 at their ends, so the relative error stays under 7e-5 even
    near u = 1.
    """
    # The conversion is exact, since every integer up to 2^53 is a float64. Its bits hold the exponent and the mantissa.
    bits = ((draw >> np.uint64(11)) + np.uint64(1)).astype(np.float64).view(np.uint64)
    exponent = (bits >> np.uint64(52)) - np.uint64(1023)
    step = ((bits >> np.uint64(52 - _LOG_STEPS)) & np.uint64((1 << _LOG_STEPS) - 1)).astype(np.intp)
    fraction = (bits >> np.uint64(52 - _LOG_STEPS - _FRACTION_BITS)) & np.uint64((1 << _FRACTION_BITS) - 1)
    log2 = (log2_table()[step] << np.uint64(SCORE_BITS - _LOG_BITS)) + (
        (_log2_rises()[step] * fraction) >> np.uint64(_LOG_BITS + _FRACTION_BITS - SCORE_BITS)
    )
    return ((np.uint64(53) - exponent) << np.uint64(SCORE_BITS)) - log2


def ranking(stream: np.uint64, seeds: U64, weights: U64) -> Indices:
    """Return the indices of all destinations, in the order in which they would own a slot if those before were gone."""
    draw = draws(np.full(len(seeds), stream), seeds)
    return np.lexsort((np.arange(len(seeds)), ~draw, neg_log2(draw) // weights))
