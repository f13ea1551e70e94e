"""One Spark session for a whole test run."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from pipeline.session import spark_session
from testbed.java import ensure_java
from tests.integration.conftest import api, broker, client, login, start_sidecar, vhost

__all__ = ["api", "broker", "client", "login", "spark", "start_sidecar", "vhost"]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Two cores, two attempts at a task, four shuffle partitions; a job run in this process uses it, and leaves it."""
    ensure_java()
    with spark_session("tests", {"spark.master": "local[2, 2]", "spark.sql.shuffle.partitions": "4"}) as session:
        yield session
