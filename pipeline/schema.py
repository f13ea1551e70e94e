"""The journal's schemas, by version: docs/journal.md is the contract."""

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

INGRESSES = ("amqp", "http")
"""How a publish may have come to a sidecar."""

OUTCOMES = ("confirmed", "passed", "nacked", "unroutable", "unknown", "sent", "invalid")
"""What may have become of a publish."""

YEAR_10000 = 253_402_300_800_000_000
"""In microseconds since 1970 UTC: neither Python nor a folder's name has such a date."""


@dataclass(frozen=True)
class Allowed:
    """What a field holds, besides its type."""

    words: tuple[str, ...] = ()
    """One of these; without any, whatever the type has, within the bounds."""
    least: float | None = None
    most: float | None = None
    nullable: bool = False

    def holds(self, value: str | float | None) -> bool:
        """Whether a field may have this value."""
        if value is None:
            return self.nullable
        if isinstance(value, str):
            return not self.words or value in self.words
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    def __str__(self) -> str:
        """As an error says what was wanted."""
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
"""Of the fields that not all values of their type, and null, will do for; `v` is looked at before any of them."""


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
