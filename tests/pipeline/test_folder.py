"""`--out` as a URL: tables, report and verdict go where Spark writes, or the job says that it cannot."""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipeline import PipelineError
from pipeline.__main__ import main
from pipeline.data.folder import Folder
from tests.pipeline.records import published, ring_of, write_journal

KNOWN = ring_of({"orders.1": 1, "orders.2": 1})
TABLES = {
    "usage": {"usage", "gaps"},
    "skew": {"rings", "destinations", "keys"},
    "whatif": {"load", "moved", "advised.json"},
    "reconcile": {"messages", "summary"},
}


def arguments(job: str, folder: Path) -> list[str]:
    """Return the arguments of a job on a journal in that folder."""
    records = published(KNOWN, [f"customer-{n}".encode() for n in range(50)])
    write_journal(folder / "journal", records, [KNOWN])
    seen = ["message_id,queue,time", *(f"{r['message_id']},{r['destination']},{r['time'] + 1}" for r in records)]
    (folder / "seen.csv").write_text("\n".join(seen))
    more = {
        "whatif": ["--vhost", "/", "--exchange", "orders", "--remove", "queue:orders.2"],
        "reconcile": ["--vhost", "/", "--seen", str(folder / "seen.csv")],
    }
    return [job, "--journal", str(folder / "journal"), *more.get(job, [])]


@pytest.mark.long
@pytest.mark.parametrize("job", TABLES)
def test_a_url_gets_all_of_it(
    spark: SparkSession, tmp_path: Path, job: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # A path that is made of the URL would be below this.
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    out, url = tmp_path / "out", (tmp_path / "out").as_uri()
    assert url.startswith("file:///")
    assert main([*arguments(job, tmp_path), "--out", url]) == 0
    assert {path.name for path in out.iterdir()} == TABLES[job] | {"report.html", "verdict.json"}
    assert (out / "report.html").read_text(encoding="utf-8").endswith("</html>\n")
    told = json.loads((out / "verdict.json").read_text())
    assert (told["v"], told["job"], told["status"]) == (1, job, 0)
    assert {*told["paths"].values()} == TABLES[job] | {"report.html"}
    assert f"{url}/report.html" in capsys.readouterr().out
    assert not list((tmp_path / "here").iterdir())


@pytest.mark.parametrize("job", TABLES)
def test_a_url_that_spark_has_nothing_for_is_refused(
    spark: SparkSession, tmp_path: Path, job: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert main([*arguments(job, tmp_path), "--out", "s3://bucket/out"]) == 2
    (told,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("pipeline ")]
    why = 'UnsupportedFileSystemException: No FileSystem for scheme "s3"'
    assert told == f"pipeline {job}: --out: s3://bucket/out: {why}"
    assert not list((tmp_path / "here").iterdir())


def test_what_is_no_path_is_refused(spark: SparkSession) -> None:
    with pytest.raises(PipelineError, match=r"^--out: 2026-11:21: IllegalArgumentException: "):
        Folder(spark, "2026-11:21")


def test_a_file_is_replaced_and_one_that_cannot_be_written_is_named(spark: SparkSession, tmp_path: Path) -> None:
    folder = Folder(spark, str(tmp_path / "out"))
    folder.write("report.html", "long before")
    folder.write("report.html", "ä\n")
    assert (tmp_path / "out" / "report.html").read_text(encoding="utf-8") == "ä\n"
    folder.write_verdict({"v": 1})
    folder.remove_verdict()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["report.html"]
    (tmp_path / "file").touch()
    with pytest.raises(PipelineError, match=rf"^--out: {tmp_path}/file/report.html: "):
        Folder(spark, str(tmp_path / "file")).write("report.html", "")
