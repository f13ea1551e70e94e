"""Files where Spark finds them: a path without a scheme is in its default file system, not always this machine's."""

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import IllegalArgumentException
from pyspark.sql import SparkSession

from pipeline import PipelineError

FAULTS = (Py4JJavaError, IllegalArgumentException)
"""What Java throws of a path or a file; PySpark makes its own of the second, which says that a text is no path."""


def found(spark: SparkSession, pattern: str) -> list[str]:
    """The files and folders that fit a path or a pattern, in order. Raises PipelineError where Spark cannot look."""
    try:
        path = spark._jvm.org.apache.hadoop.fs.Path(pattern)  # type: ignore[union-attr]
        there = path.getFileSystem(spark._jsc.hadoopConfiguration()).globStatus(path)
    except FAULTS as error:
        raise PipelineError(f"{pattern or repr(pattern)}: {why(error)}") from None
    return [status.getPath().toString() for status in there or ()]


def content(spark: SparkSession, file: str) -> bytes:
    """All of a file. Raises PipelineError, which names it."""
    try:
        path = spark._jvm.org.apache.hadoop.fs.Path(file)  # type: ignore[union-attr]
        stream = path.getFileSystem(spark._jsc.hadoopConfiguration()).open(path)
        try:
            return bytes(stream.readAllBytes())
        finally:
            stream.close()
    except FAULTS as error:
        raise PipelineError(f"{file}: cannot be read: {why(error)}") from None


def why(error: Py4JJavaError | IllegalArgumentException) -> str:
    """What Java says of one of FAULTS, in one line."""
    if isinstance(error, IllegalArgumentException):
        return f"IllegalArgumentException: {error}".splitlines()[0]
    java = error.java_exception
    return f"{java.getClass().getSimpleName()}: {java.getMessage()}".splitlines()[0]
