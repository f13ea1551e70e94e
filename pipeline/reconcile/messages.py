"""Message by message: what was published, what was seen, and what follows."""

from collections.abc import Collection

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pipeline.period import Period

FLAWS = ("lost", "duplicated", "out_of_order", "wrong_queue", "unexpected", "undetermined", "unconfirmed")
"""What may be said of a message; more than one may be true."""


def published(records: DataFrame) -> DataFrame:
    """Return the messages that have an id, by that id; of one that has a confirmed record no refused one counts.

    Columns: `message_id`, `records`, `confirmed` (how many were, by a ring's queue or where they were passed), `queues`
    (sorted) and `placed`: whether those are all that it may be in, which is not known of what an exchange got or was
    left to route.
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
        F.count_if(is_confirmed).alias("confirmed"),
        *of(is_there, "confirmed"),
        *of(F.lit(True), "any"),
    )
    return told.select(
        "message_id",
        "records",
        "confirmed",
        *(
            F.when(F.col("confirmed") > 0, F.col(f"confirmed_{name}")).otherwise(F.col(f"any_{name}")).alias(name)
            for name in ("queues", "placed")
        ),
    )


def copies(seen: DataFrame, queues: Collection[str]) -> DataFrame:
    """Return what consumers saw, by message and queue; `queues` are those of the rings.

    Columns: `message_id`, `queue`, how many `copies`, the first's `position`, the last's `seen_at`, and `is_ours`:
    whether the queue is one of the rings'.
    """
    grouped = seen.where(F.col("message_id").isNotNull()).groupBy("message_id", "queue")
    told = grouped.agg(
        F.count("*").alias("copies"), F.min("position").alias("position"), F.max("seen_at").alias("seen_at")
    )
    return told.withColumn("is_ours", F.col("queue").isin(list(queues)))


def judged(
    of_journal: DataFrame, of_seen: DataFrame, are_late: DataFrame, elsewhere: DataFrame, within: Period, until: int
) -> DataFrame:
    """Return every message that was published or seen, and its FLAWS; the journal lacks no record up to `until`.

    That is 0 where it may lack some at any time: then a message seen without a record is undetermined; and so is one in
    another queue than its record says, unless it is confirmed and seen in none of those: another record may say more.

    What was seen in a queue of no ring counts only for a message that may be in any queue (not `placed`): it may be
    another exchange's, with the same id. What has no record in `of_journal` is none of ours where `elsewhere` has its
    `message_id`, or where it was not seen `within` the time that the records are of.

    Columns: `message_id`, `records`, `confirmed`, `queues`, `copies`, `seen_queues`, `copies_elsewhere` (in queues of
    no ring), and FLAWS: `lost` is how many of those confirmed were not seen, the others are true or false.
    """
    ours = F.col("is_ours")
    by_id = of_seen.groupBy("message_id").agg(
        F.coalesce(F.sum(F.when(ours, F.col("copies"))), F.lit(0)).alias("own"),
        F.coalesce(F.sum(F.when(~ours, F.col("copies"))), F.lit(0)).alias("others"),
        F.array_sort(F.collect_set("queue")).alias("seen_queues"),
        F.collect_set(F.when(ours, F.col("queue"))).alias("own_queues"),
        F.max(F.when(ours, F.col("seen_at"))).alias("seen_at"),
    )
    joined = (
        of_journal.join(by_id, "message_id", "full_outer")
        .join(are_late.withColumn("out_of_order", F.lit(True)), "message_id", "left")
        .join(elsewhere.withColumn("is_elsewhere", F.lit(True)), "message_id", "left")
    )
    of_ours = (F.col("own") > 0) & within.holds(F.col("seen_at")) & F.col("is_elsewhere").isNull()
    joined = joined.where(F.col("records").isNotNull() | of_ours)
    none = F.lit(0).cast("long")
    own, others = (F.coalesce(name, none) for name in ("own", "others"))
    is_anywhere = F.coalesce(~F.col("placed"), F.lit(False))
    joined = joined.withColumns(
        {
            "confirmed": F.coalesce("confirmed", none),
            "copies": own + F.when(is_anywhere, others).otherwise(none),
            "copies_elsewhere": F.when(is_anywhere, none).otherwise(others),
        }
    )
    is_journalled, is_seen = F.col("records").isNotNull(), F.col("copies") > 0
    astray = F.col("placed") & is_seen & (F.size(F.array_except("own_queues", "queues")) > 0)
    is_whole = F.col("seen_at") < until
    # A copy besides the one where it belongs may be of a record that is missing.
    sure = is_whole | ((F.col("confirmed") > 0) & (F.size(F.array_intersect("own_queues", "queues")) == 0))
    flaws = {
        "duplicated": F.col("copies") > F.greatest(F.lit(1), "confirmed"),
        "out_of_order": F.col("out_of_order"),
        "wrong_queue": astray & sure,
        "unexpected": ~is_journalled & is_whole,
        "undetermined": (~is_journalled & ~is_whole) | F.coalesce(astray & ~sure, F.lit(False)),
        "unconfirmed": is_journalled & (F.col("confirmed") == 0) & ~is_seen,
    }
    return joined.select(
        "message_id",
        F.coalesce("records", none).alias("records"),
        "confirmed",
        F.coalesce("queues", F.array().cast("array<string>")).alias("queues"),
        "copies",
        F.coalesce("seen_queues", F.array().cast("array<string>")).alias("seen_queues"),
        "copies_elsewhere",
        F.greatest(none, F.col("confirmed") - F.col("copies")).alias("lost"),
        *(F.coalesce(flaw, F.lit(False)).alias(name) for name, flaw in flaws.items()),
    )


def summary(messages: DataFrame) -> DataFrame:
    """Return the sums of `judged` by the queue that a message belongs into, or else was seen in (null for neither).

    Columns: `queue`, `messages`, `repeated` (those of whose ids more than one message was confirmed), `confirmed`,
    `seen`, `copies`, `copies_elsewhere`, `lost` and `lost_elsewhere` (those of the lost that were seen in queues of no
    ring); and how many have each other of FLAWS.
    """
    queue = F.coalesce(F.try_element_at("queues", F.lit(1)), F.try_element_at("seen_queues", F.lit(1)))
    return messages.groupBy(queue.alias("queue")).agg(
        F.count("*").alias("messages"),
        F.count_if(F.col("confirmed") > 1).alias("repeated"),
        F.sum("confirmed").alias("confirmed"),
        F.count_if(F.col("copies") > 0).alias("seen"),
        F.sum("copies").alias("copies"),
        F.sum("copies_elsewhere").alias("copies_elsewhere"),
        F.sum("lost").alias("lost"),
        F.sum(F.least("lost", "copies_elsewhere")).alias("lost_elsewhere"),
        *(F.count_if(name).alias(name) for name in FLAWS if name != "lost"),
    )
