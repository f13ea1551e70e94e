"""Tables that users bring."""

import csv
from pathlib import Path
from typing import Literal

import pytest
from pyspark.sql import SparkSession

from pipeline.data.tables import TEXT, TIME, WHOLE, column, read_table

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


def test_a_dot_in_a_name_is_no_field_of_a_struct(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "keys.csv").write_text("customer.id,n.`of`.all,at.time,customer\na,1,2026-11-21T17:00:00Z,x\n")
    table = read_table(
        spark, str(tmp_path / "keys.csv"), {"customer.id": TEXT, "n.`of`.all": WHOLE, "at.time": TIME, "customer": TEXT}
    )
    assert [tuple(row) for row in table.collect()] == [("a", 1, 1_795_280_400_000_000, "x")]
    assert table.select(column("n.`of`.all"), column("customer.id")).collect() == [(1, "a")]
