"""Message by message: what was published, what was seen, and what follows."""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pipeline.period import Period

FLAWS = ("lost", "duplicated", "out_of_order", "wrong_queue", "unexpected", "undetermined", "unconfirmed")
"""What may be said of a message; more than one may be true."""


def published(records: DataFrame) -> DataFrame:
    """Messages that have an id, by that id; where one has a confirmed record, such as were refused do not count.

    Columns: `message_id`, `records`, `confirmed` (by a ring's queue, or where it was passed), `queues` (sorted) and
    `placed`: whether those are all that it may be in, which is not known of what an exchange got or was left to route.
    """
    is_confirmed = F.col("outcome").isin("confirmed", "passed")
    is_queue = F.coalesce(F.col("kind") == "queue", F.lit(False))
    is_there = is_confirmed | F.col("outcome").isin("unknown", "sent")  # or may be

    def of(which: Column, name: str) -> list[Column]:
        return [
            F.array_sort(F.collect_set(F.when(which & is_queue, F.col("destination")))).alias(f"{name}_queues"),
            F.coalesce(F.bool_and(F.when(which, is_queue)), F.lit(True)).alias(f"{name}_placed"),
        ]

    grouped = records.where(F.col("message_id").isNotNull()).groupBy("message_id")
    told = grouped.agg(
        F.count("*").alias("records"),
        F.bool_or(is_confirmed).alias("confirmed"),
        *of(is_there, "confirmed"),
        *of(F.lit(True), "any"),
    )
    return told.select(
        "message_id",
        "records",
        "confirmed",
        *(
            F.when(F.col("confirmed"), F.col(f"confirmed_{name}")).otherwise(F.col(f"any_{name}")).alias(name)
            for name in ("queues", "placed")
        ),
    )


def copies(seen: DataFrame) -> DataFrame:
    """What consumers saw: `message_id`, `queue`, how many `copies`, the first's `position`, the last's `seen_at`."""
    grouped = seen.where(F.col("message_id").isNotNull()).groupBy("message_id", "queue")
    return grouped.agg(
        F.count("*").alias("copies"), F.min("position").alias("position"), F.max("seen_at").alias("seen_at")
    )


def late(records: DataFrame, of_seen: DataFrame) -> DataFrame:
    """The `message_id` of messages seen later than one of their key and queue that was published after their confirm.

    By one proxy's clock; nothing tells in which order two published, or one those that were under way together. Of
    redelivered messages the first copy counts; those seen at the same position, or without a key, have no order.
    """
    confirmed = records.where((F.col("outcome") == "confirmed") & (F.col("kind") == "queue"))
    confirmed = confirmed.where(F.col("key").isNotNull() & F.col("message_id").isNotNull())
    grouped = confirmed.groupBy("message_id", "proxy", "exchange", "key", F.col("destination").alias("queue"))
    placed = grouped.agg(F.max("time").alias("told_at"), F.min(F.col("time") - F.col("latency")).alias("published_at"))
    before = Window.partitionBy("proxy", "exchange", "key", "queue").orderBy("position")
    youngest = F.max("published_at").over(before.rangeBetween(Window.unboundedPreceding, -1))
    placed = placed.join(of_seen, ["message_id", "queue"]).withColumn("youngest", youngest)
    return placed.where("youngest >= told_at").select("message_id").distinct()


def judged(
    of_journal: DataFrame, of_seen: DataFrame, are_late: DataFrame, elsewhere: DataFrame, within: Period, until: int
) -> DataFrame:
    """Every message that was published or seen, and FLAWS; the journal lacks no record up to `until` (0: it may).

    What has no record in `of_journal` is none of ours where `elsewhere` has its `message_id`, or where it was not seen
    `within` the time that the records are of. Columns: `message_id`, `records`, `confirmed`, `queues`, `copies`,
    `seen_queues`, and FLAWS, each true or false.

    Where it may, a message seen without a record is undetermined; and so is one in another queue than its record says,
    unless it is confirmed and seen in none of those: another record may say more.
    """
    by_id = of_seen.groupBy("message_id").agg(
        F.sum("copies").alias("copies"),
        F.array_sort(F.collect_set("queue")).alias("seen_queues"),
        F.max("seen_at").alias("seen_at"),
    )
    joined = of_journal.join(by_id, "message_id", "full_outer").join(
        are_late.withColumn("out_of_order", F.lit(True)), "message_id", "left"
    )
    joined = joined.where("records is not null").unionByName(
        joined.where(F.col("records").isNull() & within.holds(F.col("seen_at"))).join(
            elsewhere, "message_id", "left_anti"
        )
    )
    is_journalled, is_seen = F.col("records").isNotNull(), F.col("copies").isNotNull()
    astray = F.col("placed") & is_seen & (F.size(F.array_except("seen_queues", "queues")) > 0)
    is_whole = F.col("seen_at") < until
    # A copy besides the one where it belongs may be of a record that is missing.
    sure = is_whole | (F.col("confirmed") & (F.size(F.array_intersect("seen_queues", "queues")) == 0))
    flaws = {
        "lost": F.col("confirmed") & ~is_seen,
        "duplicated": F.col("copies") > 1,
        "out_of_order": F.col("out_of_order"),
        "wrong_queue": astray & sure,
        "unexpected": ~is_journalled & is_whole,
        "undetermined": (~is_journalled & ~is_whole) | F.coalesce(astray & ~sure, F.lit(False)),
        "unconfirmed": ~F.col("confirmed") & ~is_seen,
    }
    return joined.select(
        "message_id",
        F.coalesce("records", F.lit(0)).alias("records"),
        F.coalesce("confirmed", F.lit(False)).alias("confirmed"),
        F.coalesce("queues", F.array().cast("array<string>")).alias("queues"),
        F.coalesce("copies", F.lit(0)).alias("copies"),
        F.coalesce("seen_queues", F.array().cast("array<string>")).alias("seen_queues"),
        *(F.coalesce(flaws[name], F.lit(False)).alias(name) for name in FLAWS),
    )


def summary(messages: DataFrame) -> DataFrame:
    """Of `judged`, by the queue that a message belongs into, or else was seen in (null for neither).

    Columns: `queue`, `messages`, `confirmed`, `seen`, `copies`, and how many have each of FLAWS.
    """
    queue = F.coalesce(F.try_element_at("queues", F.lit(1)), F.try_element_at("seen_queues", F.lit(1)))
    return messages.groupBy(queue.alias("queue")).agg(
        F.count("*").alias("messages"),
        F.count_if("confirmed").alias("confirmed"),
        F.count_if(F.col("copies") > 0).alias("seen"),
        F.sum("copies").alias("copies"),
        *(F.count_if(name).alias(name) for name in FLAWS),
    )
