"""`collect`: what is in a stream queue becomes a journal's folder, which the other jobs read."""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pipeline.__main__ import main
from pipeline.data.journal import read_records, read_rings
from pipeline.data.rings import to_json
from pipeline.data.schema import RECORD
from pipeline.stream.messages import RECORDS, RING
from pipeline.stream.queue import StreamQueue
from testbed.broker import Broker
from tests.integration.broker_api import VirtualHost
from tests.pipeline.records import Record, published, ring_of, write_journal
from tests.pipeline.streams import put, refused, stream_queue

KNOWN, LATER = ring_of({"q1": 1, "q2": 2}), ring_of({"q1": 1, "q2": 2, "q3": 3})


def body(records: list[Record]) -> bytes:
    return b"\n".join(json.dumps(one).encode() for one in records)


def collect(queue: StreamQueue, out: Path) -> list[str]:
    return ["collect", "--amqp-url", queue.url, "--queue", queue.name, "--out", str(out)]


def held(spark: SparkSession, journal: Path) -> list[tuple[object, ...]]:
    folder = (F.regexp_extract("file", r"/dt=([^/]+)/hour=0?([^/]+)/", n) for n in (1, 2))
    records = read_records(spark, str(journal)).select(*RECORD.fieldNames(), *folder).orderBy("proxy", "seq")
    return [tuple(bytes(v) if isinstance(v, bytearray) else v for v in row) for row in records.collect()]


def test_a_queue_becomes_the_folder_that_a_sidecar_writes(
    spark: SparkSession, broker: Broker, vhost: VirtualHost, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queue = stream_queue(broker, vhost.name)
    keys = [b"\xff%d" % n for n in range(30)]
    # Two hours of them; one has no message id.
    told = published(KNOWN, keys[:20], every=240_000_000)
    told += published(LATER, keys[20:], first=21, start=told[-1]["time"] + 1)
    told[3] = {name: value for name, value in told[3].items() if name != "message_id"}
    collected, written = tmp_path / "collected", tmp_path / "written"
    run = collect(queue, collected)

    # In doubt, a sidecar sends a message again.
    put(
        queue, [(to_json(KNOWN).encode(), RING), (body(told[:20]), RECORDS), (body(told[:20]), RECORDS)], together=False
    )
    assert main(run) == 0
    assert capsys.readouterr().out == f"20 records: {collected}\n"
    put(queue, [(to_json(LATER).encode(), RING), (body(told[20:]), RECORDS)], together=False)
    assert main(run) == 0

    write_journal(written, told, [KNOWN, LATER])
    assert held(spark, collected) == held(spark, written)
    assert read_rings(spark, str(collected)) == read_rings(spark, str(written))


@pytest.mark.long
def test_in_a_session_that_was_begun_elsewhere_it_is_the_same(
    notebook: SparkSession, broker: Broker, vhost: VirtualHost, tmp_path: Path
) -> None:
    queue, collected, written = stream_queue(broker, vhost.name), tmp_path / "collected", tmp_path / "written"
    told = published(KNOWN, [b"%d" % n for n in range(20)], every=240_000_000)
    put(queue, [(to_json(KNOWN).encode(), RING)])
    for part in (told[:10], told[10:]):
        put(queue, [(body(part), RECORDS)])
        assert main(collect(queue, collected)) == 0
    write_journal(written, told, [KNOWN])
    assert held(notebook, collected) == held(notebook, written)
    assert {folder.name for folder in (collected / "records").glob("dt=2026-11-21/*")} == {"hour=17", "hour=18"}


@pytest.mark.long
def test_a_copy_in_a_later_batch_is_left_out_and_a_batch_that_comes_again_is_the_same(
    spark: SparkSession, broker: Broker, vhost: VirtualHost, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queue, collected, written = stream_queue(broker, vhost.name), tmp_path / "collected", tmp_path / "written"
    # Over two hours; one is missing.
    told = published(KNOWN, [b"%d" % n for n in range(30)], every=240_000_000)
    del told[7]
    put(queue, [(to_json(KNOWN).encode(), RING), (body(told[:20]), RECORDS)], together=False)
    assert main(collect(queue, collected)) == 0
    # The sidecar is in doubt of its last two messages, and another one brings something new of the first hour.
    other = published(KNOWN, [b"other"], proxy="00000000000000b2")
    put(queue, [(body(told[10:20]), RECORDS), (body(told[15:] + other), RECORDS)], together=False)
    capsys.readouterr()
    assert main(collect(queue, collected)) == 0
    assert capsys.readouterr().out == f"10 records: {collected}\n"
    write_journal(written, told + other, [KNOWN])
    assert held(spark, collected) == held(spark, written)

    # Killed between the files and the commit.
    for name in ("1", ".1.crc"):
        (collected / "checkpoint" / "commits" / name).unlink()
    put(queue, [(body(told[:5]), RECORDS)])
    assert main(collect(queue, collected)) == 0
    assert capsys.readouterr().out == f"10 records: {collected}\n0 records: {collected}\n"
    assert held(spark, collected) == held(spark, written)
    assert main(["skew", "--journal", str(collected), "--out", str(tmp_path / "skew")]) == 0
    assert "\n1 records missing: " in capsys.readouterr().out


@pytest.mark.long
def test_it_goes_on_behind_a_message_that_is_no_record(
    spark: SparkSession, broker: Broker, vhost: VirtualHost, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queue = stream_queue(broker, vhost.name)
    told = published(KNOWN, [b"%d" % n for n in range(30)])
    bad = told[10] | {"outcome": "weird"}
    put(
        queue,
        [(body(told[:10]), RECORDS), (body([*told[11:20], bad]), RECORDS), (body(told[20:]), RECORDS)],
        together=False,
    )
    put(queue, [(to_json(KNOWN).encode(), RING)])
    for _ in range(2):
        said = refused(capsys, [*collect(queue, tmp_path / "before"), "--max-messages", "1"])
        assert f"pipeline collect: {queue}, offset 1: field 'outcome' is weird, not one of confirmed, " in said
        assert "(--starting 2 with a new --out, " in said
    assert len(held(spark, tmp_path / "before")) == 10
    assert main([*collect(queue, tmp_path / "behind"), "--starting", "2"]) == 0
    assert len(held(spark, tmp_path / "behind")) == 10
    assert set(read_rings(spark, str(tmp_path / "behind"))) == {KNOWN.fingerprint}


def test_a_ring_that_no_message_holds_is_the_other_jobs_to_tell(
    spark: SparkSession, broker: Broker, vhost: VirtualHost, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Retention has removed it."""
    queue, collected = stream_queue(broker, vhost.name), tmp_path / "collected"
    told = published(KNOWN, [b"a", b"b"]) + published(LATER, [b"c"], first=3)
    put(queue, [(to_json(KNOWN).encode(), RING), (body(told), RECORDS)], together=False)
    assert main(collect(queue, collected)) == 0
    assert len(held(spark, collected)) == 3
    assert set(read_rings(spark, str(collected))) == {KNOWN.fingerprint}
    said = refused(capsys, ["skew", "--journal", str(collected), "--out", str(tmp_path / "skew")])
    assert f"rings/{LATER.fingerprint}.json is missing" in said


def test_a_broker_that_is_not_there_is_told(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queue = StreamQueue("amqp://nobody:secret@127.0.0.1:1/", "journal")
    said = refused(capsys, collect(queue, tmp_path / "out"))
    assert said.startswith("pipeline collect: ")
    assert "127.0.0.1:1" in said
    assert "secret" not in said
    assert {path.name for path in (tmp_path / "out").glob("*")} <= {"checkpoint"}


def test_where_the_queue_is_must_be_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["collect", "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == "pipeline collect: give --amqp-url and --queue: where the records are\n"
    assert not (tmp_path / "out").exists()
