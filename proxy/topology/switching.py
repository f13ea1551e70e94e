"""Decide from one reading of an exchange to the next which generation of shards is the ring, and what of the others
counts. Pure: readings in, generations out.

`proxy/topology/generations.py` says which generation is the ring by bindings alone. A sidecar that routes already is
slower to follow: it takes a later generation once each lane of it has been read, and goes back to an earlier one only
if bindings of the present one are missing for settle_time.
"""

from collections.abc import Collection, Mapping

from proxy.topology.bindings import Behind, Binding
from proxy.topology.generations import (
    Current,
    Generation,
    OtherGeneration,
    OtherShard,
    current,
    misfits,
    other,
    unread_lanes,
)
from proxy.topology.removals import WeightsInForce
from proxy.topology.table import Entry
from ring.destination import Destination


def stays(
    ring: Generation,
    in_force: WeightsInForce[Destination],
    newest: Generation,
    behind: Mapping[str, Behind],
) -> bool:
    """Return whether the generation that is the ring until now stays it, though by bindings alone `newest` would be.

    `behind` says where the exchanges lead that were read, and `in_force` are the weights of the present ring.
    """
    if newest.number > ring.number:
        return bool(misfits(newest, behind))
    if not newest.bindings:
        return True
    shards = {promise.shard for _, _, promise in ring.bindings if promise is not None}
    return len(shards.union(destination.name for destination in in_force.missing)) >= ring.of


def known_shards(exchange: str, before: Entry | None) -> dict[Destination, OtherShard]:
    """Return the shards of generation 1 that are known from before, by what the exchange is bound to."""
    known: dict[Destination, OtherShard] = {}
    if before is not None and before.generation == 1:
        for queue, lane in before.lanes.items():
            known[Destination("exchange", lane)] = OtherShard(queue.name, ((exchange, queue.name),))
    for each in before.others if before is not None else ():
        if each.number == 1:
            known.update(each.shards)
    return known


def to_read(
    bindings: Collection[Binding], before: Entry | None, known: Mapping[Destination, OtherShard]
) -> set[Destination]:
    """Return those of the destinations of an exchange's bindings of which it must be known where they lead.

    They are those of the ring, be it the one until now or the one to come, and such as name no shard.
    """
    found = current(bindings)
    wanted = {binding.destination for binding in found.ring.bindings}
    for each in found.others:
        if before is not None and each.number == before.generation:
            wanted.update(binding.destination for binding in each.bindings)
        wanted |= unread_lanes(each, known)
    return wanted


def of_ring(behind: Mapping[str, Behind], found: Current, before: Entry | None) -> dict[str, Behind]:
    """Return where those exchanges lead that the ring is bound to, or was bound to before."""
    names = {each.destination.name for each in found.ring.bindings if each.destination.kind == "exchange"}
    if before is not None and before.generation == found.ring.number:
        names |= before.behind.keys()
    return {name: each for name, each in behind.items() if name in names}


def others_bound(
    exchange: str,
    found: Current,
    behind: Mapping[str, Behind],
    known: Mapping[Destination, OtherShard],
    before: Entry | None,
    until_now: WeightsInForce[tuple[int, Destination]],
    started: float,
    came: float,
    settle_time: float,
) -> tuple[tuple[OtherGeneration, ...], WeightsInForce[tuple[int, Destination]]]:
    """Return the generations that are not the ring, and what they are bound to, by number and destination.

    Groups consume their shards. One of which a reading lacks the binding therefore counts as bound until that has
    lasted, as one of the ring does: `until_now` is what was bound. `known` are the shards of generation 1 that were
    known before. The reading started and came back at these times, monotonic; `settle_time` is the setting.
    """
    shown = {
        each.number: other(each, exchange, behind, known)._replace(
            misfits=misfits(each, behind) if each.complete and each.number > found.ring.number else ()
        )
        for each in found.others
    }
    keys = dict.fromkeys(((each.number, bound) for each in shown.values() for bound in each.shards), 1)
    in_force = until_now.after(keys, started, came, settle_time)
    for each in before.others if before is not None else ():
        kept = {bound: shard for bound, shard in each.shards.items() if (each.number, bound) in in_force.missing}
        if kept and each.number != found.ring.number:
            present = shown.get(each.number, each._replace(shards={}, misfits=()))
            shown[each.number] = present._replace(shards={**kept, **present.shards})
    return tuple(shown[number] for number in sorted(shown)), in_force
