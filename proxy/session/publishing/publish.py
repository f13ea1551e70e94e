"""One publish to a ring's exchange: from the client's method and content header to those that go out in their place.

This is the fast one of the proxy's three encoders of a publish (`placement.publish` says why there are others).
"""

# mypyc: compiled

from collections.abc import Collection
from typing import Final

from librt.strings import BytesWriter, write_i32_be, write_i64_be

from proxy.journal.buffer import Journal, Record
from proxy.routing.counters import Counters
from proxy.routing.route import Choice, Route
from proxy.session.backlog import Wait
from proxy.session.channel import Channel
from proxy.session.connection import Connection
from proxy.session.publishing.confirms import MOST_UNSETTLED, PublishNote
from proxy.tracing.context import parent_in
from proxy.tracing.tracer import Kind, Tracer
from proxy.wire import content
from proxy.wire.content import FLAGS, HEADERS, STAMP_ID_FIELD, STAMPS, STAMPS_AND_COPIES
from proxy.wire.frames import END, HEADER, MANDATORY, OVERHEAD, short_string
from ring.destination import Destination
from ring.hashing import index_at, slot_of

_out: Final = BytesWriter()
"""The buffer in which a publish is put together: one for all sessions, since nothing else runs meanwhile."""


def count(c: Connection, channel: Channel, counters: Counters) -> None:
    """Number and count a publish that is about to go out."""
    confirms = channel.confirms
    confirms.publish(counters)
    if confirms.answered:
        if not channel.sampled:
            channel.sampled, channel.sampled_at = confirms.number, c.now
        if confirms.open.count >= MOST_UNSETTLED and not channel.transactional:
            c.crowded = channel


def must_wait(c: Connection, channel: Channel, route: Route, exchange: bytes) -> bool:
    """Return whether a publish waits so that its key stays in order; `waiting.held` then says so."""
    if channel.order.may_take(exchange, route.digest, channel.confirms, channel.transactional):
        return False
    c.waiting.held = Wait.OTHER_RING
    return True


def publish(c: Connection, channel: Channel, data: bytes, i: int, end: int) -> bytes | None:  # noqa: C901 - for speed
    """Return the bytes to send for a channel's withheld method and the content header frame from `i` to `end`.

    Returns None if it must wait; `waiting.held` then says for what. Raises Fault if the header
    cannot be read.
    """
    route = c.routes.get(channel.exchange) or c.route(channel.exchange)
    if route is None:
        return None
    if route.digest is not channel.order.digest and must_wait(c, channel, route, channel.exchange):
        return None
    start, stop = i + 7, end - 1
    choice: Choice | None = None
    if route.plain:
        slot = slot_of(channel.key)
        target = route.targets[index_at(route.owners, slot)]
    else:
        choice = route.choose(channel.key, data, start, stop) if route.stamp else None
        found = choice.target if choice is not None else None
        if found is not None and found.unread is not None:
            c.waiting.held = found.unread
            return None
        route.counters.value_missing += choice is not None and choice.missing
        if choice is not None:
            slot = choice.slot
        if found is None or (choice is not None and choice.by.shadowed):
            passed = _passed(c, channel, route, choice, data, i, end)
            if choice is not None and route.journal is not None and slot < route.journal.limit:
                _record(c, channel, route.journal, route, choice, None, slot, data, start, stop)
            return passed
        target = found
    key, asked, had_headers = channel.key, channel.bits & MANDATORY, data[i + 19] << 8 & HEADERS
    ring_id = channel.next_id(asked, had_headers) ^ target.mark
    is_lane, keeps_key = target.is_lane, target.keeps_key
    cut = STAMPS if keeps_key else STAMPS_AND_COPIES
    at, first, last = content.parts(data, start, stop)
    rest, removed = content.without(data, first, last, cut)
    count(c, channel, route.counters)
    target.tally.count += 1
    channel.routed = True
    if route.journal is not None and slot < route.journal.limit:
        _record(c, channel, route.journal, route, choice, target.destination, slot, data, start, stop)
    headers = len(STAMP_ID_FIELD) + 8 + len(rest)
    if is_lane:
        # Consumers see the message's own routing key, and a message that comes back shows it, too.
        ring_id ^= route.mark
    else:
        headers += len(route.stamp) + 4 + len(key)
    size = at - start + 4 + headers + stop - last
    if route.tracer is not None:
        named = _trace(channel, route.tracer, route, target.destination, data, start, stop, first, last)
        # A message that just fits a frame with its stamps goes without the name of its span.
        if size + len(named) <= c.frame_max - OVERHEAD:
            rest, headers, size = rest + named, headers + len(named), size + len(named)
    method = target.method
    out = _out
    out.truncate(0)
    out.write(channel.method_start)
    if keeps_key:
        write_i32_be(out, len(method) + len(key) + 2)
        out.write(method)
        out.append(len(key))
        out.write(key)
    else:
        write_i32_be(out, len(method) + 1)
        out.write(method)
    # Mandatory whatever the client asked for: only a return tells that the destination is gone.
    out.append(channel.bits | MANDATORY)
    out.append(END)
    out.write(channel.header_start)
    if size > c.frame_max - OVERHEAD:
        # RabbitMQ closes the connection for a frame that is too large by one byte (observed).
        payload, removed = _without(data, start, stop, cut)
        sent_key = key if keeps_key else target.key
        channel.note(PublishNote(removed, sent_key, target.exchange, channel.exchange, key, ring_id, is_lane))
        write_i32_be(out, len(payload))
        out.write(payload)
        out.append(END)
        return out.getvalue()
    if removed:
        channel.note(PublishNote(removed))
    write_i32_be(out, size)
    out.write(data[start : start + FLAGS])
    out.append(data[start + FLAGS] | HEADERS >> 8)
    out.write(data[start + FLAGS + 1 : at])
    write_i32_be(out, headers)
    if not is_lane:
        out.write(route.stamp)
        write_i32_be(out, len(key))
        out.write(key)
    out.write(STAMP_ID_FIELD)
    write_i64_be(out, ring_id)
    out.write(rest)
    out.write(data[last:stop])
    out.append(END)
    return out.getvalue()


def _without(data: bytes, start: int, stop: int, cut: Collection[bytes]) -> tuple[bytes, bytes]:
    """Return a content header's payload without the headers named in `cut`, and the entries that were cut."""
    has_headers = data[start + 12] << 8 & HEADERS
    return content.stamped(data, start, stop, b"", cut) if has_headers else (data[start:stop], b"")


def _record(
    c: Connection,
    channel: Channel,
    journal: Journal,
    route: Route,
    choice: Choice | None,
    destination: Destination | None,
    slot: int,
    data: bytes,
    start: int,
    stop: int,
) -> None:
    """Have a publish journalled once it is settled; `choice` is None if the routing key alone led to a queue."""
    record = Record("amqp", route.name, data, start, stop, c.now)
    if choice is not None:
        choice.tell(record, destination)
    elif route.known is not None:
        record.placed(route.known, destination, slot, channel.key, False)
    channel.confirms.record(journal, record)


def _trace(
    channel: Channel,
    tracer: Tracer,
    route: Route,
    destination: Destination,
    data: bytes,
    start: int,
    stop: int,
    first: int,
    last: int,
) -> bytes:
    """Trace the last publish if it is of the sample; return the header that tells its consumer of it, or nothing.

    The header of a client that traces stays as it is: what consumers do belongs to the client's own span.
    """
    parent = parent_in(data, first, last)
    if not tracer.takes(parent):
        return b""
    kind = Kind.PRODUCER if parent is None else Kind.CLIENT
    span = tracer.publish(route.name, channel.key, destination.name, data, start, stop, parent, kind)
    channel.confirms.trace(span)
    return span.field if parent is None else b""


def _passed(
    c: Connection, channel: Channel, route: Route, choice: Choice | None, data: bytes, i: int, end: int
) -> bytes:
    """Count and return a publish as it came: shadowed, unplaced, or without a ring since its method came."""
    counters = route.counters
    if choice is not None:
        counters = choice.by.counters
        counters.shadowed[choice.target.destination] += 1
    elif route.stamp:
        counters = c.counter_table.of(route.name, route.why_passed(channel.key, data, i + 7, end - 1))
    channel.has_other_state |= route.is_behind
    count(c, channel, counters)
    header = data[i:end]
    if channel.routed:
        header = content.disowned(header, 0, len(header), channel.nonce) or header
    return channel.frame + header


def held_publish(channel: Channel) -> bytes:
    """Return the exchange of the publish that a channel's backlog begins with: with its method, or its header."""
    assert channel.backlog is not None
    first = channel.backlog.pieces[0]
    return channel.exchange if first[0] == HEADER else short_string(first, 13, len(first))[0]
