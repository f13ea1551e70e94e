"""The journal's schemas, by version: docs/journal.md is the contract."""

from pyspark.sql.types import (
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

VERSION = 1
"""Of a journal's records and rings."""

RECORD = StructType(
    [
        StructField("v", IntegerType()),
        StructField("event", StringType()),
        StructField("time", LongType()),
        StructField("proxy", StringType()),
        StructField("seq", LongType()),
        StructField("sample", DoubleType()),
        StructField("ingress", StringType()),
        StructField("vhost", StringType()),
        StructField("exchange", StringType()),
        StructField("ring", StringType()),
        StructField("key", BinaryType()),
        StructField("slot", IntegerType()),
        StructField("kind", StringType()),
        StructField("destination", StringType()),
        StructField("outcome", StringType()),
        StructField("latency", LongType()),
        StructField("bytes", LongType()),
        StructField("message_id", StringType()),
    ]
)
"""A record as it stands in a line; `time` in microseconds since 1970 UTC, `latency` in microseconds."""


def mismatches(found: StructType, expected: dict[str, tuple[type[DataType], ...]]) -> list[str]:
    """What of the columns that a job needs is missing or of another type, a line each."""
    complaints = []
    fields = {field.name: field.dataType for field in found.fields}
    for name, types in expected.items():
        if name not in fields:
            complaints.append(f"column {name!r} is missing")
        elif not isinstance(fields[name], types):
            wanted = " or ".join(t().simpleString() for t in types)
            complaints.append(f"column {name!r} is {fields[name].simpleString()}, not {wanted}")
    return complaints
