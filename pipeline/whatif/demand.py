"""The demand on an exchange: how much was published, by key and by slot."""

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pipeline import PipelineError
from pipeline.data.tables import column
from pipeline.stats.slots import MAX_KEY, slot_of_key
from pipeline.whatif.prediction import Demand, moved
from ring.hashing import SLOTS
from ring.ring import Ring

MOST = 2**62
"""The most messages or bytes of a demand: what a long holds, with room for a double's rounding."""


def of_exchange(records: DataFrame, vhost: str, exchange: str) -> DataFrame:
    """Return the records of publishes to one exchange, whatever became of them."""
    return records.where((F.col("vhost") == vhost) & (F.col("exchange") == exchange))


def of_journal(records: DataFrame) -> DataFrame:
    """Return an exchange's publishes by the ring in force and the key.

    Columns: `ring`, `slot`, `key` (binary, null if the journal has none), `messages`, `bytes`, `since` and
    `time` (of the first and the last), `sample` (the least). `bytes` is null if the sum is none that a long holds.
    """
    return records.groupBy("ring", "slot", "key").agg(
        F.count("*").alias("messages"),
        F.try_sum("bytes").alias("bytes"),
        F.min("time").alias("since"),
        F.max("time").alias("time"),
        F.min("sample").alias("sample"),
    )


def of_table(rows: DataFrame, key: str, count: str | None, size: str | None) -> DataFrame:
    """Return the keys of any table with their counts, in one row for each key.

    `count` and `size` name the columns of messages and bytes: without `count` a row is one message, without `size` it
    has 0 bytes. Columns of the result: `key` (binary), `slot`, `messages`, `bytes`, `rows` (how many rows have the key)
    and `uncounted` (how many of these rows have a count that is null or negative). A sum beyond a long is null.
    """
    messages: Column = F.lit(1) if count is None else column(count)
    in_bytes = F.lit(0) if size is None else column(size)
    grouped = rows.groupBy(column(key).cast("binary").alias("key")).agg(
        F.try_sum(messages).alias("messages"),
        F.try_sum(in_bytes).alias("bytes"),
        F.count("*").alias("rows"),
        F.count_if((messages >= 0) & (in_bytes >= 0)).alias("counted"),
    )
    grouped = grouped.select("key", "messages", "bytes", "rows", (F.col("rows") - F.col("counted")).alias("uncounted"))
    return grouped.withColumn("slot", slot_of_key(F.col("key")))


def bad_rows(keys: DataFrame, hashed: str) -> list[str]:
    """Return, in words, how many rows of the table behind `of_table` have an impossible key or a bad count.

    `hashed` is the value that the ring hashes; a routing key is limited in length.
    """
    too_long = (F.length("key") > MAX_KEY) & F.lit(hashed == "routing_key")
    wrong = {
        "a null key": F.when(F.col("key").isNull(), F.col("rows")),
        f"a key of more than {MAX_KEY} bytes": F.when(too_long, F.col("rows")),
        "a null or negative count": F.col("uncounted"),
    }
    found = keys.agg(*(F.coalesce(F.sum(rows), F.lit(0)).alias(what) for what, rows in wrong.items())).collect()[0]
    return [f"{n:,} {'row' if n == 1 else 'rows'} with {what}" for what, n in found.asDict().items() if n]


def by_slot(keys: DataFrame, where: str) -> Demand:
    """Return the demand of the slots that have any: at most 2^20 rows, on the driver.

    Raises PipelineError, which says `where` the keys are from, for sums above MOST.
    """
    table = keys.groupBy("slot").agg(_total("messages"), _total("bytes")).toArrow()
    for name in ("messages", "bytes"):
        if table[name].null_count or sum(table[name].to_pylist()) > MOST:
            raise PipelineError(f"{where}: the {name} add up to more than 2^62, too many to be counted")
    slots, messages, size = (table[name].to_numpy() for name in ("slot", "messages", "bytes"))
    return Demand(slots.astype("int64"), messages, size)


def _total(name: str) -> Column:
    """Return the sum of a column of counts; null if one of the counts is null, or a long does not hold the sum."""
    return F.when(F.count(name) == F.count("*"), F.try_sum(name)).cast("long").alias(name)


def of_all_rings(keys: DataFrame) -> DataFrame:
    """Return the rows of `of_journal` added up to one for each key, whichever ring its publishes went by."""
    return keys.groupBy("slot", "key").agg(_total("messages"), _total("bytes"))


def moved_keys(keys: DataFrame, present: Ring, proposed: Ring) -> DataFrame:
    """Return the keys that change their destination, in one row for each key.

    `keys` has each key once, and one row for each slot whose key is null. Columns: `key`, `slot`, `kind`,
    `destination` and `new_kind`, `new_destination`, `messages`, `bytes`.
    """
    spark = keys.sparkSession
    # All of it by joins with small tables: to start Python for a look-up in each ring would take longer.
    slots = np.flatnonzero(moved(present, proposed, np.arange(SLOTS))).astype(np.int32)
    before, after = (pa.array(ring.table[slots], pa.int32()) for ring in (present, proposed))
    table = pa.table({"slot": slots, "before": before, "after": after})
    moving = keys.join(F.broadcast(spark.createDataFrame(table)), "slot")
    named = moving.join(_destinations(spark, present, "before", "kind", "destination"), "before")
    named = named.join(_destinations(spark, proposed, "after", "new_kind", "new_destination"), "after")
    return named.select("key", "slot", "kind", "destination", "new_kind", "new_destination", "messages", "bytes")


def _destinations(spark: SparkSession, ring: Ring, index: str, kind: str, name: str) -> DataFrame:
    kinds, names = zip(*ring.destinations, strict=True)
    columns = {index: pa.array(range(len(names)), pa.int32()), kind: pa.array(kinds), name: pa.array(names)}
    return F.broadcast(spark.createDataFrame(pa.table(columns)))
