"""The links of members: how each is opened on a hidden channel, and how it ends without putting a key out of order.

A link always ends by a bare channel.close: the broker then puts what is not acked back in its order. After a
basic.cancel with messages unacked the next consumer would get later messages first (measured: 50-99 before 0-49).
"""

import time

from proxy.groups.claims import lowest
from proxy.groups.member import Link, LinkState
from proxy.session.channel import Channel
from proxy.session.connection import Connection
from proxy.session.events import Left
from proxy.session.hidden import Consumer, Consuming, HiddenChannel, Wanted
from proxy.session.numbering import Numbering
from proxy.session.state import ChannelState
from proxy.wire.frames import (
    BASIC_CANCEL,
    BASIC_CANCEL_OK,
    BASIC_CONSUME,
    BASIC_CONSUME_OK,
    BASIC_NACK,
    BASIC_QOS,
    CHANNEL_OPEN,
    END,
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

_MULTIPLE = 1
_REQUEUE = 2
"""The bits of basic.nack."""

_PRIORITY = b"\x0ax-priorityl"
"""The field of a consumer's priority up to its value, which is a 64-bit integer."""


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


def subscribe(c: Connection, consumer: Consumer, shard: str, priority: int, *, is_probe: bool = False) -> None:
    """Open a link to a shard in place of the older one, if there is one.

    Nothing happens while messages of the older link are unacked, by the client or, of a probe that is not safe yet, by
    this proxy. While no channel number is free, the new link waits for one, and the older one stays. A link of another
    priority waits for the end of the older one, and the member has none meanwhile.
    """
    if consumer.leaving or not c.running or consumer.channel.state != ChannelState.OPEN:
        return
    consuming, key, present = consuming_of(c), (consumer, shard), consumer.member.links.get(shard)
    if present is None and key in consuming.wanted:
        return
    if present is not None and (present.unacked or (present.withheld and not present.is_safe)):
        return
    if present is not None and _ends_first(consumer, present, priority) and consuming.has_room:
        consuming.wanted[key] = Wanted(priority, is_probe, _channel_of(c, present))
        end_link(c, present)
        return
    # The next link is there before the last one ends, so that no other member gets the shard in between.
    link = _open(c, consumer, shard, priority, is_probe)
    if present is None or link is None:
        return
    if present.withheld:
        link.behind, link.delivered_at = present, present.delivered_at
    elif consumer.member.no_ack:
        _let_end(c, present)
    else:
        end_link(c, present)


def _ends_first(consumer: Consumer, present: Link, priority: int) -> bool:
    """Return whether a link is to end before the one in its place, of this priority, is opened.

    One of another priority may just have become the active one, with messages on their way. RabbitMQ 4.3 would keep it
    if it ended while the new one waits above it.
    """
    return priority != present.priority and not present.withheld and not consumer.member.no_ack


def hand_over(c: Connection, consumer: Consumer, shard: str) -> None:
    """Let a member give a shard up: its link ends once the client has settled what it holds of it.

    A consumer that gives way to one of a higher priority would do so as well. But RabbitMQ 4.3 keeps it if its channel
    ends meanwhile. One above which nobody waits is removed as it should be.
    """
    consuming_of(c).wanted.pop((consumer, shard), None)
    present = consumer.member.links.get(shard)
    hidden = _channel_of(c, present) if present is not None else None
    if present is None or (present.is_probe and present.delivered and not present.is_safe):
        return
    if hidden is not None and c.running:
        member = consumer.member
        member.leaving = [link for link in member.leaving if link.state == LinkState.LEAVING]
        _end_settled(c, consumer, hidden)


def release(c: Connection, consumer: Consumer, shard: str) -> None:
    """End a member's links to a shard even if messages are unacked, and open one of the lowest priority."""
    if not c.running:
        return
    consuming_of(c).wanted.pop((consumer, shard), None)
    present = consumer.member.links.get(shard)
    for link in (present and present.behind, present, *consumer.member.leaving):
        if link is not None and link.shard == shard:
            end_link(c, link)
    _open(c, consumer, shard, 0, is_probe=False)


def end_link(c: Connection, link: Link) -> None:
    """End a link: its unacked messages go back to their queue in order, and later acks of them are ignored."""
    hidden = _channel_of(c, link)
    if hidden is not None:
        close(c, hidden)


def _let_end(c: Connection, link: Link) -> None:
    """End a link without acks by basic.cancel: what RabbitMQ has sent until then still reaches the client."""
    hidden = _channel_of(c, link)
    if hidden is not None and not hidden.closing and link.state != LinkState.LEAVING:
        _unlink(hidden, LinkState.LEAVING)
        consuming_of(c).due.append(method_frame(hidden.number, BASIC_CANCEL, shorted(link.member.tag) + b"\0"))


def _channel_of(c: Connection, link: Link) -> HiddenChannel | None:
    """Return the hidden channel of a link; None if it is closed."""
    source = consuming_of(c).sources.get(link.channel)
    return source if isinstance(source, HiddenChannel) and source.link is link else None


def _open(c: Connection, consumer: Consumer, shard: str, priority: int, is_probe: bool) -> Link | None:
    """Open a link and return it; while there is no room for it, return None and have it opened later.

    A priority of 0 stands for one below those of all present members.
    """
    consuming, member = consuming_of(c), consumer.member
    if not consuming.has_room:
        waits = consuming.wanted.get((consumer, shard), Wanted(0, is_probe))
        consuming.wanted[consumer, shard] = waits._replace(priority=priority or waits.priority, is_probe=is_probe)
        return None
    priority = priority or lowest(time.time())
    link = member.links[shard] = Link(member, shard, 0, priority, c.now)
    link.is_probe = is_probe and not member.no_ack
    hidden = consuming.take(consumer, link)
    number = hidden.number
    table = consumer.arguments + _PRIORITY + U64.pack(priority & 0xFFFFFFFFFFFFFFFF)
    if consuming.consumer_timeout and shard not in consuming.untimed:
        table += _TIMEOUT + b"l" + U64.pack(consuming.consumer_timeout)
    queue, tag = shorted(shard.encode()), shorted(member.tag)
    bits = bytes((NO_ACK if member.no_ack else 0,))
    qos = U32.pack(0) + U16.pack(1 if link.is_probe else member.prefetch) + b"\0"
    consuming.due += (
        method_frame(number, CHANNEL_OPEN, b"\0"),
        method_frame(number, BASIC_QOS, qos),
        method_frame(number, BASIC_CONSUME, b"\0\0" + queue + tag + bits + U32.pack(len(table)) + table),
    )
    return link


def opened(c: Connection, link: Link) -> None:
    """Note that the broker has confirmed a link's consumer, and end the probe in whose place the link comes."""
    if link.state == LinkState.OPENING:
        link.state = LinkState.PROBING if link.is_probe else LinkState.OPEN
    probe, link.behind = link.behind, None
    if probe is not None and (hidden := _channel_of(c, probe)) is not None:
        close(c, hidden, _returned(c, hidden) if probe.unacked else b"")


def put_back(c: Connection, hidden: HiddenChannel, link: Link, tag: int) -> None:
    """Return the message that a probe has got, which comes for the first time, and open an ordinary link for it.

    No other consumer holds earlier ones, since they would have come back before it. The client gets it by the next
    link, as it may ack only when it has more than one message.
    """
    link.is_safe = True
    link.withheld = hidden.settle_start + U32.pack(BASIC_NACK) + U64.pack(tag) + bytes((_REQUEUE, END))
    subscribe(c, hidden.consumer, link.shard, link.priority + 1)


def widen(c: Connection, consumer: Consumer, shard: str) -> None:
    """Replace a probe by an ordinary link of the next higher priority, as no other consumer holds messages any more.

    Once that link is open, the broker gets the client's answer to the message of the probe. If there is none by then,
    the message comes again by that link, and to no other member.
    """
    probe = consumer.member.links.get(shard)
    if probe is None or not probe.is_probe or consumer.channel.state != ChannelState.OPEN:
        return
    probe.is_safe = True
    link = _open(c, consumer, shard, probe.priority + 1, is_probe=False)
    if link is not None:
        link.behind, link.delivered_at = probe, probe.delivered_at


def close(c: Connection, hidden: HiddenChannel, before: bytes = b"") -> None:
    """Close a hidden channel at the broker, behind the frames in `before`.

    A content of it that is half sent to the client is sent to its end.
    """
    if not hidden.closing:
        consuming_of(c).due.append(before + _closing(c, hidden))


def _closing(c: Connection, hidden: HiddenChannel) -> bytes:
    """Return what closes a hidden channel, whose link has ended; before it, what a safe probe has withheld."""
    owed = _owed(hidden) + _held(c, hidden)
    hidden.closing = hidden.ended = True
    _unlink(hidden, LinkState.CLOSING)
    return owed + close_frame(hidden.number, REPLY_SUCCESS, "a consumer of a group leaves a shard")


def give_back(c: Connection) -> bytes:
    """Return the frames that the links of a session, which is about to end, owe the broker.

    They are the answers that probes have withheld, where these are safe, and what returns messages.
    """
    sources = c.consuming.sources.values() if c.consuming is not None else ()
    open_ = [each for each in sources if isinstance(each, HiddenChannel) and not each.closing]
    return b"".join([_owed(each) + _held(c, each) for each in open_])


def _owed(hidden: HiddenChannel) -> bytes:
    """Return the answer to its message that a probe has withheld; empty if there is none, or if it is not safe."""
    link = hidden.link
    return link.withheld if link is not None and link.is_safe and not hidden.ended else b""


def _held(c: Connection, hidden: HiddenChannel) -> bytes:
    """Return the nack that returns all that a link holds, in its order; empty where its end does so as well.

    RabbitMQ 4.3 keeps a consumer whose channel ends while it holds messages and gives way to another one. To one that
    does not give way, the broker would deliver the messages once more, behind newer ones that are on their way.
    """
    link = hidden.link
    if link is None or not link.gives_way(c.now) or (not link.is_open and link.state != LinkState.LEAVING):
        return b""
    return _returned(c, hidden)


def _returned(c: Connection, hidden: HiddenChannel) -> bytes:
    """Return the nack of all that the broker counts as unacked on a hidden channel; empty if it keeps no consumers."""
    if hidden.link is None or hidden.link.member.no_ack or hidden.ended or not c.handshake.keeps_consumers:
        return b""
    return hidden.settle_start + U32.pack(BASIC_NACK) + U64.pack(0) + bytes((_MULTIPLE | _REQUEUE, END))


def closed_by_broker(c: Connection, hidden: HiddenChannel) -> None:
    """Handle a hidden channel that the broker has closed and whose close-ok was sent."""
    hidden.ended = True
    _unlink(hidden, LinkState.ENDED)
    if not hidden.closing:
        gone(c, hidden)


def gone(c: Connection, hidden: HiddenChannel) -> None:
    """Take a hidden channel's number back, and open the links that have waited for it, or for any number."""
    consuming = consuming_of(c)
    consuming.gone(hidden)
    if hidden.link is not None:
        hidden.link.state = LinkState.ENDED
    while consuming.has_room and (key := consuming.next_wanted()) is not None:
        waits = consuming.wanted.pop(key)
        subscribe(c, *key, waits.priority, is_probe=waits.is_probe)


def open_untimed(c: Connection, consumer: Consumer, link: Link, code: int, text: str) -> bool:
    """Open a link again whose consumer timeout its queue has refused; return whether that is why the link has ended."""
    if code != PRECONDITION_FAILED or "x-consumer-timeout" not in text:
        return False
    consuming_of(c).untimed.add(link.shard)
    subscribe(c, consumer, link.shard, link.priority, is_probe=link.is_probe)
    return True


def close_unsettled(c: Connection, before: float) -> None:
    """Close the links that are leaving and hold a delivery made before a time, monotonic: their clients do not ack."""
    for hidden in list(consuming_of(c).leaving):
        if hidden.first is not None and hidden.first.at < before and not hidden.closing:
            close(c, hidden)
    flush(c)


def _unlink(hidden: HiddenChannel, state: LinkState) -> None:
    link = hidden.link
    if link is not None:
        link.state = state
        if link.member.links.get(link.shard) is link:
            del link.member.links[link.shard]
            if link.behind is not None and link.behind.state == LinkState.PROBING:
                link.member.links[link.shard] = link.behind


def leave(c: Connection, consumer: Consumer) -> None:
    """Let a member leave: each link ends once the client has settled what it holds of it, and gets nothing more.

    What the broker has sent and the client has not got stays unacked until the link ends, so the next member gets all
    of it in order. A member without acks holds nothing: its links end once the broker has sent all that it will.
    """
    if consumer.leaving:
        return
    if ok := consume_ok(consumer):
        # No link would bring it any more, and the client waits for it before it takes the answer to its basic.cancel.
        tell(c, consumer.numbering, ok)
    forget(c, consumer)
    for hidden in list(consumer.hidden):
        if hidden.link is None or hidden.link.state != LinkState.LEAVING:
            _end_settled(c, consumer, hidden)


def _end_settled(c: Connection, consumer: Consumer, hidden: HiddenChannel) -> None:
    """End a hidden channel, of a link that holds messages once the client has settled these."""
    link = hidden.link
    if hidden.closing or link is None:
        close(c, hidden)
    elif consumer.member.no_ack:
        _let_end(c, link)
    elif link.unacked:
        _unlink(hidden, LinkState.LEAVING)
        consumer.member.leaving.append(link)
        consuming_of(c).leaving[hidden] = None
    else:
        close(c, hidden)


def abandon(c: Connection) -> None:
    """Count the links that are leaving as ended, since the client's and the broker's connection have ended."""
    for hidden in consuming_of(c).leaving:
        if hidden.link is not None:
            hidden.link.state = LinkState.ENDED


def forget(c: Connection, consumer: Consumer) -> None:
    """Remove a member from this session, and have the groups told that it has left."""
    consuming, member = consuming_of(c), consumer.member
    consumer.leaving = True
    consuming.consumers.pop(member, None)
    for wanted in [each for each in consuming.wanted if each[0] is consumer]:
        del consuming.wanted[wanted]
    if consuming.by_tag.get((member.channel, member.tag)) is consumer:
        del consuming.by_tag[member.channel, member.tag]
    if consumer.joined:
        c.events.append(Left(member))


def close_settled(c: Connection, hidden: HiddenChannel) -> bytes:
    """Return the channel.close of a link that is leaving and of which nothing is unacked; empty otherwise."""
    link = hidden.link
    if link is None or link.state != LinkState.LEAVING or link.unacked or link.member.no_ack:
        return b""
    return _closing(c, hidden)


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
    """Return the client's basic.consume-ok if it is due although no link is open yet; empty otherwise."""
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
