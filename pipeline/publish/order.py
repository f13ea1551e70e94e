"""Rows laid out for publishing: a task for some of the queues, a key's rows all in one task and in their order."""

import heapq

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pipeline.data.rings import RingSpec
from pipeline.publish.routes import hashed_value
from pipeline.stats.slots import destination_of_slot, slot_of_key
from ring.ring import Ring


def prepared(rows: DataFrame, spec: RingSpec, connections: int, order: str | None = None) -> DataFrame:
    """Return the rows in at most `connections` partitions, with all rows of a queue in one of them.

    If `order` names a column they are sorted by it, so that a key's rows go out in that order. Without it they go
    out as Spark brings them, in no order.
    """
    tasks = tasks_of(spec.ring, connections)
    slot = slot_of_key(F.coalesce(value_hashed(spec.hashed), F.lit(b"")))
    destination = destination_of_slot(rows.sparkSession, spec.ring, slot)
    task = F.create_map(*(F.lit(part) for pair in tasks.items() for part in pair))[destination["name"]]
    with_task = rows.withColumn("_task", task)
    placed = with_task.repartitionById(max(tasks.values()) + 1, F.col("_task")).drop("_task")
    return placed.sortWithinPartitions(order) if order is not None else placed


def value_hashed(printed: str) -> Column:
    """Return the value of a row that the exchange hashes, as bytes; null if the row lacks it."""
    hashed = hashed_value(printed)
    match hashed.source:
        case "routing_key":
            return F.col("key").cast("binary")
        case "header":
            return F.col("headers")[hashed.name].cast("binary")
        case _ if hashed.name == "timestamp":
            return F.col(hashed.name).cast("long").cast("string").cast("binary")
        case _:
            return F.col(hashed.name).cast("binary")


def tasks_of(ring: Ring, most: int) -> dict[str, int]:
    """Return the number of the task, 0 to `most` - 1, that publishes to each destination, by the destination's name.

    Each destination, those with the most slots first, goes to the task that has the fewest slots so far.
    """
    tasks = [(0, task) for task in range(most)]
    found = {}
    for destination, slots in sorted(ring.slots().items(), key=lambda one: (-one[1], one[0])):
        load, task = heapq.heappop(tasks)
        heapq.heappush(tasks, (load + slots, task))
        found[destination.name] = task
    return found
