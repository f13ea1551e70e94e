"""The pure parts of publishing: options, columns, messages, tasks, pace and the commit log."""

import argparse
import asyncio
import io
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, MapType, StringType, StructType

from pipeline import PipelineError
from pipeline.data.live import tls_of
from pipeline.data.rings import RingSpec, parse_ring, to_json
from pipeline.publish.command import files_per_batch
from pipeline.publish.commits import CommitLog, TaskResult, _cut_torn_line, read_commits, unfinished
from pipeline.publish.depth import Allowance
from pipeline.publish.messages import Reader, RowMessage, check_columns
from pipeline.publish.options import parse
from pipeline.publish.order import tasks_of
from pipeline.publish.pacing import Pace, Patience
from pipeline.publish.pinned import pinned, pinned_again
from pipeline.publish.routes import Routes, hashed_value
from pipeline.publish.sending import Sender
from pipeline.publish.window import Window
from proxy.outcome import Outcome
from proxy.publisher.channel import CONFIRMED, NACKED, UNROUTABLE, PublishResult
from proxy.publisher.protocol import PublisherProtocol
from proxy.settings.parse import ConfigError
from proxy.wire import table
from proxy.wire.arguments import Arguments
from proxy.wire.content import headers_at, table_at
from ring.destination import Destination
from ring.hashed import HashedValue
from tests.pipeline.records import ring_of

KEY = HashedValue()
F, G = ring_of({"q0": 1, "q1": 1}), ring_of({"q0": 2, "q1": 1})
URLS = {"broker_url": "amqp://h/", "management_url": "http://h"}


# Options.


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "option 'exchange' is missing"),
        ({"exchange": "e", "broker_url": ""}, "option 'broker_url' is missing"),
        ({"exchange": "e", "management_url": ""}, "option 'management_url' is missing"),
        ({"exchange": "e", "windw": "1"}, "option 'windw' is unknown; there are "),
        ({"exchange": "e", "window": "0"}, "option 'window': 0 rows would publish nothing"),
        ({"exchange": "e", "window": "many"}, "option 'window': 'many' is not a whole number from 0 up"),
        ({"exchange": "e", "retry_timeout": "0"}, "option 'retry_timeout': within 0 seconds there is no connection"),
        ({"exchange": "e", "retry_timeout": "soon"}, "option 'retry_timeout': 'soon' is not a number"),
        ({"exchange": "e", "rate": "-1"}, "option 'rate': '-1' is outside 0 to 1e9"),
        ({"exchange": "e", "rate": "100"}, "option 'rate' needs 'connections'"),
        ({"exchange": "e", "dry_run": "yes"}, "option 'dry_run': 'yes' is not true or false"),
        ({"exchange": "e", "broker_url": "http://host/"}, "option broker_url: does not start with amqp:// or amqps://"),
    ],
)
def test_a_wrong_option_is_named(given: dict[str, str], told: str) -> None:
    with pytest.raises(PipelineError) as raised:
        parse(URLS | given)
    assert str(raised.value).startswith(told)


def test_a_ring_that_is_given_needs_no_management_and_a_streams_own_options_pass() -> None:
    sparks = {"checkpointLocation": "/c", "queryName": "q", "path": "p", "commit_log": "log"}
    options = parse({"exchange": "e", "broker_url": "amqp://h/", "ring": "{}", **sparks})
    assert (options.log.path, options.log.run) == (Path("log"), "/c")
    assert parse({**URLS, "exchange": "e", "run": "id", **sparks}).log.run == "id"


@pytest.mark.parametrize(("order", "given", "files"), [(None, None, 100), ("n", None, None), ("n", 3, 3), (None, 3, 3)])
def test_with_an_order_all_files_are_one_batch(order: str | None, given: int | None, files: int | None) -> None:
    assert files_per_batch(argparse.Namespace(order=order, files_per_batch=given)) == files


def test_options_of_any_case_and_a_password_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("from the file\n")
    options = parse({**URLS, "Exchange": "e", "BROKER_URL": "amqp://u:p@h/v", "broker_password_file": str(file)})
    assert options.settings.broker_url.password == "from the file"
    assert (options.exchange, options.window, options.settings.default_vhost) == ("e", 5000, "v")


def test_tls_is_of_urls_that_ask_for_it(tmp_path: Path) -> None:
    file = tmp_path / "ca.crt"
    urls = {"broker_url": "amqps://h/", "management_url": "http://h/"}
    settings = parse({**urls, "exchange": "e", "ca_file": str(file)}).settings
    assert tls_of(settings.management_url[0], settings) is None
    with pytest.raises(ConfigError, match=r"^ca_file: "):
        tls_of(settings.broker_url, settings)


# Columns.


def test_all_complaints_about_columns_come_at_once() -> None:
    schema = StructType().add("key", IntegerType()).add("headers", MapType(StringType(), IntegerType()))
    schema = schema.add("extra", StringType()).add("priority", StringType())
    with pytest.raises(PipelineError) as raised:
        check_columns(schema, ("n",), HashedValue("property", "message_id"))
    assert str(raised.value) == (
        "column 'key' is int, not binary or string; column 'body' is missing; "
        "column 'priority' is string, not tinyint or smallint or int or bigint; "
        "column 'n' is missing, which id_columns names; "
        "column 'extra' is no property, and id_columns does not name it; "
        "column 'headers' is map<string,int>, not map<string,string>; "
        "column 'message_id' is missing: the exchange hashes property:message_id"
    )


# Messages.


def batch(**columns: pa.Array) -> pa.RecordBatch:
    count = len(next(iter(columns.values())))
    usual = {"key": pa.array(["k"] * count), "body": pa.array([b"b"] * count)}
    return pa.record_batch(usual | columns)


def read(
    rows: pa.RecordBatch, hashed: HashedValue = KEY, ids: tuple[str, ...] = (), name: str = ""
) -> list[RowMessage]:
    return list(Reader(hashed, ids, name).messages(rows))


def ids_of(rows: pa.RecordBatch, **more: object) -> list[bytes]:
    """The message ids that are made: the last 32 bytes, where no timestamp or later property follows."""
    return [message.header.after[-32:] for message in read(rows, **more)]  # type: ignore[arg-type]


def test_bytes_and_text_also_of_a_slice() -> None:
    rows = batch(key=pa.array(["a", "ä", "", "d"]), body=pa.array([b"1", b"\xff", b"", b"4"], pa.binary()))
    told = [(message.key, message.hashed, message.body) for message in read(rows.slice(1, 2))]
    assert told == [("ä".encode(), "ä".encode(), b"\xff"), (b"", b"", b"")]


def test_null_properties_are_left_out_and_the_others_stay_in_order() -> None:
    rows = batch(
        content_type=pa.array(["text/plain", None]),
        headers=pa.array([None, [("a", "b")]], pa.map_(pa.string(), pa.string())),
        priority=pa.array([None, 3], pa.int32()),
        message_id=pa.array(["m1", "m2"]),
        timestamp=pa.array([1_700_000_000_999_999, None], pa.timestamp("us", "UTC")),
    )
    first, second = (message.header for message in read(rows))
    assert first.flags == 1 << 15 | 1 << 13 | 1 << 12 | 1 << 7 | 1 << 6
    assert (first.before, first.headers) == (b"\x0atext/plain", b"")
    assert first.after == b"\x02\x02m1" + (1_700_000_000).to_bytes(8, "big")
    assert second.flags == 1 << 13 | 1 << 12 | 1 << 11 | 1 << 7
    assert (second.before, second.headers, second.after) == (b"", b"\x01aS\0\0\0\x01b", b"\x02\x03\x02m2")


def test_a_made_id_stands_before_the_timestamp() -> None:
    (message,) = read(batch(expiration=pa.array([5]), timestamp=pa.array([7])))
    assert message.header.after[:4] == b"\x02\x015\x20"
    assert message.header.after[36:] == (7).to_bytes(8, "big")


def test_ids_tell_rows_apart_by_all_that_they_have() -> None:
    rows = batch(
        key=pa.array(["a", "ab", "a", "a", "a"]),
        body=pa.array([b"bc", b"c", b"bc", b"bc", b"bc"]),
        correlation_id=pa.array([None, None, "x", None, None]),
        n=pa.array([1, 1, 1, 2, None]),
    )
    found = ids_of(rows, ids=("n",))
    assert len(set(found)) == 5
    assert ids_of(rows, ids=("n",)) == found
    assert not set(ids_of(rows, ids=("n",), name="1")) & set(found)
    # Rows that are equal in everything share an id, wherever they stand.
    assert ids_of(rows.slice(2, 1), ids=("n",)) == found[2:3]


@pytest.mark.parametrize("column", ["key", "body", "message_id"])
def test_null_is_refused_where_it_means_nothing(column: str) -> None:
    with pytest.raises(PipelineError, match=f"column '{column}' is null in 1 of 2 rows"):
        read(batch(**{column: pa.array(["a", None])}))


def test_values_that_no_property_takes_are_told_with_their_column() -> None:
    with pytest.raises(PipelineError, match=r"^column 'priority': 300 is not a whole number from 0 to 255$"):
        read(batch(priority=pa.array([300])))
    with pytest.raises(PipelineError, match=r"^column 'key': b'x{40}'\.\.\. has 300 bytes, 255 are the most$"):
        read(batch(key=pa.array(["x" * 300])))


@pytest.mark.parametrize(
    ("hashed", "columns", "value"),
    [
        ("header:tenant", {"headers": pa.array([[("tenant", "t")]], pa.map_(pa.string(), pa.string()))}, b"t"),
        ("header:tenant", {"headers": pa.array([None], pa.map_(pa.string(), pa.string()))}, b""),
        ("property:message_id", {"message_id": pa.array(["m"])}, b"m"),
        ("property:timestamp", {"timestamp": pa.array([7])}, b"7"),
        ("property:correlation_id", {"correlation_id": pa.array([None], pa.string())}, b""),
    ],
)
def test_what_the_exchange_hashes(hashed: str, columns: dict[str, pa.Array], value: bytes) -> None:
    (message,) = read(batch(**columns), hashed_value(hashed))
    assert (message.key, message.hashed) == (b"k", value)


# The window.


def settle(window: Window, *fates: PublishResult | None) -> None:
    """Tell the rows from the first on their fates, where there is one."""
    for number, fate in enumerate(fates):
        if fate is not None:
            window.by_queue[0].settled(number, fate)


def filled(size: int, *keys: str) -> tuple[Window, list[RowMessage]]:
    """A window with rows of one queue, a key each, that were sent."""
    window = Window(("q0",), size, lambda: None)
    rows = read(batch(key=pa.array(keys)))
    for row in rows:
        window.add(window.by_queue[0], row)
    return window, rows


def test_rows_are_kept_from_the_first_without_a_confirm_on() -> None:
    window, _ = filled(10, *"abcd")
    settle(window, None, CONFIRMED, CONFIRMED, None)
    assert (window.confirmed, window.held, window.unsettled, window.room) == ([0], 4, 2, 6)
    settle(window, CONFIRMED)
    assert (window.confirmed, window.held, window.unsettled, window.lost) == ([3], 1, 1, False)


@pytest.mark.parametrize("fate", [NACKED, UNROUTABLE, PublishResult(Outcome.UNKNOWN, "the connection was lost")])
def test_what_is_lost_is_sent_again_with_all_that_is_behind_it_of_its_key(fate: PublishResult) -> None:
    window, rows = filled(10, *"abaab")
    settle(window, CONFIRMED, CONFIRMED, fate, CONFIRMED, CONFIRMED)
    assert window.lost
    assert window.faults.startswith("queue 'q0': 1 row ")
    assert window.take_back() == rows[2:4]
    assert (window.confirmed, window.total, window.held, window.unsettled) == ([3], 3, 0, 0)
    assert (window.lost, window.faults) == (False, "")


@pytest.mark.parametrize(
    ("fates", "repeated"),
    [
        ((UNROUTABLE, UNROUTABLE, UNROUTABLE), 0),
        # The second is behind the first, of the same key; a queue whose process ended may have what was refused.
        ((UNROUTABLE, CONFIRMED, UNROUTABLE), 1),
        ((NACKED, CONFIRMED, UNROUTABLE), 2),
        ((CONFIRMED, CONFIRMED, PublishResult(Outcome.UNKNOWN)), 1),
    ],
)
def test_what_no_queue_has_cannot_come_twice(fates: tuple[PublishResult, ...], repeated: int) -> None:
    window, _ = filled(10, *"aab")
    settle(window, *fates)
    window.take_back()
    assert window.repeated == repeated


def test_a_refusal_is_told_once() -> None:
    window, _ = filled(10, *"ab")
    settle(window, NACKED, UNROUTABLE)
    assert window.faults == (
        "queue 'q0': 1 row refused by the broker (basic.nack);"
        " queue 'q0': 1 row returned, since there was no queue to take them"
    )


def test_after_a_loss_the_window_opens_by_a_row_for_each_confirm() -> None:
    window, rows = filled(3, *"abc")
    settle(window, NACKED, CONFIRMED, CONFIRMED)
    rooms = [window.room for _ in window.take_back()]
    line = window.by_queue[0]
    for _ in range(4):
        window.add(line, rows[0])
        line.settled(line.first, CONFIRMED)
        rooms.append(window.room)
    assert rooms == [1, 2, 3, 3, 3]


def test_patience_is_from_the_first_trouble_on_and_anew_with_each_progress() -> None:
    patience = Patience(10.0)
    assert [patience.left(5, now) for now in (100.0, 104.0, 111.0)] == [10.0, 6.0, -1.0]
    assert [patience.left(6, now) for now in (111.0, 112.0)] == [10.0, 9.0]
    patience.rest()
    assert patience.left(6, 500.0) == 10.0
    for _ in range(20):
        assert 0 <= patience.pause() <= 5.0


# How many rows a queue may be sent.


class FakeDepths:
    """One queue, as deep as it is told to be."""

    depth, looks = 0, 0

    async def of(self, queues: tuple[str, ...]) -> dict[str, int]:
        self.looks += 1
        return dict.fromkeys(queues, self.depth)


async def test_a_queue_near_its_limit_is_looked_at_for_a_quarter_of_it_or_after_the_longest_pause() -> None:
    depths, (window, _) = FakeDepths(), filled(500, *"a" * 100)
    allowance = Allowance(depths, ("q0",), 100)  # type: ignore[arg-type]
    settle(window, *[CONFIRMED] * 100)
    depths.depth, now = 100, 1000.0
    # Its consumers take one message between two looks.
    pauses = []
    while pause := await allowance.look(0, window, now):
        pauses.append(pause)
        now, depths.depth = now + pause, depths.depth - 1
    assert pauses == pytest.approx([0.02, 0.04, 0.08, 0.16, 0.32, 0.64])
    assert (allowance.most, depths.depth) == ([106], 94)
    # The next look is not at once, whatever there is to send.
    assert await allowance.look(0, window, now + 0.005) == pytest.approx(0.015)
    assert (allowance.most, depths.looks) == ([106], 7)
    # A quarter is enough without a pause; less is not.
    depths.depth = 76
    assert await allowance.look(0, window, now + 0.02) == 0.02
    depths.depth = 75
    assert await allowance.look(0, window, now + 0.04) == 0.0
    assert allowance.most == [125]


# Sending, the broker played by hand.


class FakeConnection:
    """Takes publishes at once, and writes nothing."""

    def __init__(self) -> None:
        self.protocol = PublisherProtocol("user", "password", "/")
        self.clear, self.why = True, "the broker takes nothing"

    def wake(self) -> None:
        self.protocol.pack()


def sender(window: int, lanes: int = 0) -> tuple[Sender, FakeConnection]:
    """One queue without a lane, or so many with lanes."""
    connection, known = FakeConnection(), ring_of({f"q{n}": 1 for n in range(lanes or 1)})
    known = replace(known, lanes={f"q{n}": f"lane.{n}" for n in range(lanes)})
    return Sender(connection, Routes.of("orders", known), window, Patience(1.0)), connection  # type: ignore[arg-type]


def messages(count: int) -> list[RowMessage]:
    return read(batch(body=pa.array([str(n).encode() for n in range(count)])))


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_no_more_rows_are_taken_than_the_window_has_room_for() -> None:
    sending, connection = sender(window=10)
    taken = 0

    def rows() -> object:
        nonlocal taken
        for message in messages(25):
            taken += 1
            yield message

    task = asyncio.create_task(sending.send(rows()))  # type: ignore[arg-type]
    await turns()
    assert (taken, connection.protocol.in_flight) == (10, 10)
    (channel,) = connection.protocol.channels.values()
    # The first has no answer: those behind it are kept, and nothing more is taken.
    for number in range(2, 11):
        connection.protocol.in_flight -= channel.settle(number, False, CONFIRMED)
    await turns()
    assert taken == 10
    connection.protocol.in_flight -= channel.settle(1, False, CONFIRMED)
    await turns()
    assert taken == 20
    connection.protocol.in_flight -= channel.settle(20, True, CONFIRMED)
    await task
    assert taken == 25
    done = asyncio.create_task(sending.finish())
    await turns()
    assert not done.done()
    channel.settle(25, True, CONFIRMED)
    await done
    assert (sending.window.confirmed, sending.window.repeated) == ([25], 0)


async def test_more_lanes_than_channels_take_turns() -> None:
    sending, connection = sender(window=10, lanes=3)
    protocol = connection.protocol
    protocol._channel_max = 2
    task = asyncio.create_task(sending.send(messages(25)))
    answered = 0
    while not task.done():
        await asyncio.sleep(0)
        for channel in list(protocol.channels.values()):
            answered += len(channel.pending)
            protocol.in_flight -= channel.settle(channel.number, True, CONFIRMED)
        for number in list(protocol._closing):
            protocol._on_channel_close_ok(number, Arguments(b"", 0, 0))
    await task
    protocol.pack()
    assert len(protocol.channels) <= 2
    assert answered + protocol.in_flight == 25


async def test_rows_are_stamped_for_consumers() -> None:
    sending, connection = sender(window=10)
    await sending.send(messages(1))
    frames = b"".join(connection.protocol.out)
    start = frames.index(b"\x02\0\x01", frames.index(b"\x02q0")) + 7
    end = start + int.from_bytes(frames[start - 4 : start], "big")
    _, at = headers_at(frames, start, end)
    first, stop = table_at(frames, at, end)
    names = [entry.name for entry in table.fields(frames, first, stop)]
    assert names == [b"x-ring-exchange", b"x-ring-routing-key", b"x-ring-id"]


# Tasks, pace and the log.


def test_tasks_are_as_even_as_the_ring_lets_them() -> None:
    ring = ring_of({"big": 4, "a": 1, "b": 1, "c": 1, "d": 1}).ring
    tasks = tasks_of(ring, 2)
    assert {queue for queue, task in tasks.items() if task == tasks["big"]} == {"big"}
    assert sorted(tasks_of(ring, 9).values()) == [0, 1, 2, 3, 4]
    assert set(tasks_of(ring, 1).values()) == {0}


def test_a_ring_with_an_exchange_is_refused() -> None:
    known = RingSpec("x-consistent-hash", "routing_key", {Destination("exchange", "other"): 1})
    with pytest.raises(PipelineError, match="exchange 'other' is bound to it; rows go to queues only"):
        Routes.of("orders", known)


def test_a_pace_is_held_and_little_is_caught_up() -> None:
    pace = Pace(100.0, 0.0)
    assert pace.take(10, 0.0) == pytest.approx(0.1)
    assert pace.take(10, 0.1) == pytest.approx(0.1)
    assert pace.take(10, 60.0) == 0.0
    waits = [pace.take(10, 60.0) for _ in range(4)]
    assert waits == pytest.approx([0.0, 0.1, 0.2, 0.3])
    assert all(b >= a for a, b in pairwise(waits))


def test_duplicates_are_bounded_by_all_that_was_tried(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "log.jsonl"
    log = CommitLog(path)
    parts = [TaskResult({"q0": 30, "q1": 10}, 0, 1.5, 3), TaskResult({"q1": 5}, 2, 2.0, 0)]
    log.begun("0", F, 4)
    log.committed("0", F.fingerprint, parts, dry_run=False)
    (write,) = read_commits(path)
    assert (write.rows, write.total, write.seconds) == ({"q0": 30, "q1": 15}, 45, 2.0)
    # Two failed attempts at five rows, and three rows that were sent again.
    assert (write.failed_attempts, write.failed_tries, write.again, write.duplicates) == (2, 0, 3, 10 + 3)
    # A try that was aborted, one whose driver was killed, and batch 0 published once more.
    log.begun("1", F, 4)
    log.aborted("1", F.fingerprint)
    log.begun("1", F, 4)
    log.begun("1", G, 4)
    assert unfinished(path) == 3
    log.committed("1", G.fingerprint, [TaskResult({"q0": 7}, 0, 1.0, 0)], dry_run=False)
    assert unfinished(path) == 0
    log.begun("0", F, 4)
    log.committed("0", F.fingerprint, parts, dry_run=False)
    first, second = read_commits(path)
    assert (first.failed_tries, first.duplicates) == (1, 13 + 45 + 13)
    assert (second.fingerprint, second.failed_tries, second.duplicates) == (G.fingerprint, 2, 2 * 4 * 7)


def test_a_log_of_before_rows_were_sent_again_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = CommitLog(path)
    log.begun("0", F, 4)
    log.committed("0", F.fingerprint, [TaskResult({"q0": 30}, 1, 1.0, 0)], dry_run=False)
    path.write_text(path.read_text().replace('"rows_sent_again": 0, ', ""))
    assert "rows_sent_again" not in path.read_text()
    (write,) = read_commits(path)
    assert (write.again, write.duplicates) == (0, 30)


def test_a_dry_run_touches_no_real_write(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = CommitLog(path)

    def dry_run() -> None:
        log.begun("0", F, 0)
        log.committed("0", F.fingerprint, [TaskResult({"q0": 9}, 1, 1.0, 0)], dry_run=True)

    dry_run()
    log.begun("0", F, 4)
    dry_run()
    log.begun("0", F, 4)
    log.committed("0", F.fingerprint, [TaskResult({"q0": 9}, 0, 1.0, 0)], dry_run=False)
    dry_run()
    dry, real = read_commits(path)
    assert (dry.dry_run, dry.duplicates) == (True, 0)
    assert (real.dry_run, real.failed_tries, real.duplicates) == (False, 1, 4 * 9)


def test_batches_of_other_checkpoints_and_writes_without_a_batch_are_others(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    parts = [TaskResult({"q0": 5}, 0, 1.0, 0)]
    CommitLog(path, "a").begun("0", F, 4)
    for run in "ab":
        CommitLog(path, run).begun("0", F, 4)
        CommitLog(path, run).committed("0", F.fingerprint, parts, dry_run=False)
    for _ in range(2):
        CommitLog(path).begun("", F, 4)
        CommitLog(path).committed("", F.fingerprint, parts, dry_run=False)
    assert [(write.total, write.duplicates) for write in read_commits(path)] == [(5, 20), (5, 0), (5, 0), (5, 0)]


def test_a_batch_keeps_the_ring_that_it_was_begun_by(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = CommitLog(path, "a")
    assert log.pinned() == {}
    log.begun("0", F, 4)
    log.begun("1", G, 4)
    CommitLog(path, "b").begun("0", G, 4)
    assert log.pinned() == {"0": F, "1": G}
    log.begun("0", G, 4)
    assert log.pinned() == {"0": G, "1": G}


def test_a_kept_ring_counts_while_all_its_queues_are_bound() -> None:
    more, fewer = ring_of({"q0": 1, "q1": 5, "q2": 1}), ring_of({"q0": 1, "q2": 1})
    assert pinned_again(F, G) == pinned_again(F, more) == F
    assert pinned_again(F, fewer) is fewer
    by_tenant = ring_of({"q0": 1, "q1": 1}, "header:tenant")
    assert pinned_again(F, by_tenant) is by_tenant
    # A lane chooses no queue, and the one of then may be gone.
    kept = pinned_again(replace(F, lanes={"q0": "then"}), replace(G, lanes={"q1": "now"}))
    assert (kept, kept.lanes) == (F, {"q1": "now"})


@pytest.mark.parametrize("lanes", [[], "x", {"q0": 7}, {"q0": ""}])
def test_lanes_that_are_none_are_named(lanes: object) -> None:
    text = json.dumps(json.loads(to_json(F)) | {"lanes": lanes})
    with pytest.raises(PipelineError, match=r"^ring: lanes: .* is not an object of queues and their lanes$"):
        parse_ring(text, "ring")


@pytest.mark.parametrize(
    ("queues", "why"),
    [
        ([], r"\[\] is not an object of places and the queues behind them"),
        ({"q0": 7}, r"\{'q0': 7\} is not an object of places and the queues behind them"),
        ({"q0": ""}, r"\{'q0': ''\} is not an object of places and the queues behind them"),
        ({"q7": "q.g2.7"}, "'q7' is no queue of destinations: leave it out"),
        ({"q0": "q.g2", "q1": "q.g2"}, "'q.g2' is behind several places: name one queue for each"),
    ],
)
def test_queues_that_are_none_are_named(queues: object, why: str) -> None:
    text = json.dumps(json.loads(to_json(F)) | {"queues": queues})
    with pytest.raises(PipelineError, match=f"^ring: queues: {why}$"):
        parse_ring(text, "ring")


def test_a_ring_of_a_later_generation_is_read_as_it_is_written() -> None:
    later = replace(F, queues={"q0": "q.g2.0"})
    assert parse_ring(to_json(later), "ring") == later
    assert (later.queue_behind("q0"), later.queue_behind("q1")) == ("q.g2.0", "q1")
    assert later.fingerprint != F.fingerprint
    text = json.dumps(json.loads(to_json(later)) | {"queues": {}})
    with pytest.raises(PipelineError, match=r"^ring: fingerprint: "):
        parse_ring(text, "ring")


def test_rows_wait_in_the_queues_of_the_generation() -> None:
    now = replace(G, queues={"q0": "q.g2.0", "q1": "q.g2.1"})
    routes = Routes.of("e", pinned_again(F, now))
    assert (routes.queues, routes.behind) == (("q0", "q1"), ("q.g2.0", "q.g2.1"))
    wider = replace(ring_of({"q0": 1, "q1": 1, "q2": 1}), queues=now.queues | {"q2": "q.g2.2"})
    assert pinned_again(F, wider).queues == now.queues


def test_a_given_ring_leads_to_no_exchange_that_may_balance_a_group() -> None:
    ring = to_json(replace(F, lanes={"q0": "orders.group"}))
    why = "only sidecars publish to an exchange of that name, to balance the consumer group of 'orders'"
    with pytest.raises(PipelineError) as raised:
        pinned(parse({"exchange": "e", "broker_url": "amqp://h/", "ring": ring}))
    assert str(raised.value) == f"option 'ring': lanes: 'orders.group' of queue 'q0': {why}"


def test_a_torn_line_is_cut_off_and_another_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = CommitLog(path)
    log.begun("0", F, 1)
    log.committed("0", F.fingerprint, [TaskResult({"q": 1}, 0, 1.0, 0)], dry_run=False)
    whole = path.read_bytes()
    torn = b'{"event": "begun", "ri'
    # Within one of the blocks that are read from the end, over several of them, and with nothing whole before it.
    for before, rest in ((whole, torn), (whole, torn.ljust(200_000)), (b"", torn.ljust(200_000))):
        path.write_bytes(before + rest)
        assert len(read_commits(path)) == bool(before)
        log.begun("0", F, 1)
        assert path.read_bytes().startswith(before)
        events = [json.loads(line)["event"] for line in path.read_text().splitlines()]
        assert events == (["begun", "committed"] if before else []) + ["begun"]
    path.write_bytes(whole + b'{"v": 1, "event": "committed"}\n')
    with pytest.raises(PipelineError, match="line 3 is not of a commit log"):
        read_commits(path)
    for later, said in ((b'{"v": 2, "event": "committed"}\n', 2), (b"7\n", None)):
        path.write_bytes(whole + later)
        with pytest.raises(PipelineError, match=f"line 3: commit log of version {said}, known is 1"):
            read_commits(path)
    path.write_bytes(b"rubbish\n")
    with pytest.raises(PipelineError, match="not a commit log: a line is not JSON"):
        read_commits(path)


def test_a_line_is_added_without_reading_the_log(tmp_path: Path) -> None:
    class Counted(io.FileIO):
        taken = 0

        def read(self, size: int | None = -1) -> bytes:
            content = super().read(size) or b""
            self.taken += len(content)
            return content

    path = tmp_path / "log.jsonl"
    path.write_bytes(b"{}\n" * 1_000_000)
    with Counted(path, "a+") as file:
        _cut_torn_line(file)
    assert file.taken < 100_000
    assert path.stat().st_size == 3_000_000
