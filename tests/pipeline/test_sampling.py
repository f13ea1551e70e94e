"""What a sample says of the whole: how often the intervals have the truth, over draws of populations that are known."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.sampling import Sample, slots_of

SLOTS = 1_048_576
QUEUES = 10
WEIGHTS = np.array([1, 1, 1, 1, 1, 1, 1, 1, 2, 4])
DRAWS = 400

Sizes = Callable[[np.random.Generator, int], NDArray[np.float64]]
SIZES: dict[str, Sizes] = {
    "equal": lambda _, keys: np.full(keys, 100.0),
    "geometric": lambda rng, keys: rng.geometric(0.01, keys).astype(float),
    "lognormal": lambda rng, keys: np.ceil(rng.lognormal(3, 1, keys)),
    "heavy lognormal": lambda rng, keys: np.ceil(rng.lognormal(3, 2, keys)),
    "pareto": lambda rng, keys: np.ceil(10 * (1 + rng.pareto(1.5, keys))),
    "zipf": lambda _, keys: np.ceil(1e6 / np.arange(1, keys + 1)),
}


class Coverage(NamedTuple):
    """The parts of the draws in which an interval had the truth, and the mean of estimate over truth."""

    total: float
    key: float
    queue: float
    greatest: float
    total_bias: float


def coverage(kind: str, sample: float, keys: int, *, hot: float = 0.3, draws: int = DRAWS) -> Coverage:
    """A hot key of that share of all messages, which the sample has, among keys that fall into slots anew each time."""
    rng = np.random.default_rng(5)
    size = SIZES[kind](rng, keys)
    whale = hot / (1 - hot) * size.sum()
    total, fair = size.sum() + whale, WEIGHTS / WEIGHTS.sum()
    drawn = round(sample * SLOTS)
    owner = rng.choice(QUEUES, SLOTS, p=fair)
    unseen = np.bincount(owner[drawn:], minlength=QUEUES)
    hits = []
    for _ in range(draws):
        slot = rng.integers(0, SLOTS, keys)
        its = int(rng.integers(0, drawn))
        load = np.bincount(owner[slot], size, QUEUES)
        load[owner[its]] += whale
        sums = np.bincount(slot[slot < drawn], size[slot < drawn], drawn)
        sums[its] += whale
        occupied = np.flatnonzero(sums)
        found = Sample.of_slots(drawn, occupied, sums[occupied].astype(np.int64))
        seen = np.bincount(owner[:drawn], sums, QUEUES)
        all_of_it, key = found.total(), found.key_share(whale, its)
        shares, greatest = found.shares(seen, unseen), found.max_over_fair(seen, unseen, fair)
        truth = load / total
        hits.append(
            (
                all_of_it.low <= total * (1 + 1e-9) and total * (1 - 1e-9) <= all_of_it.high,
                key.low <= whale / total <= key.high,
                ((shares.low <= truth) & (truth <= shares.high)).mean(),
                greatest.low <= (truth / fair).max() <= greatest.high,
                all_of_it.value / total,
            )
        )
    return Coverage(*np.mean(hits, axis=0).tolist())


@pytest.mark.parametrize("kind", ["equal", "geometric", "lognormal"])
@pytest.mark.parametrize(("sample", "keys"), [(0.01, 30_000), (0.25, 3_000)])
def test_intervals_have_the_truth_as_often_as_they_say(kind: str, sample: float, keys: int) -> None:
    found = coverage(kind, sample, keys)
    # 400 draws tell 0.95 to 0.011, so 0.915 to 0.985 is three standard errors of it.
    assert 0.915 <= found.total <= 0.985
    assert 0.915 <= found.key <= 0.985
    assert 0.915 <= found.queue <= 0.985
    # Whichever queue is the greatest, which is more than is asked of one that is named before.
    assert found.greatest >= 0.93
    assert found.total_bias == pytest.approx(1, abs=0.02)


def test_intervals_miss_more_often_where_few_keys_have_most_of_the_messages() -> None:
    found = coverage("pareto", 0.01, 30_000, draws=200)
    assert 0.75 <= found.key <= 0.92
    assert 0.95 <= found.total_bias <= 1
    found = coverage("zipf", 0.01, 30_000, draws=200)
    assert 0.35 <= found.key <= 0.6


def test_a_key_inside_has_what_it_has_and_stands_for_no_other() -> None:
    # 700,000 messages of 35,000 keys, of which 350 are in the sample, and one of 300,000.
    drawn = slots_of(0.01)
    numbers = np.arange(351)
    found = Sample.of_slots(drawn, numbers, np.array([20] * 350 + [300_000]))
    inside = drawn / SLOTS
    share = found.key_share(300_000, 350)
    assert share.value == pytest.approx(300_000 / (300_000 + 7000 / inside), rel=1e-3)
    assert 0.2 < share.low < 0.3 < share.high < 0.4
    cold = found.key_share(20, 0)
    assert cold.value == pytest.approx(20 / (300_000 + 20 + 6980 / inside), rel=1e-3)
    assert found.total().value == pytest.approx(300_000 + 7000 / inside, rel=1e-3)
    # Two as hot as each other in one sample are not chance: there are more of them outside.
    both = Sample.of_slots(drawn, np.arange(352), np.array([20] * 350 + [300_000] * 2))
    assert both.heavy == {}
    assert both.key_share(300_000, 350).value == pytest.approx(300_000 / (300_000 + 307_000 / inside), rel=1e-3)


def test_figures_are_pythons_own_floats() -> None:
    # Spark refuses to put numpy's into a table.
    counts = np.array([20] * 350 + [300_000])
    sample = Sample.of_slots(slots_of(0.01), np.arange(351), counts)
    seen, unseen = np.array([300_000, 7000]), np.array([500_000, 538_000])
    for figure in (
        sample.total(),
        sample.key_share(counts[350], 350),
        sample.keys_share([(20, 0), (300_000, 350)]),
        sample.max_over_fair(seen, unseen, np.array([0.5, 0.5])),
    ):
        assert [type(part) for part in figure] == [float] * 3


def test_a_key_of_half_a_percent_makes_no_queue_hot() -> None:
    # Each of the sample's 10,486 slots has a message, one has 5,269, which is 0.5% of what all slots have.
    drawn = slots_of(0.01)
    messages = np.ones(drawn, dtype=np.int64)
    messages[0] = round(0.005 / 0.995 * SLOTS)
    owner = np.arange(SLOTS) % QUEUES
    found = Sample.of_slots(drawn, np.arange(drawn), messages)
    seen = np.bincount(owner[:drawn], messages.astype(float), QUEUES)
    unseen = np.bincount(owner[drawn:], minlength=QUEUES)
    greatest = found.max_over_fair(seen, unseen, np.full(QUEUES, 0.1))
    assert greatest.value == pytest.approx((0.995 / QUEUES + 0.005) * QUEUES, rel=1e-3)


def test_what_was_drawn_whole_is_certain() -> None:
    messages = np.array([5, 7, 10**9])
    found = Sample.of_slots(SLOTS, np.arange(3), messages)
    assert found.heavy == {}
    assert set(found.total()) == {10**9 + 12}
    assert set(found.key_share(7, 1)) == {7 / (10**9 + 12)}
    shares = found.shares(messages.astype(float), np.zeros(3))
    for part in shares:
        assert part == pytest.approx(messages / messages.sum())
    assert found.max_over_fair(np.array([4.0, 10**9 + 8]), np.zeros(2), np.array([0.5, 0.5])).low == pytest.approx(2)


def test_a_sample_that_says_nothing_says_so() -> None:
    one = Sample.of_slots(1, np.array([0]), np.array([5]))
    assert one.key_share(5, 0)[1:] == (0, 1)
    assert one.total().high == np.inf
    shares = one.shares(np.array([5.0, 0.0]), np.array([SLOTS // 2, SLOTS // 2 - 1]))
    assert (shares.low == 0).all()
    assert (shares.high == 1).all()
    # Six messages of six keys in a sample of 1%: nobody knows whether there are 100 or 1,300.
    few = Sample.of_slots(slots_of(0.01), np.arange(6), np.ones(6, dtype=np.int64))
    assert few.total().value == pytest.approx(600, rel=0.01)
    # The exact limits of a Poisson count of 6 are 2.20 and 13.06.
    assert few.total().low == pytest.approx(220, rel=0.3)
    assert few.total().high == pytest.approx(1306, rel=0.05)
    # One alone is heavy: a sample of it knows of no other, and that there are as many as 3.84 for each 1%, at 95%.
    alone = Sample.of_slots(slots_of(0.01), np.array([3]), np.array([1]))
    assert alone.key_share(1, 3).value == 1
    assert alone.key_share(1, 3).low == pytest.approx(1 / 385, rel=0.05)


def test_estimates_are_plain_floats_which_spark_takes_into_a_table() -> None:
    sample = Sample.of_slots(slots_of(0.01), np.arange(200), np.arange(200) % 7)
    for estimate in (sample.total(), sample.key_share(5, 5)):
        assert {type(value) for value in estimate} == {float}
        assert estimate.low < estimate.value < estimate.high
