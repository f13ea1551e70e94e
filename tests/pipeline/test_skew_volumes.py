"""The share of each of an exchange's rings in its messages, by a sample: beside counts of everything that was drawn."""

import numpy as np
import pytest

from pipeline.skew.volumes import Drawn, volumes
from pipeline.stats.sampling import Sample, slots_of

SLOTS = 1_048_576
KEYS = 35_000


@pytest.mark.parametrize("hot", [(), (0.3,), (0.3, 0.1)])
def test_a_hot_key_inside_counts_once_for_its_ring(hot: tuple[float, ...]) -> None:
    # Keys alternate between two rings, and are of one message; the hot ones go by the second, and are in the sample.
    rng = np.random.default_rng(8)
    drawn = slots_of(0.01)
    told = []
    for _ in range(150):
        size = np.concatenate([np.ones(KEYS), np.array(hot) / (1 - sum(hot)) * KEYS])
        ring = np.concatenate([np.arange(KEYS) % 2, np.ones(len(hot), dtype=np.int64)])
        slot = np.concatenate([rng.integers(0, SLOTS, KEYS), rng.integers(0, drawn, len(hot))])
        inside = slot < drawn
        sums = np.bincount(slot[inside], size[inside], drawn)
        sample = Sample.of_slots(drawn, np.flatnonzero(sums), sums[sums > 0])
        rings = []
        for one in (0, 1):
            its = np.bincount(slot[inside & (ring == one)], size[inside & (ring == one)], drawn)
            rings.append(Drawn(its.sum(), its[list(sample.alone)].sum(), 1.0))
        told.append(volumes(sample, rings))
    published, unseen = np.array(told)[:, 1].mean(axis=0)
    assert published == pytest.approx(size[ring == 1].sum() / size.sum(), abs=0.01)
    assert unseen == pytest.approx(0.5, abs=0.01)
    assert np.array(told).sum(axis=1) == pytest.approx(1)


def test_a_ring_without_a_record_in_the_sample_has_what_its_records_make_one_expect() -> None:
    sample = Sample.of_slots(slots_of(0.01), np.arange(99), np.ones(99))
    old, new = volumes(sample, [Drawn(0, 0, 1.0), Drawn(99, 0, 90)])
    assert old.unseen == pytest.approx(0.01)
    assert old.published == pytest.approx(0.01 * 0.99, rel=0.02)
    assert new.published + old.published == pytest.approx(1)
    none = Sample.of_slots(slots_of(0.01), np.array([]), np.array([]))
    assert volumes(none, [Drawn(0, 0, 1.0), Drawn(0, 0, 3.0)]) == [(0.25, 0.25), (0.75, 0.75)]


def test_of_what_is_there_whole_it_is_counted() -> None:
    sample = Sample.of_slots(SLOTS, np.arange(2), np.array([30, 70]))
    assert [one.published for one in volumes(sample, [Drawn(30, 0, 30), Drawn(70, 0, 70)])] == [0.3, 0.7]
