"""A client's methods about consumers, on a session whose sidecar has the setting `groups`.

A basic.consume on a name that the setting `groups` names waits, with all that follows on its channel. Meanwhile a
passive queue.declare asks whether there is a queue of that name. If there is, the client consumes from the queue;
otherwise it joins the group as a member.
"""

import secrets

from proxy.groups.consuming import links
from proxy.groups.consuming.hidden import Consumer, Consuming
from proxy.groups.consuming.questions import Joining
from proxy.groups.consuming.rules import limits
from proxy.groups.consuming.series import Series
from proxy.groups.consuming.tags import MOST_TAGS, Numbering, numbering_of
from proxy.groups.model import DEFAULT_PREFETCH, Member
from proxy.session import closing
from proxy.session.backlog import Wait
from proxy.session.channel import Channel
from proxy.session.end import SHUTTING_DOWN
from proxy.session.publishing import requests
from proxy.session.state import ChannelState
from proxy.wire import table
from proxy.wire.arguments import Arguments
from proxy.wire.frames import (
    ACCESS_REFUSED,
    BASIC_CONSUME,
    CONSUME_NOWAIT,
    EMPTY_TABLE,
    EXCLUSIVE,
    NO_ACK,
    NOT_ALLOWED,
    PASSIVE,
    PRECONDITION_FAILED,
    QUEUE_DECLARE,
    RESOURCE_ERROR,
    SYNTAX_ERROR,
    Fault,
    channel_open,
    method_frame,
    shorted,
)

UNLIMITED = 2000
"""The prefetch of links where the client has asked for no limit; RabbitMQ takes the same number for quorum queues."""

MOST_ARGUMENTS = 4096
"""The most bytes of a member's arguments, since each of its links has them."""

_CROWDED = f"a connection with consumers of groups has over {MOST_TAGS} ordinary consumers; use another connection"

_IN_SERIES = b"x-ring-in-series"
"""The argument by which a consumer asks to work on one message of a key at a time, or not to."""
_RESERVED = (b"x-priority", b"x-consumer-timeout")
"""The arguments of consumers that this proxy sets itself: all links have the same priority, and the same timeout."""


def begin_numbering(g: Consuming, channel: Channel) -> Numbering:
    """Return a channel's numbering, which begins here if there is none yet."""
    numbering = numbering_of(channel)
    if numbering is None:
        numbering = channel.merge = Numbering(channel.id, g.tags)
        g.sources[channel.id] = numbering.own
    return numbering


def consume(g: Consuming, channel: Channel, method: int, data: bytes, i: int, end: int) -> bytes | None:
    """Take basic.consume: on a queue it passes, and on the name of a group it makes a member.

    Returns what the broker gets instead; None if it gets the frame as it is, now or after a wait. Raises Fault for a
    frame that is too short, and for a consumer tag in use.
    """
    if channel.state != ChannelState.OPEN:
        return None
    numbering = begin_numbering(g, channel)
    arguments = Arguments(data, i, end, at=2)
    name, tag = requests.meant(channel, arguments.short_string()), arguments.short_string()
    if not arguments.left:
        raise Fault(SYNTAX_ERROR, "basic.consume stops early", method)
    bits = arguments.bits()
    joining, numbering.joining = numbering.joining, None
    if joining is not None and joining.is_group:
        return b""
    group = group_named(g, name) if joining is None and name else ""
    if tag and ((channel.id, tag) in g.by_tag or (group and tag in numbering.tags)):
        raise Fault(NOT_ALLOWED, f"attempt to reuse consumer tag '{tag.decode(errors='replace')}'", method)
    if group:
        if g.free:
            _ask(g, channel, numbering, group, tag, bits, _fields(arguments))
            return None
        # Not even whether a queue has the name can be asked.
        text = f"group '{group}': all {g.most} hidden channels of the connection are in use"
        return closing.refusal(g.c, channel, RESOURCE_ERROR, text, method)
    return _consume_queue(g, channel, numbering, tag, bits)


def _consume_queue(g: Consuming, channel: Channel, numbering: Numbering, tag: bytes, bits: int) -> bytes | None:
    """Remember an ordinary consumer, as its deliveries may be without acks.

    Returns None, so that its basic.consume passes; or what the broker gets as a channel with too many is refused.
    """
    if numbering.crowded:
        return None
    if tag and not numbering.remember(tag, bool(bits & NO_ACK)) and numbering.started:
        return closing.refusal(g.c, channel, RESOURCE_ERROR, _CROWDED, BASIC_CONSUME)
    if not tag and not bits & CONSUME_NOWAIT:
        numbering.requests.append(bool(bits & NO_ACK))
    return None


def group_named(g: Consuming, name: bytes) -> str:
    """Return a name that the setting `groups` has, as text; empty for any other."""
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return ""  # no exchange has such a name
    return text if g.match(g.c.vhost, text) else ""


def _ask(
    g: Consuming, channel: Channel, numbering: Numbering, group: str, tag: bytes, bits: int, fields: bytes
) -> None:
    """Have a basic.consume wait, and ask the broker whether there is a queue of that name."""
    member = Member(secrets.token_hex(8), g.c.vhost, group, channel.id, tag or b"amq.ctag-" + _random())
    member.no_ack = bool(bits & NO_ACK)
    member.prefetch = numbering.prefetch or DEFAULT_PREFETCH
    series = table.find(fields, 0, len(fields), _IN_SERIES)
    if series is None:
        member.in_series = g.is_serial(g.c.vhost, group)
    else:
        member.in_series = series.kind == ord("t") and bool(fields[series.value])
    refusal = _mistake(g, channel, numbering, member, bits, fields)
    numbering.joining = Joining(member, refusal)
    consumer = Consumer(member, channel, numbering, table.without(fields, 0, len(fields), (_IN_SERIES,))[0])
    if member.in_series:
        member.prefetch = g.rules.window
        consumer.series = Series(limits(g.rules, g.c.handshake.version), numbering.asked, g.hands)
    consumer.owes_ok = not bits & CONSUME_NOWAIT
    g.c.waiting.held = Wait.INTERCEPTED
    g.consumers[member] = consumer
    g.by_tag[channel.id, member.tag] = consumer
    hidden = g.take(consumer, None)
    g.due += (channel_open(hidden.number), passive_queue(hidden.number, group))


def passive_queue(number: int, name: str) -> bytes:
    """Return the queue.declare that asks, on a hidden channel, whether there is a queue of that name."""
    text = shorted(name.encode(errors="replace"))
    return method_frame(number, QUEUE_DECLARE, b"\0\0" + text + bytes((PASSIVE,)) + EMPTY_TABLE)


def _random() -> bytes:
    return secrets.token_urlsafe(16).encode()


def _fields(arguments: Arguments) -> bytes:
    """Return the fields of the arguments table of a basic.consume, which has been read so far.

    Raises Fault if it is cut.
    """
    if arguments.left < 4:
        raise Fault(SYNTAX_ERROR, "basic.consume stops before its arguments", BASIC_CONSUME)
    size = arguments.long()
    if size > arguments.left:
        raise Fault(SYNTAX_ERROR, "the arguments of basic.consume run past its frame", BASIC_CONSUME)
    return arguments.octets(size)


def _mistake(
    g: Consuming, channel: Channel, numbering: Numbering, member: Member, bits: int, fields: bytes
) -> tuple[int, str] | None:
    """Return the reply code and text that refuse a basic.consume of a group; None if the member may join."""
    group = member.group
    if why := _refusal_of_series(member, fields):
        return PRECONDITION_FAILED, f"group '{group}'{why}"
    if bits & EXCLUSIVE:
        return ACCESS_REFUSED, f"group '{group}' cannot be consumed exclusively: a group is for several consumers"
    for name in _RESERVED:
        if table.find(fields, 0, len(fields), name) is not None:
            return PRECONDITION_FAILED, f"group '{group}': {name.decode()} cannot be set, as ringproxy sets it itself"
    if len(fields) > MOST_ARGUMENTS:
        text = f"group '{group}': the arguments take {len(fields)} bytes, and {MOST_ARGUMENTS} are the most"
        return PRECONDITION_FAILED, text
    if channel.transactional:
        return PRECONDITION_FAILED, f"group '{group}' cannot be consumed on a channel with transactions"
    if numbering.unsure:
        return RESOURCE_ERROR, f"group '{group}': {numbering.unsure}"
    if g.draining:
        return RESOURCE_ERROR, f"group '{group}': {SHUTTING_DOWN}"
    if len(g.consumers) >= g.most:
        text = f"group '{group}': the connection has {len(g.consumers)} members, as many as it may"
        return RESOURCE_ERROR, text
    return None


def _refusal_of_series(member: Member, fields: bytes) -> str:
    """Return the end of the sentence that refuses a member: its argument for series is no boolean, or it wants no acks.

    Empty if nothing about consuming in series speaks against the member.
    """
    series = table.find(fields, 0, len(fields), _IN_SERIES)
    if series is not None and series.kind != ord("t"):
        return f": the argument {_IN_SERIES.decode()} must be true or false"
    if member.in_series and member.no_ack:
        return f" is consumed in series, which needs acks: consume without no_ack, or with {_IN_SERIES.decode()} false"
    return ""


def cancel(g: Consuming, channel: Channel, method: int, data: bytes, i: int, end: int) -> bytes | None:
    """Take basic.cancel. For a member it is answered here, since a cancel at the broker would put keys out of order.

    Returns what the broker gets instead; None if it gets the frame as it is.
    """
    numbering = numbering_of(channel)
    if numbering is None or channel.state != ChannelState.OPEN:
        return None
    arguments = Arguments(data, i, end)
    tag, nowait = arguments.short_string(), bool(arguments.bits() & 1)
    numbering.cancel(tag, answered=not nowait)
    consumer = g.by_tag.get((channel.id, tag))
    if consumer is None:
        return None
    consumer.owes_cancel_ok = not nowait
    links.leave(g, consumer)
    if answer := links.cancel_ok(consumer):
        links.tell(g, numbering, answer)
    return b""


def begin_transactions(g: Consuming, channel: Channel, method: int, data: bytes, i: int, end: int) -> bytes | None:
    """Take tx.select: a channel with members has its acks on other channels of the broker's, without a transaction.

    Returns None if the channel has no member, so that it passes; else what the broker gets as the channel is refused.
    """
    numbering = numbering_of(channel)
    if numbering is None or not numbering.started:
        return None
    text = "a channel that consumes from a group cannot have transactions"
    return closing.refusal(g.c, channel, PRECONDITION_FAILED, text, method)


def leave_all(g: Consuming) -> None:
    """Have all members leave, as this proxy shuts down; a basic.consume that still waits is refused."""
    g.draining = True
    for consumer in list(g.consumers.values()):
        joining = consumer.numbering.joining
        if joining is not None and joining.member is consumer.member and not joining.decided:
            text = f"group '{consumer.member.group}': {SHUTTING_DOWN}"
            closing.refuse_channel(g.c, consumer.channel, RESOURCE_ERROR, text, BASIC_CONSUME)
        else:
            links.leave(g, consumer)
    g.c.to_broker.flush()


def qos(g: Consuming, channel: Channel, method: int, data: bytes, i: int, end: int) -> None:
    """Take basic.qos, which passes to the broker. Members that join later get its prefetch for each shard."""
    arguments = Arguments(data, i, end, at=4)  # the prefetch in bytes, which RabbitMQ does not have
    if channel.state == ChannelState.OPEN and arguments.left >= 3:
        numbering, asked = begin_numbering(g, channel), arguments.short()
        numbering.asked, numbering.prefetch = asked, asked or UNLIMITED


def get(g: Consuming, channel: Channel, method: int, data: bytes, i: int, end: int) -> None:
    """Take basic.get, which passes to the broker, and note it: its answer will have a delivery tag."""
    if channel.state == ChannelState.OPEN:
        numbering = begin_numbering(g, channel)
        arguments = Arguments(data, i, end, at=2)
        arguments.short_string()
        numbering.gets.append(bool(arguments.bits() & 1))


# Answers of the broker on the client's own channel


def consume_ok(g: Consuming, channel: Channel, method: int, data: bytes, i: int, end: int) -> None:
    """Note the tag of an ordinary consumer, which the broker may have made up, by its basic.consume-ok.

    Refuses the channel if it has more consumers than are remembered.
    """
    numbering = numbering_of(channel)
    if numbering is None:
        return
    tag = Arguments(data, i, end).short_string()
    if tag in numbering.tags or not numbering.requests:
        return
    no_ack = numbering.requests.popleft()
    if not numbering.remember(tag, no_ack) and numbering.started:
        closing.refuse_channel(g.c, channel, RESOURCE_ERROR, _CROWDED, BASIC_CONSUME)


def cancelled(g: Consuming, channel: Channel, method: int, data: bytes, i: int, end: int) -> bytes | None:
    """Take the broker's basic.cancel of an ordinary consumer: its tag is forgotten.

    Returns None, so that the client gets it, if the client has said in the handshake that it understands it
    (`consumer_cancel_notify`); else b"".
    """
    if (numbering := numbering_of(channel)) is not None:
        numbering.forget(Arguments(data, i, end).short_string())
    return None if g.c.handshake.cancel_notify else b""


def cancel_ok(g: Consuming, channel: Channel, method: int, data: bytes, i: int, end: int) -> None:
    """Take basic.cancel-ok of an ordinary consumer, behind its last delivery."""
    if (numbering := numbering_of(channel)) is not None:
        numbering.end_cancelled(Arguments(data, i, end).short_string())


def get_empty(g: Consuming, channel: Channel, method: int, data: bytes, i: int, end: int) -> None:
    """Take basic.get-empty, the answer to a basic.get without a delivery."""
    numbering = numbering_of(channel)
    if numbering is not None and numbering.gets:
        numbering.gets.popleft()
