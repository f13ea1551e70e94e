"""The cost of jobs, by Spark's and Hadoop's own counts: the bytes that they read, the rows that they move, sorts."""

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.pipeline.records import Record, line


def read_so_far(spark: SparkSession) -> int:
    """The bytes that this process has read of local files by way of Hadoop, whichever query asked for them."""
    hadoop: Any = spark._jvm
    return int(hadoop.org.apache.hadoop.fs.FileSystem.getGlobalStorageStatistics().get("file").getLong("bytesRead"))


def moved(spark: SparkSession, group: str) -> int:
    """The rows that the tasks of a group of jobs wrote for a shuffle."""
    return sum(metrics.shuffleWriteMetrics().recordsWritten() for metrics in _of_tasks(spark, group))


def sorted_instead(spark: SparkSession, after: int) -> int:
    """How many tasks of queries with a higher number than `after` sorted their rows, as they had too many groups."""
    queries: Any = spark._jsparkSession
    store = queries.sharedState().statusStore()
    found = 0
    for n in range(after + 1, last_query(spark) + 1):
        values = store.executionMetrics(n)
        nodes = store.planGraph(n).allNodes()
        for node in map(nodes.apply, range(nodes.size())):
            metrics = node.metrics()
            for metric in map(metrics.apply, range(metrics.size())):
                if metric.name() == "number of sort fallback tasks" and (told := values.get(metric.accumulatorId())):
                    found += int(told.get().replace(",", "")) if told.isDefined() else 0
    return found


def last_query(spark: SparkSession) -> int:
    """The number of the last query."""
    queries: Any = spark._jsparkSession
    every = queries.sharedState().statusStore().executionsList()
    return max((every.apply(n).executionId() for n in range(every.size())), default=-1)


def padded(file: Path, records: list[Record]) -> None:
    """Write records as plain text, a kilobyte each by a field that no job reads, so that a file is most of what is."""
    file.write_bytes(b"".join(line(record | {"padding": "x" * 1000}) for record in records))


def _of_tasks(spark: SparkSession, group: str) -> list[Any]:
    tracker, gateway = spark.sparkContext.statusTracker(), spark._jsc
    store = gateway.sc().statusStore()
    found = []
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        assert info is not None
        for stage in info.stageIds:
            if tracker.getStageInfo(stage) is None:
                continue
            tasks = store.taskList(stage, 0, 1000)
            told = (tasks.apply(n).taskMetrics() for n in range(tasks.size()))
            found += [metrics.get() for metrics in told if metrics.isDefined()]
    return found
