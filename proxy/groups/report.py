"""What a sidecar knows of one group, as the admin listener's JSON and `ring-proxy group` show it."""

import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from proxy.groups.decide import Move, Reason
from proxy.groups.model import LinkState, Member
from proxy.groups.redelivered import Redelivered
from proxy.groups.running import RunningGroup
from proxy.topology.names import natural

_WORDS: Final = {
    Reason.DEAF: "this sidecar does not hear the others",
    Reason.REFUSED: "the broker refuses its consumer",
    Reason.OPENING: "its consumer is being opened",
    Reason.NOT_OPENED: "its sidecar has yet to open a consumer",
    Reason.DISAGREEMENT: "its sidecar has yet to see the same owner, or the same members",
    Reason.NOT_LET_GO: "the owner has yet to let it go",
    Reason.ACKS: "the owner has yet to ack {unacked} of its messages",
}
"""The words of the reasons why a shard is not with its target."""


def report(group: RunningGroup) -> dict[str, Any]:
    """Return the state of a group: its members, its shards, and what is about to move."""
    now = time.monotonic()
    state, seen, reasons = group.state, group.exactness, group.reasons
    targets = state.decision.targets
    redelivered = group.redelivered(now)
    return {
        "vhost": group.name[0],
        "exchange": group.name[1],
        "exact": None if not seen.shards and not reasons else not reasons,
        "reasons": list(reasons),
        "warnings": list(seen.warnings),
        "membership": group.room.fault or _not_heard(group, now) or None,
        "members": _members(group, targets, now),
        "leaving": list(_leaving(group)),
        "refused": [
            {
                "client": member.client,
                "shard": shard,
                "why": pause.why,
                "since_seconds": round(now - pause.since, 1),
            }
            for member in state.local.values()
            for shard, pause in sorted(member.pauses.items(), key=lambda one: natural(one[0]))
        ],
        "shards": [
            _shard(group, name, targets, redelivered.get(name), now) for name in sorted(state.present, key=natural)
        ],
        "moves": [
            _move(group, move, now) for move in sorted(state.decision.moves, key=lambda move: natural(move.shard))
        ],
        "figures_age_seconds": round(now - seen.read_at, 1) if seen.shards else None,
    }


def _not_heard(group: RunningGroup, now: float) -> str:
    """Return why this sidecar does not know all members; empty if it does."""
    if not group.state.hears(now):
        return "the other sidecars are not heard yet"
    if others := group.state.peers.other_versions(now):
        return f"{others} sidecars of another release have members, of which this one knows nothing"
    return ""


def _shard(
    group: RunningGroup, name: str, targets: Mapping[str, str], again: Redelivered | None, now: float
) -> dict[str, Any]:
    shard, found = group.state.shards[name], group.exactness.shards.get(name)
    return {
        "shard": name,
        "holder": shard.owner or None,
        "holder_since_seconds": round(now - shard.owner_since, 1) if shard.owner else None,
        "target": targets.get(name),
        "ready": found.ready if found is not None else None,
        "unacked": found.unacked if found is not None else None,
        "waiting": name in group.waiting,
        "redelivered": again.count if again is not None else 0,
        "worst": again.recent(now) if again is not None else 0,
    }


def _move(group: RunningGroup, move: Move, now: float) -> dict[str, Any]:
    state = group.state
    moving_since = state.shards[move.shard].moving_since if move.shard in state.shards else now
    why = _WORDS[move.reason].format(unacked=state.yet_to_ack(move.shard))
    if move.reason is Reason.REFUSED and move.target in state.local:
        pause = state.local[move.target].pauses.get(move.shard)
        why += f": {pause.why}" if pause is not None else ""
    return {
        "shard": move.shard,
        "from": move.owner or None,
        "to": move.target,
        "why": why,
        "since_seconds": round(now - (moving_since or now), 1),
    }


def _leaving(group: RunningGroup) -> Iterator[dict[str, Any]]:
    """Yield the links of members that have left, by which clients still hold messages."""
    for member in group.state.local.values():
        for link in member.links.values() if member.leaving else ():
            if link.state == LinkState.LEAVING:
                yield {"client": member.client, "shard": link.shard, "unacked": link.unacked}
    for told in group.state.told.values():
        for shard, of_it in told.links.items() if told.is_leaving else ():
            yield {"client": told.client, "shard": shard, "unacked": of_it.unacked}


def _members(group: RunningGroup, targets: Mapping[str, str], now: float) -> list[dict[str, Any]]:
    state = group.state
    owned: dict[str, list[str]] = {}
    for name in sorted(state.present, key=natural):
        owned.setdefault(state.shards[name].owner, []).append(name)
    wanted = list(targets.values())
    found = [_member(group, member, now) for member in state.local.values() if not member.leaving]
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
        each["shards"], each["wanted"] = owned.get(each["id"], []), wanted.count(each["id"])
    return sorted(found, key=lambda each: (each["since"], each["id"]))


def _member(group: RunningGroup, member: Member, now: float) -> dict[str, Any]:
    return {
        "id": member.id,
        "client": member.client,
        "host": group.state.host,
        "here": True,
        "since": _time(member.since),
        "stalled": group.state.is_stalled(member, now),
        "unacked": sum(link.unacked for link in member.links.values() if link.state != LinkState.CLOSING),
    }


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
