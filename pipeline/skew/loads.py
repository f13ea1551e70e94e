"""The keys, messages and bytes of each destination, added up by the owner of each slot."""

from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pipeline.skew.keys import SCOPE, SCOPES
from ring.destination import Destination
from ring.ring import owners

Rings = Mapping[str, Mapping[Destination, int]]
"""The weights of rings by fingerprint: some kilobytes each, where a ring's table of owners takes 2 MiB."""


def key_loads(spark: SparkSession, counts: DataFrame, rings: Rings) -> DataFrame:
    """Return of rows of keys: SCOPE, `kind`, `name`, how many distinct `keys`, and how many are `named`, not null."""
    by_slot = counts.groupBy(*SCOPE, "slot").agg(F.count("*").alias("keys"), F.count("key").alias("named"))
    return _by_owner(spark, by_slot, rings, "keys", "named")


def message_loads(spark: SparkSession, counts: DataFrame, rings: Rings) -> DataFrame:
    """Return the sums of `messages` and `bytes` by SCOPE and by the destination that owns the slot: `kind` and `name`.

    `counts` has rows of slots or keys. A message that was passed, whose queue the broker chose, counts at the queue
    that the ring would have chosen.
    """
    by_slot = counts.groupBy(*SCOPE, "slot").agg(F.sum("messages").alias("messages"), F.sum("bytes").alias("bytes"))
    return _by_owner(spark, by_slot, rings, "messages", "bytes")


def _by_owner(spark: SparkSession, slots: DataFrame, rings: Rings, *sums: str) -> DataFrame:
    """Return the sums of rows of slots, each slot once in a SCOPE, by the owner.

    One task gets all of a SCOPE, at most 2^20 rows however many records there are. It decides the owners of those slots
    that have a row, so no ring is built, sent or kept, however many rings there are.
    """
    weights = spark.sparkContext.broadcast({name: dict(one) for name, one in rings.items()})
    schema = f"{SCOPES}, kind string, name string, {', '.join(f'{name} long' for name in sums)}"

    def of_scope(scope: tuple[pa.Scalar, ...], rows: pa.Table) -> pa.Table:
        """Return the sums of the slots of one SCOPE by owner, on the ring of that SCOPE."""
        ring = weights.value[scope[SCOPE.index("ring")].as_py()]
        owner = pa.array(owners(ring, rows["slot"].to_numpy().astype("int64")))
        added = pa.table({"owner": owner, **{name: rows[name] for name in sums}})
        added = added.group_by("owner").aggregate([(name, "sum") for name in sums])
        kinds, names = (pa.array(part, pa.string()).take(added["owner"]) for part in zip(*sorted(ring), strict=True))
        columns = [pa.array([value.as_py()] * len(added), value.type) for value in scope]
        columns += [kinds, names, *(added[f"{name}_sum"] for name in sums)]
        return pa.table(columns, [field.split()[0] for field in schema.split(", ")])

    return slots.select(*SCOPE, "slot", *sums).groupBy(*SCOPE).applyInArrow(of_scope, schema)
