"""Files where Spark finds them: a path without a scheme is in its default file system, not always this machine's."""

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from pipeline import PipelineError


def found(spark: SparkSession, pattern: str) -> list[str]:
    """The files and folders that fit a path or a pattern, in order. Raises PipelineError where Spark cannot look."""
    path = spark._jvm.org.apache.hadoop.fs.Path(pattern)  # type: ignore[union-attr]
    try:
        there = path.getFileSystem(spark._jsc.hadoopConfiguration()).globStatus(path)
    except Py4JJavaError as error:
        raise PipelineError(f"{pattern}: {why(error)}") from None
    return [status.getPath().toString() for status in there or ()]


def content(spark: SparkSession, file: str) -> bytes:
    """All of a file. Raises PipelineError, which names it."""
    path = spark._jvm.org.apache.hadoop.fs.Path(file)  # type: ignore[union-attr]
    try:
        stream = path.getFileSystem(spark._jsc.hadoopConfiguration()).open(path)
        try:
            return bytes(stream.readAllBytes())
        finally:
            stream.close()
    except Py4JJavaError as error:
        raise PipelineError(f"{file}: cannot be read: {why(error)}") from None


def why(error: Py4JJavaError) -> str:
    """What Java says of it, in one line."""
    java = error.java_exception
    return f"{java.getClass().getSimpleName()}: {java.getMessage()}".splitlines()[0]
