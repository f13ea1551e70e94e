"""Tell what the management API shows its user."""

from typing import Final

from proxy.topology.management import Management

SEES_ALL: Final = frozenset({"monitoring", "administrator"})
"""The tags of users to whom the management API lists every user's connections."""


async def sees_all_connections(api: Management) -> bool:
    """Return whether the API lists the connections of all users. Raises ManagementError or TopologyError."""
    answer = await api.page(["whoami"], ["name", "tags"])
    tags = answer.get("tags") if isinstance(answer, dict) else None
    # RabbitMQ has a list of tags, and before 3.9 had a text with commas.
    known = set(tags.split(",")) if isinstance(tags, str) else set(tags) if isinstance(tags, list) else set()
    return bool(known & SEES_ALL)
