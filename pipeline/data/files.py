"""Files where Spark finds them, and the folders of a time: those of `dt=2026-11-21/hour=17`.

A path without a scheme is in Spark's default file system, not always this machine's.
"""

import re

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import IllegalArgumentException
from pyspark.sql import SparkSession

from pipeline import PipelineError
from pipeline.data.period import Period

FAULTS = (Py4JJavaError, IllegalArgumentException)
"""The exceptions of Hadoop's file systems; PySpark turns Java's IllegalArgumentException, for a text that is no path,
into its own.
"""


class GoneError(PipelineError):
    """The error of a file that is not there any more."""


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
    """Return the whole content of a file.

    Raises PipelineError, which names the file, where it cannot be read: GoneError where it is not there.
    """
    try:
        path = spark._jvm.org.apache.hadoop.fs.Path(file)  # type: ignore[union-attr]
        stream = path.getFileSystem(spark._jsc.hadoopConfiguration()).open(path)
        try:
            return bytes(stream.readAllBytes())
        finally:
            stream.close()
    except FAULTS as error:
        told = f"{file}: cannot be read: {why(error)}"
        is_gone = isinstance(error, Py4JJavaError) and "FileNotFound" in error.java_exception.getClass().getName()
        raise (GoneError if is_gone else PipelineError)(told) from None


def why(error: Py4JJavaError | IllegalArgumentException) -> str:
    """Return the message of one of FAULTS as one line, which begins with the Java class."""
    if isinstance(error, IllegalArgumentException):
        return f"IllegalArgumentException: {error}".splitlines()[0]
    java = error.java_exception
    return f"{java.getClass().getSimpleName()}: {java.getMessage()}".splitlines()[0]


_DAY = re.compile(r"dt=(\d{4}-\d\d-\d\d)")
_HOUR = re.compile(r"hour=([01]?\d|2[0-3])")

_NO_DAY = "{[^d._]*,d,d[^t]*,dt,dt[^=]*}"
"""A Hadoop pattern for names that are no day's folder and that Spark does not hide."""


def folders(spark: SparkSession, root: str, period: Period) -> list[str]:
    """Return the paths and patterns below `root` that have all files of a period; empty where there are none.

    No other hour's folder is listed: of a day that is in the period as a whole the day's folder is returned, of any
    other day those of its hours. Files in no such folder may be of any time, and are returned too.
    """
    if not period.is_limited:
        return [root]
    # Found in a pattern rather than named one by one: there may be as many as there are files.
    told = [f"{root}/{_NO_DAY}"] if found(spark, f"{root}/{_NO_DAY}") else []
    for name in _names(spark, f"{root}/dt=*"):
        day = _DAY.fullmatch(name)
        hours = [day is None or period.holds_hour(f"{day[1]}T{hour:02}") for hour in range(24)]
        if all(hours):
            told.append(f"{root}/{name}")
        elif any(hours):
            told += (f"{root}/{name}/{one}" for one in _names(spark, f"{root}/{name}/[^._]*") if _is_of(one, hours))
    return told


def _names(spark: SparkSession, pattern: str) -> list[str]:
    return sorted({path.rpartition("/")[2] for path in found(spark, pattern)})


def _is_of(name: str, hours: list[bool]) -> bool:
    hour = _HOUR.fullmatch(name)
    return hour is None or hours[int(hour[1])]
