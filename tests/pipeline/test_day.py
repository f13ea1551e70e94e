"""`day`: one command for a day, whose results stay beside those of other days."""

import argparse
import gzip
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession

from pipeline import PipelineError
from pipeline.__main__ import main
from pipeline.data.period import Period, add_arguments, day_of, period_of
from pipeline.day.command import worst
from tests.pipeline.records import START, published, ring_of, write_journal

KNOWN = ring_of({"orders.1": 1, "orders.2": 1})
A_DAY = 24 * 3600 * 1_000_000


def period(*given: str) -> Period:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return period_of(parser.parse_args(given))


def test_a_day_is_a_period_of_utc() -> None:
    since = datetime(2026, 11, 21, tzinfo=UTC)
    assert period("--day", "2026-11-21") == Period(since, since + timedelta(days=1))
    assert day_of("today") - day_of("yesterday") == timedelta(days=1)
    assert day_of("yesterday").hour == 0
    assert timedelta() <= datetime.now(UTC) - day_of("today") < timedelta(days=1, minutes=1)
    for text in ("tomorrow", "2026-11-21T17", "20261121"):
        with pytest.raises(argparse.ArgumentTypeError):
            day_of(text)
    with pytest.raises(PipelineError, match="--day cannot be used with --from or --until"):
        period("--day", "yesterday", "--from", "2026-11-21")


def test_the_status_that_says_the_most() -> None:
    assert [worst(told) for told in ([], [0, 0], [0, 3], [3, 1], [1, 2, 0])] == [0, 0, 3, 1, 2]


def test_each_day_has_results_of_its_own(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal, out = tmp_path / "journal", tmp_path / "out"
    keys = [b"%d" % n for n in range(20)]
    first = published(KNOWN, keys)
    records = first + published(KNOWN, keys[:10], first=21, start=START + A_DAY)
    write_journal(journal, records, [KNOWN])
    seen = [f"{r['message_id']},{r['destination']},{r['time'] + 1}" for r in records[:29]]
    (tmp_path / "seen.csv").write_text("\n".join(["message_id,queue,time", *seen]))
    of = ("day", "--journal", str(journal), "--out", str(out))
    whole = (*of, "--vhost", "/", "--seen", str(tmp_path / "seen.csv"))

    def verdict(day: str) -> Any:
        return json.loads((out / day / "verdict.json").read_text())

    def facts(day: str) -> object:
        told = verdict(day)
        return {name: told[name] for name in ("v", "day", "changes", "late", "status", "jobs")}

    assert main([*of, "--day", "2026-11-21"]) == 0
    assert capsys.readouterr().out.endswith(f"2026-11-21: fine: {out}/2026-11-21/report.html\n")
    assert facts("2026-11-21") == {
        "v": 1, "day": "2026-11-21", "changes": 2, "late": [],
        "status": 0, "jobs": {"land": 0, "usage": 0, "skew": 0},
    }  # fmt: skip
    # The twenty keys give one queue more than the other, which nothing is to fail on.
    assert [finding["kind"] for finding in verdict("2026-11-21")["findings"]] == ["uneven_load"]
    assert verdict("2026-11-21")["figures"] == {"records": 20}
    assert {path.name for path in out.iterdir()} == {"2026-11-21", "landed"}
    assert "no result of the 7 days before is kept" in (out / "2026-11-21" / "report.html").read_text()

    # One of the second day's messages was not seen.
    metrics = tmp_path / "day.prom"
    assert main([*whole, "--day", "2026-11-22", "--textfile", str(metrics)]) == 1
    jobs = {"land": 0, "usage": 0, "skew": 0, "reconcile": 1}
    assert facts("2026-11-22") == {
        "v": 1, "day": "2026-11-22", "changes": 2, "late": [], "status": 1, "jobs": jobs,
    }  # fmt: skip
    found = {finding["kind"]: finding for finding in verdict("2026-11-22")["findings"]}
    assert found["lost"]["count"] == 1
    assert set(found) - {"uneven_load"} == {"lost"}
    assert verdict("2026-11-22")["paths"] == {
        "report": "report.html", "usage": "usage", "skew": "skew", "reconcile": "reconcile",
    }  # fmt: skip
    told = (out / "2026-11-22" / "report.html").read_text()
    assert "✕ Bad" in told
    assert "1 message: confirmed, and not seen." in told
    samples = [one for family in text_string_to_metric_families(metrics.read_text()) for one in family.samples]
    by_kind = {one.labels["kind"]: one.value for one in samples if "kind" in one.labels}
    assert {kind for kind, value in by_kind.items() if value} == set(found)
    assert [one.value for one in samples if one.name == "ringproxy_pipeline_status"] == [1]
    assert "20 messages" in (out / "2026-11-21" / "usage" / "report.html").read_text()
    assert "10 messages" in (out / "2026-11-22" / "usage" / "report.html").read_text()
    assert main([*whole, "--day", "2026-11-22", "--fail-on", "wrong_queue"]) == 0
    assert {finding["kind"] for finding in verdict("2026-11-22")["findings"]} == set(found)

    assert main([*of, "--day", "2026-11-23"]) == 3
    jobs = {"land": 0, "usage": 3, "skew": 3}
    assert facts("2026-11-23") == {
        "v": 1, "day": "2026-11-23", "changes": 0, "late": [], "status": 3, "jobs": jobs,
    }  # fmt: skip
    assert main([*of, "--vhost", "/"]) == 2
    assert "--vhost, --exchange and --seen are for reconcile" in capsys.readouterr().err


def test_a_night_has_the_results_of_the_journal(spark: SparkSession, tmp_path: Path) -> None:
    """A message of unknown outcome right before midnight is published again right after it."""
    journal, out, seen = tmp_path / "journal", tmp_path / "out", tmp_path / "seen.csv"
    midnight = START - 17 * 3600 * 1_000_000 + A_DAY
    doubtful, *others = published(KNOWN, [b"a", b"b"], start=midnight - 1_000_000)
    doubtful |= {"outcome": "unknown"}
    (again,) = published(KNOWN, [b"a"], first=3, start=midnight + 4_000_000)
    again |= {"message_id": doubtful["message_id"]}
    write_journal(journal, [doubtful, *others, again], [KNOWN])
    copies = [doubtful, again, *others]
    rows = [f"{r['message_id']},{r['destination']},{r['time'] + 1}" for r in copies]
    seen.write_text("\n".join(["message_id,queue,time", *rows]))
    of = ("--journal", str(journal), "--day", "2026-11-21", "--vhost", "/", "--seen", str(seen))
    assert main(["reconcile", *of, "--out", str(tmp_path / "direct")]) == 0
    assert main(["day", *of, "--out", str(out)]) == 0
    direct, night = (
        json.loads((folder / "verdict.json").read_text())
        for folder in (tmp_path / "direct", out / "2026-11-21" / "reconcile")
    )
    assert direct == night
    # Its second copy belongs to a record of the next day.
    assert (night["undetermined"], night["duplicated"]) == (1, 0)


def test_a_day_whose_records_came_late_is_named_until_it_is_run_again(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal, out = tmp_path / "journal", tmp_path / "out"
    records = published(KNOWN, [b"a", b"b", b"c"])

    def run(day: str) -> str:
        assert main(["day", "--journal", str(journal), "--out", str(out), "--day", day]) in (0, 3)
        return capsys.readouterr().out

    write_journal(journal, records[:2], [KNOWN])
    assert "late" not in run("2026-11-21")
    write_journal(journal, records[2:], [KNOWN])
    for _ in range(2):
        assert "records came late: run day again for 2026-11-21\n" in run("2026-11-22")
        assert json.loads((out / "2026-11-22" / "verdict.json").read_text())["late"] == ["2026-11-21"]
    assert "late" not in run("2026-11-21")
    assert "late" not in run("2026-11-22")


def test_what_is_set_aside_is_a_finding_of_its_day_each_time(spark: SparkSession, tmp_path: Path) -> None:
    journal, out = tmp_path / "journal", tmp_path / "out"
    first, _ = write_journal(
        journal, published(KNOWN, [b"a"]) + published(KNOWN, [b"b"], first=2, start=START + A_DAY), [KNOWN]
    )
    first.write_bytes(first.read_bytes() + gzip.compress(b"no record\n"))
    of = ("day", "--journal", str(journal), "--out", str(out))
    for _ in range(2):
        assert main([*of, "--day", "2026-11-21"]) == 1
    assert main([*of, "--day", "2026-11-21", "--skip-unreadable"]) == 0
    assert main([*of, "--day", "2026-11-22"]) == 0


def test_a_day_says_what_has_grown_since_when(spark: SparkSession, tmp_path: Path) -> None:
    journal, out = tmp_path / "journal", tmp_path / "out"
    many = [b"acme/%d" % n for n in range(40)]
    days = {
        "2026-11-21": [*many, b"beta/1"] * 2,
        "2026-11-28": [*many, b"beta/1"] * 2,
        # The 40 keys of acme are as before; beta has 200 messages in place of 2, and gamma is new.
        "2026-11-29": [*many, *many, *([b"beta/1"] * 200), *([b"gamma/1"] * 50)],
    }
    records: list[Any] = []
    for n, keys in zip((0, 7, 8), days.values(), strict=True):
        records += published(KNOWN, keys, first=len(records) + 1, start=START + n * A_DAY, every=1000)
    write_journal(journal, records, [KNOWN])
    # The hot key is a finding for which it need not fail.
    of = ("day", "--journal", str(journal), "--out", str(out), "--tenant", "/", "--fail-on", "grown")
    assert [main([*of, "--day", day]) for day in days] == [0, 0, 1]
    told = json.loads((out / "2026-11-29" / "verdict.json").read_text())
    grown = [one for one in told["findings"] if one["kind"] == "grown"]
    names = {kind: [one["subject"][kind] for one in grown if kind in one["subject"]] for kind in ("key", "tenant")}
    assert names == {"key": ["beta/1", "gamma/1"], "tenant": ["beta", "gamma"]}
    (beta,) = [one for one in grown if one["subject"].get("tenant") == "beta"]
    assert beta["figures"] == {"messages": 200, "since": "2026-11-28", "day_before": 2, "week_before": None}
    assert beta["sentence"] == (
        "Tenant beta of exchange orders (virtual host /) has grown from 2 messages on 2026-11-28 to 200."
    )
    queues = {KNOWN.ring.owner_of(key).name for key in (b"beta/1", b"gamma/1")}
    assert {one["subject"]["queue"] for one in grown if "queue" in one["subject"]} == queues
    page = (out / "2026-11-29" / "report.html").read_text()
    assert "<td>gamma/1</td>" in page
    earlier = json.loads((out / "2026-11-28" / "verdict.json").read_text())
    assert [one for one in earlier["findings"] if one["kind"] == "grown"] == []
