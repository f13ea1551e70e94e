"""Reads a journal: its records as a DataFrame, its rings by fingerprint."""

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import IntegerType, StringType, StructType

from pipeline import PipelineError
from pipeline.files import content, found
from pipeline.period import ALWAYS, Period
from pipeline.rings import KnownRing, parse_ring
from pipeline.schema import ALLOWED, RECORD, VERSION, Allowed

CORRUPT = "_corrupt"
"""The column that holds a line which is no record."""


_LINES = StructType([*RECORD.fields]).add(CORRUPT, StringType()).add("dt", StringType()).add("hour", IntegerType())


def read_records(spark: SparkSession, journal: str, period: Period = ALWAYS) -> DataFrame:
    """The records of a journal in a period, in no order: the columns of RECORD, and `dt` and `hour`.

    A line that is no record, or of an unknown version, or a field that is not as ALLOWED says, ends the job that
    reaches it; the message names the file. Of fields only those are looked at that the job asks for.
    """
    folder = _records_folder(spark, journal)
    lines = spark.read.schema(_LINES).option("columnNameOfCorruptRecord", CORRUPT).json(folder)
    records = checked(period.folders(lines), F.col("_metadata.file_path"))
    return records.where(period.holds(F.col("time"))) if period.is_limited else records


def stream_records(spark: SparkSession, journal: str, files: int = 1000) -> DataFrame:
    """The same as a stream, each file once, so many to a batch; Spark overlooks files a week older than the newest."""
    folder = _records_folder(spark, journal)
    stream = spark.readStream.schema(_LINES).option("columnNameOfCorruptRecord", CORRUPT)
    return checked(stream.option("maxFilesPerTrigger", files).json(folder), F.col("_metadata.file_path"))


def _records_folder(spark: SparkSession, journal: str) -> str:
    folder = f"{journal.rstrip('/')}/records"
    if not found(spark, folder):
        raise PipelineError(f"{journal}: no journal: there is no folder {folder}")
    return folder


def checked(lines: DataFrame, where: Column) -> DataFrame:
    """Records without the column CORRUPT; the first bad one ends the job. `where` says in which file."""
    version = F.col("v")
    broken = F.raise_error(F.concat(where, F.lit(": a line that is no record: "), F.substring(CORRUPT, 1, 100)))
    found = F.coalesce(version.cast("string"), F.lit("none"))
    unknown = F.raise_error(F.concat(where, F.lit(": schema version "), found, F.lit(f", known is {VERSION}")))
    # A filter, since a column that nobody asks for is not computed.
    good = F.when(F.col(CORRUPT).isNotNull(), broken).when(version.eqNullSafe(VERSION), F.lit(True)).otherwise(unknown)
    # No filter: it would make each job parse all fields. As they are, one that nobody asks for is not even parsed.
    fields = (_held(name, ALLOWED[name], where) if name in ALLOWED else F.col(name) for name in lines.columns)
    return lines.where(good.cast("boolean")).select(*fields).drop(CORRUPT)


def _held(name: str, allowed: Allowed, where: Column) -> Column:
    """A field's value; one that is not allowed ends the job. The same as `Allowed.holds`, for Spark."""
    value = F.col(name)
    good = value.isin(*allowed.words) if allowed.words else value.isNotNull()
    if allowed.least is not None:
        good &= value >= allowed.least
    if allowed.most is not None:
        good &= value <= allowed.most
    if allowed.nullable:
        good = value.isNull() | good
    told = F.coalesce(F.substring(value.cast("string"), 1, 100), F.lit("null"))
    wrong = F.raise_error(F.concat(where, F.lit(f": field {name!r} is "), told, F.lit(f", not {allowed}")))
    return F.when(good, value).otherwise(wrong).alias(name)


def read_rings(spark: SparkSession, journal: str) -> Mapping[str, KnownRing]:
    """The rings of a journal by fingerprint. Raises PipelineError for one that is not as docs/journal.md says."""
    files = found(spark, f"{journal.rstrip('/')}/rings/*.json")
    rings = [parse_ring(content(spark, file), file) for file in files]
    return {ring.fingerprint: ring for ring in rings}
