"""The order of messages: found by the definition, whatever one key has of them, and not by one task."""

import random
from collections import defaultdict
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pipeline.reconcile.messages import together
from pipeline.reconcile.order import ORDERED, chunks, late

HOT, ALL = 12_000, 14_000
"""Messages of one key, and all of them."""

Message = tuple[str, str, str, str, bytes, str, int, int, str, str]
"""A record's `message_id`, `proxy`, `exchange`, `destination`, `key`, `kind`, `time`, `latency`, `outcome`, `vhost`."""


@pytest.fixture
def twelve_tasks(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, in which a small shuffle has twelve tasks too."""
    ours = {"spark.sql.adaptive.coalescePartitions.enabled": "false", "spark.sql.shuffle.partitions": "12"}
    before = {name: str(spark.conf.get(name)) for name in ours}
    for name, value in ours.items():
        spark.conf.set(name, value)
    yield spark
    for name, value in before.items():
        spark.conf.set(name, value)


def traffic() -> tuple[list[Message], dict[str, int]]:
    """Records of a hot key and of 50 others, and the position at which each was seen."""
    chance = random.Random(7)
    records: list[Message] = []
    positions = {}
    for n in range(ALL):
        key = b"hot" if n < HOT else b"key-%d" % chance.randrange(50)
        proxy = f"{chance.randrange(2) if key != b'hot' else 0:016x}"
        time = 1000 + n * 10 + chance.randrange(40)
        queue = f"orders.{len(key) % 2}"
        records.append((f"m-{n}", proxy, "orders", queue, key, "queue", time, chance.randrange(90), "confirmed", "/"))
        # Most in order, some a little late, some by much; and some at one position with others.
        late_by = chance.choice([0] * 40 + [3, 30, 3000])
        positions[f"m-{n}"] = (n + late_by) // 2
    return records, positions


def by_definition(records: list[Message], positions: dict[str, int]) -> set[str]:
    """The messages before which one was seen that was published after their confirm: a walk over each key's."""
    groups = defaultdict(list)
    for message, proxy, exchange, queue, key, _, time, latency, _, _ in records:
        groups[proxy, exchange, key, queue].append((positions[message], time - latency, time, message))
    found = set()
    for rows in groups.values():
        rows.sort()
        youngest, reached, at_reached = -1, -1, -1
        for position, published_at, told_at, message in rows:
            if position > reached:
                youngest, reached, at_reached = max(youngest, at_reached), position, -1
            at_reached = max(at_reached, published_at)
            if youngest >= told_at:
                found.add(message)
    return found


def most_read(spark: SparkSession, group: str) -> int:
    """The most rows that one task of a group of jobs got from a shuffle, by Spark's own metrics."""
    tracker = spark.sparkContext.statusTracker()
    store = spark._jsc.sc().statusStore()
    most = 0
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        assert info is not None
        for stage in info.stageIds:
            if tracker.getStageInfo(stage) is None:
                continue
            tasks = store.taskList(stage, 0, 1000)
            for n in range(tasks.size()):
                metrics = tasks.apply(n).taskMetrics()
                if metrics.isDefined():
                    most = max(most, metrics.get().shuffleReadMetrics().recordsRead())
    return most


@pytest.mark.long
def test_the_order_of_a_hot_key_is_not_one_tasks_sort(twelve_tasks: SparkSession) -> None:
    messages, positions = traffic()
    expected = by_definition(messages, positions)
    assert 500 < len(expected) < 8000
    columns = "message_id string, proxy string, exchange string, destination string, key binary, kind string"
    records = twelve_tasks.createDataFrame(
        messages, f"{columns}, time long, latency long, outcome string, vhost string"
    )
    seen = [(message, queue, positions[message]) for message, _, _, queue, *_ in messages]
    of_seen = twelve_tasks.createDataFrame(seen, "message_id string, queue string, position long").selectExpr(
        "*", "position AS seen_at"
    )
    twelve_tasks.sparkContext.setJobGroup("order", "the order of a hot key")
    parts = together(records, F.lit(True), of_seen, 0).persist()
    placed = chunks(parts)
    found = {row.message_id for row in late(placed).collect()}
    twelve_tasks.sparkContext.setJobGroup("after", "what it is compared with")
    of_hot = placed.where(F.col("key") == F.lit(b"hot")).groupBy(*ORDERED, "chunk").count().collect()
    parts.unpersist()
    assert found == expected
    assert len(of_hot) > 1, "the hot key is in several chunks"
    assert 0 < most_read(twelve_tasks, "order") < HOT / 2
