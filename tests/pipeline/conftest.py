"""One Spark session for a whole test run."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from pipeline.session import spark_session
from pipeline.whatif import advice
from testbed.java import ensure_java
from tests.integration.conftest import api, broker, client, login, start_sidecar, topology, vhost

__all__ = ["api", "broker", "client", "login", "spark", "start_sidecar", "topology", "vhost"]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Two cores, two attempts at a task, four shuffle partitions; a job run in this process uses it, and leaves it."""
    ensure_java()
    settings = {
        "spark.master": "local[2, 2]",
        "spark.sql.shuffle.partitions": "4",
        # The short jobs repay neither code made for them (`make pipeline-demo` runs it) nor Java's second compiler.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.driver.defaultJavaOptions": " ".join(
            (
                "-XX:TieredStopAtLevel=1",
                # The first compiler's code cache is of 48 MB, which fills, and then code is thrown away and made again.
                "-XX:ReservedCodeCacheSize=240m",
                "-XX:-UseCodeCacheFlushing",
                "-XX:-MethodFlushing",
                "-XX:+UseSerialGC",
            )
        ),
    }
    with spark_session("tests", settings) as session:
        yield session


@pytest.fixture(autouse=True)
def _little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the search for weights end after half a second, where a test does not ask for all of its work."""
    monkeypatch.setattr(advice, "WORK", advice.WORK // 10)


@pytest.fixture
def notebook(spark: SparkSession) -> Iterator[SparkSession]:
    """Yield the session, as one that somebody has begun elsewhere: with Spark's defaults, in a time zone of theirs."""
    theirs = {
        "spark.sql.session.timeZone": "America/New_York",
        "spark.sql.sources.partitionOverwriteMode": "static",
    }
    ours = {name: str(spark.conf.get(name)) for name in theirs}
    for name, value in theirs.items():
        spark.conf.set(name, value)
    yield spark
    left = {name: spark.conf.get(name) for name in theirs}
    for name, value in ours.items():
        spark.conf.set(name, value)
    assert left == theirs, "a job leaves it as it was"
