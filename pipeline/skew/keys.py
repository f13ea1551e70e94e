"""How often each key was published; of each ring apart, so that a key has one owner."""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from ring.hashing import SLOTS

RING = ("vhost", "exchange", "ring")
"""What is kept apart: an exchange, and each fingerprint that its records name."""

LIMITS = "vhost string, exchange string, ring string, limit double"
"""The columns that `above` goes by."""

TRACKED = 10_000
"""Keys that approx_top_k counts at a time: the more, the closer."""


def sizes(records: DataFrame) -> DataFrame:
    """One row for each RING: how many `records`, and the `least` and the `largest` sample of them.

    `since` and `until` are the times of the first and the last record.
    """
    return records.groupBy(*RING).agg(
        F.count("*").alias("records"),
        F.min("sample").alias("least"),
        F.max("sample").alias("largest"),
        F.min("time").alias("since"),
        F.max("time").alias("until"),
    )


def whole(records: DataFrame, sizes: DataFrame, share: float = 1.0) -> DataFrame:
    """Records of the slots that every sample has, or of a share of those: of each key, all records or none."""
    slots = F.greatest(F.lit(1), F.round(F.col("least") * share * SLOTS))
    limits = sizes.select(*RING, slots.alias("_slots"))
    return records.join(F.broadcast(limits), list(RING)).where(F.col("slot") < F.col("_slots")).drop("_slots")


def key_counts(records: DataFrame) -> DataFrame:
    """One row for each RING and key: `slot`, `key`, `messages`, `bytes`. A slot stands for a null `key`."""
    return records.groupBy(*RING, "slot", "key").agg(F.count("*").alias("messages"), F.sum("bytes").alias("bytes"))


def slot_counts(records: DataFrame) -> DataFrame:
    """One row for each RING and `slot`: `messages`, `bytes`."""
    return records.groupBy(*RING, "slot").agg(F.count("*").alias("messages"), F.sum("bytes").alias("bytes"))


def hottest(counts: DataFrame, top: int) -> DataFrame:
    """Of each RING the `top` rows of `key_counts` with the most messages; equal ones by slot and key."""
    rank = F.row_number().over(Window.partitionBy(*RING).orderBy(F.desc("messages"), "slot", "key"))
    return counts.withColumn("_rank", rank).where(F.col("_rank") <= top).drop("_rank", "bytes")


def about_counts(records: DataFrame) -> DataFrame:
    """Of each RING the TRACKED hottest rows of `key_counts`, nearly, without `bytes`; shuffles only so many a task."""
    # approx_top_k is SQL's only, and takes no binary and no struct.
    named = records.select(*RING, F.concat_ws(":", "slot", F.hex("key")).alias("_item"))
    found = named.groupBy(*RING).agg(F.expr(f"approx_top_k(_item, {TRACKED}, {TRACKED})").alias("_found"))
    rows = found.select(*RING, F.explode("_found").alias("_one"))
    parts = F.split("_one.item", ":")
    key = F.unhex(F.get(parts, F.lit(1)))
    return rows.select(
        *RING, parts[0].cast("int").alias("slot"), key.alias("key"), F.col("_one.count").alias("messages")
    )


def above(counts: DataFrame, limits: DataFrame) -> DataFrame:
    """Rows of `key_counts` with more messages than their RING's `limit`."""
    over: Column = F.col("messages") > F.col("limit")
    return counts.join(F.broadcast(limits), list(RING)).where(over).drop("limit", "bytes")


def spread(counts: DataFrame) -> DataFrame:
    """How many keys have how many messages: RING, `messages`, `keys`; few rows whatever the keys are."""
    return counts.groupBy(*RING, "messages").agg(F.count("*").alias("keys"))
