"""Diagnosis: what is wrong now, worst first, by an overview of this sidecar. A pure function; it reads nothing itself.

It decides as the readiness checks and the alerts of `deploy/alerts.yaml` do, and links the same sections of the
runbook. An alert waits for minutes so that it wakes nobody in vain. Who looks at a page is awake: a finding is there at
once, as a note where the alert would still wait. Things that only a whole fleet shows, such as rings that differ, are
left to the alerts.
"""

from collections.abc import Iterator
from enum import IntEnum
from typing import Final

from msgspec import Struct

from proxy.http.admin.console.overview import ExchangeState, GroupState, Overview
from proxy.settings.missing_right import MissingRight, missing_right
from proxy.settings.rights import to_group, to_shards
from proxy.topology.names import some

ALERT_AFTER: Final = {"unacked": 300.0, "moving": 600.0, "retried": 900.0}
"""Seconds after which the alerts of the same matters fire."""

NOTED_AFTER: Final = 30.0
"""Seconds after which the same is a note."""

POISON: Final = 20
"""The times that a message comes again above which it counts as poison, as for the alert."""

FEW_PUBLISHES: Final = 5
"""The least publishes of which it counts that none succeeded."""

MOST: Final = 100
"""The most findings that are shown."""

MOST_RIGHTS: Final = 10
"""The most missing rights of clients, and of this sidecar's own, that are shown."""

FAILED: Final = ("nacked", "unroutable", "unavailable", "rejected")
"""The outcomes of publishes whose publishers were told that they failed."""

SUCCEEDED: Final = ("confirmed", "passed", "sent")
"""The outcomes of publishes that succeeded."""


_RENEWALS: Final = {
    "config": "The settings file has a mistake",
    "oauth_token_url": "The access token cannot be renewed",
}
"""The titles of findings where something cannot be read or fetched again, by its setting; any other names a file."""


class Severity(IntEnum):
    """How bad a finding is."""

    CRITICAL = 0
    """Messages are lost, refused or stand still."""
    WARNING = 1
    """Something works no more, or soon will not, and messages still flow."""
    NOTE = 2
    """The state is unusual, and may be what the operator wants."""


class Finding(Struct, frozen=True):
    """Something that is wrong."""

    severity: Severity
    title: str
    """The fault in a few words, which with the subject tells it from all others for as long as it lasts."""
    text: str
    """The subject, the extent and the reason."""
    section: str
    """The anchor of its section in docs/how-to/troubleshoot.md."""
    kind: str = ""
    """The kind of its subject: `exchange`, `group`, or empty for the sidecar itself."""
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
    yield from _of_broker(o)
    yield from _of_management(o)
    yield from _of_rights(o)
    failed = sum(o.nowhere.get(outcome, 0) for outcome in (*FAILED, "invalid"))
    if failed >= FEW_PUBLISHES and not o.succeeded:
        text = "In 10 minutes none succeeded: publishers name exchanges that do not exist, or have no rights."
        yield Finding(Severity.CRITICAL, "All publishes fail", text, "all-publishes-fail")
    if o.journal:
        yield Finding(Severity.WARNING, "The journal loses records", o.journal, "journal-loses-records")
    for setting, why in o.reloads.items():
        what = _RENEWALS.get(setting, f"A file of {setting} has a mistake")
        yield Finding(Severity.WARNING, what, why, "a-reload-failed")
    for setting, days in o.certificates.items():
        text = f"It ends in {days:.1f} days." if days > 0 else "It has ended."
        yield Finding(Severity.WARNING, f"The certificate of {setting} ends", text, "a-certificate-ends")


def _of_broker(o: Overview) -> Iterator[Finding]:
    """Yield what is wrong between this sidecar and the broker."""
    critical = Severity.CRITICAL
    for vhost, why in o.disconnected.items():
        yield Finding(critical, f"No connection to the broker in {vhost!r}", why, "broker-disconnected")
    for vhost, why in o.blocked.items():
        yield Finding(critical, f"The broker takes no publishes in {vhost!r}", why, "broker-blocked")
    if why := o.checks.get("one cluster", ""):
        yield Finding(critical, "Broker and management API belong to different clusters", why, "lost-management-api")


def _of_rights(o: Overview) -> Iterator[Finding]:
    """Yield which rights this sidecar's own user and its clients' users lack."""
    section = "a-permission-is-missing"
    for severity, whose, rights in (
        (Severity.CRITICAL, "The sidecar's user", o.own_rights),
        (Severity.WARNING, "User", o.rights),
    ):
        for each in rights[:MOST_RIGHTS]:
            title = f"{whose} {each.user!r} lacks {each.right} on {each.resource} in {each.vhost!r}"
            yield Finding(severity, title, each.remedy, section)
    if not o.own_rights and (why := o.checks.get("broker's permissions", "")):
        yield Finding(Severity.CRITICAL, "The sidecar's user lacks a right", why, section)
    if not o.rights and o.refused_403:
        text = f"In 10 minutes {many(o.refused_403, 'channel')} closed with 403. The log names the user."
        yield Finding(Severity.WARNING, "A user over AMQP lacks a right", text, section)


def _of_management(o: Overview) -> Iterator[Finding]:
    """Yield what is wrong with the management API, or with exchanges that it tells of."""
    warning, section = Severity.WARNING, "lost-management-api"
    faults = some([f"{each.exchange!r} in {each.vhost!r}: {each.fault}" for each in o.faults], 3)
    if o.management:
        yield Finding(warning, "The management API does not answer", o.management, section)
    elif faults:
        yield Finding(warning, "Exchanges cannot be read", faults, section)
    elif why := o.checks.get("look-ups", ""):
        yield Finding(warning, "An exchange could not be looked up", why, section)
    if why := o.checks.get("rings read", ""):
        yield Finding(warning, "Exchanges that settings name are not read", why, section)
    if o.absent:
        told = some([f"{exchange!r} in {vhost!r}" for vhost, exchange in o.absent])
        yield Finding(warning, "Exchanges that settings name do not exist", told, "named-exchange-absent")


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
    if all_of >= FEW_PUBLISHES and not succeeded:
        yield finding(critical, f"All publishes to {e.exchange} fail", f"In 10 minutes: {told}.", "all-publishes-fail")
    elif failed > all_of / 100:
        severity = critical if failed >= FEW_PUBLISHES else Severity.NOTE
        yield finding(severity, f"Publishes to {e.exchange} fail", f"In 10 minutes: {told}.", "publishes-fail")
    if unknown := e.late.get("unknown", 0):
        text = f"In 10 minutes {many(unknown, 'message')} sent and not confirmed: each is in its queue or is not."
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
    found = [*_consumers(g), *_acks(g), *_keys(g), *_balance(g)]
    return (Finding(*each, "group", g.vhost, g.exchange) for each in found)


Found = tuple[Severity, str, str, str]
"""The first fields of a finding about a group."""


def _consumers(g: GroupState) -> Iterator[Found]:
    """Yield that nobody gets messages of some shards, or always the same one."""
    if g.waiting:
        told = f"They have messages that no member gets: {some(g.waiting)}."
        yield Severity.CRITICAL, f"Shards of {g.exchange} are not consumed", told, "shard-not-consumed"
    if g.refused:
        who, shard, why = g.refused[0]
        more = f" And {g.refused_count - 1} more." if g.refused_count > 1 else ""
        told = f"{who} has no consumer on {shard}: {_sentence(why)}{more}"
        told += _grant(missing_right(why), to_shards(g.exchange, [shard]))
        yield Severity.WARNING, f"The broker refuses consumers of {g.exchange}", told, "consumer-refused"
    if g.worst > POISON:
        told = f"It has come again {many(g.worst, 'time')}, of the shard {g.worst_shard}."
        yield Severity.WARNING, f"A message of {g.exchange} comes again and again", told, "poison-message"
    if crashes := g.late.get("crashes", 0):
        told = (
            f"In 10 minutes clients were lost {many(crashes, 'time')} with a message that an earlier one was lost with."
        )
        yield Severity.WARNING, f"A message of {g.exchange} may end its clients", told, "crash-loop"


def _acks(g: GroupState) -> Iterator[Found]:
    """Yield that a member does not ack, if one does not: the message of a blocked key is unacked for another reason."""
    stalled, age = g.late.get("stalled", 0), g.oldest_unacked_seconds
    told = []
    if age > NOTED_AFTER and not g.keys_stopped and not g.keys_retried:
        told.append(f"{g.oldest_unacked_of} has held a message of {g.oldest_unacked_shard} for {age:.0f} s.")
    if stalled:
        told.append(f"In 10 minutes {many(stalled, 'shard')} left members that did not ack.")
    if told:
        severity = Severity.WARNING if stalled or age > ALERT_AFTER["unacked"] else Severity.NOTE
        yield severity, f"A member of {g.exchange} does not ack", " ".join(told), "member-not-acking"


def _keys(g: GroupState) -> Iterator[Found]:
    """Yield that keys in series do not go on."""
    if g.standing:
        text = f"In {many(g.standing, 'shard')} a message was held for longer than groups_hold_max."
        yield Severity.CRITICAL, f"Shards of {g.exchange} stand", text, "shard-stands"
    if failed := g.late.get("dead_letters_failed", 0):
        text = f"In 10 minutes the broker did not confirm {many(failed, 'dead letter')}."
        yield Severity.WARNING, f"Dead letters of {g.exchange} fail", text, "dead-letters-fail"
    told, age = [], g.oldest_retried_seconds
    if g.keys_stopped:
        told.append(f"{many(g.keys_stopped, 'key')} stopped, as a message was tried as often as it may be.")
    if g.keys_retried and age > NOTED_AFTER:
        told.append(
            f"{many(g.keys_retried, 'key')} with a message that failed and is to be tried again, for {age:.0f} s."
        )
    if told:
        severity = Severity.WARNING if g.keys_stopped or age > ALERT_AFTER["retried"] else Severity.NOTE
        yield severity, f"Keys of {g.exchange} are blocked", " ".join(told), "key-blocked"
    if dead := g.late.get("dead_letters", 0):
        text = f"After all tries {many(dead, 'message')} went to groups_dead_letter in 10 minutes."
        yield Severity.NOTE, f"{g.exchange} has dead letters", text, "key-blocked"
    if g.windows_blocked:
        text = (
            f"Of {many(g.windows_blocked, 'shard')} more than half of groups_window waits behind messages of its keys."
        )
        yield Severity.NOTE, f"Few keys fill the window of {g.exchange}", text, "window-blocked"


def _balance(g: GroupState) -> Iterator[Found]:
    """Yield that shards are not where they should be, or may not be in order there."""
    if g.membership:
        told = _sentence(g.membership) + _grant(missing_right(g.membership), f"^{to_group(g.exchange)}$")
        yield Severity.WARNING, f"The group {g.exchange} is not balanced", told, "group-disconnected"
    if g.moving and g.moving_seconds > NOTED_AFTER:
        severity = Severity.WARNING if g.moving_seconds > ALERT_AFTER["moving"] and g.exact else Severity.NOTE
        told = f"{many(g.moving, 'shard')}, the first for {g.moving_seconds:.0f} s: {g.moving_why}."
        yield severity, f"Shards of {g.exchange} have yet to move", told, "group-unbalanced"
    if g.reasons:
        yield Severity.NOTE, f"{g.exchange} is not exact: order may be lost", f"{g.reasons[0]}.", "group-unbalanced"
    if g.paused:
        told = f"An operator wants nobody to consume {many(g.paused, 'shard')}."
        yield Severity.NOTE, f"Shards of {g.exchange} are paused", told, "group-unbalanced"


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def _grant(right: MissingRight | None, wanted: str) -> str:
    """Return what grants a right on all names that match `wanted`, as a sentence to append; empty without a right."""
    return f" {right._replace(wanted=wanted).remedy}" if right is not None else ""


def many(number: int, what: str) -> str:
    """Return a number of something in words."""
    return f"{number} {what}{'' if number == 1 else 's'}"
