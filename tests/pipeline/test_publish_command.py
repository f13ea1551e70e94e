"""`python -m pipeline publish`: a stream over files that goes on where it stopped, and its report."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipeline.__main__ import main
from pipeline.publish.commits import read_commits
from tests.integration.broker_api import VirtualHost
from tests.integration.conftest import Login
from tests.pipeline.publishing import Came, check_nothing_lost, options_of, rows_of

ROWS = 400

Run = Callable[..., int]


@pytest.fixture
def run(spark: SparkSession, login: Login, vhost: VirtualHost, tmp_path: Path) -> Run:
    """The command, on rows of two files, a file a batch; more of its arguments."""
    vhost.ring("orders", {"q0": 1, "q1": 2})
    rows_of(spark, ROWS).drop("pad").repartition(2).write.parquet(str(tmp_path / "rows"))
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
    assert run() == 0
    assert vhost.drain_all() == {}

    (tmp_path / "checkpoint" / "commits" / "1").unlink()
    (tmp_path / "checkpoint" / "commits" / ".1.crc").unlink()
    assert run() == 0
    again = vhost.drain_all()
    first, second = read_commits(tmp_path / "out" / "commits.jsonl")
    assert (first.batch, first.duplicates, first.total + second.total) == ("0", 0, ROWS)
    assert (second.batch, second.failed_tries, second.duplicates) == ("1", 1, second.total)
    both = Came({queue: [*came.get(queue, []), *again.get(queue, [])] for queue in {*came, *again}})
    check_nothing_lost(both, ROWS, second.duplicates)
    assert both.duplicates == second.total
    report = (tmp_path / "out" / "report.html").read_text()
    assert f"up to {second.total:,} messages may be there once more" in report


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
