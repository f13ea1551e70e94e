import re
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ring import arraywise, slotwise
from ring.contest import challenge, contest
from ring.hashing import SLOTS
from ring.scores import U16, U64, slot_streams
from tests.unit.ring.test_scores import MASK, reference_neg_log2, splitmix64

slot_numbers = st.integers(0, SLOTS - 1)

weights = st.one_of(st.integers(1, 3), st.integers(1, 10_000))

# Of few values, so that draws and weights tie.
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


@pytest.mark.parametrize("way", [slotwise, arraywise], ids=["slotwise", "arraywise"])
@given(destinations, st.lists(slot_numbers, max_size=20), st.data())
def test_each_way_decides_as_plain_integers_do(
    way: Any, of: list[tuple[int, int]], slots: list[int], data: st.DataObject
) -> None:
    seeds, weights = arrays(of)
    everyone = range(len(of))
    entrants = data.draw(st.sets(st.sampled_from(everyone), min_size=1))
    holders = data.draw(st.lists(st.sampled_from(everyone), min_size=len(slots), max_size=len(slots)))
    groups: dict[int, list[int]] = {}
    for i in sorted(entrants):
        groups.setdefault(of[i][1], []).append(i)
    order = np.array([i for members in groups.values() for i in members], np.uint16)
    ends = np.cumsum([len(members) for members in groups.values()])
    streams = slot_streams(np.array(slots, np.int64))

    owners = np.array(holders, np.uint16)
    way.decide(streams, owners, False, seeds, weights, order, ends)
    assert owners.tolist() == [reference(of, entrants, slot) for slot in slots]

    owners = np.array(holders, np.uint16)
    way.decide(streams, owners, True, seeds, weights, order, ends)
    expected = [reference(of, entrants | {holder}, slot) for slot, holder in zip(slots, holders, strict=True)]
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


@pytest.mark.parametrize("way", [slotwise, arraywise], ids=["slotwise", "arraywise"])
@settings(max_examples=300)
@given(close())
# The draws 0 and 1 are as far from winning as 63 bits can say.
@example((5, [(seed_of(0, 5), 3), (12345, 2)]))
@example((5, [(seed_of(1, 5), 3), (12345, 2)]))
# Both score 0, so the greater draw wins: no bound may be taken for exact.
@example((5, [(seed_of(MASK - 200, 5), 10_000), (seed_of(MASK - 100, 5), 1)]))
def test_close_scores_and_draws_at_the_edges_are_decided_too(way: Any, case: tuple[int, list[tuple[int, int]]]) -> None:
    slot, of = case
    seeds, heft = arrays(of)
    everyone, streams = set(range(len(of))), slot_streams(np.array([slot], np.int64))
    by_weight = sorted(everyone, key=lambda i: of[i][1])
    ends = np.array([n + 1 for n, i in enumerate(by_weight) if n + 1 == len(of) or of[by_weight[n + 1]][1] != of[i][1]])
    for holder in (None, *everyone):
        owners = u16(holder or 0)
        way.decide(streams, owners, holder is not None, seeds, heft, u16(*by_weight), ends)
        assert owners.tolist() == [reference(of, everyone, slot)]


def u16(*values: int) -> U16:
    return np.array(values, np.uint16)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"owners": u16(0)}, "1 owners are not of 2 slots"),
        ({"owners": u16(0, 3)}, "an entrant or owner is not one of 3 destinations"),
        ({"entrants": u16(0, 3)}, "an entrant or owner is not one of 3 destinations"),
        ({"seeds": np.ones(2, np.uint64)}, "3 weights are not of 2 destinations, or not 1 to 10000"),
        ({"weights": np.array([1, 1, 0], np.uint64)}, "3 weights are not of 3 destinations, or not 1 to 10000"),
        ({"weights": np.array([1, 1, 10_001], np.uint64)}, "3 weights are not of 3 destinations, or not 1 to 10000"),
        ({"ends": np.array([1])}, "groups that end at [1] are not of 2 entrants"),
        ({"ends": np.array([3])}, "groups that end at [3] are not of 2 entrants"),
        ({"ends": np.array([1, 1, 2])}, "groups that end at [1 1 2] are not of 2 entrants"),
        ({"ends": np.array([0, 2])}, "groups that end at [0 2] are not of 2 entrants"),
        ({"ends": np.array([], np.intp)}, "groups that end at [] are not of 2 entrants"),
    ],
)
def test_nothing_is_read_beyond_the_end_of_an_array(changed: dict[str, Any], said: str) -> None:
    right: dict[str, Any] = {
        "streams": slot_streams(np.arange(2)),
        "owners": u16(0, 2),
        "defended": True,
        "seeds": np.arange(3, dtype=np.uint64),
        "weights": np.ones(3, np.uint64),
        "entrants": u16(0, 1),
        "ends": np.array([2]),
    }
    slotwise.decide(**right)
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        slotwise.decide(**(right | changed))
