"""The search for messages that were seen out of order: behind a later message of the same key in the same queue."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

ORDERED = ("proxy", "exchange", "key", "queue")
"""The columns whose values messages must share to have an order.

The sidecar (`proxy`) is one of them, since nothing tells in which order two sidecars published.
"""


def chunks(records: DataFrame, of_seen: DataFrame) -> DataFrame:
    """Return the messages that have an order, cut into chunks of about equal size, however hot a key is.

    Columns: those of ORDERED, `message_id`, `position` (of the first copy in the queue), `published_at` and `told_at`
    (microseconds, by the proxy's clock: of the earliest publish and the last confirm), and `chunk`. Of messages that
    share the columns of ORDERED, those in a later chunk have later positions. The caller must persist the frame, since
    a message may be in another chunk when the frame is computed again.
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
