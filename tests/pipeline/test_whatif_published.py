"""The findings of `whatif` by a sample, beside counts of everything: plain Python over keys, and no Spark."""

import math
import random
from collections import Counter
from collections.abc import Iterable

import numpy as np
import pytest

from pipeline.data.rings import RingSpec
from pipeline.stats.sampling import Estimate
from pipeline.whatif.findings import Findings, find
from pipeline.whatif.prediction import Demand, load, moved
from pipeline.whatif.published import Published
from pipeline.whatif.verdict import Limits, verdict
from ring.hashing import SLOTS
from tests.pipeline.records import ring_of

PRESENT = ring_of({f"orders.{n}": 1 for n in range(10)})
PROPOSED = ring_of({f"orders.{n}": 1 for n in range(9)} | {"large": 3})
MOVES = moved(PRESENT.ring, PROPOSED.ring, np.arange(SLOTS))
PERCENT = SLOTS // 100
SEEDS = range(25)

Slots = Counter[int]
"""Messages by slot."""


def laid(seed: int, keys: Iterable[int]) -> Slots:
    """Keys with so many messages, each in a slot that chance gives it."""
    chance, slots = random.Random(seed), Slots()
    for messages in keys:
        slots[chance.randrange(SLOTS)] += messages
    return slots


def sampled(slots: Slots, sample: float) -> Published:
    """Return what the job gets to see: the first slots only."""
    inside = sorted(slot for slot in slots if slot < round(sample * SLOTS))
    counts = np.array([slots[slot] for slot in inside])
    return Published.of(Demand(np.array(inside), counts, 7 * counts), sample)


def asked(slots: Slots, sample: float = 0.01) -> Findings:
    """Return what the job finds."""
    return find(PRESENT, PROPOSED, sampled(slots, sample))


def busiest(published: Published, by: RingSpec) -> Estimate:
    """Return the estimate of the busiest queue."""
    return published.max_over_fair(by.ring, load(by.ring, published.demand))


def over_fair(slots: Slots, by: RingSpec, wanted: RingSpec | None = None) -> float:
    """Return, counted over everything, the busiest queue's messages per weight over the mean per weight."""
    got: Counter[str] = Counter()
    for slot, messages in slots.items():
        got[by.ring.owner(slot).name] += messages
    weights = {destination.name: weight for destination, weight in (wanted or by).weights.items()}
    return max(got[name] / weight for name, weight in weights.items()) * sum(weights.values()) / got.total()


def moving(slots: Slots, present: RingSpec, proposed: RingSpec) -> float:
    """Return, counted over everything, the share of the messages whose queue is another by the proposed ring."""
    moves = sum(n for slot, n in slots.items() if present.ring.owner(slot) != proposed.ring.owner(slot))
    return moves / slots.total()


def test_a_hot_key_inside_the_sample_counts_as_it_is() -> None:
    """A half percent of all messages is a third of those in a sample of 1%."""
    within: Counter[str] = Counter()
    for seed in SEEDS:
        slots = laid(seed, [20] * 50_000)
        slots[random.Random(seed).randrange(PERCENT)] += 5025
        published, truth = sampled(slots, 0.01), over_fair(slots, PRESENT)
        told, moves = busiest(published, PRESENT), published.share(MOVES).of_messages
        assert truth < 1.1
        assert told.value == pytest.approx(truth, abs=0.04)
        assert published.messages.total == pytest.approx(slots.total(), rel=0.2)
        within["over fair"] += told.low <= truth <= told.high
        within["moved"] += moves.low <= moving(slots, PRESENT, PROPOSED) <= moves.high
    assert min(within.values()) >= 23, within


@pytest.mark.parametrize(
    ("keys", "sample"),
    [
        ([20] * 10_000, 0.05),
        # The heavy keys inside are enough to stand for those outside.
        ([20] * 10_000 + [1000] * 200, 0.1),
        ([1 + n % 300 for n in range(10_000)], 0.02),
    ],
)
def test_intervals_have_what_everything_shows(keys: list[int], sample: float) -> None:
    within: Counter[str] = Counter()
    for seed in SEEDS:
        slots = laid(seed, keys)
        published = sampled(slots, sample)
        share, moves = published.share(MOVES), moving(slots, PRESENT, PROPOSED)
        for name, told, truth in (
            ("total", published.messages.sample.total(), slots.total()),
            ("moved", share.of_messages, moves),
            ("bytes", share.of_bytes, moves),
            ("present", busiest(published, PRESENT), over_fair(slots, PRESENT)),
            ("proposed", busiest(published, PROPOSED), over_fair(slots, PROPOSED)),
        ):
            assert told.low <= told.value <= told.high
            within[name] += told.low <= truth <= told.high
    assert min(within.values()) >= 22, within
    assert len(within) == 5


@pytest.mark.long
def test_advised_weights_are_judged_by_everything_too() -> None:
    within: Counter[str] = Counter()
    for seed in range(4):
        slots = laid(seed, [20] * 5_000)
        slots[random.Random(seed).randrange(PERCENT)] += 10_000
        found = asked(slots, 0.05)
        advised, told, moves = found.advice.spec, found.max_over_fair.advised, found.advised_moves.of_messages
        within["over fair"] += told.low <= over_fair(slots, advised, PROPOSED) <= told.high
        within["moved"] += moves.low <= moving(slots, PRESENT, advised) <= moves.high
        assert told.value < found.max_over_fair.proposed.value
    assert min(within.values()) == 4, within


def test_a_table_of_loads_adds_up_to_what_is_estimated() -> None:
    found = asked(laid(1, [20] * 50_000))
    rows = {row[1]: row[2:] for row in found.rows()}
    assert sum(row[6] for row in rows.values()) == pytest.approx(found.published.messages.total, abs=11)
    assert found.published.messages.total == pytest.approx(1_000_000, rel=0.2)
    assert found.published.bytes.total == pytest.approx(7 * found.published.messages.total, rel=1e-6)
    assert max(row[9] or 0 for row in rows.values()) == pytest.approx(found.max_over_fair.proposed.value)
    assert found.moved.messages == pytest.approx(
        found.moved.of_messages.value * found.published.messages.total, rel=1e-4
    )


def test_a_limit_within_the_interval_is_told_to_be_uncertain() -> None:
    slots = laid(2, [20] * 2_000)
    slots[7] += 5_000
    found = asked(slots)
    value, low, high = found.max_over_fair.proposed
    assert low < value < high
    for limit, over, uncertain in (
        ((low + value) / 2, ["max_over_fair"], ["max_over_fair"]),
        ((value + high) / 2, [], ["max_over_fair"]),
        (high + 0.01, [], []),
    ):
        told = verdict(found, Limits(None, limit), sample=0.01, with_bytes=True)
        assert (told["over"], told["uncertain"]) == (over, uncertain)
        assert told["verdict"] == ("over" if over else "within")
    assert told["intervals"]["max_over_fair"]["proposed"] == [low, high]


def test_that_a_hot_key_may_be_outside_is_told_where_no_limit_is_uncertain() -> None:
    slots = laid(2, [20] * 20_000)
    slots[SLOTS - 1] += 400_000  # half of all, in no sample but the whole
    for sample, unseen, over in ((0.05, True, []), (1.0, False, ["max_over_fair"])):
        told = verdict(asked(slots, sample), Limits(None, 1.5), sample=sample, with_bytes=True)
        assert (told["over"], told["uncertain"], told["hot_keys_may_be_unseen"]) == (over, [], unseen)


def test_a_key_that_outweighs_every_fair_share_is_told_with_its_interval() -> None:
    slots = laid(3, [20] * 50_000)
    slots[7] += 430_000
    found = asked(slots)
    truth = max(slots.values()) / slots.total() / (3 / 12)
    assert found.max_over_fair.least.value == pytest.approx(truth, rel=0.1)
    assert found.max_over_fair.least.low < truth < found.max_over_fair.least.high
    assert found.max_over_fair.advised.value >= found.max_over_fair.least.value


def test_what_is_there_whole_is_exact() -> None:
    slots = laid(4, [3] * 5_000)
    found = asked(slots, sample=1.0)
    truth, moves = over_fair(slots, PROPOSED), moving(slots, PRESENT, PROPOSED)
    assert found.max_over_fair.proposed == pytest.approx([truth] * 3)
    assert found.moved.of_messages == pytest.approx([moves] * 3)
    assert (found.published.messages.total, found.published.bytes.total) == (15_000, 105_000)


def test_a_sample_of_one_slot_says_that_it_knows_nothing() -> None:
    found = asked(Slots({0: 9}), sample=1 / SLOTS)
    told = verdict(found, Limits(0.5, 1.5), sample=1 / SLOTS, with_bytes=True)
    assert told["intervals"]["messages"] == [9, None]
    assert told["intervals"]["moved"]["of_messages"] == [0, 1]
    assert told["uncertain"] == ["max_moved", "max_over_fair"]
    assert all(math.isfinite(value) for value in told["max_over_fair"].values())
