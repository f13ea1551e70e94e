"""The states of the consumer groups that have members at this sidecar, for the console."""

import asyncio
import time
from collections.abc import Collection, Mapping
from typing import Any, Final

from proxy.groups.groups import Groups
from proxy.groups.lag import Lag, total
from proxy.groups.report import keys_report, longest_move, not_balanced, report
from proxy.groups.running import RunningGroup
from proxy.http.admin.console.lag_history import LagHistory
from proxy.http.admin.console.overview import GroupState, Late
from proxy.topology.table import Name

MOST_KEYS: Final = 50
"""The most blocked keys of one detail, those that wait for the longest."""

KEYS_EVERY: Final = 5.0
"""Seconds between two looks at the keys of a group, which takes some milliseconds with many shards."""


class GroupStates:
    """The states of all groups, and the details of those that somebody looks at; lives as long as the process."""

    def __init__(self, groups: Groups, few: int, most: int) -> None:
        """`few` are the most names of one list of a state, and `most` the most members or shards of a detail."""
        self._groups, self._few, self._most = groups, few, most
        self._keys: dict[Name, tuple[float, list[dict[str, Any]]]] = {}
        """By group, when its keys were last looked at, in monotonic seconds, and those that wait."""
        self._lags = LagHistory()

    def keep(self, names: Collection[Name]) -> None:
        """Forget the keys of all groups but these."""
        self._keys = {name: kept for name, kept in self._keys.items() if name in names}

    async def sample(self) -> None:
        """Add the lag of now to that of the last hour."""
        lags = {}
        for name, group in list(self._groups.running.items()):
            # Others have a turn between two groups.
            await asyncio.sleep(0)
            lags[name] = _lag(group, time.monotonic())
        self._lags.add(lags)

    def states(self, late: Late) -> list[GroupState]:
        """Return the state of each group, sorted by name."""
        running = sorted(self._groups.running.items())
        return [_state(group, late.get(("group", *name), {}), self._few) for name, group in running]

    async def detail(self, name: Name) -> dict[str, Any] | None:
        """Return a group's report, the changes of its members and owners, and its keys that wait; None if none."""
        group = self._groups.running.get(name)
        if group is None:
            return None
        detail = report(group)
        for what in ("members", "shards", "moves", "leaving", "refused"):
            detail[f"{what}_of"] = len(detail[what])
            detail[what] = detail[what][: self._most]
        detail["lag_history"] = self._lags.of(name)
        detail["log"] = [{"at": at, "what": what} for at, what in reversed(group.changes)]
        looked_at, keys = self._keys.get(name, (0.0, []))
        if True in group.state.in_series and time.monotonic() - looked_at >= KEYS_EVERY:
            keys = keys_report(group, (await group.blocked_keys())[:MOST_KEYS])["keys"]
            self._keys[name] = time.monotonic(), keys
        detail["keys"] = keys
        return detail


def _lag(group: RunningGroup, now: float) -> Lag:
    return total([group.readings.lag(shard, now) for shard in group.state.present])


def _state(group: RunningGroup, late: Mapping[str, int], few: int) -> GroupState:
    """Return the state of a group, with its events of the last ten minutes."""
    now, state, readings, backlogs = time.monotonic(), group.state, group.readings, group.backlogs
    lag = _lag(group, now)
    exactness, reasons = readings.exactness, readings.reasons
    move = longest_move(group, now) or {"since_seconds": 0.0, "why": ""}
    again = {shard: redelivered.recent(now) for shard, redelivered in group.redelivered.items()}
    worst = max(again, key=lambda shard: again[shard], default="")
    refused = [
        (member.client or member.id, shard, pause.why)
        for member in state.local.values()
        for shard, pause in member.pauses.items()
    ]
    first = min((each.since for each in backlogs if each.since), default=now)
    return GroupState(
        vhost=group.name[0],
        exchange=group.name[1],
        members=sum(not member.is_leaving for member in state.members(now).values()),
        here=sum(not member.leaving for member in state.local.values()),
        shards=len(state.present),
        ready=lag.ready,
        unacked=lag.unacked,
        publish_rate=lag.publish_rate,
        consume_rate=lag.consume_rate,
        seconds_to_empty=lag.seconds_to_empty,
        exact=None if not exactness.shards and not reasons else not reasons,
        reasons=reasons,
        membership=not_balanced(group, now),
        moving=len(state.decision.moves),
        moving_seconds=move["since_seconds"],
        moving_why=move["why"],
        waiting=sorted(readings.waiting),
        paused=len(state.paused_shards),
        refused=refused[:few],
        refused_count=len(refused),
        oldest_unacked_seconds=now - group.oldest_unacked_at if group.oldest_unacked_at else 0.0,
        oldest_unacked_of=group.oldest_unacked_of[0],
        oldest_unacked_shard=group.oldest_unacked_of[1],
        worst=again.get(worst, 0),
        worst_shard=worst,
        keys_retried=sum(each.retried for each in backlogs),
        keys_stopped=sum(each.stopped for each in backlogs),
        oldest_retried_seconds=now - first,
        standing=sum(each.standing for each in backlogs),
        windows_blocked=sum(each.blocked_windows for each in backlogs),
        late=late,
    )
