"""The journal as files: written under a hidden name, renamed when whole; one at a time."""

import contextlib
import os
import time
import zlib
from pathlib import Path
from typing import BinaryIO

from proxy.values import ConfigError

_GZIP = 16 + zlib.MAX_WBITS
HOUR = 3600
"""Seconds."""


class FileStore:
    """Writes lines to files under `folder`. Its calls raise OSError; the file that was being written is lost then."""

    def __init__(self, folder: Path, proxy: str, *, most_seconds: float, most_bytes: int) -> None:
        """A file is whole after so many seconds or compressed bytes. Raises ConfigError for a folder that is none."""
        self._folder, self._proxy = folder, proxy
        self._most_seconds, self._most_bytes = most_seconds, most_bytes
        self._file: BinaryIO | None = None
        self._deflate = zlib.compressobj(1, wbits=_GZIP)
        self._unfinished = self._final = folder
        self._hour = -1
        self._records = self._bytes = 0
        self._begun_at = 0.0
        try:
            for part in ("records", "rings"):
                (folder / part).mkdir(parents=True, exist_ok=True)
            probe = folder / "records" / f".{proxy}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise ConfigError(f"journal_dir: {str(folder)!r} cannot be written to: {error.strerror or error}") from None

    def ring(self, fingerprint: str, content: bytes) -> None:
        """Writes a ring, where it is not there yet, whole."""
        path = self._folder / "rings" / f"{fingerprint}.json"
        if path.exists() and path.read_bytes() == content:
            return
        unfinished = path.with_name(f".{fingerprint}.{self._proxy}")
        try:
            with unfinished.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            unfinished.rename(path)
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise

    def write(self, lines: bytes, records: int, first: int, at: float) -> None:
        """Writes lines of one hour; `first` is the first one's number, `at` its time in seconds since 1970."""
        hour = int(at // HOUR)
        if self._file is not None and hour != self._hour:
            self.finish()
        if self._file is None:
            self._begin(hour, first)
        assert self._file is not None
        packed = self._deflate.compress(lines)
        self._file.write(packed)
        self._records += records
        self._bytes += len(packed)

    def hurry(self) -> None:
        """Nothing is ever waited for but the disk."""

    def look(self) -> bool:
        """Finishes the file where its time, its hour or its size is over; whether it did."""
        if self._file is None:
            return False
        old = time.monotonic() - self._begun_at >= self._most_seconds or int(time.time() // HOUR) > self._hour
        if old or self._bytes >= self._most_bytes:
            self.finish()
            return True
        return False

    def _begin(self, hour: int, first: int) -> None:
        day = time.strftime("%Y-%m-%d", time.gmtime(hour * HOUR))
        folder = self._folder / "records" / f"dt={day}" / f"hour={hour % 24:02}"
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{self._proxy}-{first:012}.jsonl.gz"
        self._final, self._unfinished = folder / name, folder / f".{name}"
        self._file = self._unfinished.open("wb")
        self._deflate = zlib.compressobj(1, wbits=_GZIP)
        self._hour, self._records, self._bytes, self._begun_at = hour, 0, 0, time.monotonic()

    def finish(self) -> None:
        """Closes the file and gives it its name."""
        if (file := self._file) is None:
            return
        with file:
            file.write(self._deflate.flush())
            file.flush()
            os.fsync(file.fileno())
        self._unfinished.rename(self._final)
        self._file = None

    def give_up(self) -> int:
        """Drops the file that cannot be finished; the number of records in it."""
        file, self._file = self._file, None
        if file is None:
            return 0
        with contextlib.suppress(OSError):
            file.close()
        with contextlib.suppress(OSError):
            self._unfinished.unlink(missing_ok=True)
        return self._records

    def close(self) -> bool:
        """At the end; whether there was a file to finish."""
        unfinished = self._file is not None
        self.finish()
        return unfinished
