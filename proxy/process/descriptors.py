"""File descriptors: this process takes as many as it may, and tells where its settings may need more."""

import logging
import resource

from proxy.settings.config import Settings

log = logging.getLogger(__name__)

_SESSION = 2
"""Descriptors of one AMQP session: the client's connection, and its own to the broker."""

_OTHERS = 400
"""Descriptors of all else, generously: listeners, the admin listener's clients, AMQP clients that are being refused
(100 at a time), users of the management API's publish (64 logged in, 64 about to), requests to that API (8), files."""


def raise_limit() -> int:
    """Raise the soft limit of open files to the hard one, which any process may; return the limit now in force.

    Many systems start programs with a soft limit of 1,024, for the sake of such as use select().
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError) as error:  # say a hard limit beyond the kernel's own, fs.nr_open
            log.warning("file descriptors: the limit of %d cannot be raised to %d: %s", soft, hard, error)
        else:
            log.info("file descriptors: the limit is raised from %d to %d", soft, hard)
    return limit()


def limit() -> int:
    """Return the soft limit of open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft


def warn_beyond(settings: Settings, most: int) -> None:
    """Log a warning where the settings may need more than `most` descriptors."""
    sessions = settings.max_sessions * _SESSION
    others = settings.broker_connections + (settings.kept_connections or 0) + _OTHERS
    needed = sessions + settings.max_http_connections + others
    if most == resource.RLIM_INFINITY or needed <= most:
        return
    log.warning(
        "file descriptors: these settings may need %d, and the hard limit is %d: %d for max_sessions = %d, "
        "max_http_connections = %d, %d for all else. At the limit nobody can connect, and neither broker nor "
        "management API can be reached. Raise the limit (ulimit -Hn, systemd's LimitNOFILE=, a container's --ulimit "
        "nofile=), or lower those",
        needed,
        most,
        sessions,
        settings.max_sessions,
        settings.max_http_connections,
        others,
    )
