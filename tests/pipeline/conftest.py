"""One Spark session for a whole test run."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from pipeline.session import spark_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Two cores, four shuffle partitions; a job that is run in this process uses it too, and leaves it running."""
    with spark_session("tests", {"spark.master": "local[2]", "spark.sql.shuffle.partitions": "4"}) as session:
        yield session
