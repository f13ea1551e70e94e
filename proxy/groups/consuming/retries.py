"""The tries of messages in series, as one session counts them, and what becomes of a message that was tried enough."""

# mypyc: compiled

import time
from typing import Final

from mmh3 import hash_bytes

from proxy.groups.consuming.events import DeadLetterDue
from proxy.groups.consuming.hidden import Consuming, HiddenChannel
from proxy.groups.consuming.letters import Letter, payload_of
from proxy.groups.consuming.series import Held, HeldState, Window
from proxy.wire import content, table
from proxy.wire.frames import Fault

LEAVES_WITHIN: Final = 1.0
"""Seconds for which a client must go on consuming for a try to count: one that stops returns all that it has."""

_FLAGS: Final = 7 + content.FLAGS
"""The offset of the property flags in the frame of a content header."""

_COUNTS: Final = frozenset({b"x-acquired-count", b"x-delivery-count"})
"""The headers by which two deliveries of one message differ."""

LIMIT: Final = "retry-limit"
"""The reason of a dead letter that was tried as often as it may."""


def known(hidden: HiddenChannel, held: Held) -> float:
    """Set the tries that a message has behind it as it comes; return when the next is due, in monotonic seconds.

    The result is 0 for a message of which no tries are known. A message without a key has none: two of these may be
    equal, and would count as one.
    """
    attempts, link, window = hidden.consumer.member.attempts, hidden.link, held.window
    if link is None or not held.key or held.key in window.last or link.shard not in attempts.shards:
        return 0.0
    found = fingerprint(held.key, held.header, payload_of(held.body))
    attempt = attempts.of(link.shard, found)
    if attempt is None:
        return 0.0
    held.fingerprint, held.tries, held.again = found, attempt.tries, True
    return held.at + min(max(attempt.due - time.time(), 0.0), window.series.rules.longest)


def returned(g: Consuming, hidden: HiddenChannel, held: Held) -> None:
    """Take it that the client has returned a message, and have the group remember how often."""
    series, link = held.window.series, hidden.link
    delay = series.give_back(held, g.c.now)
    g.retrying[hidden.consumer] = None
    if link is not None and held.key:
        held.fingerprint = held.fingerprint or fingerprint(held.key, held.header, payload_of(held.body))
        hidden.consumer.member.attempts.note(link.shard, held.fingerprint, held.tries, time.time() + delay)


def settled(hidden: HiddenChannel, held: Held) -> None:
    """Take it that a message is settled, of which nothing needs to be remembered any more."""
    if held.fingerprint and hidden.link is not None:
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


def exhausted(g: Consuming, held: Held) -> None:
    """Have a message published as a dead letter. Until that is confirmed its link holds it, and does not end."""
    source = g.sources.get(held.window.number)
    assert isinstance(source, HiddenChannel)
    assert source.link is not None
    source.link.unacked += 1
    member = source.consumer.member
    letter = Letter(
        *(g.c.vhost, member.exchange, source.link.shard, routing_key(held), held.header, held.body, held.tries, LIMIT)
    )
    g.events.append(DeadLetterDue(held, letter))


def routing_key(held: Held) -> bytes:
    """Return the routing key of a message's publish, which its headers tell where it came to its queue directly."""
    method = held.method
    names = 21 + method[11]
    at = names + 1 + method[names]
    if not method[names]:
        exchange, stamped = content.origin_in(held.header, 7, len(held.header) - 1)
        if exchange:
            return stamped
    return method[at + 1 : at + 1 + method[at]]


def fingerprint(key: bytes, header: bytes, body: bytes) -> str:
    """Return 32 hexadecimal digits that two deliveries of one message have in common.

    `key` is a hash of the message's key, `header` the frame of its content header, and `body` its payload. The counts
    that RabbitMQ puts among the headers are left out.
    """
    end = len(header) - 1
    try:
        at, first, stop = content.parts(header, 7, end)
        fields, _ = table.without(header, first, stop, _COUNTS)
        # The first delivery may have no headers at all, where later ones have the counts.
        flag = bytes((header[_FLAGS] & ~(content.HEADERS >> 8),))
        told = header[7:_FLAGS] + flag + header[_FLAGS + 1 : at] + fields + header[stop:end]
    except Fault:
        told = header[7:end]
    return hash_bytes(b"".join((key, len(told).to_bytes(8), told, body))).hex()
