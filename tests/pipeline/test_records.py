"""The test journals are what the pipeline reads, and route as the ring does."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipeline import PipelineError
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


@pytest.mark.parametrize("as_url", [False, True])
def test_rings_that_cannot_be_read_are_named(spark: SparkSession, tmp_path: Path, as_url: bool) -> None:
    journal = tmp_path.as_uri() if as_url else str(tmp_path)
    assert read_rings(spark, journal) == {}
    known = ring_of({"orders.ü": 1})
    write_journal(tmp_path, [], [known])
    assert read_rings(spark, journal) == {known.fingerprint: known}
    file = tmp_path / "rings" / f"{known.fingerprint}.json"
    file.write_bytes(file.read_text(encoding="utf-8").encode("latin-1"))
    with pytest.raises(PipelineError, match=rf"rings/{known.fingerprint}\.json: cannot be read: 'utf-8' codec"):
        read_rings(spark, journal)
    if not as_url:
        file.unlink()
        file.mkdir()
        with pytest.raises(PipelineError, match=rf"rings/{known.fingerprint}\.json: cannot be read: Is a directory"):
            read_rings(spark, journal)
