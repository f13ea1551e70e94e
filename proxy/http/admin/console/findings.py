"""Diagnosis: what is wrong now, worst first, by an overview of this sidecar. A pure function; it reads nothing itself.

It decides as the readiness checks and the alerts of `deploy/alerts.yaml` do, and links the same sections of the runbook.
An alert waits for minutes so that it wakes nobody in vain. Who looks at a page is awake: a finding is there at once, as
a note where the alert would still wait. What only a whole fleet shows, such as rings that differ, is left to the alerts.
"""

from collections.abc import Iterator
from enum import IntEnum
from typing import Final

from msgspec import Struct

from proxy.http.admin.console.overview import ExchangeState, GroupState, Overview
from proxy.topology.names import some

ALERT_AFTER: Final = {"unacked": 300.0, "moving": 600.0, "retried": 900.0}
"""Seconds after which the alerts of the same matters fire."""

NOTED_AFTER: Final = 30.0
"""Seconds after which the same is a note."""

POISON: Final = 20
"""The times that a message comes again above which it counts as poison, as for the alert."""

MOST: Final = 100
"""The most findings that are shown."""

FAILED: Final = ("nacked", "unroutable", "unavailable", "rejected")
"""The outcomes of publishes whose publishers were told that they failed."""

SUCCEEDED: Final = ("confirmed", "passed", "sent")
"""The outcomes of publishes that succeeded."""


class Severity(IntEnum):
    """How bad a finding is."""

    CRITICAL = 0
    """Messages are lost, refused or stand still."""
    WARNING = 1
    """Something works no more, or soon will not, and messages still flow."""
    NOTE = 2
    """It may be as it should."""


class Finding(Struct, frozen=True):
    """Something that is wrong."""

    severity: Severity
    title: str
    """What is wrong, in a few words."""
    text: str
    """Which, how much and why."""
    section: str
    """The anchor of its section in docs/how-to/troubleshoot.md."""
    kind: str = ""
    """What it is about: `exchange`, `group`, or empty for the sidecar itself."""
    vhost: str = ""
    exchange: str = ""


def findings(overview: Overview) -> list[Finding]:
    """Return all that is wrong, the worst first, and what is about the sidecar itself before the rest."""
    found = [
        *_of_sidecar(overview),
        *(each for exchange in overview.exchanges for each in _of_exchange(exchange)),
        *(each for group in overview.groups for each in _of_group(group)),
    ]
    return sorted(found, key=lambda each: (each.severity, each.kind, each.vhost, each.exchange))


def _of_sidecar(o: Overview) -> Iterator[Finding]:
    critical, warning, _ = Severity
    checks = o.checks
    for vhost, why in o.disconnected.items():
        yield Finding(critical, f"No connection to the broker in {vhost!r}", why, "broker-disconnected")
    for vhost, why in o.blocked.items():
        yield Finding(critical, f"The broker takes no publishes in {vhost!r}", why, "broker-blocked")
    if why := checks.get("broker's permissions", ""):
        yield Finding(critical, "The sidecar's user lacks a right", why, "a-permission-is-missing")
    if why := checks.get("one cluster", ""):
        yield Finding(critical, "Broker and management API belong to different clusters", why, "lost-management-api")
    if why := o.management:
        yield Finding(warning, "The management API does not answer", why, "lost-management-api")
    elif why := checks.get("look-ups", ""):
        yield Finding(warning, "An exchange could not be looked up", why, "lost-management-api")
    if o.faults and not o.management:
        told = some([f"{each.exchange!r} in {each.vhost!r}: {each.fault}" for each in o.faults], 3)
        yield Finding(warning, "Exchanges cannot be read", told, "lost-management-api")
    if why := checks.get("rings read", ""):
        yield Finding(warning, "Exchanges that settings name are not read", why, "lost-management-api")
    if o.absent:
        told = some([f"{exchange!r} in {vhost!r}" for vhost, exchange in o.absent])
        yield Finding(warning, "Exchanges that settings name do not exist", told, "named-exchange-absent")
    if o.refused_403:
        told = f"In the last 10 minutes {o.refused_403} channels were closed with 403. The log names the user."
        yield Finding(warning, "A publisher over AMQP lacks a right", told, "a-permission-is-missing")
    failed, succeeded = (sum(o.nowhere.get(outcome, 0) for outcome in each) for each in (FAILED, SUCCEEDED))
    if failed + o.nowhere.get("invalid", 0) >= 5 and not succeeded + o.succeeded:
        told = "In the last 10 minutes no publish succeeded: publishers name exchanges that do not exist, or have no rights."
        yield Finding(critical, "All publishes fail", told, "all-publishes-fail")
    if why := o.journal:
        yield Finding(warning, "The journal loses records", why, "journal-loses-records")
    for setting, why in o.reloads.items():
        yield Finding(warning, f"The files of {setting} cannot be read again", why, "a-reload-failed")
    for setting, days in o.certificates.items():
        told = f"It ends in {days:.1f} days." if days > 0 else "It has ended."
        yield Finding(warning, f"The certificate of {setting} ends", told, "a-certificate-ends")


def _of_exchange(e: ExchangeState) -> Iterator[Finding]:
    critical, warning, _ = Severity

    def finding(severity: Severity, title: str, text: str, section: str) -> Finding:
        return Finding(severity, title, text, section, "exchange", e.vhost, e.exchange)

    if e.state in ("not routed", "refused"):
        yield finding(critical, f"{e.exchange} is {e.state} ({e.why})", _not_routed(e), "not-routed")
    if e.without_copies:
        told = f"No fan leads to {some([repr(each) for each in e.without_copies])}: messages are confirmed and lost."
        yield finding(critical, f"Groups of {e.exchange} lose messages", told, "queue-without-copies")
    if e.stale:
        told = f"Its bindings were read {e.age_seconds:.0f} s ago. The last good ring stays in force."
        yield finding(warning, f"The ring of {e.exchange} is stale", told, "stale-ring")
    failed, all_of = sum(e.late.get(outcome, 0) for outcome in FAILED), sum(e.late.values())
    succeeded = sum(e.late.get(outcome, 0) for outcome in SUCCEEDED)
    told = ", ".join(f"{count} {outcome}" for outcome, count in sorted(e.late.items()))
    if all_of >= 5 and not succeeded:
        yield finding(critical, f"All publishes to {e.exchange} fail", f"In 10 minutes: {told}.", "all-publishes-fail")
    elif failed > all_of / 100:
        yield finding(critical, f"Publishes to {e.exchange} fail", f"In 10 minutes: {told}.", "publishes-fail")
    if unknown := e.late.get("unknown", 0):
        text = f"In 10 minutes {unknown} messages were sent and not confirmed: each is in its queue or is not."
        yield finding(warning, f"Unknown outcomes of {e.exchange}", text, "unknown-outcomes")


def _not_routed(e: ExchangeState) -> str:
    """Return why an exchange's ring does not route it, and which queues or lanes are at fault."""
    if e.why == "dead_letter" or e.dead_letters:
        queues = some([f"{queue!r} ({cause})" for queue, cause in e.dead_letters])
        return f"These queues would dead-letter under their own names: {queues}. Give each a dead-letter-routing-key."
    if e.not_lanes:
        return some([f"{lane!r}: {why}" for lane, why in e.not_lanes], 3)
    return "Publishes go to the exchange itself, which hashes most keys to other queues than the ring does."


def _of_group(g: GroupState) -> Iterator[Finding]:
    critical, warning, note = Severity

    def finding(severity: Severity, title: str, text: str, section: str) -> Finding:
        return Finding(severity, title, text, section, "group", g.vhost, g.exchange)

    if g.waiting:
        told = f"They have messages that no member gets: {some(g.waiting)}."
        yield finding(critical, f"Shards of {g.exchange} are not consumed", told, "shard-not-consumed")
    if g.standing:
        told = f"{g.standing} shards: a message was held for longer than groups_hold_max."
        yield finding(critical, f"Shards of {g.exchange} stand", told, "shard-stands")
    if g.refused:
        who, shard, why = g.refused[0]
        more = f" And {g.refused_count - 1} more." if g.refused_count > 1 else ""
        told = f"{who} has no consumer on {shard}: {why}{'' if why.endswith('.') else '.'}{more}"
        yield finding(warning, f"The broker refuses consumers of {g.exchange}", told, "consumer-refused")
    if g.membership:
        yield finding(warning, f"The group {g.exchange} is not balanced", g.membership, "group-disconnected")
    yield from _acks(g)
    if g.worst > POISON:
        told = f"It has come again {g.worst} times, of the shard {g.worst_shard}."
        yield finding(warning, f"A message of {g.exchange} comes again and again", told, "poison-message")
    yield from _keys(g)
    if crashes := g.late.get("crashes", 0):
        told = f"{crashes} times in 10 minutes a client was lost with a message that an earlier one was lost with."
        yield finding(warning, f"A message of {g.exchange} may end its clients", told, "crash-loop")
    if g.moving and g.moving_seconds > NOTED_AFTER:
        bad = warning if g.moving_seconds > ALERT_AFTER["moving"] and g.exact else note
        told = f"{g.moving} shards, the first of them for {g.moving_seconds:.0f} s: {g.moving_why}."
        yield finding(bad, f"Shards of {g.exchange} have yet to move", told, "group-unbalanced")
    if g.reasons:
        yield finding(note, f"{g.exchange} is not exact: order may be lost", f"{g.reasons[0]}.", "group-unbalanced")
    if g.paused:
        told = f"{g.paused} shards: an operator wants nobody to consume them."
        yield finding(note, f"Shards of {g.exchange} are paused", told, "group-unbalanced")


def _acks(g: GroupState) -> Iterator[Finding]:
    """Yield the finding that a member does not ack, if one does not."""
    stalled = g.late.get("stalled", 0)
    if not stalled and g.oldest_unacked_seconds <= NOTED_AFTER:
        return
    bad = stalled or g.oldest_unacked_seconds > ALERT_AFTER["unacked"]
    told = []
    if g.oldest_unacked_seconds > NOTED_AFTER:
        who, age = g.oldest_unacked_of, g.oldest_unacked_seconds
        told.append(f"{who} has held a message of {g.oldest_unacked_shard} for {age:.0f} s.")
    if stalled:
        told.append(f"In 10 minutes {stalled} shards were taken from members that did not ack.")
    severity = Severity.WARNING if bad else Severity.NOTE
    title = f"A member of {g.exchange} does not ack"
    yield Finding(severity, title, " ".join(told), "member-not-acking", "group", g.vhost, g.exchange)


def _keys(g: GroupState) -> Iterator[Finding]:
    """Yield the findings about keys in series that do not go on."""
    told = []
    if g.keys_stopped:
        told.append(f"{g.keys_stopped} keys stand still, as a message was tried as often as it may be.")
    if g.keys_retried and g.oldest_retried_seconds > NOTED_AFTER:
        told.append(
            f"{g.keys_retried} keys wait for a message that failed, for {g.oldest_retried_seconds:.0f} s so far."
        )
    if failed := g.late.get("dead_letters_failed", 0):
        told.append(f"{failed} dead letters were not confirmed in 10 minutes.")
    where = ("key-blocked", "group", g.vhost, g.exchange)
    if told:
        bad = bool(g.keys_stopped or failed or g.oldest_retried_seconds > ALERT_AFTER["retried"])
        severity = Severity.WARNING if bad else Severity.NOTE
        yield Finding(severity, f"Keys of {g.exchange} are blocked", " ".join(told), *where)
    if dead := g.late.get("dead_letters", 0):
        text = f"In 10 minutes {dead} messages were published to groups_dead_letter, after all their tries."
        yield Finding(Severity.NOTE, f"{g.exchange} has dead letters", text, *where)
    if g.windows_blocked:
        text = f"Of {g.windows_blocked} shards more than half of groups_window waits behind messages of the same keys."
        title = f"Few keys fill the window of {g.exchange}"
        yield Finding(Severity.NOTE, title, text, "window-blocked", "group", g.vhost, g.exchange)
