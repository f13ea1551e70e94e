"""Usage by window: counts, histograms, distinct keys; and rows merge to what all their records would have given."""

from datetime import datetime
from math import ceil
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from pipeline import PipelineError
from pipeline.data.journal import read_records
from pipeline.data.schema import OUTCOMES
from pipeline.usage import latency
from pipeline.usage.windows import COUNTS, merged, usage, with_estimates
from tests.pipeline.records import Record, published, ring_of, write_journal

KNOWN = ring_of({"orders.1": 1, "orders.2": 1})
MINUTE = 60_000_000


def read(spark: SparkSession, folder: Path, records: list[Record]) -> DataFrame:
    write_journal(folder, records, [KNOWN])
    return read_records(spark, str(folder))


def comparable(rows: DataFrame) -> list[Row]:
    """Return every column but the sketch, whose bytes depend on the order, and its estimate."""
    return with_estimates(rows).drop("keys_sketch").orderBy("window", "exchange", "destination").collect()


def test_every_bound_separates_its_two_buckets(spark: SparkSession) -> None:
    edges = [(bound + step, n + 1 + step) for n, bound in enumerate(latency.BOUNDS) for step in (-1, 0)]
    edges += [(0, 0), (1, 0), (10**12, latency.BUCKETS - 1)]
    found = spark.createDataFrame(edges, "latency long, expected int").withColumn(
        "found", latency.bucket(F.col("latency"))
    )
    assert found.where("found != expected").collect() == []
    assert all(b / a <= 1.25 for a, b in zip(latency.BOUNDS, latency.BOUNDS[1:], strict=False))


def test_quantiles_are_the_bound_above_the_ranked_latency(spark: SparkSession) -> None:
    def of(values: list[int]) -> tuple[int | None, int | None]:
        rows = spark.createDataFrame([(value,) for value in values], "latency long")
        counted = rows.groupBy(latency.bucket(F.col("latency")).alias("b")).agg(F.count("*").alias("n"))
        counts = counted.agg(latency.histogram("b", "n").alias("c"))
        row = counts.select(latency.quantile("c", 0.5), latency.quantile("c", 0.99)).collect()[0]
        return row[0], row[1]

    p50, p99 = of([1000] * 98 + [50_000] * 2)
    assert p50 is not None
    assert p99 is not None
    assert 1000 <= p50 <= 1190
    assert 50_000 <= p99 <= 59_500
    assert of([10**10]) == (latency.BOUNDS[-1], latency.BOUNDS[-1])
    assert of([]) == (None, None)


def test_a_window_counts_what_its_records_say(spark: SparkSession, tmp_path: Path) -> None:
    keys = [f"customer-{n % 40}".encode() for n in range(120)]
    records = published(KNOWN, keys, every=5_000_000, size=10)
    for n, outcome in enumerate(OUTCOMES):
        changed = {"outcome": outcome, "latency": None if outcome == "sent" else 500}
        if outcome == "passed":
            changed |= {"kind": None, "destination": None}
        records[n] |= changed
    rows = with_estimates(usage(read(spark, tmp_path, records), 5)).orderBy("window", "destination").collect()
    assert {row.window for row in rows} == {datetime(2026, 11, 21, 17, 0), datetime(2026, 11, 21, 17, 5)}
    for row in rows:
        own = [
            r
            for n, r in enumerate(records)
            if r["destination"] == row.destination and (n < 60) == (row.window.minute == 0)
        ]
        assert row.messages == row.messages_scaled == len(own)
        assert row.bytes == row.bytes_scaled == 10 * len(own)
        for outcome in OUTCOMES:
            assert row[outcome] == row[f"{outcome}_scaled"] == sum(r["outcome"] == outcome for r in own)
        assert sum(row.latency) == sum(r["outcome"] not in ("sent", "unknown") for r in own)
        assert row["keys"] == len({r["key"] for r in own}) == row.keys_scaled
    assert [row.destination for row in rows].count(None) == 1


def test_each_ingress_has_its_own_latencies(spark: SparkSession, tmp_path: Path) -> None:
    took = {"amqp": [800 + n for n in range(60)], "http": [40_000 + 10 * n for n in range(40)]}
    records = published(ring_of({"orders.1": 1}), [b"%d" % n for n in range(100)])
    for record, (ingress, latency_us) in zip(records, ((i, one) for i in took for one in took[i]), strict=True):
        record |= {"ingress": ingress, "latency": latency_us}
    rows = with_estimates(usage(read(spark, tmp_path, records), 5)).orderBy("ingress").collect()
    assert [(row.ingress, row.messages, sum(row.latency)) for row in rows] == [("amqp", 60, 60), ("http", 40, 40)]
    for row in rows:
        for share, found in ((0.5, row.p50), (0.99, row.p99)):
            exact = sorted(took[row.ingress])[ceil(share * len(took[row.ingress])) - 1]
            assert exact < found <= 1.25 * exact


def test_what_was_never_answered_has_no_latency(spark: SparkSession, tmp_path: Path) -> None:
    records = published(KNOWN, [b"a"] * 8)
    records[2:6] = [record | {"outcome": "unknown", "latency": 30_000_000} for record in records[2:6]]
    (row,) = with_estimates(usage(read(spark, tmp_path, records), 5)).collect()
    assert (row.messages, row.confirmed, row.unknown) == (8, 4, 4)
    assert sum(row.latency) == 4
    assert row.p99 < 1000


@pytest.mark.long
def test_merging_rows_gives_what_all_their_records_give(spark: SparkSession, tmp_path: Path) -> None:
    keys = [f"customer-{n % 70}".encode() for n in range(300)]
    records = read(spark, tmp_path, published(KNOWN, keys, every=MINUTE // 5, sample=0.7))
    parts = [usage(records.where(F.col("seq") % 3 == n), 5) for n in range(3)]
    assert comparable(merged(parts[0].union(parts[1]).union(parts[2]))) == comparable(usage(records, 5))
    hourly = merged(usage(records, 5), ("exchange",)).select("messages", "latency").collect()[0]
    single = usage(records, 5).select("latency").collect()
    assert hourly.latency == [sum(counts) for counts in zip(*(row.latency for row in single), strict=True)]
    assert sum(hourly.latency) == hourly.messages == records.count()


def test_what_a_sample_left_out_is_counted_in(spark: SparkSession, tmp_path: Path) -> None:
    keys = [f"customer-{n}".encode() for n in range(20_000)]
    records = published(KNOWN, keys, every=10, sample=0.25)
    row = with_estimates(merged(usage(read(spark, tmp_path, records), 60), ("exchange",))).collect()[0]
    assert row.messages == len(records)
    assert row.messages_scaled == len(records) * 4
    assert row.bytes_scaled == len(records) * 400
    assert row.messages_scaled == pytest.approx(20_000, rel=0.1)
    # HyperLogLog's standard error with 4,096 registers is 1.6%.
    assert row["keys"] == pytest.approx(len(records), rel=0.06)
    assert row.keys_scaled == row["keys"] * 4
    assert all(f"{name}_scaled" in row.asDict() for name in COUNTS)


def test_without_keys_their_number_is_not_told(spark: SparkSession, tmp_path: Path) -> None:
    records = published(KNOWN, [b"a", b"b"], with_key=False)
    rows = with_estimates(usage(read(spark, tmp_path, records), 5)).collect()
    assert {(row["keys"], row.keys_scaled, row.with_key) for row in rows} == {(None, None, 0)}


@pytest.mark.parametrize("minutes", [0, -5, 7, 61, 120])
def test_windows_must_make_whole_hours(spark: SparkSession, tmp_path: Path, minutes: int) -> None:
    with pytest.raises(PipelineError, match="--window"):
        usage(read(spark, tmp_path, published(KNOWN, [b"a"])), minutes)
