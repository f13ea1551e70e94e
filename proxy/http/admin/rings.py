"""One exchange with its ring, as `/rings` and the console show it."""

import time
from typing import Any

from proxy.http.formats.answers import named
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
        "duplicate_bindings": [named(d) for d in entry.bindings.duplicates],
        "dead_letter_queues": list(entry.dead_letters),
        "not_lanes": [{"name": lane, "reason": why} for lane, why in entry.not_lanes.items()],
        "changes": [
            {"at": utc(c.at), "why": c.why, "what": c.what, "moved": round(c.moved, 6), "ring": c.fingerprint}
            for c in entry.changes
        ],
    }
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


def utc(seconds: float) -> str:
    """Return a time in seconds since 1970 as text."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
