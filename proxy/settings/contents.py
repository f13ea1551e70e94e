"""Read the files that settings and commands name: no more of them than they can have, and secrets with a look at who
else may read them.
"""

import errno
import logging
import stat
from pathlib import Path
from typing import Final

from proxy.settings.parse import ConfigError

log = logging.getLogger(__name__)

MOST_BYTES: Final = 16 * 1024 * 1024
"""The most bytes of a file: 100,000 tokens have as many. A device such as /dev/zero never ends."""


_told: set[tuple[str, Path]] = set()
"""The settings and files of which the log has told that every user may read them. A start reads some several times."""


def bounded(file: Path) -> bytes:
    """Return the bytes of a file. Raises OSError, also if it has more than MOST_BYTES."""
    with open(file, "rb") as opened:
        read = opened.read(MOST_BYTES + 1)
    if len(read) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"longer than {MOST_BYTES} bytes")
    return read


def content(setting: str, file: Path) -> bytes:
    """Return the bytes of a file that a setting names. Raises ConfigError."""
    try:
        return bounded(file)
    except OSError as error:
        raise ConfigError(f"{setting}: {str(file)!r} cannot be read: {error.strerror}") from None


def secret_content(setting: str, file: Path) -> bytes:
    """Return the bytes of a file with a secret; if every user of the machine may read it, log a warning once.

    Raises ConfigError.
    """
    read = content(setting, file)
    mode = _mode_open_to_all(file)
    if mode is None:
        _told.discard((setting, file))
    elif (setting, file) not in _told:
        _told.add((setting, file))
        log.warning(
            "%s: every user of this machine can read %r (mode %04o); run chmod o= on it, "
            "and renew the secret if others may have read it",
            setting,
            str(file),
            mode,
        )
    return read


def _mode_open_to_all(file: Path) -> int | None:
    """Return the mode of a file that every user can read; None if they cannot.

    A file of a Kubernetes volume has mode 0644 by default, and only the containers that mount the volume see it. It is
    known by the link `..data`, by which the kubelet puts new versions in place.
    """
    try:
        status = file.stat()
        if (
            not stat.S_ISREG(status.st_mode)
            or not status.st_mode & stat.S_IROTH
            or (file.parent / "..data").is_symlink()
        ):
            return None
        if all(folder.stat().st_mode & stat.S_IXOTH for folder in file.resolve().parents):
            return stat.S_IMODE(status.st_mode)
    except OSError:
        pass  # It was replaced meanwhile, so it is read again.
    return None
