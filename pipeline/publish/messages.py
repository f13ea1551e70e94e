"""Turning a table's rows, in Arrow's batches, into AMQP messages with their properties encoded."""

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import pairwise, repeat
from struct import pack
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from pipeline import PipelineError
from pipeline.data.schema import mismatches
from pipeline.stats.slots import MAX_KEY
from proxy.wire.properties import HEADERS_FLAG, PERSISTENT, Header, PropertyError, encoded
from ring.hashed import HashedValue, key_of

_WHOLE: tuple[type[DataType], ...] = (ByteType, ShortType, IntegerType, LongType)
_TEXT: tuple[type[DataType], ...] = (StringType,)

NEEDED: dict[str, tuple[type[DataType], ...]] = {"key": (BinaryType, StringType), "body": (BinaryType, StringType)}

PROPERTIES: dict[str, tuple[type[DataType], ...]] = {
    "content_type": _TEXT,
    "content_encoding": _TEXT,
    "headers": (MapType,),
    "priority": _WHOLE,
    "correlation_id": _TEXT,
    "expiration": _WHOLE,
    "message_id": _TEXT,
    "timestamp": (*_WHOLE, TimestampType),
    "type": _TEXT,
    "app_id": _TEXT,
}
"""Columns that a table may have, by the names of AMQP; null leaves a property out, but for message_id.

`expiration` is in milliseconds, `timestamp` in seconds since 1970 if it is a number; `headers` maps text to text.
"""

_NEVER_NULL = ("key", "body", "message_id")

_Properties = tuple[tuple[int, bytes], ...]
"""The flag and the encoded value of each property of a row, in AMQP's order; 0 and b"" for a null one."""

_FLAGS = Header.of(PERSISTENT).flags

_ID_FLAG = 1 << 7
_ID_BYTES = 16
_ID_LENGTH = bytes((2 * _ID_BYTES,))


class RowMessage(NamedTuple):
    """One row of a table as an AMQP message."""

    key: bytes
    hashed: bytes
    """The value of the row that the exchange hashes; empty if the row lacks it."""
    body: bytes
    header: Header


def check_columns(schema: StructType, ids: tuple[str, ...], hashed: HashedValue) -> None:
    """Raise PipelineError for columns that are missing, unknown or of another type, with all of them in one line.

    A table has the columns NEEDED, may have those of PROPERTIES, and has those in `ids` (the option `id_columns`).
    """
    names = schema.fieldNames()
    wanted = NEEDED | {name: types for name, types in PROPERTIES.items() if name in names}
    complaints = mismatches(schema, wanted)
    complaints += [f"column {name!r} is missing, which id_columns names" for name in ids if name not in names]
    unknown = [name for name in names if name not in wanted and name not in ids]
    complaints += [f"column {name!r} is no property, and id_columns does not name it" for name in unknown]
    kind = schema["headers"].dataType if "headers" in names else None
    if isinstance(kind, MapType) and kind.simpleString() != "map<string,string>":
        complaints.append(f"column 'headers' is {kind.simpleString()}, not map<string,string>")
    column = "headers" if hashed.source == "header" else hashed.name
    if hashed.source != "routing_key" and column not in names:
        complaints.append(f"column {column!r} is missing: the exchange hashes {hashed}")
    if complaints:
        raise PipelineError("; ".join(complaints))


def check_rows(rows: DataFrame) -> None:
    """Raise PipelineError if rows lack a value that they need, or have a text that is too long for AMQP.

    The message says how many rows, and names the first file that has some. `Reader` would find these rows too, but
    only after rows before them were published.
    """
    wrong = {f"with a null {name}": F.col(name).isNull() for name in _NEVER_NULL if name in rows.columns}
    for name in ("key", *(name for name, types in PROPERTIES.items() if types == _TEXT)):
        if name in rows.columns:
            wrong[f"with a {name} of more than {MAX_KEY} bytes"] = F.octet_length(name) > MAX_KEY
    told_apart = rows.select(
        *(is_wrong.alias(what) for what, is_wrong in wrong.items()), F.input_file_name().alias("f")
    )
    first = F.min(F.when(F.array_contains(F.array(*wrong), True), F.col("f")))
    *found, file = told_apart.agg(*(F.count_if(F.col(what)) for what in wrong), first).collect()[0]
    told = [f"{n:,} {'row' if n == 1 else 'rows'} {what}" for what, n in zip(wrong, found, strict=True) if n]
    if told:
        where = f"; the first are in {file}" if file else ""
        raise PipelineError(f"{'; '.join(told)}{where}")


class Reader:
    """A converter of Arrow batches into messages, for one write."""

    def __init__(self, hashed: HashedValue, ids: tuple[str, ...], write: str) -> None:
        """Take the hashed value of the exchange and the parts of message ids that are made here.

        Where a table has no column message_id, an id is made of the row, of its columns `ids`, and of the text
        `write`, which tells this write from others.
        """
        self._hashed, self._ids, self._write = hashed, ids, write.encode()

    def messages(self, batch: pa.RecordBatch) -> Iterator[RowMessage]:
        """Return the messages of a batch's rows, in order.

        Raises PipelineError for a null key, body or message_id, and for a value that AMQP cannot carry.
        """
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        for name in _NEVER_NULL:
            if name in columns and (nulls := columns[name].null_count):
                raise PipelineError(f"column {name!r} is null in {nulls:,} of {batch.num_rows:,} rows")
        keys, bodies = _bytes(columns["key"]), _bytes(columns["body"])
        longest = max(map(len, keys), default=0)
        if longest > MAX_KEY:
            key = next(key for key in keys if len(key) > MAX_KEY)
            raise PipelineError(f"column 'key': {key[:40]!r}... has {len(key)} bytes, {MAX_KEY} are the most")
        headers = self._headers(columns, batch.num_rows, keys, bodies)
        if self._hashed.source == "routing_key":
            return map(RowMessage, keys, keys, bodies, headers)
        return map(RowMessage, keys, self._values(columns), bodies, headers)

    def _values(self, columns: dict[str, pa.Array]) -> list[bytes]:
        """Return the value of each row that the exchange hashes, if that is a header or property; b"" where it is
        absent.
        """
        hashed = self._hashed
        if hashed.source == "header":
            return [key_of(hashed, b"", dict(row or ())) or b"" for row in columns["headers"].to_pylist()]
        values = _plain(columns[hashed.name])
        return [key_of(hashed, b"", {hashed.name: value}) or b"" for value in values]

    def _headers(
        self, columns: dict[str, pa.Array], count: int, keys: list[bytes], bodies: list[bytes]
    ) -> Iterator[Header]:
        """Return the content header of each row, with an id made of the row if there is no column message_id."""
        given = [_encoded(name, _plain(columns[name])) for name in PROPERTIES if name in columns]
        rows: Iterable[_Properties] = zip(*given, strict=True) if given else repeat((), count)
        if "message_id" in columns:
            return map(_header, rows)
        texts = [[repr(value).encode() for value in columns[name].to_pylist()] for name in self._ids]
        more: Iterable[tuple[bytes, ...]] = zip(*texts, strict=True) if texts else repeat((), count)
        return map(self._header_with_id, rows, keys, bodies, more)

    def _header_with_id(self, row: _Properties, key: bytes, body: bytes, more: tuple[bytes, ...]) -> Header:
        """Return a row's content header with a message id made of the row.

        The id is the same in any attempt; rows that are equal in everything share it.
        """
        parts = [self._write, key, body, *more]
        for flag, value in row:
            parts += (flag.to_bytes(2, "big"), value)
        digest = blake2b(pack(f">{len(parts)}I", *map(len, parts)), digest_size=_ID_BYTES)
        digest.update(b"".join(parts))
        return _header(row, _ID_LENGTH + digest.hexdigest().encode())


def _header(row: _Properties, made_id: bytes = b"") -> Header:
    """Return the content header of a persistent message with these properties, in the order of their flags, and with
    `made_id`, an encoded message id, if the table has no column for it.
    """
    flags, before, headers, after = _FLAGS | (_ID_FLAG if made_id else 0), b"", b"", b"\x02"
    for flag, value in row:
        flags |= flag
        if flag > HEADERS_FLAG:
            before += value
        elif flag == HEADERS_FLAG:
            headers = value[4:]
        elif flag:  # 0 where it is null
            if flag < _ID_FLAG:
                after, made_id = after + made_id, b""
            after += value
    return Header(flags, before, headers, after + made_id)


def _encoded(name: str, values: list[Any]) -> Iterator[tuple[int, bytes]]:
    """Yield the flag and the encoded bytes of each value of a property; 0 and b"" for null.

    Raises PipelineError for a value that AMQP cannot carry.
    """
    for value in values:
        try:
            yield encoded(name, value) if value is not None else (0, b"")
        except PropertyError as error:
            raise PipelineError(f"column {name!r}: {error}") from None


def _plain(column: pa.Array) -> list[Any]:
    """Return the values of a column as `encoded` takes them: timestamps in seconds since 1970, maps as dicts."""
    if pa.types.is_timestamp(column.type):
        microseconds = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
        return [None if value is None else value // 1_000_000 for value in microseconds.to_pylist()]
    values = column.to_pylist()
    return [value if value is None else dict(value) for value in values] if pa.types.is_map(column.type) else values


def _bytes(column: pa.Array) -> list[bytes]:
    """Return the values of a column of text or bytes without nulls, many times as fast as `to_pylist`."""
    column = column.cast(pa.large_binary())
    _, offsets, data = column.buffers()
    stops = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1].tolist()
    whole = data.to_pybytes() if data is not None else b""
    return [whole[start:stop] for start, stop in pairwise(stops)]
