"""Message by message: what was published, what was seen, and what follows."""

from collections.abc import Collection

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pipeline.period import Period

FLAWS = ("lost", "duplicated", "out_of_order", "wrong_queue", "unexpected", "undetermined", "unconfirmed")
"""The flaws that a message may have, several at once; all are columns of the table messages."""


def published(records: DataFrame) -> DataFrame:
    """Return the messages that have an id, by that id; of one that has a confirmed record no refused one counts.

    Columns: `message_id`, `records`, `confirmed` (how many were, by a ring's queue or where they were passed),
    `arrived` (how many were, or may have been: those that are confirmed, `unknown` or `sent`), `queues` (sorted) and
    `placed`: whether those are all that it may be in, which is not known of what an exchange got or was left to route.
    """
    is_confirmed = F.col("outcome").isin("confirmed", "passed")
    is_queue = F.coalesce(F.col("kind") == "queue", F.lit(False))
    is_there = may_be_there()

    def of(which: Column, name: str) -> list[Column]:
        return [
            F.array_sort(F.collect_set(F.when(which & is_queue, F.col("destination")))).alias(f"{name}_queues"),
            F.coalesce(F.bool_and(F.when(which, is_queue)), F.lit(True)).alias(f"{name}_placed"),
        ]

    grouped = records.where(F.col("message_id").isNotNull()).groupBy("message_id")
    told = grouped.agg(
        F.count("*").alias("records"),
        F.count_if(is_confirmed).alias("confirmed"),
        F.count_if(is_there).alias("arrived"),
        *of(is_there, "confirmed"),
        *of(F.lit(True), "any"),
    )
    return told.select(
        "message_id",
        "records",
        "confirmed",
        "arrived",
        *(
            F.when(F.col("confirmed") > 0, F.col(f"confirmed_{name}")).otherwise(F.col(f"any_{name}")).alias(name)
            for name in ("queues", "placed")
        ),
    )


def may_be_there() -> Column:
    """Return whether the message of a record is in a queue, or may be, since its fate is not known."""
    return F.col("outcome").isin("confirmed", "passed", "unknown", "sent")


def sharing(records: DataFrame, queues: Collection[str]) -> DataFrame:
    """Return the ids of records that are not judged; `queues` are those of the rings of the judged ones.

    Columns: `message_id`, and `shares`: whether by such a record a message of that id is in one of `queues`, or may be.
    """
    has_own = F.col("destination").isin(list(queues)) | ~F.col("kind").eqNullSafe("queue")
    return records.groupBy("message_id").agg(
        F.coalesce(F.bool_or(may_be_there() & has_own), F.lit(False)).alias("shares")
    )


def copies(seen: DataFrame, queues: Collection[str], since: int) -> DataFrame:
    """Return what consumers saw, by message and queue; `queues` are those of the rings.

    What was seen before `since`, in microseconds since 1970, is of no judged record: it is of an older message with the
    same id, or of one without a record.

    Columns: `message_id`, `queue`, how many `copies` from `since` on, how many `before`, the `position` of the first
    from `since` on (null where there is none), the last's `seen_at`, and `is_ours`: whether the queue is one of the
    rings'.
    """
    grouped = seen.where(F.col("message_id").isNotNull()).groupBy("message_id", "queue")
    is_since = F.col("seen_at") >= since
    told = grouped.agg(
        F.count_if(is_since).alias("copies"),
        F.count_if(~is_since).alias("before"),
        F.min(F.when(is_since, F.col("position"))).alias("position"),
        F.max("seen_at").alias("seen_at"),
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
    `message_id`, or where it was not seen `within` the time that the records are of. What has one is undetermined where
    a copy too many, or in another queue, may be of a message of `elsewhere` with the same id.

    Columns: `message_id`, `records`, `confirmed`, `queues`, `copies`, `seen_queues`, `copies_before` (too early to be
    of its records), `copies_elsewhere` (in queues of no ring), `repeated` (one was confirmed, and another has arrived
    under that id, or may have), `anywhere` (one was confirmed, and may be in any queue, or in several), and FLAWS:
    `lost` is how many of those confirmed were not seen, the others are true or false.
    """
    by_id = _by_id(of_seen)
    joined = (
        of_journal.join(by_id, "message_id", "full_outer")
        .join(are_late.withColumn("out_of_order", F.lit(True)), "message_id", "left")
        .join(elsewhere, "message_id", "left")
    )
    is_journalled = F.col("records").isNotNull()
    of_ours = (F.col("own") + F.col("own_before") > 0) & within.holds(F.col("seen_at")) & F.col("shares").isNull()
    joined = _counted(joined.where(is_journalled | of_ours))
    none, is_anywhere = F.lit(0).cast("long"), F.coalesce(~F.col("placed"), F.lit(False))
    is_seen, is_confirmed = F.col("copies") > 0, F.col("confirmed") > 0
    # Of a ring's queue each copy beyond the first is one too many; an exchange may lead to several queues.
    often = F.when(is_anywhere, F.col("most")).otherwise(F.col("copies")) > F.greatest(F.lit(1), "confirmed")
    shares = is_journalled & F.coalesce("shares", F.lit(False))
    astray = F.col("placed") & is_seen & (F.size(F.array_except("own_queues", "queues")) > 0)
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
        F.coalesce("records", none).alias("records"),
        "confirmed",
        F.coalesce("queues", F.array().cast("array<string>")).alias("queues"),
        "copies",
        F.coalesce("seen_queues", F.array().cast("array<string>")).alias("seen_queues"),
        "copies_before",
        "copies_elsewhere",
        (is_confirmed & ((F.col("arrived") > 1) | shares)).alias("repeated"),
        (is_confirmed & is_anywhere).alias("anywhere"),
        F.greatest(none, F.col("confirmed") - F.col("copies")).alias("lost"),
        *(F.coalesce(flaw, F.lit(False)).alias(name) for name, flaw in flaws.items()),
    )


def _counted(joined: DataFrame) -> DataFrame:
    """Return messages of `published`, joined with `_by_id`, with the copies that count: none but those of their queues.

    A message without a record has no time before which it cannot have been seen: of it, all copies count.
    """
    none, is_anywhere = F.lit(0).cast("long"), F.coalesce(~F.col("placed"), F.lit(False))
    is_journalled = F.col("records").isNotNull()
    totals = ("own", "others", "own_before", "others_before")
    own, others, own_before, others_before = (F.coalesce(name, none) for name in totals)
    before = own_before + F.when(is_anywhere, others_before).otherwise(none)
    copies = own + F.when(is_anywhere, others).otherwise(none)
    return joined.withColumns(
        {
            "confirmed": F.coalesce("confirmed", none),
            "copies": copies + F.when(is_journalled, none).otherwise(own_before),
            "copies_before": F.when(is_journalled, before).otherwise(none),
            "copies_elsewhere": F.when(is_anywhere, none).otherwise(others),
        }
    )


def _by_id(of_seen: DataFrame) -> DataFrame:
    """Return `copies` by `message_id`: of queues of the rings (`own`) and of `others`, and what `judged` needs else."""
    ours, is_since = F.col("is_ours"), F.col("copies") > 0

    def total(name: str, which: Column) -> Column:
        return F.coalesce(F.sum(F.when(which, F.col(name))), F.lit(0))

    return of_seen.groupBy("message_id").agg(
        total("copies", ours).alias("own"),
        total("copies", ~ours).alias("others"),
        total("before", ours).alias("own_before"),
        total("before", ~ours).alias("others_before"),
        F.max("copies").alias("most"),
        F.array_sort(F.collect_set("queue")).alias("seen_queues"),
        F.collect_set(F.when(ours & is_since, F.col("queue"))).alias("own_queues"),
        F.max(F.when(ours, F.col("seen_at"))).alias("seen_at"),
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
