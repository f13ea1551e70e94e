"""`df.writeStream.format("ringproxy")` against a real broker, with the faults of `test_publish`."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pipeline import PipelineError
from pipeline.publish.source import RingProxy
from tests.integration.broker_api import VirtualHost, wait_until
from tests.integration.conftest import Login
from tests.integration.relay import relay
from tests.pipeline.publishing import (
    IDS,
    PER_BATCH,
    Came,
    check_nothing_lost,
    committed,
    failing,
    log_unwritable,
    meanwhile,
    options_of,
    rows_of,
    something_came,
    words,
)

ROWS = 600

Publish = Callable[..., None]


@pytest.fixture
def publish(spark: SparkSession, login: Login, vhost: VirtualHost, tmp_path: Path) -> Iterator[Publish]:
    """Publishes a file of rows as a stream, with one checkpoint unless told; what is given is done to the rows."""
    vhost.ring("orders", {"q0": 1, "q1": 2})
    spark.dataSource.register(RingProxy)
    spark.conf.set(PER_BATCH, "50")
    rows_of(spark, ROWS).coalesce(1).write.parquet(str(tmp_path / "rows"))
    stream = spark.readStream.schema("key string, body string, n long, pad string").parquet(str(tmp_path / "rows"))
    options = options_of(login, vhost, "orders", commit_log=tmp_path / "log.jsonl", task_attempts=2, window=50, **IDS)

    def run(
        change: Callable[[DataFrame], DataFrame] = lambda rows: rows,
        checkpoint: str = "checkpoint",
        mode: str = "append",
        **more: str,
    ) -> None:
        sink = change(stream).writeStream.format("ringproxy").options(**options | more).outputMode(mode)
        sink = sink.option("checkpointLocation", str(tmp_path / checkpoint))
        sink.trigger(availableNow=True).start().awaitTermination()

    yield run
    spark.conf.unset(PER_BATCH)


@pytest.mark.long
def test_a_task_that_always_fails_ends_the_query_and_a_restart_publishes_the_batch_again(
    publish: Publish, vhost: VirtualHost, tmp_path: Path
) -> None:
    def fault() -> None:
        wait_until("rows of this attempt", lambda: something_came(vhost))
        raise PipelineError("upstream has had enough")

    log = tmp_path / "log.jsonl"
    with pytest.raises(PySparkException) as raised:
        publish(lambda rows: failing(rows, fault, after=300))
    assert words(raised.value) == "upstream has had enough"
    assert '"committed"' not in log.read_text()
    assert '"aborted"' in log.read_text()
    publish()
    written = committed(log)
    assert (written.batch, written.failed_tries, written.duplicates) == ("0", 1, 2 * ROWS)
    came = Came(vhost.drain_all())
    check_nothing_lost(came, ROWS, written.duplicates)
    assert came.duplicates > 0


@pytest.mark.long
def test_a_commit_that_raises_ends_the_query_and_a_restart_publishes_the_batch_again(
    publish: Publish, vhost: VirtualHost, tmp_path: Path
) -> None:
    log = tmp_path / "log.jsonl"
    with log_unwritable(log) as fault, pytest.raises((PySparkException, Py4JJavaError)) as raised:
        publish(lambda rows: failing(rows, fault, after=300))
    assert "commit log" in words(raised.value)
    publish()
    written = committed(log)
    assert (written.batch, written.failed_tries, written.duplicates) == ("0", 1, 2 * ROWS)
    came = Came(vhost.drain_all())
    check_nothing_lost(came, ROWS, written.duplicates)
    assert came.duplicates == ROWS


@pytest.mark.long
def test_a_broker_that_is_gone_for_good_ends_the_query_and_a_restart_publishes_the_batch_again(
    publish: Publish, login: Login, vhost: VirtualHost, tmp_path: Path
) -> None:
    with relay(options_of(login, vhost, "orders")["broker_url"]) as (between, url):

        def cut() -> None:
            wait_until("rows", lambda: something_came(vhost))
            between.cut()

        with meanwhile(cut, tmp_path) as fault, pytest.raises(PySparkException) as raised:
            publish(lambda rows: failing(rows, fault, after=300), broker_url=url, retry_timeout="2")
        told = words(raised.value)
        assert told.startswith(f"no connection to the broker: 127.0.0.1:{between.port}: ")
        assert "; no row was confirmed for 2 s (retry_timeout); " in told
        assert '"committed"' not in (tmp_path / "log.jsonl").read_text()
        between.open()
        publish(broker_url=url)
    written = committed(tmp_path / "log.jsonl")
    assert (written.batch, written.failed_tries, written.again) == ("0", 1, 0)
    came = Came(vhost.drain_all())
    check_nothing_lost(came, ROWS, written.duplicates)
    assert came.duplicates > 0


@pytest.mark.long
def test_a_queue_deleted_meanwhile_ends_the_query_and_made_again_gets_all(
    publish: Publish, vhost: VirtualHost, tmp_path: Path
) -> None:
    log = tmp_path / "log.jsonl"
    with meanwhile(lambda: vhost.delete_queue("q1"), tmp_path) as fault, pytest.raises(PySparkException) as raised:
        publish(lambda rows: failing(rows, fault, after=300), retry_timeout="2")
    told = words(raised.value)
    assert told.startswith("queue 'q1': 1 row returned, since there was no queue to take them; ")
    assert "; no row was confirmed for 2 s (retry_timeout); " in told
    assert '"committed"' not in log.read_text()
    vhost.queue("q1")
    vhost.bind("orders", "q1", "2")
    publish()
    written = committed(log)
    assert (written.batch, written.failed_tries, written.duplicates) == ("0", 1, 2 * ROWS)
    came = Came(vhost.drain_all())
    check_nothing_lost(came, ROWS, written.duplicates)
    assert came.by_queue["q1"]
    assert came.duplicates > 0


@pytest.mark.long
def test_a_deleted_commit_file_publishes_that_batch_again_under_the_same_ids(
    publish: Publish, vhost: VirtualHost, tmp_path: Path
) -> None:
    publish()
    publish()  # nothing is new
    for name in ("0", ".0.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink()
    publish()
    written = committed(tmp_path / "log.jsonl")
    assert (written.batch, written.failed_tries, written.duplicates) == ("0", 1, ROWS)
    came = Came(vhost.drain_all())
    check_nothing_lost(came, ROWS, written.duplicates)
    assert came.duplicates == ROWS


def test_equal_rows_under_another_checkpoint_have_other_ids(publish: Publish, vhost: VirtualHost) -> None:
    publish()
    first = Came(vhost.drain_all()).ids()
    publish(checkpoint="another")
    second = Came(vhost.drain_all()).ids()
    assert first.keys() == second.keys() == set(range(ROWS))
    assert set().union(*first.values()).isdisjoint(set().union(*second.values()))


def test_complete_mode_is_refused_since_each_batch_would_publish_all_groups_again(
    publish: Publish, vhost: VirtualHost
) -> None:
    def latest(rows: DataFrame) -> DataFrame:
        return rows.groupBy("key").agg(*(F.max(name).alias(name) for name in ("body", "n", "pad")))

    with pytest.raises((PySparkException, Py4JJavaError)) as raised:
        publish(latest, mode="complete")
    assert words(raised.value) == 'a queue cannot be overwritten: outputMode("append")'
    assert vhost.drain_all() == {}
