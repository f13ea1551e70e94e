"""Which messages were seen out of order: after a later one of their key and queue."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

ORDERED = ("proxy", "exchange", "key", "queue")
"""The columns within which messages have an order; nothing tells in which order two sidecars published."""


def chunks(records: DataFrame, of_seen: DataFrame) -> DataFrame:
    """Return the messages that have an order, in chunks that are no longer where a key is hot; to be persisted.

    Columns: those of ORDERED, `message_id`, `position` (of the first copy in that queue), `published_at` and `told_at`
    (microseconds, by the proxy's clock: of the earliest publish and the last confirm), and `chunk`: a later one has
    only later positions of what the messages have an order within. Which chunk a message is in may be another when it
    is computed again, so that the frame must be persisted.
    """
    confirmed = records.where((F.col("outcome") == "confirmed") & (F.col("kind") == "queue"))
    confirmed = confirmed.where(F.col("key").isNotNull() & F.col("message_id").isNotNull())
    grouped = confirmed.groupBy("message_id", "proxy", "exchange", "key", F.col("destination").alias("queue"))
    told = grouped.agg(F.max("time").alias("told_at"), F.min(F.col("time") - F.col("latency")).alias("published_at"))
    positions = of_seen.select("message_id", "queue", "position").where("position is not null")
    placed = told.join(positions, ["message_id", "queue"])
    # Ranges, of which a hot key takes several: equal positions are in one.
    return placed.repartitionByRange(*ORDERED, "position").withColumn("chunk", F.spark_partition_id())


def late(placed: DataFrame) -> DataFrame:
    """Return the `message_id` of messages seen later than one that was published after their confirm, from `chunks`.

    By one proxy's clock; nothing tells the order of those that were under way together. Of redelivered messages the
    first copy counts; those seen at the same position, or without a key, have no order.
    """
    before = Window.partitionBy(*ORDERED, "chunk").orderBy("position").rangeBetween(Window.unboundedPreceding, -1)
    # One row for each chunk of a key: few, of however many messages.
    of_chunk = placed.groupBy(*ORDERED, "chunk").agg(F.max("published_at").alias("published_at"))
    earlier = Window.partitionBy(*ORDERED).orderBy("chunk").rowsBetween(Window.unboundedPreceding, -1)
    carried = of_chunk.select(*ORDERED, "chunk", F.max("published_at").over(earlier).alias("carried"))
    # No more than there are chunks: only the first key of a chunk goes on from the one before.
    carried = F.broadcast(carried.where("carried is not null"))
    youngest = placed.withColumn("youngest", F.max("published_at").over(before))
    joined = youngest.join(carried, [*ORDERED, "chunk"], "left")
    return joined.where(F.greatest("youngest", "carried") >= F.col("told_at")).select("message_id").distinct()
