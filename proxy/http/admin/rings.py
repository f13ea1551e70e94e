"""One exchange with its ring, as `/rings` and the console show it."""

import time
from typing import Any

from proxy.http.formats.answers import named
from proxy.topology.generations import OtherGeneration
from proxy.topology.names import natural
from proxy.topology.table import Entry, Name, Router
from ring.hashing import SLOTS


def shown(router: Router, name: Name, entry: Entry, route_share: float) -> dict[str, Any]:
    """Return what `/rings` answers about one exchange, but for a key; docs/reference/admin.md lists the members.

    `route_share` is the setting, in percent.
    """
    shown: dict[str, Any] = {
        "vhost": name[0],
        "exchange": name[1],
        "type": entry.exchange_type,
        "mode": entry.mode,
        "passed": None if entry.refused else entry.passed,
        "refused": entry.refused or None,
        "age_seconds": round(router.clock() - entry.read_at, 3),
        "ignored_bindings": [
            {"destination": named(b.destination), "key": b.key, "reason": b.reason} for b in entry.bindings.ignored
        ],
        "generation": entry.generation,
        "duplicate_bindings": [named(d) for d in entry.bindings.duplicates],
        "dead_letter_queues": list(entry.dead_letters),
        "not_lanes": [{"name": lane, "reason": why} for lane, why in entry.not_lanes.items()],
        "changes": [
            {"at": utc(c.at), "why": c.why, "what": c.what, "moved": round(c.moved, 6), "ring": c.fingerprint}
            for c in entry.changes
        ],
    }
    if entry.generation > 1:
        shown["made_with"] = entry.made_with
        shown["not_open"] = entry.closed_to(name[1])
    if entry.others:
        shown["change"] = change_under_way(entry)
        shown["other_generations"] = [_other(each) for each in entry.others]
    if entry.passed is None:
        shown["route_share"] = route_share
    if entry.restored:
        shown["restored"] = True
    if entry.upstream is not None:
        shown["upstream"] = {
            "rings": [d.name for d in sorted(entry.upstream.rings)],
            "bindings": len(entry.upstream.bindings),
            "conflict": entry.upstream.conflict or None,
        }
    if entry.known is not None:
        ring = entry.known.ring
        slots, light = ring.slots(), set(ring.too_light())
        shown["ring"] = entry.known.fingerprint
        shown["hashed"] = str(entry.known.hashed)
        shown["destinations"] = [
            {
                **named(d),
                "weight": weight,
                "share": round(slots[d] / SLOTS, 6),
                **({"lane": entry.lanes[d]} if d in entry.lanes else {}),
                **({"too_light": True} if d in light else {}),
            }
            for d, weight in ring.as_weights().items()
        ]
    return shown


def change_under_way(entry: Entry) -> dict[str, int] | None:
    """Return how far a change of the exchange's generation is, as its bindings were last read; None if there is none.

    `lanes` is the number of shards of the generation that comes. `old_shards` is that of the one that goes, 0 if not
    known: its lanes go once the queues behind them are drained.
    """
    if not entry.others:
        return None
    # By number: how many shards it was made with, and how many are bound.
    own = entry.known.ring.as_weights() if entry.known is not None else entry.bindings.weights
    sizes = {each.number: (each.of, len(each.shards)) for each in entry.others} | {
        entry.generation: (entry.made_with, len(own))
    }
    first, last = min(sizes), max(sizes)
    return {
        "from": first,
        "to": last,
        "lanes": sizes[last][0],
        "lanes_bound": sizes[last][1],
        "old_shards": sizes[first][0],
        "old_shards_left": sizes[first][1],
    }


def _other(generation: OtherGeneration) -> dict[str, Any]:
    """Return what is told of a generation that is bound and is not the ring, with the queues that groups consume."""
    queues: dict[str, list[str]] = {}
    for shard in generation.shards.values():
        for group, queue in shard.groups:
            queues.setdefault(group, []).append(queue)
    return {
        "generation": generation.number,
        "made_with": generation.of or None,
        "bound": len(generation.shards),
        "queues": {group: sorted(each, key=natural) for group, each in sorted(queues.items())},
        "no_lanes": list(generation.misfits),
    }


def utc(seconds: float) -> str:
    """Return a time in seconds since 1970 as text."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
