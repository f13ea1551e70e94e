"""Tables that users bring."""

import csv
from pathlib import Path
from typing import Literal

import pytest
from pyspark.sql import SparkSession

from pipeline.tables import TEXT, WHOLE, read_table

CELLS = ["plain", 'a"b', '"', '""', "a,b", "a\\", 'a\\"b', "\\n", "a\nb", " a ", "'", "é"]


@pytest.mark.parametrize("ending", ["\r\n", "\n"])
@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
def test_a_csv_is_read_as_python_writes_it(
    spark: SparkSession, tmp_path: Path, ending: str, quoting: Literal[0, 1]
) -> None:
    with (tmp_path / "keys.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, quoting=quoting, lineterminator=ending)
        writer.writerow(["key", "n"])
        writer.writerows((cell, n) for n, cell in enumerate(CELLS))
    table = read_table(spark, str(tmp_path / "keys.csv"), {"key": TEXT, "n": WHOLE})
    assert [(row.key, row.n) for row in table.orderBy("n").collect()] == [(cell, n) for n, cell in enumerate(CELLS)]
