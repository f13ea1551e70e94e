"""Messages that come back: a publish of ours reaches the client as the client's own, or not at all.

A basic.return comes before the ack of its message on the same channel (5,413 of 5,413, measured), so what it says can
decide what becomes of the ack. Until the proxy itself publishes a returned message again, a client that did not ask for
mandatory gets a nack for it: its queue was there when the ring was read, and a native exchange might have delivered it.
"""

from proxy.amqp import closing, content
from proxy.amqp.channel import Channel, Kept, Return, RingId
from proxy.amqp.connection import Connection, Stale
from proxy.amqp.frames import (
    BASIC_ACK,
    BASIC_NACK,
    BASIC_RETURN,
    FRAME,
    HEADER,
    INTERNAL_ERROR,
    U64,
    method_frame,
    short_string,
    shorted,
)
from ring.destination import Destination


def _begin(c: Connection, channel: Channel, method: int, data: bytes, i: int, end: int) -> bytes | None:
    """Holds a basic.return back until its content header tells whose it is."""
    if not channel.routed:
        return None
    channel.returning = Return(data[i:end])
    return b""


FROM_BROKER = {BASIC_RETURN: _begin}


def header(c: Connection, channel: Channel, data: bytes, i: int, end: int) -> bytes | None:
    """The content header of a return: what goes on to the client, both frames."""
    held = channel.returning
    if held is None or not held.frame:
        return None
    frame, start, stop = held.frame, i + 7, end - 1
    channel.returning = None
    _, at = short_string(frame, 13, len(frame) - 1)
    sent_to, key_at = short_string(frame, at, len(frame) - 1)
    sent_key, _ = short_string(frame, key_at, len(frame) - 1)
    stamps = content.stamps_in(data, start, stop)
    known = channel.read_id(stamps.ring_id) if stamps else None
    kept = channel.kept.pop(known.number, None) if known else None
    if stamps is None and (kept := _kept(channel, sent_to, sent_key)) is not None:
        stamps = content.Stamps(kept.exchange, kept.routing_key, kept.ring_id)
        known = channel.read_id(kept.ring_id)
    if stamps is None or known is None:
        return frame + data[i:end]
    _came_back(c, channel, known, stamps.exchange, sent_to, sent_key)
    if not known.asked:
        left = U64.unpack_from(data, i + 11)[0]
        channel.returning = Return(b"", left) if left else None
        return b""
    method = method_frame(
        channel.id, BASIC_RETURN, frame[11:at] + shorted(stamps.exchange) + shorted(stamps.routing_key)
    )
    payload = content.unstamped(data, start, stop, kept.put_back if kept else b"", known.had_headers)
    return method + FRAME.pack(HEADER, channel.id, len(payload)) + payload + b"\xce"


def body(channel: Channel, length: int) -> bytes | None:
    """A body frame of a return: dropped where the client must not see it."""
    held = channel.returning
    if held is None or held.frame:
        return None
    left = held.left - length
    channel.returning = Return(b"", left) if left > 0 else None
    return b""


def _kept(channel: Channel, exchange: bytes, routing_key: bytes) -> Kept | None:
    """The oldest unsettled publish that went out unstamped to the same place.

    Which of several came back cannot be told: all that the client does not hear of are marked as failed, since one nack
    too many is safe and an ack of a lost one is not.
    """
    alike = [
        number
        for number, kept in channel.kept.items()
        if kept.ring_id
        and (kept.sent_to, kept.sent_key) == (exchange, routing_key)
        and not channel.confirms.settled(number)
    ]
    for number in alike[1:]:
        known = channel.read_id(channel.kept[number].ring_id)
        if known is not None and channel.confirms.answered and not known.asked and not exchange:
            channel.confirms.returned[number] = True
    return channel.kept.pop(alike[0]) if alike else None


def _came_back(
    c: Connection, channel: Channel, known: RingId, exchange: bytes, sent_to: bytes, sent_key: bytes
) -> None:
    name = (c.vhost, exchange.decode(errors="replace"))
    confirms = channel.confirms
    if confirms.answered and known.number > confirms.low:
        # From an exchange that the ring names, a native exchange would have got nothing delivered either.
        confirms.returned[known.number] = not known.asked and not sent_to
    elif c.table is not None:
        c.table.tallies.of(name, None).unroutable += 1
    gone = Destination("queue", sent_key.decode(errors="replace")) if not sent_to else None
    c.events.append(Stale(name, gone))


def acked(channel: Channel, number: int, multiple: bool) -> bytes | None:
    """What goes on in place of the broker's ack; None for the ack as it is. Numbers are the channel's publishes."""
    told = channel.confirms.answers(number, multiple)
    if told == [(number, multiple, True)]:
        return None
    base = channel.confirms.base
    return b"".join(
        method_frame(channel.id, BASIC_ACK if ack else BASIC_NACK, U64.pack(n - base) + bytes((several,)))
        for n, several, ack in told
    )


def committed(c: Connection, channel: Channel, number: int) -> bytes | None:
    """tx.commit-ok. Where a publish came back that the client does not know of, the channel is closed in its place."""
    lost = sum(tell for n, tell in channel.confirms.returned.items() if n <= number)
    channel.confirms.settle(number, True, True)
    channel.forget_settled()
    if not lost:
        return None
    text = f"{lost} publishes of this transaction had no queue left; the others may be there"
    closing.refuse_channel(c, channel, INTERNAL_ERROR, text)
    return b""
