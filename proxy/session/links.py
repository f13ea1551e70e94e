"""The links of members at work: what the broker is sent on a hidden channel when a link changes its state.

`TABLE` in `proxy/groups/model.py` has the states and says what is sent; `enter` is the one way into it from a session.
"""

import time

from proxy.groups.model import Link, LinkAction, LinkEvent, LinkState, Member
from proxy.session.channel import Channel
from proxy.session.connection import Connection
from proxy.session.events import Left, LinkChanged, LinkRefused
from proxy.session.hidden import Consumer, Consuming, HiddenChannel
from proxy.session.numbering import Numbering
from proxy.wire.frames import (
    BASIC_CANCEL,
    BASIC_CANCEL_OK,
    BASIC_CONSUME,
    BASIC_CONSUME_OK,
    BASIC_QOS,
    CHANNEL_OPEN,
    PRECONDITION_FAILED,
    REPLY_SUCCESS,
    U16,
    U32,
    U64,
    close_frame,
    method_frame,
    shorted,
)

NO_ACK = 2
EXCLUSIVE = 4
NOWAIT = 8
"""The bits of basic.consume."""

PRIORITY = 1
"""The x-priority of every link of every member.

It marks the consumers of a group for reports. It must be the same for all: RabbitMQ 4.3 has an active consumer give way
to one of a higher priority, and keeps it if its channel ends meanwhile, so that the shard stands still.
"""

_PRIORITY = b"\x0ax-priorityl" + U64.pack(PRIORITY)
"""The field of a consumer's priority."""

_TIMEOUT = b"\x12x-consumer-timeout"
"""The name of the field of a consumer timeout: brokers before 4.3 ignore it, 4.3 refuses it for a classic queue."""


def consuming_of(c: Connection) -> Consuming:
    """Return the session's consuming from groups. Raises RuntimeError where the setting `groups` is empty."""
    if c.consuming is None:
        raise RuntimeError("the setting `groups` is empty")
    return c.consuming


def tell(c: Connection, numbering: Numbering, frame: bytes) -> None:
    """Send the client a frame that this proxy made, after the content that is half sent on the same channel."""
    if numbering.busy is not None:
        numbering.told.append(frame)
    else:
        c.to_client.insert(frame)


def flush(c: Connection) -> None:
    """Send the broker the frames that are due on hidden channels.

    The loop over the client's frames must not call it: that loop may be in the midst of a frame, and sends the due
    frames itself after that frame.
    """
    if c.consuming is not None and c.consuming.due:
        c.to_broker.insert(c.consuming.take_due())


# How a link begins and ends.


def open_link(c: Connection, consumer: Consumer, shard: str) -> str:
    """Open a link to a shard of which the member has none; return why that cannot be, or an empty string."""
    consuming, member = consuming_of(c), consumer.member
    if shard in member.links:
        return ""
    if not consuming.has_room:
        return f"all {consuming.most} hidden channels of the client's connection are in use"
    link = member.links[shard] = Link(member, shard)
    link.since = time.time()
    hidden = consuming.take(consumer, link)
    consuming.due.append(enter(c, hidden, link, LinkEvent.WANT))
    return ""


def let_go(c: Connection, member: Member, shard: str) -> None:
    """Have a member's link end once the client has settled what it got of it."""
    link = member.links.get(shard)
    hidden = _channel_of(c, link) if link is not None else None
    if link is not None and hidden is not None:
        consuming_of(c).due.append(_let_go(c, hidden, link))


def give_up(c: Connection, member: Member, shard: str) -> None:
    """Have a member's link end at once: what is unacked goes back to the queue, and later acks of it are ignored."""
    link = member.links.get(shard)
    hidden = _channel_of(c, link) if link is not None else None
    if link is not None and hidden is not None:
        consuming_of(c).due.append(enter(c, hidden, link, LinkEvent.GIVE_UP))


def settled(c: Connection, hidden: HiddenChannel, link: Link) -> bytes:
    """Return the channel.close of a link that is leaving and of which nothing is unacked; empty otherwise."""
    if link.state != LinkState.LEAVING or link.unacked or link.member.no_ack:
        return b""
    return enter(c, hidden, link, LinkEvent.SETTLED)


def _let_go(c: Connection, hidden: HiddenChannel, link: Link) -> bytes:
    return enter(c, hidden, link, LinkEvent.LET_GO) + settled(c, hidden, link)


def enter(c: Connection, hidden: HiddenChannel, link: Link, event: LinkEvent) -> bytes:
    """Have a link take an event, and have its group told; return the frames that the broker is to get."""
    action = link.enter(event, c.now)
    if hidden.consumer.joined:
        c.events.append(LinkChanged(link.member))
    if action == LinkAction.SUBSCRIBE:
        return _subscription(c, hidden, link)
    if action == LinkAction.CANCEL:
        return method_frame(hidden.number, BASIC_CANCEL, shorted(link.member.tag) + b"\0")
    return closing_frame(hidden) if action == LinkAction.CLOSE else b""


def _subscription(c: Connection, hidden: HiddenChannel, link: Link) -> bytes:
    """Return the frames that open a link's channel and consumer."""
    consuming, member, number = consuming_of(c), link.member, hidden.number
    table = hidden.consumer.arguments + _PRIORITY
    if consuming.consumer_timeout and link.shard not in consuming.untimed:
        table += _TIMEOUT + b"l" + U64.pack(consuming.consumer_timeout)
    queue, tag = shorted(link.shard.encode()), shorted(member.tag)
    bits = bytes((NO_ACK if member.no_ack else 0,))
    qos = U32.pack(0) + U16.pack(member.prefetch) + b"\0"
    return (
        method_frame(number, CHANNEL_OPEN, b"\0")
        + method_frame(number, BASIC_QOS, qos)
        + method_frame(number, BASIC_CONSUME, b"\0\0" + queue + tag + bits + U32.pack(len(table)) + table)
    )


def _channel_of(c: Connection, link: Link) -> HiddenChannel | None:
    """Return the hidden channel of a link; None if it is closed."""
    source = consuming_of(c).sources.get(link.channel)
    return source if isinstance(source, HiddenChannel) and source.link is link else None


# How a hidden channel ends.


def close(c: Connection, hidden: HiddenChannel) -> None:
    """Close a hidden channel at the broker. A content of it that is half sent to the client is sent to its end."""
    if hidden.closing:
        return
    link = hidden.link
    frames = enter(c, hidden, link, LinkEvent.GIVE_UP) if link is not None else closing_frame(hidden)
    consuming_of(c).due.append(frames)


def closing_frame(hidden: HiddenChannel) -> bytes:
    """Return the channel.close of a hidden channel, which takes no acks from now on."""
    hidden.closing = hidden.ended = True
    return close_frame(hidden.number, REPLY_SUCCESS, "a consumer of a group leaves a shard")


def closed_by_broker(c: Connection, hidden: HiddenChannel) -> None:
    """Handle a hidden channel that the broker has closed and whose close-ok was sent."""
    hidden.ended = True
    if hidden.link is not None:
        enter(c, hidden, hidden.link, LinkEvent.REFUSED)
    if not hidden.closing:
        consuming_of(c).gone(hidden)


def gone(c: Connection, hidden: HiddenChannel) -> None:
    """Take a hidden channel's number back, since the broker has answered its channel.close."""
    consuming_of(c).gone(hidden)
    if hidden.link is not None and hidden.link.state != LinkState.NONE:
        enter(c, hidden, hidden.link, LinkEvent.CLOSED)


def is_untimed(c: Connection, link: Link, code: int, text: str) -> bool:
    """Return whether a link has ended since its queue refuses a consumer timeout; the next one goes without."""
    if code != PRECONDITION_FAILED or "x-consumer-timeout" not in text:
        return False
    consuming_of(c).untimed.add(link.shard)
    return True


def refused(c: Connection, link: Link, code: int, text: str) -> None:
    """Have the group told that the broker has ended a link with this reply code and text."""
    c.events.append(LinkRefused(link.member, link.shard, code, text))


# How a member leaves.


def leave(c: Connection, consumer: Consumer) -> None:
    """Let a member leave: each link ends once the client has settled what it holds of it, and gets nothing more.

    What the broker has sent and the client has not got stays unacked until the link ends, so the next member gets all
    of it in order. A member without acks holds nothing: its links end once the broker has sent all that it will.
    """
    if consumer.leaving:
        return
    if ok := consume_ok(consumer):
        # The client waits for it before it takes the answer to its basic.cancel.
        tell(c, consumer.numbering, ok)
    forget(c, consumer)
    for hidden in list(consumer.hidden):
        if hidden.link is None:
            close(c, hidden)
        else:
            consuming_of(c).due.append(_let_go(c, hidden, hidden.link))


def forget(c: Connection, consumer: Consumer) -> None:
    """Remove a member from this session, and have the groups told that it has left."""
    consuming, member = consuming_of(c), consumer.member
    consumer.leaving = True
    consuming.consumers.pop(member, None)
    if consuming.by_tag.get((member.channel, member.tag)) is consumer:
        del consuming.by_tag[member.channel, member.tag]
    if consumer.joined:
        c.events.append(Left(member))


def lose_all(c: Connection) -> list[Member]:
    """Note that the connection to the broker has ended; return the members that have ended with it."""
    consuming = consuming_of(c)
    members = dict.fromkeys(consuming.consumers)
    for source in list(consuming.sources.values()):
        if isinstance(source, HiddenChannel) and source.link is not None and source.link.state != LinkState.NONE:
            source.link.enter(LinkEvent.LOST, c.now)
            members[source.link.member] = None
    return list(members)


def end_channel(c: Connection, channel: Channel) -> None:
    """End all members of a client's channel, which the client, the broker or this proxy closes."""
    consuming, numbering = c.consuming, channel.numbering
    if consuming is None or numbering is None or numbering.is_ordinary:
        return
    for source in list(consuming.sources.values()):
        if isinstance(source, HiddenChannel) and source.numbering is numbering:
            source.consumer.owes_ok = source.consumer.owes_cancel_ok = False
            if not source.consumer.leaving:
                forget(c, source.consumer)
            close(c, source)
    for consumer in list(consuming.consumers.values()):
        if consumer.channel is channel:
            forget(c, consumer)


def drop_channel(c: Connection, channel: Channel) -> None:
    """Forget the numbering of a client's channel that is no more."""
    end_channel(c, channel)
    consuming, numbering = c.consuming, channel.numbering
    if consuming is None or numbering is None:
        return
    numbering.forget_tags()
    if consuming.sources.get(channel.id) is numbering.own:
        del consuming.sources[channel.id]


def consume_ok(consumer: Consumer) -> bytes:
    """Return the client's basic.consume-ok if it is due; empty otherwise."""
    if not consumer.owes_ok:
        return b""
    consumer.owes_ok = False
    return method_frame(consumer.channel.id, BASIC_CONSUME_OK, shorted(consumer.member.tag))


def cancel_ok(consumer: Consumer) -> bytes:
    """Return the client's basic.cancel-ok if it is due and all links have ended; empty otherwise."""
    waits = any(hidden.link is not None and not hidden.closing for hidden in consumer.hidden)
    if not consumer.owes_cancel_ok or waits:
        return b""
    consumer.owes_cancel_ok = False
    return method_frame(consumer.channel.id, BASIC_CANCEL_OK, shorted(consumer.member.tag))
