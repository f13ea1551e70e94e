"""Message by message: what was published, what was seen, and what follows."""

from collections.abc import Collection

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pipeline.data.period import Period

FLAWS = ("lost", "duplicated", "out_of_order", "wrong_queue", "unexpected", "undetermined", "unconfirmed")
"""The flaws that a message may have, several at once; all are columns of the table messages."""


def may_be_there() -> Column:
    """Return whether the message of a record is in a queue, or may be, since its fate is not known."""
    return F.col("outcome").isin("confirmed", "passed", "unknown", "sent")


def together(records: DataFrame, is_judged: Column, seen: DataFrame, since: int) -> DataFrame:
    """Return records and what consumers saw, side by side: each row of both moves once, to the others of its message.

    All that follows is found in the partitions of this frame, which the caller persists: groups by `message_id`, and by
    `message_id` and other columns, need no further move. `is_judged` says which records are judged; of the others only
    their ids and queues count. A copy seen before `since`, in microseconds since 1970, is of no judged record: it is of
    an older message with the same id, or of one without a record. Rows without an id are left out.

    A record has a row with those of its message, queue and fate:

    - `message_id`; `queue`, that of its destination, null if it was left to RabbitMQ to route; `is_queue`, whether the
      destination is a queue;
    - of the judged ones how many `records`, how many are `confirmed` (by a ring's queue or where they were passed), and
      how many have `arrived` or may have (those that are confirmed, `unknown` or `sent`);
    - how many `others` are not judged, and how many of those `others_there` may be in a queue;
    - where they have an order, `proxy`, `exchange`, `key`, `published_at` and `told_at` (microseconds by the proxy's
      clock: of the earliest publish and the last confirm); else null.

    The copies seen have a row for each message and queue, in which `is_queue` is null: how many `copies` from `since`
    on, how many `before`, and the last's `seen_at`. All rows of a message and queue have the `first_position` of a copy
    from `since` on, null where there is none.
    """
    is_queue = F.coalesce(F.col("kind") == "queue", F.lit(False))
    is_ordered = is_judged & (F.col("outcome") == "confirmed") & is_queue & F.col("key").isNotNull()
    ordered = {"proxy": "proxy", "exchange": "exchange", "key": "key", "told_at": "time", "published_at": "published"}
    of_records = records.withColumn("published", F.col("time") - F.col("latency")).select(
        "message_id",
        F.col("destination").alias("queue"),
        is_queue.alias("is_queue"),
        is_judged.alias("is_judged"),
        "outcome",
        *(F.when(is_ordered, F.col(name)).alias(told) for told, name in ordered.items()),
    )
    both = of_records.unionByName(seen.select("message_id", "queue", "position", "seen_at"), allowMissingColumns=True)
    both = both.where(F.col("message_id").isNotNull())
    is_judged, is_since = F.col("is_judged"), F.col("seen_at") >= since
    # By the id alone, where a group's own move would be by all of its columns, and the next group's another one.
    parts = (
        both.repartition("message_id")
        .groupBy("message_id", "queue", "is_queue", "proxy", "exchange", "key")
        .agg(
            F.count_if(is_judged).alias("records"),
            F.count_if(is_judged & F.col("outcome").isin("confirmed", "passed")).alias("confirmed"),
            F.count_if(is_judged & may_be_there()).alias("arrived"),
            F.count_if(~is_judged).alias("others"),
            F.count_if(~is_judged & may_be_there()).alias("others_there"),
            F.min("published_at").alias("published_at"),
            F.max("told_at").alias("told_at"),
            F.count_if(is_since).alias("copies"),
            F.count_if(~is_since).alias("before"),
            F.min(F.when(is_since, F.col("position"))).alias("position"),
            F.max("seen_at").alias("seen_at"),
        )
    )
    first = F.min("position").over(Window.partitionBy("message_id", "queue"))
    return parts.withColumn("first_position", first).drop("position")


def seen_in(parts: DataFrame, queues: Collection[str]) -> set[str]:
    """Return those of `queues` in which consumers saw a judged message, from `together`."""
    found = F.collect_set(F.when(F.col("queue").isin(list(queues)) & (F.col("copies") > 0), F.col("queue")))
    by_id = parts.groupBy("message_id").agg(F.sum("records").alias("records"), found.alias("queues"))
    return {
        row.queue for row in by_id.where("records > 0").select(F.explode("queues").alias("queue")).distinct().collect()
    }


def judged(parts: DataFrame, are_late: DataFrame, queues: Collection[str], within: Period, until: int) -> DataFrame:
    """Return every message that was published or seen, and its FLAWS, from `together`; `queues` are those of the rings.

    The journal lacks no record up to `until`, or that is 0 where it may lack some at any time: then a message seen
    without a record is undetermined; and so is one in another queue than its record says, unless it is confirmed and
    seen in none of those: another record may say more.

    If a message has a confirmed record, no refused one counts. A copy seen in a queue of no ring counts only for a
    message that may be in any queue, or in several, since an exchange got it or RabbitMQ was left to route it: it may
    be another exchange's, with the same id. A message without a judged record is none of ours where another record has
    its `message_id`, or where it was not seen `within` the time that the records are of. One with a judged record is
    undetermined where a copy too many, or in another queue, may be of another record's message with the same id.

    Columns: `message_id`, `records`, `confirmed`, `queues`, `copies`, `seen_queues`, `copies_before` (too early to be
    of its records), `copies_elsewhere` (in queues of no ring), `repeated` (one was confirmed, and another has arrived
    under that id, or may have), `anywhere` (one was confirmed, and may be in any queue, or in several), and FLAWS:
    `lost` is how many of those confirmed were not seen, the others are true or false.
    """
    joined = _by_id(parts, queues).join(are_late.withColumn("out_of_order", F.lit(True)), "message_id", "left")
    is_journalled = F.col("records") > 0
    of_ours = (F.col("own") + F.col("own_before") > 0) & within.holds(F.col("seen_at")) & (F.col("others") == 0)
    joined = _counted(joined.where(is_journalled | of_ours))
    none, is_anywhere = F.lit(0).cast("long"), is_journalled & ~F.col("placed")
    is_seen, is_confirmed = F.col("copies") > 0, F.col("confirmed") > 0
    # In a ring's queue each copy beyond the first is one too many; an exchange may lead to several queues.
    often = F.when(is_anywhere, F.col("most")).otherwise(F.col("copies")) > F.greatest(F.lit(1), "confirmed")
    shares = is_journalled & F.col("shares")
    astray = is_journalled & F.col("placed") & is_seen & (F.size(F.array_except("own_queues", "queues")) > 0)
    is_whole = F.col("seen_at") < until
    # A copy besides the one where it belongs may be of a record that is missing.
    sure = ~shares & (is_whole | (is_confirmed & (F.size(F.array_intersect("own_queues", "queues")) == 0)))
    in_doubt = (astray & ~sure) | (often & shares)
    flaws = {
        "duplicated": often & ~shares,
        "out_of_order": F.col("out_of_order"),
        "wrong_queue": astray & sure,
        "unexpected": ~is_journalled & is_whole,
        "undetermined": (~is_journalled & ~is_whole) | F.coalesce(in_doubt, F.lit(False)),
        "unconfirmed": is_journalled & ~is_confirmed & ~is_seen,
    }
    return joined.select(
        "message_id",
        "records",
        "confirmed",
        "queues",
        "copies",
        "seen_queues",
        "copies_before",
        "copies_elsewhere",
        (is_confirmed & ((F.col("arrived") > 1) | shares)).alias("repeated"),
        (is_confirmed & is_anywhere).alias("anywhere"),
        F.greatest(none, F.col("confirmed") - F.col("copies")).alias("lost"),
        *(F.coalesce(flaw, F.lit(False)).alias(name) for name, flaw in flaws.items()),
    )


def _counted(messages: DataFrame) -> DataFrame:
    """Return messages of `_by_id` with the copies that count: none but those of their queues.

    A message without a record has no time before which it cannot have been seen: of it, all copies count.
    """
    none, is_journalled = F.lit(0).cast("long"), F.col("records") > 0
    is_anywhere = is_journalled & ~F.col("placed")
    before = F.col("own_before") + F.when(is_anywhere, F.col("others_before")).otherwise(none)
    copies = F.col("own") + F.when(is_anywhere, F.col("elsewhere")).otherwise(none)
    return messages.withColumns(
        {
            "copies": copies + F.when(is_journalled, none).otherwise(F.col("own_before")),
            "copies_before": F.when(is_journalled, before).otherwise(none),
            "copies_elsewhere": F.when(is_anywhere, none).otherwise(F.col("elsewhere")),
        }
    )


def _by_id(parts: DataFrame, queues: Collection[str]) -> DataFrame:
    """Return a row of sums for each message of `together`; `queues` are those of the rings.

    Columns: `message_id`, `records`, `confirmed`, `arrived` and `others`; `queues` (sorted) and `placed`: whether those
    are all that it may be in; `shares`: whether a message of that id that is not judged is in one of the rings' queues,
    or may be; its copies in those queues (`own`, `own_before`) and in others (`elsewhere`, `others_before`), `most` of
    them in one queue, the `seen_queues`, and of the rings' the `own_queues` and when it was last `seen_at` there.
    """
    ours, is_queue = F.col("queue").isin(list(queues)), F.coalesce("is_queue", F.lit(False))
    is_seen, of_some, of_any = F.col("is_queue").isNull(), F.col("arrived") > 0, F.col("records") > 0
    has_own = F.coalesce(ours, F.lit(False)) | ~is_queue

    def total(name: str, which: Column) -> Column:
        return F.coalesce(F.sum(F.when(which, F.col(name))), F.lit(0))

    def distinct(which: Column) -> Column:
        return F.array_sort(F.collect_set(F.when(which, F.col("queue"))))

    def placed(which: Column) -> Column:
        return F.coalesce(F.bool_and(F.when(which, is_queue)), F.lit(True))

    sums = parts.groupBy("message_id").agg(
        *(F.sum(name).alias(name) for name in ("records", "confirmed", "arrived", "others")),
        distinct(of_some & is_queue).alias("some_queues"),
        distinct(of_any & is_queue).alias("any_queues"),
        placed(of_some).alias("some_placed"),
        placed(of_any).alias("any_placed"),
        F.bool_or((F.col("others_there") > 0) & has_own).alias("shares"),
        total("copies", ours).alias("own"),
        total("copies", is_seen & ~ours).alias("elsewhere"),
        total("before", ours).alias("own_before"),
        total("before", is_seen & ~ours).alias("others_before"),
        F.max("copies").alias("most"),
        distinct(is_seen).alias("seen_queues"),
        distinct(ours & (F.col("copies") > 0)).alias("own_queues"),
        F.max(F.when(ours, F.col("seen_at"))).alias("seen_at"),
    )
    of_confirmed = {name: F.col(f"some_{name}") for name in ("queues", "placed")}
    return sums.withColumns(
        {name: F.when(F.col("confirmed") > 0, of).otherwise(F.col(f"any_{name}")) for name, of in of_confirmed.items()}
    )


def summary(messages: DataFrame) -> DataFrame:
    """Return the sums of `judged` by the queue that a message belongs into, or else was seen in (null for neither).

    Columns: `queue`, `messages`, how many of those are `repeated` and `anywhere`, `confirmed`, `seen`, `copies`,
    `copies_before`, `copies_elsewhere`, `lost` and `lost_elsewhere` (those of the lost that were seen in queues of no
    ring); and how many have each other of FLAWS.
    """
    queue = F.coalesce(F.try_element_at("queues", F.lit(1)), F.try_element_at("seen_queues", F.lit(1)))
    return messages.groupBy(queue.alias("queue")).agg(
        F.count("*").alias("messages"),
        F.count_if("repeated").alias("repeated"),
        F.count_if("anywhere").alias("anywhere"),
        F.sum("confirmed").alias("confirmed"),
        F.count_if(F.col("copies") > 0).alias("seen"),
        F.sum("copies").alias("copies"),
        F.sum("copies_before").alias("copies_before"),
        F.sum("copies_elsewhere").alias("copies_elsewhere"),
        F.sum("lost").alias("lost"),
        F.sum(F.least("lost", "copies_elsewhere")).alias("lost_elsewhere"),
        *(F.count_if(name).alias(name) for name in FLAWS if name != "lost"),
    )
