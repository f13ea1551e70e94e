"""`land` of a stream queue: the same table as of the files, each record once."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipeline.__main__ import main
from pipeline.data.journal import read_records, read_rings, set_aside
from pipeline.data.landed import Aside, Landed
from pipeline.data.period import Period
from pipeline.data.rings import to_json
from pipeline.stream.messages import RECORDS, RING
from pipeline.stream.queue import StreamQueue
from testbed.broker import Broker
from tests.integration.broker_api import VirtualHost
from tests.pipeline.records import PROXY, Record, published, ring_of, write_journal
from tests.pipeline.streams import put, refused, stream_queue

KNOWN, LATER = ring_of({"q1": 1, "q2": 2}), ring_of({"q1": 1, "q2": 2, "q3": 3})


def body(records: list[Record]) -> bytes:
    return b"\n".join(json.dumps(one).encode() for one in records)


def land(queue: StreamQueue, out: Path) -> list[str]:
    return ["land", "--amqp-url", queue.url, "--queue", queue.name, "--out", str(out)]


def held(spark: SparkSession, journal: Path) -> list[tuple[object, ...]]:
    records = read_records(spark, str(journal)).drop("file").orderBy("proxy", "seq")
    return [tuple(bytes(v) if isinstance(v, bytearray) else v for v in row) for row in records.collect()]


def test_a_queue_becomes_the_table_that_files_become(
    spark: SparkSession, broker: Broker, vhost: VirtualHost, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queue = stream_queue(broker, vhost.name)
    keys = [b"\xff%d" % n for n in range(30)]
    # Two hours of them; one has no message id.
    told = published(KNOWN, keys[:20], every=240_000_000)
    told += published(LATER, keys[20:], first=21, start=told[-1]["time"] + 1)
    told[3] = {name: value for name, value in told[3].items() if name != "message_id"}
    landed, written = tmp_path / "landed", tmp_path / "written"
    run = land(queue, landed)

    # In doubt, a sidecar sends a message again.
    put(
        queue, [(to_json(KNOWN).encode(), RING), (body(told[:20]), RECORDS), (body(told[:20]), RECORDS)], together=False
    )
    assert main(run) == 0
    assert capsys.readouterr().out == f"20 records, 20 copies left out: {landed}\n"
    put(queue, [(to_json(LATER).encode(), RING), (body(told[20:]), RECORDS)], together=False)
    assert main(run) == 0
    assert capsys.readouterr().out == f"10 records: {landed}\n"

    write_journal(written, told, [KNOWN, LATER])
    assert held(spark, landed) == held(spark, written)
    assert read_rings(spark, str(landed)) == read_rings(spark, str(written))
    assert Landed(spark, str(landed)).manifest("dt=2026-11-21/hour=17").sequences == {PROXY: [(1, 15)]}


@pytest.mark.long
def test_in_a_session_that_was_begun_elsewhere_it_is_the_same(
    notebook: SparkSession, broker: Broker, vhost: VirtualHost, tmp_path: Path
) -> None:
    queue, landed, written = stream_queue(broker, vhost.name), tmp_path / "landed", tmp_path / "written"
    told = published(KNOWN, [b"%d" % n for n in range(20)], every=240_000_000)
    put(queue, [(to_json(KNOWN).encode(), RING)])
    for part in (told[:10], told[10:]):
        put(queue, [(body(part), RECORDS)])
        assert main(land(queue, landed)) == 0
    write_journal(written, told, [KNOWN])
    assert held(notebook, landed) == held(notebook, written)
    assert {folder.name for folder in (landed / "records").glob("dt=2026-11-21/*")} == {"hour=17", "hour=18"}


@pytest.mark.long
def test_a_copy_in_a_later_batch_is_left_out_and_a_batch_that_comes_again_adds_nothing(
    spark: SparkSession, broker: Broker, vhost: VirtualHost, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queue, landed, written = stream_queue(broker, vhost.name), tmp_path / "landed", tmp_path / "written"
    # Over two hours; one is missing.
    told = published(KNOWN, [b"%d" % n for n in range(30)], every=240_000_000)
    del told[7]
    put(queue, [(to_json(KNOWN).encode(), RING), (body(told[:20]), RECORDS)], together=False)
    assert main(land(queue, landed)) == 0
    # The sidecar is in doubt of its last two messages, and another one brings something new of the first hour.
    other = published(KNOWN, [b"other"], proxy="00000000000000b2")
    put(queue, [(body(told[10:20]), RECORDS), (body(told[15:] + other), RECORDS)], together=False)
    capsys.readouterr()
    assert main(land(queue, landed)) == 0
    assert capsys.readouterr().out == f"10 records, 15 copies left out: {landed}\n"
    write_journal(written, told + other, [KNOWN])
    assert held(spark, landed) == held(spark, written)

    # Killed between the manifests and the commit.
    (commits,) = landed.glob("checkpoint/*/commits")
    for name in ("1", ".1.crc"):
        (commits / name).unlink()
    put(queue, [(body(told[:5]), RECORDS)])
    assert main(land(queue, landed)) == 0
    assert capsys.readouterr().out == (
        f"0 records, 25 copies left out: {landed}\n0 records, 5 copies left out: {landed}\n"
    )
    assert held(spark, landed) == held(spark, written)
    assert main(["skew", "--journal", str(landed), "--out", str(tmp_path / "skew")]) == 0
    assert "\n1 records missing: " in capsys.readouterr().out


def test_what_cannot_be_read_is_set_aside(
    spark: SparkSession, broker: Broker, vhost: VirtualHost, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queue, landed = stream_queue(broker, vhost.name), tmp_path / "landed"
    told = published(KNOWN, [b"%d" % n for n in range(30)])
    bad = [told[10] | {"outcome": "weird"}, told[11] | {"v": 2}, told[12] | {"event": "other"}]
    put(
        queue,
        [
            (to_json(KNOWN).encode(), RING),
            (body(told[:10]), RECORDS),
            (body([*told[13:20], *bad]), RECORDS),
            (b"\xff no record", RECORDS),
            (b"", "something else"),
            (body(told[20:]), RECORDS),
        ],
        together=False,
    )
    assert main(land(queue, landed)) == 1
    said = f"27 records, 5 lines and 0 files set aside in {landed}/quarantine: {landed}\n"
    assert capsys.readouterr().out == said
    assert [row[4] for row in held(spark, landed)] == [n for n in range(1, 31) if n not in (11, 12, 13)]
    assert set_aside(spark, str(landed)) == Aside(5, 0)
    kept = spark.read.json(f"{landed}/quarantine").select("reason").collect()
    offset = rf"{queue}, offset "
    assert sorted(row.reason.replace(offset, "") for row in kept)[:4] == [
        "2: field 'outcome' is weird, not one of confirmed, passed, nacked, unroutable, unknown, sent, invalid",
        "2: schema version 2, known is 1",
        "3: a line that is no record: JSON parse error: Invalid value. in row 0",
        "4: a message of type 'something else', known are ringproxy.records.v1 and ringproxy.ring.v1",
    ]
    # They may be of any time.
    assert Landed(spark, str(landed)).aside(Period(until=datetime(2026, 11, 21, tzinfo=UTC))) == Aside(5, 0)
    assert main(land(queue, landed)) == 1


def test_a_ring_that_no_message_holds_is_the_other_jobs_to_tell(
    spark: SparkSession, broker: Broker, vhost: VirtualHost, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Retention has removed it."""
    queue, landed = stream_queue(broker, vhost.name), tmp_path / "landed"
    told = published(KNOWN, [b"a", b"b"]) + published(LATER, [b"c"], first=3)
    put(queue, [(to_json(KNOWN).encode(), RING), (body(told), RECORDS)], together=False)
    assert main(land(queue, landed)) == 0
    assert len(held(spark, landed)) == 3
    assert set(read_rings(spark, str(landed))) == {KNOWN.fingerprint}
    said = refused(capsys, ["skew", "--journal", str(landed), "--out", str(tmp_path / "skew")])
    assert f"rings/{LATER.fingerprint}.json is missing" in said


def test_queues_have_checkpoints_of_their_own_and_a_bad_ring_is_set_aside(
    spark: SparkSession, broker: Broker, vhost: VirtualHost, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = (stream_queue(broker, vhost.name, name) for name in ("one", "other"))
    landed, told = tmp_path / "landed", published(KNOWN, [b"a", b"b", b"c", b"d"])
    put(one, [(to_json(KNOWN).encode(), RING), (body(told[:2]), RECORDS), (body(told[2:3]), RECORDS)], together=False)
    assert main(land(one, landed)) == 0
    # Its first offsets are those that the first queue's checkpoint has behind it; its ring cannot be read.
    record = told[3] | {"ring": LATER.fingerprint}
    put(other, [(b"{", RING), (body([record]), RECORDS)], together=False)
    capsys.readouterr()
    for said in (f"1 records, 0 lines and 1 files set aside in {landed}/quarantine: {landed}\n", ""):
        assert main(land(other, landed)) == 1
        assert capsys.readouterr().out == said
    assert len(held(spark, landed)) == 4
    assert len(list(landed.glob("checkpoint/*/commits"))) == 2
    (kept,) = spark.read.json(f"{landed}/quarantine").select("reason").collect()
    assert kept.reason.startswith(f"{other}, offset ")
    assert ": not JSON: " in kept.reason


def test_which_queue_it_is() -> None:
    places = [StreamQueue(f"amqp://u:p@h{path}", "q").place for path in ("", "/", "/%2F", "/shop", "/a%2Fb")]
    assert places == [("h", "/", "q")] * 3 + [("h", "shop", "q"), ("h", "a/b", "q")]
    assert StreamQueue("amqps://x:y@h:5671/shop", "q").place == places[3]


def test_a_broker_that_is_not_there_is_told(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queue = StreamQueue("amqp://nobody:secret@127.0.0.1:1/", "journal")
    said = refused(capsys, land(queue, tmp_path / "out"))
    assert said.startswith("pipeline land: ")
    assert "127.0.0.1:1" in said
    assert "secret" not in said
