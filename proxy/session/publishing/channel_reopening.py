"""The channel of a client that the broker closes because a lane is gone, and that is opened again unseen by its client.

A publish to an exchange that does not exist ends its channel with 404, where a queue's end is a return. All publishes
that the client sent before it are in their queues, and all behind it are dropped (of 2,000 and 2,000 publishes all and
none; RabbitMQ 3.10.8 and 4.3.6). Which publish it was, the broker does not say, and its last acks are lost. The client
therefore gets a nack for each publish without an answer, and goes on with its channel and its delivery tags.

The channel can be opened again only where nothing else is lost with the broker's: no consumer, transaction or open
request. And a client without confirms could not be told which publishes are lost, so its channel is closed.
"""

from collections.abc import Callable

from proxy.session.channel import Channel
from proxy.session.connection import Connection
from proxy.session.events import Reopened
from proxy.session.publishing import placement
from proxy.session.publishing.confirms import Answer
from proxy.session.state import EXPECT_BODY, EXPECT_HEADER, EXPECT_METHOD, ChannelState
from proxy.wire.content import body_size
from proxy.wire.frames import (
    BODY,
    CHANNEL_CLOSE_OK,
    CONFIRM_SELECT,
    HEADER,
    HEARTBEAT,
    LEAST_HEADER,
    OVERHEAD,
    UNEXPECTED_FRAME,
    Fault,
    channel_open,
    method_frame,
)

_NOWAIT = b"\1"


def may_reopen(c: Connection, channel: Channel) -> bool:
    """Return whether a channel can be opened again such that its client misses nothing but answers to publishes."""
    confirms = channel.confirms
    return (
        c.running
        and channel.state == ChannelState.OPEN
        and confirms.answered
        and not confirms.base  # else the answer to confirm.select may be lost
        and not channel.transactional
        and not channel.has_other_state
        and not channel.pending
        and not channel.deferred
    )


def reopen(c: Connection, channel: Channel, text: str) -> bytes:
    """Take the broker's channel.close in the client's stead, and open the channel again; `text` is the broker's reason.

    Returns the nacks that the client gets. A content that the client is sending goes on to its end first, though the
    broker drops it: a method in its midst would be a connection error (505, observed). Its publish gets its nack then.
    """
    confirms = channel.confirms
    inside = channel.expect != EXPECT_METHOD and not channel.withheld
    unanswered = confirms.unsettled
    answers = confirms.restart(inside=inside)
    channel.sampled = 0
    if inside:
        channel.enter(ChannelState.CUT)
    else:
        c.to_broker.insert(_opening(channel))
    c.events.append(Reopened(channel, text, unanswered))
    return placement.answer_frames(channel, answers)


def _opening(channel: Channel) -> bytes:
    """Return the frames that end the channel which the broker has closed, and open it again in confirm mode."""
    channel.reopening += 1
    return (
        method_frame(channel.id, CHANNEL_CLOSE_OK)
        + channel_open(channel.id)
        + method_frame(channel.id, CONFIRM_SELECT, _NOWAIT)
    )


def broker_opened(c: Connection, channel: Channel, method: int, data: bytes, i: int, end: int) -> bytes | None:
    """Take the broker's channel.open-ok; return b"" for a channel that was opened again, else None: it passes."""
    if not channel.reopening:
        return None
    channel.reopening -= 1
    return b""


def rest_of_content(
    c: Connection,
    channel: Channel,
    kind: int,
    data: bytes,
    i: int,
    end: int,
    behind: Callable[[Connection, Channel], bytes],
) -> bytes | None:
    """Pass the rest of a content on, on a channel that ends, and the frames that `behind` makes after its last frame.

    A method amidst a content would be a connection error (505), so these frames wait for its end. Returns None if the
    frame goes on as it is, else the bytes in its place. Raises Fault for another frame than the content's next.
    """
    length = end - i - OVERHEAD
    if kind == HEADER and channel.expect == EXPECT_HEADER and length >= LEAST_HEADER:
        channel.left = body_size(data, i + 7)
    elif kind == BODY and channel.expect == EXPECT_BODY and length <= channel.left:
        channel.left -= length
    elif kind == HEARTBEAT:
        return None
    else:
        raise Fault(UNEXPECTED_FRAME, "another frame where the rest of a content must come")
    channel.expect = EXPECT_BODY if channel.left else EXPECT_METHOD
    if channel.left:
        return None
    frames = behind(c, channel)
    if end > len(data):
        c.to_broker.queued.append(frames)
        return None
    return data[i:end] + frames


def reopened(c: Connection, channel: Channel) -> bytes:
    """Open a channel again behind the content that its client was sending; that publish gets its nack."""
    channel.enter(ChannelState.OPEN)
    cut: Answer = (channel.confirms.number, False, False)
    c.to_client.insert(placement.answer_frames(channel, [cut]))
    return _opening(channel)
