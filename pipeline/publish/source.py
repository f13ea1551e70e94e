"""The Data Source `ringproxy`: `df.write.format("ringproxy")`, `df.writeStream.format("ringproxy")`.

Register it once: `spark.dataSource.register(RingProxy)`. The options are `options.CONNECTION` and `options.OWN`, the
columns `messages.NEEDED` and `messages.PROPERTIES`.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
import uvloop
from pyspark import SparkContext, TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from pipeline import PipelineError
from pipeline.data.rings import RingSpec
from pipeline.publish.commits import CommitLog, TaskResult
from pipeline.publish.messages import Reader, RowMessage, check_columns
from pipeline.publish.options import Log, Options, parse
from pipeline.publish.pinned import pinned, pinned_in_time
from pipeline.publish.routes import Routes
from pipeline.publish.sending import SendResult, publish

QUERY = "sql.streaming.queryId"
"""The name of Spark's local property with the id of a stream's checkpoint."""

_BATCH = "streaming.sql.batchId"
"""The name of Spark's local property with the number of a stream's batch."""


@dataclass(frozen=True)
class TaskCommit(TaskResult, WriterCommitMessage):
    """The message by which a task tells the driver its result."""

    fingerprint: str
    dry_run: bool


class RingProxy(DataSource):
    """The Data Source `ringproxy`, which can only be written to."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`. Raises PipelineError if spark.speculation is on.

        Spark calls this on the driver when the source is registered, which is the only place where Spark's own
        settings can be seen.
        """
        context = SparkContext._active_spark_context
        if context is not None and context.getConf().get("spark.speculation", "false").lower() == "true":
            raise PipelineError("spark.speculation is on: a second copy of a slow task would publish its rows again")
        return "ringproxy"

    def writer(self, schema: StructType, overwrite: bool) -> "Writer":
        """Return the writer of a `df.write`, once the ring is pinned. Spark calls this on the driver when a write
        begins.

        Raises PipelineError for a wrong option, a wrong table, or a ring to which nothing can be published.
        """
        if overwrite:
            raise PipelineError('a queue cannot be overwritten: mode("append")')
        options = parse(self.options)
        # A ring that is given was read before, when the broker was there.
        return Writer(_begun(options, schema, pinned_in_time(options) if options.ring else pinned(options)))

    def streamWriter(self, schema: StructType, overwrite: bool) -> "StreamWriter":  # noqa: N802 - Spark's name
        """Return the writer of a stream's batch.

        Spark calls this on the driver when a batch begins, and again when it is committed or aborted. Raises
        PipelineError for an output mode but append.
        """
        if overwrite:
            # Else each batch would publish all groups so far again.
            raise PipelineError('a queue cannot be overwritten: outputMode("append")')
        return StreamWriter(self.options, schema)


@dataclass(frozen=True)
class Task:
    """The options and the pinned ring of one write, which Spark pickles for each of its tasks."""

    options: Options
    routes: Routes

    def run(self, batches: Iterator[pa.RecordBatch]) -> TaskCommit:
        """Publish one task's rows, and return what the driver is told of it.

        Raises PipelineError if one was not confirmed.
        """
        options, context = self.options, TaskContext.get()
        assert context is not None
        partition, begun = context.partitionId(), time.monotonic()
        if options.connections and partition >= options.connections:
            raise PipelineError(
                f"more partitions than connections={options.connections}: use `order.prepared`, or coalesce to it"
            )
        # Every checkpoint's batches begin at 0.
        run = context.getLocalProperty(QUERY) or options.log.run
        batch = options.batch or context.getLocalProperty(_BATCH) or ""
        reader = Reader(self.routes.hashed, options.ids, f"{run}/{batch}")
        messages = map(reader.messages, batches)
        if options.dry_run:
            sent = SendResult(dict(_counted(messages, self.routes)), 0)
        else:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                sent = runner.run(publish(messages, options, self.routes))
        seconds = time.monotonic() - begun
        attempts = context.attemptNumber()
        return TaskCommit(sent.rows, attempts, seconds, sent.again, self.routes.fingerprint, options.dry_run)


class Writer(DataSourceArrowWriter):
    """The writer of one `df.write`."""

    def __init__(self, task: Task) -> None:
        """Take what each task of the write needs."""
        self._task = task

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Publish the rows of one task, in that task."""
        return self._task.run(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Note on the driver that all tasks are done."""
        _committed(self._task.options.log, self._task.options.batch, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Note on the driver that a task has failed for good."""
        _aborted(self._task.options.log, self._task.options.batch, self._task.routes.fingerprint)


class StreamWriter(DataSourceStreamArrowWriter):
    """The writer of one batch of `df.writeStream`.

    Spark makes one instance to publish a batch, which it pickles for the tasks, and another to commit it. Only the
    first looks at the broker: rows that were confirmed must not fail by it.
    """

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        """Take the options of the stream and the schema of its rows, without looking at the broker."""
        self._given, self._schema = given, schema
        self._task: Task | None = None

    def __getstate__(self) -> dict[str, object]:
        """Begin the batch when it is first pickled for the tasks: pin the ring and note it in the commit log."""
        if self._task is None:
            options = parse(self._given)
            self._task = _begun(options, self._schema, pinned_in_time(options))
        return {"_task": self._task}

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Publish the rows of one task, in that task."""
        assert self._task is not None  # or it had not been pickled
        return self._task.run(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Note on the driver that all tasks of a batch are done."""
        _committed(Log.of(self._given), str(batchId), messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Note on the driver that a task of a batch has failed for good."""
        _aborted(Log.of(self._given), str(batchId), _fingerprint(_parts(messages)))


def _begun(options: Options, schema: StructType, spec: RingSpec) -> Task:
    routes = Routes.of(options.exchange, spec)
    check_columns(schema, options.ids, routes.hashed)
    attempts = 0 if options.dry_run else options.task_attempts
    CommitLog(options.log.path, options.log.run).begun(options.batch, spec, attempts)
    return Task(options, routes)


def _committed(log: Log, batch: str, told: Iterable[WriterCommitMessage | None]) -> None:
    """Note in the commit log that all tasks are done."""
    parts = _parts(told)
    dry_run = any(part.dry_run for part in parts)
    CommitLog(log.path, log.run).committed(batch, _fingerprint(parts), parts, dry_run)


def _aborted(log: Log, batch: str, fingerprint: str) -> None:
    """Note in the commit log that a task has failed for good."""
    # Raised here, it would hide from a stream's user what led to this; no count needs the line.
    with suppress(PipelineError):
        CommitLog(log.path, log.run).aborted(batch, fingerprint)


def _parts(told: Iterable[WriterCommitMessage | None]) -> list[TaskCommit]:
    return [part for part in told if isinstance(part, TaskCommit)]


def _fingerprint(parts: list[TaskCommit]) -> str:
    """Return the fingerprint of the ring that all tasks had; empty if no task was done."""
    return next((part.fingerprint for part in parts), "")


def _counted(batches: Iterable[Iterable[RowMessage]], routes: Routes) -> Counter[str]:
    """Return how many rows would go to each queue, for a dry run."""
    return Counter(routes.queues[routes.index_of(message.hashed)] for batch in batches for message in batch)
