"""Tables that users bring: Parquet, CSV with a header, or JSON lines, by the end of the name."""

from collections.abc import Mapping

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from pipeline import PipelineError
from pipeline.data.schema import mismatches

TEXT = (StringType, BinaryType)
WHOLE = (LongType, IntegerType, ShortType, ByteType)
TIME = (TimestampType, TimestampNTZType, LongType)
"""The types of a column of times: timestamps, or whole microseconds since 1970 UTC."""

_CSV = {"header": "true", "mode": "FAILFAST", "escape": '"', "multiLine": "true"}
"""Options of Spark's CSV reader by RFC 4180: a quote in a cell is doubled, where Spark's default is a backslash, and a
cell may have line breaks. (CR LF in a cell becomes LF where lines end in LF.)
"""

Columns = Mapping[str, tuple[type[DataType], ...]]
"""The columns that a job needs: names, each with TEXT, WHOLE or TIME."""


def read_table(spark: SparkSession, path: str, columns: Columns) -> DataFrame:
    """Return these columns of a table, of the format that the end of its name says.

    A CSV has no types: its cells are parsed as the types that are asked for, an empty cell as null. Raises
    PipelineError where a column is missing or of another type, or the file is missing or of another format.
    """
    suffix = path.rstrip("/").rpartition(".")[2].lower()
    try:
        match suffix:
            case "parquet":
                table = spark.read.parquet(path)
            case "json" | "jsonl":
                table = spark.read.option("mode", "FAILFAST").json(path)
            case "csv":
                table = spark.read.options(**_CSV).csv(path)
            case _:
                raise PipelineError(f"{path}: not a table: neither .parquet, .csv nor .json")
    except AnalysisException as error:
        if "PATH_NOT_FOUND" in str(error):
            raise PipelineError(f"{path}: no such file") from None
        raise
    if suffix == "csv":
        wanted = {
            name: types for name, types in columns.items() if name in table.columns and set(types) <= {*WHOLE, *TIME}
        }
        table = _typed(table, path, wanted)
    if complaints := mismatches(table.schema, dict(columns)):
        raise PipelineError(f"{path}: {'; '.join(complaints)}")
    return table.select(*map(column, columns))


def column(name: str) -> Column:
    """Return a column by its name, in which a dot is a dot and not, as Spark takes it, a field of a struct."""
    quoted = name.replace("`", "``")
    return F.col(f"`{quoted}`")


def _typed(table: DataFrame, path: str, columns: Columns) -> DataFrame:
    """Return the table with columns of text parsed as numbers and times.

    The first cell that is no number or time ends the job with an error.
    """
    typed = {}
    for name, types in columns.items():
        cell = column(name)
        value = cell.try_cast("long")
        if types == TIME:
            value = F.coalesce(value, F.unix_micros(cell.try_cast("timestamp")))
        kind = "time" if types == TIME else "whole number"
        wrong = F.raise_error(F.concat(F.lit(f"{path}: column '{name}': '"), cell, F.lit(f"' is not a {kind}")))
        typed[name] = F.when(cell.isNotNull() & value.isNull(), wrong.cast("long")).otherwise(value)
    return table.withColumns(typed)
