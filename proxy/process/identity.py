"""The identity of a process: what it tells in the client properties of its broker connections and at its admin
listener.

The broker lists these properties with each connection. Its list of connections is therefore the inventory of a fleet of
sidecars, and tells which publishers of ringproxy are none.
"""

import functools
import uuid

from proxy import __version__
from ring.hashing import RING_FORMAT

SIDECAR_ID = "ringproxy_id"
"""The client property of every connection of a sidecar that has its `process_id`."""

JOB = "ringproxy_job_version"
"""The client property of every connection of a pipeline's job, which tells its release; a job is no sidecar."""

ID_HEADER = "Ringproxy-Id"
"""The header of every answer of a sidecar's admin listener that has its `process_id`."""


@functools.cache
def process_id() -> str:
    """Return the id that no other process has, 32 hexadecimal digits. It is chosen at the first call."""
    return uuid.uuid4().hex


def of_sidecar() -> dict[str, str]:
    """Return the client properties by which a connection is known as a sidecar's."""
    return {"ringproxy_version": __version__, "ringproxy_ring_format": str(RING_FORMAT), SIDECAR_ID: process_id()}


def of_job() -> dict[str, str]:
    """Return the client properties by which a connection is known as that of a pipeline's job."""
    return {JOB: __version__, "ringproxy_ring_format": str(RING_FORMAT)}
