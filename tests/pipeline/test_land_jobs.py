"""Every job has the same results of a landed table as of the journal that it was made of."""

import gzip
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipeline.__main__ import main
from pipeline.data.gaps import gaps, sequences
from pipeline.data.journal import read_records
from pipeline.data.period import Period
from tests.pipeline.records import START, published, ring_of, write_journal

HOUR = "--from 2026-11-21T18 --until 2026-11-21T19"
KNOWN, LATER = ring_of({"orders.1": 1, "orders.2": 1}), ring_of({"orders.1": 1, "orders.2": 1, "orders.3": 1})
OF_EXCHANGE = ("--vhost", "/", "--exchange", "orders")
JOBS = {
    "usage": (("usage", "gaps"), ()),
    "skew": (("rings", "destinations", "keys"), ()),
    "whatif": (("moved", "load"), (*OF_EXCHANGE, "--add", "queue:orders.4=1")),
    "reconcile": (("messages", "summary"), OF_EXCHANGE),
}
"""The tables that a job writes, and its options."""
LONG = ("skew", "whatif")


@pytest.fixture(scope="module")
def journal(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three hours of two sidecars and two rings, with a gap in a file and another between files; and its table."""
    folder = tmp_path_factory.mktemp("landed")
    keys = [f"customer-{n * n % 97}".encode() for n in range(400)]
    records = published(KNOWN, keys[:200], every=30_000_000)
    records += published(LATER, keys[200:], first=201, start=START + 200 * 30_000_000, every=10_000_000)
    records += published(KNOWN, keys, proxy="00000000000000b2", every=20_000_000)
    del records[310:315], records[60:70]
    files = write_journal(folder / "journal", records, [KNOWN, LATER], per_file=50)
    files[2].unlink()
    assert main(["land", "--journal", str(folder / "journal"), "--out", str(folder / "table")]) == 0
    seen = [(r["message_id"], r["destination"], r["time"] + 1000) for n, r in enumerate(records) if n % 50]
    lines = ["message_id,queue,time", *(f"{one},{queue},{at}" for one, queue, at in seen)]
    (folder / "seen.csv").write_text("\n".join(lines))
    return folder / "journal"


def results(spark: SparkSession, out: Path, tables: tuple[str, ...]) -> dict[str, object]:
    """The rows of the tables, and the verdict; a sketch of keys has its bytes by the order of the records."""
    found: dict[str, object] = {}
    for table in tables:
        rows = spark.read.parquet(str(out / table)).drop("keys_sketch").collect()
        found[table] = sorted(str(row.asDict(recursive=True)) for row in rows)
        assert found[table]
    for verdict in out.glob("verdict.json"):
        found["verdict"] = json.loads(verdict.read_text())
    return found


@pytest.mark.parametrize("period", [pytest.param("", marks=pytest.mark.long), HOUR])
@pytest.mark.parametrize("job", ["usage", "reconcile", *(pytest.param(j, marks=pytest.mark.long) for j in LONG)])
def test_results_are_equal(spark: SparkSession, journal: Path, tmp_path: Path, job: str, period: str) -> None:
    tables, more = JOBS[job]
    if job == "reconcile":
        more = (*more, "--seen", str(journal.parent / "seen.csv"))
    statuses = []
    for name in ("journal", "table"):
        run = [job, "--journal", str(journal.parent / name), "--out", str(tmp_path / name), *more, *period.split()]
        statuses.append(main(run))
    assert statuses[0] == statuses[1] == int(job == "reconcile")
    assert results(spark, tmp_path / "journal", tables) == results(spark, tmp_path / "table", tables)


def test_gaps_are_those_that_the_names_of_files_tell(spark: SparkSession, journal: Path) -> None:
    found = [
        sorted(map(str, gaps(sequences(read_records(spark, str(path)))).collect()))
        for path in (journal, journal.parent / "table")
    ]
    assert found[0] == found[1] != []


def test_the_files_of_other_hours_are_not_read(spark: SparkSession, journal: Path) -> None:
    hour = Period(datetime(2026, 11, 21, 18, tzinfo=UTC), datetime(2026, 11, 21, 19, tzinfo=UTC))
    files = read_records(spark, str(journal.parent / "table"), hour).inputFiles()
    assert files
    assert all("/dt=2026-11-21/hour=18/" in file for file in files)


@pytest.mark.long
def test_what_was_set_aside_is_told(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (file,) = write_journal(tmp_path / "journal", published(KNOWN, [b"a", b"b", b"c"]), [KNOWN])
    file.write_bytes(file.read_bytes() + gzip.compress(b"no record\n"))
    assert main(["land", "--journal", str(tmp_path / "journal"), "--out", str(tmp_path / "table")]) == 1
    (tmp_path / "seen.csv").write_text(
        "message_id,queue,time\n"
        + "".join(
            f"{r['message_id']},{r['destination']},{r['time'] + 1}\n" for r in published(KNOWN, [b"a", b"b", b"c"])
        )
    )
    for job, (_, more) in JOBS.items():
        seen = ("--seen", str(tmp_path / "seen.csv")) if job == "reconcile" else ()
        out = tmp_path / job
        capsys.readouterr()
        run = [job, "--journal", str(tmp_path / "table"), "--out", str(out), *more, *seen]
        assert main(run) == 1
        (unreadable,) = [
            finding
            for finding in json.loads((out / "verdict.json").read_text())["findings"]
            if finding["kind"] == "unreadable"
        ]
        assert (unreadable["count"], unreadable["figures"]) == (1, {"lines": 1, "files": 0})
        page = (out / "report.html").read_text()
        assert "Unreadable" in page
        assert "To look at" in page
        said = capsys.readouterr().out
        if job == "reconcile":
            assert said.startswith("nothing lost or misplaced, but for what unreadable lines may hide: ")
            assert json.loads((out / "verdict.json").read_text())["lines_set_aside"] == 1
        else:
            assert "1 line and 0 files set aside" in said
        if job == "whatif":
            assert json.loads((out / "verdict.json").read_text())["set_aside"] == {"lines": 1, "files": 0}
