"""Missing records are seen wherever they are: in a file, at its edge, as a whole file, at a proxy's start."""

from datetime import datetime
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from pipeline import gaps
from pipeline.journal import read_records
from tests.pipeline.records import Record, published, ring_of, write_journal

KNOWN = ring_of({"orders.1": 1})


def found(sequences: DataFrame) -> list[tuple[str, int, int, int]]:
    rows = gaps.gaps(sequences).orderBy("proxy", "first").collect()
    return [(row.proxy, row["first"], row["last"], row.missing) for row in rows]


def test_gaps_are_seen_within_files_and_between_them(spark: SparkSession, tmp_path: Path) -> None:
    def kept(proxy: str, lost: set[int], count: int) -> list[Record]:
        keys = [b"key"] * count
        return [r for r in published(KNOWN, keys, proxy=proxy) if r["seq"] not in lost]

    whole, holed, late, long = (c * 16 for c in "abcd")
    lost = {7, 20, 21, *range(41, 61)}
    # Files of 10 records: 20 is the last of one and 21 the first of the next.
    write_journal(tmp_path, kept(whole, set(), 40) + kept(holed, lost, 70) + kept(late, {1, 2, 3}, 30), [], per_file=10)
    expected = [
        (holed, 7, 7, 1),
        (holed, 20, 21, 2),
        (holed, 41, 60, 20),
        (late, 1, 3, 3),
        (long, 32_768, 32_769, 2),
        (long, 65_537, 65_537, 1),
    ]
    # Past the edges of Spark's bitmaps, which hold 32,768 numbers each.
    numbers = spark.range(1, 65_600).where("id not in (32768, 32769, 65537)")
    columns = "proxy", "seq", "time"
    records = read_records(spark, str(tmp_path)).select(*columns)
    records = records.union(numbers.selectExpr(f"'{long}' proxy", "id seq", "id time"))
    assert found(gaps.sequences(records)) == expected
    # In parts, one of them twice.
    parts = [gaps.sequences(records.where(f"seq % 2 = {n}")) for n in (0, 1, 1)]
    assert found(gaps.merged(parts[0].union(parts[1]).union(parts[2]))) == expected


def test_a_gap_is_told_with_the_time_around_it(spark: SparkSession, tmp_path: Path) -> None:
    records = published(KNOWN, [b"key"] * 5)
    write_journal(tmp_path, records[1:2] + records[3:], [])
    early, late = gaps.gaps(gaps.sequences(read_records(spark, str(tmp_path)))).orderBy("first").collect()
    assert early.since is None
    assert late.since == datetime(2026, 11, 21, 17, 0, 0, 1000)
    assert early.until == late.until == datetime(2026, 11, 21, 17, 0, 0, 4000)
