"""The parts that tests of publishing need: tables, faults upstream of the sink, and what came to the queues."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pipeline.publish.commits import Write, read_commits
from pipeline.publish.options import parse
from pipeline.publish.order import prepared
from pipeline.publish.pinned import pinned
from pipeline.session import in_one_line
from tests.integration.broker_api import Delivered, VirtualHost, wait_until
from tests.integration.conftest import Login

Batches = Iterator[pa.RecordBatch]

PER_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
"""Spark's setting for rows that a Python worker gets together."""

IDS = {"id_columns": "n,pad"}
"""The id columns of `rows_of`."""


def options_of(login: Login, vhost: VirtualHost, exchange: str, **more: object) -> dict[str, str]:
    """Return the options of the Data Source, with that user in the test's own virtual host."""
    parts = login.broker_url.rpartition("/")[0]
    told = {"broker_url": f"{parts}/{quote(vhost.name, safe='')}", "management_url": login.management_url}
    return told | {"exchange": exchange} | {name: str(value) for name, value in more.items()}


def rows_of(spark: SparkSession, count: int, keys: int = 50) -> DataFrame:
    """`count` rows, in order by `n`: keys ``k0`` to ``k<keys - 1>`` in turn, and `n` for a body.

    The column `pad`, like `n` no property, is for Spark: it hands on no rows before they fill a buffer.
    """
    key = F.concat(F.lit("k"), (F.col("id") % keys).cast("string"))
    body, pad = F.col("id").cast("string"), F.repeat(F.lit("x"), 4000)
    return spark.range(count).select(key.alias("key"), body.alias("body"), F.col("id").alias("n"), pad.alias("pad"))


def write(rows: DataFrame, options: Mapping[str, str]) -> None:
    """Appends rows as they are."""
    rows.write.format("ringproxy").options(**options).mode("append").save()


def write_prepared(rows: DataFrame, options: Mapping[str, str], connections: int = 2) -> None:
    """In order by `n`, as the command does it."""
    known = pinned(parse(options))
    write(prepared(rows, known, connections, "n"), {**options, **IDS})


def failing(rows: DataFrame, fault: Callable[[], None], after: int) -> DataFrame:
    """The same rows; `fault` is called in every task once that many rows of it have gone by, then the rest comes."""

    def faulty(batches: Batches) -> Batches:
        seen = 0
        for batch in batches:
            for start in range(0, batch.num_rows, 50):
                part = batch.slice(start, 50)
                if seen <= after < seen + part.num_rows:
                    fault()
                seen += part.num_rows
                yield part

    return rows.mapInArrow(faulty, rows.schema)


@contextmanager
def log_unwritable(log: Path) -> Iterator[Callable[[], None]]:
    """A fault that puts a folder in the commit log's place, so that the commit raises; at the end the log is back."""
    aside = log.with_name("aside")

    def fault() -> None:
        if not aside.exists():
            log.rename(aside)
            log.mkdir()

    yield fault
    log.rmdir()
    aside.rename(log)


@contextmanager
def meanwhile(act: Callable[[], object], folder: Path) -> Iterator[Callable[[], None]]:
    """Yield a fault that waits until the test's process has run `act`, once the first task has come to it."""
    reached, done = folder / "reached", folder / "done"

    def fault() -> None:
        reached.touch()
        wait_until("what is done meanwhile", done.exists)

    def wait_and_act() -> None:
        wait_until("rows before", reached.exists)
        act()
        done.touch()

    acting = threading.Thread(target=wait_and_act)
    acting.start()
    yield fault
    acting.join()


def attempt() -> int:
    """Return the number of the attempt of the task that asks."""
    context = TaskContext.get()
    assert context is not None
    return context.attemptNumber()


@dataclass
class Came:
    """All that the queues had."""

    by_queue: dict[str, list[Delivered]]
    bodies: Counter[int] = field(init=False)
    """How often each row came."""

    def __post_init__(self) -> None:
        self.bodies = Counter(int(message.body) for messages in self.by_queue.values() for message in messages)

    @property
    def duplicates(self) -> int:
        return sum(self.bodies.values()) - len(self.bodies)

    def ids(self) -> dict[int, set[str]]:
        """Return the message ids of each row."""
        found: dict[int, set[str]] = {}
        for messages in self.by_queue.values():
            for message in messages:
                found.setdefault(int(message.body), set()).add(message.properties["message_id"])
        return found


def check_nothing_lost(came: Came, count: int, bound: int) -> None:
    """Each of so many rows came, under one id; what came twice is within the bound."""
    assert came.bodies.keys() == set(range(count))
    assert came.duplicates <= bound
    ids = came.ids()
    assert all(len(found) == 1 for found in ids.values())
    assert len({found for ids_of_row in ids.values() for found in ids_of_row}) == count


def committed(path: Path) -> Write:
    """Return the one write of a log."""
    (write,) = read_commits(path)
    return write


def something_came(vhost: VirtualHost, least: int = 1) -> bool:
    """Return whether the queues have so many messages together."""
    return came_until_now(vhost, least) >= least


def came_until_now(vhost: VirtualHost, most: int = 100_000) -> int:
    """Return how many messages the queues have together, where none has more than that."""
    body = {"count": most, "ackmode": "ack_requeue_true", "encoding": "base64"}
    there = (vhost.api.ask("POST", "queues", vhost.name, name, "get", body=body) for name in vhost.queues())
    return sum(map(len, there))


def words(error: BaseException) -> str:
    """Return what a user is told."""
    return in_one_line(str(error))
