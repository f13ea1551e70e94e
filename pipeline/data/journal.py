"""Reading a journal's folder: its records as a DataFrame, and its rings by fingerprint."""

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import IntegerType, StringType, StructType

from pipeline import PipelineError
from pipeline.data import files as hours
from pipeline.data.files import content, found
from pipeline.data.period import ALWAYS, Period
from pipeline.data.rings import RingSpec, parse_ring
from pipeline.data.schema import ALLOWED, RECORD, VERSION, Allowed

CORRUPT = "_corrupt"
"""The column into which Spark puts a line that is no record; null for a record."""

_FILE = "_metadata.file_path AS file"

_LINES = StructType([*RECORD.fields]).add(CORRUPT, StringType())


def read_records(spark: SparkSession, journal: str, period: Period = ALWAYS) -> DataFrame:
    """Return the records of a journal in a period, unordered: the columns of RECORD, and the `file` of each.

    Only the period's folders by hour are listed; files that are in no such folder are read whatever their time is. A
    line that is no record or of an unknown version, or a field with a value that ALLOWED excludes, ends the job with a
    message that names the file. Only the fields that the job uses are checked.
    """
    folder = _records_folder(spark, journal)
    folders = hours.folders(spark, folder, period)
    # Files count wherever they lie: with partitions, Spark leaves out those beside the folders by hour.
    read = spark.read.schema(_LINES).options(columnNameOfCorruptRecord=CORRUPT, recursiveFileLookup=True)
    if not folders:
        return spark.createDataFrame([], StructType([*RECORD.fields]).add("file", StringType()))
    records = checked(read.json(folders).selectExpr("*", _FILE), "file")
    return records.where(period.holds(F.col("time"))) if period.is_limited else records


def stream_records(spark: SparkSession, journal: str, files: int = 1000) -> DataFrame:
    """Return a stream of a journal's records, each file once, with at most `files` files in a batch.

    The columns are those of `read_records`. Spark overlooks files that are a week older than the newest one.
    """
    folder = _records_folder(spark, journal)
    # Spark wants a stream's schema with the columns that the folders' names make.
    lines = StructType([*_LINES.fields]).add("dt", StringType()).add("hour", IntegerType())
    stream = spark.readStream.schema(lines).option("columnNameOfCorruptRecord", CORRUPT)
    return checked(stream.option("maxFilesPerTrigger", files).json(folder).selectExpr("*", _FILE), "file")


def _records_folder(spark: SparkSession, journal: str) -> str:
    folder = f"{journal.rstrip('/')}/records"
    if not found(spark, folder):
        raise PipelineError(f"{journal}: no journal: there is no folder {folder} that this user may read")
    return folder


def checked(lines: DataFrame, where: str) -> DataFrame:
    """Return lines as records, without the column CORRUPT; the first line that is no record ends the job.

    `where` is an SQL expression for the place that the error names, such as the file.
    """
    broken = f"raise_error(concat({where}, ': a line that is no record: ', substring({CORRUPT}, 1, 100)))"
    found = "coalesce(string(v), 'none')"
    unknown = f"raise_error(concat({where}, ': schema version ', {found}, ', known is {VERSION}'))"
    # A filter, since a column that nobody asks for is not computed.
    good = f"CASE WHEN {CORRUPT} IS NOT NULL THEN {broken} WHEN v <=> {VERSION} THEN true ELSE {unknown} END"
    # No filter: it would make each job parse all fields. As they are, one that nobody asks for is not even parsed.
    fields = (_held(name, ALLOWED[name], where) if name in ALLOWED else name for name in lines.columns)
    return lines.where(f"boolean({good})").selectExpr(*fields).drop(CORRUPT)


def _held(name: str, allowed: Allowed, where: str) -> str:
    """Return SQL for a field's value, which ends the job where `Allowed.holds` would be false.

    It is text, since each function called by PySpark takes ten round trips to Java.
    """
    good = [f"{name} IS NOT NULL"]
    if allowed.words:
        good.append(f"{name} IN ({', '.join(map(_quoted, allowed.words))})")
    if allowed.least is not None:
        good.append(f"{name} >= {_number(allowed.least)}")
    if allowed.most is not None:
        good.append(f"{name} <= {_number(allowed.most)}")
    held = " AND ".join(good)
    if allowed.nullable:
        held = f"{name} IS NULL OR {held}"
    told = f"coalesce(substring(string({name}), 1, 100), 'null')"
    wrong = f"raise_error(concat({where}, {_quoted(f': field {name!r} is ')}, {told}, {_quoted(f', not {allowed}')}))"
    return f"CASE WHEN {held} THEN {name} ELSE {wrong} END AS {name}"


def _quoted(text: str) -> str:
    """Return a text as a literal of Spark's SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _number(value: float) -> str:
    """Return a number as a literal of Spark's SQL, a double or a long."""
    return f"{value!r}D" if isinstance(value, float) else f"{value}L"


def read_rings(spark: SparkSession, journal: str) -> Mapping[str, RingSpec]:
    """Return the rings of a journal by fingerprint.

    Raises PipelineError for a file that is no ring as docs/reference/journal.md describes it.
    """
    files = found(spark, f"{journal.rstrip('/')}/rings/*.json")
    rings = [parse_ring(content(spark, file), file) for file in files]
    return {ring.fingerprint: ring for ring in rings}
