"""The commit log: one JSON object a line, of each write's beginning and end, with the ring that it was published by."""

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from pipeline import PipelineError
from pipeline.data.rings import RingSpec, parse_ring, to_json

_VERSION = 1
"""The version of the log's lines."""

_BLOCK = 1 << 16
"""How many bytes are read at a time from the end of the log."""


@dataclass(frozen=True)
class TaskResult:
    """The result of one task, in the attempt that succeeded."""

    rows: Mapping[str, int]
    """How many rows were confirmed, by queue name."""
    failed_attempts: int
    """How many attempts of the same task failed before this one; each may have published some or all of its rows."""
    seconds: float
    again: int
    """How many times this attempt sent a row again that its queue may have had already."""


@dataclass(frozen=True)
class Write:
    """A write that was committed: one batch of a stream, or one `df.write`, with all tries at it."""

    batch: str
    fingerprint: str
    rows: Mapping[str, int]
    """How many rows were confirmed, by queue name."""
    dry_run: bool
    seconds: float
    """The seconds that its longest task took."""
    failed_attempts: int
    """How many attempts of tasks failed in the try that was committed."""
    failed_tries: int
    """How many earlier tries there were at the whole write: it failed, the driver was killed, or it was committed
    before.
    """
    again: int
    """How many times, in the committed try, tasks sent a row again that its queue may have had already."""
    duplicates: int
    """The most messages that may be in the queues beyond one for each row."""

    @property
    def total(self) -> int:
        """The number of rows in all queues."""
        return sum(self.rows.values())


class CommitLog:
    """The commit log of one `run`: a file to which JSON lines are added, of which a crash can tear only the last."""

    def __init__(self, path: Path | None, run: str = "") -> None:
        """Open the log at `path`, None for no log. `run` tells batches with the same number apart, such as of two
        checkpoints.
        """
        self._path, self._run = path, run

    def begun(self, batch: str, spec: RingSpec, attempts: int) -> None:
        """Add a line before anything of a batch is published.

        `batch` is empty if its number is not known yet. `attempts` is how often Spark tries each task before the
        write fails, 0 for a dry run.
        """
        told = {"batch": batch, "ring": spec.fingerprint, "attempts": attempts, "pinned": json.loads(to_json(spec))}
        self._add({"event": "begun", **told})

    def pinned(self) -> dict[str, RingSpec]:
        """Return the ring with which this run last began each batch, by batch number; empty without a log."""
        found: dict[str, RingSpec] = {}
        rings: dict[object, RingSpec] = {}
        if self._path is not None and self._path.exists():
            for number, told in enumerate(_lines(self._path), 1):
                if (told.get("event"), told.get("run")) == ("begun", self._run):
                    ring = told.get("ring")
                    if ring not in rings:
                        where = f"{self._path}: line {number}: pinned"
                        rings[ring] = parse_ring(json.dumps(told.get("pinned")), where)
                    found[str(told.get("batch"))] = rings[ring]
        return found

    def committed(self, batch: str, fingerprint: str, parts: Sequence[TaskResult], dry_run: bool) -> None:
        """Add a line once all rows of a batch are confirmed; `parts` are the results of its tasks."""
        rows: dict[str, int] = {}
        for part in parts:
            for queue, count in part.rows.items():
                rows[queue] = rows.get(queue, 0) + count
        again = sum(part.failed_attempts * sum(part.rows.values()) for part in parts)
        told = {
            "batch": batch,
            "ring": fingerprint,
            "dry_run": dry_run,
            "rows": rows,
            "failed_attempts": sum(part.failed_attempts for part in parts),
            "rows_of_failed_attempts": 0 if dry_run else again,
            "rows_sent_again": sum(part.again for part in parts),
            "seconds": round(max((part.seconds for part in parts), default=0.0), 3),
        }
        self._add({"event": "committed", **told})

    def aborted(self, batch: str, fingerprint: str) -> None:
        """Add a line once a task has failed for good, and the write with it."""
        self._add({"event": "aborted", "batch": batch, "ring": fingerprint})

    def _add(self, told: Mapping[str, object]) -> None:
        if self._path is None:
            return
        whole = {"v": _VERSION, "time": time.time_ns() // 1000, "run": self._run, **told}
        line = json.dumps(whole, ensure_ascii=False).encode() + b"\n"
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab+") as file:
                _cut_torn_line(file)
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise PipelineError(f"commit log {str(self._path)!r}: {error.strerror}") from None


def read_commits(path: Path) -> list[Write]:
    """Return the writes of a log, each with the last commit of its batch. Raises PipelineError for any other file.

    A try that was begun and not committed counts for the write that the same run commits as that batch, or commits
    next if no batch was named, because a stream goes on with the same batch. A commit that names no batch is a write
    of its own.
    """
    return _read(path)[0]


def unfinished(path: Path) -> int:
    """Return how many tries were begun and led to no commit yet: some of their rows may be in the queues."""
    return _read(path)[1]


def _read(path: Path) -> tuple[list[Write], int]:
    """Return the writes that a log tells of, and how many tries were begun and led to no commit yet.

    Raises PipelineError for a file that cannot be read, or is no such log.
    """
    writes: dict[object, Write] = {}
    tries: dict[tuple[str, str], list[int]] = {}
    for number, told in enumerate(_lines(path), 1):
        try:
            run, batch = told.get("run", ""), told.get("batch", "")
            if told["event"] == "begun" and told["attempts"]:
                tries.setdefault((run, batch), []).append(int(told["attempts"]))
            elif told["event"] == "committed" and told["dry_run"]:
                writes[run, batch or number, "dry"] = _write(told, [], None)
            elif told["event"] == "committed":
                tried = tries.pop((run, batch), None) or tries.pop((run, ""), [])
                key = run, batch or number
                writes[key] = _write(told, tried, writes.get(key))
        except (KeyError, TypeError, ValueError, AttributeError):
            raise PipelineError(f"{path}: line {number} is not of a commit log") from None
    return list(writes.values()), sum(map(len, tries.values()))


def _write(told: Mapping[str, Any], tries: Sequence[int], before: Write | None) -> Write:
    rows = {str(queue): int(count) for queue, count in told["rows"].items()}
    total, failed_tries, again = sum(rows.values()), max(0, len(tries) - 1), int(told.get("rows_sent_again", 0))
    duplicates = int(told["rows_of_failed_attempts"]) + again + total * sum(tries[:-1])
    if before is not None:
        failed_tries += before.failed_tries + 1
        duplicates += before.duplicates + before.total
    return Write(
        batch=told["batch"],
        fingerprint=told["ring"],
        rows=rows,
        dry_run=bool(told["dry_run"]),
        seconds=float(told["seconds"]),
        failed_attempts=int(told["failed_attempts"]),
        failed_tries=failed_tries,
        again=again,
        duplicates=duplicates,
    )


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        # A line without a newline at its end was not written whole.
        whole, _, _ = path.read_bytes().rpartition(b"\n")
        lines = [json.loads(line) for line in whole.splitlines()]
    except OSError as error:
        raise PipelineError(f"commit log {str(path)!r}: {error.strerror}") from None
    except ValueError:
        raise PipelineError(f"{path}: not a commit log: a line is not JSON") from None
    for number, told in enumerate(lines, 1):
        if not isinstance(told, dict) or told.get("v") != _VERSION:
            found = told.get("v") if isinstance(told, dict) else None
            raise PipelineError(f"{path}: line {number}: commit log of version {found!r}, known is {_VERSION}")
    return lines


def _cut_torn_line(file: BinaryIO) -> None:
    """Cut off what a crash left of a line, reading backwards: the log may be long."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - _BLOCK)
        file.seek(start)
        if (at := file.read(end - start).rfind(b"\n")) >= 0:
            end = start + at + 1
            break
        end = start
    file.truncate(end)
