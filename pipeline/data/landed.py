"""A landed table: records in Parquet by day and hour, and a manifest for each hour, which says what is in it.

    TABLE/table.json                                              the version of this layout
    TABLE/records/dt=2026-11-21/hour=17/batch=ID/part-*.parquet   records; a batch never changes
    TABLE/hours/dt=2026-11-21/17-000003.json                      the third manifest of that hour
    TABLE/rings/FINGERPRINT.json, TABLE/quarantine/batch=ID/      rings, and what could not be read

A reader takes the newest manifest of each hour, and reads the batches that it names and no other folder. A batch is
there as a whole or not at all for it, and batches are merged in one step.

A writer makes the next manifest from the newest one, under the next number, and the file system lets only one writer
have that number. The others look again at what is new: `change` is that loop. Nobody holds a lock, so nobody dies with
one.

A manifest has the numbers of its hour's records, by sidecar, as runs (`sequences`): some bytes for a sidecar, whatever
the number of records. They are the index of what is landed, as the event of a record is its sidecar and its number, and
as all copies of a record have one time and so one hour. A run that died is repeated as a whole: what it has landed is
left out by that index, and the rest is landed.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructType

from pipeline import PipelineError
from pipeline.data.files import content, found
from pipeline.data.folder import Folder
from pipeline.data.period import ALWAYS, Period
from pipeline.data.schema import RECORD
from pipeline.data.schema import VERSION as OF_RECORDS

VERSION = 1
"""The version of the layout that this release reads and writes. A new column does not change it: it is null in older
files, and an older release does not read it."""

MARK = "table.json"

COLUMNS = StructType([*RECORD.fields]).add("file", StringType())
"""The columns of the files: a record's, and the journal's file that it was in (null for a stream queue)."""

KEPT = 20
"""How many of an hour's manifests stay, for readers that have listed them and not yet read one."""

NO_HOUR = "dt=1970-01-01/hour=00"
"""The hour whose manifest lists the journal's files that are in no folder of an hour."""

_MANIFEST = re.compile(r"/(dt=\d{4}-\d\d-\d\d)/(\d\d)-(\d{6,})\.json$")

Runs = Mapping[str, Sequence[tuple[int, int]]]
"""By sidecar, the first and the last number of each run of consecutive numbers, in order."""


@dataclass(frozen=True)
class Batch:
    """A folder of records of one hour, which was written at once."""

    id: str
    records: int
    level: int = 0
    """How often its records have been merged."""


@dataclass(frozen=True)
class Source:
    """A file of a journal that has been landed, or set aside."""

    size: int
    unreadable: int = 0
    """How many of its lines were set aside."""
    reason: str = ""
    """Why the whole file was set aside; empty if it was not."""
    v: int = OF_RECORDS
    """The newest version of records that the release knew which read it."""

    def is_same(self, size: int) -> bool:
        """Return whether a file of this size needs no reading: it has not grown, nor could this release read more."""
        return self.size == size and not (self.unreadable and self.v < OF_RECORDS)


@dataclass(frozen=True)
class Manifest:
    """The content of one hour, at one moment."""

    number: int = 0
    """How many manifests the hour has had, 0 where it has none."""
    batches: tuple[Batch, ...] = ()
    sequences: Runs = field(default_factory=dict)
    """The numbers of the records in `batches`."""
    sources: Mapping[str, Source] = field(default_factory=dict)
    """The journal's files in this hour's folder that need no reading, by path below `records`."""
    unreadable: int = 0
    """How many lines of a stream queue were set aside in this hour."""

    def to_json(self) -> str:
        """Return the manifest as its file has it."""
        return json.dumps(asdict(self) | {"v": VERSION}, separators=(",", ":"))

    @classmethod
    def of_json(cls, text: bytes, where: str) -> "Manifest":
        """Return the manifest of a file. Raises PipelineError, which begins with `where`, for any other text."""
        try:
            told = json.loads(text)
            batches = tuple(Batch(**one) for one in told["batches"])
            runs = {proxy: [(first, last) for first, last in runs] for proxy, runs in told["sequences"].items()}
            sources = {name: Source(**one) for name, one in told["sources"].items()}
            return cls(told["number"], batches, runs, sources, told["unreadable"])
        except (ValueError, TypeError, KeyError) as error:
            raise PipelineError(f"{where}: no manifest of a landed table: {error!r}") from None


@dataclass(frozen=True)
class Aside:
    """The counts of what landing could not read, and has set aside."""

    lines: int = 0
    files: int = 0

    def __bool__(self) -> bool:
        """Return whether there is anything."""
        return bool(self.lines or self.files)

    def __str__(self) -> str:
        """Return the counts in words."""
        lines, files = ("1 line" if self.lines == 1 else f"{self.lines:,} lines"), f"{self.files:,} file"
        return f"{lines} and {files if self.files == 1 else files + 's'} set aside"


NOTHING_ASIDE = Aside()


class Landed:
    """A landed table, for as long as a job runs."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        """Take the table's folder, which need not be there."""
        self.spark, self.path = spark, path.rstrip("/")

    def exists(self) -> bool:
        """Return whether the folder is a landed table. Raises PipelineError for one of a newer release."""
        file = f"{self.path}/{MARK}"
        if not found(self.spark, file):
            return False
        try:
            version = json.loads(content(self.spark, file))["v"]
        except (ValueError, TypeError, KeyError):
            version = "none"
        if version != VERSION:
            raise PipelineError(f"{file}: version {version} of a landed table, known is {VERSION}: use a newer release")
        return True

    def manifests(self, within: Period = ALWAYS) -> dict[str, Manifest]:
        """Return the newest manifest of each hour of a period that has one, by the hour's folder."""
        newest: dict[str, tuple[int, str]] = {}
        for day in found(self.spark, f"{self.path}/hours/dt=*"):
            date = day.rpartition("=")[2]
            if not any(within.holds_hour(f"{date}T{hour:02}") for hour in range(24)):
                continue
            for file in found(self.spark, f"{day}/[0-9]*.json"):
                if (name := _MANIFEST.search(file)) and within.holds_hour(f"{date}T{name[2]}"):
                    hour = f"{name[1]}/hour={name[2]}"
                    newest[hour] = max(newest.get(hour, (0, "")), (int(name[3]), file))
        return {hour: Manifest.of_json(content(self.spark, file), file) for hour, (_, file) in newest.items()}

    def manifest(self, hour: str) -> Manifest:
        """Return the newest manifest of an hour, given by its folder; an empty one where it has none."""
        files = self._files(hour)
        return Manifest.of_json(content(self.spark, files[-1]), files[-1]) if files else Manifest()

    def _files(self, hour: str) -> list[str]:
        day, _, of_day = hour.partition("/hour=")
        return found(self.spark, f"{self.path}/hours/{day}/{of_day}-*.json")

    def change(self, folder: Folder, hour: str, edit: Callable[[Manifest], Manifest | None]) -> None:
        """Make the next manifest of an hour from the newest one, again if another writer has made it meanwhile.

        `edit` returns the new content, or None where nothing is to be changed. `folder` is the table's. Raises
        PipelineError where so many others wrote meanwhile that nobody can tell whether the new one counts.
        """
        while (new := edit(old := self.manifest(hour))) is not None:
            number = old.number + 1
            if folder.create(_name(hour, number), replace(new, number=number).to_json()):
                # The number may have been taken before, and its file deleted, by whoever made the one KEPT behind it.
                newest = _MANIFEST.search(self._files(hour)[-1])
                if newest and int(newest[3]) >= number + KEPT:
                    raise PipelineError(f"{self.path}: other runs changed {hour} {KEPT} times meanwhile: start again")
                if number > KEPT:
                    folder.delete(_name(hour, number - KEPT))
                return

    def folders(self, within: Period = ALWAYS) -> list[str]:
        """Return the folders with the records of a period's hours, as the newest manifests name them."""
        manifests = self.manifests(within).items()
        return [self.folder(hour, batch.id) for hour, manifest in manifests for batch in manifest.batches]

    def folder(self, hour: str, batch: str) -> str:
        """Return the path of a batch's records of an hour."""
        return f"{self.path}/records/{hour}/batch={batch}"

    def records(self, folders: Sequence[str]) -> DataFrame:
        """Return the records in these folders, with COLUMNS."""
        if not folders:
            return self.spark.createDataFrame([], COLUMNS)
        return self.spark.read.schema(COLUMNS).option("recursiveFileLookup", "true").parquet(*folders)

    def aside(self, within: Period = ALWAYS) -> Aside:
        """Return the counts of what was set aside in a period's hours."""
        manifests = self.manifests(within).values()
        sources = [source for manifest in manifests for source in manifest.sources.values()]
        lines = sum(source.unreadable for source in sources) + sum(manifest.unreadable for manifest in manifests)
        return Aside(lines, sum(bool(source.reason) for source in sources))


def _name(hour: str, number: int) -> str:
    day, _, of_day = hour.partition("/hour=")
    return f"hours/{day}/{of_day}-{number:06}.json"
