"""`python -m bench.landed`: reading a landed table beside parsing the journal that it was made of."""

import argparse
import contextlib
import io
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from bench.pipeline import COLUMNS, write_journal
from pipeline.__main__ import main as pipeline_main
from pipeline.data.journal import read_records
from pipeline.data.schema import RECORD
from pipeline.session import spark_session


def main() -> int:
    """Print seconds, rates and their ratio."""
    parser = argparse.ArgumentParser(prog="python -m bench.landed", description=__doc__)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each, in turn (default: 3)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ringproxy-bench-") as made, spark_session("bench") as spark:
        journal, table = Path(made) / "journal", Path(made) / "table"
        write_journal(journal, options.records)
        print(f"{options.records:,} records: {_size(journal)} as a journal, ", end="")
        began = time.monotonic()
        with contextlib.redirect_stdout(io.StringIO()):
            assert pipeline_main(["land", "--journal", str(journal), "--out", str(table)]) == 0
        took = time.monotonic() - began
        print(f"{_size(table)} landed in {took:.1f} s ({options.records / took:,.0f} records/s)")
        for what, columns in (("all columns", RECORD.fieldNames()), ("the columns of whatif", COLUMNS)):
            _compare(spark, journal, table, what, columns, options.records, options.rounds)
        print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
    return 0


def _compare(
    spark: SparkSession, journal: Path, table: Path, what: str, columns: Sequence[str], records: int, rounds: int
) -> None:
    """Read these columns of both in turn, and print the medians; both must have the same values."""
    seconds: dict[Path, list[float]] = {journal: [], table: []}
    sums = set()
    for _ in range(rounds):
        for path, took in seconds.items():
            began = time.monotonic()
            read = read_records(spark, str(path)).select(*columns)
            sums.add(tuple(read.agg(F.count("*"), F.bit_xor(F.xxhash64(*columns))).collect()[0]))
            took.append(time.monotonic() - began)
    assert len(sums) == 1, "both have the same records"
    parse, landed = (statistics.median(took) for took in seconds.values())
    ratios = [a / b for a, b in zip(*seconds.values(), strict=True)]
    print(f"{what}: journal {parse:.1f} s ({records / parse:,.0f}/s), table {landed:.1f} s ({records / landed:,.0f}/s)")
    print(f"  ratio of {rounds} rounds: median {statistics.median(ratios):.1f}, least {min(ratios):.1f}")


def _size(folder: Path) -> str:
    files = [*folder.rglob("*.gz"), *folder.rglob("*.parquet")]
    return f"{sum(file.stat().st_size for file in files) / 1e6:,.0f} MB"


if __name__ == "__main__":
    sys.exit(main())
