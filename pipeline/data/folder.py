"""A job's folder of results, wherever Spark can write: on this machine, in HDFS, in an object store."""

import contextlib
import json
import os
import uuid
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
        self.spark, self._out, self._hadoop = spark, out, spark._jvm.org.apache.hadoop.fs  # type: ignore[union-attr]
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
        path = self._path(name)
        try:
            unfinished, renamed, tries = self._unfinished(path, text), False, 3
            while not renamed and tries:  # Another run may write one at the same moment.
                self._files.delete(path, False)  # Not all file systems rename over a file.
                renamed, tries = self._files.rename(unfinished, path), tries - 1
        except Py4JJavaError as error:
            raise PipelineError(f"--out: {path}: {why(error)}") from None
        if not renamed:
            raise PipelineError(f"--out: {path}: cannot be written")

    def create(self, name: str, text: str) -> bool:
        """Write a file, whole or not at all, and only where there is none of this name; return whether it was written.

        If several call it at once, one gets True, on a disk and in HDFS. Object stores do not promise that.
        Raises PipelineError where it cannot be written.
        """
        path = self._path(name)
        try:
            unfinished = self._unfinished(path, text)
            created = self._renamed(unfinished, path)
            if not created:
                # One that is not there any more was renamed, and the answer was lost.
                created = not self._files.delete(unfinished, False)
                if not self._files.exists(path):
                    raise PipelineError(f"--out: {path}: cannot be written")
        except Py4JJavaError as error:
            raise PipelineError(f"--out: {path}: {why(error)}") from None
        return created

    def make_private(self, name: str = "") -> None:
        """Make a folder, or with no name this one, for its owner alone; leave one that is there as it is."""
        path = self._path(name) if name else self._hadoop.Path(self._out)
        owners = self._hadoop.permission.FsPermission("700")
        try:
            if not self._files.exists(path):
                self._files.mkdirs(path, owners)
        except Py4JJavaError as error:
            raise PipelineError(f"--out: {path}: {why(error)}") from None

    def move(self, name: str, to: str) -> None:
        """Give a folder inside this one another name, and make the folders above. Raises PipelineError."""
        path, target = self._path(name), self._path(to)
        try:
            self._files.mkdirs(target.getParent())
            moved = self._files.rename(path, target)
        except Py4JJavaError as error:
            raise PipelineError(f"--out: {target}: {why(error)}") from None
        if not moved:
            raise PipelineError(f"--out: {path} cannot be renamed to {target}")

    def delete(self, name: str) -> None:
        """Delete a file, or a folder with all that is in it, if it is there."""
        try:
            self._files.delete(self._path(name), True)
        except Py4JJavaError as error:
            raise PipelineError(f"--out: {self._path(name)}: cannot be deleted: {why(error)}") from None

    def write_verdict(self, told: Mapping[str, object]) -> None:
        """Write verdict.json, the answer of a job for machines."""
        self.write("verdict.json", json.dumps(told, indent=1) + "\n")

    def remove_verdict(self) -> None:
        """Delete the verdict.json of an earlier run, whose tables are about to be overwritten."""
        self._files.delete(self._path("verdict.json"), False)

    def _unfinished(self, path: Any, text: str) -> Any:
        """Write a text under a hidden name of its own beside `path`, and return that path."""
        unfinished = self._hadoop.Path(path.getParent(), f".{path.getName()}.{uuid.uuid4().hex}")
        stream = self._files.create(unfinished, True)
        stream.write(bytearray(text.encode()))
        stream.close()
        return unfinished

    def _renamed(self, unfinished: Any, path: Any) -> bool:
        """Rename a file unless there is one of that name; return whether it was renamed."""
        if self._files.getUri().getScheme() != "file":
            with contextlib.suppress(Py4JJavaError):  # The caller looks whether the file is there.
                return bool(self._files.rename(unfinished, path))
            return False
        # Java's rename on a disk replaces a file without a word; a link does not.
        source, target = (self._files.makeQualified(one).toUri().getPath() for one in (unfinished, path))
        try:
            os.link(source, target)
        except FileExistsError:
            # A network's file system may have lost the answer, and asked again.
            if not os.path.samefile(source, target):
                return False
        except OSError as error:
            self._files.delete(unfinished, False)
            raise PipelineError(f"--out: {path}: cannot be linked: {error.strerror}") from None
        os.unlink(source)
        return True

    def _path(self, name: str) -> Any:
        return self._hadoop.Path(self._out, name)
