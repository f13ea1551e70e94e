"""The links of members at work: what the broker is sent on a hidden channel when a link changes its state.

`TABLE` in `proxy/groups/model.py` has the states and says what is sent; `enter` is the one way into it from a session.
"""

import time

from proxy.groups.consuming import retries
from proxy.groups.consuming.events import Left, LinkBroken, LinkChanged, LinkRefused
from proxy.groups.consuming.hidden import Consumer, Consuming, HiddenChannel
from proxy.groups.consuming.tags import UNSETTLED, Numbering, TaggedSource, numbering_of
from proxy.groups.model import MOST_UNDER_WAY, Link, LinkAction, LinkEvent, LinkState, Member
from proxy.session.channel import Channel
from proxy.topology.marker import LINK_PRIORITY
from proxy.wire.frames import (
    BASIC_CANCEL,
    BASIC_CANCEL_OK,
    BASIC_CONSUME,
    BASIC_CONSUME_OK,
    BASIC_QOS,
    INTERNAL_ERROR,
    NO_ACK,
    PRECONDITION_FAILED,
    REPLY_SUCCESS,
    U16,
    U32,
    U64,
    channel_open,
    close_frame,
    method_frame,
    shorted,
)

_GIVES = (LinkState.OPENING, LinkState.OPEN)
"""The states of a link by which a client may still get messages."""

_PRIORITY = b"\x0ax-priorityl" + U64.pack(LINK_PRIORITY)
"""The field of a consumer's priority."""

_TIMEOUT = b"\x12x-consumer-timeout"
"""The name of the field of a consumer timeout: brokers before 4.3 ignore it, 4.3 refuses it for a classic queue."""


def tell(g: Consuming, numbering: Numbering, frame: bytes) -> None:
    """Send the client a frame that this proxy made, after the content that is half sent on the same channel."""
    if numbering.busy is not None:
        numbering.told.append(frame)
    else:
        g.c.to_client.insert(frame)


# How a link begins and ends.


def open_link(g: Consuming, consumer: Consumer, shard: str) -> str:
    """Open a link to a shard of which the member has none; return why that cannot be, or an empty string."""
    member = consumer.member
    if shard in member.links:
        return ""
    if not g.has_room:
        return f"all {g.most} hidden channels of the client's connection are in use"
    link = member.links[shard] = Link(member, shard)
    link.since = time.time()
    hidden = g.take(consumer, link)
    g.due.append(enter(g, hidden, link, LinkEvent.WANT))
    return ""


def let_go(g: Consuming, member: Member, shard: str) -> None:
    """Have a member's link end once the client has settled what it got of it."""
    link = member.links.get(shard)
    hidden = _channel_of(g, link) if link is not None else None
    if link is not None and hidden is not None:
        g.due.append(end_when_settled(g, hidden, link))


def give_up(g: Consuming, member: Member, shard: str) -> None:
    """Have a member's link end at once: what is unacked goes back to the queue, and later acks of it are ignored."""
    link = member.links.get(shard)
    hidden = _channel_of(g, link) if link is not None else None
    if link is not None and hidden is not None:
        g.due.append(enter(g, hidden, link, LinkEvent.GIVE_UP))


def settled(g: Consuming, hidden: HiddenChannel, link: Link) -> bytes:
    """Return what ends a link that is leaving and of which nothing is unacked; empty otherwise."""
    if link.state != LinkState.LEAVING or link.unacked or link.member.no_ack:
        return b""
    acks = hidden.take_acks()
    event = LinkEvent.ACKED if hidden.answers > MOST_UNDER_WAY else LinkEvent.SETTLED
    return acks + enter(g, hidden, link, event)


def end_when_settled(g: Consuming, hidden: HiddenChannel, link: Link) -> bytes:
    """Let a link go; return what ends it if the client holds nothing of it, and what else the broker is to get."""
    return enter(g, hidden, link, LinkEvent.LET_GO) + settled(g, hidden, link)


def enter(g: Consuming, hidden: HiddenChannel, link: Link, event: LinkEvent) -> bytes:
    """Have a link take an event, and have its group told; return the frames that the broker is to get, or b""."""
    was_flushing = link.state == LinkState.FLUSHING
    action = link.enter(event, g.c.now)
    g.flushing += (link.state == LinkState.FLUSHING) - was_flushing
    if hidden.window is not None and link.state not in _GIVES:
        retries.leave(hidden.window, hidden)
    if hidden.consumer.joined:
        g.events.append(LinkChanged(link.member))
    if action == LinkAction.SUBSCRIBE:
        return _subscription(g, hidden, link)
    if action == LinkAction.CANCEL:
        return method_frame(hidden.number, BASIC_CANCEL, shorted(link.member.tag) + b"\0")
    if action == LinkAction.FLUSH:
        hidden.ended = True
        return _consume(g, hidden, link, _second_tag(link.member))
    if action == LinkAction.FINISH:
        cancel = method_frame(hidden.number, BASIC_CANCEL, shorted(_second_tag(link.member)) + b"\0")
        return cancel + closing_frame(g, hidden)
    return closing_frame(g, hidden) if action == LinkAction.CLOSE else b""


def _subscription(g: Consuming, hidden: HiddenChannel, link: Link) -> bytes:
    """Return the frames that open a link's channel and consumer."""
    member, number = link.member, hidden.number
    qos = U32.pack(0) + U16.pack(member.prefetch) + b"\0"
    return channel_open(number) + method_frame(number, BASIC_QOS, qos) + _consume(g, hidden, link, member.tag)


def _consume(g: Consuming, hidden: HiddenChannel, link: Link, tag: bytes) -> bytes:
    """Return the basic.consume of a consumer of a link's shard."""
    table = hidden.consumer.arguments + _PRIORITY
    if g.consumer_timeout and link.shard not in g.untimed:
        table += _TIMEOUT + b"l" + U64.pack(g.consumer_timeout)
    bits = bytes((NO_ACK if link.member.no_ack else 0,))
    names = shorted(link.shard.encode()) + shorted(tag)
    return method_frame(hidden.number, BASIC_CONSUME, b"\0\0" + names + bits + U32.pack(len(table)) + table)


def _second_tag(member: Member) -> bytes:
    """Return the consumer tag of the second consumer of a link that is FLUSHING, which no client can have chosen."""
    return b"flush-" + member.id.encode()


def _channel_of(g: Consuming, link: Link) -> HiddenChannel | None:
    """Return the hidden channel of a link; None if it is closed."""
    source = g.sources.get(link.channel)
    return source if isinstance(source, HiddenChannel) and source.link is link else None


# How a hidden channel ends.


def close(g: Consuming, hidden: HiddenChannel) -> None:
    """Close a hidden channel at the broker. A content of it that is half sent to the client is sent to its end."""
    if hidden.closing:
        return
    link = hidden.link
    frames = enter(g, hidden, link, LinkEvent.GIVE_UP) if link is not None else closing_frame(g, hidden)
    g.due.append(frames)


def closing_frame(g: Consuming, hidden: HiddenChannel) -> bytes:
    """Return the channel.close of a hidden channel, which takes no acks from now on."""
    acks = hidden.take_acks()
    hidden.closing = hidden.ended = True
    g.closing += 1
    return acks + close_frame(hidden.number, REPLY_SUCCESS, "a consumer of a group leaves a shard")


def closed_by_broker(g: Consuming, hidden: HiddenChannel) -> None:
    """Handle a hidden channel that the broker has closed and whose close-ok was sent."""
    hidden.ended = True
    if hidden.link is not None:
        enter(g, hidden, hidden.link, LinkEvent.REFUSED)
    if not hidden.closing:
        g.gone(hidden)


def gone(g: Consuming, hidden: HiddenChannel) -> None:
    """Take a hidden channel's number back, since the broker has answered its channel.close."""
    g.gone(hidden)
    if hidden.link is not None and hidden.link.state != LinkState.NONE:
        enter(g, hidden, hidden.link, LinkEvent.CLOSED)


def is_untimed(g: Consuming, link: Link, code: int, text: str) -> bool:
    """Return whether a link has ended since its queue refuses a consumer timeout; the next one goes without."""
    if code != PRECONDITION_FAILED or "x-consumer-timeout" not in text:
        return False
    g.untimed.add(link.shard)
    return True


def refused(g: Consuming, link: Link, code: int, text: str) -> None:
    """Have the group told that the broker has ended a link with this reply code and text."""
    g.events.append(LinkRefused(link.member, link.shard, code, text))


def end_connection(g: Consuming, code: int, text: str) -> None:
    """Have the group told of the link for which the broker closes the connection: see `proxy/groups/broken.py`."""
    if code != INTERNAL_ERROR:
        return
    for source in g.sources.values():
        link = source.link if isinstance(source, HiddenChannel) else None
        if link is not None and link.state == LinkState.OPENING and f"queue '{link.shard}' in vhost" in text:
            g.events.append(LinkBroken(link.member, link.shard, text))


# How a member leaves.


def leave(g: Consuming, consumer: Consumer) -> None:
    """Let a member leave: each link ends once the client has settled what it holds of it, and gets nothing more.

    Deliveries that the broker has sent and the client has not got stay unacked until the link ends, and the next member
    gets all of them in order. A member without acks holds nothing: its links end once the broker has sent all that it
    will.
    """
    if consumer.leaving:
        return
    if ok := consume_ok(consumer):
        # The client waits for it before it takes the answer to its basic.cancel.
        tell(g, consumer.numbering, ok)
    forget(g, consumer)
    for hidden in list(consumer.hidden):
        if hidden.link is None:
            close(g, hidden)
        else:
            g.due.append(end_when_settled(g, hidden, hidden.link))


def forget(g: Consuming, consumer: Consumer) -> None:
    """Remove a member from this session, and have the groups told that it has left."""
    member = consumer.member
    consumer.leaving = True
    g.consumers.pop(member, None)
    if g.by_tag.get((member.channel, member.tag)) is consumer:
        del g.by_tag[member.channel, member.tag]
    if consumer.joined:
        g.events.append(Left(member))


def lose_all(g: Consuming) -> list[Member]:
    """Note that the connection to the broker has ended; return the members that have ended with it."""
    members = dict.fromkeys(g.consumers)
    for source in list(g.sources.values()):
        if isinstance(source, TaggedSource):
            source.numbering.end_spans(0, source.numbering.last, UNSETTLED)
        if isinstance(source, HiddenChannel) and source.link is not None and source.link.state != LinkState.NONE:
            source.link.enter(LinkEvent.LOST, g.c.now)
            if source.window is not None:
                retries.leave(source.window, source)
            members[source.link.member] = None
    return list(members)


def end_channel(g: Consuming, channel: Channel) -> None:
    """End all members of a client's channel, which the client, the broker or this proxy closes."""
    numbering = numbering_of(channel)
    if numbering is None or numbering.is_ordinary:
        return
    for source in list(g.sources.values()):
        if isinstance(source, HiddenChannel) and source.numbering is numbering:
            source.consumer.owes_ok = source.consumer.owes_cancel_ok = False
            if not source.consumer.leaving:
                forget(g, source.consumer)
            close(g, source)
    for consumer in list(g.consumers.values()):
        if consumer.channel is channel:
            forget(g, consumer)


def drop_channel(g: Consuming, channel: Channel) -> None:
    """Forget the numbering of a client's channel that is no more."""
    end_channel(g, channel)
    numbering = numbering_of(channel)
    if numbering is None:
        return
    numbering.forget_tags()
    numbering.end_spans(0, numbering.last, UNSETTLED)
    if g.sources.get(channel.id) is numbering.own:
        del g.sources[channel.id]


def consume_ok(consumer: Consumer) -> bytes:
    """Return the client's basic.consume-ok if it is due; empty otherwise."""
    if not consumer.owes_ok:
        return b""
    consumer.owes_ok = False
    return method_frame(consumer.channel.id, BASIC_CONSUME_OK, shorted(consumer.member.tag))


def cancel_ok(consumer: Consumer) -> bytes:
    """Return the client's basic.cancel-ok if it is due; empty otherwise.

    RabbitMQ answers basic.cancel once all earlier acks have reached the queue, so it is not due while a link is
    FLUSHING. A member without acks waits for the ends of all its links, too.
    """
    if not consumer.owes_cancel_ok:
        return b""
    open_links = [each.link for each in consumer.hidden if each.link is not None and not each.closing]
    if any(consumer.member.no_ack or link.state == LinkState.FLUSHING for link in open_links):
        return b""
    consumer.owes_cancel_ok = False
    return method_frame(consumer.channel.id, BASIC_CANCEL_OK, shorted(consumer.member.tag))
