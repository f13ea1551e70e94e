"""Values made of files, and made again when these change; a broken version leaves the last good one in force."""

import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, TypeVar

from proxy.settings.parse import ConfigError

log = logging.getLogger(__name__)

T = TypeVar("T")

LOOK_INTERVAL = 2.0
"""Seconds between looks at the files that settings name."""


class Renewed:
    """A value that a setting names and that is made again while the sidecar runs; if that fails, the last one stays."""

    def __init__(self, setting: str) -> None:
        """Take the setting that names the value, before it is made for the first time."""
        self.setting = setting
        self.failures = 0
        """How many times the value was not to be made again."""
        self.successes = 0
        """How many times the value was made again."""
        self.fault = ""
        """Why the value could not be made the last time; empty if it could."""
        self.read_at = 0.0
        """When the value was made, in seconds since 1970; 0 before the first one."""

    def succeeded(self) -> None:
        """Note that the value was made again."""
        self.successes += 1
        self.fault, self.read_at = "", time.time()

    def failed(self, why: str) -> None:
        """Note why the value was not to be made again."""
        self.failures += 1
        self.fault = why


class Watched(Renewed, Generic[T]):
    """The value made of some files together; a call looks at the files and returns their present value."""

    def __init__(
        self, setting: str, files: Iterable[Path | None], read: Callable[[], T], *, settles: bool = False
    ) -> None:
        """Read the value now, and again once one of `files` changes; `read` raises ConfigError for a mistake in them.

        `setting` names the files, or the first of them. Files that `settles` are read once two looks have found them
        alike: the first part of such a file, which a slow writer leaves for a while, means something else than all of
        it, and has no mistake that would show.
        """
        super().__init__(setting)
        self._settles = settles
        self.files = tuple(file for file in files if file is not None)
        self._read = read
        # Before the reading: a change meanwhile shows at the next look.
        self._seen = self._last = self._look()
        self.value = read()
        """The value of the last version of the files that had no mistake."""
        self.read_at = time.time()

    def refresh(self, *, asked: bool = False) -> T:
        """Look at the files and return the value of their last good version. Each broken version is logged once.

        If somebody has `asked` for it, the files are read whether they have changed or not.
        """
        seen = self._look()
        changed = seen != self._seen and (seen == self._last or not self._settles)
        self._last = seen
        if changed or asked:
            self._seen = seen
            try:
                self.value = self._read()
            except ConfigError as error:
                self.failed(str(error))
                log.error("%s; what was read before stays in force", error)
            else:
                self.succeeded()
                log.info("read again: %s", ", ".join(map(str, self.files)))
        return self.value

    __call__ = refresh

    def _look(self) -> list[tuple[int, int, int] | None]:
        # Through symbolic links, which is how Kubernetes puts a new version in place.
        return [_version(file) for file in self.files]


def _version(file: Path) -> tuple[int, int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
