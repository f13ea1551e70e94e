"""Missing records are seen wherever they are, what has expired is told apart, and no record counts twice."""

import io
import random
import shutil
import tracemalloc
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import Row, SparkSession

from pipeline import PipelineError
from pipeline.data import gaps
from pipeline.data.journal import read_records
from pipeline.data.period import ALWAYS, Period
from tests.pipeline.records import START, Record, published, ring_of, write_journal

KNOWN = ring_of({"orders.1": 1})
AT = datetime.fromtimestamp(START / 1e6, UTC)
MINUTE = 60_000_000
HOUR = 60 * MINUTE


def found(spark: SparkSession, journal: Path, within: Period = ALWAYS) -> list[Row]:
    with gaps.found(str(journal), read_records(spark, str(journal), within), within) as rows:
        return rows.orderBy("proxy", "first").collect()


def numbers(rows: Iterable[Row]) -> list[tuple[str, int, int, int, int]]:
    return [(row.proxy, row["first"], row["last"], row.missing, row.before) for row in rows]


def micros(at: datetime | None) -> int | None:
    return None if at is None else int((at.replace(tzinfo=UTC) - AT) / timedelta(microseconds=1)) + START


def kept(proxy: str, lost: set[int], count: int, first: int = 1) -> list[Record]:
    return [r for r in published(KNOWN, [b"key"] * count, proxy=proxy, first=first) if r["seq"] not in lost]


def test_gaps_are_told_with_the_times_right_around_them(spark: SparkSession, tmp_path: Path) -> None:
    """Each sidecar of a journal made by hand against a walk over its numbers, one by one."""
    chance = random.Random(11)
    expected = []
    for n in range(12):
        proxy = f"{n:016x}"
        records = published(KNOWN, [b"key"] * chance.randrange(1, 90), proxy=proxy, start=START + n * 7)
        left = [record for record in records if chance.random() < 0.8] or records
        # All in one order in one file, or in none, as `collect` has them; or in files of ten.
        written = left if n % 3 else chance.sample(left, len(left))
        write_journal(tmp_path, written, [], per_file=10 if n % 2 else 99)
        by_number = {record["seq"]: record["time"] for record in left}
        last, at = None, None
        for seq in range(1, max(by_number) + 1):
            if seq in by_number:
                if last is not None and seq > last + 1:
                    expected.append((proxy, last + 1, seq - 1, at, by_number[seq]))
                last, at = seq, by_number[seq]
    told = [row for row in found(spark, tmp_path) if row.missing]
    assert [(r.proxy, r["first"], r["last"], micros(r.since), micros(r.until)) for r in told] == expected
    assert all(row.missing == row["last"] - row["first"] + 1 for row in told)


@pytest.mark.long
def test_a_large_file_is_in_one_run_for_each_gap_of_it(spark: SparkSession) -> None:
    """Whatever number Spark hands to Python at once, and in whichever tasks the records are."""
    lost = (10_000, 32_768, 32_769, 65_537)
    records = spark.range(1, 65_600).where(f"id not in {lost}").selectExpr("'a' proxy", "id seq", "id * 5 time")
    assert gaps.sequences(records.coalesce(1)).count() == 4
    rows = gaps.gaps(gaps.sequences(records.repartition(3))).orderBy("first").collect()
    assert numbers(rows) == [("a", 10_000, 10_000, 1, 0), ("a", 32_768, 32_769, 2, 0), ("a", 65_537, 65_537, 1, 0)]
    assert micros(rows[1].since) == 32_767 * 5
    assert micros(rows[1].until) == 32_770 * 5


def test_little_of_a_large_file_s_records_is_held_at_a_time() -> None:
    """Batches come as Spark hands them to Python: each is one buffer, names and all."""
    size, count = 1000, 60
    names = {"proxy": ["0" * 16] * size, "file": [f"s3a://messaging/journal/records/{'0' * 60}.jsonl.gz"] * size}
    stream = io.BytesIO()
    with pa.ipc.new_stream(
        stream, pa.RecordBatch.from_pydict({**names, "seq": range(size), "time": range(size)}).schema
    ) as out:
        for n in range(count):
            numbers = {name: range(1 + n * size, 1 + n * size + size) for name in ("seq", "time")}
            out.write(pa.RecordBatch.from_pydict({**names, **numbers}))
    stream.seek(0)

    def used() -> int:
        return int(pa.total_allocated_bytes()) + tracemalloc.get_traced_memory()[0]

    held = []

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in pa.ipc.open_stream(stream):
            held.append(used() - before)
            yield batch

    tracemalloc.start()
    try:
        before = used()
        (row,) = (row for batch in gaps._runs(batches()) for row in batch.to_pylist())
    finally:
        tracemalloc.stop()
    assert (row["first"], row["last"]) == (1, size * count)
    # 20 bytes each, and the batch that is read; the names of a record are 100 characters.
    assert max(held) / (size * count) < 30


def test_what_has_expired_is_not_missing(spark: SparkSession, tmp_path: Path) -> None:
    """A sidecar that runs for long: its reader removes the old files, each of which begins where the last one ended."""
    long, short, full, unnamed = (f"{n:016x}" for n in range(4))
    write_journal(tmp_path, kept(long, {5_000_015}, 30, first=5_000_001), [])
    write_journal(tmp_path, kept(short, set(), 5), [])
    # Its folder was full from the first record on: the first file says that it tells of all from 1 on. Nor is there
    # one for 31 to 35, of which its second file tells.
    for records, number in ((kept(full, {1, 2, 3}, 30), 1), (kept(full, {31, 32, 33, 34, 35}, 10, first=31), 31)):
        (file,) = write_journal(tmp_path, records, [])
        file.rename(file.with_name(f"{full}-{number:012}.jsonl.gz"))
    (file,) = write_journal(tmp_path, kept(unnamed, {1, 2}, 9), [])
    file.rename(file.with_name("part-00000-5d0c.json.gz"))
    rows = found(spark, tmp_path)
    assert numbers(rows) == [
        (long, 1, 5_000_000, 0, 5_000_000),
        (long, 5_000_015, 5_000_015, 1, 0),
        (full, 1, 3, 3, 0),
        (full, 31, 35, 5, 0),
        (unnamed, 1, 2, 0, 2),
    ]
    assert [row.since is None for row in rows] == [True, False, True, False, True]


def test_a_record_that_is_there_twice_ends_it(spark: SparkSession, tmp_path: Path) -> None:
    journal = str(tmp_path)
    first, second = write_journal(tmp_path, kept("a" * 16, set(), 18), [], per_file=9)
    assert found(spark, tmp_path) == []
    copied = first.with_name("a copy of it.gz")
    beside = tmp_path / "records" / second.name
    for copy, of in ((copied, first), (beside, second)):
        shutil.copy(of, copy)
        with pytest.raises(PipelineError) as told:
            found(spark, tmp_path)
        copy.unlink()
        assert str(told.value).startswith(f"{journal}: records {'a' * 16}-")
        one, other = str(told.value).partition(" are in ")[2].split(": leave one")[0].split(" and again in ")
        assert {Path(name.replace("%20", " ")).name for name in (one, other)} == {copy.name, of.name}
        assert one != other
    # Two that have some of the same records, and not in their order; and one that has a record twice.
    records = kept("b" * 16, set(), 9)
    (file,) = write_journal(tmp_path, [*records[5:], *records[:5]], [])
    (more,) = write_journal(tmp_path, kept("b" * 16, {7}, 12, first=5)[2:], [])
    with pytest.raises(PipelineError, match=f"records {'b' * 16}-8 to {'b' * 16}-9 are in .*{file.name} and again in"):
        found(spark, tmp_path)
    more.unlink()
    file.unlink()
    (file,) = write_journal(tmp_path, [*records, records[3]], [])
    with pytest.raises(
        PipelineError, match=f"some of the records {'b' * 16}-1 to {'b' * 16}-9 are twice in .*{file.name}: "
    ):
        found(spark, tmp_path)


def test_a_large_file_s_own_copies_are_told_of_one_file(spark: SparkSession) -> None:
    """A file with more records than are held at a time has rows with the same numbers."""
    rows = [("a", 1, 9, 0, 0, 9, "file"), ("a", 7, 12, 0, 0, 6, "file")]
    with pytest.raises(PipelineError, match="journal: records a-7 to a-9 are twice in file: leave"):
        gaps.check_once(spark.createDataFrame(rows, gaps.SEQUENCES), "journal")


@pytest.mark.long
def test_a_clock_that_is_set_at_an_end_of_the_period_makes_no_gap(spark: SparkSession, tmp_path: Path) -> None:
    """From 18:00 to 19:00. Records count by their times, and a number that is in the journal is not missing."""
    clocks = {
        # At 19:05 by its clock it was set back to 18:50.
        "0" * 16: [75, 90, 105, 115, 122, 125, 110, 112, 118, 130],
        # At 17:50 it was set to 18:05, and then back to 17:55.
        "1" * 16: [40, 45, 50, 65, 70, 55, 58, 62, 75],
        # In that time a record was dropped, and one before and after it.
        "2" * 16: list(range(32, 150, 4)),
    }
    begin, end = HOUR, 2 * HOUR
    expected = []
    for proxy, minutes in clocks.items():
        records = published(KNOWN, [b"key"] * len(minutes), proxy=proxy)
        for record, minute in zip(records, minutes, strict=True):
            record["time"] = START + minute * MINUTE
        lost = {3, 12, 28} if proxy == "2" * 16 else set()
        records = [record for record in records if record["seq"] not in lost]
        write_journal(tmp_path, records, [])
        inside = [r["seq"] for r in records if begin <= r["time"] - START < end]
        expected += [(proxy, n, n, 1, 0) for n in sorted(lost) if min(inside) < n < max(inside)]
        assert proxy == "2" * 16 or max(inside) - min(inside) + 1 > len(inside), "its clock was set"
    hour = timedelta(hours=1)
    rows = found(spark, tmp_path, Period(AT + hour, AT + 2 * hour))
    assert numbers(rows) == expected == [("2" * 16, 12, 12, 1, 0)]
    assert numbers(found(spark, tmp_path, Period(None, AT + 2 * hour))) == [
        ("2" * 16, 3, 3, 1, 0),
        ("2" * 16, 12, 12, 1, 0),
    ]


def test_what_was_dropped_before_a_period_is_not_looked_for(spark: SparkSession, tmp_path: Path) -> None:
    """But for whole hours where the file says that it is of its hour: else nobody is told of it."""
    records = published(KNOWN, [b"key"] * 20, every=6 * MINUTE)
    write_journal(tmp_path, records[:10], [])
    (file,) = write_journal(tmp_path, records[13:], [])
    file.rename(file.with_name(file.name.replace("014", "011")))
    proxy = records[0]["proxy"]
    at_18, at_1830 = (Period(AT + timedelta(minutes=minutes)) for minutes in (60, 90))
    assert numbers(found(spark, tmp_path, at_18)) == [(proxy, 11, 13, 3, 0)]
    assert found(spark, tmp_path, at_1830) == []
