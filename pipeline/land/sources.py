"""The files of a journal's folder that have not been landed, in portions; and which of them cannot be read."""

import gzip
import io
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pipeline import PipelineError
from pipeline.data import files as hours
from pipeline.data.files import found
from pipeline.data.landed import NO_HOUR, Landed
from pipeline.data.period import Period

MOST_BYTES, MOST_FILES = 4 << 30, 10_000
"""The most that one batch reads: an hour of 115,741 records/s has 16 GB, so that a batch is of one hour there, and its
tasks write few files. Hours with less come together, since a batch costs some seconds.
"""

_HOUR = re.compile(r"(dt=\d{4}-\d\d-\d\d/hour=\d\d)/")
_CHUNK = 1 << 20


@dataclass(frozen=True)
class File:
    """A file of a journal's records."""

    path: str
    """The path by which Spark reads it."""
    name: str
    """Its path below the journal's `records`."""
    size: int
    modified: int
    """When it was modified, in milliseconds since 1970."""

    @property
    def hour(self) -> str:
        """The folder of the hour that it lies in, NO_HOUR where it lies in none."""
        folder = _HOUR.match(self.name)
        return folder[1] if folder else NO_HOUR


def name_of(path: str) -> str:
    """Return a file's path below `records`, from the whole path or from Spark's URL of it."""
    return unquote(path).rpartition("/records/")[2]


def listed(spark: SparkSession, journal: str, within: Period) -> list[File]:
    """Return the files of a period's hours, in order. Files that are being written have hidden names.

    Raises PipelineError where there is no journal.
    """
    root = f"{journal.rstrip('/')}/records"
    if not found(spark, root):
        raise PipelineError(f"{journal}: no journal: there is no folder {root} that this user may read")
    folders = hours.folders(spark, root, within)
    if not folders:
        return []
    read = spark.read.format("binaryFile").option("recursiveFileLookup", "true")
    try:
        # The list alone: no content is read for these columns.
        told = (
            read.load(folders).select("path", "length", F.unix_millis("modificationTime").alias("modified")).toArrow()
        )
    except AnalysisException as error:
        if "PATH_NOT_FOUND" in str(error):
            return []
        raise
    every = zip(*(told[name].to_pylist() for name in told.column_names), strict=True)
    return sorted((File(path, name_of(path), *of_file) for path, *of_file in every), key=lambda file: file.name)


def new_ones(files: Sequence[File], table: Landed) -> list[File]:
    """Return the files that the table's manifests do not say to be landed or set aside."""
    manifests = table.manifests_of({file.hour for file in files}).values()
    known = {name: source for one in manifests for name, source in one.sources.items()}
    return [file for file in files if file.name not in known or not known[file.name].is_same(file.size, file.modified)]


def portions(files: Sequence[File]) -> Iterator[list[File]]:
    """Yield the files in batches of at most MOST_BYTES and MOST_FILES."""
    held: list[File] = []
    size = 0
    for file in files:
        if held and (size + file.size > MOST_BYTES or len(held) == MOST_FILES):
            yield held
            held, size = [], 0
        held.append(file)
        size += file.size
    if held:
        yield held


def broken(spark: SparkSession, files: Sequence[File]) -> Mapping[str, str]:
    """Return the reason by name for each of the files that cannot be unpacked."""
    read = spark.read.format("binaryFile").load([file.path for file in files]).select("path", "content")
    told = read.mapInArrow(_reasons, "path string, reason string").where("reason IS NOT NULL").collect()
    return {name_of(row.path): row.reason for row in told}


def _reasons(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        reasons = [
            fault(one.as_buffer()) if path.endswith(".gz") else None
            for path, one in zip(batch["path"].to_pylist(), batch["content"], strict=True)
        ]
        yield pa.RecordBatch.from_arrays([batch["path"], pa.array(reasons, pa.string())], ["path", "reason"])


def fault(packed: bytes) -> str | None:
    """Return why a gzip file cannot be unpacked; None if it can."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
            while file.read(_CHUNK):
                pass
    except EOFError:
        return "truncated"
    except (OSError, zlib.error) as error:
        return f"broken gzip: {error}"
    return None
