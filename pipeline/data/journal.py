"""Reading a journal: its folder, or the table that `land` has made of it; records as a DataFrame, and rings."""

from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import IntegerType, StringType, StructType

from pipeline import PipelineError
from pipeline.data import checks, landed
from pipeline.data import files as hours
from pipeline.data.files import content, found
from pipeline.data.period import ALWAYS, Period
from pipeline.data.rings import RingSpec, parse_ring
from pipeline.data.schema import ALLOWED, RECORD, VERSION

CORRUPT = "_corrupt"
"""The column into which Spark puts a line that is no record; null for a record."""

_FILE = "_metadata.file_path AS file"

_LINES = StructType([*RECORD.fields]).add(CORRUPT, StringType())


def read_records(spark: SparkSession, journal: str, period: Period = ALWAYS) -> DataFrame:
    """Return the records of a journal in a period, unordered: the columns of RECORD, and the `file` of each.

    Only the period's folders by hour are listed; files that are in no such folder are read whatever their time is. A
    line that is no record or of an unknown version, or a field with a value that ALLOWED excludes, ends the job with a
    message that names the file. Only the fields that the job uses are checked. A landed table has been checked, and
    only the batches of the period's hours are read.
    """
    if (table := landed.Landed(spark, journal)).exists():
        records = table.records(table.folders(period))
        return records.where(period.holds(F.col("time"))) if period.is_limited else records
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

    The columns are those of `read_records`. Spark overlooks files that are a week older than the newest one. Raises
    PipelineError for a landed table, whose files are merged.
    """
    if landed.Landed(spark, journal).exists():
        raise PipelineError(f"{journal}: --stream reads a journal, not a landed table: leave out --stream")
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
    broken = f"raise_error(concat({where}, ': {checks.NO_RECORD}: ', substring({CORRUPT}, 1, 100)))"
    unknown = f"raise_error(concat({where}, ': ', {checks.OF_VERSION}))"
    # A filter, since a column that nobody asks for is not computed.
    good = f"CASE WHEN {CORRUPT} IS NOT NULL THEN {broken} WHEN v <=> {VERSION} THEN true ELSE {unknown} END"
    # No filter: it would make each job parse all fields. As they are, one that nobody asks for is not even parsed.
    fields = (_held(name, where) if name in ALLOWED else name for name in lines.columns)
    return lines.where(f"boolean({good})").selectExpr(*fields).drop(CORRUPT)


def _held(name: str, where: str) -> str:
    """Return SQL for a field's value, which ends the job where `Allowed.holds` would be false."""
    wrong = f"raise_error(concat({where}, ': ', {checks.complaint(name)}))"
    return f"CASE WHEN {checks.holds(name)} THEN {name} ELSE {wrong} END AS {name}"


def read_rings(
    spark: SparkSession, journal: str, bad: Callable[[str, PipelineError], None] | None = None
) -> Mapping[str, RingSpec]:
    """Return the rings of a journal by fingerprint.

    Raises PipelineError for a file that is no ring as docs/reference/journal.md describes it; with `bad`, calls it with
    the file and the error instead.
    """
    rings = {}
    for file in found(spark, f"{journal.rstrip('/')}/rings/*.json"):
        try:
            ring = parse_ring(content(spark, file), file)
        except PipelineError as error:
            if bad is None:
                raise
            bad(file, error)
        else:
            rings[ring.fingerprint] = ring
    return rings


def set_aside(spark: SparkSession, journal: str, period: Period = ALWAYS) -> landed.Aside:
    """Return the counts of what is missing from a landed table as it could not be read; of a journal's folder none."""
    table = landed.Landed(spark, journal)
    return table.aside(period) if table.exists() else landed.NOTHING_ASIDE
