"""The report of one group by one sidecar, as the admin listener's JSON and `ring-proxy group` show it."""

import time
from collections.abc import Mapping
from typing import Any, Final

from proxy.groups.beats import MemberBeat
from proxy.groups.blocked import MOST_KEYS, BlockedKey
from proxy.groups.decide import Move, Reason
from proxy.groups.lag import total
from proxy.groups.model import LinkState
from proxy.groups.running import RunningGroup
from proxy.topology.names import natural

_WORDS: Final = {
    Reason.DEAF: "this sidecar does not hear the others",
    Reason.REFUSED: "the broker refuses its consumer",
    Reason.OPENING: "its consumer is being opened",
    Reason.NOT_OPENED: "its sidecar has yet to open a consumer",
    Reason.DISAGREEMENT: "its sidecar has yet to see the same owner, or the same members",
    Reason.NOT_LET_GO: "the owner has yet to let it go",
    Reason.PAUSED: "it is paused, and the owner has yet to let it go",
    Reason.ENDING: "its generation ends",
    Reason.ACKS: "the owner has yet to ack {unacked} of its messages",
}
"""The words of the reasons why a shard is not with its target."""


def report(group: RunningGroup) -> dict[str, Any]:
    """Return the state of a group as the admin listener answers it: members, shards, and which shards are to move."""
    now = time.monotonic()
    state, seen, reasons = group.state, group.readings.exactness, group.readings.reasons
    members = state.members(now)
    return {
        "vhost": group.name[0],
        "exchange": group.name[1],
        "joined": True,
        "lag": total([group.readings.lag(name, now) for name in state.present]).shown(),
        "exact": None if not seen.shards and not reasons else not reasons,
        "reasons": list(reasons),
        "warnings": [*seen.warnings, *_pauses_not_read(group)],
        "membership": not_balanced(group, now) or None,
        "members": _members(group, members),
        "leaving": [
            {"client": member.client, "shard": shard, "unacked": link.unacked}
            for member in members.values()
            for shard, link in (member.links.items() if member.is_leaving else ())
            if link.state == LinkState.LEAVING
        ],
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
        "shards": [_shard(group, name, now) for name in sorted(state.present, key=natural)],
        "moves": [
            _move(group, move, members, now)
            for move in sorted(state.decision.moves, key=lambda move: natural(move.shard))
        ],
        "figures_age_seconds": round(now - seen.read_at, 1) if seen.shards else None,
    }


def keys_report(group: RunningGroup, keys: list[BlockedKey]) -> dict[str, Any]:
    """Return the keys of a group that wait, as members of this sidecar have them, and who has the other shards."""
    now = time.monotonic()
    state = group.state
    hosts = {member: peer.beat.host for peer in state.peers.all.values() for member in peer.members}
    owners = ((name, state.decision.owners.get(name)) for name in sorted(state.present, key=natural))
    return {
        "vhost": group.name[0],
        "exchange": group.name[1],
        "in_series": True in state.in_series,
        "orders": group.room.orders or None,
        "keys": [
            {
                "shard": key.shard,
                "client": key.client,
                "key": key.key,
                "key_hash": key.key_hash,
                "state": key.state,
                "since_seconds": round(now - key.since, 1),
                "tries": key.tries,
                "crashes": key.crashes,
                "shard_stands": key.stands,
                "due_seconds": round(max(key.due - now, 0.0), 1) if key.due is not None else None,
                "waiting": key.waiting,
                "message_id": key.message_id,
                "bytes": key.size,
                "fingerprint": key.fingerprint,
            }
            for key in keys
        ],
        "at_most": MOST_KEYS,
        "elsewhere": [
            {"shard": name, "host": hosts.get(owner or "")} for name, owner in owners if owner not in state.local
        ],
    }


def not_balanced(group: RunningGroup, now: float) -> str:
    """Return why this sidecar does not know all members; empty if it does."""
    if group.room.fault:
        return group.room.fault
    if not group.state.peers.hears(now):
        return "the other sidecars are not heard yet"
    if others := group.state.peers.other_versions(now):
        return f"{others} sidecars of another release have members, of which this one knows nothing"
    return ""


def _pauses_not_read(group: RunningGroup) -> list[str]:
    fault = group.pauses.fault if group.pauses is not None else ""
    return [f"orders to pause are not read, so what is paused stays so: {fault}"] if fault else []


def _shard(group: RunningGroup, name: str, now: float) -> dict[str, Any]:
    """Return what the report says of one shard: its owner and target, its lag, and what comes again."""
    again = group.redelivered.get(name)
    shard, found = group.state.shards[name], group.readings.exactness.shards.get(name)
    owner = group.state.decision.owners.get(name)
    pause = group.state.pauses.of(name)
    return {
        "shard": name,
        "holder": owner,
        "holder_since_seconds": round(now - shard.owner_since, 1) if owner else None,
        "target": group.state.decision.targets.get(name),
        "consumers": found.consumers if found is not None else None,
        **group.readings.lag(name, now).shown(),
        "waiting": name in group.readings.waiting,
        "redelivered": again.count if again is not None else 0,
        "worst": again.recent(now) if again is not None else 0,
        "paused": {"by": pause.by, "since": _time(pause.since)} if pause is not None else None,
    }


def _move(group: RunningGroup, move: Move, members: Mapping[str, MemberBeat], now: float) -> dict[str, Any]:
    """Return what the report says of a shard that is to move: from whom, to whom, and for what it waits."""
    state = group.state
    moving_since = state.shards[move.shard].moving_since if move.shard in state.shards else now
    links = [member.links[move.shard] for member in members.values() if move.shard in member.links]
    unacked = sum(link.unacked for link in links if link.state == LinkState.LEAVING)
    why = _WORDS[move.reason].format(unacked=unacked)
    if move.reason is Reason.REFUSED and move.target in state.local:
        pause = state.local[move.target].pauses.get(move.shard)
        why += f": {pause.why}" if pause is not None else ""
    return {
        "shard": move.shard,
        "from": move.owner or None,
        "to": move.target or None,
        "why": why,
        "since_seconds": round(now - (moving_since or now), 1),
    }


def longest_move(group: RunningGroup, now: float) -> dict[str, Any] | None:
    """Return the move that has been due for the longest, as the report has it; None if none is."""
    state = group.state

    def since(move: Move) -> float:
        return (state.shards[move.shard].moving_since if move.shard in state.shards else 0.0) or now

    first = min(state.decision.moves, key=since, default=None)
    return _move(group, first, state.members(now), now) if first is not None else None


def _members(group: RunningGroup, members: Mapping[str, MemberBeat]) -> list[dict[str, Any]]:
    """Return what the report says of each member that is not leaving, by the time at which it joined."""
    state, decision = group.state, group.state.decision
    hosts = {member: peer.beat.host for peer in state.peers.all.values() for member in peer.members}
    found = [
        {
            "id": member.id,
            "client": member.client,
            "host": hosts.get(member.id, state.host),
            "here": member.id in state.local,
            "since": _time(member.since),
            "stalled": member.is_stalled,
            "in_series": member.in_series,
            "unacked": sum(link.unacked for link in member.links.values()),
            "shards": [name for name in sorted(state.present, key=natural) if decision.owners.get(name) == member.id],
            "wanted": list(decision.targets.values()).count(member.id),
        }
        for member in members.values()
        if not member.is_leaving
    ]
    return sorted(found, key=lambda each: (each["since"], each["id"]))


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
