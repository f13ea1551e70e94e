"""The keys, messages and bytes of each destination, added up by the owner of each slot."""

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pipeline.skew.keys import SCOPE
from pipeline.slots import owner_of_slot
from ring.ring import Ring


def key_loads(spark: SparkSession, counts: DataFrame, rings: Mapping[str, Ring]) -> DataFrame:
    """Return of rows of keys: SCOPE, `kind`, `name`, how many distinct `keys`, and how many are `named`, not null."""
    by_slot = counts.groupBy(*SCOPE, "slot").agg(F.count("*").alias("keys"), F.count("key").alias("named"))
    return _by_owner(spark, by_slot, rings, "keys", "named")


def message_loads(spark: SparkSession, counts: DataFrame, rings: Mapping[str, Ring]) -> DataFrame:
    """Return the sums of `messages` and `bytes` by SCOPE and by the destination that owns the slot: `kind` and `name`.

    `counts` has a row for each slot or key. The ring says who owns a slot, so passed messages count there too.
    """
    return _by_owner(spark, counts, rings, "messages", "bytes")


def _by_owner(spark: SparkSession, slots: DataFrame, rings: Mapping[str, Ring], *sums: str) -> DataFrame:
    # At most 2^20 rows of each ring come here, however many records there are.
    owner = owner_of_slot(spark, rings, F.col("ring"), F.col("slot")).alias("owner")
    owned = slots.select(*SCOPE, owner, *sums)
    return owned.groupBy(*SCOPE, "owner.kind", "owner.name").agg(*(F.sum(name).alias(name) for name in sums))
