"""`land`: a journal becomes a table, each record once, whatever happens to the runs that make it."""

import errno
import gzip
import json
import os
import shutil
import time
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.sql import SparkSession

from pipeline import PipelineError
from pipeline.__main__ import main
from pipeline.data import files as data_files
from pipeline.data import landed
from pipeline.data.folder import Folder
from pipeline.data.journal import read_records, read_rings, set_aside
from pipeline.data.landed import KEPT, Aside, Batch, Landed, Manifest, Source
from pipeline.data.period import Period
from pipeline.land import command, leftovers, sources
from pipeline.land.command import begin, land_journal
from pipeline.land.landing import Landing
from pipeline.land.lines import lines_of
from pipeline.land.merging import TOGETHER, merge
from tests.pipeline.records import PROXY, Record, line, published, ring_of, write_journal

KNOWN = ring_of({"orders.1": 1, "orders.2": 1})
HOUR = "dt=2026-11-21/hour=17"
NEXT = "dt=2026-11-21/hour=18"


class Died(BaseException):
    """A kill, which no handler catches."""


def told(count: int, **more: object) -> list[Record]:
    return published(KNOWN, [f"customer-{n}".encode() for n in range(count)], **more)  # type: ignore[arg-type]


def land(journal: Path, out: Path, *more: str) -> int:
    return main(["land", "--journal", str(journal), "--out", str(out), *more])


def quarantined(out: Path) -> list[dict[str, str]]:
    files = out.glob("quarantine/*/*.gz")
    return [json.loads(one) for file in files for one in gzip.decompress(file.read_bytes()).splitlines()]


def rows(spark: SparkSession, journal: Path, within: Period | None = None) -> list[tuple[object, ...]]:
    """The records, without the file, in order."""
    read = read_records(spark, str(journal), within or Period()).drop("file").orderBy("proxy", "seq").collect()
    return [tuple(bytes(value) if isinstance(value, bytearray) else value for value in row) for row in read]


def test_a_journal_and_its_table_have_the_same_records_rings_and_files(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal, out = tmp_path / "journal", tmp_path / "table"
    records = told(60, every=120_000_000) + told(30, proxy="00000000000000b2", every=60_000_000)
    records[3] = records[3] | {"message_id": None, "kind": None, "destination": None, "latency": None, "key": None}
    write_journal(journal, records, [KNOWN], per_file=20)
    assert land(journal, out) == 0
    assert capsys.readouterr().out == f"90 records: {out}\n"
    assert rows(spark, out) == rows(spark, journal)
    files = [{row.file for row in read_records(spark, str(path)).select("file").collect()} for path in (journal, out)]
    assert files[0] == files[1]
    assert read_rings(spark, str(out)) == read_rings(spark, str(journal)) == {KNOWN.fingerprint: KNOWN}
    assert {path.name for path in out.iterdir()} == {
        *("table.json", "verdict.json", "records", "rings", "hours", "landing", "leftovers"),
    }
    assert not any((out / "landing").iterdir())
    assert not any(path for path in (out / "leftovers").iterdir() if not path.name.startswith("."))

    assert land(journal, out) == 0
    assert capsys.readouterr().out == f"0 records: {out}\n"
    assert rows(spark, out) == rows(spark, journal)


def test_a_run_that_died_is_repeated_without_a_loss_or_a_copy(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, out = tmp_path / "journal", tmp_path / "table"
    write_journal(journal, told(40, every=120_000_000), [KNOWN], per_file=20)
    change = Landed.change

    # Two hours, so four changes: their records, and then their files. A run dies before each of them.
    for whole in range(4):
        left = whole

        def dying(table: Landed, *given: object) -> None:
            nonlocal left
            if not left:
                raise Died
            left -= 1
            change(table, *given)  # type: ignore[arg-type]

        with monkeypatch.context() as patched:
            patched.setattr(Landed, "change", dying)
            with pytest.raises(Died):
                land(journal, out)
        assert rows(spark, out) == (rows(spark, journal)[:30] if whole == 1 else rows(spark, journal) * (whole > 1))
    table = Landed(spark, str(out))
    assert land(journal, out) == 0
    assert rows(spark, out) == rows(spark, journal)
    assert leftovers.remove(table, Folder(spark, str(out))) == 0, "they may be a slow run's"
    assert leftovers.remove(table, Folder(spark, str(out)), 0) > 0
    assert sorted(map(str, out.glob("records/*/*/*"))) == sorted(table.folders())
    assert not any((out / "landing").iterdir())
    assert rows(spark, out) == rows(spark, journal)


def test_two_runs_at_once_land_each_record_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second one is as far as the first before either has made anything visible."""
    journal, out = tmp_path / "journal", tmp_path / "table"
    records = told(40)
    write_journal(journal, records[:20], [KNOWN])
    assert land(journal, out) == 0
    write_journal(journal, records[20:], [KNOWN])
    create, others = Folder.create, iter([True])

    def create_second(folder: Folder, name: str, text: str) -> bool:
        if name == "hours/dt=2026-11-21/17-000003.json" and next(others, False):
            assert land(journal, out) == 0
        return create(folder, name, text)

    monkeypatch.setattr(Folder, "create", create_second)
    capsys.readouterr()
    assert land(journal, out) == 0
    assert capsys.readouterr().out == f"20 records: {out}\n0 records, 20 copies left out: {out}\n"
    assert rows(spark, out) == rows(spark, journal)


def test_late_files_and_copies(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal, out = tmp_path / "journal", tmp_path / "table"
    records = told(50)
    (first,) = write_journal(journal, records[:20], [KNOWN])
    being_written = first.with_name(f".{PROXY}-000000000021.jsonl.gz")
    being_written.write_bytes(gzip.compress(b"".join(map(line, records[20:30])))[:-30])
    assert land(journal, out) == 0
    assert capsys.readouterr().out == f"20 records: {out}\n"

    # One record is twice in a file, others are there already, and in two new files.
    late = records[20:30] + records[25:26]
    being_written.write_bytes(gzip.compress(b"".join(map(line, late))))
    being_written.rename(first.with_name(being_written.name[1:]))
    copy = records[10:35]
    first.with_name(f"{PROXY}-000000000011.jsonl.gz").write_bytes(gzip.compress(b"".join(map(line, copy))))
    assert land(journal, out) == 0
    assert capsys.readouterr().out == f"15 records, 21 copies left out: {out}\n"
    assert [row[4] for row in rows(spark, out)] == list(range(1, 36))
    assert Landed(spark, str(out)).manifest(HOUR).sequences == {PROXY: [(1, 35)]}


BAD = {
    "not JSON": (b"yesterday", "a line that is no record"),
    "half a line": (line(told(1)[0])[:-20], "a line that is no record"),
    "an array": (b"[" + line(told(1)[0]).strip() + b"]", "a line that is no record"),
    "a newer version": (line(told(1)[0] | {"v": 2, "seq": "1"}), "schema version 2, known is 1"),
    "no version": (b"{}", "schema version none, known is 1"),
    "a field": (line(told(1)[0] | {"outcome": "weird"}), "field 'outcome' is weird, not one of confirmed, passed, "),
    "another's event": (line(told(1)[0] | {"event": "other"}), "field 'event' is other, not proxy-seq"),
}
"""A line, and why it is set aside."""


def test_bad_lines_are_set_aside_and_counted(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal, out = tmp_path / "journal", tmp_path / "table"
    (file,) = write_journal(journal, told(20), [KNOWN])
    good = gzip.decompress(file.read_bytes())
    file.write_bytes(gzip.compress(good + b"".join(bad.strip() + b"\n\n" for bad, _ in BAD.values())))
    assert land(journal, out) == 1
    said = f"20 records, {len(BAD)} lines and 0 files set aside in {out}/quarantine: {out}\n"
    assert capsys.readouterr().out == said
    assert len(rows(spark, out)) == 20
    kept = quarantined(out)
    assert sorted(one["line"] for one in kept) == sorted(bad.decode().strip() for bad, _ in BAD.values())
    reasons = {one["line"]: one["reason"] for one in kept}
    assert all(reasons[bad.decode().strip()].startswith(why) for bad, why in BAD.values())
    assert {one["file"] for one in kept} == {f"file:{file}"}
    assert set_aside(spark, str(out)) == Aside(len(BAD), 0)
    assert set_aside(spark, str(journal)) == Aside()
    assert land(journal, out) == 1, "they are set aside as before"
    assert capsys.readouterr().out == f"0 records: {out}\n"
    file.write_bytes(gzip.compress(good))
    assert land(journal, out) == 0
    assert set_aside(spark, str(out)) == Aside()
    file.write_bytes(gzip.compress(good + b"".join(bad.strip() + b"\n" for bad, _ in BAD.values())))

    again = tmp_path / "again"
    assert land(journal, again, "--skip-unreadable") == 0
    assert set_aside(spark, str(again)) == Aside(len(BAD), 0)
    assert str(Aside(1, 1)) == "1 line and 1 file set aside"


def test_a_truncated_file_is_set_aside_until_it_is_whole(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal, out = tmp_path / "journal", tmp_path / "table"
    records = told(3000)
    _, second = write_journal(journal, records, [KNOWN], per_file=1500)
    whole = second.read_bytes()
    second.write_bytes(whole[:-2000])
    assert land(journal, out) == 1
    assert capsys.readouterr().out == f"1,500 records, 0 lines and 1 files set aside in {out}/quarantine: {out}\n"
    (kept,) = quarantined(out)
    assert kept == {"file": f"{HOUR}/{second.name}", "reason": "truncated"}
    assert set_aside(spark, str(out)) == Aside(0, 1)
    assert land(journal, out) == 1
    assert len(quarantined(out)) == 1, "it is not read again"

    second.write_bytes(whole[:5000] + b"\xff" * 10 + whole[5010:])
    assert land(journal, out) == 1
    # The size stays the same now.
    second.write_bytes(whole)
    assert land(journal, out) == 0
    assert set_aside(spark, str(out)) == Aside()
    assert rows(spark, out) == rows(spark, journal)
    second.with_name(f"{PROXY}-000000003001.jsonl.gz").write_bytes(gzip.compress(b""))
    assert land(journal, out) == 0, "a file without a line"


def test_only_the_hours_of_a_period_are_landed_and_read(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal, out = tmp_path / "journal", tmp_path / "table"
    write_journal(journal, told(60, every=120_000_000), [KNOWN])
    assert land(journal, out, "--from", "2026-11-21T18", "--until", "2026-11-21T19") == 0
    assert {path.parent.name for path in out.glob("records/*/*/*")} == {"hour=18"}
    assert land(journal, out) == 0
    assert rows(spark, out) == rows(spark, journal)
    at_18 = Period(*(datetime.fromisoformat(f"2026-11-21T{hour}:00+00:00") for hour in (18, 19)))
    assert [path.rpartition("/batch=")[0] for path in Landed(spark, str(out)).folders(at_18)] == [
        f"{out}/records/{NEXT}"
    ]
    assert rows(spark, out, at_18) == rows(spark, journal, at_18) != []

    capsys.readouterr()
    assert land(journal, tmp_path / "other", "--from", "2026-11-22") == 3
    assert capsys.readouterr().err == (f"pipeline land: {journal}: no file of records from 2026-11-22 00:00:00 UTC\n")
    assert main(["skew", "--journal", str(out), "--from", "2026-11-22", "--out", str(tmp_path / "skew")]) == 3
    assert capsys.readouterr().err == f"pipeline skew: {out}: no record from 2026-11-22 00:00:00 UTC\n"


def test_small_batches_are_merged_and_readers_go_on(spark: SparkSession, tmp_path: Path) -> None:
    journal, out = tmp_path / "journal", tmp_path / "table"
    files = write_journal(journal, told(TOGETHER * 3), [KNOWN], per_file=3)
    folder, table = Folder(spark, str(out)), Landed(spark, str(out))
    begin(folder, table)
    for file in files[:-1]:
        Landing(table, folder).land(lines_of(spark, [str(file)]))
        assert merge(table, folder, HOUR) == 0
    Landing(table, folder).land(lines_of(spark, [str(files[-1])]))
    earlier = table.folders()
    reading = table.records(earlier)
    assert len(earlier) == TOGETHER
    assert merge(table, folder, HOUR) == TOGETHER
    (batch,) = table.manifest(HOUR).batches
    assert (batch.records, batch.level) == (TOGETHER * 3, 1)
    assert len(list(out.glob(f"records/{HOUR}/batch={batch.id}/*.parquet"))) == 1
    assert reading.count() == len(rows(spark, out)) == TOGETHER * 3
    assert leftovers.remove(table, folder) == 0
    assert leftovers.remove(table, folder, 0) == TOGETHER
    assert rows(spark, out) == rows(spark, journal)
    assert merge(table, folder, HOUR) == 0
    assert land_journal(spark, str(journal), table, folder, Period()) is not None
    assert rows(spark, out) == rows(spark, journal)


def test_what_cannot_be_a_table_is_told(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = tmp_path / "journal"
    write_journal(journal, told(3), [KNOWN])

    def refused(*given: str) -> str:
        capsys.readouterr()
        assert main(["land", *given]) == 2
        return capsys.readouterr().err.removeprefix("pipeline land: ").strip()

    of = ("--journal", str(journal))
    assert refused(*of, "--out", str(journal)) == (
        f"--out: {journal}: it has records, and is no landed table: give a new folder"
    )
    (tmp_path / "file").touch()
    assert refused(*of, "--out", str(tmp_path / "file" / "x")).startswith(f"--out: {tmp_path}/file/x: ")
    assert refused("--out", "x") == "give either --journal, or --amqp-url and --queue: where the records are"
    assert refused(*of, "--out", "x", "--every", "0") == "--every: 0 is less than 1"
    queue = ("--amqp-url", "amqp://u:p@127.0.0.1:1/", "--queue", "journal")
    assert refused(*queue, "--out", "x", "--from", "2026-11-21") == "--from, --until and --day need --journal"
    assert "no journal: there is no folder" in refused("--journal", str(tmp_path), "--out", str(tmp_path / "x"))
    newer = tmp_path / "newer"
    newer.mkdir()
    (newer / "table.json").write_text('{"v": 2}')
    said = f"{newer}/table.json: version 2 of a landed table, known is 1: use a newer release"
    assert refused(*of, "--out", str(newer)) == said
    with pytest.raises(PipelineError, match="version 2 of a landed table"):
        read_records(spark, str(newer))
    (tmp_path / "table.json").write_text('{"v": 1}')
    assert main(["usage", "--stream", "--journal", str(tmp_path), "--out", str(tmp_path / "usage")]) == 2
    assert "--stream reads a journal, not a landed table" in capsys.readouterr().err


def test_a_file_is_created_once(spark: SparkSession, tmp_path: Path) -> None:
    folder = Folder(spark, str(tmp_path))
    assert folder.create("hours/1.json", "first")
    assert not folder.create("hours/1.json", "second")
    assert (tmp_path / "hours" / "1.json").read_text() == "first"
    assert [path.name for path in (tmp_path / "hours").iterdir()] == ["1.json"]


def test_a_file_that_was_created_without_an_answer_is_created(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, link = Folder(spark, str(tmp_path)), os.link

    def repeated(source: str, target: str) -> None:
        link(source, target)
        link(source, target)  # As a network's file system does that has lost the first answer.

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", repeated)
        assert folder.create("1.json", "first")
    assert not folder.create("1.json", "second")
    assert [path.name for path in tmp_path.iterdir()] == ["1.json"]
    assert (tmp_path / "1.json").read_text() == "first"

    def without_links(source: str, target: str) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", without_links)
    with pytest.raises(PipelineError, match=r"^--out: .*/2\.json: cannot be linked: Operation not permitted$"):
        folder.create("2.json", "")
    assert [path.name for path in tmp_path.iterdir()] == ["1.json"]


def test_a_manifest_that_was_made_without_an_answer_keeps_its_batch(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    journal, out = tmp_path / "journal", tmp_path / "table"
    write_journal(journal, told(20), [KNOWN])
    create = Folder.create

    def without_answer(folder: Folder, name: str, text: str) -> bool:
        return create(folder, name, text) and not name.endswith("17-000001.json")

    monkeypatch.setattr(Folder, "create", without_answer)
    assert land(journal, out) == 0
    assert capsys.readouterr().out == f"20 records: {out}\n"
    assert rows(spark, out) == rows(spark, journal)


def test_only_the_manifests_of_the_files_hours_are_read(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, out = tmp_path / "journal", tmp_path / "table"
    files = write_journal(journal, told(40, every=120_000_000), [KNOWN])
    assert land(journal, out) == 0
    files[0].unlink()  # It has expired.
    read: list[str] = []

    def reading(spark: SparkSession, file: str) -> bytes:
        read.append(file)
        return data_files.content(spark, file)

    monkeypatch.setattr(landed, "content", reading)
    assert land(journal, out) == 0
    assert {name.rpartition("/")[2] for name in read} == {"table.json", "18-000002.json"}


def test_a_manifest_or_note_that_goes_before_it_is_read_is_no_error(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, table = Folder(spark, str(tmp_path)), Landed(spark, str(tmp_path))
    table.change(folder, HOUR, lambda old: old)
    hours = tmp_path / "hours" / "dt=2026-11-21"

    def late(spark: SparkSession, file: str) -> bytes:
        # Others have made newer ones meanwhile; then somebody has deleted the day.
        first = hours / "17-000001.json"
        if first.exists():
            first.rename(hours / "17-000002.json")
        elif hours.exists():
            shutil.rmtree(hours)
        return data_files.content(spark, file)

    monkeypatch.setattr(landed, "content", late)
    assert table.manifests().keys() == {HOUR}
    assert table.manifest(HOUR) == Manifest()

    leftovers.note(folder, "a", ["landing/a"])
    leftovers.note(folder, "b", ["landing/b"])
    (tmp_path / "landing" / "a").mkdir(parents=True)
    (tmp_path / "landing" / "b").mkdir()

    def done(spark: SparkSession, file: str) -> bytes:
        (tmp_path / "leftovers" / "b.json").unlink(missing_ok=True)
        return data_files.content(spark, file)

    monkeypatch.setattr(leftovers, "content", done)
    assert leftovers.remove(table, folder, 0) == 1
    assert [path.name for path in (tmp_path / "landing").iterdir()] == ["b"]


def test_leftovers_are_removed_once_an_hour(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, out = tmp_path / "journal", tmp_path / "table"
    write_journal(journal, told(3), [KNOWN])
    now, removed = 10.0, []

    def slept(seconds: float) -> None:
        nonlocal now
        now += seconds
        if now > 5000:
            raise Died

    monkeypatch.setattr(leftovers, "remove", lambda *_: removed.append(now))
    monkeypatch.setattr(leftovers, "time", SimpleNamespace(monotonic=lambda: now, time=time.time))
    monkeypatch.setattr(command, "time", SimpleNamespace(sleep=slept))
    with pytest.raises(Died):
        land(journal, out, "--every", "1500")
    assert removed == [10, 4510]


def test_lines_of_files_without_an_hour_count_in_every_period(spark: SparkSession, tmp_path: Path) -> None:
    journal, out = tmp_path / "journal", tmp_path / "table"
    (file,) = write_journal(journal, told(3), [KNOWN])
    file.write_bytes(file.read_bytes() + gzip.compress(b"no record\n"))
    file.rename(journal / "records" / file.name)
    assert land(journal, out) == 1
    at_17 = Period(*(datetime.fromisoformat(f"2026-11-21T{hour}:00+00:00") for hour in (17, 18)))
    assert set_aside(spark, str(out), at_17) == set_aside(spark, str(out)) == Aside(1, 0)
    assert land(journal, out) == 1


def test_a_bad_ring_is_set_aside_until_it_is_good(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal, out = tmp_path / "journal", tmp_path / "table"
    write_journal(journal, told(3), [KNOWN])
    ring = journal / "rings" / f"{KNOWN.fingerprint}.json"
    good = ring.read_text()
    ring.write_text("{")
    assert land(journal, out) == 1
    assert capsys.readouterr().out == f"3 records, 0 lines and 1 files set aside in {out}/quarantine: {out}\n"
    assert land(journal, out) == 1
    (kept,) = quarantined(out)
    assert kept["file"] == f"rings/{ring.name}"
    assert "not JSON" in kept["reason"]
    ring.write_text(good)
    assert land(journal, out) == 0
    assert read_rings(spark, str(out)) == {KNOWN.fingerprint: KNOWN}


def test_others_than_the_owner_may_not_enter_the_table(spark: SparkSession, tmp_path: Path) -> None:
    journal, out = tmp_path / "journal", tmp_path / "table"
    (file,) = write_journal(journal, told(3), [KNOWN])
    file.write_bytes(b"no gzip")
    assert land(journal, out) == 1
    assert [path.stat().st_mode & 0o777 for path in (out, out / "quarantine")] == [0o700, 0o700]


def test_old_manifests_are_removed_and_a_column_that_comes_later_is_null(spark: SparkSession, tmp_path: Path) -> None:
    folder, table = Folder(spark, str(tmp_path)), Landed(spark, str(tmp_path))
    begin(folder, table)
    for n in range(KEPT + 3):
        table.change(folder, HOUR, lambda old, n=n: Manifest(old.number, unreadable=n))  # type: ignore[misc]

    def slow(old: Manifest) -> Manifest:
        for _ in range(KEPT + 2):
            table.change(folder, NEXT, lambda old: old)
        return old

    # Its number is free again, since the file that had it was deleted.
    with pytest.raises(PipelineError, match="other runs changed dt=2026-11-21/hour=18 20 times meanwhile"):
        table.change(folder, NEXT, slow)
    for path in (tmp_path / "hours" / "dt=2026-11-21").glob("18-*"):
        path.unlink()
    names = sorted(path.name for path in (tmp_path / "hours" / "dt=2026-11-21").iterdir())
    assert names == [f"17-{n:06}.json" for n in range(4, KEPT + 4)]
    assert table.manifest(HOUR) == Manifest(KEPT + 3, unreadable=KEPT + 2)
    # Written before there were message ids.
    older = spark.createDataFrame([(1,)], "seq long")
    older.write.parquet(table.folder(NEXT, "older"))
    table.change(folder, NEXT, lambda old: Manifest(old.number, (Batch("older", 1),)))
    (row,) = table.records(table.folders()).select("seq", "message_id").collect()
    assert (row.seq, row.message_id) == (1, None)

    (tmp_path / "hours" / "dt=2026-11-21" / "17-000099.json").write_text("{")
    with pytest.raises(PipelineError, match=r"17-000099\.json: no manifest of a landed table: "):
        table.manifest(HOUR)


def test_files_come_in_portions_and_a_newer_release_reads_again_what_was_newer() -> None:
    files = [sources.File(f"/j/records/{n}", f"{n}", 3 << 30, 0) for n in range(3)]
    assert list(sources.portions(files)) == [[file] for file in files]
    assert list(sources.portions(files[:0])) == []
    assert files[0].hour == "dt=1970-01-01/hour=00"
    assert sources.File("", f"{HOUR}/x.jsonl.gz", 1, 0).hour == HOUR
    assert sources.name_of("file:///a%20b/records/dt=1/c.gz") == "dt=1/c.gz"
    assert Source(1, 5).is_same(1, 6), "a copy without its time"
    assert not Source(1, 5).is_same(2, 5)
    assert not Source(1, 5, unreadable=1, v=0).is_same(1, 5)
    assert Source(1, 5, v=0).is_same(1, 5)
    for broken in (Source(1, 5, unreadable=1), Source(1, 5, reason="truncated")):
        assert broken.is_same(1, 5)
        assert not broken.is_same(1, 6)


def test_a_broken_gzip_file_is_told() -> None:
    packed = gzip.compress(b"x" * 10_000)
    assert sources.fault(packed + packed) is None
    assert sources.fault(packed[:-9]) == "truncated"
    assert sources.fault(b"no gzip") == "broken gzip: Not a gzipped file (b'no')"
    assert (sources.fault(packed[:15] + b"\xff" + packed[16:]) or "").startswith("broken gzip: ")
