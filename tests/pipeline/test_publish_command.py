"""`python -m pipeline publish`: a stream over files that goes on where it stopped, and its report."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pipeline.__main__ import main
from pipeline.publish.commits import read_commits
from tests.integration.broker_api import VirtualHost
from tests.integration.conftest import Login
from tests.pipeline.publishing import Came, check_nothing_lost, options_of, rows_of

ROWS = 400

Run = Callable[..., int]


@pytest.fixture
def run(spark: SparkSession, login: Login, vhost: VirtualHost, tmp_path: Path) -> Run:
    """The command, on rows of two files, a file a batch; more of its arguments.

    The files differ in a column, and in age by a month.
    """
    vhost.ring("orders", {"q0": 1, "q1": 2})
    rows, folder = rows_of(spark, ROWS).drop("pad").coalesce(1), tmp_path / "rows"
    rows.where("n % 2 = 0").withColumn("app_id", F.lit("even")).write.parquet(str(folder))
    month_ago = time.time() - 30 * 86400
    for file in folder.glob("*.parquet"):
        os.utime(file, (month_ago, month_ago))
    rows.where("n % 2 = 1").write.mode("append").parquet(str(folder))
    connection = options_of(login, vhost, "orders")

    def call(*more: str) -> int:
        arguments = ["publish", "--input", str(tmp_path / "rows"), "--order", "n", "--files-per-batch", "1"]
        arguments += ["--checkpoint", str(tmp_path / "checkpoint"), "--out", str(tmp_path / "out")]
        for name, value in connection.items():
            arguments += [f"--{name.replace('_', '-')}", value]
        return main([*arguments, *more])

    return call


def test_it_goes_on_where_it_stopped_and_a_deleted_commit_replays_one_batch(
    run: Run, vhost: VirtualHost, tmp_path: Path
) -> None:
    assert run() == 0
    came = vhost.drain_all()
    check_nothing_lost(Came(came), ROWS, 0)
    for message in (message for messages in came.values() for message in messages):
        assert message.properties.get("app_id") == (None if int(message.body) % 2 else "even")
    assert run() == 0
    assert vhost.drain_all() == {}

    (tmp_path / "checkpoint" / "commits" / "1").unlink()
    (tmp_path / "checkpoint" / "commits" / ".1.crc").unlink()
    assert run() == 0
    again = vhost.drain_all()
    log = tmp_path / "out" / "commits.jsonl"
    checkpoint = json.loads((tmp_path / "checkpoint" / "metadata").read_text())["id"]
    assert {json.loads(line)["run"] for line in log.read_text().splitlines()} == {checkpoint}
    first, second = read_commits(log)
    assert (first.batch, first.duplicates, first.total + second.total) == ("0", 0, ROWS)
    assert (second.batch, second.failed_tries, second.duplicates) == ("1", 1, second.total)
    both = Came({queue: [*came.get(queue, []), *again.get(queue, [])] for queue in {*came, *again}})
    check_nothing_lost(both, ROWS, second.duplicates)
    assert both.duplicates == second.total
    report = (tmp_path / "out" / "report.html").read_text()
    assert f"up to {second.total:,} messages may be there once more" in report


def test_a_value_of_another_type_fails_the_run_and_the_report_says_so(
    run: Run, vhost: VirtualHost, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "json").mkdir()
    file = tmp_path / "json" / "rows.json"
    of_json = ["--input", str(tmp_path / "json"), "--format", "json"]
    row = {"key": "k", "body": "0", "n": 0, "expiration": 600_000}
    file.write_text(json.dumps(row) + "\n")
    assert run(*of_json) == 0
    assert "1 rows were published and confirmed, each once" in (tmp_path / "out" / "report.html").read_text()
    (tmp_path / "json" / "more.json").write_text(json.dumps(row | {"expiration": "soon"}) + "\n")
    assert run(*of_json) == 2
    (told,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("pipeline publish: ")]
    assert "more.json" in told
    assert "'expiration' and the value soon" in told
    assert "The last run failed" in (tmp_path / "out" / "report.html").read_text()
    ((message,),) = vhost.drain_all().values()
    assert message.properties["expiration"] == "600000"


def test_a_dry_run_leaves_no_trace_but_its_report(run: Run, vhost: VirtualHost, tmp_path: Path) -> None:
    assert run("--dry-run") == 0
    assert vhost.drain_all() == {}
    assert not (tmp_path / "checkpoint").exists()
    assert f"A dry run: {ROWS} rows would go out" in (tmp_path / "out" / "report.html").read_text()


def test_what_is_wrong_is_one_line_and_status_2(run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("--exchange", "nowhere") == 2
    assert run("--input", str(tmp_path / "none")) == 2
    told = [line for line in capfd.readouterr().err.splitlines() if line.startswith("pipeline publish: ")]
    assert "exchange 'nowhere' does not exist in virtual host" in told[0]
    assert told[1] == f"pipeline publish: --input: {tmp_path / 'none'} does not exist"
    assert not (tmp_path / "out").exists()


def test_arguments_that_cannot_be(run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.touch()
    assert run("--connections", "0") == 2
    assert run("--out", "s3://bucket/out") == 2
    assert run("--dry-run", "--out", str(file)) == 2
    assert run("--broker-url", "") == 2
    told = [line for line in capfd.readouterr().err.splitlines() if line.startswith("pipeline publish: ")]
    assert told == [
        "pipeline publish: --connections: 0 would publish nothing",
        "pipeline publish: --out: s3:/bucket/out is not a folder of this machine, where the log must be",
        f"pipeline publish: --out: {file}/dry-run.jsonl: Not a directory",
        "pipeline publish: option 'broker_url' is missing",
    ]
