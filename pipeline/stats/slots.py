"""A key's slot, and a slot's owner, as Spark columns: `ring`'s own hash and table over Arrow's batches."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, SparkSession
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from ring.destination import Destination
from ring.hashing import slot_of
from ring.ring import Ring

MAX_KEY = 255
"""The most bytes that a routing key has: it is an AMQP short string."""

_udf: Any = arrow_udf  # whose stubs only know the call that it warns of
_DESTINATION = StructType([StructField("kind", StringType()), StructField("name", StringType())])


def _slots(keys: pa.Array) -> pa.Array:
    # Handing the batch over costs more than these calls: a hash vectorised in numpy would gain little.
    return pa.array([None if key is None else slot_of(key) for key in keys.to_pylist()], pa.int32())


def slot_of_key(key: Column) -> Column:
    """Return the slot of a key, binary or text in UTF-8, as an int; null for a null key.

    Hashing is slow in Spark: apply it to distinct keys.
    """
    column: Column = _udf(_slots, IntegerType())(key.cast("binary"))
    return column


def destination_of_slot(spark: SparkSession, ring: Ring, slot: Column) -> Column:
    """Return the owner of a slot as a struct of `kind` and `name`; null for a null slot.

    The ring's table of 2 MiB is broadcast to the executors.
    """
    shared = spark.sparkContext.broadcast((ring.owner_index, ring.destinations))

    def owners(slots: pa.Array) -> pa.Array:
        kinds, names = _owners(*shared.value, slots)
        return pa.StructArray.from_arrays([kinds, names], ["kind", "name"], mask=pc.is_null(slots))

    column: Column = _udf(owners, _DESTINATION)(slot)
    return column


def _owners(owner_index: bytes, destinations: tuple[Destination, ...], slots: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the kinds and the names of the owners of slots."""
    table = pa.Array.from_buffers(pa.uint16(), len(owner_index) // 2, [None, pa.py_buffer(owner_index)])
    index = table.take(slots)
    kinds, names = (pa.array(part, pa.string()).take(index) for part in zip(*destinations, strict=True))
    return kinds, names
