"""A job's folder of results, wherever Spark can write: on this machine, in HDFS, in an object store."""

import json
from collections.abc import Mapping
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from pipeline import PipelineError
from pipeline.data.files import FAULTS, why


class Folder:
    """The folder that `--out` names, as a path or a URL, for as long as a job runs.

    Spark writes the tables in it; reports and verdicts go through the same Hadoop file system.
    """

    def __init__(self, spark: SparkSession, out: str) -> None:
        """Look up the file system of `out`, without creating the folder.

        Raises PipelineError where `out` is no path, or Spark has no file system for its URL.
        """
        self._out, self._hadoop = out, spark._jvm.org.apache.hadoop.fs  # type: ignore[union-attr]
        try:
            uri = self._hadoop.Path(out).toUri()
            # One of our own: what is set here is not for Spark's files.
            self._files = self._hadoop.FileSystem.newInstance(uri, spark._jsc.hadoopConfiguration())
        except FAULTS as error:
            raise PipelineError(f"--out: {out or repr(out)}: {why(error)}") from None
        self._files.setWriteChecksum(False)  # On this machine a file would get a second one beside it.

    def __str__(self) -> str:
        """Return the path or URL as it was given."""
        return self._out

    def holds(self, name: str) -> bool:
        """Return whether the folder has a file or folder of this name."""
        return bool(self._files.exists(self._path(name)))

    def write(self, name: str, text: str) -> None:
        """Write a file, whole or not at all, in place of an earlier one of this name.

        Raises PipelineError where it cannot be written.
        """
        path, unfinished = self._path(name), self._path(f".{name}.unfinished")
        try:
            stream = self._files.create(unfinished, True)
            stream.write(bytearray(text.encode()))
            stream.close()
            self._files.delete(path, False)  # Not all file systems rename over a file.
            renamed = self._files.rename(unfinished, path)
        except Py4JJavaError as error:
            raise PipelineError(f"--out: {path}: {why(error)}") from None
        if not renamed:
            raise PipelineError(f"--out: {path}: cannot be written")

    def write_verdict(self, told: Mapping[str, object]) -> None:
        """Write verdict.json, the answer of a job for machines."""
        self.write("verdict.json", json.dumps(told, indent=1) + "\n")

    def remove_verdict(self) -> None:
        """Delete the verdict.json of an earlier run, whose tables are about to be overwritten."""
        self._files.delete(self._path("verdict.json"), False)

    def _path(self, name: str) -> Any:
        return self._hadoop.Path(self._out, name)
