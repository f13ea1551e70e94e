"""The placing of a message that came back, and its publish on the session's own confirm channel.

The confirm channel is on the same connection to the broker; its number was kept back in the handshake. The user is
therefore the same, no delivery tag of the client's changes, and no frame of this proxy's stands between a client's
method and its content, or in its transaction (docs/development/walks.md, "One return").

`publish` is one of the proxy's three encoders of a publish: it takes a header's stamps out and puts new ones in, for
a few messages. `publishing.publish` is the fast one, for the client's frames as they come; `proxy/publisher/packing.py`
is given no header of a client's, and makes one.
"""

from collections.abc import Collection, Iterator
from itertools import takewhile

from proxy.outcome import Outcome
from proxy.republishes import MOST_REPUBLISHES
from proxy.routing.route import PUBLISH, Route, Target
from proxy.session.channel import Channel
from proxy.session.connection import Connection
from proxy.session.events import Stale
from proxy.session.publishing.confirms import Answer, Settlement
from proxy.session.publishing.parking import Read, ReturnedMessage
from proxy.session.state import ChannelState, Phase
from proxy.topology.table import Name, PassReason, Unread
from proxy.wire import content
from proxy.wire.content import STAMP_ID_FIELD, STAMPS, STAMPS_AND_COPIES
from proxy.wire.frames import (
    BASIC_ACK,
    BASIC_NACK,
    CONFIRM_SELECT,
    END,
    FRAME,
    HEADER,
    MANDATORY,
    METHOD,
    OVERHEAD,
    U32,
    U64,
    Fault,
    channel_open,
    method_frame,
    readdressed,
    shorted,
)

RECENT = 1.0
"""Seconds after a reading for which a message that an exchange of the ring has returned asks for no other reading."""

_ID = frozenset({content.STAMP_ID})

_PASSED = frozenset(PassReason) - {PassReason.INTERNAL, PassReason.ABSENT}
"""The reasons for which an exchange gets a message back: the broker takes it there, and routes it."""


def place_of(  # noqa: C901 - one decision, in its order
    c: Connection, message: ReturnedMessage, tried: Collection[Stale | Name], data: bytes, start: int, stop: int
) -> Target | Route | Read | None:
    """Return where to publish a message that came back: to a ring's destination, or to the client's own exchange.

    If an exchange must be read first to know it, the result says which. The readings in `tried` were asked for after
    the message came back, and are not asked for again. The result is None if the message is not published again. The
    payload of the message's content header stands in `data` from `start` to `stop`.

    A ring that names the queue which the message came back from tells nothing as long as its reading began before the
    return: the queue was there then. If the reading began after the return, and knew of it, the queue has been declared
    and bound anew, and gets the message. No length of time tells the two apart: a queue can be deleted, made anew and
    deleted again within milliseconds. For the same reason, what clients declare after such a reading began does not
    count here, or a stream of declarations would leave the message without a ring. MOST_REPUBLISHES ends the search
    where a queue is bound and takes nothing.
    """
    if not _may_go_out(c) or message.tries >= MOST_REPUBLISHES or c.table is None:
        return None
    if message.origin.number <= message.channel.order.overtaken:
        return None
    c.drop_old_routes()
    found = c.table.found_since(message.exchange, message.returned_at)
    if isinstance(found, Unread):
        return _unless_tried(tried, found)
    message.digest = found.digest
    if not found.stamp or found.shadowed:
        return found if not message.passed and found.reason in _PASSED else None
    try:
        choice = found.choose(message.key, data, start, stop)
    except Fault:
        return None
    if choice is None:
        # No ring behind an upstream exchange gets the message any more: the exchange itself may lead elsewhere now.
        return found if found.matcher is not None and not message.passed else None
    if choice.by.shadowed:
        # Settings that were reloaded since it went out leave its slot to the exchange itself.
        return choice.by if not message.passed else None
    if choice.target.unread is not None:
        return _unless_tried(tried, choice.target.unread)
    if message.sent_to is not None and choice.target.sent_as == message.sent_to:
        if not message.tells_of_queue:
            # Only a queue tells of the ring: a message may come back from an exchange of it for its own reasons.
            return None
        message.chosen_by = choice.by.name
        stale = message.stale(c.vhost)
        if stale not in tried:
            return stale
        if c.table.read_at(stale.name) <= message.returned_at:
            return None  # It could not be read.
    message.choice = choice
    return choice.target


def _may_go_out(c: Connection) -> bool:
    """Return whether the session may republish, on the channel that was kept back for it in the handshake."""
    barred = bool(c.republishing.barred) and c.now < c.republishing.barred.get((c.vhost, c.handshake.user), 0.0)
    return c.republishing.number > 0 and not barred and c.phase <= Phase.LEAVING


def note_stale(c: Connection, message: ReturnedMessage) -> None:
    """Have the ring of a message that no queue takes read again, unless a reading has taken its return in.

    An exchange of the ring may return every message for its own reasons, so such returns ask for a reading only if the
    last one began RECENT seconds ago.
    """
    stale = message.stale(c.vhost)
    since = message.returned_at if message.tells_of_queue else c.now - RECENT
    if c.table is None or c.table.read_at(stale.name) <= since:
        c.events.append(stale)


def _unless_tried(tried: Collection[Stale | Name], what: Unread) -> Unread | None:
    """Return an exchange to be read before a message is placed; None if a reading was tried, or cannot help."""
    return None if what.refused or what.name in tried else what


def publish(c: Connection, message: ReturnedMessage, to: Target | Route, data: bytes, start: int, stop: int) -> bool:
    """Publish a returned message on the session's own channel.

    It goes to the ring's queue (Target) or to the client's exchange (Route). The method and the content header are
    sent; the body follows. Return False if they do not fit a frame.
    """
    own = c.republishing
    own.begun = True  # from now on the broker's frames on that number are this proxy's
    header = as_published(message, data, start, stop)
    cut, entries = _ID, STAMP_ID_FIELD + U64.pack(message.ring_id)
    if isinstance(to, Target):
        cut = STAMPS if to.exchange else STAMPS_AND_COPIES
        if not to.is_lane:
            entries = content.stamp_of_exchange(message.exchange) + U32.pack(len(message.key)) + message.key + entries
        method = to.method + shorted(message.key) if to.exchange else to.method
    else:
        method = PUBLISH + shorted(message.exchange) + shorted(message.key)
    header, put_back = content.stamped(header, 0, len(header), entries, cut)
    if len(header) > c.frame_max - OVERHEAD:
        return False
    own.take(message)
    message.put_back, message.passed = put_back, not isinstance(to, Target)
    message.by_lane = isinstance(to, Target) and to.is_lane
    if (record := message.channel.confirms.records.get(message.origin.number)) is not None:
        if isinstance(to, Target) and message.choice is not None:
            message.choice.tell(record, to.destination)
        else:
            record.destination = None
    if (span := message.channel.confirms.spans.get(message.origin.number)) is not None:
        span.placed(to.destination.name if isinstance(to, Target) else "")
    own.put(message)
    opening = b""
    if not own.is_open:
        own.is_open = True
        opening = channel_open(own.number) + method_frame(own.number, CONFIRM_SELECT, b"\0")
    c.counter_table.of((c.vhost, message.exchange.decode(errors="replace")), None).rerouted += 1
    if not isinstance(to, Target):
        counters = to.counters
        if to.stamp and not to.shadowed:
            why = to.why_passed(message.key, data, start, stop)
            counters = c.counter_table.of(to.name, why)
        counters.published += 1
    frames = (
        opening,
        FRAME.pack(METHOD, own.number, len(method) + 1),
        method,
        bytes((MANDATORY, END)),
        FRAME.pack(HEADER, own.number, len(header)),
        header,
        b"\xce",
    )
    own.send(c.to_broker, message, b"".join(frames), last=not content.body_size(data, start))
    return True


def as_published(message: ReturnedMessage, data: bytes, start: int, stop: int) -> bytes:
    """Return the content header's payload of a message that came back, as its client sent it."""
    stamps = _ID if message.passed else STAMPS
    return content.unstamped(data, start, stop, message.put_back, message.origin.had_headers, stamps)


def publish_body(c: Connection, message: ReturnedMessage, data: bytes, i: int, end: int, *, last: bool) -> None:
    """Send the next body frame of a message that goes out again."""
    own = c.republishing
    own.send(c.to_broker, message, readdressed(own.number, data, i, end), last=last)


def settle(c: Connection, message: ReturnedMessage, settlement: Settlement) -> bytes:
    """Note what became of a message that came back, and return the frames that its client gets for that.

    Empty for a client that takes no frames or has asked for no confirms, and where the answer waits for earlier ones.
    """
    c.republishing.take(message)  # it is under way no more
    channel = message.channel
    confirms = channel.confirms
    if not takes_frames(channel):
        return b""
    if not channel.unsettled_returns and channel.deferred:
        c.republishing.released.append(channel)
    asked_for_confirms = confirms.answered and message.origin.number > confirms.base
    if not asked_for_confirms:
        if settlement.outcome is not Outcome.CONFIRMED:
            c.counter_table.of((c.vhost, message.exchange.decode(errors="replace")), None).add(settlement.outcome)
        return b""
    answers = confirms.decide(message.origin.number, settlement)
    return answer_frames(channel, answers)


def takes_frames(channel: Channel) -> bool:
    """Return whether the client still takes frames on a channel."""
    return channel.state not in (ChannelState.CLOSED, ChannelState.GONE)


def is_awaited(message: ReturnedMessage) -> bool:
    """Return whether the client has yet to learn what became of a message that came back.

    If the broker has closed the message's channel, and it was opened again unseen, its client has got a nack.
    """
    confirms, number = message.channel.confirms, message.origin.number
    has_answers = confirms.answered and number > confirms.base
    return takes_frames(message.channel) and (not has_answers or number in confirms.returned)


def answer_frames(channel: Channel, answers: list[Answer]) -> bytes:
    """Return the frames of acks and nacks for a client, with its delivery tags for the channel's numbers."""
    base = channel.confirms.base
    return b"".join(
        method_frame(channel.id, BASIC_ACK if ack else BASIC_NACK, U64.pack(n - base) + bytes((several,)))
        for n, several, ack in answers
    )


def own_answered(c: Connection, tag: int, multiple: bool, acked: bool) -> Iterator[bytes]:
    """Take an ack or nack on the session's own channel, for the publish `tag` or with `multiple` for all up to it.

    Yields, for each publish that it answers, the frames that the client gets.
    """
    own = c.republishing
    # Tags ascend.
    tags = list(takewhile(lambda n: n <= tag, own.under_way)) if multiple else [tag] if tag in own.under_way else []
    for message in [own.under_way[n] for n in tags]:
        yield settle(c, message, Settlement(Outcome.CONFIRMED if acked else Outcome.NACKED, acked))
