"""The order in which slots begin to follow a ring, and that neither owners nor the journal's sample depend on it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ring.destination import Destination
from ring.hashing import SLOTS, slot_of
from ring.ring import Ring
from ring.share import rank_of, slots_in

PERCENT = [0.5, 1, 2, 5, 10, 20, 50, 75, 90]
QUEUES = [2, 3, 5, 8, 13, 20]

# Upper 1% points of chi-squared for these numbers of queues, less one, degrees of freedom.
ONE_PERCENT = {2: 6.63, 3: 9.21, 5: 13.28, 8: 18.48, 13: 26.22, 20: 36.19}


@pytest.fixture(scope="module")
def ranks() -> NDArray[np.int64]:
    return np.array([rank_of(slot) for slot in range(SLOTS)], dtype=np.int64)


@pytest.mark.parametrize(("slot", "rank"), [(0, 0), (1, 434_335), (2, 868_670), (3, 254_429), (SLOTS - 1, 614_241)])
def test_golden(slot: int, rank: int) -> None:
    """Sidecars of two releases have the same slots in a share."""
    assert rank_of(slot) == rank


def test_each_slot_has_a_rank_of_its_own(ranks: NDArray[np.int64]) -> None:
    assert np.array_equal(np.sort(ranks), np.arange(SLOTS))


@given(st.floats(0, 100), st.floats(0, 100))
def test_a_share_holds_every_smaller_one(one: float, other: float) -> None:
    assert 0 == slots_in(0) <= slots_in(min(one, other)) <= slots_in(max(one, other)) <= slots_in(100) == SLOTS


@given(st.floats(0, 100))
def test_a_share_is_as_large_as_it_says_to_half_a_slot(percent: float) -> None:
    assert abs(slots_in(percent) - SLOTS * percent / 100) <= 0.5 + 1e-9


@pytest.mark.parametrize("percent", PERCENT)
def test_a_share_of_keys_is_as_large_as_one_of_slots(percent: float) -> None:
    keys = 50_000
    moved = sum(rank_of(slot_of(f"customer-{n}".encode())) < slots_in(percent) for n in range(keys))
    part = percent / 100
    assert abs(moved - keys * part) < 4 * (keys * part * (1 - part)) ** 0.5


def rings() -> list[Ring]:
    """Rings of equal weights and of others."""
    made = []
    for count in QUEUES:
        for prefix in ("orders.", "q", "tenant-"):
            names = [Destination("queue", f"{prefix}{n}") for n in range(count)]
            made.append(Ring.build(dict.fromkeys(names, 1)))
            made.append(Ring.build({name: 1 + n % 4 for n, name in enumerate(names)}))
    return made


def test_a_share_takes_the_same_part_of_every_queue(ranks: NDArray[np.int64]) -> None:
    """By chi-squared, of the slots in the share against those outside it, for each queue."""
    beyond = tried = 0
    for ring in rings():
        count = len(ring.destinations)
        owned = np.bincount(ring.table, minlength=count)
        for percent in PERCENT:
            part = slots_in(percent) / SLOTS
            inside = np.bincount(ring.table[ranks < slots_in(percent)], minlength=count)
            chi = ((inside - owned * part) ** 2 / (owned * part * (1 - part))).sum()
            tried += 1
            beyond += chi > ONE_PERCENT[count]
            assert chi < 2 * ONE_PERCENT[count], (ring.weights, percent)
    assert tried == 324
    # 3.2 are due, and more than 10 come in one of 2,000 tries.
    assert beyond <= 10


@pytest.mark.parametrize("percent", PERCENT)
@pytest.mark.parametrize("sample", [0.001, 0.01, 0.05, 0.1, 0.3])
def test_a_sample_of_the_journal_has_its_part_of_a_share(
    ranks: NDArray[np.int64], percent: float, sample: float
) -> None:
    first = round(SLOTS * sample)
    assert abs(int((ranks[:first] < slots_in(percent)).sum()) - first * percent / 100) <= 4
