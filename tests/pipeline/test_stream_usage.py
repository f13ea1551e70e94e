"""`usage --stream` from a stream queue: each record once, whatever of it came twice, run after run."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from pipeline.__main__ import main
from pipeline.stream.messages import RECORDS
from testbed.broker import Broker
from tests.integration.broker_api import VirtualHost
from tests.pipeline.records import Record, published, ring_of
from tests.pipeline.streams import put, stream_queue


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
    "given", [[], ["--queue", "q"], ["--amqp-url", "amqp://h/", "--queue", "q"], ["--journal", "d", "--queue", "q"]]
)
def test_where_the_records_are_must_be_said(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, given: list[str]
) -> None:
    assert main(["usage", "--out", str(tmp_path / "out"), *given]) == 2
    assert capsys.readouterr().err.startswith("pipeline usage: --")
    assert not (tmp_path / "out").exists()
