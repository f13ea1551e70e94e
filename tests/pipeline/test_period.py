"""`--from` and `--until`: folders beyond them are not opened, and only what is between them counts."""

import argparse
import json
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipeline import PipelineError
from pipeline.__main__ import main
from pipeline.data.journal import read_records
from pipeline.data.period import ALWAYS, Period, add_arguments, period_of
from tests.pipeline.records import START, published, ring_of, write_journal

RING = ring_of({"orders.1": 1, "orders.2": 1})
KEYS = [f"customer-{n}".encode() for n in range(60)]
MINUTE = 60_000_000


def period(*arguments: str) -> Period:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return period_of(parser.parse_args(arguments))


def journal(folder: Path) -> Path:
    """60 records, one every three minutes from 17:00 to 19:57."""
    write_journal(folder, published(RING, KEYS, every=3 * MINUTE), [RING])
    return folder


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), range(1, 61)),
        (("--from", "2026-11-21T18"), range(21, 61)),
        (("--until", "2026-11-21T19"), range(1, 41)),
        (("--from", "2026-11-21T17:57", "--until", "2026-11-21T18:00:00.000001"), range(20, 22)),
        (("--from", "2026-11-21T19:30+01:00", "--until", "2026-11-21T18:33Z"), range(31, 32)),
        (("--from", "2026-11-22"), range(0)),
    ],
)
def test_what_is_between_them_is_read(
    spark: SparkSession, tmp_path: Path, arguments: tuple[str, ...], expected: range
) -> None:
    records = read_records(spark, str(journal(tmp_path)), period(*arguments))
    assert [row.seq for row in records.select("seq").orderBy("seq").collect()] == list(expected)


def test_what_is_beyond_them_is_not_opened(spark: SparkSession, tmp_path: Path) -> None:
    for hour in (17, 19):
        (file,) = (journal(tmp_path) / "records" / "dt=2026-11-21" / f"hour={hour}").iterdir()
        file.write_bytes(b"no gzip")
        read = read_records(spark, str(tmp_path), period("--from", "2026-11-21T18", "--until", "2026-11-21T19"))
        assert read.count() == 20


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--from", "2026-11-21T18", "--until", "2026-11-21T19"), {"dt=2026-11-21/hour=18"}),
        (("--from", "2026-11-21T19:59:59", "--until", "2026-11-21T20:00:00.000001"), {"dt=2026-11-21/hour=19"}),
        (("--until", "2026-11-21T18"), {"dt=2026-11-20/hour=9", "dt=2026-11-21/hour=17"}),
        (("--from", "2026-11-21T19"), {"dt=2026-11-21/hour=19", "dt=2026-11-22/hour=00"}),
        (("--from", "2026-11-20", "--until", "2026-11-21"), {"dt=2026-11-20/hour=9"}),
        (("--from", "2026-11-23"), set()),
    ],
)
def test_only_the_folders_of_its_hours_are_listed(
    spark: SparkSession, tmp_path: Path, arguments: tuple[str, ...], expected: set[str]
) -> None:
    """A DataFrame's `inputFiles` tells what Spark has listed, also of folders that a filter leaves out."""
    records = journal(tmp_path) / "records"
    # As `collect` writes them: hours without a zero, and a folder for each batch.
    for name in ("dt=2026-11-20/hour=9/batch=3", "dt=2026-11-22/hour=00"):
        (records / name).mkdir(parents=True)
        (records / name / "1.json.gz").write_bytes(b"")
    for name in (".unfinished", "_temporary"):
        (records / "dt=2026-11-21" / name).mkdir()
    listed = [Path(file) for file in read_records(spark, str(tmp_path), period(*arguments)).inputFiles()]
    assert {"/".join(file.parts[file.parts.index("records") + 1 :][:2]) for file in listed} == expected
    assert len(listed) == len(expected)


def test_files_beside_the_folders_by_hour_are_read_too(spark: SparkSession, tmp_path: Path) -> None:
    folder = journal(tmp_path) / "records"
    for name, hour in (("data", 17), ("dtx", 18), ("dt=today", 19)):
        (file,) = (folder / "dt=2026-11-21" / f"hour={hour}").iterdir()
        (folder / name).mkdir()
        file.rename(folder / name / file.name)
    write_journal(tmp_path, published(RING, KEYS[:1], first=61, start=START + 60 * MINUTE), [RING])
    within = period("--from", "2026-11-21T18", "--until", "2026-11-21T19:30")
    found = read_records(spark, str(tmp_path), within).select("seq").orderBy("seq").collect()
    assert [row.seq for row in found] == [*range(21, 51), 61]
    assert read_records(spark, str(tmp_path)).count() == 61


def test_of_a_journal_without_folders_by_hour_all_is_read(spark: SparkSession, tmp_path: Path) -> None:
    for n, file in enumerate(sorted((journal(tmp_path) / "records").rglob("*.gz"))):
        folder = tmp_path / "records" / ("", "d", "dt")[n % 3]
        folder.mkdir(exist_ok=True)
        file.rename(folder / file.name)
    within = period("--from", "2026-11-21T18", "--until", "2026-11-21T19")
    assert read_records(spark, str(tmp_path), within).count() == 20


def test_what_is_no_time_or_none_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("yesterday", "17:00", "1969-12-31"):
        with pytest.raises(SystemExit):
            period("--from", text)
        assert f"{text!r} is no" in capsys.readouterr().err
    with pytest.raises(PipelineError, match="--until: 2026-11-21 17:00:00 is not after --from"):
        period("--from", "2026-11-21T17", "--until", "2026-11-21T17")
    assert period() == ALWAYS == period().wider(timedelta(hours=1))
    told = period("--from", "2026-11-21T17", "--until", "9999-12-31T23:30").wider(timedelta(hours=1))
    assert str(told) == "from 2026-11-21 16:00:00 until 9999-12-31 23:59:59.999999 UTC"
    assert str(period("--until", "2026-11-21T17:30")) == "until 2026-11-21 17:30:00 UTC"


@pytest.mark.long
def test_numbers_before_the_first_are_no_gap(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = published(RING, KEYS, every=3 * MINUTE)
    del records[24:27], records[10:12]
    write_journal(tmp_path, records, [RING])

    def said(job: str, *limits: str) -> str:
        assert main([job, "--journal", str(tmp_path), "--out", str(tmp_path / job), *limits]) == 0
        return capsys.readouterr().out

    until = ("--until", "2026-11-21T20")
    assert "37 records, 3 missing: " in said("usage", "--from", "2026-11-21T18", *until)
    (row,) = spark.read.parquet(str(tmp_path / "usage" / "gaps")).collect()
    assert (row["first"], row["last"]) == (25, 27)
    assert "\n3 records missing: " in said("skew", "--from", "2026-11-21T18", *until)
    page = (tmp_path / "skew" / "report.html").read_text(encoding="utf-8")
    assert "<dt>Period asked for</dt><dd>from 2026-11-21 18:00:00 until 2026-11-21 20:00:00 UTC</dd>" in page
    assert "55 records, 5 missing: " in said("usage", *until)
    assert "\n5 records missing: " in said("skew", *until)


def test_usage_takes_whole_hours_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its table is overwritten by the hour: half of one would take the place of the whole."""
    of = ("usage", "--journal", str(journal(tmp_path)), "--out", str(tmp_path / "out"))
    for more, said in (
        (
            ("--from", "2026-11-21T17:30"),
            "must be whole hours, since OUT/usage is by the hour, not from 2026-11-21 17:30:00 UTC\n",
        ),
        (("--until", "2026-11-21T17", "--stream"), "cannot be used with --stream\n"),
    ):
        assert main([*of, *more]) == 2
        assert capsys.readouterr().err == f"pipeline usage: --from and --until {said}"


@pytest.mark.parametrize("job", ["usage", pytest.param("skew", marks=pytest.mark.long)])
def test_a_time_without_records_is_told_and_no_table_is_written(
    spark: SparkSession, tmp_path: Path, job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    of = (job, "--journal", str(journal(tmp_path)), "--out", str(tmp_path / "out"))
    assert main([*of, "--from", "2026-11-22"]) == 3
    assert f"pipeline {job}: {tmp_path}: no record from 2026-11-22 00:00:00 UTC\n" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["verdict.json"]
    told = json.loads((tmp_path / "out" / "verdict.json").read_text())
    assert (told["job"], told["status"], told["findings"], told["figures"]) == (job, 3, [], {"records": 0})


@pytest.mark.parametrize("job", [pytest.param("usage", marks=pytest.mark.long), "skew"])
def test_a_journal_without_a_record_is_told_and_no_table_is_written(
    spark: SparkSession, tmp_path: Path, job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty" / "records").mkdir(parents=True)
    assert main([job, "--journal", str(tmp_path / "empty"), "--out", str(tmp_path / "out")]) == 3
    assert f"pipeline {job}: {tmp_path}/empty: no record\n" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["verdict.json"]
    told = json.loads((tmp_path / "out" / "verdict.json").read_text())
    assert (told["job"], told["status"], told["findings"], told["figures"]) == (job, 3, [], {"records": 0})


@pytest.mark.long
def test_the_page_of_usage_is_of_the_time_that_was_read(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = published(RING, KEYS, every=3 * MINUTE)
    del records[24:27]
    write_journal(tmp_path, records, [RING])

    def page(*limits: str) -> str:
        assert main(["usage", "--journal", str(tmp_path), "--out", str(tmp_path / "out"), *limits]) == 0
        return (tmp_path / "out" / "report.html").read_text(encoding="utf-8")

    first = page("--from", "2026-11-21T18")
    assert "3 records are missing among records from 2026-11-21 18:00:00 UTC." in first
    assert capsys.readouterr().out.startswith("37 records, 3 missing: ")
    # The table's files of other hours are not even opened.
    (file,) = (tmp_path / "out" / "usage" / "dt=2026-11-21" / "hour=18").glob("*.parquet")
    content = file.read_bytes()
    file.write_bytes(b"no Parquet")
    second = page("--from", "2026-11-21T19", "--until", "2026-11-21T20")
    time = "from 2026-11-21 19:00:00 until 2026-11-21 20:00:00 UTC"
    assert "20 messages from 2026-11-21 19:00 UTC on" in second
    assert f"No record is missing among records {time}." in second
    assert "from its first to its last in that time" in second
    assert capsys.readouterr().out.startswith("20 records, 0 missing: ")
    file.with_name(f".{file.name}.crc").unlink()
    file.write_bytes(content)
    assert "from its oldest kept to its last" in page("--until", "2026-11-21T18")
    assert sum(row.messages for row in spark.read.parquet(str(tmp_path / "out" / "usage")).collect()) == 57


@pytest.mark.long
def test_whatif_is_of_the_demand_in_between(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of = ("whatif", "--journal", str(journal(tmp_path)), "--vhost", "/", "--exchange", "orders", "--out")
    edit = (str(tmp_path / "out"), "--remove", "queue:orders.2")
    assert main([*of, *edit, "--from", "2026-11-21T18:30", "--until", "2026-11-21T19"]) == 0
    told = json.loads((tmp_path / "out" / "verdict.json").read_text())
    assert (told["messages"], told["from"], told["until"]) == (
        10,
        "2026-11-21T18:30:00+00:00",
        "2026-11-21T19:00:00+00:00",
    )
    assert main([*of, *edit, "--from", "2026-11-22"]) == 3
    assert "no record of exchange 'orders' of virtual host '/' from 2026-11-22" in capsys.readouterr().err
    assert main(["whatif", "--table", "t.csv", "--out", *edit, "--until", "2026-11-22"]) == 2
    assert "--from, --until and --day need --journal" in capsys.readouterr().err


@pytest.mark.long
def test_yesterday_is_reconciled_while_the_journal_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    """A message of today is not lost for lack of yesterday's table, nor unexpected for having been before."""
    records = published(RING, KEYS, every=3 * MINUTE)
    ids = [record["message_id"] for record in records]
    write_journal(tmp_path / "journal", records, [RING])
    # All was seen a minute later, but: 17:57 only at 18:01, 18:57 only at 19:01; and of what came after 18:57 only
    # 19:00's, at 18:56: its confirm took that long.
    seen = [
        (r["message_id"], r["destination"], r["time"] + MINUTE * (4 if n in (19, 39) else 1))
        for n, r in enumerate(records[:40])
    ]
    del seen[30]
    seen.append((ids[40], records[40]["destination"], START + 116 * MINUTE))
    seen += [("stray", "orders.1", START + 80 * MINUTE), ("stray later", "orders.1", START + 125 * MINUTE)]
    spark.createDataFrame(seen, "message_id string, queue string, time long").write.parquet(str(tmp_path / "s.parquet"))

    def flawed(*limits: str) -> dict[str, set[str]]:
        out = ("--seen", str(tmp_path / "s.parquet"), "--out", str(tmp_path / "out"))
        assert main(["reconcile", "--journal", str(tmp_path / "journal"), "--vhost", "/", *out, *limits]) == 1
        rows = spark.read.parquet(str(tmp_path / "out" / "messages")).collect()
        names = ("lost", "unexpected", "undetermined", "wrong_queue", "duplicated", "out_of_order", "unconfirmed")
        told = {row.message_id: {name for name in names if row[name]} for row in rows}
        return {message: flaws for message, flaws in told.items() if flaws}

    assert set(flawed()) == {"stray", "stray later", ids[30], *ids[41:]}
    assert flawed("--until", "2026-11-21T19") == {"stray": {"unexpected"}, ids[30]: {"lost"}}
    # 17:57's was seen in this time, and has its record shortly before.
    assert flawed("--from", "2026-11-21T18", "--until", "2026-11-21T19") == {
        "stray": {"undetermined"},
        ids[30]: {"lost"},
    }
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "A message that was seen at another time counts if it has such a" in page


@pytest.mark.parametrize(
    ("limits", "blue_green"),
    [
        (("--until", "2026-11-21T18"), False),
        pytest.param(("--until", "2026-11-21T18"), True, marks=pytest.mark.long),
        pytest.param(("--from", "2026-11-21T21"), True, marks=pytest.mark.long),
        pytest.param((), False, marks=pytest.mark.long),
    ],
)
def test_a_message_seen_in_a_queue_that_was_bound_at_another_time_is_in_the_wrong_queue(
    spark: SparkSession, tmp_path: Path, limits: tuple[str, ...], blue_green: bool
) -> None:
    """The ring changes at 20:00, when one queue is bound, or all are others: hours after, or before, the period."""
    later = ring_of({"green.1": 1, "green.2": 1} if blue_green else {"orders.1": 1, "orders.2": 1, "green.1": 1})
    old = published(RING, KEYS[:9])
    new = published(later, KEYS[:9], first=10, start=START + 4 * 60 * MINUTE)
    # Another exchange's message with the same id: in a queue that the first one's rings never have.
    invoices = ring_of({"invoices.1": 1})
    other = published(invoices, KEYS[:1], exchange="invoices", proxy="b" * 16, start=START + 5 * 60 * MINUTE)
    judged, away = (new, "orders.2") if "--from" in limits else (old, "green.1")
    (moved, lost), rest = judged[:2], [*judged[2:], *(new if judged is old else old)]
    other[0]["message_id"] = lost["message_id"]
    write_journal(tmp_path / "journal", [*old, *new, *other], [RING, later, invoices])
    seen = [(r["message_id"], r["destination"], r["time"] + MINUTE) for r in [*rest, *other]]
    seen.append((moved["message_id"], away, moved["time"] + 300 * MINUTE))
    table = str(tmp_path / "seen.parquet")
    spark.createDataFrame(seen, "message_id string, queue string, time long").write.parquet(table)
    of = ("--journal", str(tmp_path / "journal"), "--vhost", "/", "--exchange", "orders", "--seen", table)
    assert main(["reconcile", *of, "--out", str(tmp_path / "out"), *limits]) == 1
    rows = {row.message_id: row for row in spark.read.parquet(str(tmp_path / "out" / "messages")).collect()}
    assert (rows[moved["message_id"]].wrong_queue, rows[moved["message_id"]].lost) == (True, 0)
    assert (rows[lost["message_id"]].lost, rows[lost["message_id"]].copies_elsewhere) == (1, 1)
    told = json.loads((tmp_path / "out" / "verdict.json").read_text())
    assert (told["wrong_queue"], told["lost"], told["lost_elsewhere"]) == (1, 1, 1)
