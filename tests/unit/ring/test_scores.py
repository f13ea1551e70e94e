"""Draws and logarithms, of which scores are made."""

import hashlib
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ring.hashing import SLOTS
from ring.scores import draws, log2_table, neg_log2, slot_streams

MASK = 2**64 - 1


def splitmix64(seed: int, output: int) -> int:
    """Output number `output` (from 0) of SplitMix64, in plain integers."""
    z = (seed + (output + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & MASK
    return z ^ z >> 31


def reference_neg_log2(draw: int) -> int:
    """Return the value of `neg_log2`, computed in plain integers."""
    n = (draw >> 11) + 1
    exponent = n.bit_length() - 1
    mantissa = (n << 52 >> exponent) - 2**52
    step, fraction = mantissa >> 40, (mantissa >> 4) & (2**36 - 1)
    table: list[int] = log2_table().tolist()
    log2 = (table[step] << 18) + ((table[step + 1] - table[step]) * fraction >> 18 if step < 4096 else 0)
    return ((53 - exponent) << 57) - log2


def test_draws_are_splitmix64() -> None:
    # The first outputs for seed 0 are published with the generator's reference code.
    assert [hex(d) for d in draws(slot_streams(np.arange(2)), np.uint64(0)).tolist()] == [
        "0xe220a8397b1dcdaf",
        "0x6e789e6aa1b965f4",
    ]
    seed = 0x0123456789ABCDEF
    everything = draws(slot_streams(np.arange(SLOTS)), np.uint64(seed))
    for slot in (0, 1, 2, 1000, 2**20 - 1):
        assert everything[slot] == splitmix64(seed, slot)


def test_the_table_of_logarithms() -> None:
    table = log2_table()
    assert table[0] == 0
    assert table[4096] == 2**39
    assert max(abs(int(t) - math.log2(1 + i / 4096) * 2**39) for i, t in enumerate(table)) <= 0.5001
    assert (
        hashlib.sha256(table.astype("<u8").tobytes()).hexdigest()
        == "45aee0dd7ba09e19d3ae2112ac0e128225e62dd25fca334a76a5a4c6d72ba76e"
    )


@given(st.lists(st.integers(0, MASK), min_size=1, max_size=50))
def test_the_logarithm_is_the_integer_one_and_never_grows(values: list[int]) -> None:
    ordered = sorted(values)
    scores = neg_log2(np.array(ordered, dtype=np.uint64)).tolist()
    assert scores == [reference_neg_log2(v) for v in ordered]
    assert scores == sorted(scores, reverse=True)


def test_the_logarithm_is_close_down_to_the_smallest_scores() -> None:
    distance = 2.0 ** np.arange(11, 63, 0.01)
    draw = np.uint64(MASK) - distance.astype(np.uint64)
    u = ((draw >> np.uint64(11)) + np.uint64(1)).astype(np.float64) / 2.0**53
    exact = -np.log1p(u - 1) / math.log(2)
    measured = neg_log2(draw) / 2.0**57
    seen = exact > 1e-9
    assert seen.sum() > 2900
    assert np.max(np.abs(measured[seen] / exact[seen] - 1)) < 7e-5
    # The destinations that are ruled out without a logarithm rely on this slope.
    assert np.min(measured[seen] / (1 - u[seen])) > 1.442
    assert neg_log2(np.array([MASK], dtype=np.uint64))[0] == 0
