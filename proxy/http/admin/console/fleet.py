"""The fleet as the broker's connections show it: asked of the management API only when somebody orders it.

Each connection of a sidecar tells the broker its sidecar's id and release, so the broker's list of connections is the
inventory. All pages share one answer for `KEPT` seconds, so that no number of them has the API asked more often.
"""

import asyncio
import time
from typing import Any, Final

from proxy.process.identity import SIDECAR_ID, process_id
from proxy.topology.answers import TopologyError
from proxy.topology.management import Management, ManagementError
from proxy.topology.users import sees_all_connections

KEPT: Final = 10.0
"""Seconds for which one answer is good enough."""

MOST_BYTES: Final = 4 * 1024 * 1024
"""The most bytes of the list of connections, some 15,000 of them."""

MOST_SIDECARS: Final = 500
"""The most sidecars that are shown."""

_PROPERTIES: Final = (SIDECAR_ID, "ringproxy_version", "ringproxy_ring_format")
_COLUMNS: Final = ("peer_host", "vhost", "user", *(f"client_properties.{each}" for each in _PROPERTIES))


class Fleet:
    """The last answer of the management API about connections."""

    def __init__(self, api: Management) -> None:
        """Nothing is asked yet."""
        self._api = api
        self._asking = asyncio.Lock()
        self._told: dict[str, Any] = {}
        self._asked_at = float("-inf")

    async def ask(self) -> dict[str, Any]:
        """Return the sidecars that are connected, or why that is not known: `fault`."""
        async with self._asking:
            if time.monotonic() - self._asked_at >= KEPT:
                try:
                    self._told = await self._ask()
                except (ManagementError, TopologyError) as error:
                    self._told = {"fault": str(error)}
                self._asked_at = time.monotonic()
        return {**self._told, "age_seconds": round(time.monotonic() - self._asked_at, 1)}

    async def _ask(self) -> dict[str, Any]:
        sees_all = await sees_all_connections(self._api)
        versions = await self._api.page(["overview"], ["rabbitmq_version", "erlang_version", "cluster_name"])
        found = await self._api.page(["connections"], _COLUMNS, MOST_BYTES)
        if not isinstance(found, list) or not isinstance(versions, dict):
            raise TopologyError(f"connections: {str(found)[:60]!r} is not a list")
        return {
            "sees_all": sees_all,
            "broker": {name: str(value)[:255] for name, value in versions.items()},
            **inventory(found, process_id()),
        }


def inventory(connections: list[Any], own: str) -> dict[str, Any]:
    """Return the sidecars of a list of connections, and how many connections are of no sidecar, by user."""
    sidecars: dict[str, dict[str, Any]] = {}
    others: dict[str, int] = {}
    for item in connections:
        if not isinstance(item, dict):
            continue
        told = item.get("client_properties")
        properties = told if isinstance(told, dict) else {}
        who, host, user = (
            str(each)[:255] for each in (properties.get(SIDECAR_ID, ""), item.get("peer_host"), item.get("user"))
        )
        if not who:
            others[user] = others.get(user, 0) + 1
            continue
        version, ring_format = (str(properties.get(each, ""))[:64] for each in _PROPERTIES[1:])
        one = sidecars.setdefault(
            who,
            {
                "id": who,
                "own": who == own,
                "host": host,
                "version": version,
                "ring_format": ring_format,
                "connections": 0,
            },
        )
        one["connections"] += 1
    listed = sorted(sidecars.values(), key=lambda each: (each["host"], each["id"]))
    native = sorted(others.items(), key=lambda each: (-each[1], each[0]))
    return {
        "sidecars": listed[:MOST_SIDECARS],
        "sidecars_of": len(listed),
        "connections": len(connections),
        "others": [{"user": user, "connections": count} for user, count in native[:MOST_SIDECARS]],
    }
