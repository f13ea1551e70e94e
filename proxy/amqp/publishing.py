"""One publish to a ring exchange: from its method and content header to those that go out in their place."""

from collections.abc import Collection

from proxy.amqp import content
from proxy.amqp.channel import Channel, Kept
from proxy.amqp.connection import Connection
from proxy.amqp.content import HEADERS, STAMPS, STAMPS_AND_COPIES
from proxy.amqp.frames import FRAME, HEADER, MANDATORY, METHOD, OVERHEAD, short_string, shorted
from proxy.router import PassReason
from proxy.tally import Tally


def count(c: Connection, channel: Channel, tally: Tally) -> None:
    """Numbers and counts a publish that is about to go out."""
    confirms = channel.confirms
    if tally is not confirms.tally:
        confirms.turn(tally)
    confirms.number += 1
    tally.published += 1
    if not confirms.answered:
        tally.sent += 1
    elif not channel.sampled:
        channel.sampled, channel.sampled_at = confirms.number, c.now


def publish(c: Connection, channel: Channel, data: bytes, i: int, end: int) -> bytes | None:
    """What goes out for the withheld method of a channel and the content header frame from `i` to `end`.

    None where an exchange must be looked up first: `held` then says which. Raises Fault for an unreadable header.
    """
    route = c.route(channel.exchange)
    if route is None:
        return None
    if not route.stamp:
        return _passed(c, channel, route.tally, data[i:end])
    start, stop = i + 7, end - 1
    target = route.target(channel.key, data, start, stop)
    if target is None:
        return _passed(c, channel, c.tallies.of(route.name, PassReason.CYCLE), data[i:end])
    if target.unread is not None:
        c.held = target.unread
        return None
    if route.shadowed:
        route.tally.shadowed[target.destination] += 1
        return _passed(c, channel, route.tally, data[i:end])
    count(c, channel, route.tally)
    channel.routed = True
    ring_id = channel.ring_id(bool(channel.bits & MANDATORY), bool(data[start + 12] << 8 & HEADERS))
    stamps = content.stamps(route.stamp, channel.key, ring_id)
    cut = STAMPS_AND_COPIES if target.is_queue else STAMPS
    payload, removed = content.stamped(data, start, stop, stamps, cut)
    if len(payload) > c.frame_max - OVERHEAD:
        # RabbitMQ closes the connection for a frame that is too large by one byte (run).
        payload, removed = _without(data, start, stop, cut)
        sent_as = (target.name, b"") if target.is_queue else (channel.key, target.name)
        channel.keep(Kept(removed, *sent_as, channel.exchange, channel.key, ring_id))
    elif removed:
        channel.keep(Kept(removed))
    method = target.method + (b"" if target.is_queue else shorted(channel.key))
    return b"".join(
        (
            FRAME.pack(METHOD, channel.id, len(method) + 1),
            method,
            _BITS[channel.bits],
            FRAME.pack(HEADER, channel.id, len(payload)),
            payload,
            b"\xce",
        )
    )


_BITS = [bytes((bits | MANDATORY, 0xCE)) for bits in range(256)]


def _without(data: bytes, start: int, stop: int, cut: Collection[bytes]) -> tuple[bytes, bytes]:
    """The payload without the headers named in `cut`, and those; no longer than it was."""
    has_headers = data[start + 12] << 8 & HEADERS
    return content.stamped(data, start, stop, b"", cut) if has_headers else (data[start:stop], b"")


def _passed(c: Connection, channel: Channel, tally: Tally, header: bytes) -> bytes:
    """The publish as it came."""
    count(c, channel, tally)
    return channel.frame + header


def held_publish(c: Connection) -> tuple[Channel, bytes]:
    """The channel and the exchange of the publish that `held` keeps waiting: the first frame not taken is of it."""
    kind, number, _ = FRAME.unpack_from(c.client_rest)
    channel = c.channels[number]
    if kind == HEADER:
        return channel, channel.exchange
    return channel, short_string(c.client_rest, 13, len(c.client_rest))[0]
