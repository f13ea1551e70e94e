"""The data source `ringproxy-journal`: the journal that a real sidecar writes to a stream queue, as Spark reads it."""

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from pipeline import PipelineError
from pipeline.data.schema import RECORD
from pipeline.session import in_one_line
from pipeline.stream.messages import RECORDS, read_rings, records
from pipeline.stream.queue import StreamQueue
from pipeline.stream.source import NAME, JournalSource
from ring.hashing import slot_of
from testbed.broker import Broker
from tests.integration.broker_api import VirtualHost, wait_until
from tests.integration.conftest import USER, Login, StartSidecar
from tests.pipeline.records import published, ring_of
from tests.pipeline.streams import put, settled, stream_queue

pytestmark = pytest.mark.versions

QUEUES = {"q1": 1, "q2": 2}


@pytest.fixture
def journal(login: Login, vhost: VirtualHost) -> Iterator[StreamQueue]:
    """Where a sidecar of its own virtual host journals, and may."""
    home = VirtualHost(vhost.api, login.vhost, [])
    home.permit(USER, configure="journal", read=".*")
    yield StreamQueue(login.broker_url, "journal")
    home.delete_queue("journal")
    home.permit(USER)


class Run:
    """A query with a checkpoint, run until it has read all that there is, as often as one likes."""

    def __init__(self, spark: SparkSession, queue: StreamQueue, folder: Path, **options: str) -> None:
        spark.dataSource.register(JournalSource)
        self.checkpoint = folder / "checkpoint"
        given = {"amqp_url": queue.url, "queue": queue.name, **options}
        self._stream = spark.readStream.format(NAME).options(**given).load()
        self.batches: dict[int, list[str]] = {}
        """The events of each batch, as it was read last."""

    def __call__(self) -> list[str]:
        """All events."""
        told = self._stream.writeStream.foreachBatch(self._keep).option("checkpointLocation", str(self.checkpoint))
        told.trigger(availableNow=True).start().awaitTermination()
        return [event for events in self.batches.values() for event in events]

    def _keep(self, rows: DataFrame, batch: int) -> None:
        self.batches[batch] = [row.event for row in rows.select("event").collect()]


def in_the_stream(queue: StreamQueue) -> int:
    """How many records."""
    try:
        found = (records(message, queue) for message in queue.messages(0, queue.end()))
        return sum(batch.num_rows for batch in found if batch is not None)
    except PipelineError as error:
        if "no queue" not in str(error):
            raise
        return 0


@pytest.mark.long
def test_what_a_sidecar_journals_is_read_once_through_restarts(
    spark: SparkSession, start_sidecar: StartSidecar, vhost: VirtualHost, journal: StreamQueue, tmp_path: Path
) -> None:
    vhost.ring("orders", QUEUES)
    sidecar = start_sidecar(journal_stream=journal.name)

    def publish(first: int) -> None:
        items = [{"key": f"key {n}", "payload": "x"} for n in range(first, first + 50)]
        assert sidecar.batch("orders", items, vhost=vhost.name).status == 200
        wait_until("it is written", lambda: in_the_stream(journal) == first + 50)

    for first in (0, 50, 100):
        publish(first)
    run = Run(spark, journal, tmp_path, max_messages="2")
    assert len(run()) == 150
    assert len(run.batches) > 1
    publish(150)
    # A batch whose end was not noted, as after a crash, is read again as it was.
    last = max(run.batches)
    (run.checkpoint / "commits" / str(last)).unlink()
    (run.checkpoint / "commits" / f".{last}.crc").unlink()
    before = run.batches.pop(last)
    run()
    assert run.batches[last] == before
    publish(200)
    events = run()
    sidecar.stop()
    proxy = events[0].partition("-")[0]
    assert Counter(events) == Counter(f"{proxy}-{seq}" for seq in range(1, 251))

    table = spark.read.format(NAME).options(amqp_url=journal.url, queue=journal.name).load()
    assert table.schema == RECORD
    rows = table.collect()
    assert {row.event for row in rows} == set(events)
    assert Counter(bytes(row.key) for row in rows) == Counter(f"key {n}".encode() for n in range(250))
    (known,) = read_rings(journal).values()
    assert {row.ring for row in rows} == {known.fingerprint}
    assert known.ring.as_weights() == ring_of(QUEUES).weights
    for row in rows:
        assert row.slot == slot_of(bytes(row.key))
        assert row.destination == known.ring.owner(row.slot).name


def test_a_bad_message_ends_the_query_and_its_offset_is_told(
    spark: SparkSession, broker: Broker, vhost: VirtualHost, tmp_path: Path
) -> None:
    good = json.dumps(published(ring_of(QUEUES), [b"k"])[0]).encode()
    queue = stream_queue(broker, vhost.name)
    put(queue, [(good, RECORDS), (good.replace(b'"v": 1', b'"v": 9'), RECORDS), (gzip.compress(good), RECORDS)])
    run = Run(spark, queue, tmp_path, starting="1", max_messages="1")
    with pytest.raises(StreamingQueryException) as ended:
        run()
    told = in_one_line(str(ended.value))
    assert told.startswith(f"{queue}, offset 1: schema version 9, known is 1 (")
    assert "starting=2 with a new checkpoint" in told
    assert run.batches == {}


def test_a_table_begins_where_it_is_told(spark: SparkSession, broker: Broker, vhost: VirtualHost) -> None:
    told = published(ring_of(QUEUES), [b"%d" % n for n in range(9)])
    queue = stream_queue(broker, vhost.name)
    spark.dataSource.register(JournalSource)
    put(queue, [(json.dumps(one).encode(), RECORDS) for one in told], together=False)
    offsets = [message.offset for message in queue.messages(0, queue.end())]

    def read(starting: str) -> list[str]:
        given = {"amqp_url": queue.url, "queue": queue.name, "starting": starting}
        rows = spark.read.format(NAME).options(**given).load().select("event").collect()
        return sorted(row.event for row in rows)

    assert read(str(offsets[4])) == sorted(one["event"] for one in told[4:])
    assert read(str(offsets[-1] + 1)) == []
    for starting, said in (
        (str(offsets[-1] + 2), f"starting: {offsets[-1] + 2} is beyond the end of {queue}, which is offset"),
        ("next", "starting: 'next' is for spark.readStream: a table that began there would be empty"),
    ):
        with pytest.raises(PySparkException) as refused:
            read(starting)
        assert said in str(refused.value)


@pytest.mark.long
def test_what_retention_took_ends_the_query_unless_it_is_lossy(
    spark: SparkSession, broker: Broker, vhost: VirtualHost, tmp_path: Path
) -> None:
    queue = stream_queue(broker, vhost.name)
    limits = {"x_stream_max_segment_size_bytes": 2000, "x_max_length_bytes": 6000}
    told = published(ring_of(QUEUES), [b"%d" % n for n in range(60)])
    for n in range(0, 60, 15):
        put(queue, [(json.dumps(one).encode(), RECORDS) for one in told[n : n + 15]], together=False, **limits)
    oldest = settled(queue)
    with pytest.raises(StreamingQueryException) as ended:
        Run(spark, queue, tmp_path / "strict", starting="0")()
    assert f": offsets 0 to {oldest - 1} are gone, removed by its retention" in in_one_line(str(ended.value))
    left = Run(spark, queue, tmp_path / "lossy", starting="0", lossy="true", max_messages="1000")()
    assert left == [one["event"] for one in told[-len(left) :]]
    assert 0 < len(left) < 60
