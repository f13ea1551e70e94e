"""The Spark data source `ringproxy-journal`: the records of the journal's stream queue, as a stream or as a table.

    spark.dataSource.register(JournalSource)
    spark.readStream.format("ringproxy-journal").options(amqp_url="amqp://...", queue="journal").load()

Options: `amqp_url`, `queue`, `starting` (`first`, an offset, or for streams `next`: where a table, or a query without a
checkpoint, starts), `lossy` (`true`: what the queue's retention has removed before it was read is left out; else it
ends the query), `set_aside` (`true`: a line that cannot be read does not end the query, but is a row whose column
`reason` says why, with the `line`), and for streams `max_messages` (of the queue, for each trigger).

A batch is a range of offsets, kept in the checkpoint as {"next": n}: read again it is the same. The journal itself may
hold a record twice, under one `event`, where a sidecar was in doubt: `dropDuplicates("event")`, within a watermark.
"""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from pipeline import PipelineError
from pipeline.data.schema import RECORD
from pipeline.stream.messages import SET_ASIDE, records, records_and_others
from pipeline.stream.queue import MOST_AT_ONCE, StreamQueue, ranges

NAME = "ringproxy-journal"

MAX_MESSAGES = 4 * MOST_AT_ONCE
"""The default of `max_messages`: up to a million records in each trigger."""

Offset = dict[str, int]
"""The offset of a query in Spark's checkpoint: {"next": the offset of the first message that is not read}."""


def queue_records(spark: SparkSession, queue: StreamQueue, options: Mapping[str, str]) -> DataFrame:
    """Return a stream of the records of a stream queue.

    `options` are those of the Data Source for streams, without `amqp_url` and `queue`.
    """
    spark.dataSource.register(JournalSource)
    return spark.readStream.format(NAME).options(amqp_url=queue.url, queue=queue.name, **options).load()


def check_starting(starting: str, named: str) -> None:
    """Raise PipelineError that begins with `named` where `starting` is neither first, next nor an offset."""
    if starting not in ("first", "next") and not (starting.isascii() and starting.isdigit()):
        raise PipelineError(f"{named}: {starting!r} is not first, next or an offset")


@dataclass(frozen=True)
class Options:
    """The checked options of the Data Source."""

    queue: StreamQueue
    starting: str
    max_messages: int
    lossy: bool
    set_aside: bool

    @classmethod
    def of(cls, given: Mapping[str, str]) -> "Options":
        """Return checked options from Spark's, whose names have no case. Raises PipelineError for a wrong one."""
        for name in ("amqp_url", "queue"):
            if not given.get(name):
                raise PipelineError(f"{NAME}: the option {name!r} is missing")
        starting = given.get("starting", "first")
        check_starting(starting, f"{NAME}: starting")
        most = given.get("max_messages", str(MAX_MESSAGES))
        if not (most.isascii() and most.isdigit() and int(most)):
            raise PipelineError(f"{NAME}: max_messages: {most!r} is not a whole number above 0")
        queue = StreamQueue(given["amqp_url"], given["queue"])
        return cls(queue, starting, int(most), _is_set(given, "lossy"), _is_set(given, "set_aside"))

    def start(self) -> int:
        """Return the offset that `starting` names."""
        match self.starting:
            case "first":
                return self.queue.first() or 0
            case "next":
                return self.queue.end()
            case offset:
                return int(offset)

    def oldest(self, start: int) -> int:
        """Return the first offset to read: `start`, or with `lossy` the oldest message where that comes later."""
        return max(start, self.queue.first() or 0) if self.lossy else start


def _is_set(given: Mapping[str, str], name: str) -> bool:
    """Return whether an option is true. Raises PipelineError where it is neither true nor false."""
    value = given.get(name, "false").lower()
    if value not in ("true", "false"):
        raise PipelineError(f"{NAME}: {name}: {value!r} is not true or false")
    return value == "true"


class JournalSource(DataSource):
    """The Data Source `ringproxy-journal`, which a Spark session must register before use."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return NAME

    def schema(self) -> StructType:
        """Return the columns of a record, and with `set_aside` those of a line that is none."""
        return SET_ASIDE if _is_set(self.options, "set_aside") else RECORD

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the records that are in the queue now, for `spark.read`."""
        return JournalReader(self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - as Spark calls it
        """Return a reader of the records that are there and that come, for `spark.readStream`."""
        return JournalStreamReader(self.options)


class Range(InputPartition):
    """The range of offsets that one task reads."""

    def __init__(self, start: int, end: int) -> None:
        """Take the offsets from `start` to before `end`."""
        self.start, self.end = start, end


class JournalReader(DataSourceReader):
    """The reader of one `spark.read`: of the stream as far as it goes when the job begins."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Take Spark's options. Raises PipelineError for a wrong one."""
        self._options = Options.of(options)
        if self._options.starting == "next":
            raise PipelineError(
                f"{NAME}: starting: 'next' is for spark.readStream: a table that began there would be empty;"
                " give first or an offset"
            )

    def partitions(self) -> Sequence[Range]:
        """Return a range for each task, from the message at `starting` to the newest.

        Raises PipelineError if `starting` is beyond the end.
        """
        queue, start = self._options.queue, self._options.start()
        end = queue.end()
        if start > end:
            raise PipelineError(f"{NAME}: starting: {start} is beyond the end of {queue}, which is offset {end}")
        # One that is empty, where there is nothing to read: Spark has a partition in any case.
        return [Range(*of_task) for of_task in ranges(self._options.oldest(start), end)] or [Range(end, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one range, an Arrow batch for each message."""
        return read(self._options, partition)


class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of one streaming query, which follows the stream as it grows."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Take Spark's options. Raises PipelineError for a wrong one."""
        self._options = Options.of(options)
        self._last: int | None = None
        """The offset at which a query with the trigger availableNow ends; None for other triggers."""

    def initialOffset(self) -> Offset:  # noqa: N802
        """Return the offset at which a query without a checkpoint starts."""
        return {"next": self._options.start()}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of a batch; what Spark calls rows are the queue's messages here."""
        return ReadMaxRows(self._options.max_messages)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note the present end of the stream: later messages are left to the next run."""
        self._last = self._options.queue.end()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Return the offset at which the next batch ends."""
        begin, end = start["next"], self._last
        if end is None or end < begin:
            end = self._options.queue.end(begin)
            if self._last is not None:
                self._last = end
        if isinstance(limit, ReadMaxRows):
            end = min(end, self._options.oldest(begin) + limit.max_rows)
        return {"next": end}

    def partitions(self, start: Offset, end: Offset) -> Sequence[Range]:
        """Return a range of the batch's offsets for each task."""
        return [Range(*of_task) for of_task in ranges(self._options.oldest(start["next"]), end["next"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one range, an Arrow batch for each message."""
        return read(self._options, partition)


def read(options: Options, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the records of a task, one Arrow batch for each message that has records.

    Raises PipelineError for a message that cannot be read, with the way to go on behind it.
    """
    assert isinstance(partition, Range)
    if partition.start == partition.end:
        return
    for message in options.queue.messages(partition.start, partition.end, lossy=options.lossy):
        if options.set_aside:
            yield from records_and_others(message, options.queue)
            continue
        try:
            batch = records(message, options.queue)
        except PipelineError as error:
            behind = message.offset + 1
            way = f"--starting {behind} with a new --out, in a program starting={behind} with a new checkpoint"
            raise PipelineError(f"{error} ({way}, goes on behind it)") from None
        if batch is not None:
            yield batch
