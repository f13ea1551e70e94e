"""Say in words how an exchange changed: one line of the log for each change, and the history that `explain` shows."""

import logging
import time
from collections.abc import Collection, Mapping

from proxy.topology.generations import Generation, OtherGeneration
from proxy.topology.names import some
from proxy.topology.table import Change, Entry, KnownRing, Name, PassReason
from ring.destination import Destination

log = logging.getLogger(__name__)


PASSED_BECAUSE: Mapping[PassReason, str] = {
    PassReason.TYPE: "it is not a hash exchange",
    PassReason.NO_BINDINGS: "no binding of it has a weight",
    PassReason.MODE_PASS: "the settings do not route it",
    PassReason.SHADOW: "the setting shadow has it",
    PassReason.SHARE: "the setting route_share leaves the key's slot to it",
    PassReason.DEAD_LETTER: "one of its queues would dead-letter under the queue's own name",
    PassReason.INTERNAL_DESTINATION: "an internal exchange is bound to it",
    PassReason.NOT_A_LANE: "a fanout exchange that is not a lane is bound to it",
    PassReason.NO_RING: "no binding of it that the message matches leads to a ring",
    PassReason.COPIES: "a header CC or BCC gives the message further routing keys",
    PassReason.OVERLAP: "one message may match its binding to a ring and another binding",
    PassReason.CYCLE: "exchanges with rings are bound to one another in a circle",
    PassReason.INTERNAL: "it is internal, and the broker refuses publishes to it",
    PassReason.ABSENT: "it does not exist, and the broker refuses the publish",
}
"""The end of a sentence that says why publishes go to an exchange itself, by the reason."""


def title(name: Name) -> str:
    """Return the words by which log lines name an exchange."""
    return f"exchange {name[1]!r} in virtual host {name[0]!r}"


def changed(old: KnownRing | None, new: KnownRing, why: str) -> Change:
    """Return the change from one ring, or from none, to another."""
    if old is None:
        return Change(time.time(), why, f"ring of {len(new.ring.destinations)} destinations", 0.0, new.fingerprint)
    return Change(time.time(), why, difference(old, new), new.ring.moved_from(old.ring), new.fingerprint)


def lost(old: KnownRing | None, why: str) -> Change | None:
    """Return the change from a ring to none; None if there was no ring."""
    return Change(time.time(), why, "no ring any more", 1.0, "") if old else None


def of_generation(
    before: Entry | None, generation: Generation, known: KnownRing, change: Change | None, why: str
) -> Change | None:
    """Return a change of the ring that tells the generation, if that is another one than before, or a later first one.

    The ring of two generations may be the same: all messages go elsewhere nevertheless.
    """
    earlier = before.generation if before is not None and before.known is not None else 1
    if generation.number == earlier:
        return change
    shards = f" of {generation.of} shards" if generation.of else ""
    told = f": {change.what}" if change is not None and change.what else ""
    moved = change.moved if change is not None else 0.0
    return Change(time.time(), why, f"generation {generation.number}{shards}{told}", moved, known.fingerprint)


def difference(old: KnownRing, new: KnownRing, most: int = 5) -> str:
    """Return the first `most` differences between two rings, in words, and how many more there are."""
    before, after = old.ring.as_weights(), new.ring.as_weights()
    both = sorted(before.keys() & after.keys())
    parts = [
        *(f"+{d} weight {after[d]}" for d in sorted(after.keys() - before.keys())),
        *(f"-{d} weight {before[d]}" for d in sorted(before.keys() - after.keys())),
        *(f"{d} weight {before[d]} to {after[d]}" for d in both if before[d] != after[d]),
    ]
    if old.hashed != new.hashed:
        parts.append(f"hashes {new.hashed} instead of {old.hashed}")
    if old.exchange_type != new.exchange_type:
        parts.append(f"type {new.exchange_type} instead of {old.exchange_type}")
    return some(parts, most)


def log_change(name: Name, before: Entry | None, after: Entry, change: Change | None) -> None:
    """Log how an exchange's new entry differs: its ring, what happens to publishes, ignored and duplicate bindings."""
    if change:
        log.info("%s: %s (%s); %.2f%% of the slots moved", title(name), change.what, change.why, change.moved * 100)
    if before is None or _way(before) != _way(after):
        _log_passed(name, after)
    _log_lanes(name, before.lanes if before else {}, after)
    _log_misfits(name, before.others if before else (), after)
    _log_incomplete(name, before.incomplete if before else {}, after)
    ignored_before = set(before.bindings.ignored) if before else set()
    for binding in after.bindings.ignored:
        if binding not in ignored_before:
            log.warning(
                "%s: the binding to %s with the key %r is ignored and gets no messages: %s",
                title(name),
                binding.destination,
                binding.key,
                binding.reason,
            )
    duplicates_before = set(before.bindings.duplicates) if before else set()
    for destination in after.bindings.duplicates:
        if destination not in duplicates_before:
            log.warning("%s: %s is bound more than once; its largest weight counts", title(name), destination)
    if change and after.known:
        for destination in after.known.ring.too_light():
            log.warning(
                "%s: %s has so small a weight that it expects fewer than 100 slots, so its share is uneven",
                title(name),
                destination,
            )


def _way(entry: Entry) -> tuple[object, ...]:
    """Return what decides whether publishes are routed, refused or passed, and why, as the log tells it."""
    upstream = entry.upstream
    return entry.passed, entry.refused, *((upstream.rings, upstream.conflict) if upstream is not None else ())


def _log_lanes(name: Name, before: Mapping[Destination, str], after: Entry) -> None:
    """Log which queues publishes newly go to through lanes, and which newly without."""
    if lanes := [f"{lane!r} to {queue}" for queue, lane in after.lanes.items() if before.get(queue) != lane]:
        log.info("%s: publishes go through lanes: %s", title(name), some(lanes))
    if direct := [queue for queue in before if queue in after.bindings.weights and queue not in after.lanes]:
        log.info("%s: publishes go through no lane any more to %s", title(name), some(direct))


def _log_misfits(name: Name, before: tuple[OtherGeneration, ...], after: Entry) -> None:
    """Log of which complete generations the exchange newly has exchanges bound that are no lanes."""
    known = {each.number: each.misfits for each in before}
    for each in after.others:
        if each.misfits and known.get(each.number) != each.misfits:
            log.warning(
                "%s: generation %d of %d shards is bound and is not the ring yet, because these are no lanes: %s",
                title(name),
                each.number,
                each.of,
                some([repr(lane) for lane in each.misfits]),
            )


def _log_incomplete(name: Name, before: Mapping[str, tuple[str, ...]], after: Entry) -> None:
    """Log the shards whose lanes newly do not lead to each promised queue of a group."""
    for shard, queues in after.incomplete.items():
        if before.get(shard) != queues:
            log.error(
                "%s: shard %r: its lane does not lead to %s, so a group loses every message of the shard;"
                " run ring-proxy topology apply",
                title(name),
                shard,
                some([f"queue {queue!r}" for queue in queues]),
            )


def log_missing(name: Name, before: Collection[Destination], after: Collection[Destination]) -> None:
    """Log the destinations that are newly missing from readings; they keep their keys until the removal settles."""
    new = [destination for destination in after if destination not in before]
    if new:
        log.info(
            "%s: the management API does not show %s any more; their keys stay for settle_time", title(name), some(new)
        )


def log_absent(name: Name) -> None:
    """Log that an exchange which a setting names does not exist, and what an operator can do about it."""
    log.warning(
        "%s does not exist, and the setting route, shadow or groups names it: correct the name (VHOST/NAME where it is"
        " not in the default virtual host), or declare the exchange",
        title(name),
    )


def dead_letters_refused(queues: Mapping[str, str | None]) -> str:
    """Return why publishes are refused and what to do about it, briefly: an AMQP reply text has 255 bytes at most."""
    queue, cause = min((queue, cause) for queue, cause in queues.items() if cause)
    return (
        f"queue {queue!r} would dead-letter under its own name ({cause}): give it a dead-letter-routing-key, or set"
        " on_dead_letter = rewrite or pass"
    )


def _log_passed(name: Name, entry: Entry) -> None:
    """Log what happens to publishes to an exchange: refused, routed, or passed and why."""
    if entry.refused:
        log.warning("%s: publishes are refused: %s", title(name), entry.refused)
        return
    match entry.passed:
        case None if entry.upstream is not None:
            rings = some(sorted(entry.upstream.rings))
            log.info("%s: publishes that match a binding to a ring are routed by that ring: %s", title(name), rings)
        case None:
            log.info("%s: publishes are routed by the ring", title(name))
        case PassReason.OVERLAP if entry.upstream is not None:
            log.warning(
                "%s: publishes are passed to the exchange itself, because %s",
                title(name),
                entry.upstream.conflict,
            )
        case PassReason.DEAD_LETTER:
            log.warning(
                "%s: publishes are passed to the exchange itself, because these queues would dead-letter under their"
                " own names: %s; give each a dead-letter-routing-key, or set on_dead_letter = rewrite",
                title(name),
                some([f"{queue!r} ({entry.queues[queue]})" for queue in entry.dead_letters]),
            )
        case PassReason.NOT_A_LANE:
            log.warning(
                "%s: publishes are passed to the exchange itself, because these fanout exchanges that it is bound to"
                " are no lanes: %s; a lane has one binding, to one queue or to a fan, and no alternate exchange",
                title(name),
                some([f"{lane!r} ({why})" for lane, why in entry.not_lanes.items()]),
            )
        case PassReason.INTERNAL_DESTINATION:
            log.warning(
                "%s: publishes are passed to the exchange itself, because an internal exchange is bound to it",
                title(name),
            )
        case reason:
            why = PASSED_BECAUSE[reason]
            log.info("%s: publishes are passed to the exchange itself, because %s (%s)", title(name), why, reason)
