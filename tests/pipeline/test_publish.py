"""The Data Source against a real broker, its faults among it: nothing is lost, and what came twice is told."""

import json
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pipeline import PipelineError
from pipeline.data.rings import to_json
from pipeline.publish.messages import check_rows
from pipeline.publish.options import parse
from pipeline.publish.order import prepared
from pipeline.publish.pinned import pinned
from pipeline.publish.source import RingProxy
from ring.destination import Destination
from ring.ring import Ring
from tests.integration.broker_api import BrokerApi, VirtualHost, wait_until
from tests.integration.conftest import Login
from tests.integration.own_node import own_node, private_only
from tests.integration.relay import relay
from tests.integration.rings import owner
from tests.pipeline.publishing import (
    IDS,
    PER_BATCH,
    Came,
    attempt,
    came_until_now,
    check_nothing_lost,
    committed,
    failing,
    meanwhile,
    options_of,
    rows_of,
    something_came,
    words,
    write,
    write_prepared,
)
from tests.pipeline.records import ring_of

ROWS = 1000
QUEUES = {"q0": 1, "q1": 2, "q 2/ü": 1}


@pytest.fixture(autouse=True)
def _registered(spark: SparkSession) -> Iterator[None]:
    """In small batches, of which several are on their way when a fault comes."""
    spark.dataSource.register(RingProxy)
    spark.conf.set(PER_BATCH, "50")
    yield
    spark.conf.unset(PER_BATCH)


@pytest.fixture
def options(login: Login, vhost: VirtualHost, tmp_path: Path) -> dict[str, str]:
    vhost.ring("orders", QUEUES)
    return options_of(login, vhost, "orders", commit_log=tmp_path / "log.jsonl", task_attempts=2, connections=2)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log.jsonl"


@pytest.mark.long
def test_rows_go_through_the_lanes_of_the_queues_that_have_some(
    spark: SparkSession, vhost: VirtualHost, options: dict[str, str]
) -> None:
    vhost.unbind("orders", "q1", "2")
    vhost.lanes("orders", {"q1": 2})
    write_prepared(rows_of(spark, 200), options)
    came = vhost.drain_all()
    assert sum(map(len, came.values())) == 200
    lanes = {"q1": "orders.lane.q1"}
    for queue, messages in came.items():
        assert {message.exchange for message in messages} == {lanes.get(queue, "")}
        for message in messages:
            key = message.routing_key if queue in lanes else message.headers["x-ring-routing-key"]
            assert (key, owner(QUEUES, key)) == (f"k{int(message.body) % 50}", queue)


def test_rows_go_where_the_ring_says_stamped_persistent_and_in_each_keys_order(
    spark: SparkSession, vhost: VirtualHost, options: dict[str, str], log: Path
) -> None:
    write_prepared(rows_of(spark, ROWS), options)
    came = Came(vhost.drain_all())
    check_nothing_lost(came, ROWS, 0)
    ring = Ring.build({Destination("queue", name): weight for name, weight in QUEUES.items()})
    last: dict[str, int] = {}
    for queue, messages in came.by_queue.items():
        for message in messages:
            key = message.headers["x-ring-routing-key"]
            assert ring.owner_of(key.encode()).name == queue
            assert message.headers["x-ring-exchange"] == "orders"
            assert "x-ring-id" in message.headers
            assert message.properties["delivery_mode"] == 2
            assert last.get(key, -1) < int(message.body)
            last[key] = int(message.body)
    written = committed(log)
    assert written.rows == {queue: len(messages) for queue, messages in came.by_queue.items()}
    assert written.fingerprint == ring_of(QUEUES).fingerprint
    assert (written.duplicates, written.failed_tries, written.failed_attempts) == (0, 0, 0)


def test_properties_and_headers_are_the_columns(
    spark: SparkSession, vhost: VirtualHost, options: dict[str, str]
) -> None:
    rows = spark.range(2).select(
        F.lit(b"\xff\x00").alias("key"),
        F.lit(b"\x00body").alias("body"),
        F.lit("text/plain").alias("content_type"),
        F.when(F.col("id") == 0, F.create_map(F.lit("tenant"), F.lit("ä"))).alias("headers"),
        F.when(F.col("id") == 0, F.lit(7)).alias("priority"),
        F.lit(60_000).alias("expiration"),
        F.concat(F.lit("m"), F.col("id")).alias("message_id"),
        F.timestamp_seconds(F.lit(1_700_000_000)).alias("timestamp"),
    )
    write(rows.coalesce(1), options)
    ((queue, messages),) = vhost.drain_all().items()
    assert queue == ring_of(QUEUES).ring.owner_of(b"\xff\x00").name
    first, second = (dict(message.properties) for message in messages)
    assert [message.body for message in messages] == [b"\x00body"] * 2
    assert first.pop("headers")["tenant"] == "ä"
    second.pop("headers")
    shared = {"content_type": "text/plain", "expiration": "60000", "delivery_mode": 2, "timestamp": 1_700_000_000}
    assert first == shared | {"message_id": "m0", "priority": 7}
    assert second == shared | {"message_id": "m1"}


def test_an_exchange_that_hashes_a_header(spark: SparkSession, login: Login, vhost: VirtualHost) -> None:
    vhost.ring("by-tenant", QUEUES, hash_header="tenant")
    options = options_of(login, vhost, "by-tenant")
    tenant = F.concat(F.lit("t"), (F.col("n") % 9).cast("string"))
    rows = rows_of(spark, 90).withColumn("headers", F.create_map(F.lit("tenant"), tenant))
    write_prepared(rows, options)
    ring = ring_of(QUEUES, "header:tenant").ring
    came = Came(vhost.drain_all())
    check_nothing_lost(came, 90, 0)
    for queue, messages in came.by_queue.items():
        assert {ring.owner_of(message.headers["tenant"].encode()).name for message in messages} == {queue}


@pytest.mark.long
def test_a_stream_begins_a_batch_once_and_its_commit_asks_no_broker(
    spark: SparkSession, vhost: VirtualHost, options: dict[str, str], log: Path, tmp_path: Path
) -> None:
    rows, checkpoint = tmp_path / "rows", str(tmp_path / "checkpoint")
    rows_of(spark, 100).drop("pad").coalesce(1).write.parquet(str(rows))

    def gone() -> None:
        # Asked again, the broker would know of no such exchange.
        vhost.delete_exchange("orders")

    stream = failing(spark.readStream.schema("key string, body string, n long").parquet(str(rows)), gone, after=0)
    sink = stream.writeStream.format("ringproxy").options(**options, id_columns="n").queryName("published")
    query = sink.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(line["event"], line["run"]) for line in lines] == [("begun", checkpoint), ("committed", checkpoint)]
    written = committed(log)
    assert (written.batch, written.total, written.duplicates) == ("0", 100, 0)
    assert written.fingerprint == ring_of(QUEUES).fingerprint
    check_nothing_lost(Came(vhost.drain_all()), 100, 0)


# Faults.


@pytest.mark.long
def test_a_task_that_fails_once_publishes_all_its_rows_again(
    spark: SparkSession, vhost: VirtualHost, options: dict[str, str], log: Path
) -> None:
    def fault() -> None:
        if attempt() == 0:
            wait_until("rows of the first attempt", lambda: something_came(vhost))
            raise RuntimeError("the first attempt")

    known = pinned(parse(options))
    rows = failing(prepared(rows_of(spark, ROWS), known, 2, "n"), fault, after=200)
    write(rows, {**options, **IDS, "window": "50"})
    written = committed(log)
    assert written.failed_attempts == 2
    assert written.duplicates == ROWS
    came = Came(vhost.drain_all())
    check_nothing_lost(came, ROWS, written.duplicates)
    assert came.duplicates > 0


def test_connections_that_are_lost_with_rows_in_flight_repeat_a_window_each_and_no_task(
    spark: SparkSession, vhost: VirtualHost, options: dict[str, str], log: Path, tmp_path: Path
) -> None:
    window, known = 50, pinned(parse(options))

    def lose() -> None:
        # The rows that come from here on have no answer.
        before = came_until_now(vhost)
        wait_until("rows in flight", lambda: came_until_now(vhost) > before)
        between.drop_answers()

    with relay(options["broker_url"]) as (between, url):
        losing = threading.Thread(target=lose)

        def hold() -> None:
            wait_until("rows", lambda: something_came(vhost))
            between.hold_answers()
            losing.start()

        with meanwhile(hold, tmp_path) as fault:
            rows = failing(prepared(rows_of(spark, ROWS), known, 2, "n"), fault, after=200)
            write(rows, {**options, **IDS, "broker_url": url, "window": str(window)})
        losing.join()
    written = committed(log)
    assert (written.total, written.failed_attempts) == (ROWS, 0)
    assert 0 < written.duplicates == written.again <= 2 * window
    came = Came(vhost.drain_all())
    check_nothing_lost(came, ROWS, written.duplicates)
    assert came.duplicates > 0


@pytest.mark.long
@private_only
def test_a_broker_that_is_killed_and_started_again_loses_nothing_and_fails_no_task(
    spark: SparkSession, tmp_path: Path
) -> None:
    with own_node("") as (node, _):
        home = VirtualHost(BrokerApi(node.management_url), "/", [])
        home.ring("orders", QUEUES)
        log, pid, window = tmp_path / "log.jsonl", node.pid, 50
        options = {"broker_url": node.amqp_url, "management_url": node.management_url, "exchange": "orders"}
        options |= {"commit_log": str(log), "window": str(window), **IDS}

        def fault() -> None:
            # One of them is confirmed then, and so on disk.
            wait_until("rows", lambda: something_came(home, window + 1))
            os.kill(pid, signal.SIGKILL)

        def restart() -> None:
            process.wait(300)
            node.start()

        process = node._running()
        restarted = threading.Thread(target=restart)
        restarted.start()
        write(failing(rows_of(spark, ROWS).coalesce(1), fault, after=500), options)
        restarted.join()
        written = committed(log)
        assert (written.failed_attempts, written.duplicates) == (0, written.again)
        check_nothing_lost(Came(home.drain_all()), ROWS, min(window, written.again))


# Mistakes that end a write at once


def refused(rows: Callable[[], object]) -> str:
    with pytest.raises((PySparkException, PipelineError)) as raised:
        rows()
    return words(raised.value)


def test_a_missing_queue_fails_before_anything_is_published(
    spark: SparkSession, vhost: VirtualHost, options: dict[str, str]
) -> None:
    ring = to_json(ring_of({**QUEUES, "not there": 1}))
    told = refused(lambda: write(rows_of(spark, 10), {**options, **IDS, "ring": ring}))
    assert told == f"queue 'not there' is missing in {vhost.name!r}"
    assert vhost.drain_all() == {}


@pytest.mark.parametrize("what", ["broker_url", "management_url"])
def test_wrong_credentials_fail_at_once(options: dict[str, str], what: str) -> None:
    scheme, _, rest = options[what].partition("://")
    told = refused(lambda: pinned(parse({**options, what: f"{scheme}://nobody:wrong@{rest.partition('@')[2]}"})))
    assert ("ACCESS_REFUSED" if what == "broker_url" else "401") in told
    assert "wrong@" not in told


def test_a_broker_that_does_not_answer(options: dict[str, str]) -> None:
    elsewhere = re.sub(r":\d+/", ":1/", options["broker_url"])
    told = refused(lambda: pinned(parse({**options, "broker_url": elsewhere})))
    assert told.startswith("no connection to the broker: 127.0.0.1:1: ")


def test_speculation_is_refused(spark: SparkSession) -> None:
    settings = spark.sparkContext._conf
    settings.set("spark.speculation", "true")
    try:
        with pytest.raises(PipelineError, match=r"spark.speculation is on"):
            spark.dataSource.register(RingProxy)
    finally:
        settings.set("spark.speculation", "false")


def test_columns_that_do_not_fit(spark: SparkSession, options: dict[str, str]) -> None:
    rows = spark.range(1).select(F.col("id").alias("key"), F.lit("x").alias("colour"))
    assert refused(lambda: write(rows, options)) == (
        "column 'key' is bigint, not binary or string; column 'body' is missing; "
        "column 'colour' is no property, and id_columns does not name it"
    )


def test_rows_that_are_no_messages_are_counted_beforehand(spark: SparkSession) -> None:
    columns = "key string, body string, message_id string, type string"
    right = ("k" * 255, "", "m" * 255, None)
    check_rows(spark.createDataFrame([right], columns))
    wrong = [(None, None, "m", "t"), ("k", "b", None, "é" * 128), ("k", None, "m" * 256, "t"), right]
    with pytest.raises(PipelineError) as raised:
        check_rows(spark.createDataFrame(wrong, columns))
    assert str(raised.value) == (
        "1 row with a null key; 2 rows with a null body; 1 row with a null message_id;"
        " 1 row with a message_id of more than 255 bytes; 1 row with a type of more than 255 bytes"
    )


# Limits.


def test_more_partitions_than_connections_are_refused(spark: SparkSession, options: dict[str, str]) -> None:
    rows = rows_of(spark, 30).repartition(3)
    assert "more partitions than connections=2" in refused(lambda: write(rows, {**options, **IDS}))
