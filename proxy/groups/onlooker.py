"""The lag of groups of which no client of this sidecar is a member: their shards are read when somebody asks.

Any sidecar can be asked whose settings name the exchange, and all answer alike, as each reading has all that it needs:
the rates are the broker's. Nothing is read without a question, and the same shards not twice within a few seconds, so a
fleet costs the broker what its askers do, however many sidecars it has.
"""

import asyncio
import time
from typing import Any, Final

from proxy.groups.lag import Lag, total
from proxy.groups.shard_readings import FRESH, OUTDATED, Exactness, between, read
from proxy.settings.config import Settings
from proxy.settings.patterns import Patterns
from proxy.topology.bindings import GROUP_NAME, TopologyError
from proxy.topology.lookups import NotReadable
from proxy.topology.management import Management, ManagementError
from proxy.topology.names import natural
from proxy.topology.table import Name

MOST_KEPT: Final = 100
"""The most exchanges whose figures are kept; the one that nobody has asked for the longest goes first."""


class _Figures:
    """The last reading of one exchange's shards."""

    def __init__(self) -> None:
        self.shards: list[str] = []
        self.seen = Exactness()
        self.read_at = float("-inf")
        """When that reading began, in monotonic seconds."""
        self.fault = ""
        """Why the last reading failed; empty if it did not."""
        self.reading: asyncio.Task[None] | None = None
        """The reading that is under way, or the last one; None before the first."""


class Onlooker:
    """The figures of the shards of exchanges that the settings name; lives as long as the process."""

    def __init__(self, settings: Settings, api: Management) -> None:
        """Nothing is read yet."""
        self.select(settings)
        self._api, self._lookup_timeout = api, settings.lookup_timeout
        self._one_at_a_time = asyncio.Lock()
        """Held by the reading that is under way: readings of rings need connections to the management API, too."""
        self._kept: dict[Name, _Figures] = {}
        """By exchange; the one that was asked for last stands last."""

    def select(self, settings: Settings) -> None:
        """Take the exchanges that settings name anew."""
        self._patterns = Patterns((*settings.route, *settings.groups))

    def exchanges(self, vhost: str, group: str) -> list[str]:
        """Return the exchanges that may have a group of this name, and that the setting `route` or `groups` names.

        The exchange of the part before the last slash comes first: `orders` for `orders/audit`.
        """
        exchange, _, own = group.rpartition("/")
        found = [exchange] if exchange and GROUP_NAME.fullmatch(own) else []
        return [each for each in (*found, group) if self._patterns.match(vhost, each)]

    async def report_of(self, name: Name, shards: list[str]) -> dict[str, Any]:
        """Return the figures of these queues of a group, in the form of a report on it.

        They are read anew if that was not done of late. Raises NotReadable where there are none in time; the reading
        goes on then, so that the next caller has its figures.
        """
        figures, every = self._figures(name), between(len(shards), FRESH)
        if figures.shards != shards or time.monotonic() - figures.read_at >= every:
            if figures.reading is None or figures.reading.done():
                figures.reading = asyncio.create_task(self._read(name[0], figures, shards))
            await asyncio.wait({figures.reading}, timeout=self._lookup_timeout / 2)
        now = time.monotonic()
        if now - figures.read_at > every + OUTDATED:
            why = figures.fault or "no answer in time (half of lookup_timeout)"
            raise NotReadable(f"the management API does not tell the messages of the shards of {name[1]!r}: {why}")
        return _report(name, shards, figures.seen, now - figures.read_at)

    def _figures(self, name: Name) -> _Figures:
        """Return what is kept of a group, which is now the one asked for last; beyond MOST_KEPT drop the first."""
        figures = self._kept.pop(name, None) or _Figures()
        self._kept[name] = figures
        if len(self._kept) > MOST_KEPT:
            oldest = self._kept.pop(next(iter(self._kept)))
            if oldest.reading is not None:
                oldest.reading.cancel()
        return figures

    async def _read(self, vhost: str, figures: _Figures, shards: list[str]) -> None:
        """Read the shards of one group into `figures`, or the fault. One group is read at a time."""
        async with self._one_at_a_time:
            began = time.monotonic()
            try:
                seen = await read(self._api, vhost, shards, {})
            except (ManagementError, TopologyError) as error:
                figures.fault = str(error)
            else:
                figures.shards, figures.seen, figures.read_at, figures.fault = shards, seen, began, ""


def _report(name: Name, shards: list[str], seen: Exactness, age: float) -> dict[str, Any]:
    """Return the report of a group that this sidecar has not joined: who its members are is not known here."""
    lags = {shard: seen.shards[shard].lag if shard in seen.shards else Lag() for shard in sorted(shards, key=natural)}
    return {
        "vhost": name[0],
        "exchange": name[1],
        "joined": False,
        "lag": total(list(lags.values())).shown(),
        "exact": not seen.reasons if seen.shards else None,
        "reasons": list(seen.reasons),
        "warnings": list(seen.warnings),
        "membership": "this sidecar has no member of the group, so it knows no other sidecar's members",
        "members": [],
        "leaving": [],
        "refused": [],
        "shards": [
            {
                "shard": shard,
                "holder": None,
                "holder_since_seconds": None,
                "target": None,
                "consumers": seen.shards[shard].consumers if shard in seen.shards else None,
                **lag.shown(),
                "waiting": False,
                "redelivered": 0,
                "worst": 0,
                "paused": None,
            }
            for shard, lag in lags.items()
        ],
        "moves": [],
        "figures_age_seconds": round(age, 1),
    }
