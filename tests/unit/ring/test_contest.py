"""Who owns each slot: contests by scores, decided as plain integers would decide them."""

from random import Random

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ring.contest import challenge, contest, decide
from ring.hashing import SLOTS
from ring.scores import U64, slot_streams
from tests.properties import examples
from tests.unit.ring.test_scores import MASK, reference_neg_log2, splitmix64

slot_numbers = st.integers(0, SLOTS - 1)

weights = st.one_of(st.integers(1, 3), st.integers(1, 10_000))

# The destinations have few values, and their draws and weights tie.
destinations = st.lists(st.tuples(st.one_of(st.integers(0, 3), st.integers(0, MASK)), weights), min_size=1, max_size=12)


def arrays(of: list[tuple[int, int]]) -> tuple[U64, U64]:
    seeds, weights = zip(*of, strict=True)
    return np.array(seeds, np.uint64), np.array(weights, np.uint64)


def seed_of(draw: int, slot: int) -> int:
    """The seed that draws this for a slot: each step of SplitMix64 can be taken back."""
    z = draw ^ draw >> 31 ^ draw >> 62
    z = z * pow(0x94D049BB133111EB, -1, 1 << 64) & MASK
    z = z ^ z >> 27 ^ z >> 54
    z = z * pow(0xBF58476D1CE4E5B9, -1, 1 << 64) & MASK
    z = z ^ z >> 30 ^ z >> 60
    return (z - (slot + 1) * 0x9E3779B97F4A7C15) & MASK


@st.composite
def close(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    """A slot, and destinations that have draws at the edges there, or scores that are alike."""
    slot, far = draw(slot_numbers), draw(st.integers(0, 1 << 50))
    edges = [edge + off for edge in (0, 1 << 11, 1 << 53, 1 << 63, 1 << 64) for off in (-2, -1, 0, 1)]
    of = []
    for weight in draw(st.lists(weights, min_size=1, max_size=6)):
        alike = MASK - far * weight - draw(st.integers(-300, 300))
        drawn = draw(st.one_of(st.sampled_from(edges), st.just(alike), st.integers(0, MASK))) & MASK
        of.append((seed_of(drawn, slot), weight))
    return slot, of


def reference(of: list[tuple[int, int]], entrants: set[int], slot: int) -> int:
    """Whose a slot is, in plain integers."""
    drawn = {i: splitmix64(of[i][0], slot) for i in entrants}
    return min(entrants, key=lambda i: (reference_neg_log2(drawn[i]) // of[i][1], -drawn[i], i))


@given(destinations, st.lists(slot_numbers, max_size=20), st.data())
def test_slots_are_decided_as_plain_integers_decide_them(
    of: list[tuple[int, int]], slots: list[int], data: st.DataObject
) -> None:
    seeds, weights = arrays(of)
    everyone = range(len(of))
    entrants = data.draw(st.lists(st.sampled_from(everyone), min_size=1, unique=True))
    holders = data.draw(st.lists(st.sampled_from(everyone), min_size=len(slots), max_size=len(slots)))
    streams = slot_streams(np.array(slots, np.int64))

    owners = np.array(holders, np.uint16)
    decide(streams, owners, False, seeds, weights, entrants)
    assert owners.tolist() == [reference(of, {*entrants}, slot) for slot in slots]

    owners = np.array(holders, np.uint16)
    decide(streams, owners, True, seeds, weights, entrants)
    expected = [reference(of, {*entrants, holder}, slot) for slot, holder in zip(slots, holders, strict=True)]
    assert owners.tolist() == expected


@pytest.mark.parametrize("weights", [[5] * 40, list(range(1, 41)), [1, 10_000] * 20], ids=["alike", "each", "far"])
def test_all_slots_are_decided_as_any_of_them(weights: list[int]) -> None:
    """In parts and threads, as alone."""
    seeds = np.random.default_rng(7).integers(0, MASK, len(weights), np.uint64)
    heft = np.array(weights, np.uint64)
    everything = contest(seeds, heft)
    assert len(everything) == SLOTS
    some = np.random.default_rng(8).integers(0, SLOTS, 1000)
    assert (everything[some] == contest(seeds, heft, some)).all()
    # As the ring of all but three, and then those.
    fewer = contest(seeds[3:], heft[3:]) + np.uint16(3)
    assert (challenge(seeds, heft, fewer, range(3)) == everything).all()


@examples(300)
@given(close(), st.randoms(use_true_random=False))
# The draws 0 and 1 are as far from winning as a draw can be.
@example((5, [(seed_of(0, 5), 3), (12345, 2)]), Random(1))
@example((5, [(seed_of(1, 5), 3), (12345, 2)]), Random(1))
# Both score 0, so the greater draw wins: no bound may be taken for exact.
@example((5, [(seed_of(MASK - 200, 5), 10_000), (seed_of(MASK - 100, 5), 1)]), Random(1))
def test_close_scores_and_draws_at_the_edges_are_decided_too(
    case: tuple[int, list[tuple[int, int]]], rng: Random
) -> None:
    slot, of = case
    seeds, heft = arrays(of)
    everyone, streams = [*range(len(of))], slot_streams(np.array([slot], np.int64))
    for holder in (None, *everyone):
        rng.shuffle(everyone)
        owners = np.array([holder or 0], np.uint16)
        decide(streams, owners, holder is not None, seeds, heft, everyone)
        assert owners.tolist() == [reference(of, {*everyone}, slot)]
