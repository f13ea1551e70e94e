"""The marker that stands behind all messages of a shard whose generation ends, and who puts it there.

A change of generations (`proxy/shards/`) puts markers and takes them away; members of groups keep them from clients
and let the shard go (`proxy/groups/consuming/`).
"""

from typing import Final

MARKER: Final = "x-ring-marker"
"""The header of a marker, with the number of the generation that ends. Its body is empty."""

PROBE: Final = "x-ring-probe"
"""The header of a message to a lane that must come back, since the lane is closed. Its body is empty."""

STAMP: Final = "x-ring-id"
"""The header of each message that a sidecar has published by a ring: such a one is neither marker nor probe."""

DRAINER: Final = "ringproxy.generation"
"""The beginning of the consumer tag of whoever drains a shard."""

LINK_PRIORITY: Final = 1
"""The x-priority of each link of a member, and of whoever drains a shard. It marks them for reports.

It must be the same for all: RabbitMQ 4.3 has an active consumer give way to one of a higher priority, and keeps it if
its channel ends meanwhile, so that the shard stands still.
"""


def is_drainer(tag: object) -> bool:
    """Return whether a consumer with this tag drains a shard, as the management API lists it."""
    return isinstance(tag, str) and tag.startswith(DRAINER)


def is_link(tag: object, arguments: object) -> bool:
    """Return whether a consumer with this tag and these arguments is a member's link, likewise."""
    priority = arguments.get("x-priority") if isinstance(arguments, dict) else None
    return type(priority) is int and priority == LINK_PRIORITY and not is_drainer(tag)
