"""How often each key was published: of each ring apart, so that a key has one owner, and across an exchange's rings."""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from ring.hashing import SLOTS

EXCHANGE = ("vhost", "exchange")

SCOPE = (*EXCHANGE, "ring", "across")
"""The columns that name a group of records judged together: those of one exchange that name one ring (a fingerprint).

If `across` is true, they are the records of all rings of an exchange that has several, and `ring` is the one with the
most records.
"""

SCOPES = "vhost string, exchange string, ring string, across boolean"

TRACKED = 10_000
"""Keys that approx_top_k counts at a time: the more, the closer."""

_PARTS = 64
"""Tasks among which the keys of one ring are divided to be sorted; the last one sorts so many times `top` rows."""


def sizes(records: DataFrame) -> DataFrame:
    """Return one row for each exchange and ring: `records`, the `least` and the `largest` sample of them.

    `since` and `until` are the times of the first and the last record.
    """
    return records.groupBy(*EXCHANGE, "ring").agg(
        F.count("*").alias("records"),
        F.min("sample").alias("least"),
        F.max("sample").alias("largest"),
        F.min("time").alias("since"),
        F.max("time").alias("until"),
    )


def whole(records: DataFrame, samples: DataFrame, share: float = 1.0) -> DataFrame:
    """Return the records of the slots that every sample of their exchange has, or of a `share` of those slots.

    A key has either all of its records there, or none. `samples` has EXCHANGE and its `least` sample. The result has
    SCOPE.
    """
    slots = F.greatest(F.lit(1), F.round(F.col("least") * share * SLOTS))
    limits = samples.select(*EXCHANGE, slots.alias("_slots"), F.lit(False).alias("across"))
    return records.join(F.broadcast(limits), list(EXCHANGE)).where(F.col("slot") < F.col("_slots")).drop("_slots")


def key_counts(records: DataFrame) -> DataFrame:
    """Return one row for each SCOPE and key: `slot`, `key`, `messages`, `bytes`. A slot stands for a null `key`."""
    return records.groupBy(*SCOPE, "slot", "key").agg(F.count("*").alias("messages"), F.sum("bytes").alias("bytes"))


def slot_counts(records: DataFrame) -> DataFrame:
    """Return one row for each SCOPE and `slot`: `messages`, `bytes`."""
    return records.groupBy(*SCOPE, "slot").agg(F.count("*").alias("messages"), F.sum("bytes").alias("bytes"))


def with_across(counts: DataFrame, mains: DataFrame) -> DataFrame:
    """Return rows of keys or slots of each ring, and with them those of each exchange that `mains` has.

    `mains` has the SCOPE of those exchanges. The result lacks `bytes`.
    """
    of_rings = counts.drop("bytes")
    what = [name for name in of_rings.columns if name not in (*SCOPE, "messages")]
    added = of_rings.groupBy(*EXCHANGE, *what).agg(F.sum("messages").alias("messages"))
    return of_rings.unionByName(added.join(F.broadcast(mains), list(EXCHANGE)))


def by_slot(counts: DataFrame) -> DataFrame:
    """Return one row for each SCOPE and `slot` with its `messages`, of rows of keys or slots."""
    return counts.groupBy(*SCOPE, "slot").agg(F.sum("messages").alias("messages"))


def hottest(counts: DataFrame, top: int) -> DataFrame:
    """Return the `top` rows with the most messages of each SCOPE; among equal ones, those first by slot and key.

    The result has the columns of `counts`: of `key_counts`, `about_counts` (which lacks `bytes`) or `by_slot`. No task
    sorts all keys of a ring: each of _PARTS first finds the hottest keys of the slots in it.
    """
    ties = [name for name in ("slot", "key") if name in counts.columns]
    part = F.pmod(F.hash("slot"), F.lit(_PARTS))
    for apart in ([*SCOPE, part], [*SCOPE]):
        rank = F.row_number().over(Window.partitionBy(*apart).orderBy(F.desc("messages"), *ties))
        counts = counts.withColumn("_rank", rank).where(F.col("_rank") <= top).drop("_rank")
    return counts


def about_counts(records: DataFrame) -> DataFrame:
    """Return, approximately, the TRACKED hottest rows of `key_counts` for each SCOPE, without `bytes`.

    Only so many rows of a task are shuffled. Which keys are dropped on the way, and so the counts, depends on how
    records are laid out: on their files, and on the order in which tasks are merged.
    """
    # approx_top_k is SQL's only, and takes no binary and no struct.
    named = records.select(*SCOPE, F.concat_ws(":", "slot", F.hex("key")).alias("_item"))
    found = named.groupBy(*SCOPE).agg(F.expr(f"approx_top_k(_item, {TRACKED}, {TRACKED})").alias("_found"))
    rows = found.select(*SCOPE, F.explode("_found").alias("_one"))
    parts = F.split("_one.item", ":")
    key = F.unhex(F.get(parts, F.lit(1)))
    return rows.select(
        *SCOPE, parts[0].cast("int").alias("slot"), key.alias("key"), F.col("_one.count").alias("messages")
    )


def above(counts: DataFrame, limits: DataFrame) -> DataFrame:
    """Return the rows of keys with more messages than the `limit` of their SCOPE."""
    over: Column = F.col("messages") > F.col("limit")
    return counts.join(F.broadcast(limits), list(SCOPE)).where(over).drop("limit")


def spread(counts: DataFrame) -> DataFrame:
    """Return how many `keys` have how many `messages`, of each SCOPE; few rows whatever the keys are.

    If `counts` has rows of `by_slot`, `keys` is a number of slots.
    """
    return counts.groupBy(*SCOPE, "messages").agg(F.count("*").alias("keys"))
