"""A unix socket to listen on; it replaces a socket file that a dead process has left."""

import contextlib
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from proxy.settings.parse import ConfigError

MODE = 0o660
"""Permissions of the socket's file: its owner and group may open it."""


@contextlib.contextmanager
def unix_socket(setting: str, path: Path) -> Iterator[socket.socket]:
    """Bind a socket at a path, and remove its file at the end. Raises ConfigError if it cannot be bound."""
    _remove_stale(setting, path)
    with socket.socket(socket.AF_UNIX) as bound:
        try:
            bound.bind(str(path))
            # Nobody can connect before it listens, so nobody comes in by wider rights.
            path.chmod(MODE)
            number = path.stat().st_ino
        except OSError as error:
            raise ConfigError(f"{setting}: {str(path)!r} cannot be bound: {error.strerror or error}") from None
        try:
            yield bound
        finally:
            with contextlib.suppress(OSError):
                if path.stat().st_ino == number:  # and not that of a sidecar which has taken over
                    path.unlink()


def _remove_stale(setting: str, path: Path) -> None:
    """Remove a socket's file on which nobody listens any more. Raises ConfigError if the path is taken."""
    try:
        is_socket = stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return  # not there; what else may be wrong shows when it is bound
    if not is_socket:
        raise ConfigError(f"{setting}: {str(path)!r} exists already, and is not a socket")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(f"{setting}: {str(path)!r} cannot be taken: {error.strerror or error}") from None
        else:
            raise ConfigError(f"{setting}: another process listens on {str(path)!r}")
