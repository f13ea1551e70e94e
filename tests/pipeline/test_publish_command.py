"""`python -m pipeline publish`: a stream over files that goes on where it stopped, and its report."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrameWriter, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pipeline.__main__ import main
from pipeline.publish.commits import CommitLog, read_commits
from pipeline.publish.pacing import Patience
from tests.integration.broker_api import VirtualHost, wait_until
from tests.integration.conftest import Login, with_login
from tests.integration.relay import relay
from tests.pipeline.publishing import Came, check_nothing_lost, options_of, rows_of, something_came
from tests.pipeline.records import ring_of, truncated

ROWS = 400

Run = Callable[..., int]


@pytest.fixture
def arguments(spark: SparkSession, login: Login, vhost: VirtualHost, tmp_path: Path) -> list[str]:
    """The command's, on rows of two files, a file a batch.

    The files differ in a column, and in age by a month.
    """
    vhost.ring("orders", {"q0": 1, "q1": 2})
    rows, folder = rows_of(spark, ROWS).drop("pad").coalesce(1), tmp_path / "rows"
    rows.where("n % 2 = 0").withColumn("app_id", F.lit("even")).write.parquet(str(folder))
    month_ago = time.time() - 30 * 86400
    for file in folder.glob("*.parquet"):
        os.utime(file, (month_ago, month_ago))
    rows.where("n % 2 = 1").write.mode("append").parquet(str(folder))
    found = ["publish", "--input", str(tmp_path / "rows"), "--order", "n", "--files-per-batch", "1"]
    found += ["--checkpoint", str(tmp_path / "checkpoint"), "--out", str(tmp_path / "out")]
    for name, value in options_of(login, vhost, "orders").items():
        found += [f"--{name.replace('_', '-')}", value]
    return found


@pytest.fixture
def run(arguments: list[str]) -> Run:
    """The command; more of its arguments."""
    return lambda *more: main([*arguments, *more])


def test_it_goes_on_where_it_stopped_and_a_deleted_commit_replays_one_batch(
    run: Run, vhost: VirtualHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = Mock(side_effect=CommitLog.pinned)
    monkeypatch.setattr(CommitLog, "pinned", lambda log: looked(log))
    assert run() == 0
    # Not for each of the two batches.
    looked.assert_called_once()
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


@pytest.mark.long
def test_a_driver_that_is_killed_in_its_second_batch_loses_nothing(
    arguments: list[str], run: Run, vhost: VirtualHost, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "pipeline", *arguments, "--rate", "80"]
    driver = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until("rows", lambda: driver.poll() is not None or something_came(vhost, ROWS // 2 + 1), within=300)
        assert driver.poll() is None
    finally:
        # Its Java too, whose workers end with it.
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    assert run() == 0
    log = read_commits(tmp_path / "out" / "commits.jsonl")
    assert [write.failed_tries for write in log] == [0, 1]
    check_nothing_lost(Came(vhost.drain_all()), ROWS, sum(write.duplicates for write in log))


@pytest.mark.long
def test_a_batch_that_is_published_again_keeps_its_ring_while_its_queues_are_bound(
    run: Run, vhost: VirtualHost, tmp_path: Path
) -> None:
    def went() -> dict[int, str]:
        """The queue of each row; those of the last batch are published again from now on."""
        for name in ("1", ".1.crc"):
            (tmp_path / "checkpoint" / "commits" / name).unlink()
        return {int(message.body): queue for queue, messages in vhost.drain_all().items() for message in messages}

    assert run() == 0
    first = went()
    for queue in ("q2", "q3"):
        vhost.queue(queue)
        vhost.bind("orders", queue, "3")
    assert run() == 0
    again = went()
    assert set(again) == set(range(1, ROWS, 2))
    assert again.items() <= first.items()
    vhost.unbind("orders", "q1", "2")
    assert run() == 0
    now = ring_of({"q0": 1, "q2": 3, "q3": 3})
    assert went() == {n: now.ring.owner_of(b"k%d" % (n % 50)).name for n in again}
    fingerprints = [write.fingerprint for write in read_commits(tmp_path / "out" / "commits.jsonl")]
    assert fingerprints == [ring_of({"q0": 1, "q1": 2}).fingerprint, now.fingerprint]


@pytest.mark.long
def test_a_broker_that_is_away_between_two_batches_is_waited_for(
    run: Run, login: Login, vhost: VirtualHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, pause = DataFrameWriter.save, Patience.pause
    saved = waited = 0

    def save_and_cut(writer: DataFrameWriter, *given: object) -> None:
        nonlocal saved
        save(writer, *given)  # type: ignore[arg-type]
        saved += 1
        if saved == 1:
            between.cut()

    def open_and_pause(patience: Patience) -> float:
        nonlocal waited
        waited += 1
        if waited == 1:
            between.open()
        return pause(patience)

    monkeypatch.setattr(DataFrameWriter, "save", save_and_cut)
    monkeypatch.setattr(Patience, "pause", open_and_pause)
    with relay(options_of(login, vhost, "orders")["broker_url"]) as (between, url):
        assert run("--broker-url", url) == 0
    assert saved == 2
    assert waited > 0
    check_nothing_lost(Came(vhost.drain_all()), ROWS, 0)


def test_a_rate_is_that_of_the_tasks_that_there_are(
    run: Run, vhost: VirtualHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = DataFrameWriter.options
    told: list[tuple[object, object]] = []

    def noted(writer: DataFrameWriter, **given: str) -> DataFrameWriter:
        if given:  # Spark itself gives none
            told.append((given["rate"], given["connections"]))
        return options(writer, **given)

    monkeypatch.setattr(DataFrameWriter, "options", noted)
    assert run("--rate", "200") == 0
    # Two queues: two tasks, whatever --connections allows, and so 100/s for each, of each of two batches.
    assert told == [("200", "2")] * 2
    for write in read_commits(tmp_path / "out" / "commits.jsonl"):
        assert write.seconds > 0.8 * max(write.rows.values()) / 100
    check_nothing_lost(Came(vhost.drain_all()), ROWS, 0)


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


def padded(file: Path, first: int, count: int, **last: object) -> None:
    """A file of rows, the last one changed; each is large, since Spark hands on no rows before they fill a buffer."""
    rows = [{"key": f"k{n % 50}", "body": str(n), "n": n, "pad": "x" * 4000} for n in range(first, first + count)]
    rows[-1] |= last
    file.parent.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), file)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [({"key": None}, "1 row with a null key"), ({"key": "é" * 150}, "1 row with a key of more than 255 bytes")],
)
def test_a_bad_row_ends_the_job_before_its_batch_is_published(
    spark: SparkSession,
    run: Run,
    vhost: VirtualHost,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    wrong: dict[str, object],
    told: str,
) -> None:
    files = tmp_path / "files"
    padded(files / "first.parquet", 0, 10)
    os.utime(files / "first.parquet", (time.time() - 86400,) * 2)
    padded(files / "second.parquet", 10, 1000, **wrong)
    arguments = ["--input", str(files), "--id-columns", "pad"]
    # The rows before the last one are then published before anything looks at it.
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
    try:
        assert run(*arguments) == 2
        (said,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("pipeline publish: ")]
        assert said.startswith(f"pipeline publish: --input: {told}; the first are in file://{files}/second.parquet")
        assert said.endswith("(batch 1): nothing was published")
        before = vhost.drain_all()
        assert sum(map(len, before.values())) == 10
        padded(files / "second.parquet", 10, 1000)
        assert run(*arguments) == 0
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    after = vhost.drain_all()
    both = Came({queue: [*before.get(queue, []), *after.get(queue, [])] for queue in {*before, *after}})
    check_nothing_lost(both, 1010, 0)


def test_columns_that_do_not_fit_are_told(run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "files").mkdir()
    pq.write_table(pa.table({"body": ["b"], "n": [1]}), tmp_path / "files" / "rows.parquet")
    assert run("--input", str(tmp_path / "files")) == 2
    (said,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("pipeline publish: ")]
    assert "--input: column 'key' is missing" in said
    assert not (tmp_path / "out").exists()


def test_a_truncated_file_is_named(
    run: Run, vhost: VirtualHost, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    padded(tmp_path / "files" / "rows.parquet", 0, 100)
    cut = truncated(tmp_path / "files", 200)
    assert run("--input", str(tmp_path / "files")) == 2
    (said,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("pipeline publish: ")]
    assert f"{cut}: cannot be read" in said
    assert vhost.drain_all() == {}
    assert not (tmp_path / "out").exists()


def test_a_broker_that_is_not_there_or_refuses_is_told_and_nothing_is_left(
    run: Run, login: Login, vhost: VirtualHost, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def refused(*arguments: str) -> str:
        assert run(*arguments) == 2
        (said,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("pipeline publish: ")]
        assert not (tmp_path / "out").exists()
        assert not (tmp_path / "checkpoint").exists()
        assert "wrong@" not in said
        return said

    capfd.readouterr()
    amqp = login.broker_url.rpartition("@")[2].rpartition("/")[0]
    http, name = login.management_url.rpartition("@")[2], quote(vhost.name, safe="")
    said = refused("--broker-url", f"amqp://nobody:wrong@127.0.0.1:1/{name}")
    assert "no connection to the broker: 127.0.0.1:1: " in said
    assert "ACCESS_REFUSED" in refused("--broker-url", f"amqp://nobody:wrong@{amqp}/{name}")
    said = refused("--management-url", "http://nobody:wrong@127.0.0.1:1")
    assert said.startswith("pipeline publish: management API: ")
    assert "401" in refused("--management-url", f"http://nobody:wrong@{http}")
    for queue in ("q0", "q1"):  # A binding goes with its queue.
        vhost.delete_queue(queue)
    assert "exchange 'orders' has no binding that makes a ring" in refused()


@pytest.mark.long
def test_the_rights_that_it_takes(
    run: Run, login: Login, vhost: VirtualHost, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """By the document's own command; its rabbitmqctl as requests to the management API."""
    told = (Path(__file__).parents[2] / "docs/how-to/bulk-publish.md").read_text()
    (rights,) = re.findall(r"^rabbitmqctl set_permissions -p shop publisher '(.*)' '(.*)' '(.*)'$", told, flags=re.M)
    vhost.ring("bulk", {"orders.1": 1, "orders.2": 1})
    user, password = "publisher", "pw-publisher"
    vhost.api.ask("PUT", "users", user, body={"password": password, "tags": "management"})
    broker_url = with_login(login.broker_url, user, password, "/" + quote(vhost.name, safe=""))
    management_url = with_login(login.management_url, user, password)
    urls = ("--exchange", "bulk", "--broker-url", broker_url, "--management-url", management_url)
    try:
        vhost.permit(user, *rights)
        assert run(*urls) == 0
        check_nothing_lost(Came(vhost.drain_all()), ROWS, 0)
        vhost.permit(user, write=r"^orders\..*$")
        assert run(*urls, "--checkpoint", str(tmp_path / "another")) == 2
        vhost.api.ask("PUT", "users", user, body={"password": password, "tags": ""})
        assert run(*urls) == 2
    finally:
        vhost.api.ask("DELETE", "users", user)
    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("pipeline publish: ")]
    assert "amq.default" in said[0]
    assert "management API: " in said[1]
    assert vhost.drain_all() == {}


@pytest.mark.long
def test_a_dry_run_leaves_no_trace_but_its_report(run: Run, vhost: VirtualHost, tmp_path: Path) -> None:
    assert run("--dry-run") == 0
    assert vhost.drain_all() == {}
    assert not (tmp_path / "checkpoint").exists()
    assert {file.name for file in (tmp_path / "out").iterdir()} == {"dry-run.html", "dry-run.jsonl"}
    expected = Counter(ring_of({"q0": 1, "q1": 2}).ring.owner_of(b"k%d" % (n % 50)).name for n in range(ROWS))
    (counted,) = read_commits(tmp_path / "out" / "dry-run.jsonl")
    assert (counted.dry_run, counted.rows) == (True, expected)
    assert f"A dry run: {ROWS} rows would go out" in (tmp_path / "out" / "dry-run.html").read_text()


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
        "pipeline publish: --out: s3://bucket/out is not a folder of this machine, where the log must be",
        f"pipeline publish: --out: {file}/dry-run.jsonl: Not a directory",
        "pipeline publish: option 'broker_url' is missing",
    ]
