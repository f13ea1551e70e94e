"""The test journals are what the pipeline reads, and route as the ring does."""

import re
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from pipeline import PipelineError
from pipeline.data.journal import read_records, read_rings
from pipeline.data.schema import ALLOWED, RECORD
from pipeline.session import in_one_line
from pipeline.stream.messages import RECORDS, records
from pipeline.stream.queue import StreamMessage, StreamQueue
from ring.hashing import SLOTS
from tests.pipeline.records import line, published, ring_of, write_journal

KNOWN = ring_of({"orders.1": 1, "orders.2": 3})

BAD = [
    ("vhost", None, "null"),
    ("bytes", None, "null"),
    ("outcome", None, "null"),
    ("time", -1, "-1"),
    ("time", 253_402_300_800_000_000, "253402300800000000"),
    ("seq", 0, "0"),
    ("sample", 0, "0.0"),
    ("sample", 1.5, "1.5"),
    ("ingress", "mqtt", "mqtt"),
    ("slot", -1, "-1"),
    ("slot", SLOTS, str(SLOTS)),
    ("kind", "topic", "topic"),
    ("outcome", "weird", "weird"),
    ("latency", -1, "-1"),
    ("bytes", -1, "-1"),
]
"""A field, what it must not hold, and how that is told."""


def test_a_journal_is_read_as_it_was_written(spark: SparkSession, tmp_path: Path) -> None:
    known = ring_of({"orders.1": 1, "orders.2": 3})
    keys = [f"customer-{n}".encode() for n in range(50)]
    files = write_journal(tmp_path, published(known, keys, every=120_000_000), [known], per_file=20)
    assert {file.parent.name for file in files} == {"hour=17", "hour=18"}
    read = read_records(spark, str(tmp_path))
    assert read.columns == [*RECORD.fieldNames(), "file"]
    rows = read.orderBy("seq").collect()
    assert [bytes(row.key) for row in rows] == keys
    assert [row.destination for row in rows] == [known.ring.owner_of(key).name for key in keys]
    assert {row.file for row in rows} == {f"file:{file}" for file in files}
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
    file.unlink()
    file.mkdir()
    with pytest.raises(PipelineError, match=rf"rings/{known.fingerprint}\.json: cannot be read: .*Is a directory"):
        read_rings(spark, journal)


def test_both_readers_refuse_the_same_fields(spark: SparkSession, tmp_path: Path) -> None:
    good = published(KNOWN, [f"customer-{n}".encode() for n in range(5)])
    queue = StreamQueue("amqp://broker/", "journal")
    for n, (name, value, told) in enumerate(BAD):
        why = f": field {name!r} is {told}, not {ALLOWED[name]}"
        lines = b"".join(map(line, [*good[:3], good[3] | {name: value}, good[4]]))
        place = tmp_path / str(n) / "records" / "dt=2026-11-21" / "hour=17"
        place.mkdir(parents=True)
        (place / "some.jsonl").write_bytes(lines)
        with pytest.raises(PySparkException) as ended:
            read_records(spark, str(tmp_path / str(n))).select(name).collect()
        assert in_one_line(str(ended.value)).endswith(f"{place}/some.jsonl{why}")
        with pytest.raises(PipelineError, match=f"offset 7{re.escape(why)}$"):
            records(StreamMessage(7, RECORDS, "", lines), queue)


def test_what_must_be_there_is_not_null() -> None:
    (record,) = published(KNOWN, [b"a"])
    optional = {"key", "kind", "destination", "latency", "message_id"}
    for name in set(RECORD.fieldNames()) - optional:
        told = "schema version none" if name == "v" else f"field {name!r} is null, not {ALLOWED[name]}"
        with pytest.raises(PipelineError, match=re.escape(told)):
            records(
                StreamMessage(7, RECORDS, "", line(record | {name: None})), StreamQueue("amqp://broker/", "journal")
            )


def test_a_field_is_looked_at_where_a_job_asks_for_it(spark: SparkSession, tmp_path: Path) -> None:
    write_journal(tmp_path, [record | {"vhost": None} for record in published(KNOWN, [b"a", b"b"])], [])
    read = read_records(spark, str(tmp_path))
    assert read.agg(F.sum("bytes")).collect()[0][0] == 200
    # A filter must not drop it before it is looked at.
    with pytest.raises(PySparkException, match="field 'vhost' is null, not a value"):
        read.where(F.col("vhost") == "/").select("bytes").collect()


def test_the_least_and_the_most_that_fields_may_hold_are_read(spark: SparkSession, tmp_path: Path) -> None:
    record = published(KNOWN, [b"a"])[0]
    least = {name: allowed.least for name, allowed in ALLOWED.items() if allowed.least is not None}
    most = {name: allowed.most for name, allowed in ALLOWED.items() if allowed.most is not None}
    nulls = {name: None for name, allowed in ALLOWED.items() if allowed.nullable}
    told = [record | least, record | most, record | nulls]
    place = tmp_path / "records" / "dt=2026-11-21" / "hour=17"
    place.mkdir(parents=True)
    lines = b"".join(map(line, told))
    (place / "some.jsonl").write_bytes(lines)
    batch = records(StreamMessage(7, RECORDS, "", lines), StreamQueue("amqp://broker/", "journal"))
    assert batch is not None
    rows = batch.to_pylist()
    assert [{name: row[name] for name in ALLOWED} for row in rows] == [
        {name: one[name] for name in ALLOWED} for one in told
    ]
    read = read_records(spark, str(tmp_path)).select(*RECORD.fieldNames()).collect()
    assert [row.asDict() for row in read] == rows
