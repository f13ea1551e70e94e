"""The handling of returns: a message that came back is published again if that helps, else its client is answered.

A basic.return comes before the ack of its message on the same channel (5,413 of 5,413, measured), so what it says can
decide what becomes of the ack. For a message that no queue takes in the end, a client that asked for mandatory gets its
return. One that did not gets a nack, but for what an exchange of the ring did not deliver: natively, that is acked.

Theory of operation
-------------------

A message comes back as three kinds of frames, and each kind has a function for the client's channel and one for the
channel that the session publishes on again (`on_own_channel`).

    basic.return        held back, because it does not say whose message it is               `begin`
    content header      its stamps, or the notes of the channel, name the publish            `header`
    body frames         follow the decision that was made at the header                      `body`

The decision is `placement.place_of`, and has three ends:

    a destination       method and header go out at once, each body frame as it comes; the publish is unsettled until
                        the second way has ended (`Confirms.returned` has None)
    something unread    the message is parked with its body; `place_parked` decides anew once the reading is there,
                        with the readings that were tried, so that a message asks for each one once
    nowhere             the client gets its return if it asked for one, and its ack or nack when the broker's comes

A message that comes back from its second way takes the same three ends, up to MOST_REPUBLISHES times. Parked messages
of one exchange keep their order, and a later one waits behind an earlier one though its own ring is known. A message
is parked, too, while others of its exchange are under way by another ring than the one that would place it: if one of
these comes back as well, it goes out first. `order.py` says why that, and a client's later publishes, are in order.
"""

from proxy.outcome import Outcome
from proxy.routing import route
from proxy.routing.route import Route, Target
from proxy.session import closing
from proxy.session.channel import Channel, RingId, ring_id_of
from proxy.session.connection import Connection
from proxy.session.events import Refused, Stale
from proxy.session.publishing import placement
from proxy.session.publishing.confirms import PublishNote, Settlement
from proxy.session.publishing.parking import ParkedMessage, Read, Return, ReturnedMessage
from proxy.session.state import ChannelState, Phase
from proxy.topology.table import Unread
from proxy.wire import content
from proxy.wire.arguments import Arguments
from proxy.wire.frames import (
    BASIC_ACK,
    BASIC_NACK,
    BASIC_RETURN,
    BODY,
    CHANNEL_CLOSE,
    CHANNEL_CLOSE_OK,
    CONTENTS,
    FRAME,
    HEADER,
    INTERNAL_ERROR,
    METHOD,
    MULTIPLE,
    NOT_FOUND,
    OVERHEAD,
    method_frame,
    method_of,
    readdressed,
    shorted,
)
from ring.destination import Destination


def begin(c: Connection, channel: Channel, method: int, data: bytes, i: int, end: int) -> bytes | None:
    """Hold a basic.return back until its content header tells whose message it is: return b"".

    Returns None, so that it passes, on a channel that no publish was routed on.
    """
    if not channel.routed:
        return None
    c.republishing.returning[channel] = Return(data[i:end])
    return b""


def header(c: Connection, channel: Channel, data: bytes, i: int, end: int) -> bytes | None:
    """Take the content header of a return; return the frames that go on to the client, or None for it as it is.

    Where something must be read first, the message is parked, and `place_parked` places it after that.
    """
    held = c.republishing.returning.get(channel)
    if held is None or not held.frame:
        return None
    frame, start, stop = held.frame, i + 7, end - 1
    sent_to, sent_key = _sent_to(frame)
    mark = route.mark(sent_to, sent_key)
    stamps = content.stamps_in(data, start, stop)
    by_lane = stamps is None
    if stamps is None and (found := _sent_through_lane(c, channel, sent_to, sent_key, data, start, stop)) is not None:
        stamps, mark = found
    unstamped = _unstamped(channel, sent_to, sent_key) if stamps is None else None
    origin: RingId | None
    note: PublishNote | None
    if unstamped is not None:
        origin, note = unstamped
        stamps, by_lane = content.Stamps(note.exchange, note.routing_key, note.ring_id), note.by_lane
    else:
        origin = channel.read_id(stamps.ring_id ^ mark) if stamps else None
        note = channel.confirms.notes.get(origin.number) if origin else None
    if stamps is None or origin is None:
        c.republishing.expect(channel, None)
        return frame + data[i:end]
    message = ReturnedMessage(channel, origin, stamps, note.put_back if note else b"", c.now)
    message.sent_to, message.by_lane = _destination(sent_to, sent_key), by_lane
    # An unstamped message has no room for the stamps by which it would be known if it came back again.
    to = placement.place_of(c, message, (), data, start, stop) if unstamped is None else None
    c.republishing.expect(channel, None)
    channel.confirms.notes.pop(origin.number, None)
    left = content.body_size(data, start)
    waits = unstamped is None and _must_wait(c, message, to)
    if waits and not c.republishing.parking.is_full:
        unread = to if isinstance(to, Stale | Unread) else None
        parked = _park(c, ParkedMessage(message, frame, data[i:end], left, unread, came_on_own_channel=False))
        c.republishing.expect(channel, Return(b"", left, parked=parked) if left else None)
        return b""
    if isinstance(to, Target | Route) and not waits and placement.publish(c, message, to, data, start, stop):
        if channel.confirms.answered and origin.number > channel.confirms.low:
            channel.confirms.came_back(origin.number, None)
        if left:
            c.republishing.expect(channel, Return(b"", left, message))
            c.republishing.gathering += 1
        return b""
    _note_unroutable(c, message)
    # An unstamped message may be another publish's that asked for mandatory: a return too many harms nobody.
    if origin.asked or unstamped is not None:
        return _return_frames(message, frame, data, i, end)
    c.republishing.expect(channel, Return(b"", left) if left else None)
    return b""


def _must_wait(c: Connection, message: ReturnedMessage, to: Target | Route | Read | None) -> bool:
    """Return whether a message that came back waits: for a reading, or behind another one of its exchange."""
    own = c.republishing
    if isinstance(to, Stale | Unread) or message.exchange in own.parking:
        return True
    return to is not None and own.by_other_ring(message)


def _park(c: Connection, parked: ParkedMessage) -> ParkedMessage:
    """Keep a message until what decides of it has been read; its client gets neither return nor ack before."""
    message = parked.message
    channel, number = message.channel, message.origin.number
    confirms = channel.confirms
    if confirms.answered and number > confirms.low and number not in confirms.returned:
        confirms.came_back(number, None)
    channel.unsettled_returns += 1
    channel.body_left_to_client = 0  # the client is not in the midst of a content
    c.republishing.gathering += parked.left > 0  # the body does not go to the client now, so it must come whole
    c.republishing.parking.put(parked)
    return parked


def note_delivery(channel: Channel, kind: int, replaced: bytes | None, data: bytes, i: int, end: int) -> None:
    """Note how much of a content the client has got, by the frame that was taken last and what went on in its place."""
    if replaced == b"":
        return
    if kind == METHOD:
        if replaced is None and method_of(data, i) in CONTENTS:
            channel.body_left_to_client = -1
    elif kind == HEADER:
        channel.body_left_to_client = content.body_size(data, i + 7)
    elif kind == BODY and channel.body_left_to_client > 0:
        channel.body_left_to_client -= end - i - OVERHEAD


def place_parked(c: Connection) -> None:
    """Place the parked messages for which all is read, in their order: each goes out again, or back to its client."""
    for exchange in c.republishing.parking.exchanges:
        while (parked := c.republishing.parking.first(exchange)) is not None and parked.unread is None:
            message = parked.message
            merge = message.channel.merge
            inside = message.channel.body_left_to_client or (merge is not None and merge.busy is not None)
            if inside or c.phase > Phase.LEAVING:
                break
            stop = len(parked.header) - 1
            awaited = placement.is_awaited(message)
            to = placement.place_of(c, message, parked.tried, parked.header, 7, stop) if awaited else None
            if isinstance(to, Stale | Unread):
                if not parked.given_up:
                    parked.unread = to
                    break
                to = None
            if to is not None and c.republishing.by_other_ring(message):
                break
            c.republishing.parking.remove(parked)
            message.channel.unsettled_returns -= 1
            message.since = c.now  # the time of the reading is not the broker's
            if to is not None and placement.publish(c, message, to, parked.header, 7, stop):
                _send_again(c, parked)
            else:
                _return_to_client(c, parked)


def _send_again(c: Connection, parked: ParkedMessage) -> None:
    """Send the body of a message that goes out again, as far as it has come; the rest follows as it comes."""
    message, bodies = parked.message, parked.bodies
    for number, frame in enumerate(bodies, 1):
        placement.publish_body(c, message, frame, 0, len(frame), last=not parked.left and number == len(bodies))
    if parked.left and parked.came_on_own_channel:
        c.republishing.again, c.republishing.parked = message, None
    elif parked.left:
        c.republishing.expect(message.channel, Return(b"", parked.left, message))


def _return_to_client(c: Connection, parked: ParkedMessage) -> None:
    """Give a message that no queue takes back to its client, if it asked for mandatory, with an answer behind it."""
    message, frames = parked.message, b""
    placement.note_stale(c, message)
    if message.origin.asked and placement.is_awaited(message):
        frames = _return_frames(message, parked.frame, parked.header, 0, len(parked.header)) + b"".join(
            readdressed(message.channel.id, frame, 0, len(frame)) for frame in parked.bodies
        )
    if not parked.left:
        # The message is whole: the return and the answer go out now.
        c.to_client.insert(frames + placement.settle(c, message, _settlement(message)))
    elif parked.came_on_own_channel:
        # The rest of the body comes on the session's own channel. The client gets the return once it is whole.
        own = c.republishing
        own.to_client, own.unroutable, own.parked = [frames] if frames else [], message, None
    else:
        # The rest of the body comes on the client's channel, and passes as it comes.
        c.to_client.insert(frames)
        c.republishing.expect(message.channel, Return(b"", parked.left, unroutable=message))
        message.channel.body_left_to_client = parked.left if frames else 0


def _note_unroutable(c: Connection, message: ReturnedMessage) -> None:
    """Note what became of a message that no queue takes; its client's answer waits for the broker's."""
    origin, confirms = message.origin, message.channel.confirms
    placement.note_stale(c, message)
    if confirms.answered and origin.number > confirms.low:
        confirms.came_back(origin.number, _settlement(message))
    else:
        c.counter_table.of((c.vhost, message.exchange.decode(errors="replace")), None).unroutable += 1


def _settlement(message: ReturnedMessage) -> Settlement:
    """Return what becomes of a message that no queue takes: a nack, or an ack if native RabbitMQ would ack it."""
    behind = not message.tells_of_queue and not message.passed and message.sent_to is not None
    if message.origin.number <= message.channel.order.overtaken:
        behind = False  # there may be a place for it, where later ones of its key are
    return Settlement(Outcome.UNROUTABLE, message.origin.asked or behind)


def _return_frames(message: ReturnedMessage, frame: bytes, data: bytes, i: int, end: int) -> bytes:
    """Return basic.return and content header as the client would have got them without this proxy.

    `frame` is the broker's basic.return, and `data` from `i` to `end` its content header.
    """
    arguments = Arguments(frame, 0, len(frame), at=2)
    arguments.short_string()
    names = shorted(message.exchange) + shorted(message.key)
    method = method_frame(message.channel.id, BASIC_RETURN, arguments.read + names)
    payload = placement.as_published(message, data, i + 7, end - 1)
    return method + FRAME.pack(HEADER, message.channel.id, len(payload)) + payload + b"\xce"


def body(c: Connection, channel: Channel, data: bytes, i: int, end: int) -> bytes | None:
    """Take a body frame of a return; return the bytes that the client gets for it, or None if it passes unchanged."""
    held = c.republishing.returning.get(channel)
    if held is None or held.frame:
        return None
    left = held.left - (end - i - OVERHEAD)
    c.republishing.expect(channel, held._replace(left=left) if left > 0 else None)
    if held.parked is not None:
        c.republishing.parking.grow(held.parked, data[i:end])
        c.republishing.gathering -= left <= 0
    elif held.unroutable is not None:
        frames = data[i:end] if held.unroutable.origin.asked and placement.is_awaited(held.unroutable) else b""
        if left > 0:
            return frames
        c.republishing.gathering -= 1
        return frames + placement.settle(c, held.unroutable, _settlement(held.unroutable))
    elif held.again is not None:
        placement.publish_body(c, held.again, data, i, end, last=left <= 0)
        c.republishing.gathering -= left <= 0
    return b""


def _sent_to(frame: bytes) -> tuple[bytes, bytes]:
    """Return the exchange and the routing key of a basic.return."""
    arguments = Arguments(frame, 0, len(frame), at=2)
    arguments.short_string()  # the reply text
    return arguments.short_string(), arguments.short_string()


def _destination(exchange: bytes, key: bytes) -> Destination:
    """Return the destination of a publish to that exchange, or to the default exchange with that key."""
    name = (exchange or key).decode(errors="replace")
    return Destination("exchange" if exchange else "queue", name)


def _sent_through_lane(
    c: Connection, channel: Channel, lane: bytes, key: bytes, data: bytes, start: int, stop: int
) -> tuple[content.Stamps, int] | None:
    """Return what the three stamps of a message that came back from a lane would be, and the marks in its ring id.

    Only the ring id is among its headers: the routing key is the message's own, and the id's marks tell the exchange.
    The result is None if the message is not ours.
    """
    ring_id = content.ring_id_in(data, start, stop) if lane else None
    if ring_id is None or c.table is None:
        return None
    nonce: int = channel.nonce
    mark = route.mark(lane, key)
    marks = (ring_id ^ mark ^ nonce) >> route.MARK << route.MARK
    exchange = c.table.exchange_of(marks)
    return (content.Stamps(exchange, key, ring_id), mark ^ marks) if exchange is not None else None


def _unstamped(channel: Channel, exchange: bytes, routing_key: bytes) -> tuple[RingId, PublishNote] | None:
    """Return the oldest unsettled publish that went out unstamped to the same place; None if there is none.

    Which of several came back cannot be told: those that did not ask for mandatory are marked as failed, since one nack
    too many is safe and an ack of a lost one is not.
    """
    alike = [
        number
        for number, note in channel.confirms.notes.items()
        if note.ring_id
        and (note.sent_to, note.sent_key) == (exchange, routing_key)
        and not channel.confirms.settled(number)
    ]
    if not alike:
        return None
    confirms = channel.confirms
    tells_of_queue = not exchange or confirms.notes[alike[0]].by_lane
    for number in alike[1:] if confirms.answered and tells_of_queue else ():
        if number not in confirms.returned and not ring_id_of(number, channel.confirms.notes[number].ring_id).asked:
            confirms.came_back(number, Settlement(Outcome.UNROUTABLE, False))
    note = channel.confirms.notes.pop(alike[0])
    return ring_id_of(alike[0], note.ring_id), note


def committed(c: Connection, channel: Channel, number: int) -> bytes | None:
    """Take tx.commit-ok, and return None: it passes. Returns b"" if the client must not get it.

    The channel is closed in its place if a publish is lost that the client does not know of.
    """
    if channel.state == ChannelState.REFUSING:
        # The client would take this -ok for that of a transaction before, which was refused.
        channel.confirms.settle(number, True, True)
        return b""
    lost = sum(
        message is not None and not message.acked for n, message in channel.confirms.returned.items() if n <= number
    )
    channel.confirms.settle(number, True, True)
    if not lost:
        return None
    text = f"{lost} publishes of this transaction were returned, and may be in no queue; the others may be committed"
    closing.refuse_channel(c, channel, INTERNAL_ERROR, text)
    return b""


# On the session's own channel.


def on_own_channel(c: Connection, kind: int, data: bytes, i: int, end: int) -> bytes:
    """Take a frame of the broker's on the session's own channel; return what the client gets for it, or b""."""
    own = c.republishing
    if kind == METHOD:
        method = method_of(data, i)
        own.answered = True
        if method in (BASIC_ACK, BASIC_NACK):
            arguments = Arguments(data, i, end)
            tag, multiple = arguments.longlong(), bool(arguments.octet() & MULTIPLE)
            return b"".join(placement.own_answered(c, tag, multiple, method == BASIC_ACK))
        if method == BASIC_RETURN:
            own.frame = data[i:end]
        elif method == CHANNEL_CLOSE:
            return _closed(c, data, i, end)
    elif kind == HEADER and own.frame:
        return _own_header(c, data, i, end)
    elif kind == BODY and own.left:
        return _own_body(c, data, i, end)
    return b""


def _closed(c: Connection, data: bytes, i: int, end: int) -> bytes:
    """Take the broker's channel.close on the own channel: nothing that was under way is acked to its client.

    Returns the nacks that clients get for it, if they asked for confirms.
    """
    own = c.republishing
    c.to_broker.insert(method_frame(own.number, CHANNEL_CLOSE_OK))
    arguments = Arguments(data, i, end)
    code, reason = arguments.short(), arguments.short_string()
    if code == NOT_FOUND:
        closing.note_missing(c, closing.named_exchanges(c, reason))
    text = reason.decode(errors="replace")
    c.events.append(Refused(code, f"a returned message could not be published again: {text}"))
    half, ended = own.parked, own.unroutable
    c.republishing.gathering -= own.again is not None or ended is not None or half is not None
    lost = own.closed()
    if half is not None:
        # The rest of its body will not come.
        c.republishing.parking.remove(half)
        half.message.channel.unsettled_returns -= 1
        lost.append(half.message)
    elif ended is not None and ended not in lost:
        lost.append(ended)
    return b"".join(placement.settle(c, message, Settlement(Outcome.UNKNOWN, False)) for message in lost)


def _own_header(c: Connection, data: bytes, i: int, end: int) -> bytes:
    """Take the content header of a message that came back once more; return what its client gets for it now, or b""."""
    own = c.republishing
    frame, start, stop = own.frame, i + 7, end - 1
    sent_to, sent_key = _sent_to(frame)
    ring_id = content.ring_id_in(data, start, stop)
    message = own.by_ring_id.get(ring_id) if ring_id is not None else None
    left = content.body_size(data, start)
    own.frame, own.left = b"", left
    own.end_return()
    if message is None:
        return b""
    message.sent_to, message.returned_at = _destination(sent_to, sent_key), c.now
    to = placement.place_of(c, message, (), data, start, stop) if placement.is_awaited(message) else None
    waits = _must_wait(c, message, to)
    if waits and not own.parking.is_full:
        own.take(message)
        unread = to if isinstance(to, Stale | Unread) else None
        parked = _park(c, ParkedMessage(message, frame, data[i:end], left, unread, came_on_own_channel=True))
        own.parked = parked if left else None
        return b""
    if isinstance(to, Target | Route) and not waits and placement.publish(c, message, to, data, start, stop):
        own.again = message if left else None
        c.republishing.gathering += bool(left)
        return b""
    if not message.origin.asked or not placement.is_awaited(message):
        return placement.settle(c, message, _settlement(message))
    frames = _return_frames(message, frame, data, i, end)
    if not left:
        return frames + placement.settle(c, message, _settlement(message))
    # The client gets the message whole: no other frame of its channel may stand in the midst of a content.
    own.to_client, own.unroutable = [frames], message
    c.republishing.gathering += 1
    return b""


def _own_body(c: Connection, data: bytes, i: int, end: int) -> bytes:
    """Take a body frame of a message that came back once more; return what its client gets once it is whole, or b""."""
    own = c.republishing
    own.left -= end - i - OVERHEAD
    last = own.left <= 0
    if own.parked is not None:
        c.republishing.parking.grow(own.parked, data[i:end])
    elif own.again is not None:
        placement.publish_body(c, own.again, data, i, end, last=last)
    elif own.to_client and own.unroutable is not None:
        own.to_client.append(readdressed(own.unroutable.channel.id, data, i, end))
    if not last:
        return b""
    c.republishing.gathering -= own.again is not None or own.unroutable is not None or own.parked is not None
    ended, home = own.unroutable, b"".join(own.to_client)
    own.end_return()
    if ended is None:
        return b""
    if not placement.is_awaited(ended):
        home = b""
    return home + placement.settle(c, ended, _settlement(ended))
