"""The test journals are what the pipeline reads, and route as the ring does."""

from pathlib import Path

from pyspark.sql import SparkSession

from pipeline.journal import read_records, read_rings
from pipeline.schema import RECORD
from tests.pipeline.records import published, ring_of, write_journal


def test_a_journal_is_read_as_it_was_written(spark: SparkSession, tmp_path: Path) -> None:
    known = ring_of({"orders.1": 1, "orders.2": 3})
    keys = [f"customer-{n}".encode() for n in range(50)]
    files = write_journal(tmp_path, published(known, keys, every=120_000_000), [known], per_file=20)
    assert {file.parent.name for file in files} == {"hour=17", "hour=18"}
    read = read_records(spark, str(tmp_path))
    assert read.columns == [*RECORD.fieldNames(), "dt", "hour"]
    rows = read.orderBy("seq").collect()
    assert [bytes(row.key) for row in rows] == keys
    assert [row.destination for row in rows] == [known.ring.owner_of(key).name for key in keys]
    assert {(row.dt, row.hour) for row in rows} == {("2026-11-21", 17), ("2026-11-21", 18)}
    assert read_rings(spark, str(tmp_path)) == {known.fingerprint: known}
