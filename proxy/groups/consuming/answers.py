"""The broker's methods on a hidden channel besides deliveries: answers, and the ends of consumers and channels."""

from proxy.groups.consuming import group_name, links
from proxy.groups.consuming.events import JoinAsked, Shadowed
from proxy.groups.consuming.hidden import Consumer, Consuming, HiddenChannel
from proxy.groups.model import Link, LinkEvent, LinkState
from proxy.session import closing
from proxy.wire.arguments import Arguments
from proxy.wire.frames import (
    ACCESS_REFUSED,
    BASIC_CANCEL,
    BASIC_CANCEL_OK,
    BASIC_CONSUME,
    BASIC_CONSUME_OK,
    CHANNEL_CLOSE,
    CHANNEL_CLOSE_OK,
    NOT_FOUND,
    QUEUE_DECLARE_OK,
    method_frame,
)

_LEAVING = (LinkState.LEAVING, LinkState.FLUSHING)
"""The states of a link that another member is to follow, so that its end is no news."""


def take(g: Consuming, hidden: HiddenChannel, method: int, data: bytes, i: int, end: int) -> bytes:
    """Take a method of the broker's on a hidden channel; return the frames that the client gets, mostly none."""
    if method == CHANNEL_CLOSE_OK:
        links.gone(g, hidden)
        return links.cancel_ok(hidden.consumer)
    if hidden.consumer.question is not None and not hidden.closing:
        group_name.answered(g, hidden, hidden.consumer.question, method, data, i, end)
        return b""
    if method == CHANNEL_CLOSE:
        return _closed(g, hidden, data, i, end)
    link, consumer = hidden.link, hidden.consumer
    if hidden.closing:
        return b""
    if link is None:
        _told(g, hidden, method)
        return b""
    if method == BASIC_CONSUME_OK:
        link.member.pauses.pop(link.shard, None)
        consumer.consumes = True
        g.due.append(links.enter(g, hidden, link, LinkEvent.CONSUMING))
        return links.cancel_ok(consumer)
    return _cancelled(g, hidden, link) if method in (BASIC_CANCEL, BASIC_CANCEL_OK) else b""


def _cancelled(g: Consuming, hidden: HiddenChannel, link: Link) -> bytes:
    """Take it that the broker delivers no more: the queue is gone, or a link without acks has got all that was due."""
    is_leaving = link.state in _LEAVING
    event = LinkEvent.SETTLED if is_leaving and link.member.no_ack else LinkEvent.CANCELLED
    g.due.append(links.enter(g, hidden, link, event))
    if not is_leaving:
        links.refused(g, link, 0, "the broker has cancelled the consumer")
    return links.cancel_ok(hidden.consumer)


def _told(g: Consuming, hidden: HiddenChannel, method: int) -> None:
    """Take the broker's answer whether a queue has the name of a group that the client wants to consume.

    If one has, it wins over the group: the member is forgotten, and the client's basic.consume goes to the broker.
    """
    if method != QUEUE_DECLARE_OK:
        return
    links.close(g, hidden)
    consumer = hidden.consumer
    joining = consumer.numbering.joining
    if joining is not None and joining.member is consumer.member:
        joining.decided = True
        links.forget(g, consumer)
        g.events.append(Shadowed(consumer.member.group))


def _closed(g: Consuming, hidden: HiddenChannel, data: bytes, i: int, end: int) -> bytes:
    """Take the broker's channel.close of a hidden channel, whose reason is the client's business in two cases only.

    Returns the basic.cancel-ok that the client waits for; empty if none is due.
    """
    arguments = Arguments(data, i, end)
    code, text = arguments.short(), arguments.short_string().decode(errors="replace")
    # It goes behind what is due on the channel before, which may be this proxy's channel.close.
    g.due.append(method_frame(hidden.number, CHANNEL_CLOSE_OK))
    closing_already, consumer, link = hidden.closing, hidden.consumer, hidden.link
    is_leaving = link is not None and link.state in _LEAVING
    links.closed_by_broker(g, hidden)
    if closing_already:
        return b""
    if link is None:
        _answered(g, consumer, code, text)
    elif code == ACCESS_REFUSED and not consumer.consumes and not consumer.leaving:
        refuse(g, consumer, code, group_name.not_permitted(g, consumer.member.group, text))
    elif not is_leaving and not links.is_untimed(g, link, code, text):
        links.refused(g, link, code, text)
    return links.cancel_ok(consumer)


def _answered(g: Consuming, consumer: Consumer, code: int, text: str) -> None:
    """Take the answer that no queue has the name, or that the broker does not tell."""
    joining = consumer.numbering.joining
    if joining is None or joining.member is not consumer.member:
        return
    if code == ACCESS_REFUSED:
        refuse(g, consumer, code, group_name.not_permitted(g, consumer.member.group, text))
    elif code != NOT_FOUND:
        refuse(g, consumer, code, text)
    elif joining.refusal is not None:
        refuse(g, consumer, *joining.refusal)
    else:
        consumer.joined = True
        g.events.append(JoinAsked(consumer.member))


def refuse(g: Consuming, consumer: Consumer, code: int, text: str) -> None:
    """Close the client's channel, since its member cannot consume; `text` may begin with the code's name."""
    closing.refuse_channel(g.c, consumer.channel, code, text, BASIC_CONSUME)
