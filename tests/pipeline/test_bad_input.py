"""Bad input: one line that says what and where, exit status 2, nothing half-written."""

import gzip
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pipeline import PipelineError
from pipeline.__main__ import main
from pipeline.session import in_one_line, spark_session
from tests.pipeline.records import PROXY, Record, published, ring_of, write_journal

KNOWN = ring_of({"orders.1": 1, "orders.2": 1})
FILE = f"{PROXY}-000000000001.jsonl"

CASES = {
    "usage version": (f"{FILE}.gz: schema version 2, known is 1",),
    "usage line": (f"{FILE}: a line that is no record: ", "yesterday"),
    "usage truncated": (f"{FILE}.gz", "cannot be read (truncated)"),
    "usage truncated --stream": (f"{FILE}.gz", "cannot be read (truncated)"),
    "usage bare": (f"{FILE}.gz: field ", " is null, not "),
    "usage bare --stream": (f"{FILE}.gz: field ", " is null, not "),
    "usage seq": (f"{FILE}.gz: field 'seq' is -1, not 1 or more",),
    "usage outcome": (f"{FILE}.gz: field 'outcome' is weird, not one of confirmed, passed, ",),
    "usage nowhere": ("nowhere: no journal: there is no folder",),
    "usage gap --window 7": ("--window: 7: it must divide 60",),
    "skew ring": ("5 records of exchange 'orders' name ring", f"rings/{KNOWN.fingerprint}.json is missing"),
    "skew badring": (f"{{}}/badring/rings/{KNOWN.fingerprint}.json: fingerprint: ",),
    "skew slot": (f"{FILE}.gz: field 'slot' is 1048576, not 0 to 1048575",),
    "skew version": (f"{FILE}.gz: schema version 2, known is 1",),
}
"""Job, journal and options, and what is told; `{}` is the journals' folder."""


@pytest.fixture(scope="module")
def journals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of journals by name, all with something wrong."""
    folder = tmp_path_factory.mktemp("journals")

    def journal(name: str, records: list[Record]) -> Path:
        (file,) = write_journal(folder / name, records, [KNOWN])
        return file

    records = published(KNOWN, [f"customer-{n}".encode() for n in range(2000)])
    journal("version", [*records[:5], records[5] | {"v": 2}])
    line = journal("line", records[:5])
    line.rename(line.with_suffix(""))  # no longer .gz
    line.with_suffix("").write_bytes(b'{"v": 1, "time": "yesterday"}\n')
    truncated = journal("truncated", records)
    truncated.write_bytes(truncated.read_bytes()[:-2000])
    journal("bare", records[:5]).write_bytes(gzip.compress(b'{"v":1}\n'))
    journal("seq", [*records[:5], records[5] | {"seq": -1}])
    journal("slot", [*records[:5], records[5] | {"slot": 2**20}])
    journal("outcome", [*records[:5], records[5] | {"outcome": "weird"}])
    journal("ring", records[:5])
    (folder / "ring" / "rings" / f"{KNOWN.fingerprint}.json").unlink()
    journal("badring", records[:5])
    badring = folder / "badring" / "rings" / f"{KNOWN.fingerprint}.json"
    badring.write_text(badring.read_text(encoding="utf-8").replace('"orders.1", 1', '"orders.1", 2'), encoding="utf-8")
    journal("gap", records[:5] + records[8:10])
    return folder


def command(case: str, journals: Path, out: Path) -> list[str]:
    job, name, *more = case.split()
    return [job, "--journal", str(journals / name), "--out", str(out), *more]


def check_told(case: str, journals: Path, out: Path, stderr: str) -> None:
    """In one line, and nothing is written."""
    # Java's own warnings at its start, and Spark's bar of progress, which ends in a carriage return.
    lines = [line for line in stderr.splitlines() if line.strip() and "WARNING: " not in line and "[Stage" not in line]
    assert len(lines) == 1, stderr
    assert lines[0].startswith(f"pipeline {case.split()[0]}: ")
    assert all(part.format(journals) in lines[0] for part in CASES[case]), lines[0]
    left = {"checkpoint"} if "--stream" in case else set()
    assert {path.name for path in out.glob("*")} <= left


@pytest.mark.parametrize("case", CASES)
def test_each_is_told_in_one_line(
    spark: SparkSession, journals: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], case: str
) -> None:
    assert main(command(case, journals, tmp_path / "out")) == 2
    check_told(case, journals, tmp_path / "out", capfd.readouterr().err)


# The other cases see nothing of what Java, which was there before, says by itself.
@pytest.mark.long
@pytest.mark.parametrize("case", ["usage truncated --stream"])
def test_a_user_sees_no_more_than_that(journals: Path, tmp_path: Path, case: str) -> None:
    run = [sys.executable, "-m", "pipeline", *command(case, journals, tmp_path / "out")]
    done = subprocess.run(run, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 2, done.stderr
    check_told(case, journals, tmp_path / "out", done.stderr)


@pytest.mark.long
def test_a_gap_is_told_but_no_error(
    spark: SparkSession, journals: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(command("usage gap", journals, tmp_path)) == 0
    said = capfd.readouterr()
    assert "pipeline" not in said.err
    assert "7 records, 3 missing: " in said.out
    assert "3 records are missing." in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_an_exception_without_words_is_told_too() -> None:
    assert in_one_line("") == "Spark failed without a word"
    assert in_one_line("first\nsecond") == "first"


def test_what_ended_a_worker_is_told_without_its_password(spark: SparkSession) -> None:
    def fail(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            int("no number")
        except ValueError as error:
            raise OSError("no way to amqp://user:s3cret@broker:5672/,\nnor another") from error
        yield from batches

    with pytest.raises(PipelineError) as told, spark_session("tests"):
        spark.range(1).mapInArrow(fail, "id long").collect()
    assert str(told.value) == "a task failed in Python: OSError: no way to amqp://user:***@broker:5672/,"
