"""How much memory the settings let in at once, and how much there is: docs/reference/memory.md explains the sum."""

import logging
from pathlib import Path

from proxy.settings.config import Settings

log = logging.getLogger(__name__)

MIB = 1 << 20

IDLE = 66 * MIB
"""Resident memory of a sidecar with one ring that serves nobody."""

BUILDING = 8 * MIB
"""Memory that the building of a ring of 100 queues takes."""

SESSION = MIB
"""Most bytes on their way through one AMQP session: on each side 256 KiB waiting, and 256 KiB just read."""

CONNECTION = 128 << 10
"""Most bytes of an HTTP connection that count nowhere else: of a head that is not whole, of a body that is not read."""

TLS = 64 << 10
"""Bytes that TLS takes for each connection."""

ADMIN_CONNECTIONS = 32
"""Connections to the admin listener that may be open at once."""

ADMIN_UNREAD = 8 * MIB
"""Bytes of the admin listener's answers that may wait to be read before large ones are refused."""

_CGROUPS, _OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def reckoned(settings: Settings) -> list[tuple[str, int]]:
    """Return what takes memory and the most that it takes, in bytes; the journal's records and further rings aside."""
    tls = TLS if settings.tls_cert_file is not None else 0
    sessions, connections = settings.max_sessions, settings.max_http_connections
    return [
        ("idle", IDLE),
        ("building a ring of 100 queues", BUILDING),
        ("HTTP requests until they are answered: max_in_flight_bytes", settings.max_in_flight_bytes),
        (f"{sessions} AMQP sessions whose peers do not read: max_sessions", sessions * (SESSION + tls)),
        (
            f"{connections} HTTP connections whose heads or bodies are not read yet: max_http_connections",
            connections * (CONNECTION + tls),
        ),
        ("the admin listener's connections and answers", ADMIN_CONNECTIONS * CONNECTION + ADMIN_UNREAD),
    ]


def table(settings: Settings) -> str:
    """Return the sum in lines that TOML takes for comments."""
    rows = reckoned(settings)
    rows.append(("together", sum(size for _, size in rows)))
    lines = [f"# {size / MIB:8,.0f} MiB  {what}" for what, size in rows]
    return "\n".join(["# the most memory that these settings let in at once (docs/reference/memory.md):", *lines])


def limit(cgroups: Path = _CGROUPS, own: Path = _OWN) -> int | None:
    """Return the bytes that this process's control group (version 2) may take; None where no limit is found.

    In a container it is that of the container.
    """
    try:
        # "0::/path"; in a container with a namespace of its own, the path is "/".
        path = own.read_text().rpartition("::")[2].strip().lstrip("/")
    except OSError:
        path = ""
    for folder in (cgroups / path, cgroups):
        try:
            return int((folder / "memory.max").read_text())
        except (OSError, ValueError):  # it is not there, or says "max"
            continue
    return None


def warn_beyond(settings: Settings, most: int | None) -> None:
    """Log a warning where the settings let in more than `most` bytes; None stands for no limit."""
    rows = reckoned(settings)
    together = sum(size for _, size in rows)
    if most is None or together <= most:
        return
    what, size = max(rows, key=lambda row: row[1])
    log.warning(
        "memory: these settings let in %.0f MiB at once, and beyond the container's limit, %.0f MiB, the sidecar is "
        "killed. Most of it, %.0f MiB, is for %s; `ring-proxy config` adds it up",
        together / MIB,
        most / MIB,
        size / MIB,
        what,
    )
