"""The tables of usage: made twice they are the same; a stream takes in each file once and changes only what it must."""

import shutil
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

import pipeline.data.gaps
from pipeline import PipelineError
from pipeline.__main__ import main
from pipeline.data.gaps import gaps, sequences
from pipeline.data.journal import read_records, stream_records
from pipeline.usage.command import SORTED_FROM, follow
from pipeline.usage.tables import Tables
from tests.pipeline.records import PROXY, START, published, ring_of, write_journal
from tests.pipeline.work import last_query, sorted_instead

KNOWN = ring_of({"orders.1": 1, "orders.2": 2})
HOUR = 3_600_000_000


def content(tables: Tables) -> tuple[list[Row], list[Row]]:
    """Return the rows of both tables, without the sketches' bytes; their estimates are in."""
    usage = tables.usage()
    assert usage is not None
    by = ("dt", "hour", "window", "exchange", "ingress", "destination")
    return usage.drop("keys_sketch").orderBy(*by).collect(), tables.gaps().orderBy("proxy", "first").collect()


def write(folder: Path, first: int, count: int, start: int) -> None:
    keys = [f"customer-{n % 30}".encode() for n in range(first, first + count)]
    records = published(KNOWN, keys, first=first, start=start, every=30_000_000)
    write_journal(folder, records, [KNOWN], per_file=60)


def test_a_file_of_an_hour_is_added_up_without_sorting_its_records(spark: SparkSession, tmp_path: Path) -> None:
    """It has more groups of windows, destinations and buckets of latencies than Spark keeps sketches of by default."""
    records = published(KNOWN, [b"customer-%d" % (n % 30) for n in range(1200)], every=2_500_000)
    for record in records:
        record["latency"] = 16 << record["seq"] % 20
    write_journal(tmp_path / "journal", records, [KNOWN], per_file=1200)
    limit, before = spark.conf.get(SORTED_FROM), last_query(spark)
    assert main(["usage", "--journal", str(tmp_path / "journal"), "--out", str(tmp_path / "out")]) == 0
    assert last_query(spark) > before
    assert sorted_instead(spark, before) == 0
    assert spark.conf.get(SORTED_FROM) == limit, "a job leaves the session as it was"
    rows = spark.read.parquet(str(tmp_path / "out" / "usage")).collect()
    assert sum(bool(bucket) for row in rows for bucket in row.latency) > 200


@pytest.mark.long
def test_a_stream_gives_what_a_batch_gives_whatever_comes_late_or_twice(spark: SparkSession, tmp_path: Path) -> None:
    journal, followed, whole = tmp_path / "journal", tmp_path / "followed", tmp_path / "whole"
    tables = Tables(spark, str(followed), 5)
    # Over two hours; 11 to 20 come late.
    write(journal, 1, 10, START)
    write(journal, 21, 150, START + 10 * 60_000_000)
    follow(stream_records(spark, str(journal)), tables, None, lambda: None)
    assert [(row["first"], row["last"]) for row in content(tables)[1]] == [(11, 20)]
    files = {file: file.stat().st_mtime_ns for file in (followed / "usage").rglob("*.parquet")}
    assert {file.parent.name for file in files} == {"hour=17", "hour=18"}

    write(journal, 11, 10, START + 5 * 60_000_000)
    main(["usage", "--journal", str(journal), "--out", str(followed), "--stream"])
    later = {file: file.stat().st_mtime_ns for file in (followed / "usage").rglob("*.parquet")}
    assert {file.parent.name for file in files.keys() - later.keys()} == {"hour=17"}
    assert [file for file in files if "hour=18" in str(file)] == [file for file in later if "hour=18" in str(file)]
    once = content(tables)
    assert once[1] == []

    for _ in range(2):
        records = read_records(spark, str(journal))
        Tables(spark, str(whole), 5).write(records, gaps(sequences(records)))
        assert content(Tables(spark, str(whole), 5)) == once

    # A batch that was written but not committed comes again.
    (followed / "checkpoint" / "commits" / "1").unlink()
    (followed / "checkpoint" / "commits" / ".1.crc").unlink()
    follow(stream_records(spark, str(journal)), tables, None, lambda: None)
    assert content(tables) == once
    with pytest.raises(PipelineError, match=r"--window: 10: .* has windows of 5 minutes"):
        Tables(spark, str(followed), 10).check()
    assert "<svg" in (followed / "report.html").read_text(encoding="utf-8")


@pytest.mark.long
def test_in_a_session_that_was_begun_elsewhere_it_is_the_same(notebook: SparkSession, tmp_path: Path) -> None:
    journal, followed, whole = tmp_path / "journal", tmp_path / "followed", tmp_path / "whole"
    for hour in range(2):
        write(journal, 1 + 10 * hour, 10, START + hour * HOUR)
        assert main(["usage", "--journal", str(journal), "--out", str(followed), "--stream"]) == 0
    assert {folder.name for folder in (followed / "usage").glob("dt=2026-11-21/*")} == {"hour=17", "hour=18"}
    assert main(["usage", "--journal", str(journal), "--out", str(whole)]) == 0
    assert content(Tables(notebook, str(whole), 5)) == content(Tables(notebook, str(followed), 5))
    assert content(Tables(notebook, str(whole), 5))[1] == []


@pytest.mark.long
def test_an_hour_of_which_less_is_left_is_kept(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal, out = tmp_path / "journal", tmp_path / "out"

    def run(*more: str) -> tuple[dict[int, int], str]:
        """The messages by hour in the table; and what was said."""
        assert main(["usage", "--journal", str(journal), "--out", str(out), *more]) == 0
        counted: dict[int, int] = {}
        for row in spark.read.parquet(str(out / "usage")).select("hour", "messages").collect():
            counted[row.hour] = counted.get(row.hour, 0) + row.messages
        return counted, capsys.readouterr().out

    # 17:00 to 17:36, in files of 60 and 12 records.
    write(journal, 1, 72, START)
    assert run() == ({17: 72}, f"72 records, 0 missing: {out}/report.html\n")
    (oldest,) = journal.rglob("*-000000000001.jsonl.gz")
    oldest.unlink()
    write(journal, 73, 21, START + 36 * 60_000_000)
    write(journal, 94, 5, START + HOUR)
    told = "kept, as they have rows of which fewer records were read now: 2026-11-21T17 (has 72, read 33)\n"
    assert run() == ({17: 72, 18: 5}, f"{told}77 records, 0 missing: {out}/report.html\n")
    page = (out / "report.html").read_text(encoding="utf-8")
    assert '<td>2026-11-21 17:00:00</td><td class="number">72</td><td class="number">33</td>' in page
    # More in all, but not of each window.
    write(journal, 99, 40, START + 37 * 60_000_000)
    records = read_records(spark, str(journal))
    written = Tables(spark, str(out), 5).write(records, gaps(sequences(records)))
    assert written is not None
    assert [tuple(row) for row in written.kept] == [(START, 72, 73)]
    assert run("--overwrite-fewer") == ({17: 73, 18: 5}, f"78 records, 0 missing: {out}/report.html\n")


def test_an_hour_of_which_one_exchange_has_less_is_kept(spark: SparkSession, tmp_path: Path) -> None:
    """Though as many records of another exchange have come to the same window."""
    tables = Tables(spark, str(tmp_path / "out"), 5)
    for exchange, first in (("orders", 1), ("bills", 11)):
        journal = tmp_path / exchange
        write_journal(journal, published(KNOWN, [b"key"] * 10, exchange=exchange, first=first), [KNOWN])
        records = read_records(spark, str(journal))
        written = tables.write(records, gaps(sequences(records)))
    assert written is not None
    assert [tuple(row) for row in written.kept] == [(START, 10, 10)]
    assert [row.exchange for row in content(tables)[0]] == ["orders"]


@pytest.mark.long
def test_a_file_that_is_there_twice_ends_its_batch_and_no_later_one(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    journal, out = tmp_path / "journal", tmp_path / "out"
    run = ["usage", "--journal", str(journal), "--out", str(out), "--stream"]
    looked: list[list[int]] = []
    check_once = pipeline.data.gaps.check_once

    def noted(rows: DataFrame, where: str) -> None:
        looked.append(sorted(row["first"] for row in rows.collect()))
        check_once(rows, where)

    monkeypatch.setattr(pipeline.data.gaps, "check_once", noted)
    write(journal, 1, 10, START)
    assert main(run) == 0
    (file,) = journal.rglob("*.gz")
    copy = file.with_name("copy.jsonl.gz")
    shutil.copy(file, copy)
    assert main(run) == 2
    assert f"records {PROXY}-1 to {PROXY}-10 are in " in capsys.readouterr().err
    copy.unlink()
    write(journal, 11, 10, START + HOUR // 2)
    assert main(run) == 0
    # Without what ends before the batch's own numbers.
    assert looked[0] == [1]
    assert looked[-1] == [11]
    usage, missing = content(Tables(spark, str(out), 5))
    assert (sum(row.messages for row in usage), missing) == (20, [])


@pytest.mark.parametrize("more", [[], ["--stream"]])
def test_a_table_of_an_earlier_release_is_told(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    write(tmp_path / "journal", 1, 2, START)
    columns = "timestamp'2026-11-21 17:00:00' AS window", "'/' AS vhost", "'2026-11-21' AS dt", "17 AS hour"
    earlier = tmp_path / "out" / "usage"
    spark.range(1).selectExpr(*columns).write.partitionBy("dt", "hour").parquet(str(earlier))
    before = sorted((tmp_path / "out").rglob("*"))
    assert main(["usage", "--journal", str(tmp_path / "journal"), "--out", str(tmp_path / "out"), *more]) == 2
    said = capsys.readouterr().err
    assert f"--out: {tmp_path}/out: its table usage has no column 'exchange', as an earlier release wrote it" in said
    assert sorted((tmp_path / "out").rglob("*")) == before


@pytest.mark.long
def test_a_stream_ends_at_a_file_that_is_there_twice(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal, out = tmp_path / "journal", tmp_path / "out"
    write(journal, 1, 10, START)
    said = ["usage", "--journal", str(journal), "--out", str(out), "--stream"]
    assert main(said) == 0
    (file,) = journal.rglob("*.gz")
    shutil.copy(file, file.with_name("a-copy.jsonl.gz"))
    assert main(said) == 2
    told = capsys.readouterr().err
    assert f"pipeline usage: {out}: records {PROXY}-1 to {PROXY}-10 are in " in told
    assert "a-copy.jsonl.gz" in told
    assert sum(row.messages for row in spark.read.parquet(str(out / "usage")).collect()) == 10


@pytest.mark.long
def test_a_batch_without_records_adds_nothing(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, 1, 20, START)
    records = read_records(spark, str(tmp_path))
    tables, whole = Tables(spark, str(tmp_path / "added"), 5), Tables(spark, str(tmp_path / "whole"), 5)
    # As where a stream queue has only a ring so far.
    tables.add(records.where("false"), 0)
    assert tables.usage() is None
    tables.add(records, 1)
    tables.add(records.where("false"), 2)
    whole.write(records, gaps(sequences(records)))
    assert content(tables) == content(whole)


def test_a_journal_without_records_is_told(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "records").mkdir()
    said = ["usage", "--journal", str(tmp_path), "--out", str(tmp_path / "out")]
    assert main(said) == 3
    assert capsys.readouterr().err == f"pipeline usage: {tmp_path}: no record\n"
    assert main([*said, "--stream"]) == 3
    assert capsys.readouterr().out == "no records\n"
