"""The verdict of every job: its file, its exit status, and its metrics."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession

from pipeline import FAULT, FINDINGS, FINE, NO_RECORD, PipelineError
from pipeline.__main__ import main
from pipeline.data.gaps import Missing
from pipeline.data.landed import Aside
from pipeline.findings import FAILING, KINDS, MOST_LISTED, Finding, listed
from pipeline.metrics import write_metrics
from pipeline.page.report import Grade, grade
from pipeline.verdict import add_verdict_arguments, as_argument, of_records
from tests.pipeline.records import published, ring_of, write_journal
from tests.pipeline.reference import names, rows, section

KNOWN = ring_of({"orders.1": 1, "orders.2": 1})
OF_EXCHANGE = ("--vhost", "/", "--exchange", "orders")


def samples(file: Path) -> dict[tuple[str, str], float]:
    """The metrics of a file by name and kind of findings."""
    families = text_string_to_metric_families(file.read_text())
    return {(one.name, one.labels.get("kind", "")): one.value for family in families for one in family.samples}


def test_the_reference_has_every_kind_and_what_is_bad() -> None:
    table = rows(section("Findings"))
    assert {name for row in table for name in names(row[0])} == set(KINDS)
    bad = {name for row in table if row[2] == "yes" for name in names(row[0])}
    assert bad == {name for name, kind in KINDS.items() if kind.is_bad}
    assert bad | {"unreadable"} == FAILING


def test_the_worst_kind_is_the_grade() -> None:
    missing, lost = Finding("missing", "", count=3), Finding("lost", "")
    assert [grade(some) for some in ([], [missing], [missing, lost])] == [Grade.GOOD, Grade.LOOK, Grade.BAD]


def test_what_is_missing_and_unreadable_is_counted() -> None:
    assert of_records() == of_records(Missing(0, 7), Aside()) == []
    found = of_records(Missing(5, 7), Aside(2, 1))
    assert [(one.kind, one.count) for one in found] == [("missing", 5), ("unreadable", 3)]
    assert found[1].sentence == "2 lines and 1 file set aside, which is in no figure."


def test_more_than_are_listed_are_counted() -> None:
    every = [Finding("hot_key", "", {"exchange": "orders", "key": str(n)}, count=n + 1) for n in range(MOST_LISTED + 2)]
    assert listed(every[:MOST_LISTED]) == every[:MOST_LISTED]
    *named, more = listed(every)
    assert named == every[:MOST_LISTED]
    assert more == Finding("hot_key", "And 43 more.", {"exchange": "orders"}, count=43)


def test_kinds_as_an_argument(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_verdict_arguments(parser)

    def given(text: str) -> frozenset[str]:
        kinds: frozenset[str] = parser.parse_args(["--fail-on", text]).fail_on
        return kinds

    assert parser.parse_args([]).fail_on == FAILING
    assert [given(text) for text in ("none", "any", "lost,late")] == [set(), set(KINDS), {"lost", "late"}]
    for kinds in (FAILING, frozenset(), frozenset(KINDS)):
        assert given(as_argument(kinds)) == kinds
    with pytest.raises(SystemExit):
        given("lost,hot-key")
    assert "'hot-key' is no kind of findings: give none, any, or some of hot_key, " in capsys.readouterr().err


def test_metrics_are_written_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "skew.prom"
    found = [Finding("lost", "", count=2), Finding("lost", "", count=3), Finding("missing", "")]
    write_metrics(file, "reconcile", FINDINGS, 1.5, 1000, found)
    told = samples(file)
    assert 'ringproxy_pipeline_status{command="reconcile"}' in file.read_text()
    assert told["ringproxy_pipeline_status", ""] == FINDINGS
    assert told["ringproxy_pipeline_records", ""] == 1000
    assert told["ringproxy_pipeline_duration_seconds", ""] == 1.5
    assert told["ringproxy_pipeline_end_timestamp_seconds", ""] > 1.7e9
    by_kind = {kind: value for (name, kind), value in told.items() if name == "ringproxy_pipeline_findings"}
    assert by_kind == dict.fromkeys(KINDS, 0) | {"lost": 5, "missing": 1}
    documented = {name for row in rows(section("Metrics of a run")) for name in names(row[0])}
    assert documented == {name for name, _ in told}
    (tmp_path / "folder").mkdir()
    with pytest.raises(PipelineError, match=r"^--textfile: .*/folder: cannot be written: Is a directory$"):
        write_metrics(tmp_path / "folder", "skew", FINE, 1.0)
    with pytest.raises(PipelineError, match=r"cannot be written: No such file or directory$"):
        write_metrics(tmp_path / "absent" / "skew.prom", "skew", FINE, 1.0)
    assert {path.name for path in tmp_path.iterdir()} == {"folder", "skew.prom"}


def test_an_error_has_metrics_and_no_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "skew.prom"
    given = ["skew", "--journal", str(tmp_path), "--out", str(tmp_path / "out"), "--top", "1"]
    assert main([*given, "--textfile", str(file)]) == FAULT
    assert samples(file)["ringproxy_pipeline_status", ""] == FAULT
    assert main([*given, "--textfile", str(tmp_path / "absent" / "skew.prom")]) == FAULT
    assert "--textfile: " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "job", ["skew", *(pytest.param(job, marks=pytest.mark.long) for job in ("usage", "whatif", "reconcile", "land"))]
)
def test_every_job_has_a_verdict(spark: SparkSession, tmp_path: Path, job: str) -> None:
    """One that is fine, and one without records; `day` has its own test."""
    records = published(KNOWN, [f"customer-{n}".encode() for n in range(1000)])
    write_journal(tmp_path / "journal", records, [KNOWN])
    seen = [f"{one['message_id']},{one['destination']},{one['time'] + 1}" for one in records]
    (tmp_path / "seen.csv").write_text("\n".join(["message_id,queue,time", *seen]))
    more = {
        # One queue is left, so no weights are better.
        "whatif": (*OF_EXCHANGE, "--remove", "queue:orders.2"),
        "reconcile": (*OF_EXCHANGE, "--seen", str(tmp_path / "seen.csv")),
    }
    out, file = tmp_path / "out", tmp_path / "job.prom"
    of = [job, "--journal", str(tmp_path / "journal"), "--out", str(out), *more.get(job, ())]
    told: dict[int, Any] = {}
    for status, day in ((FINE, "2026-11-21"), (NO_RECORD, "2026-11-20")):
        assert main([*of, "--day", day, "--textfile", str(file), "--fail-on", "any"]) == status
        told[status] = json.loads((out / "verdict.json").read_text())
        documented = {name for row in rows(section("verdict.json")) for name in names(row[0])}
        assert documented <= set(told[status])
        assert {name: told[status][name] for name in ("v", "job", "status", "findings")} == {
            "v": 1, "job": job, "status": status, "findings": [],
        }  # fmt: skip
        assert told[status]["from"] == f"{day}T00:00:00+00:00"
        assert samples(file)["ringproxy_pipeline_status", ""] == status
        assert samples(file)["ringproxy_pipeline_records", ""] == (1000 if status == FINE else 0)
    assert told[FINE]["figures"]["records"] == 1000
    assert all((out / path).exists() for path in told[FINE]["paths"].values() if path != "quarantine")
    assert told[NO_RECORD]["paths"] == {}
