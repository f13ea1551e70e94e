"""The inputs of `whatif`: an exchange's keys, each once, and its present ring."""

import argparse
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pipeline import NoRecordError, PipelineError
from pipeline.data import period
from pipeline.data.journal import read_rings
from pipeline.whatif.demand import bad_rows, of_all_rings
from pipeline.whatif.present import Present, newest


@dataclass(frozen=True)
class Inputs:
    """The keys, the present ring and the sample that one run of `whatif` goes by."""

    keys: DataFrame
    """The keys of the value that the present ring hashes, a row for each."""
    present: Present
    sample: float = 1.0
    """The share of the slots whose messages are all counted."""
    times: tuple[int, int] | None = None
    """The times of the journal's first and last record, in microseconds since 1970; None for a table."""
    hashed_otherwise: int = 0
    """The number of records left out because their ring hashes another value than the present one."""
    without_ring: int = 0
    """The number of records left out because the journal lacks their ring."""
    records: DataFrame | None = None
    """The records behind `keys`; None for a table."""


def inputs_of_journal(
    records: DataFrame, keys: DataFrame, asked: Present | None, options: argparse.Namespace, within: period.Period
) -> Inputs:
    """Return the inputs by the newest ring of an exchange's records, or by the ring that was asked for.

    Raises PipelineError if there is no record, or none of which it is known that the same was hashed.
    """
    of_ring = keys.groupBy("ring").agg(
        F.min("since").alias("first"),
        F.max("time").alias("last"),
        F.min("sample").alias("sample"),
        F.sum("messages").alias("messages"),
    )
    rings = of_ring.collect()
    if not rings:
        where = f"exchange {options.exchange!r} of virtual host {options.vhost!r}"
        where += f" {within}" if within.is_limited else ""
        raise NoRecordError(f"{options.journal}: no record of {where}")
    rings_of_journal = dict(read_rings(keys.sparkSession, options.journal))
    present = asked or newest(records, [row.ring for row in rings], rings_of_journal, options.journal)
    rings_of_journal[present.spec.fingerprint] = present.spec
    hashed = present.spec.hashed
    ours = [row for row in rings if row.ring in rings_of_journal and rings_of_journal[row.ring].hashed == hashed]
    if not ours:
        raise PipelineError(f"{options.journal}: of no record it is known that {hashed} was hashed")
    without_ring = sum(row.messages for row in rings if row.ring not in rings_of_journal)
    left_out = sum(row.messages for row in rings) - sum(row.messages for row in ours)
    if left_out:
        keys, records = (one.where(F.col("ring").isin([row.ring for row in ours])) for one in (keys, records))
    if len(ours) > 1:
        keys = of_all_rings(keys)
    times = min(row["first"] for row in ours), max(row["last"] for row in ours)
    sample = min(row.sample for row in ours)
    return Inputs(keys, present, sample, times, left_out - without_ring, without_ring, records)


def inputs_of_table(keys: DataFrame, asked: Present | None, options: argparse.Namespace) -> Inputs:
    """Return what is known of a table's keys, all of which are there, by the ring that was asked for.

    Raises PipelineError for rows with an impossible key or a bad count.
    """
    assert asked is not None, "which _check sees to"
    if complaints := bad_rows(keys, asked.spec.hashed):
        raise PipelineError(f"{options.table}: column {options.key!r}: {'; '.join(complaints)}")
    return Inputs(keys, asked)
