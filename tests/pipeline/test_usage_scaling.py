"""Scaling up a sample in `usage`: how often the intervals contain the truth, over many samples.

`pytest -s tests/pipeline/test_usage_scaling.py` prints the figures that docs/explanation/samples.md quotes.
"""

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import Row, SparkSession

from pipeline.usage.scaling import GROUPS, estimated, part, share
from pipeline.usage.windows import merged, usage, with_estimates
from tests.pipeline.records import START

DRAWS, KEYS, SLOTS, SAMPLED = 300, 600, 2**20, 0.0625


def drawn(seed: int) -> tuple[pa.Table, list[tuple[int, int, int]], list[float]]:
    """Samples of as many populations, each an exchange of its own whose keys a hash has laid into slots at random.

    And of each population the truth: its messages, bytes and keys, and the share of the destination `first`.
    """
    random = np.random.default_rng(seed)
    columns: dict[str, list[object]] = {name: [] for name in ("exchange", "destination", "bytes", "key", "slot")}
    truths, shares = [], []
    for draw in range(DRAWS):
        counts, sizes = random.geometric(0.4, KEYS), random.integers(10, 1000, KEYS)
        slots, first = random.integers(0, SLOTS, KEYS), np.arange(KEYS) % 3 == 0
        truths.append((int(counts.sum()), int((counts * sizes).sum()), KEYS))
        shares.append(float(counts[first].sum() / counts.sum()))
        for key in np.flatnonzero(slots < SAMPLED * SLOTS):
            many = int(counts[key])
            columns["exchange"] += [f"{draw:03}"] * many
            columns["destination"] += ["first" if first[key] else "other"] * many
            columns["bytes"] += [int(sizes[key])] * many
            columns["key"] += [b"%d-%d" % (draw, key)] * many
            columns["slot"] += [int(slots[key])] * many
    return pa.table(columns), truths, shares


def covered(about: str, intervals: list[tuple[float, float]], truths: list[float]) -> float:
    """Print and return the share of the intervals that contain the truth; `about` says what they are intervals of."""
    found = float(np.mean([low <= truth <= high for (low, high), truth in zip(intervals, truths, strict=True)]))
    print(f"\n{about}: {found:.1%} of {len(truths)} intervals contain the truth")
    return found


@pytest.mark.long
def test_intervals_have_the_truth_in_them_as_often_as_they_say(spark: SparkSession) -> None:
    table, truths, shares = drawn(seed=20)
    same = f"{START}L AS time", f"{SAMPLED}D AS sample", "'/' AS vhost", "'amqp' AS ingress", "'queue' AS kind"
    more = "'confirmed' AS outcome", "1000L AS latency"
    records = spark.createDataFrame(table).selectExpr("*", *same, *more)
    by_destination = usage(records, 5).persist()
    rows = with_estimates(merged(by_destination, ["exchange"])).orderBy("exchange").collect()
    assert len(rows) == DRAWS
    for n, name in enumerate(("messages", "bytes", "keys")):
        found = [(row[f"{name}_low"], row[f"{name}_high"]) for row in rows]
        # 95%, and three times its standard error of 1.3% either way.
        assert 0.91 <= covered(name, found, [truth[n] for truth in truths]) <= 0.99, name
        assert all(low <= row[f"{name}_scaled"] <= high for (low, high), row in zip(found, rows, strict=True))
        assert np.mean([row[f"{name}_scaled"] / truth[n] for row, truth in zip(rows, truths, strict=True)]) == (
            pytest.approx(1, abs=0.05)
        )
    firsts = {row.exchange: row for row in by_destination.where("destination = 'first'").collect()}
    by_share = [share(firsts[row.exchange], row) for row in rows]
    assert 0.91 <= covered("shares", [(low, high) for _, low, high in by_share], shares) <= 0.99


def test_a_hot_key_inside_the_sample_makes_no_share_sure() -> None:
    """One destination has 14,300 of 30,000 messages, 9,000 of them of one key, which the sample of 1% has."""
    random = np.random.default_rng(4)
    its, others = (random.multinomial(count, [1 / GROUPS] * GROUPS) for count in (53, 157))
    its[2] += 9000

    def row(counts: np.ndarray) -> Row:
        return Row(
            messages=int(counts.sum()), messages_groups=(99.0 * counts).tolist(), with_key=int(counts.sum()), keys=200.0
        )

    one, whole = row(its), row(its + others)
    value, low, high = share(one, whole)
    assert value == pytest.approx(14_300 / 30_000, abs=0.05)
    assert low < 14_300 / 30_000 < high
    assert high - low < 0.3
    # A part is judged by the groups that are heavy in the whole, so that parts add up to it.
    parts = [part(row(counts), whole) for counts in (its, others)]
    total, _ = estimated(whole.messages, whole.messages_groups)
    assert sum(found.value for found in parts) == pytest.approx(total.value)
    for found, truth in ((total, 30_000), (parts[0], 14_300), (parts[1], 15_700)):
        assert found.low < truth < found.high
        assert not found.is_vague


def few(random: np.random.Generator, keys: int, part: float) -> tuple[Row, Row, float] | None:
    """A sample of a few keys: the rows of one destination and of all, and its share of all that was published.

    None where no key was drawn. A destination of no drawn key has no row, but the figures are those of one.
    """
    counts, its = random.geometric(0.4, keys), random.random(keys) < part
    slots = random.integers(0, SLOTS, keys)
    drawn = slots < SAMPLED * SLOTS
    if not drawn.any():
        return None
    weight = 1 / SAMPLED - 1
    rows = [
        Row(
            messages=int(counts[of].sum()),
            messages_groups=(np.bincount(slots[of] % GROUPS, counts[of], GROUPS) * weight).tolist(),
            with_key=int(counts[of].sum()),
            keys=float(of.sum()),
        )
        for of in (drawn & its, drawn)
    ]
    return rows[0], rows[1], float(counts[its].sum() / counts.sum())


@pytest.mark.parametrize("keys", [50, 100, 300, 2000])
@pytest.mark.parametrize("part", [0.02, 0.33, 0.95])
def test_shares_of_few_drawn_keys_are_told_with_their_whole_error(keys: int, part: float) -> None:
    """The keys drawn are 3, 6, 19 and 125, of which destinations may have all, most or hardly any."""
    random = np.random.default_rng(keys)
    samples = [sample for sample in (few(random, keys, part) for _ in range(1000)) if sample is not None]
    found = [share(its, whole)[1:] for its, whole, _ in samples]
    # 95%, and three times its standard error of 0.7%.
    assert covered(f"share {part} of {keys} keys", found, [truth for *_, truth in samples]) >= 0.93
    assert all(low < high for low, high in found)


def test_a_destination_that_has_all_drawn_keys_may_not_have_all_keys() -> None:
    """The rule holds for groups that are alike, and with or without journalled keys; more drawn keys mean less."""

    def low(drawn: int, **changed: object) -> float:
        sums = {"messages": drawn, "messages_groups": [drawn * 15 / GROUPS] * GROUPS}
        whole = Row(**{**sums, "with_key": drawn, "keys": float(drawn), **changed})
        value, least, most = share(whole, whole)
        assert (value, most) == (1, 1)
        return float(least)

    assert 0.5 < low(8) < low(80) < low(800) < 1
    assert low(80, with_key=0, keys=None) == low(80)
    assert low(80, keys=8.0) == low(8)


def test_what_is_no_sample_is_certain(spark: SparkSession) -> None:
    columns = "INLINE(ARRAY(STRUCT(0, 'a'), STRUCT(77, 'b'), STRUCT(1048575, 'c'))) AS (slot, key)"
    same = f"{START}L AS time", "1D AS sample", "'/' AS vhost", "'orders' AS exchange", "'amqp' AS ingress"
    more = "'queue' AS kind", "'q' AS destination", "'confirmed' AS outcome", "1000L AS latency", "7L AS bytes"
    records = spark.range(2).selectExpr("id", *same, *more).join(spark.range(1).selectExpr(columns))
    (row,) = with_estimates(usage(records, 5)).collect()
    assert (row.messages, row.messages_low, row.messages_scaled, row.messages_high) == (6, 6, 6, 6)
    assert (row.bytes_low, row.bytes_high) == (42, 42)
    assert share(row, row) == (1, 1, 1)


def test_one_key_may_be_all_that_there_is(spark: SparkSession) -> None:
    """Then nothing was left out, whatever the sample: the interval goes down to what was counted."""
    same = f"{START}L AS time", "0.125D AS sample", "'/' AS vhost", "'orders' AS exchange", "'amqp' AS ingress"
    more = "'queue' AS kind", "'q' AS destination", "'confirmed' AS outcome", "1000L AS latency", "7L AS bytes"
    (row,) = with_estimates(usage(spark.range(50).selectExpr("'one' AS key", "5 AS slot", *same, *more), 5)).collect()
    assert (row.messages_low, row.messages_scaled) == (50, 400)
    assert row.messages_high > 400


def test_a_hot_key_inside_counts_once_in_the_table(spark: SparkSession) -> None:
    """One key has 9,000 of 30,000 messages, which the sample of 1% has; the others are of 105 keys in it."""
    random = np.random.default_rng(6)
    slots = random.integers(0, SLOTS // 100, 105)
    counts = [*random.geometric(0.5, 105).tolist(), 9000]
    rows = [(int(slot), f"k{n}", count) for n, (slot, count) in enumerate(zip([*slots, 77], counts, strict=True))]
    same = f"{START}L AS time", "0.01D AS sample", "'/' AS vhost", "'orders' AS exchange", "'amqp' AS ingress"
    more = "'queue' AS kind", "'q' AS destination", "7L AS bytes", "1000L AS latency"
    outcome = "CASE WHEN key = 'k105' THEN 'nacked' ELSE 'confirmed' END AS outcome"
    listed = spark.createDataFrame(rows, "slot int, key string, many int")
    records = listed.selectExpr("explode(sequence(1, many)) AS n", "slot", "key").selectExpr(
        "slot", "key", *same, *more, outcome
    )
    (row,) = with_estimates(usage(records, 5)).collect()
    truth = 9000 + 100 * sum(counts[:-1])
    assert row.messages_low < truth < row.messages_high
    assert row.messages_scaled == pytest.approx(truth, rel=0.02)
    assert row.messages_high < 1.5 * row.messages_low
    assert row.bytes_scaled == pytest.approx(7 * row.messages_scaled)
    assert row.confirmed_scaled + row.nacked_scaled == pytest.approx(row.messages_scaled)
