"""Reading the messages of the journal's stream queue: records as Arrow batches, rings as RingSpec."""

import base64
import binascii
import contextlib
import gzip
import io
import zlib
from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructType

from pipeline import PipelineError
from pipeline.data.rings import RingSpec, parse_ring
from pipeline.data.schema import ALLOWED, RECORD, VERSION
from pipeline.stream.queue import StreamMessage, StreamQueue, ranges

RECORDS, RING = "ringproxy.records.v1", "ringproxy.ring.v1"
"""The values of the AMQP property `type` by which messages of records and of rings are told apart."""

_SCHEMA = to_arrow_schema(RECORD, timezone="UTC")
_KEY = _SCHEMA.get_field_index("key")
_TEXT_KEY = _SCHEMA.set(_KEY, pa.field("key", pa.string()))
"""The Arrow schema of a record as JSON has it, with the key in base64."""
_ONLY_VERSION = pa.schema([_SCHEMA.field("v")])


SET_ASIDE = StructType([*RECORD.fields]).add("line", StringType()).add("reason", StringType())
"""The columns of records, and of lines that are none: these have a `reason`, and null for all of a record."""

_SET_ASIDE = to_arrow_schema(SET_ASIDE, timezone="UTC")


def records(message: StreamMessage, queue: StreamQueue) -> pa.RecordBatch | None:
    """Return the records of one message, with the columns of RECORD; None where it holds none.

    Raises PipelineError, which names the offset, for what is not as docs/reference/journal.md says.
    """
    where = f"{queue}, offset {message.offset}"
    if message.type == RING:
        return None
    if message.type != RECORDS:
        raise PipelineError(f"{where}: a message of type {message.type!r}, known are {RECORDS} and {RING}")
    lines = _unpacked(message, where)
    if not lines.strip():
        return None
    try:
        table = _parsed(lines, _TEXT_KEY)
        _check_versions(table, where)
        keys = [None if key is None else base64.b64decode(key, validate=True) for key in table["key"].to_pylist()]
    except (pa.ArrowInvalid, binascii.Error) as error:
        with contextlib.suppress(pa.ArrowInvalid):
            _check_versions(_parsed(lines, _ONLY_VERSION), where)
        raise PipelineError(f"{where}: a line that is no record: {str(error).splitlines()[0]}") from None
    _check_fields(table, where)
    table = table.set_column(_KEY, _SCHEMA.field(_KEY), pa.array(keys, pa.binary()))
    (batch,) = table.combine_chunks().to_batches()
    return batch


def records_and_others(message: StreamMessage, queue: StreamQueue) -> Iterator[pa.RecordBatch]:
    """Yield the records of one message, and the lines that are none, with the columns of SET_ASIDE.

    A message that cannot be unpacked is one such line, without its text.
    """
    try:
        batch = records(message, queue)
    except PipelineError as error:
        where = f"{queue}, offset {message.offset}"
        try:
            lines = [] if message.type != RECORDS else [one for one in _unpacked(message, where).splitlines() if one]
        except PipelineError:
            lines = []
        if len(lines) < 2:
            yield _other(lines[0] if lines else b"", str(error))
            return
        for line in lines:
            yield from records_and_others(message._replace(body=line, encoding=""), queue)
        return
    if batch is not None:
        nothing = pa.nulls(len(batch), pa.string())
        yield pa.RecordBatch.from_arrays([*batch.columns, nothing, nothing], schema=_SET_ASIDE)


def _other(line: bytes, reason: str) -> pa.RecordBatch:
    values = {"line": line.decode(errors="replace"), "reason": reason}
    return pa.RecordBatch.from_pylist([values], schema=_SET_ASIDE)


def read_rings(queue: StreamQueue, bad: Callable[[str, PipelineError], None] | None = None) -> Mapping[str, RingSpec]:
    """Return the rings of a stream by fingerprint.

    It reads the whole stream, since nothing says at which offsets its rings are. Raises PipelineError for a message of
    a ring that cannot be read; with `bad`, calls it with the place and the error instead.
    """
    start, end = queue.first() or 0, queue.end()
    rings: dict[str, RingSpec] = {}
    for first, last in ranges(start, end):
        for message in queue.messages(first, last, lossy=True):
            if message.type == RING:
                where = f"{queue}, offset {message.offset}"
                try:
                    ring = parse_ring(_unpacked(message, where).decode(errors="replace"), where)
                except PipelineError as error:
                    if bad is None:
                        raise
                    bad(where, error)
                else:
                    rings[ring.fingerprint] = ring
    return rings


def _unpacked(message: StreamMessage, where: str) -> bytes:
    if not message.encoding:
        return message.body
    if message.encoding != "gzip":
        raise PipelineError(f"{where}: content_encoding {message.encoding!r}, known is gzip")
    try:
        return gzip.decompress(message.body)
    except (OSError, EOFError, zlib.error) as error:
        raise PipelineError(f"{where}: broken gzip: {error}") from None


def _parsed(lines: bytes, schema: pa.Schema) -> pa.Table:
    whole = pa.json.ReadOptions(use_threads=False, block_size=len(lines) + 1)
    exact = pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    return pa.json.read_json(io.BytesIO(lines), read_options=whole, parse_options=exact)


def _check_versions(table: pa.Table, where: str) -> None:
    for version in table["v"].unique().to_pylist():
        if version != VERSION:
            raise PipelineError(f"{where}: schema version {'none' if version is None else version}, known is {VERSION}")


def _check_fields(table: pa.Table, where: str) -> None:
    for name, allowed in ALLOWED.items():
        column = table[name]
        values: list[str | float | None] = [None] if column.null_count else []
        if allowed.words:
            values += pc.unique(column.drop_null()).to_pylist()
        elif allowed.least is not None and column.null_count < len(column):
            values += pc.min_max(column).as_py().values()  # between which all others are
        for value in values:
            if not allowed.holds(value):
                told = "null" if value is None else str(value)[:100]
                raise PipelineError(f"{where}: field {name!r} is {told}, not {allowed}")
