"""The job `reconcile`, by its command: a journal and a table of what consumers saw, with faults put in."""

import json
import random
import shutil
from base64 import b64encode
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from pipeline.__main__ import main
from pipeline.reconcile.messages import FLAWS
from tests.pipeline.records import START, Record, published, ring_of, truncated, write_journal
from tests.pipeline.reference import names, rows, section
from tests.pipeline.work import moved, padded, read_so_far

RING = ring_of({"orders.1": 1, "orders.2": 1, "orders.3": 1})
KEYS = [f"customer-{n % 7}".encode() for n in range(60)]
HOUR = 3_600_000_000
Seen = tuple[str | None, str, int]
"""Message id, queue, microseconds."""

pytestmark = pytest.mark.usefixtures("spark")


def seen_of(records: Sequence[Record]) -> list[Seen]:
    """All of them, in order, each a millisecond after its confirm."""
    return [(record["message_id"], record["destination"], record["time"] + 1000) for record in records]


def reconcile(
    spark: SparkSession, tmp_path: Path, records: Sequence[Record], seen: Sequence[Seen], *arguments: str
) -> tuple[int, dict[str, Any], dict[str, Row]]:
    """The exit status, the verdict, and each message that has a flaw."""
    write_journal(tmp_path / "journal", records, [RING])
    frame = spark.createDataFrame(list(seen), "message_id string, queue string, time long")
    frame.write.mode("overwrite").parquet(str(tmp_path / "seen.parquet"))
    status = run(tmp_path, "--seen", str(tmp_path / "seen.parquet"), *arguments)
    told = json.loads((tmp_path / "out" / "verdict.json").read_text())
    rows = spark.read.parquet(str(tmp_path / "out" / "messages")).collect()
    return status, told, {row.message_id: row for row in rows if any(row[name] for name in FLAWS)}


def run(tmp_path: Path, *arguments: str) -> int:
    of = ("--journal", str(tmp_path / "journal"), "--vhost", "/", "--out", str(tmp_path / "out"))
    return main(["reconcile", *of, *arguments])


def flaws(row: Row) -> set[str]:
    return {name for name in FLAWS if row[name]}


def test_everything_arrived(spark: SparkSession, tmp_path: Path) -> None:
    records = published(RING, KEYS)
    status, told, flawed = reconcile(spark, tmp_path, records, seen_of(records))
    assert (status, told["verdict"], flawed) == (0, "nothing lost or misplaced", {})
    assert (told["messages"], told["confirmed"], told["seen"], told["copies"]) == (60, 60, 60, 60)
    assert [told[name] for name in FLAWS] == [0] * len(FLAWS)
    documented, summary = (
        {name for row in rows(section(title)) for name in names(row[0])}
        for title in ("verdict.json of reconcile", "OUT/summary")
    )
    of_all = {name for row in rows(section("verdict.json")) for name in names(row[0])}
    assert set(told) == of_all | documented - {"OUT/summary"} | summary - {"queue"}
    assert "No record is missing in between" in (tmp_path / "out" / "report.html").read_text()


def test_each_flaw_is_found_and_no_other(spark: SparkSession, tmp_path: Path) -> None:
    records = published(RING, KEYS)
    ids = [record["message_id"] for record in records]
    records[5] |= {"outcome": "unknown"}  # not seen: nothing was promised
    records[6] |= {"message_id": None}
    records[8] |= {"outcome": "passed", "kind": None, "destination": None}  # whose queue nobody knows
    records[9] |= {"outcome": "unknown"}  # seen all the same
    seen = seen_of(published(RING, KEYS))
    wrong = next(name for name in ("orders.1", "orders.2") if name != seen[3][1])
    seen[3] = (ids[3], wrong, seen[3][2])
    assert KEYS[20] == KEYS[27]
    seen[20] = (ids[20], seen[20][1], seen[27][2] + 1)  # after the next of its key
    seen[6] = (None, *seen[6][1:])
    seen += [(ids[2], seen[2][1], seen[2][2] + 9), (ids[2], seen[2][1], seen[2][2] + 10), ("stray", "orders.1", 5)]
    del seen[5], seen[4]
    status, told, flawed = reconcile(spark, tmp_path, records, seen)
    assert {name: flaws(row) for name, row in flawed.items()} == {
        ids[2]: {"duplicated"},
        ids[3]: {"wrong_queue"},
        ids[4]: {"lost"},
        ids[5]: {"unconfirmed"},
        ids[20]: {"out_of_order"},
        "stray": {"unexpected"},
    }
    assert flawed[ids[2]].copies == 3
    assert (flawed[ids[3]].queues, flawed[ids[3]].seen_queues) == ([records[3]["destination"]], [wrong])
    assert (status, told["verdict"]) == (1, "lost or misplaced")
    assert {name: told[name] for name in FLAWS} == dict.fromkeys(FLAWS, 1) | {"undetermined": 0}
    assert (told["records_without_message_id"], told["seen_without_message_id"]) == (1, 1)
    summary = spark.read.parquet(str(tmp_path / "out" / "summary")).collect()
    assert {row.queue: row.lost for row in summary if row.lost} == {records[4]["destination"]: 1}
    assert sum(row.messages for row in summary) == told["messages"] == 60
    page = (tmp_path / "out" / "report.html").read_text()
    assert "or of a sidecar killed before its first file" in page
    assert ids[4] in page
    assert "stray" in page


def test_messages_of_a_later_generation_belong_in_its_own_queues(spark: SparkSession, tmp_path: Path) -> None:
    """An exchange that grew and shrank again has the places of its first generation, and other queues."""
    again = replace(RING, queues={d.name: d.name.replace(".", ".g3.") for d in RING.weights})
    assert again.fingerprint != RING.fingerprint
    old, new = published(RING, KEYS), published(again, KEYS, first=61, start=START + HOUR // 2)
    write_journal(tmp_path / "journal", [], [again])
    seen = seen_of(old) + [(name, again.queues[queue], at) for name, queue, at in seen_of(new)]
    assert reconcile(spark, tmp_path, [*old, *new], seen)[0] == 0
    mine = {row.queue for row in spark.read.parquet(str(tmp_path / "out" / "summary")).collect() if row.messages}
    assert mine == {*(d.name for d in RING.weights), *again.queues.values()}

    name, queue, at = seen_of(old)[7]
    seen[7] = (name, again.queues[queue], at)
    other, queue, at = seen_of(new)[9]
    assert name is not None
    assert other is not None
    seen[69] = (other, queue, at)
    status, told, flawed = reconcile(spark, tmp_path, [*old, *new], seen)
    assert status == 1
    assert {name: flaws(row) for name, row in flawed.items()} == {name: {"wrong_queue"}, other: {"wrong_queue"}}
    assert (flawed[other].queues, flawed[other].seen_queues) == ([again.queues[queue]], [queue])
    assert (told["lost"], told["copies_elsewhere"]) == (0, 0)


@pytest.mark.long
def test_each_message_is_judged_by_all_of_its_own_records(spark: SparkSession, tmp_path: Path) -> None:
    """Several sidecars' traffic in one journal, of which each has a case of its own."""
    records: list[Record] = []
    seen: list[Seen] = []
    expected: dict[str, set[str]] = {}

    def case(number: int, keys: Sequence[bytes]) -> list[Record]:
        return published(RING, keys, proxy=f"{number:016x}")

    def another(record: Record) -> str:
        return next(name for name in ("orders.1", "orders.2") if name != record["destination"])

    # Sent over HTTP, returned, and sent again to where a fresh ring said: the confirmed record wins.
    first, again = case(1, [b"k", b"k"])
    again |= {"message_id": first["message_id"], "destination": another(first)}
    records += [first | {"outcome": "unroutable"}, again]
    seen += seen_of([again])
    # Published again after a 504, when another queue was the key's: both copies are where the journal says.
    first, again = case(2, [b"k", b"k"])
    again |= {"message_id": first["message_id"], "destination": another(first)}
    records += [first | {"outcome": "unknown"}, again]
    seen += seen_of([first, again])
    expected[first["message_id"]] = {"duplicated"}
    # Passed, and not there.
    passed = [record | {"outcome": "passed", "kind": None, "destination": None} for record in case(3, KEYS[:3])]
    records += passed
    seen += seen_of(case(3, KEYS[:3]))[1:]
    expected[passed[0]["message_id"]] = {"lost"}
    # Two sidecars' numbers, and two keys' messages, have no order between them; nor has what was seen at one time.
    a, b = case(4, [b"k", b"k", b"other", b"t", b"t"]), case(5, [b"k"])
    records += a + b
    at = (50, 60, 1, 9, 9, 40)
    seen += [(r["message_id"], r["destination"], START + n) for r, n in zip(a + b, at, strict=True)]
    # One that was seen after another that was published when it had been confirmed.
    late, early = case(6, [b"k", b"k"])
    records += [late, early]
    seen += [(r["message_id"], r["destination"], START + n) for r, n in ((late, 80), (early, 70))]
    expected[late["message_id"]] = {"out_of_order"}
    # Sent to an exchange that binds two queues, each of which got it; and one that a queue got twice.
    fanned = [record | {"kind": "exchange", "destination": "fan"} for record in case(7, KEYS[:2])]
    records += fanned
    seen += [(r["message_id"], queue, r["time"] + 1) for r in fanned for queue in ("orders.1", "elsewhere")]
    seen.append((fanned[1]["message_id"], "elsewhere", fanned[1]["time"] + 2))
    expected[fanned[1]["message_id"]] = {"duplicated"}

    status, told, flawed = reconcile(spark, tmp_path, records, seen)
    assert {name: flaws(row) for name, row in flawed.items()} == expected
    assert (status, told["messages"], told["confirmed"], told["lost"]) == (1, 15, 15, 1)
    assert (told["repeated"], told["anywhere"]) == (1, 5)


@pytest.mark.long
def test_a_copy_of_another_message_with_the_same_id_hides_no_loss_unsaid(spark: SparkSession, tmp_path: Path) -> None:
    """Messages of one exchange since 17:00, of which each has a case of its own; the id of most is another's, too."""
    records = published(RING, [b"k"] * 9)
    for record, name in zip(records, ("daily", "before", "retried", "shared", "apart"), strict=False):
        record["message_id"] = name
    daily, _, retried, shared, apart, copied, unheard, *whole = records
    away = next(name for name in ("orders.1", "orders.2") if name != apart["destination"])
    # Yesterday's message with that id was seen, today's is lost.
    seen: list[Seen] = [("daily", daily["destination"], START - 20 * HOUR)]
    # Another sidecar's, shortly before 17:00 and of the same id, was seen; the one of this time was not.
    others = published(RING, [b"k"], proxy="00000000000000b2", start=START - HOUR // 6)
    others[0]["message_id"] = "before"
    seen += seen_of(others)
    # The first try arrived, though its confirm did not; the second was confirmed and is lost.
    tries = [retried | {"outcome": "unknown"}, retried]
    seen += seen_of(tries[:1])
    records[2:3] = [record | {"seq": 10 + n} for n, record in enumerate(tries)]
    # Two exchanges have a message of that id: for one queue, of which one is lost; for two, of which this exchange's is
    # lost; the other's in a queue that this one's rings do not have, or refused: that can't be taken for this one's.
    both = (shared, shared["destination"]), (apart, away), (copied, "invoices.1"), (unheard, unheard["destination"])
    invoices = [r | {"exchange": "invoices", "destination": queue, "seq": n} for n, (r, queue) in enumerate(both, 20)]
    invoices[3]["outcome"] = "nacked"
    seen += [*seen_of([shared, copied, unheard, *whole]), *seen_of(invoices[1:3])]
    records = [record | {"proxy": f"{n:016x}", "seq": 1} for n, record in enumerate(records + invoices, 1)]
    others[0]["proxy"] = f"{99:016x}"
    limits = ("--exchange", "orders", "--from", "2026-11-21T17")
    status, told, flawed = reconcile(spark, tmp_path, records + others, seen, *limits)
    assert {name: flaws(row) for name, row in flawed.items()} == {"daily": {"lost"}, "apart": {"undetermined"}}
    rows = spark.read.parquet(str(tmp_path / "out" / "messages")).where("repeated").collect()
    assert {row.message_id for row in rows} == {"before", "retried", "shared", "apart"}
    assert (status, told["lost"], told["repeated"], told["copies_before"]) == (1, 1, 4, 1)
    page = (tmp_path / "out" / "report.html").read_text()
    assert "4 message ids are not unique" in page
    assert "seen more than an hour before the first judged record, and do not count: 1." in page


def test_a_journal_without_message_ids_is_no_evidence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ring = ring_of({"orders.1": 1}, "property:message_id")
    records = [record | {"message_id": None} for record in published(ring, KEYS)]
    write_journal(tmp_path / "journal", records, [ring])
    (tmp_path / "seen.csv").write_text("message_id,queue,time\nm,orders.1,1\n")
    assert run(tmp_path, "--seen", str(tmp_path / "seen.csv")) == 2
    assert (
        "none of the 60 records of virtual host '/' has a message id: nothing can be judged" in capsys.readouterr().err
    )
    assert not (tmp_path / "out").exists()


def test_a_gap_leaves_what_it_may_explain_undetermined(spark: SparkSession, tmp_path: Path) -> None:
    records = published(RING, KEYS)
    seen = seen_of(records)
    records[12] |= {"outcome": "unknown"}
    wrong = next(name for name in ("orders.1", "orders.2") if name != seen[12][1])
    seen[12] = (seen[12][0], wrong, seen[12][2])
    lost, gone = seen.pop(40)[0], records.pop(30)
    status, told, flawed = reconcile(spark, tmp_path, records, seen)
    assert {name: flaws(row) for name, row in flawed.items()} == {
        gone["message_id"]: {"undetermined"},
        seen[12][0]: {"undetermined"},
        lost: {"lost"},
    }
    assert (status, told["records_missing"], told["unexpected"]) == (1, 1, 0)


@pytest.mark.long
def test_what_has_expired_is_not_missing_and_leaves_what_it_may_explain_undetermined(
    spark: SparkSession, tmp_path: Path
) -> None:
    records = published(RING, KEYS, first=5_000_001)
    end = records[-1]["time"] - 10_000_000
    status, told, flawed = reconcile(spark, tmp_path, records, [*seen_of(records), ("before", "orders.1", end)])
    assert {name: flaws(row) for name, row in flawed.items()} == {"before": {"undetermined"}}
    assert (status, told["records_missing"], told["records_before_oldest"]) == (0, 0, 5_000_000)
    assert told["verdict"] == "nothing lost or misplaced, but for what records before the oldest kept may hide"
    page = (tmp_path / "out" / "report.html").read_text()
    assert f"N{told['verdict'][1:]}: 0 of 60 confirmed messages were not seen" in page
    assert "5,000,000 more numbers are before the oldest kept record of their sidecar" in page


@pytest.mark.long
def test_what_was_seen_after_a_sidecars_last_record_is_undetermined(spark: SparkSession, tmp_path: Path) -> None:
    """It may have been killed with its last file unfinished."""
    records = published(RING, KEYS) + published(RING, KEYS[:9], proxy="00000000000000b2")
    # No younger than what may have been under way when it was killed, with a second for the clocks.
    end = records[-1]["time"] - max(record["latency"] for record in records) - 1_000_000
    seen = [*seen_of(records), ("before", "orders.1", end - 1), ("after", "orders.1", end)]
    status, told, flawed = reconcile(spark, tmp_path, records, seen)
    assert {name: flaws(row) for name, row in flawed.items()} == {"before": {"unexpected"}, "after": {"undetermined"}}
    assert (status, told["unexpected"], told["undetermined"]) == (0, 1, 1)


@pytest.mark.long
def test_a_sample_leaves_what_it_left_out_undetermined(spark: SparkSession, tmp_path: Path) -> None:
    records = published(RING, KEYS, sample=0.5)
    assert 0 < len(records) < len(KEYS)
    seen = [*seen_of(records), ("not-sampled", "orders.1", 7)]
    status, told, flawed = reconcile(spark, tmp_path, records, seen)
    assert {name: flaws(row) for name, row in flawed.items()} == {"not-sampled": {"undetermined"}}
    assert (status, told["sample"], told["undetermined"]) == (0, 0.5, 1)
    assert told["verdict"] == "nothing lost or misplaced, but for what keys outside the sample may hide"


@pytest.mark.long
def test_a_sequence_orders_what_has_coarse_times(spark: SparkSession, tmp_path: Path) -> None:
    records = published(RING, [b"k"] * 3)
    write_journal(tmp_path / "journal", records, [RING])
    at = datetime(2026, 11, 21, 17, 0, tzinfo=UTC)
    rows = [(record["message_id"], record["destination"], at, n) for record, n in zip(records, (1, 3, 2), strict=True)]
    frame = spark.createDataFrame(rows, "`message.id` string, `q.name` string, `at.time` timestamp, `n.th` int")
    for kind in ("parquet", "csv"):
        seen = str(tmp_path / f"seen.{kind}")
        frame.coalesce(1).write.format(kind).option("header", True).save(seen)
        names = ("--seen", seen, "--message-id", "message.id", "--queue", "q.name", "--time", "at.time")
        assert run(tmp_path, *names) == 0
        assert json.loads((tmp_path / "out" / "verdict.json").read_text())["out_of_order"] == 0
        assert run(tmp_path, *names, "--sequence", "n.th") == 0
        assert json.loads((tmp_path / "out" / "verdict.json").read_text())["out_of_order"] == 1


@pytest.mark.long
def test_a_message_is_lost_for_each_confirm_that_has_no_copy(spark: SparkSession, tmp_path: Path) -> None:
    """100 confirmed under 10 message ids, each as often as the seed says, of which about half were seen."""
    chance = random.Random(3)
    records = published(RING, [b"customer"] * 100)
    for record in records:
        record["message_id"] = f"m-{min(9, int(chance.expovariate(0.3)))}"
    seen = seen_of([record for record in records if chance.random() < 0.5])
    confirmed = Counter(str(record["message_id"]) for record in records)
    copies = Counter(message for message, _, _ in seen)
    assert len(confirmed) == 10
    lost = {message: confirmed[message] - copies[message] for message in confirmed}
    status, told, flawed = reconcile(spark, tmp_path, records, seen)
    assert {message: (row.lost, row.confirmed) for message, row in flawed.items()} == {
        message: (lost[message], confirmed[message]) for message in confirmed if lost[message]
    }
    assert (status, told["lost"], told["confirmed"], told["seen"]) == (1, 100 - len(seen), 100, len(copies))
    assert (told["messages"], told["repeated"]) == (10, sum(n > 1 for n in confirmed.values()))
    assert told["duplicated"] == 0, "each was seen no more often than it was confirmed"
    # One less of each than was confirmed, and one more: what is lost of one makes up for no other.
    ids = ["a", "a", "b", "b", "c", "c"]
    records = [record | {"message_id": name} for record, name in zip(records, ids, strict=False)]
    seen = seen_of([records[0], *records[2:6], records[2], records[4]])
    shutil.rmtree(tmp_path / "journal")
    _, told, flawed = reconcile(spark, tmp_path, records, seen)
    assert {name: (row.lost, flaws(row)) for name, row in flawed.items()} == {
        "a": (1, {"lost"}),
        "b": (0, {"duplicated"}),
        "c": (0, {"duplicated"}),
    }
    shutil.rmtree(tmp_path / "journal")
    status, told, _ = reconcile(spark, tmp_path, records, seen_of(records))
    assert (status, told["repeated"]) == (0, 3)
    assert told["verdict"] == "nothing lost or misplaced, but for what repeated message ids may hide"
    assert "3 message ids are not unique" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.long
def test_what_was_seen_in_a_queue_of_no_ring_is_told_apart(spark: SparkSession, tmp_path: Path) -> None:
    """Consumers that note what they see of many exchanges; all was copied to a queue beside the ring's."""
    records = published(RING, [f"customer-{n}".encode() for n in range(100)], every=1_000_000)
    others = published(ring_of({"invoices.1": 1}), KEYS[:5], exchange="invoices", first=101)
    write_journal(tmp_path / "journal", others, [ring_of({"invoices.1": 1})])
    beside: list[Seen] = [(record["message_id"], "audit", record["time"] + 9) for record in records]
    beside += [(f"other {n}", "audit", START + n) for n in range(7)]
    beside += [(record["message_id"], "invoices.1", record["time"]) for record in others[1:]]
    status, told, flawed = reconcile(spark, tmp_path, records, seen_of(records) + beside, "--exchange", "orders")
    assert (status, told["verdict"], flawed) == (0, "nothing lost or misplaced", {})
    assert (told["messages"], told["copies"], told["copies_elsewhere"]) == (100, 100, 100)
    # One is there only, as after dead-lettering; and one was left to RabbitMQ to route, which may have put it there.
    passed = records[8] | {"outcome": "passed", "kind": None, "destination": None}
    seen = [row for n, row in enumerate(seen_of(records)) if n not in (7, 8)] + beside
    write_journal(tmp_path / "journal", [*records[:8], passed, *records[9:]], [RING])
    status, told, flawed = reconcile(spark, tmp_path, [], seen, "--exchange", "orders")
    assert {name: flaws(row) for name, row in flawed.items()} == {records[7]["message_id"]: {"lost"}}
    assert flawed[records[7]["message_id"]].seen_queues == ["audit"]
    assert (status, told["lost"], told["lost_elsewhere"], told["copies_elsewhere"]) == (1, 1, 1, 99)
    assert "of the lost messages 1 may be among them" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.long
def test_of_one_exchange(spark: SparkSession, tmp_path: Path) -> None:
    ours = published(RING, KEYS[:9])
    others = published(RING, KEYS[:9], exchange="invoices", first=10, every=1_000_000)
    # One message of each that have the same id and were seen, where both belong.
    shared = str(ours[1]["message_id"])
    others[1]["message_id"] = shared
    others[1]["destination"] = next(name for name in ("orders.1", "orders.2") if name != ours[1]["destination"])
    status, told, flawed = reconcile(spark, tmp_path, ours + others, seen_of(ours + others[1:]), "--exchange", "orders")
    assert {name: flaws(row) for name, row in flawed.items()} == {shared: {"undetermined"}}
    assert (status, told["messages"], told["repeated"]) == (0, 9, 1)
    assert reconcile(spark, tmp_path, ours + others, seen_of(ours + others[1:]))[0] == 1


def test_rings_that_are_missing_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An exchange that hashes the message id has none in the journal: only its ring says so."""
    by_id = ring_of({"orders.1": 1}, "property:message_id")
    hashed = [record | {"message_id": None} for record in published(by_id, KEYS[:3], exchange="other", first=61)]
    write_journal(tmp_path / "journal", published(RING, KEYS) + hashed, [RING])
    (tmp_path / "seen.csv").write_text("message_id,queue,time\nstray,orders.1,1\n")
    seen = ("--exchange", "orders", "--seen", str(tmp_path / "seen.csv"))
    assert run(tmp_path, *seen) == 2
    assert not (tmp_path / "out").exists()
    fingerprint = by_id.fingerprint
    assert f"journal: 3 records name ring {fingerprint}: rings/{fingerprint}.json is missing" in capsys.readouterr().err
    write_journal(tmp_path / "journal", [], [by_id])
    assert run(tmp_path, *seen) == 1
    told = json.loads((tmp_path / "out" / "verdict.json").read_text())
    assert (told["undetermined"], told["unexpected"]) == (1, 0)


@pytest.mark.long
@pytest.mark.parametrize(
    ("key", "flaw"),
    [(None, "undetermined"), (b"0123456789abcdef", "undetermined"), (b"as it was", "unexpected")],
    ids=["journal_key none", "journal_key hash, or plain with keys of 16 bytes", "journal_key plain"],
)
def test_an_exchange_without_any_id_may_lead_through_a_ring_that_hashes_it(
    spark: SparkSession, tmp_path: Path, key: bytes | None, flaw: str
) -> None:
    """The records name only the last ring, here one that hashes the routing key."""
    records = published(RING, KEYS[:9])
    told = {"message_id": None, "key": key and b64encode(key).decode()}
    records += [record | told for record in published(RING, KEYS[:9], exchange="outer", first=10)]
    seen = [*seen_of(records[:9]), ("stray", "orders.1", 1)]
    assert {name: flaws(row) for name, row in reconcile(spark, tmp_path, records, seen)[2].items()} == {"stray": {flaw}}


@pytest.mark.long
def test_files_that_cannot_be_read(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = published(RING, [f"customer-{n}".encode() for n in range(600)])
    seen, out = tmp_path / "seen.parquet", tmp_path / "out"

    def refused() -> str:
        capsys.readouterr()
        assert run(tmp_path, "--seen", str(seen)) == 2
        (said,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("pipeline reconcile: ")]
        return said

    def files() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in out.rglob("*")}

    write_journal(tmp_path / "journal", records, [RING])
    frame = spark.createDataFrame(seen_of(records), "message_id string, queue string, time long")
    frame.coalesce(1).write.parquet(str(seen))
    assert run(tmp_path, "--seen", str(seen)) == 0
    before = files()
    faults: dict[str, Record] = {
        "schema version 2, known is 1": {"v": 2},
        "field 'outcome' is weird, not one of confirmed, ": {"outcome": "weird"},
        "field 'kind' is topic, not one of queue, exchange or null": {"kind": "topic"},
        "field 'latency' is -1, not 0 or more or null": {"latency": -1},
        "field 'exchange' is null, not a value": {"exchange": None},
    }
    for expected, fault in faults.items():
        write_journal(tmp_path / "journal", [*records[:-1], records[-1] | fault], [RING])
        assert f"jsonl.gz: {expected}" in refused()
    assert f"{truncated(tmp_path / 'journal')}: cannot be read" in refused()
    write_journal(tmp_path / "journal", records, [RING])
    assert f"{truncated(seen)}: cannot be read" in refused()
    assert files() == before, "what an earlier run has written stays"
    shutil.rmtree(out)
    refused()
    assert not out.exists()


def test_bad_input(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_journal(tmp_path / "journal", published(RING, KEYS), [RING])
    rows = [("a", None, 1), (None, "q", 2), ("b", "q", None)]
    spark.createDataFrame(rows, "message_id string, queue string, time long").write.parquet(
        str(tmp_path / "bad.parquet")
    )
    (tmp_path / "bad.csv").write_text("message_id,queue,time\na,q,noon\n")
    (tmp_path / "good.csv").write_text("message_id,queue,time\na,q,1\n")

    def refused(seen: str, *arguments: str, status: int = 2) -> str:
        capsys.readouterr()
        assert run(tmp_path, "--seen", str(tmp_path / seen), *arguments) == status
        assert {path.name for path in (tmp_path / "out").glob("*")} == ({"verdict.json"} if status == 3 else set())
        (tmp_path / "out" / "verdict.json").unlink(missing_ok=True)
        (said,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("pipeline reconcile: ")]
        return said

    assert "bad.parquet: 2 rows with a null queue, time" in refused("bad.parquet")
    assert "column 'id' is missing; column 'message_id' is string, not timestamp" in refused(
        "bad.parquet", "--message-id", "id", "--time", "message_id"
    )
    assert "bad.csv: column 'time': 'noon' is not a time" in refused("bad.csv")
    assert "no.csv: no such file" in refused("no.csv")
    assert "no record of virtual host '/', exchange 'x'" in refused("good.csv", "--exchange", "x", status=3)


@pytest.mark.parametrize("limits", [(), pytest.param(("--until", "2026-11-21T17:20"), marks=pytest.mark.long)], ids=str)
def test_the_journal_is_read_once_and_each_record_moved_twice(
    spark: SparkSession, tmp_path: Path, limits: tuple[str, ...]
) -> None:
    """Records move to what was seen of their message, and then to those of their key; what was seen moves once."""
    count = 3000
    records = published(RING, [b"customer-%d" % (n % 60) for n in range(count)], every=1_000_000)
    (file,) = write_journal(tmp_path / "journal", records, [RING])
    file.unlink()
    padded(plain := file.with_suffix(""), records)
    rows = spark.createDataFrame(seen_of(records), "message_id string, queue string, time long")
    rows.coalesce(1).write.parquet(str(tmp_path / "seen.parquet"))
    before = read_so_far(spark)
    spark.sparkContext.setJobGroup(group := str(tmp_path), "reconcile")
    assert run(tmp_path, "--exchange", "orders", "--seen", str(tmp_path / "seen.parquet"), *limits) == 0
    spark.sparkContext.setJobGroup("other", "what follows")
    assert 1 <= (read_so_far(spark) - before) / plain.stat().st_size < 1.2
    judged = json.loads((tmp_path / "out" / "verdict.json").read_text())["confirmed"]
    assert judged == (1200 if limits else count)
    # Beside these few rows of sums move.
    assert 0 <= moved(spark, group) - (count + count + judged) < count / 4
