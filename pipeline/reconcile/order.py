"""The search for messages that were seen out of order: behind a later message of the same key in the same queue."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

ORDERED = ("proxy", "exchange", "key", "queue")
"""The columns whose values messages must share to have an order.

The sidecar (`proxy`) is one of them, since nothing tells in which order two sidecars published.
"""

_TRACKED = 50
"""Keys that are counted at a time to find the hot ones, for each task of a shuffle: far more than can be hot."""


def chunks(parts: DataFrame) -> DataFrame:
    """Return the messages of `reconcile.messages.together` that have an order, and a hot key's cut into chunks of
    about equal size.

    Columns: those of ORDERED, `message_id`, `position` (of the first copy in the queue), `published_at` and `told_at`,
    `is_hot`, whether its key has more messages than a task should get, and `chunk`, 0 for other keys. Among messages
    that share the columns of ORDERED, those in a later chunk have later positions, and equal positions are in one
    chunk. A chunk has no more messages than an equal share for each task of a shuffle, but for those at one position.
    """
    tasks = max(2, int(parts.sparkSession.conf.get("spark.sql.shuffle.partitions") or 0))
    placed = parts.where("told_at is not null and first_position is not null").select(
        "message_id",
        *ORDERED,
        "published_at",
        "told_at",
        F.col("first_position").alias("position"),
        # Keys that share a hash are cut together, which changes nothing else.
        F.xxhash64(*ORDERED).alias("_key"),
    )
    [(count, ends, hottest)] = placed.agg(
        F.count("*"),
        F.percentile_approx("position", [n / tasks for n in range(1, tasks)]),
        F.expr(f"approx_top_k(_key, {tasks}, {_TRACKED * tasks})"),
    ).collect()
    hot = [key for key, messages in hottest or [] if messages * tasks > count]
    is_hot = F.col("_key").isin(hot)
    passed = F.size(F.filter(F.array(*map(F.lit, ends or [])), lambda end: end < F.col("position")))
    chunk = F.when(is_hot, passed).otherwise(0)
    return placed.select("*", is_hot.alias("is_hot"), chunk.alias("chunk")).drop("_key")


def late(placed: DataFrame) -> DataFrame:
    """Return the `message_id` of messages seen later than one that was published after their confirm, from `chunks`.

    The times are those of one proxy's clock; nothing tells the order of those that were under way together. A message
    that was redelivered counts by its first copy; messages seen at the same position, or without a key, have no order.
    """
    before = Window.partitionBy(*ORDERED, "chunk").orderBy("position").rangeBetween(Window.unboundedPreceding, -1)
    # One row for each chunk of a hot key: few, of however many messages.
    of_chunk = placed.where("is_hot").groupBy(*ORDERED, "chunk").agg(F.max("published_at").alias("published_at"))
    earlier = Window.partitionBy(*ORDERED).orderBy("chunk").rowsBetween(Window.unboundedPreceding, -1)
    carried = of_chunk.select(*ORDERED, "chunk", F.max("published_at").over(earlier).alias("carried"))
    carried = F.broadcast(carried.where("carried is not null"))
    youngest = placed.withColumn("youngest", F.max("published_at").over(before))
    joined = youngest.join(carried, [*ORDERED, "chunk"], "left")
    return joined.where(F.greatest("youngest", "carried") >= F.col("told_at")).select("message_id").distinct()
