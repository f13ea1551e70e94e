"""Files where Spark finds them: a path without a scheme is in its default file system, not always this machine's."""

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import IllegalArgumentException
from pyspark.sql import SparkSession

from pipeline import PipelineError

FAULTS = (Py4JJavaError, IllegalArgumentException)
"""The exceptions of Hadoop's file systems; PySpark turns Java's IllegalArgumentException, for a text that is no path,
into its own.
"""


def found(spark: SparkSession, pattern: str) -> list[str]:
    """Return the files and folders that match a path or a pattern, sorted.

    Raises PipelineError where Spark cannot look there.
    """
    try:
        path = spark._jvm.org.apache.hadoop.fs.Path(pattern)  # type: ignore[union-attr]
        there = path.getFileSystem(spark._jsc.hadoopConfiguration()).globStatus(path)
    except FAULTS as error:
        raise PipelineError(f"{pattern or repr(pattern)}: {why(error)}") from None
    return [status.getPath().toString() for status in there or ()]


def content(spark: SparkSession, file: str) -> bytes:
    """Return the whole content of a file. Raises PipelineError, which names the file, where it cannot be read."""
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
    """Return the message of one of FAULTS as one line, which begins with the Java class."""
    if isinstance(error, IllegalArgumentException):
        return f"IllegalArgumentException: {error}".splitlines()[0]
    java = error.java_exception
    return f"{java.getClass().getSimpleName()}: {java.getMessage()}".splitlines()[0]
