"""The journal's lines as records, each with the reason why it is none, where it is none."""

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import StringType, StructType

from pipeline.data import checks
from pipeline.data.journal import CORRUPT
from pipeline.data.schema import ALLOWED, RECORD, VERSION
from pipeline.data.tables import column

_PARSED = StructType([*RECORD.fields]).add(CORRUPT, StringType())

_EVENT = "concat('field ''event'' is ', substring(event, 1, 100), ', not proxy-seq')"


def lines_of(spark: SparkSession, files: Sequence[str]) -> DataFrame:
    """Return the lines of a journal's files: the columns of RECORD, `file`, `line` and `reason`.

    `reason` says why a line is no record, and is null for a record.
    """
    lines = spark.read.text(list(files)).selectExpr("value AS line", "_metadata.file_path AS file")
    parsed = F.from_json("line", _PARSED, {"columnNameOfCorruptRecord": CORRUPT}).alias("record")
    told = lines.where("trim(line) != ''").select(parsed, "line", "file").select("record.*", "line", "file")
    return told.withColumn("reason", F.expr(_reason())).drop(CORRUPT)


def lines_of_queue(messages: DataFrame) -> DataFrame:
    """Return what the Data Source of a stream queue yields with `set_aside`, with the columns of `lines_of`."""
    other = F.when(F.col("reason").isNull() & ~F.expr(_is_own("event")), F.expr(_EVENT)).otherwise(F.col("reason"))
    return messages.withColumns({"reason": other, "file": F.lit(None).cast("string")})


def _reason() -> str:
    """Return SQL for the reason; a type that is wrong in a newer version's line is no reason of its own."""
    whens = [
        (f"v != {VERSION}", checks.OF_VERSION),
        # Spark would take the first record of an array, and no notice of the others.
        (f"{CORRUPT} IS NOT NULL OR NOT startswith(ltrim(line), '{{')", f"'{checks.NO_RECORD}'"),
        ("v IS NULL", checks.OF_VERSION),
        *((f"NOT {checks.holds(name)}", checks.complaint(name)) for name in ALLOWED),
        (f"NOT {_is_own('event')}", _EVENT),
    ]
    return f"CASE {' '.join(f'WHEN {bad} THEN {told}' for bad, told in whens)} END"


def _is_own(event: str) -> str:
    return f"coalesce({event} = concat(proxy, '-', seq), false)"


def records_of(lines: DataFrame) -> DataFrame:
    """Return the lines that are records, with the columns of a landed table."""
    return lines.where("reason IS NULL").select(*map(column, RECORD.fieldNames()), "file")


def aside(lines: DataFrame) -> DataFrame:
    """Return the lines that are none, as the quarantine has them: `file`, `reason` and `line`."""
    return lines.where("reason IS NOT NULL").select("file", "reason", "line")
