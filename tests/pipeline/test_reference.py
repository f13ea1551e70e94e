"""docs/reference/pipeline.md has every job and column that the code has, and no other; `--help` has the options."""

import argparse
import importlib
import re
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import DataType, StructType, _parse_datatype_string

from pipeline.__main__ import JOBS
from pipeline.data import gaps
from pipeline.data.period import ALWAYS
from pipeline.data.schema import RECORD
from pipeline.publish.options import OWN, parse
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
def test_the_options_that_a_section_names_are_those_of_its_job(job: str) -> None:
    told = {name.split()[0] for name in names(section(job)) if name.startswith("--")}
    assert told <= options(job)


def test_the_options_that_the_guides_give_a_job_are_its_own() -> None:
    given = dict[str, set[str]]()
    for guide in (Path(__file__).parents[2] / "docs/how-to").glob("*.md"):
        text = guide.read_text(encoding="utf-8").replace("\\\n", " ")
        for job, arguments in re.findall(r"^python -m pipeline (\w+)(.*)$", text, flags=re.M):
            given.setdefault(job, set()).update(re.findall(r" (--[a-z-]+)", arguments))
    assert given.keys() == set(JOBS)
    for job, told in given.items():
        assert told <= options(job), job


@pytest.mark.parametrize("job", JOBS)
def test_every_option_has_a_help_text(job: str) -> None:
    parser = argparse.ArgumentParser()
    importlib.import_module(f"pipeline.{job}.command").add_arguments(parser)
    assert [action.option_strings for action in parser._actions if not action.help] == []


def test_defaults_that_the_help_of_publish_tells_are_those_that_hold() -> None:
    given = {"exchange": "orders", "broker_url": "amqp://localhost", "management_url": "http://localhost"}
    holds = parse(given)
    told = {name: default[1] for name, text in OWN.items() if (default := re.search(r"\(default (\d+)\)", text))}
    assert {"window", "retry_timeout"} <= told.keys()
    assert {name: f"{getattr(holds, name):g}" for name in told} == told


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


def columns(schema: StructType | DataType) -> list[str]:
    """The names of a table's columns."""
    assert isinstance(schema, StructType)
    return [field.name for field in schema.fields]


def test_every_column_of_every_table_is_there_and_no_other(spark: SparkSession) -> None:
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
        told = list[str]()
        for cell, _ in rows(section(f"OUT/{table}")):
            told += names(cell)
        assert sorted(told) == sorted(columns(schema)), table
