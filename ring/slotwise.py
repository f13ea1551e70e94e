# cython: annotation_typing=False, cdivision=True
"""The contest slot by slot, in a loop that holds up nobody: Cython compiles it to C that needs no GIL.

As Python it does the same, for tests alone: without a C compiler `ring.arraywise` decides.
"""

from typing import TypeAlias

import cython

from ring.destination import MAX_WEIGHT
from ring.scores import U16, U64, Indices, log2_table

COMPILED: bool = cython.compiled

View: TypeAlias = "memoryview[int]"
"""Of an array: as Python too it holds integers that do not wrap."""

# What is longer than 32 bits is a Python integer in Cython, but for variables of a C type.
_ALL: int = cython.declare(cython.ulonglong, 0xFFFFFFFFFFFFFFFF)
_MIX_1: int = cython.declare(cython.ulonglong, 0xBF58476D1CE4E5B9)
_MIX_2: int = cython.declare(cython.ulonglong, 0x94D049BB133111EB)
_UNKNOWN: int = cython.declare(cython.longlong, -1)
_STEEP: float = cython.declare(cython.double, 1.4429 * 2**57)
_ANYTHING: float = cython.declare(cython.double, 1e300)
_SPARE: float = cython.declare(cython.double, 64.0)
"""Units of 2^-57 beyond what scores are rounded by: 23 for u, which is one of 2^53, and one for the division."""


def decide(streams: U64, owners: U16, defended: bool, seeds: U64, weights: U64, entrants: U16, ends: Indices) -> None:
    """As `ring.arraywise.decide`. Raises ValueError for what would be read or written beyond an array's end."""
    _check(len(streams), owners, seeds, weights, entrants, ends)
    log2 = log2_table()
    _decide(streams.data, owners.data, defended, seeds.data, weights.data, entrants.data, ends.data, log2.data)


def _check(slots: int, owners: U16, seeds: U64, weights: U64, entrants: U16, ends: Indices) -> None:
    """Once, so that the loop need not look at every index."""
    if len(owners) != slots:
        raise ValueError(f"{len(owners)} owners are not of {slots} slots")
    if len(weights) != len(seeds) or not 0 < int(weights.min(initial=1)) <= int(weights.max(initial=1)) <= MAX_WEIGHT:
        raise ValueError(f"{len(weights)} weights are not of {len(seeds)} destinations, or not 1 to {MAX_WEIGHT}")
    if max(int(owners.max(initial=0)), int(entrants.max(initial=0))) >= len(seeds):
        raise ValueError(f"an entrant or owner is not one of {len(seeds)} destinations")
    if not len(ends) or (ends[1:] <= ends[:-1]).any() or ends[0] < 1 or ends[-1] != len(entrants):
        raise ValueError(f"groups that end at {ends} are not of {len(entrants)} entrants")


@cython.boundscheck(False)
@cython.wraparound(False)
@cython.locals(
    streams=cython.ulonglong[::1],
    owners=cython.ushort[::1],
    defended=cython.bint,
    seeds=cython.ulonglong[::1],
    weights=cython.ulonglong[::1],
    entrants=cython.ushort[::1],
    ends=cython.Py_ssize_t[::1],
    log2=cython.ulonglong[::1],
    slot=cython.Py_ssize_t,
    holder=cython.ushort,
    weight=cython.longlong,
)
def _decide(
    streams: View, owners: View, defended: bool, seeds: View, weights: View, entrants: View, ends: View, log2: View
) -> None:
    with cython.nogil:
        for slot in range(len(streams)):
            holder = owners[slot]
            weight = weights[holder] if defended else 0
            owners[slot] = _winner(streams[slot], holder, weight, seeds, weights, entrants, ends, log2)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.boundscheck(False)
@cython.wraparound(False)
@cython.exceptval(check=False)
@cython.locals(
    stream=cython.ulonglong,
    owner=cython.ushort,
    weight=cython.longlong,
    seeds=cython.ulonglong[::1],
    weights=cython.ulonglong[::1],
    entrants=cython.ushort[::1],
    ends=cython.Py_ssize_t[::1],
    log2=cython.ulonglong[::1],
    group=cython.Py_ssize_t,
    at=cython.Py_ssize_t,
    end=cython.Py_ssize_t,
    first=cython.Py_ssize_t,
    drawn=cython.ulonglong,
    greater=cython.longlong,
    draw=cython.ulonglong,
    score=cython.longlong,
    bar=cython.double,
    rival=cython.ushort,
    rival_draw=cython.ulonglong,
    rival_weight=cython.longlong,
    rival_score=cython.longlong,
)
@cython.returns(cython.ushort)
def _winner(
    stream: int, owner: int, weight: int, seeds: View, weights: View, entrants: View, ends: View, log2: View
) -> int:
    """Whose one slot is, against its owner if that has a weight."""
    draw, score = _mixed(stream + seeds[owner] & _ALL), _UNKNOWN
    bar = _at_most(draw) / weight + _SPARE if weight != 0 else _ANYTHING
    end = 0
    for group in range(len(ends)):
        # The greatest draw of those with one weight, without a branch that a processor would guess wrong.
        first, rival_draw = end, 0
        end = ends[group]
        for at in range(first, end):
            drawn = _mixed(stream + seeds[entrants[at]] & _ALL)
            greater = -(drawn > rival_draw)
            rival_draw ^= (rival_draw ^ drawn) & greater
            first ^= (first ^ at) & greater
        rival = entrants[first]
        rival_weight = weights[rival]
        # Most are seen to lose without a logarithm.
        if _at_least(rival_draw) > bar * rival_weight:
            continue
        if rival_weight == weight:
            if not _greater(rival_draw, rival, draw, owner):
                continue
            score = _UNKNOWN
        elif weight != 0:
            if score < 0:
                score = _neg_log2(draw, log2) // weight
            rival_score = _neg_log2(rival_draw, log2) // rival_weight
            if rival_score > score or (rival_score == score and not _greater(rival_draw, rival, draw, owner)):
                continue
            score = rival_score
        owner, draw, weight = rival, rival_draw, rival_weight
        bar = _at_most(draw) / weight + _SPARE
    return owner


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
@cython.locals(draw=cython.ulonglong, owner=cython.ushort, other=cython.ulonglong, its_owner=cython.ushort)
@cython.returns(cython.bint)
def _greater(draw: int, owner: int, other: int, its_owner: int) -> bool:
    """Whether a draw wins where scores are equal."""
    return draw > other or (draw == other and owner < its_owner)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
@cython.locals(z=cython.ulonglong)
@cython.returns(cython.ulonglong)
def _mixed(z: int) -> int:
    """As `scores.draws`, of one."""
    z = (z ^ z >> 30) * _MIX_1 & _ALL
    z = (z ^ z >> 27) * _MIX_2 & _ALL
    return z ^ z >> 31


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
@cython.locals(draw=cython.ulonglong, far=cython.longlong)
@cython.returns(cython.double)
def _at_least(draw: int) -> float:
    """At most `_SPARE` more than `_neg_log2`: 1.375 (1 - u), less steep than -log2(u) by more than its table is off."""
    far = (draw ^ _ALL) >> 1
    return far * (1.375 / 64)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
@cython.locals(draw=cython.ulonglong, far=cython.longlong, near=cython.longlong)
@cython.returns(cython.double)
def _at_most(draw: int) -> float:
    """At most `_SPARE` less than `_neg_log2`: 1.4429 (1 - u) / u, where (1 - u) / (u ln 2) is no less than -log2(u)."""
    # Neither leaves 63 bits, and the divisor is not 0.
    far, near = (draw ^ _ALL) >> 1, draw >> 1 | 1
    return far * _STEEP / near


@cython.cfunc
@cython.nogil
@cython.boundscheck(False)
@cython.wraparound(False)
@cython.exceptval(check=False)
@cython.locals(
    draw=cython.ulonglong,
    log2=cython.ulonglong[::1],
    n=cython.ulonglong,
    exponent=cython.longlong,
    step=cython.Py_ssize_t,
    fraction=cython.ulonglong,
    low=cython.ulonglong,
    rise=cython.ulonglong,
)
@cython.returns(cython.longlong)
def _neg_log2(draw: int, log2: View) -> int:
    """As `scores.neg_log2`, of one; at most 53 * 2^57."""
    n = (draw >> 11) + 1
    if n >> 53:
        return 0
    exponent = 52
    while not n >> 52:
        n <<= 1
        exponent -= 1
    # 12 bits of the mantissa, then 36.
    step, fraction = n >> 40 & 0xFFF, (n << 24 & _ALL) >> 28
    low, rise = log2[step], log2[step + 1] - log2[step]
    return ((53 - exponent) << 57) - (low << 18) - (rise * fraction >> 18)
