"""Landing a batch: its lines are parsed once and written once, and then each hour's part is made visible.

1. Note the batch's id among the leftovers, so that a later run can remove it.
2. Parse, check and write the records below `landing/ID`, by hour, without a shuffle: a task for each task of the input.
3. Read the numbers of what was written, as runs. This is the only work that looks for copies, and it grows with the
   sidecars, not with the table.
4. For each hour: leave out the numbers that its manifest has, which costs a second write only where there are some;
   move the folder below `records`; make the next manifest, which names it.
5. Write the lines that are no records into the quarantine.

A run that dies before an hour's manifest leaves a folder that nobody reads. A run that dies later has landed some
hours: whoever calls `land` again with the same lines lands the others.
"""

import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, Observation, Row
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pipeline.data import gaps
from pipeline.data.folder import Folder
from pipeline.data.landed import Batch, Landed, Manifest, Runs
from pipeline.land import leftovers
from pipeline.land.lines import aside, records_of
from pipeline.land.runs import count, merged, without

_HOUR = "'dt='yyyy-MM-dd'/hour='HH"
"""The folder of an hour, as a pattern of Spark's for times."""


@dataclass(frozen=True)
class Counts:
    """The counts of what one or several batches came to."""

    records: int = 0
    """Records that are new in the table."""
    copies: int = 0
    """Records that it had, or that came twice."""
    unreadable: int = 0
    """Lines that are no records."""
    files: int = 0
    """Files that could not be read."""

    def __add__(self, other: "Counts") -> "Counts":
        """Return the sum of both."""
        return Counts(
            self.records + other.records,
            self.copies + other.copies,
            self.unreadable + other.unreadable,
            self.files + other.files,
        )


@dataclass(frozen=True)
class _Part:
    """The part of a batch that is of one hour."""

    hour: str
    place: str
    """The folder that has its records, below the table's."""
    runs: Runs
    """Their numbers, each once."""
    records: int
    """How many records are there: more than numbers where some came twice."""


class Landing:
    """The writer of a landed table, for as long as a job runs."""

    def __init__(self, table: Landed, folder: Folder, want_rings: Callable[[set[str]], None] | None = None) -> None:
        """Take the table, and its folder as one that can be written.

        `want_rings` is called with the rings that a batch names before its records can be seen.
        """
        self._table, self._folder, self._want_rings = table, folder, want_rings

    def land(self, lines: DataFrame) -> tuple[Counts, Mapping[str | None, int], frozenset[str]]:
        """Land lines, as `pipeline.land.lines` gives them.

        Return the counts, the number of lines set aside by file (None for a queue), and the hours that have got
        records. The errors of Spark, as for a file that cannot be read, come before anything can be seen.
        """
        batch = new_id()
        leftovers.note(self._folder, batch, [f"landing/{batch}", f"records/dt=*/hour=*/batch={batch}"])
        place, seen = f"landing/{batch}", Observation()
        observed = lines.observe(seen, F.count_if(F.col("reason").isNotNull()).alias("unreadable"))
        self._write(records_of(observed), place)
        parts = self._parts(place)
        if self._want_rings is not None and parts:
            named = self._table.records([f"{self._table.path}/{place}"]).select("ring").distinct().collect()
            self._want_rings({row.ring for row in named})
        counts = Counts()
        for part in parts:
            counts += self._land(part, batch)
        unreadable = self._set_aside(lines, batch) if seen.get["unreadable"] else {}
        self._folder.delete(place)
        leftovers.done(self._folder, batch)
        counts += Counts(unreadable=sum(unreadable.values()))
        return counts, unreadable, frozenset(part.hour for part in parts)

    def set_files_aside(self, reasons: Mapping[str, str]) -> None:
        """Write files that cannot be read into the quarantine, by name with the reasons."""
        rows = self._table.spark.createDataFrame([*reasons.items()], "file string, reason string")
        self._quarantine(rows.withColumn("line", F.lit(None).cast("string")), new_id())

    def _write(self, records: DataFrame, place: str) -> None:
        at = F.timestamp_micros("time")
        placed = records.withColumns({"dt": F.date_format(at, "yyyy-MM-dd"), "hour": F.date_format(at, "HH")})
        # The order of the writer's folders, and inside them the order in which numbers pack best.
        ordered = placed.sortWithinPartitions("dt", "hour", "proxy", "seq")
        ordered.write.partitionBy("dt", "hour").parquet(f"{self._table.path}/{place}")

    def _parts(self, place: str) -> list[_Part]:
        """Return the parts of a batch by hour, from the numbers of the records that were written."""
        written = self._table.records([f"{self._table.path}/{place}"])
        hour = F.date_format(F.timestamp_micros("time"), _HOUR).alias("file")
        by_hour: dict[str, list[Row]] = {}
        for row in gaps.sequences(written.select("proxy", "seq", "time", hour)).collect():
            by_hour.setdefault(row.file, []).append(row)
        return [
            _Part(hour, f"{place}/{hour}", _runs(rows), sum(row.records for row in rows))
            for hour, rows in sorted(by_hour.items())
        ]

    def _land(self, part: _Part, batch: str) -> Counts:
        """Make the part visible, without the records that its hour has already."""
        given, number, landed = part.records, 0, 0

        def add(manifest: Manifest) -> Manifest | None:
            nonlocal part, number, landed
            if batch in (ours := {one.id: one.records for one in manifest.batches}):
                # The manifest was made, and the file system said that it was not.
                landed = ours[batch]
                return None
            fresh = without(part.runs, manifest.sequences)
            landed = count(fresh)
            if not landed:
                return None
            if landed != part.records:
                number += 1
                part = self._only(part, fresh, f"landing/{batch}/{number}/{part.hour}")
            to = f"records/{part.hour}/batch={batch}"
            if part.place != to:
                self._folder.move(part.place, to)
                part = replace(part, place=to)
            batches = (*manifest.batches, Batch(batch, landed))
            return replace(manifest, batches=batches, sequences=merged(manifest.sequences, fresh))

        self._table.change(self._folder, part.hour, add)
        if not landed:
            self._folder.delete(part.place)
        return Counts(records=landed, copies=given - landed)

    def _only(self, part: _Part, fresh: Runs, place: str) -> _Part:
        """Write the part again to `place`, with one record of each of these numbers, and delete its old folder."""
        spark = self._table.spark
        numbers = [(proxy, first, last) for proxy, runs in fresh.items() for first, last in runs]
        wanted = F.broadcast(spark.createDataFrame(numbers, "proxy string, first long, last long"))
        rows = self._table.records([f"{self._table.path}/{part.place}"])
        is_new = (rows.proxy == wanted.proxy) & rows.seq.between(wanted["first"], wanted["last"])
        once = rows.join(wanted, is_new, "left_semi").dropDuplicates(["proxy", "seq"])
        once.sortWithinPartitions("proxy", "seq").write.parquet(f"{self._table.path}/{place}")
        self._folder.delete(part.place)
        return _Part(part.hour, place, fresh, count(fresh))

    def _set_aside(self, lines: DataFrame, batch: str) -> Mapping[str | None, int]:
        """Write the lines that are no records into the quarantine; return their number by file."""
        others = aside(lines)
        self._quarantine(others, batch)
        written = self._table.spark.read.schema(others.schema).json(f"{self._table.path}/quarantine/batch={batch}")
        return {row.file: row["count"] for row in written.groupBy("file").count().collect()}

    def _quarantine(self, rows: DataFrame, batch: str) -> None:
        self._folder.make_private("quarantine")
        rows.write.option("compression", "gzip").json(f"{self._table.path}/quarantine/batch={batch}")


def _runs(rows: Iterable[Row]) -> Runs:
    found: dict[str, list[tuple[int, int]]] = {}
    for row in rows:
        found.setdefault(row.proxy, []).append((row["first"], row["last"]))
    return merged(found)


def new_id() -> str:
    """Return the name of a batch, which begins with the time."""
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(4)}"
