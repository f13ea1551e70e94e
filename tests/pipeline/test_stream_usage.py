"""`usage --stream` from a stream queue: each record once, whatever of it came twice, run after run."""

import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from pipeline.__main__ import main
from pipeline.stream.messages import RECORDS
from testbed.broker import Broker
from tests.integration.broker_api import VirtualHost
from tests.pipeline.records import Record, published, ring_of
from tests.pipeline.streams import put, refused, settled, stream_queue


def body(records: list[Record]) -> bytes:
    return b"\n".join(json.dumps(one).encode() for one in records)


def messages(out: Path) -> int:
    return sum(pq.read_table(out / "usage", columns=["messages"])["messages"].to_pylist())


def test_each_run_adds_what_came(spark: SparkSession, broker: Broker, vhost: VirtualHost, tmp_path: Path) -> None:
    queue = stream_queue(broker, vhost.name)
    told = published(ring_of({"q1": 1, "q2": 2}), [b"%d" % n for n in range(30)])
    # In doubt, a sidecar sends a message again.
    put(queue, [(body(told[:10]), RECORDS), (body(told[10:20]), RECORDS), (body(told[10:20]), RECORDS)])
    run = ["usage", "--stream", "--amqp-url", queue.url, "--queue", queue.name, "--out", str(tmp_path)]
    assert main(run) == 0
    assert messages(tmp_path) == 20
    put(queue, [(body(told[20:]), RECORDS)])
    assert main(run) == 0
    assert messages(tmp_path) == 30


@pytest.mark.long
def test_it_goes_on_behind_a_message_that_is_no_record(
    spark: SparkSession, broker: Broker, vhost: VirtualHost, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queue = stream_queue(broker, vhost.name)
    told = published(ring_of({"q1": 1}), [b"%d" % n for n in range(30)])
    put(queue, [(body(told[:10]), RECORDS), (b"no record", RECORDS), (body(told[10:]), RECORDS)], together=False)
    run = ["usage", "--stream", "--amqp-url", queue.url, "--queue", queue.name, "--max-messages", "1", "--out"]
    for _ in range(2):
        said = refused(capsys, [*run, str(tmp_path / "before")])
        assert f"{queue}, offset 1: a line that is no record: " in said
        assert "(--starting 2 with a new --out, " in said
    assert messages(tmp_path / "before") == 10
    # Where the batch that failed, number 1, began: docs/how-to/read-a-stream.md says how to find it.
    offsets = (tmp_path / "before" / "checkpoint" / "offsets" / "0").read_text()
    assert json.loads(offsets.splitlines()[-1]) == {"next": 1}
    assert main([*run, str(tmp_path / "behind"), "--starting", "2"]) == 0
    assert messages(tmp_path / "behind") == 20


@pytest.mark.long
def test_it_goes_on_where_retention_has_left_something(
    spark: SparkSession, broker: Broker, vhost: VirtualHost, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queue = stream_queue(broker, vhost.name)
    limits = {"x_stream_max_segment_size_bytes": 2000, "x_max_length_bytes": 6000}
    told = published(ring_of({"q1": 1}), [b"%d" % n for n in range(60)])
    run = ["usage", "--stream", "--amqp-url", queue.url, "--queue", queue.name, "--out", str(tmp_path)]
    put(queue, [(body([told[0]]), RECORDS)], together=True, **limits)
    assert main(run) == 0
    for n in range(1, 60, 15):
        put(queue, [(body([one]), RECORDS) for one in told[n : n + 15]], together=False, **limits)
    oldest = settled(queue)
    said = refused(capsys, run)
    assert f": offsets 1 to {oldest - 1} are gone, removed by its retention" in said
    assert f"(--lossy, in a program lossy=true, goes on at {oldest})" in said
    assert messages(tmp_path) == 1
    assert main([*run, "--lossy"]) == 0
    left = queue.messages(oldest, queue.end(), lossy=True)
    assert messages(tmp_path) == 1 + len(left) < 60


def test_a_broker_that_is_not_there_is_told(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["usage", "--stream", "--amqp-url", "amqp://nobody:secret@127.0.0.1:1/", "--queue", "journal"]
    assert main([*run, "--out", str(tmp_path / "out")]) == 2
    (said,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("pipeline usage: ")]
    assert "127.0.0.1:1" in said
    assert "secret" not in said
    assert {path.name for path in (tmp_path / "out").glob("*")} <= {"checkpoint"}


@pytest.mark.parametrize(
    "given",
    [
        [],
        ["--queue", "q"],
        ["--amqp-url", "amqp://h/", "--queue", "q"],
        ["--journal", "d", "--queue", "q"],
        ["--journal", "d", "--lossy"],
        ["--journal", "d", "--starting", "next"],
    ],
)
def test_where_the_records_are_must_be_said(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, given: list[str]
) -> None:
    assert main(["usage", "--out", str(tmp_path / "out"), *given]) == 2
    assert re.match("pipeline usage: (give )?--", capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--starting", "last"], "--starting: 'last' is not first, next or an offset"),
        (["--max-messages", "0"], "--max-messages: 0 is less than 1"),
    ],
)
def test_an_option_of_the_queue_that_cannot_be_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, given: list[str], said: str
) -> None:
    run = ["usage", "--stream", "--amqp-url", "amqp://h/", "--queue", "q", "--out", str(tmp_path / "out"), *given]
    assert refused(capsys, run) == f"pipeline usage: {said}"
    assert not (tmp_path / "out").exists()
