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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructType

from pipeline import PipelineError
from pipeline.data.files import GoneError, content, found
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
"""The hour whose manifest has what is of no known hour: the journal's files that are in no folder of an hour, and the
lines of stream queues that were set aside."""

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
    modified: int
    """When it was modified, in milliseconds since 1970."""
    unreadable: int = 0
    """How many of its lines were set aside."""
    reason: str = ""
    """Why the whole file was set aside; empty if it was not."""
    v: int = OF_RECORDS
    """The newest version of records that the release knew which read it."""

    def is_same(self, size: int, modified: int) -> bool:
        """Return whether a file needs no reading: it has not grown.

        One with something set aside must not be modified either, nor may this release be able to read more of it.
        """
        if self.size != size or (self.unreadable and self.v < OF_RECORDS):
            return False
        return self.modified == modified or not (self.unreadable or self.reason)


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
    """How many lines of stream queues were set aside."""

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

    @classmethod
    def of(cls, manifests: Iterable[Manifest]) -> "Aside":
        """Return the counts of what these manifests have."""
        every = tuple(manifests)
        sources = [source for manifest in every for source in manifest.sources.values()]
        lines = sum(source.unreadable for source in sources) + sum(manifest.unreadable for manifest in every)
        return cls(lines, sum(bool(source.reason) for source in sources))

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
        dates = [day.rpartition("=")[2] for day in found(self.spark, f"{self.path}/hours/dt=*")]
        hours = ((date, f"{hour:02}") for date in dates for hour in range(24))
        return self.manifests_of(
            f"dt={date}/hour={hour}" for date, hour in hours if within.holds_hour(f"{date}T{hour}")
        )

    def manifests_of(self, hours: Iterable[str]) -> dict[str, Manifest]:
        """Return the newest manifests of those of some hours that have one; both are given by the hours' folders."""
        wanted = set(hours)
        newest = [one for day in sorted({_day(hour) for hour in wanted}) for one in self._newest(day).items()]
        return {hour: self._read(hour, file) for hour, file in newest if hour in wanted}

    def manifest(self, hour: str) -> Manifest:
        """Return the newest manifest of an hour, given by its folder; an empty one where it has none."""
        return self.manifests_of([hour]).get(hour, Manifest())

    def changes(self, day: str) -> int:
        """Return how many manifests the hours of a day, such as 2026-11-21, have had: more after each change."""
        return sum(_number(file) for file in self._newest(f"dt={day}").values())

    def _newest(self, day: str) -> dict[str, str]:
        """Return the file of the newest manifest by the hour's folder, of a day that is given by its folder."""
        newest: dict[str, str] = {}
        for file in found(self.spark, f"{self.path}/hours/{day}/[0-9]*.json"):
            if name := _MANIFEST.search(file):
                newest[f"{day}/hour={name[2]}"] = max(file, newest.get(f"{day}/hour={name[2]}", file), key=_number)
        return newest

    def _read(self, hour: str, file: str) -> Manifest:
        """Return an hour's manifest, from a newer file if this one has been removed since it was found."""
        try:
            return Manifest.of_json(content(self.spark, file), file)
        except GoneError:
            newer = self._newest(_day(hour)).get(hour)
            if newer == file:
                raise
            return self._read(hour, newer) if newer else Manifest()

    def change(self, folder: Folder, hour: str, edit: Callable[[Manifest], Manifest | None]) -> None:
        """Make the next manifest of an hour from the newest one, again if another writer has made it meanwhile.

        `edit` returns the new content, or None where nothing is to be changed. `folder` is the table's. Raises
        PipelineError where so many others wrote meanwhile that nobody can tell whether the new one counts.
        """
        while (new := edit(old := self.manifest(hour))) is not None:
            number = old.number + 1
            if folder.create(_name(hour, number), replace(new, number=number).to_json()):
                # The number may have been taken before, and its file deleted, by whoever made the one KEPT behind it.
                if _number(self._newest(_day(hour)).get(hour, "")) >= number + KEPT:
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
        """Return the counts of what was set aside in a period's hours, and of what may be of any hour."""
        return Aside.of({**self.manifests(within), NO_HOUR: self.manifest(NO_HOUR)}.values())


def _day(hour: str) -> str:
    return hour.partition("/")[0]


def _number(file: str) -> int:
    """Return the number in the name of a manifest's file."""
    name = _MANIFEST.search(file)
    return int(name[3]) if name else 0


def _name(hour: str, number: int) -> str:
    day, _, of_day = hour.partition("/hour=")
    return f"hours/{day}/{of_day}-{number:06}.json"
