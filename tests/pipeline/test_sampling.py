"""Sampling: how often a sample's intervals contain the truth, over many draws from populations that are known.

`pytest -s tests/pipeline/test_sampling.py` prints the figures that docs/explanation/samples.md quotes.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.stats.sampling import Estimate, Sample, slots_of

SLOTS = 1_048_576
QUEUES = 10
WEIGHTS = np.array([1, 1, 1, 1, 1, 1, 1, 1, 2, 4])
DRAWS = 400

QUICK = {("lognormal", (), 0.01), ("geometric", (0.19,), 0.01), ("zipf of 1", (), 0.25), ("pareto", (), 0.01)}
"""The cases that are always tried, with fewer draws: of a light tail, a heavy one, and a hot key."""

Sizes = Callable[..., NDArray[np.float64]]
SIZES: dict[str, Sizes] = {
    "equal": lambda _, keys: np.full(keys, 100.0),
    "uniform": lambda rng, keys: rng.integers(1, 200, keys).astype(float),
    "geometric": lambda rng, keys: rng.geometric(0.01, keys).astype(float),
    "lognormal": lambda rng, keys: np.ceil(rng.lognormal(3, 1, keys)),
    "pareto": lambda rng, keys: np.ceil(10 * (1 + rng.pareto(1.5, keys))),
    **{
        f"zipf of {exponent:g}": lambda _, keys, e=exponent: np.ceil(1e6 * np.arange(1, keys + 1) ** -e)
        for exponent in (0.5, 0.8, 1.0, 1.2)
    },
}


class Coverage(NamedTuple):
    """How one kind of population fared over all draws: shares of the draws, 0 to 1, and means over the draws."""

    holds: float
    """The share of the draws in which the sample says that its intervals hold."""
    total: float
    """The share of the draws in which the interval of all published messages contained the truth."""
    key: float
    """The share of the draws in which the interval of the share of the sample's hottest key contained the truth."""
    ten: float
    """The same of the sample's ten hottest keys together."""
    queue: float
    """The share of all draws and queues in which the interval of the queue's share contained the truth."""
    greatest: float
    """The share of the draws in which the interval of `max_over_fair` contained the truth."""
    missed: float
    """The share of the draws in which the sample said that intervals hold, and `key` or `ten` missed the truth."""
    greatest_missed: float
    """The same of `max_over_fair`."""
    named: float
    """The share of the draws in which a key was said to have more than a tenth of the messages and has not."""
    total_bias: float
    """The mean of the estimated number of messages over the true one."""
    greatest_bias: float
    """The mean of the estimated `max_over_fair` over the true one."""
    greatest_width: float
    """The mean width of the interval of `max_over_fair`."""


def coverage(
    kind: str, sample: float, keys: int, *, hot: tuple[float, ...] = (0.3,), draws: int = DRAWS, seed: int = 5
) -> Coverage:
    """Draw a sample of a population many times, print how often each interval contained the truth, and return it.

    The population has `keys` keys of a distribution of SIZES, drawn anew in each draw, as are their slots, and `hot`
    keys of those shares of all messages, which are always in the sample.
    """
    rng = np.random.default_rng(seed)
    fair, drawn = WEIGHTS / WEIGHTS.sum(), round(sample * SLOTS)
    owner = rng.choice(QUEUES, SLOTS, p=fair)
    unseen = np.bincount(owner[drawn:], minlength=QUEUES)
    hits = []

    def has(told: Estimate, truth: float) -> bool:
        return told.low <= truth * (1 + 1e-9) and truth * (1 - 1e-9) <= told.high

    for _ in range(draws):
        cold = SIZES[kind](rng, keys)
        size = np.concatenate([cold, np.array(hot) / (1 - sum(hot)) * cold.sum()])
        total = size.sum()
        slot = np.concatenate([rng.integers(0, SLOTS, keys), rng.integers(0, drawn, len(hot))])
        truth = np.bincount(owner[slot], size, QUEUES) / total
        inside = np.flatnonzero(slot < drawn)
        sums = np.bincount(slot[inside], size[inside], drawn)
        occupied = np.flatnonzero(sums)
        found = Sample.of_slots(drawn, occupied, sums[occupied])
        seen = np.bincount(owner[:drawn], sums, QUEUES)
        hottest = np.sort(size[inside])[::-1]
        key, ten = (found.share_of(hottest[:many].sum()) for many in (1, 10))
        its, of_ten = (hottest[:many].sum() / total for many in (1, 10))
        shares, greatest = found.shares(seen, unseen), found.max_over_fair(seen, unseen, fair)
        most = (truth / fair).max()
        holds, told = found.holds, (has(key, its), has(ten, of_ten), has(greatest, most))
        hits.append(
            (
                holds,
                has(found.total(), total),
                told[0],
                told[1],
                ((shares.low <= truth) & (truth <= shares.high)).mean(),
                told[2],
                holds and not (told[0] and told[1]),
                holds and not told[2],
                its < 0.1 < key.low,
                found.total().value / total,
                greatest.value / most,
                greatest.high - greatest.low,
            )
        )
    result = Coverage(*np.mean(hits, axis=0).tolist())
    names = ("holds", "total", "key", "ten", "queue", "greatest", "missed", "greatest_missed")
    told_of = ", ".join(f"{name} {getattr(result, name):.1%}" for name in names)
    print(
        f"\n{kind}, {keys:,} keys, hot {hot}, sample {sample:.0%}, {draws} draws: {told_of}; "
        f"greatest estimated at {result.greatest_bias:.2f} of the truth"
    )
    return result


LIGHT = ("equal", "uniform", "geometric")
"""Sizes of keys with so light a tail that every sample of 1% tells it."""

EVERY = [
    pytest.param(kind, hot, sample, keys, marks=[] if (kind, hot, sample) in QUICK else [pytest.mark.long])
    for sample, keys in ((0.01, 30_000), (0.25, 3_000))
    for kind in SIZES
    for hot in ((), (0.19,))
]


@pytest.mark.parametrize(("kind", "hot", "sample", "keys"), EVERY)
def test_intervals_have_the_truth_as_often_as_they_say_or_the_sample_says_that_they_do_not(
    kind: str, hot: tuple[float, ...], sample: float, keys: int
) -> None:
    draws = 100 if (kind, hot, sample) in QUICK else DRAWS
    found = coverage(kind, sample, keys, hot=hot, draws=draws)
    error = 2.5 * (0.09 / draws) ** 0.5  # of a share of 10%
    assert found.missed <= 0.1 + error
    assert found.greatest_missed <= 0.1 + error
    if kind in LIGHT:
        assert found.holds == 1
        for name in ("total", "key", "ten", "queue", "greatest"):
            assert 0.95 - error <= getattr(found, name) <= 0.985 + error, name
        assert found.greatest_width <= 1.1
        assert found.greatest_bias == pytest.approx(1, abs=0.06)
        assert found.total_bias == pytest.approx(1, abs=0.02)
    if kind.startswith("zipf of 1"):
        # Its hottest keys are mostly outside of the sample.
        assert found.holds <= 0.1


@pytest.mark.parametrize(
    ("kind", "hot"),
    [
        ("equal", (0.3, 0.1)),
        pytest.param("geometric", (0.3, 0.1), marks=pytest.mark.long),
        pytest.param("equal", (0.3, 0.25, 0.1), marks=pytest.mark.long),
        ("geometric", (0.3, 0.25, 0.1)),
        pytest.param("equal", (0.3, 0.05), marks=pytest.mark.long),
        pytest.param("geometric", (0.3, 0.05), marks=pytest.mark.long),
    ],
)
def test_hot_keys_inside_do_not_hide_one_another(kind: str, hot: tuple[float, ...]) -> None:
    found = coverage(kind, 0.01, 30_000, hot=hot, draws=150)
    # No sample tells that there are none like them outside, so the intervals reach to where there are.
    assert min(found.total, found.key, found.queue, found.greatest) >= 0.93
    assert found.total_bias == pytest.approx(1, abs=0.05)
    assert found.greatest_bias == pytest.approx(1, abs=0.05)
    assert found.greatest_width <= 4


@pytest.mark.parametrize(
    ("kind", "keys"), [("equal", 100), pytest.param("equal", 300, marks=pytest.mark.long), ("geometric", 100)]
)
def test_few_keys_in_a_sample_are_not_all_there_are(kind: str, keys: int) -> None:
    # One to three keys are in it.
    found = coverage(kind, 0.01, keys, hot=(), draws=300)
    assert found.named == 0
    assert min(found.total, found.key, found.queue, found.greatest) >= 0.9
    assert 0.8 <= found.total_bias <= 1.2
    # The lightest of ten queues has a weight of a fourteenth, so at most 14 is possible.
    assert found.greatest_width <= 13


def test_a_key_inside_has_what_it_has_and_stands_for_no_other() -> None:
    # 700,000 messages of 35,000 keys, of which 350 are in the sample, and one of 300,000.
    drawn = slots_of(0.01)
    numbers = np.arange(351)
    found = Sample.of_slots(drawn, numbers, np.array([20] * 350 + [300_000]))
    inside = drawn / SLOTS
    share = found.share_of(300_000)
    assert share.value == pytest.approx(300_000 / (300_000 + 7000 / inside), rel=1e-3)
    assert 0.2 < share.low < 0.3 < share.high < 0.4
    cold = found.share_of(20)
    assert cold.value == pytest.approx(20 / (300_000 + 7000 / inside), rel=1e-3)
    assert found.total().value == pytest.approx(300_000 + 7000 / inside, rel=1e-3)
    # A sample with two keys as hot as each other cannot tell whether there are more of them outside.
    both = Sample.of_slots(drawn, np.arange(352), np.array([20] * 350 + [300_000] * 2))
    share = both.share_of(300_000)
    assert share.value == pytest.approx(300_000 / (600_000 + 7000 / inside), rel=1e-3)
    assert share.low < 300_000 / (300_000 + 307_000 / inside) < share.value < share.high
    # Four are no chance.
    four = Sample.of_slots(drawn, np.arange(354), np.array([20] * 350 + [300_000] * 4))
    assert four.share_of(300_000).value == pytest.approx(300_000 / (1_207_000 / inside), rel=1e-3)


def test_figures_are_pythons_own_floats() -> None:
    # Spark refuses to put numpy's into a table.
    counts = np.array([20] * 350 + [300_000])
    sample = Sample.of_slots(slots_of(0.01), np.arange(351), counts)
    seen, unseen = np.array([300_000, 7000]), np.array([500_000, 538_000])
    for figure in (
        sample.total(),
        sample.share_of(counts[350]),
        sample.share_of(300_020),
        sample.max_over_fair(seen, unseen, np.array([0.5, 0.5])),
    ):
        assert [type(part) for part in figure] == [float] * 3
        assert figure.low < figure.value < figure.high


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
    assert set(found.share_of(7)) == {7 / (10**9 + 12)}
    shares = found.shares(messages.astype(float), np.zeros(3))
    for part in shares:
        assert part == pytest.approx(messages / messages.sum())
    assert found.max_over_fair(np.array([4.0, 10**9 + 8]), np.zeros(2), np.array([0.5, 0.5])).low == pytest.approx(2)


def test_a_sample_that_says_nothing_says_so() -> None:
    one = Sample.of_slots(1, np.array([0]), np.array([5]))
    assert one.share_of(5)[1:] == (0, 1)
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
    # A sample of one key knows of no other, nor how large others are: maybe as large.
    for messages in (1, 1000):
        alone = Sample.of_slots(slots_of(0.01), np.array([3]), np.array([messages]))
        share = alone.share_of(messages)
        assert share.value == pytest.approx(0.01, rel=0.01)
        assert share.high == pytest.approx(1)
        # The exact limit of a Poisson count of 1 is 5.57, for each 1%.
        assert share.low == pytest.approx(1 / 557, rel=0.05)
        assert alone.total().low < 100 * messages < alone.total().high
    few = Sample.of_slots(slots_of(0.01), np.array([3, 4]), np.array([90, 20]))
    assert few.total().low <= 110
    assert few.total().high > 11_000


def test_a_sample_without_a_message_says_nothing_of_any() -> None:
    none = Sample.of_slots(slots_of(0.01), np.array([], dtype=np.int64), np.array([], dtype=np.int64))
    assert none.total() == (0, 0, np.inf)
    assert none.share_of(0) == (0, 0, 1)
    fair = np.array([0.25, 0.75])
    shares = none.shares(np.zeros(2), fair * none.unseen)
    assert shares.value == pytest.approx(fair)
    assert (shares.low.tolist(), shares.high.tolist()) == ([0, 0], [1, 1])
    assert none.max_over_fair(np.zeros(2), fair * none.unseen, fair) == pytest.approx((1, 1, 4))


def test_slots_that_are_all_alike_leave_an_interval() -> None:
    drawn = slots_of(0.01)
    alike = Sample.of_slots(drawn, np.arange(drawn), np.full(drawn, 100))
    assert alike.total().low < 100 * SLOTS < alike.total().high
    shares = alike.shares(np.full(2, 50.0 * drawn), np.full(2, (SLOTS - drawn) / 2))
    assert (shares.low < 0.5).all()
    assert (shares.high > 0.5).all()
