"""docs/reference/pipeline.md has every job, option and column that the code has, and no other."""

import argparse
import importlib
import re

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import DataType, StructType, _parse_datatype_string

from pipeline.__main__ import JOBS
from pipeline.data import gaps
from pipeline.data.period import ALWAYS
from pipeline.data.schema import RECORD
from pipeline.publish.options import CONNECTION, OWN
from pipeline.reconcile.messages import judged, summary, together
from pipeline.reconcile.order import chunks, late
from pipeline.skew.findings import DESTINATIONS, KEYS, RINGS
from pipeline.usage.windows import usage, with_estimates, with_hour
from pipeline.whatif.demand import moved_keys, of_journal
from pipeline.whatif.findings import LOAD_SCHEMA
from tests.pipeline.records import ring_of
from tests.pipeline.reference import PAGE, names, rows, section


def options(job: str) -> set[str]:
    """The options of a job's parser."""
    parser = argparse.ArgumentParser()
    importlib.import_module(f"pipeline.{job}.command").add_arguments(parser)
    return {name for action in parser._actions for name in action.option_strings} - {"-h", "--help"}


def test_every_job_is_there_and_no_other() -> None:
    listed = re.findall(r"^\| \[`(\w+)`\]\(#(\w+)\) \|", PAGE, flags=re.M)
    assert sorted(listed) == sorted((job, job) for job in JOBS)


@pytest.mark.parametrize("job", JOBS)
def test_every_option_is_there_and_no_other(job: str) -> None:
    told = [name.split()[0] for row in rows(section(job)) for name in names(row[0]) if name.startswith("--")]
    assert sorted(told) == sorted(options(job))


@pytest.mark.parametrize("job", JOBS)
def test_every_option_has_a_help_text(job: str) -> None:
    parser = argparse.ArgumentParser()
    importlib.import_module(f"pipeline.{job}.command").add_arguments(parser)
    assert [action.option_strings for action in parser._actions if not action.help] == []


def test_defaults_of_publish_are_those_of_its_help() -> None:
    told = {names(row[0])[0].split()[0]: row[1] for row in rows(section("publish")) if len(row) == 3}
    shown = {name: text for name, text in (OWN | CONNECTION).items() if f"--{name.replace('_', '-')}" in told}
    for name, text in shown.items():
        if "(default " in text and (default := text.rpartition("(default ")[2].rstrip(")")).isdigit():
            assert told[f"--{name.replace('_', '-')}"] == default, name


def records(spark: SparkSession) -> DataFrame:
    """No record, with all columns of one."""
    return spark.createDataFrame([], StructType([*RECORD.fields]).add("file", "string"))


def of_usage(spark: SparkSession) -> StructType:
    return with_hour(with_estimates(usage(records(spark), 5))).schema


def of_gaps(spark: SparkSession) -> StructType:
    return gaps.gaps(gaps.sequences(records(spark))).schema


def of_moved(spark: SparkSession) -> StructType:
    keys = of_journal(records(spark)).drop("ring", "since", "time", "sample")
    return moved_keys(keys, ring_of({"a": 1}).ring, ring_of({"b": 1}).ring).schema


def of_messages(spark: SparkSession) -> DataFrame:
    seen = spark.createDataFrame([], "message_id string, queue string, position long, seen_at long")
    parts = together(records(spark), F.lit(True), seen, 0)
    return judged(parts, late(chunks(parts)), ["a"], ALWAYS, 0)


def columns(schema: StructType | DataType) -> dict[str, str]:
    """The names and the types of a table's columns."""
    assert isinstance(schema, StructType)
    return {field.name: field.dataType.simpleString() for field in schema.fields}


def test_every_column_of_every_table_is_there_with_its_type(spark: SparkSession) -> None:
    found = {
        "usage": of_usage(spark),
        "gaps": of_gaps(spark),
        "rings": _parse_datatype_string(RINGS),
        "destinations": _parse_datatype_string(DESTINATIONS),
        "keys": _parse_datatype_string(KEYS),
        "moved": of_moved(spark),
        "load": _parse_datatype_string(LOAD_SCHEMA),
        "messages": of_messages(spark).schema,
        "summary": summary(of_messages(spark)).schema,
    }
    for table, schema in found.items():
        told: dict[str, str] = {}
        for cell, types, _ in rows(section(f"OUT/{table}")):
            several = types.split(", ") if "," in types else [types] * len(names(cell))
            told |= dict(zip(names(cell), several, strict=True))
        assert told == columns(schema), table
