"""The journal's schemas, by version: docs/reference/journal.md is the contract."""

from dataclasses import dataclass

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

from ring.hashing import SLOTS

VERSION = 1
"""The version of a journal's records and rings that the jobs read."""

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

INGRESSES = ("amqp", "http")
"""How a publish may have come to a sidecar."""

OUTCOMES = ("confirmed", "passed", "nacked", "unroutable", "unknown", "sent", "invalid")
"""The outcomes that a record may have."""

YEAR_10000 = 253_402_300_800_000_000
"""The beginning of the year 10000 in microseconds since 1970 UTC: Python's dates and folders' names end before it."""


@dataclass(frozen=True)
class Allowed:
    """The values that a record's field may have, besides being of its type."""

    words: tuple[str, ...] = ()
    """The texts that are allowed; empty where any is, or where the field is a number."""
    least: float | None = None
    most: float | None = None
    nullable: bool = False

    def holds(self, value: str | float | None) -> bool:
        """Return whether a field may have this value."""
        if value is None:
            return self.nullable
        if isinstance(value, str):
            return not self.words or value in self.words
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    def __str__(self) -> str:
        """Return the allowed values in words, for an error's message."""
        if self.words:
            wanted = f"one of {', '.join(self.words)}"
        elif self.least is not None:
            wanted = f"{self.least} or more" if self.most is None else f"{self.least} to {self.most}"
        else:
            wanted = "a value"
        return f"{wanted} or null" if self.nullable else wanted


ALLOWED = {
    "event": Allowed(),
    "time": Allowed(least=0, most=YEAR_10000 - 1),
    "proxy": Allowed(),
    "seq": Allowed(least=1),
    "sample": Allowed(least=1 / SLOTS, most=1),
    "ingress": Allowed(words=INGRESSES),
    "vhost": Allowed(),
    "exchange": Allowed(),
    "ring": Allowed(),
    "slot": Allowed(least=0, most=SLOTS - 1),
    "kind": Allowed(words=("queue", "exchange"), nullable=True),
    "outcome": Allowed(words=OUTCOMES),
    "latency": Allowed(least=0, nullable=True),
    "bytes": Allowed(least=0),
}
"""The allowed values by field, of the fields that cannot have any value of their type or null. `v` is checked before
them.
"""


def mismatches(found: StructType, expected: dict[str, tuple[type[DataType], ...]]) -> list[str]:
    """Return a line for each column that a job needs and that is missing or of another type."""
    complaints = []
    fields = {field.name: field.dataType for field in found.fields}
    for name, types in expected.items():
        if name not in fields:
            complaints.append(f"column {name!r} is missing")
        elif not isinstance(fields[name], types):
            wanted = " or ".join(t().simpleString() for t in types)
            complaints.append(f"column {name!r} is {fields[name].simpleString()}, not {wanted}")
    return complaints
