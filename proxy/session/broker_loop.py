"""The loop over the broker's bytes, in any chunking, that makes the client's bytes of them, without I/O.

Frames that nothing here changes stay in the run of bytes that they came in. Acks and nacks are counted; messages that
come back are taken out; `methods.FROM_BROKER` says which other methods are looked at.

Theory of operation
-------------------

`_take` walks over the frames as `client_loop` does: `data[start:i]` is the run that goes on unchanged, and each frame
gets `replaced`, which is None (goes on), b"" (dropped) or other bytes. The broker's channels are of three kinds: the
client's own, one that was kept back for republishing (`own.number`), and hidden ones of the interceptor's.
The first rule that fits decides.

    another channel of the same merge is       the frame is held until that content has come to its end
    amidst a content
    a hidden channel                           deliveries become the client's; `interceptor.hidden_frame` has the rest
    a channel that the client has left         `closing.too_late`
    a method: ack or nack                      counted, and split where publishes are on their way again
    a method of `methods.FROM_BROKER`          its handler; basic.return begins a message that came back
    any other method on a channel with a       `interceptor.from_broker`
    source
    a header or body of a message that came    `returns`, which keeps it from the client and publishes it again
    back
    a frame on the channel for republishing    `returns.on_own_channel`
    anything else                              goes on

A merge makes one channel of several: the client's own channel and hidden ones, each a source. A client must get
the frames of one content without another method between them, so a merge lets one channel at a time through, from a
content's method to the end of its body (`merge.busy`). Frames of the others are held, and are taken again as if they
had come right behind that end. Therefore no body of theirs streams before.

Answers that a frame has decided (`own.released`) go out right behind it, and never inside a frame. Acks reach the
client in the order in which the broker's frames allowed them.
"""

# mypyc: compiled

from struct import error as StructError  # noqa: N812 - the standard library's exceptions begin small
from time import monotonic
from typing import Final

from librt.strings import read_i64_be
from mypy_extensions import i64

from proxy.session import channel_zero, closing, methods
from proxy.session.channel import Channel
from proxy.session.connection import Connection
from proxy.session.handshake import MOST_FRAME_MAX
from proxy.session.publishing import placement, returns
from proxy.session.publishing.parking import Read
from proxy.session.reads import run
from proxy.session.state import ChannelState, Phase
from proxy.wire.frames import BASIC_ACK, BASIC_NACK, BODY, HEADER, METHOD, MULTIPLE, OVERHEAD, Fault, u32, u64

_METHODS: Final = methods.FROM_BROKER
_CONFIRMS: Final = (BASIC_ACK, BASIC_NACK)
_ABANDONED: Final = ChannelState.ABANDONED.value
_LOOK_EVERY: Final = 16
"""The frames, or runs of deliveries, between two looks at the clock, a power of two."""


class BrokerFault(Exception):  # noqa: N818 - as frames.Fault, which is a client's
    """The broker sent what is not AMQP 0-9-1."""


def from_broker(c: Connection, data: bytes) -> None:
    """Take bytes from the broker; append to `to_client.out` and, for messages that came back, to `to_broker.out`.

    A message that came back is parked if an exchange must be read before it can be placed; `after_reading` goes on with
    it. Raises BrokerFault if the bytes are not AMQP 0-9-1. If the session's turn has ended amidst the data,
    `to_client.more` is set, and `from_broker(c, b"")` goes on.
    """
    try:
        _take(c, data)
        if c.republishing.parking:
            _settle(c)
        c.to_broker.flush()
    except (StructError, IndexError, Fault) as error:
        raise BrokerFault(f"a frame that cannot be read: {error}") from None


def after_reading(c: Connection, exchange: bytes, what: Read, asked: float, *, in_time: bool = True) -> None:
    """Go on with the parked messages of an exchange, now that something for them was read, or could not be.

    The reading was asked for at `asked`, monotonic. Where it was not `in_time`, none of them waits for another reading:
    the rings as they are decide.
    """
    own = c.republishing
    if in_time:
        own.parking.was_read(exchange, what, asked)
    else:
        own.parking.give_up(exchange)
    _settle(c)


def _settle(c: Connection) -> None:
    returns.place_parked(c)
    if c.republishing.released:
        c.to_client.insert(_released(c))


def _take(c: Connection, data: bytes) -> None:  # noqa: C901 - one loop, for speed
    """Walk the frames of the broker's bytes: forward runs that need no change, and hand the others to their handlers.

    Raises StructError, IndexError or Fault for a frame that cannot be read, and BrokerFault for one that is too long.
    """
    way, own, channels = c.to_client, c.republishing, c.channels
    if c.phase >= Phase.CLOSED:
        closing.late_from_broker(c, data)
        return
    way.more = False
    if way.rest:
        data, way.rest = way.rest + data, b""
    out, returning, parking = way.out, own.returning, own.parking
    interceptor = c.interceptor
    sources = interceptor.sources if interceptor is not None and interceptor.sources else None
    size, until = len(data), c.turn_ends
    looked: i64 = 0
    i = start = 0
    if way.body_left:
        i = min(way.body_left, size)
        way.body_left -= i
        if way.dropping:
            start = i
            way.dropping = way.body_left > 0
        if way.queued and not way.body_left:
            out.append(data[start:i])
            out += way.queued
            start, way.queued = i, []
    while size - i >= OVERHEAD:
        looked += 1
        if not looked & (_LOOK_EVERY - 1) and monotonic() > until:
            way.more = True
            break
        head = read_i64_be(data, i)
        kind, number = head >> 56 & 0xFF, head >> 40 & 0xFFFF
        length: int = head >> 8 & 0xFFFFFFFF
        end = i + OVERHEAD + length
        # A body streams as it comes, but for one that goes elsewhere than to the client.
        if end > size and (kind != BODY or own.gathering):
            if length > MOST_FRAME_MAX:
                raise BrokerFault(f"a frame of type {kind} and {length} bytes")
            break
        channel = channels.get(number)
        replaced: bytes | None = None
        source = sources.get(number) if sources is not None else None
        busy = source.merge.busy if source is not None else None
        if source is not None and end > size and ((busy is not None and busy is not source) or source.merge.held):
            break  # what waits for the end of a content waits whole, and so does what it waits for
        if source is not None and busy is not None and busy is not source:
            source.merge.hold(data[i:end])
            way.frames -= 1  # it counts once it is taken again
            replaced = b""
        elif source is not None and source.is_hidden and interceptor is not None:
            if kind == BODY and source.passing:
                # The rest of the frame passes as it comes.
                source.body(length)
                if start < i:
                    out.append(run(data, start, i))
                out.append(source.body_start + data[i + 3 : i + 7])
                start = i + 7
            else:
                if kind == METHOD and not source.left:
                    stop, frames, delivered = interceptor.deliveries(source, data, i, size)
                    if frames:
                        if start < i:
                            out.append(run(data, start, i))
                        if delivered:
                            out.append(delivered)
                        way.frames += frames
                        i = start = stop
                        continue
                replaced = interceptor.hidden_frame(source, kind, data, i, end)
        elif channel is not None and channel.state >= _ABANDONED:
            replaced = closing.too_late(c, channel, kind, data, i, end)
        elif kind == METHOD:
            method = u32(data, i + 7)
            if channel is not None:
                if method in _CONFIRMS:
                    replaced = _answered(c, channel, method, data, i)
                elif (handler := _METHODS.get(method)) is not None:
                    replaced = handler(c, channel, method, data, i, end)
                elif source is not None and interceptor is not None:
                    replaced = interceptor.from_broker(channel, method, data, i, end)
            elif not number:
                replaced = channel_zero.from_broker(c, method, data, i, end)
            elif number == own.number and own.begun:
                replaced = returns.on_own_channel(c, kind, data, i, end)
        elif channel is not None and returning and channel in returning:
            take = returns.header if kind == HEADER else returns.body
            replaced = take(c, channel, data, i, end)
        elif number == own.number and own.begun:
            replaced = returns.on_own_channel(c, kind, data, i, end)
        if source is None and interceptor is not None and number > own.number > 0:
            # RabbitMQ 4.0 says again and again that it has closed a channel, until it has read the close-ok.
            replaced = b""
        if parking and channel is not None:
            returns.note_delivery(channel, kind, replaced, data, i, end)
        if source is not None and channel is not None and interceptor is not None and replaced != b"":
            replaced = interceptor.own_frame(source, kind, replaced, data, i, end)
        way.frames += 1
        if own.released:
            # The answers that waited go out right behind the frame that has decided them.
            replaced = (data[i:end] if replaced is None else replaced) + _released(c)
        if replaced is not None:
            if start < i:
                out.append(run(data, start, i))
            if replaced:
                out.append(replaced)
            start = end
        if end > size:
            way.body_left, way.dropping = end - size, replaced is not None
            if busy is not None and busy.merge.busy is None:
                way.queued += busy.merge.take_told()
            i = size
            break
        i = end
        if busy is not None and busy.merge.busy is None and busy.merge.waits:
            # A content has come to its end, for which others have waited.
            if start < i:
                out.append(run(data, start, i))
            out += busy.merge.take_told()
            data, i, start = busy.merge.take_held() + data[i:], 0, 0
            size = len(data)
        if not number and c.phase >= Phase.CLOSED:
            break
    if start < i:
        out.append(run(data, start, i) if start or i < size else data)
    if c.phase >= Phase.CLOSED:
        closing.late_from_broker(c, data[i:])
    elif i < size:
        way.rest = data[i:]


def _answered(c: Connection, channel: Channel, method: int, data: bytes, i: int) -> bytes | None:
    """Take basic.ack or basic.nack; return what the client gets instead, None if it gets the frame as it is.

    Other frames are due where a message came back without the client's knowledge, and where its tags are its own.
    """
    confirms = channel.confirms
    number, multiple = u64(data, i + 11) + confirms.counted_from, bool(data[i + 19] & MULTIPLE)
    if channel.sampled and (number == channel.sampled or (multiple and number > channel.sampled)):
        c.confirmed(c.now - channel.sampled_at)
        channel.sampled = 0
    replaced: bytes | None = None
    if confirms.returned or confirms.counted_from != confirms.base:
        answers = confirms.acked(number, multiple) if method == BASIC_ACK else confirms.nacked(number, multiple)
        if confirms.counted_from != confirms.base or answers != [(number, multiple, method == BASIC_ACK)]:
            replaced = placement.answer_frames(channel, answers)
    else:
        confirms.settle(number, multiple, method == BASIC_ACK)
    return replaced


def _released(c: Connection) -> bytes:
    """Return the broker's answers that were withheld and are due now, as the client gets them."""
    out = b""
    channels, c.republishing.released = c.republishing.released, []
    for channel in channels:
        frames, channel.deferred = channel.deferred, []
        for frame in frames:
            method = u32(frame, 7)
            replaced = _METHODS[method](c, channel, method, frame, 0, len(frame))
            out += frame if replaced is None else replaced
    return out
