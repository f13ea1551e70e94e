"""The journal as files: one at a time, written under a hidden name and renamed once it is whole.

Keys may be personal data, so the files and folders made here are for their owner alone, whatever the umask is.
"""

import contextlib
import errno
import logging
import os
import re
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from proxy.journal.store import HOUR, FullError
from proxy.settings.parse import ConfigError

log = logging.getLogger(__name__)

_GZIP = 16 + zlib.MAX_WBITS
"""The `wbits` for which zlib writes gzip's header and trailer."""
_OTHERS = 0o077
"""The permission bits of everybody but the owner."""

LOOK_AGAIN = 10.0
"""Seconds for which a count of the folder's bytes holds; whoever reads the journal removes files."""

# Hidden ones too: those that a sidecar was writing when it was killed stay, and nobody else's are counted.
_OURS = re.compile(r"\.?[0-9a-f]{16}(-[0-9]{12,}\.jsonl\.gz|\.json|\.[0-9a-f]{16})")


class FileStore:
    """A store that writes lines to gzipped files in a folder, for the life of the process; see `store.Store`.

    Every call may raise OSError; the file that was being written is lost then. A call raises FullError where the
    journal's files in the folder, those of earlier starts and of other sidecars too, have reached `most_in_all` bytes:
    the file that was being written is finished then, and nothing is ever removed.
    """

    def __init__(
        self, folder: Path, proxy: str, *, most_seconds: float, most_bytes: int, most_in_all: int = 1 << 62
    ) -> None:
        """Make the folders and try to write there. Raises ConfigError if that fails.

        A file is whole after `most_seconds` (the setting journal_file_seconds), after `most_bytes` compressed
        (journal_file_bytes), or at the end of its hour; `most_in_all` is journal_max_bytes. `proxy` is the id of this
        process, and begins the name of each file.
        """
        self._folder, self._proxy = folder, proxy
        self._most_seconds, self._most_bytes, self._most_in_all = most_seconds, most_bytes, most_in_all
        self._others, self._looked_at = 0, float("-inf")
        """Bytes of all files but the one that is being written, and when they were counted, in monotonic seconds."""
        self._file: BinaryIO | None = None
        self._deflate = zlib.compressobj(1, wbits=_GZIP)
        self._unfinished = self._final = folder
        self._hour = -1
        """The hour, counted from 1970, of the lines of the present file; below 0 before the first."""
        self._from, self._last = 1, 0
        """The sequence number after the last of all whole files, and that of the last record written."""
        self._records = self._bytes = 0
        self._begun_at = 0.0
        try:
            for part in ("records", "rings"):
                _make(folder / part)
                _warn_if_open(folder / part)
            probe = folder / "records" / f".{proxy}"
            _create(probe).close()
            probe.unlink()
        except OSError as error:
            raise _unwritable(folder, error) from None

    def ring(self, fingerprint: str, content: bytes) -> None:
        """Write a ring under its fingerprint where no such file is there yet; readers see it whole or not at all."""
        path = self._folder / "rings" / f"{fingerprint}.json"
        if path.exists() and path.read_bytes() == content:
            return
        self._want_room()
        unfinished = path.with_name(f".{fingerprint}.{self._proxy}")
        try:
            with _create(unfinished) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            unfinished.rename(path)
            self._others += len(content)
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise

    def write(self, lines: bytes, records: int, first: int, at: float) -> None:
        """Write lines of one hour. `first` is the sequence number of the first, `at` its time in seconds since 1970."""
        hour = int(at // HOUR)
        if self._file is not None and hour != self._hour:
            self.finish()
        self._want_room()
        if self._file is None:
            self._begin(hour)
        assert self._file is not None
        packed = self._deflate.compress(lines)
        self._file.write(packed)
        self._records += records
        self._last = first + records - 1
        self._bytes += len(packed)

    def _want_room(self) -> None:
        """Check that the folder has room for more bytes. Raises FullError if it has none, and OSError."""
        if self._file is None or self._others + self._bytes >= self._most_in_all:
            self._count()
        if self._others + self._bytes >= self._most_in_all:
            self.finish()
            # The same words each time, so that the log says it once.
            raise FullError(
                f"the files in {str(self._folder)!r} have reached {self._most_in_all} bytes (journal_max_bytes)"
            )

    def _count(self) -> None:
        """Count the bytes of all files but the one being written, unless a count is younger than `LOOK_AGAIN`."""
        if time.monotonic() - self._looked_at < LOOK_AGAIN:
            return
        self._others = sum(_sizes(self._folder, self._unfinished.name if self._file is not None else ""))
        self._looked_at = time.monotonic()

    def hurry(self) -> None:
        """Do nothing: this store waits for nothing but the disk."""

    def finish_if_due(self) -> bool:
        """Finish the file if its time, its hour or its size is over; return whether it did."""
        if self._file is None:
            return False
        old = time.monotonic() - self._begun_at >= self._most_seconds or int(time.time() // HOUR) > self._hour
        if old or self._bytes >= self._most_bytes:
            self.finish()
            return True
        return False

    def _begin(self, hour: int) -> None:
        """Make the file for the lines of an hour, counted from 1970, under its hidden name."""
        day = time.strftime("%Y-%m-%d", time.gmtime(hour * HOUR))
        folder = self._folder / "records" / f"dt={day}" / f"hour={hour % 24:02}"
        _make(folder)
        # The name does not begin at the first record's number but where the last file ended: so readers can tell
        # records that were dropped in between from those of an earlier file that somebody has removed.
        name = f"{self._proxy}-{self._from:012}.jsonl.gz"
        self._final, self._unfinished = folder / name, folder / f".{name}"
        self._file = _create(self._unfinished)
        self._deflate = zlib.compressobj(1, wbits=_GZIP)
        self._hour, self._records, self._bytes, self._begun_at = hour, 0, 0, time.monotonic()

    def finish(self) -> None:
        """Close the file, if there is one, and give it its name. It is on the disk (fsync) before the name is."""
        if (file := self._file) is None:
            return
        with file:
            file.write(self._deflate.flush())
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        self._unfinished.rename(self._final)
        self._file, self._bytes, self._from = None, 0, self._last + 1
        self._others += size

    def give_up(self) -> int:
        """Drop the file, which cannot be finished, and return the number of records in it."""
        file, self._file, self._bytes = self._file, None, 0
        if file is None:
            return 0
        with contextlib.suppress(OSError):
            file.close()
        with contextlib.suppress(OSError):
            self._unfinished.unlink(missing_ok=True)
        return self._records

    def close(self) -> bool:
        """Finish the last file; return whether there was one."""
        unfinished = self._file is not None
        self.finish()
        return unfinished


def check_folder(folder: Path) -> None:
    """Check that this process may write a journal in a folder; create nothing. Raises ConfigError if it may not.

    The command `check` calls this. A sidecar that starts makes a `FileStore`, which tries it out.
    """
    try:
        for part in (folder / "records", folder / "rings"):
            nearest = next(place for place in (part, *part.parents) if place.exists())
            if not nearest.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            if not os.access(nearest, os.W_OK | os.X_OK, effective_ids=True):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise _unwritable(folder, error) from None


def _unwritable(folder: Path, error: OSError) -> ConfigError:
    return ConfigError(f"journal_dir: {str(folder)!r} cannot be written to: {error.strerror or error}")


def _make(folder: Path) -> None:
    """Make a folder, and those above it that are missing, for their owner alone; existing ones stay as they are."""
    if not folder.is_dir():
        if not folder.parent.exists():
            _make(folder.parent)
        folder.mkdir(0o700, exist_ok=True)


def _create(path: Path) -> BinaryIO:
    """Return an empty file to be written, which only its owner may read."""
    return open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600))


def _warn_if_open(folder: Path) -> None:
    mode = folder.stat().st_mode & 0o777
    if mode & _OTHERS:
        log.warning(
            "journal_dir: others than its owner may enter %r (mode %04o); run chmod go= on it", str(folder), mode
        )


def _sizes(folder: Path, but: str) -> Iterator[int]:
    """Yield the bytes of each of the journal's files in a folder, without the one whose name is `but`."""
    for part in ("records", "rings"):
        for place, _, names in os.walk(folder / part):
            for name in names:
                if name != but and _OURS.fullmatch(name):
                    # A reader of the journal may have removed the file this moment.
                    with contextlib.suppress(FileNotFoundError):
                        yield os.stat(os.path.join(place, name)).st_size
