"""What a sidecar knows of one group, as the admin listener's JSON and `ring-proxy group` show it."""

import time
from collections.abc import Iterator
from typing import Any

from proxy.groups.member import Member
from proxy.groups.running import RunningGroup
from proxy.topology.names import natural


def report(group: RunningGroup) -> dict[str, Any]:
    """Return the state of a group: its members, its shards, and what is about to move."""
    now = time.monotonic()
    state, seen, reasons = group.state, group.exactness, group.reasons
    hears = state.hears(now)
    redelivered = group.redelivered(now)
    holders, targets = state.claims.holders, state.decision.targets
    return {
        "vhost": group.name[0],
        "exchange": group.name[1],
        "exact": None if not seen.shards and not reasons else not reasons,
        "reasons": list(reasons),
        "warnings": list(seen.warnings),
        "membership": group.room.fault or ("" if hears else _not_heard(group, now)) or None,
        "members": _members(group, holders, targets, now),
        "leaving": list(_leaving(group)),
        "refused": [
            {
                "client": state.local[member].client,
                "shard": shard,
                "why": refusal.why,
                "since_seconds": round(now - refusal.since, 1),
            }
            for (member, shard), refusal in sorted(
                state.attempts.refused.items(), key=lambda one: (one[0][0], natural(one[0][1]))
            )
            if member in state.local
        ],
        "shards": [
            {
                "shard": shard,
                "holder": holders.get(shard),
                "holder_since_seconds": round(now - claim.since, 1) if (claim := state.claims.holder(shard)) else None,
                "target": targets.get(shard),
                "ready": found.ready if (found := seen.shards.get(shard)) is not None else None,
                "unacked": found.unacked if found is not None else None,
                "waiting": shard in group.waiting,
                "redelivered": again.count if (again := redelivered.get(shard)) is not None else 0,
                "worst": again.recent(now) if again is not None else 0,
            }
            for shard in sorted(state.shards, key=natural)
        ],
        "moves": [
            {
                "shard": move.shard,
                "from": move.holder or None,
                "to": move.target,
                "why": move.why,
                "since_seconds": round(now - state.moving_since.get(move.shard, now), 1),
            }
            for move in sorted(state.decision.moves, key=lambda move: natural(move.shard))
        ],
        "figures_age_seconds": round(now - seen.read_at, 1) if seen.shards else None,
    }


def _not_heard(group: RunningGroup, now: float) -> str:
    """Return why this sidecar does not know all members."""
    if others := group.state.peers.other_versions(now):
        return f"{others} sidecars of another release have members, of which this one knows nothing"
    return "the other sidecars are not heard yet"


def _leaving(group: RunningGroup) -> Iterator[dict[str, Any]]:
    """Yield the links of members that have left, by which clients still hold messages."""
    for member in group.state.leaving.values():
        for link in member.held:
            yield {"client": member.client, "shard": link.shard, "unacked": link.unacked}
    for _, told in group.state.peers.members.values():
        if told.is_leaving:
            for shard, of_it in told.links.items():
                yield {"client": told.client, "shard": shard, "unacked": of_it.unacked}


def _members(group: RunningGroup, holders: dict[str, str], targets: Any, now: float) -> list[dict[str, Any]]:
    state = group.state
    held: dict[str, list[str]] = {}
    for shard, holder in sorted(holders.items(), key=lambda held: natural(held[0])):
        held.setdefault(holder, []).append(shard)
    wanted = list(targets.values())
    found = [_member(member, state.is_stalled(member.id, now)) for member in state.local.values()]
    for peer in state.peers.all.values():
        found += [
            {
                "id": told.id,
                "client": told.client,
                "host": peer.host,
                "here": False,
                "since": _time(told.since),
                "stalled": told.is_stalled,
                "unacked": sum(link.unacked for link in told.links.values()),
            }
            for told in peer.members.values()
            if not told.is_leaving
        ]
    for each in found:
        each.setdefault("host", state.host)
        each["shards"], each["wanted"] = held.get(each["id"], []), wanted.count(each["id"])
    return sorted(found, key=lambda each: (each["since"], each["id"]))


def _member(member: Member, is_stalled: bool) -> dict[str, Any]:
    return {
        "id": member.id,
        "client": member.client,
        "here": True,
        "since": _time(member.since),
        "stalled": is_stalled,
        "unacked": sum(link.unacked for link in (*member.links.values(), *member.held)),
    }


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
