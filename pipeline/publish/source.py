"""The Data Source `ringproxy`: `df.write.format("ringproxy")`, `df.writeStream.format("ringproxy")`.

Register it once: `spark.dataSource.register(RingProxy)`. The options are `options.CONNECTION` and `options.OWN`, the
columns `messages.NEEDED` and `messages.PROPERTIES`.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Iterator
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
from pipeline.publish.commits import CommitLog, Part
from pipeline.publish.messages import Message, Reader, check_columns
from pipeline.publish.options import Options, parse
from pipeline.publish.pinned import pinned
from pipeline.publish.routes import Routes
from pipeline.publish.sending import publish

_BATCH = "streaming.sql.batchId"
"""The local property that has the number of a stream's batch."""


@dataclass(frozen=True)
class Published(Part, WriterCommitMessage):
    """What a task tells the driver."""


class RingProxy(DataSource):
    """A sink only."""

    @classmethod
    def name(cls) -> str:
        """Registration asks for it on the driver, the one place where Spark's own settings show."""
        context = SparkContext._active_spark_context
        if context is not None and context.getConf().get("spark.speculation", "false").lower() == "true":
            raise PipelineError("spark.speculation is on: a second copy of a slow task would publish its rows again")
        return "ringproxy"

    def writer(self, schema: StructType, overwrite: bool) -> "Writer":
        """Called on the driver when a write begins."""
        if overwrite:
            raise PipelineError('a queue cannot be overwritten: mode("append")')
        return Writer(_begun(parse(self.options), schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> "StreamWriter":  # noqa: N802 - Spark's name
        """Called on the driver when a micro-batch begins."""
        return StreamWriter(_begun(parse(self.options), schema))


@dataclass(frozen=True)
class Task:
    """What a write was begun with, as each of its tasks gets it."""

    options: Options
    routes: Routes

    def run(self, batches: Iterator[pa.RecordBatch]) -> Published:
        """Publishes one task's rows. Raises PipelineError where one of them was not confirmed."""
        options, context = self.options, TaskContext.get()
        assert context is not None
        partition, begun = context.partitionId(), time.monotonic()
        if options.connections and partition >= options.connections:
            raise PipelineError(
                f"more partitions than connections={options.connections}: use `order.prepared`, or coalesce to it"
            )
        stream = context.getLocalProperty(_BATCH)
        reader = Reader(self.routes.hashed, options.ids, options.batch or (stream or ""))
        messages = map(reader.messages, batches)
        if options.dry_run:
            rows = dict(_counted(messages, self.routes))
        else:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                rows = runner.run(publish(messages, options, self.routes))
        return Published(rows, context.attemptNumber(), time.monotonic() - begun)

    def committed(self, batch: str, told: Iterable[WriterCommitMessage | None]) -> None:
        """All tasks are done."""
        parts: list[Part] = [part for part in told if isinstance(part, Published)]
        CommitLog(self.options.commits).committed(batch, self.routes.fingerprint, parts, self.options.dry_run)

    def aborted(self, batch: str) -> None:
        """One has failed for good."""
        CommitLog(self.options.commits).aborted(batch, self.routes.fingerprint)


class Writer(DataSourceArrowWriter):
    """Of `df.write`."""

    def __init__(self, task: Task) -> None:
        """Goes to the tasks as it is."""
        self._task = task

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task."""
        return self._task.run(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver."""
        self._task.committed(self._task.options.batch, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver."""
        self._task.aborted(self._task.options.batch)


class StreamWriter(DataSourceStreamArrowWriter):
    """Of `df.writeStream`."""

    def __init__(self, task: Task) -> None:
        """Goes to the tasks as it is."""
        self._task = task

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task."""
        return self._task.run(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """On the driver."""
        self._task.committed(str(batchId), messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """On the driver."""
        self._task.aborted(str(batchId))


def _begun(options: Options, schema: StructType) -> Task:
    known = pinned(options)
    routes = Routes.of(options.exchange, known)
    check_columns(schema, options.ids, routes.hashed)
    CommitLog(options.commits).begun(routes.fingerprint, 0 if options.dry_run else options.task_attempts)
    return Task(options, routes)


def _counted(batches: Iterable[Iterable[Message]], routes: Routes) -> Counter[str]:
    """Rows by queue, of a dry run."""
    return Counter(routes.queues[routes.index_of(message.hashed)] for batch in batches for message in batch)
