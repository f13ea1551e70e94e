"""Rows laid out for publishing: a task for some of the queues, a key's rows all in one task and in their order."""

import heapq

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pipeline.publish.routes import hashed_value
from pipeline.rings import KnownRing
from pipeline.slots import destination_of_slot, slot_of_key
from ring.ring import Ring


def prepared(rows: DataFrame, known: KnownRing, connections: int, order: str | None = None) -> DataFrame:
    """The rows in at most so many partitions: each queue's in one, sorted by the column `order` where there is one.

    A key's rows then go out one behind the other. Without `order` they go out as Spark brings them, which is no order.
    """
    lanes = lanes_of(known.ring, connections)
    slot = slot_of_key(F.coalesce(value_hashed(known.hashed), F.lit(b"")))
    destination = destination_of_slot(rows.sparkSession, known.ring, slot)
    lane = F.create_map(*(F.lit(part) for pair in lanes.items() for part in pair))[destination["name"]]
    with_lane = rows.withColumn("_lane", lane)
    placed = with_lane.repartitionById(max(lanes.values()) + 1, F.col("_lane")).drop("_lane")
    return placed.sortWithinPartitions(order) if order is not None else placed


def value_hashed(printed: str) -> Column:
    """What the exchange hashes of a row, as bytes; null where the row lacks it."""
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


def lanes_of(ring: Ring, most: int) -> dict[str, int]:
    """A lane, 0 to `most` - 1, for each destination by name: the slots of the lanes as even as can be had simply."""
    lanes = [(0, lane) for lane in range(most)]
    found = {}
    for destination, slots in sorted(ring.slots().items(), key=lambda one: (-one[1], one[0])):
        load, lane = heapq.heappop(lanes)
        heapq.heappush(lanes, (load + slots, lane))
        found[destination.name] = lane
    return found
