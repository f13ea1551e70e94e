"""A job's folder of results, wherever Spark can write: on this machine, in HDFS, in an object store."""

import json
from collections.abc import Mapping
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from pipeline import PipelineError
from pipeline.filesystem import FAULTS, why


class Folder:
    """What `--out` names, a path or a URL. Spark writes the tables in it; the other files go the same way."""

    def __init__(self, spark: SparkSession, out: str) -> None:
        """Makes nothing yet. Raises PipelineError where it is no path, or Spark has no file system for the URL."""
        self._out, self._hadoop = out, spark._jvm.org.apache.hadoop.fs  # type: ignore[union-attr]
        try:
            uri = self._hadoop.Path(out).toUri()
            # One of our own: what is set here is not for Spark's files.
            self._files = self._hadoop.FileSystem.newInstance(uri, spark._jsc.hadoopConfiguration())
        except FAULTS as error:
            raise PipelineError(f"--out: {out or repr(out)}: {why(error)}") from None
        self._files.setWriteChecksum(False)  # On this machine a file would get a second one beside it.

    def __str__(self) -> str:
        """As it was given."""
        return self._out

    def holds(self, name: str) -> bool:
        """Whether there is such a file or folder in it."""
        return bool(self._files.exists(self._path(name)))

    def write(self, name: str, text: str) -> None:
        """Writes a file, whole or not at all, over an earlier one. Raises PipelineError."""
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
        """Writes verdict.json, a job's answer for machines."""
        self.write("verdict.json", json.dumps(told, indent=1) + "\n")

    def remove_verdict(self) -> None:
        """An earlier run's, whose tables go now."""
        self._files.delete(self._path("verdict.json"), False)

    def _path(self, name: str) -> Any:
        return self._hadoop.Path(self._out, name)
