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
from pipeline.session import in_one_line, spark_session
from tests.pipeline.records import Record, published, ring_of, write_journal

KNOWN = ring_of({"orders.1": 1, "orders.2": 1})

# Each job as a user runs it, but in one process: Java takes seconds to start.
RUN = """
import sys
from pipeline.__main__ import main
for line in sys.stdin:
    print("status", main(line.split()), flush=True)
    print("---", file=sys.stderr, flush=True)
"""


def test_each_is_told_in_one_line(tmp_path: Path) -> None:
    def journal(name: str, records: list[Record]) -> list[Path]:
        return write_journal(tmp_path / name, records, [KNOWN])

    records = published(KNOWN, [f"customer-{n}".encode() for n in range(2000)])
    journal("version", [*records[:5], records[5] | {"v": 2}])
    [line] = journal("line", records[:5])
    line.rename(line.with_suffix(""))  # no longer .gz
    line.with_suffix("").write_bytes(b'{"v": 1, "time": "yesterday"}\n')
    [truncated] = journal("truncated", records)
    truncated.write_bytes(truncated.read_bytes()[:-2000])
    [bare] = journal("bare", records[:5])
    bare.write_bytes(gzip.compress(b'{"v":1}\n'))
    journal("seq", [*records[:5], records[5] | {"seq": -1}])
    journal("slot", [*records[:5], records[5] | {"slot": 2**20}])
    journal("outcome", [*records[:5], records[5] | {"outcome": "weird"}])
    journal("ring", records[:5])
    (tmp_path / "ring" / "rings" / f"{KNOWN.fingerprint}.json").unlink()
    journal("badring", records[:5])
    badring = tmp_path / "badring" / "rings" / f"{KNOWN.fingerprint}.json"
    badring.write_text(badring.read_text(encoding="utf-8").replace('"orders.1", 1', '"orders.1", 2'), encoding="utf-8")
    journal("gap", records[:5] + records[8:10])
    cases = {
        "usage version": ("000000000001.jsonl.gz: schema version 2, known is 1",),
        "usage line": ("000000000001.jsonl: a line that is no record: ", "yesterday"),
        "usage truncated": (truncated.name, "cannot be read (truncated)"),
        "usage truncated --stream": (truncated.name, "cannot be read (truncated)"),
        "usage bare": (f"{bare.name}: field ", " is null, not "),
        "usage bare --stream": (f"{bare.name}: field ", " is null, not "),
        "usage seq": ("000000000001.jsonl.gz: field 'seq' is -1, not 1 or more",),
        "usage outcome": ("000000000001.jsonl.gz: field 'outcome' is weird, not one of confirmed, passed, ",),
        "usage nowhere": ("nowhere: no journal: there is no folder",),
        "usage gap --window 7": ("--window: 7: whole hours",),
        "skew ring": ("5 records of exchange 'orders' name ring", f"rings/{KNOWN.fingerprint}.json is missing"),
        "skew badring": (f"{badring}: fingerprint: ",),
        "skew slot": ("000000000001.jsonl.gz: field 'slot' is 1048576, not 0 to 1048575",),
        "skew version": ("schema version 2, known is 1",),
    }
    commands = []
    for case in [*cases, "usage gap"]:
        job, name, *more = case.split()
        out = tmp_path / "out" / case.replace(" ", "")
        commands.append(" ".join([job, "--journal", str(tmp_path / name), "--out", str(out), *more]))
    done = subprocess.run(
        [sys.executable, "-c", RUN], input="\n".join(commands), capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    statuses = [line for line in done.stdout.splitlines() if line.startswith("status")]
    assert statuses == ["status 2"] * len(cases) + ["status 0"], done.stderr
    *failures, gap, _ = done.stderr.split("---\n")
    for (case, expected), text in zip(cases.items(), failures, strict=True):
        # Java's own warnings at its start, and Spark's bar of progress, which ends in a carriage return.
        lines = [
            line for line in text.splitlines() if line.strip() and "WARNING: " not in line and "[Stage" not in line
        ]
        assert len(lines) == 1, text
        assert lines[0].startswith(f"pipeline {case.split()[0]}: ")
        assert all(part in lines[0] for part in expected), lines[0]
        out = tmp_path / "out" / case.replace(" ", "")
        left = {"checkpoint"} if "--stream" in case else set()
        assert {path.name for path in out.glob("*")} <= left, case
    assert "pipeline" not in gap
    assert "7 records, 3 missing: " in done.stdout
    page = (tmp_path / "out" / "usagegap" / "report.html").read_text(encoding="utf-8")
    assert "3 records are missing." in page


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
