"""A key's slot, and a slot's owner, as Spark columns: `ring`'s own hash and table over Arrow's batches."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, SparkSession
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from ring.hashing import slot_of
from ring.ring import Ring

MAX_KEY = 255
"""Bytes of a routing key: an AMQP short string."""

_udf: Any = arrow_udf  # whose stubs only know the call that it warns of
_DESTINATION = StructType([StructField("kind", StringType()), StructField("name", StringType())])


def _slots(keys: pa.Array) -> pa.Array:
    # Handing the batch over costs more than these calls: a hash vectorised in numpy would gain little.
    return pa.array([None if key is None else slot_of(key) for key in keys.to_pylist()], pa.int32())


def slot_of_key(key: Column) -> Column:
    """The slot of a key, binary or text (its UTF-8): an int, null where the key is. Hash each distinct key once."""
    column: Column = _udf(_slots, IntegerType())(key.cast("binary"))
    return column


def destination_of_slot(spark: SparkSession, ring: Ring, slot: Column) -> Column:
    """The owner of a slot: a struct of `kind` and `name`, null where the slot is. The table is broadcast, 2 MiB."""
    shared = spark.sparkContext.broadcast((ring.owner_index, ring.destinations))

    def owners(slots: pa.Array) -> pa.Array:
        owner_index, destinations = shared.value
        table = pa.Array.from_buffers(pa.uint16(), len(owner_index) // 2, [None, pa.py_buffer(owner_index)])
        index = table.take(slots)
        kinds, names = (pa.array(part, pa.string()).take(index) for part in zip(*destinations, strict=True))
        return pa.StructArray.from_arrays([kinds, names], ["kind", "name"], mask=pc.is_null(index))

    column: Column = _udf(owners, _DESTINATION)(slot)
    return column
