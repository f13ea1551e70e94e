"""The Spark session: a local one on a laptop, or the one that spark-submit has set up; and how its errors are told."""

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pipeline import PipelineError
from pipeline.java import ensure_java

_LOGGING = Path(__file__).with_name("log4j2.properties")
"""The logging of a local session: errors are raised and shown once, so Spark itself logs none."""

_ADAPTIVE = "spark.sql.adaptive.enabled"
"""The setting of Spark's adaptive execution, which fits partitions to the data and splits skewed ones of a join."""

_TIME_ZONE, _UTC = "spark.sql.session.timeZone", "UTC"
"""The setting of the session's time zone and its value: folders of days and hours are in UTC."""

_RAISED = re.compile(r"\[USER_RAISED_EXCEPTION\] (.*?)(?: SQLSTATE|\n|$)")
_OF_A_WORKER = re.compile(r"^pipeline\.PipelineError: (.*)$", re.MULTILINE)
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*(\S.*)")
"""Matches the traceback of a Python worker; the group is its exception, the first line that is not indented."""
_PASSWORD = re.compile(r"(?<=://)([^\s/@:]*):[^\s/@]*(?=@)")
_UNREADABLE = re.compile(r"\[FAILED_READ_FILE[^\]]*\] .*?(file:\S+?|\S+://\S+?)\.?\s")
_UNFIT = re.compile(r"\[CANNOT_PARSE_JSON_FIELD\] (.*?)\.? SQLSTATE")


ERRORS = (PySparkException, Py4JError)
"""The exceptions of Spark; `in_one_line` reads their text."""


@contextmanager
def spark_session(name: str, settings: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """Yield a Spark session that ends with the block; `settings` take precedence over all others.

    A session that is active already, as in a notebook, is used and goes on afterwards; only its time zone is UTC
    meanwhile. Raises PipelineError where there is no Java, and for the errors of a job.
    """
    already = SparkSession.getActiveSession()
    try:
        with _begun(name, settings or {}) if already is None else _in_utc(already) as spark:
            yield spark
    except ERRORS as error:
        raise PipelineError(in_one_line(str(error))) from error


@contextmanager
def _begun(name: str, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    builder = SparkSession.builder.appName(f"ringproxy {name}")
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # which spark-submit sets
        ensure_java()
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        builder = (
            builder.master("local[*]")
            .config("spark.driver.memory", "2g")
            .config("spark.ui.enabled", "false")
            # Spark's own 200 are for a cluster.
            .config("spark.sql.shuffle.partitions", str(4 * (os.cpu_count() or 1)))
            .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}")
        )
    builder = builder.config(_TIME_ZONE, _UTC).config("spark.ui.showConsoleProgress", str(sys.stderr.isatty()).lower())
    for setting, value in settings.items():
        builder = builder.config(setting, value)
    spark = builder.getOrCreate()
    try:
        if not spark.sparkContext.getConf().contains(_ADAPTIVE):  # who submits may have said
            spark.conf.set(_ADAPTIVE, "true")
        yield spark
    finally:
        spark.stop()


@contextmanager
def _in_utc(spark: SparkSession) -> Iterator[SparkSession]:
    own = spark.conf.get(_TIME_ZONE) or _UTC
    spark.conf.set(_TIME_ZONE, _UTC)
    try:
        yield spark
    finally:
        spark.conf.set(_TIME_ZONE, own)


@contextmanager
def setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """Set a setting of the session's queries for the block, unless whoever has begun the session has set it."""
    if spark.sparkContext.getConf().contains(name):
        yield
        return
    own = spark.conf.get(name)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, own or value)


def in_one_line(text: str) -> str:
    """Return what a user needs of the text of a Spark exception, as one line.

    The result is the error that a job raised, the file that cannot be read, the exception of a Python task, or else the
    first line.
    """
    if found := _RAISED.search(text):
        return found[1]
    if found := _OF_A_WORKER.search(text):
        return found[1]
    if found := _UNREADABLE.search(text):
        why = " (truncated)" if "EOFException" in text or "Unexpected end" in text else ""
        if unfit := _UNFIT.search(text):
            why = f": {unfit[1]}"
        return f"{found[1]}: cannot be read{why}"
    if raised := _TRACEBACK.findall(text):  # of several the last is what ended the worker
        return "a task failed in Python: " + _PASSWORD.sub(r"\1:***", raised[-1])
    return text.strip().splitlines()[0] if text.strip() else "Spark failed without a word"
