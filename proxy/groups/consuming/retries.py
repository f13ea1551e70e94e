"""The tries of messages in series, as one session counts them, and what becomes of a message that was tried enough."""

# mypyc: compiled

import logging
import time
from typing import Final

from mmh3 import hash_bytes

from proxy.groups.attempts import LATEST
from proxy.groups.consuming.events import DeadLetterDue
from proxy.groups.consuming.hidden import Consuming, HiddenChannel
from proxy.groups.consuming.letters import Letter, payload_of
from proxy.groups.consuming.series import LEAVES_WITHIN, Held, HeldState, Window
from proxy.groups.model import LinkState
from proxy.wire import content, table
from proxy.wire.frames import Fault

_FLAGS: Final = 7 + content.FLAGS
"""The offset of the property flags in the frame of a content header."""

log = logging.getLogger(__name__)

CRASH: Final = "crash"
"""The reason of a dead letter whose clients have crashed, the last one with nothing else in its hands."""

HELD: Final = "held-too-long"
"""The reason of a dead letter whose first return is too long ago."""

LIMIT: Final = "retry-limit"
"""The reason of a dead letter that was tried as often as it may."""

OPERATOR: Final = "operator"
"""The reason of a dead letter that an operator has ordered."""


def known(hidden: HiddenChannel, held: Held) -> float:
    """Set the tries that a message has behind it as it comes; return when the next is due, in monotonic seconds.

    The result is 0 for a message of which no tries are known. A message without a key has none: two of these may be
    equal, and would count as one. One that was not delivered before is another message, however equal.
    """
    attempts, link, window = hidden.consumer.member.attempts, hidden.link, held.window
    if not held.frames[20 + held.frames[11]] or link is None or not held.key or held.key in window.last:
        return 0.0
    if link.shard not in attempts.shards:
        return 0.0
    found = fingerprint(held.key, held.header, payload_of(held.body))
    attempt = attempts.of(link.shard, found)
    if attempt is None:
        return 0.0
    held.fingerprint, held.record, held.tries, held.again = found, attempt, attempt.tries, True
    if attempt.since:
        held.since = held.at - (time.time() - attempt.since)
    # From now on this sidecar tells of it, also if the shard moves on before the next try.
    attempts.note(link.shard, found, attempt.tries, max(attempt.due, time.time()))
    if window.series.is_overdue(held, held.at):
        return held.at
    return held.at + min(max(attempt.due - time.time(), 0.0), window.series.rules.longest)


def returned(g: Consuming, hidden: HiddenChannel, held: Held) -> None:
    """Take it that the client has returned a message, and have the group remember how often."""
    series, link = held.window.series, hidden.link
    delay = series.give_back(held, g.c.now)
    g.retrying[hidden.consumer] = None
    hidden.consumer.member.returns += 1
    if link is not None and held.key:
        held.fingerprint = held.fingerprint or fingerprint(held.key, held.header, payload_of(held.body))
        now, age = time.time(), g.c.now - held.since
        hidden.consumer.member.attempts.note(link.shard, held.fingerprint, held.tries, now + delay, now - age)


def settled(hidden: HiddenChannel, held: Held) -> None:
    """Take it that a message is settled. Its tries are forgotten, unless its link has ended: then it comes again."""
    if held.fingerprint and hidden.link is not None and not hidden.ended:
        hidden.consumer.member.attempts.forget(hidden.link.shard, held.fingerprint)
    held.window.series.settle(held)


def leave(window: Window, hidden: HiddenChannel) -> None:
    """Forget the messages of a link that ends, and the tries that do not count since the client leaves at once."""
    link, now = hidden.link, time.monotonic()  # it may be long since a peer has sent anything
    if link is not None:
        for held in window.held.values():
            if held.state == HeldState.RETRY and held.fingerprint and now - held.returned_at < LEAVES_WITHIN:
                attempts = hidden.consumer.member.attempts
                attempts.note(link.shard, held.fingerprint, held.tries - 1, time.time())
    window.series.drop(window)
    if link is None or link.state != LinkState.LEAVING:
        window.series.end(window)


def exhausted(g: Consuming, held: Held) -> None:
    """Have a message that was tried as often as it may published as a dead letter, or tell that its key stands still.

    Until a dead letter is confirmed its link holds it, and does not end.
    """
    source = g.sources.get(held.window.number)
    assert isinstance(source, HiddenChannel)
    assert source.link is not None
    member, shard = source.consumer.member, source.link.shard
    if held.fingerprint:
        now, rules = time.time(), held.window.series.rules
        # The record lasts until the message was held for too long, and for a while longer.
        due = now + max(rules.longest, min(rules.hold or 0.0, LATEST / 2))
        since = now - (g.c.now - held.since) if held.since else 0.0
        member.attempts.note(shard, held.fingerprint, held.tries, due, since)
    told = (member.group, g.c.vhost, shard, held.tries)
    if held in held.window.overdue:
        log.warning(
            "group %r, virtual host %r: a message of shard %r was returned %d times, first %.0f s ago"
            " (groups_hold_max): its shard stands until the message is settled; fingerprint %s",
            *(*told, g.c.now - held.since, held.fingerprint),
        )
    elif held.window.series.is_culprit(held) and not held.buried:
        log.warning(
            "group %r, virtual host %r: a message of shard %r was with %d clients that crashed, the last time alone:"
            " %s; fingerprint %s",
            *(*told[:3], held.crashes),
            "its key stands still" if held.state == HeldState.STOPPED else "it becomes a dead letter",
            held.fingerprint,
        )
    elif held.state == HeldState.STOPPED:
        log.warning(
            "group %r, virtual host %r: a message of shard %r was tried %d times, and its key stands still"
            " (groups_retry_then = stop)",
            *told,
        )
    if held.state != HeldState.DEAD:
        return
    bury(g, source, held)


def bury(g: Consuming, source: HiddenChannel, held: Held) -> None:
    """Have a message published as a dead letter. Until that is confirmed its link holds it, and does not end."""
    assert source.link is not None
    source.link.unacked += 1
    group, shard = source.consumer.member.group, source.link.shard
    key = routing_key(held.frames, 0, held.header_at, held.body_at)
    reason = OPERATOR if held.buried else _why(held)
    # A client that was lost has not returned it: a crash counts only where it is the reason.
    tries = held.tries + held.crashes if reason == CRASH else held.tries
    letter = Letter(g.c.vhost, group, shard, key, held.header, held.body, tries, reason)
    g.events.append(DeadLetterDue(held, letter))


def _why(held: Held) -> str:
    """Return the reason of a dead letter that no operator has ordered."""
    series = held.window.series
    if series.is_culprit(held):
        return CRASH
    return LIMIT if 0 < series.rules.limit <= held.tries else HELD


def released(hidden: HiddenChannel, held: Held) -> None:
    """Have a message tried at once, as often as if it had not been tried yet."""
    if held.fingerprint and hidden.link is not None:
        hidden.consumer.member.attempts.forget(hidden.link.shard, held.fingerprint)
    held.window.series.go_on_at_once(held)


def routing_key(data: bytes, i: int, header: int, end: int) -> bytes:
    """Return the routing key of a message's publish, by its basic.deliver at `i` and content header at `header`.

    A publish to the queue itself has its own exchange and key among the message's headers, which end at `end`.
    """
    names = i + 21 + data[i + 11]
    if not data[names]:
        exchange, stamped = content.origin_in(data, header + 7, end - 1)
        if exchange:
            return stamped
    at = names + 1 + data[names]
    return data[at + 1 : at + 1 + data[at]]


def fingerprint(key: bytes, header: bytes, body: bytes) -> str:
    """Return 32 hexadecimal digits that two deliveries of one message have in common.

    `key` is a hash of the message's key, `header` the frame of its content header, and `body` its payload. The counts
    that RabbitMQ puts among the headers are left out, and so is the order of the headers: RabbitMQ 3.10 sorts them as
    it adds a count.
    """
    end = len(header) - 1
    try:
        at, first, stop = content.parts(header, 7, end)
        fields = b"".join(
            sorted(
                header[field.start : field.stop]
                for field in table.fields(header, first, stop)
                if field.name not in content.DELIVERY_COUNTS
            )
        )
        # The first delivery may have no headers at all, where later ones have the counts.
        flag = bytes((header[_FLAGS] & ~(content.HEADERS >> 8),))
        told = header[7:_FLAGS] + flag + header[_FLAGS + 1 : at] + fields + header[stop:end]
    except Fault:
        told = header[7:end]
    return hash_bytes(b"".join((key, len(told).to_bytes(8), told, body))).hex()
