"""The client's acks, nacks and rejects: each goes to the broker on the channel on which the delivery came."""

from typing import Final

from librt.strings import BytesWriter, write_i32_be, write_i64_be

from proxy.groups.member import LinkState, Member
from proxy.session import closing, links
from proxy.session.channel import Channel
from proxy.session.connection import Connection
from proxy.session.hidden import Consuming, HiddenChannel, Requeued
from proxy.session.numbering import Source
from proxy.session.state import ChannelState
from proxy.wire.frames import (
    BASIC_ACK,
    BASIC_NACK,
    BASIC_RECOVER,
    END,
    PRECONDITION_FAILED,
    SYNTAX_ERROR,
    U32,
    U64,
    Fault,
    method_frame,
    u64,
)

_out: Final = BytesWriter()
"""The buffer in which an answer is put together: one for all sessions, since nothing else runs meanwhile."""

_LEAVING: Final = LinkState.LEAVING.value
_OPEN: Final = ChannelState.OPEN.value
_MULTIPLE: Final = 1
_REQUEUE: Final = 2
_REJECT_REQUEUE: Final = 1
_LEAST: Final = 21
"""The number of bytes of a whole frame with basic.ack, basic.nack or basic.reject."""


def settle(c: Connection, channel: Channel, method: int, data: bytes, i: int, end: int) -> bytes | None:
    """Take the client's basic.ack, basic.nack or basic.reject.

    Returns what the broker gets instead; None if it gets the frame as it is.
    """
    numbering = channel.numbering
    if numbering is None or channel.state != _OPEN:
        return None
    if end - i < _LEAST:
        raise Fault(SYNTAX_ERROR, "an answer to a delivery stops early", method)
    number, bits = u64(data, i + 11), data[i + 19]
    takes_many = method in (BASIC_ACK, BASIC_NACK)
    multiple = takes_many and bool(bits & _MULTIPLE)
    requeued = method != BASIC_ACK and bool(bits & (_REQUEUE if takes_many else _REJECT_REQUEUE))
    if not multiple and not requeued and numbering.started and number > numbering.base:
        delivery = numbering.settle_one(number)
        if delivery is None:
            return _unknown(c, channel, number, method)
        return _answer(c, delivery.source, delivery.tag, method, bits, requeued) + _end(c, delivery.source)
    settled = numbering.settle(number, multiple, requeued)
    if settled is None:
        return _unknown(c, channel, number, method)
    if not numbering.started:
        return None
    if not multiple:
        if not settled:
            return b""
        source, tag, _ = settled[0]
        if requeued and isinstance(source, HiddenChannel) and source.link is not None and not source.ended:
            # The client may be about to cancel, as pika is that rejects all it has not looked at. If the broker got
            # them back now, it would deliver them once more, behind later ones, and keep that order as the link ends.
            source.returning.append(tag)
            kept = links.consuming_of(c).requeued
            before = kept.get(source)
            kept[source] = Requeued(before.first if before is not None else c.now, c.now)
            return _end(c, source)
        return _answer(c, source, tag, method, bits, requeued) + _end(c, source)
    single = bits & ~_MULTIPLE
    answers = [_answer(c, source, tag, method, bits if many else single, requeued) for source, tag, many in settled]
    # A link ends behind the last answer to its deliveries, of which there may be several.
    return b"".join(answers + [_end(c, source) for source, _, _ in settled])


def _answer(c: Connection, source: Source, tag: int, method: int, bits: int, requeued: bool) -> bytes:
    """Return the frame with the client's ack, nack or reject for one channel; empty if the broker is not to have it."""
    if source.ended:
        return b""
    out = _out
    out.truncate(0)
    out.write(source.settle_start)
    write_i32_be(out, method)
    write_i64_be(out, tag)
    out.append(bits)
    out.append(END)
    answer = out.getvalue()
    if not isinstance(source, HiddenChannel):
        return answer
    link = source.link
    if link is not None and link.is_probe:
        # After it the broker would give the link newer messages, while other consumers hold earlier ones. Once that is
        # sure not to be so, the link's end sends it.
        link.withheld = answer
        return b""
    if link is None or link.state != _LEAVING:
        return answer + _returned(source) if source.returning else answer
    if requeued:
        # The link's end returns it, with what was withheld behind it: returned alone it would come out of order. Until
        # then the broker counts it as unacked, so no ack of all up to a later one may take it in.
        source.returning.append(tag)
        return b""
    return answer


def hand_back(c: Connection, last: float, first: float) -> None:
    """Give the broker back what the client has returned of links that have not ended and whose member has not left.

    Such are the links of which the client returned nothing after the time `last`, or something before the time `first`,
    both in monotonic seconds.
    """
    requeued = c.consuming.requeued if c.consuming is not None else {}
    for source, at in list(requeued.items()):
        if at.last > last and at.first > first:
            continue
        del requeued[source]
        if source.link is not None and source.link.state != _LEAVING and not source.ended:
            c.to_broker.insert(_returned(source))


def _end(c: Connection, source: Source) -> bytes:
    """Return the channel.close of a link whose member has left and of which nothing is unacked; empty otherwise."""
    link = source.link
    if link is None or link.state != _LEAVING or not isinstance(source, HiddenChannel):
        return b""
    return links.close_settled(c, source)


def _returned(source: Source) -> bytes:
    """Return the nacks of deliveries that the client returned before, and that no longer wait for earlier ones."""
    start = source.settle_start + U32.pack(BASIC_NACK)
    tags = source.numbering.take_returned(source)
    return b"".join([start + U64.pack(tag) + bytes((_REQUEUE, END)) for tag in tags])


def _unknown(c: Connection, channel: Channel, number: int, method: int) -> bytes:
    """Refuse an ack of an unknown or settled delivery tag: close the channel with 406, as the broker does."""
    return closing.refusal(c, channel, PRECONDITION_FAILED, f"unknown delivery tag {number}", method)


def recover(c: Connection, channel: Channel, method: int, data: bytes, i: int, end: int) -> bytes | None:
    """Take the client's basic.recover: all unacked deliveries of its channel are made again, those of links as well.

    Returns what the broker gets instead; None if it gets the frame as it is.
    """
    numbering = channel.numbering
    if numbering is None or channel.state != ChannelState.OPEN or not (end - i > 12 and data[i + 11] & 1):
        return None  # the broker refuses a recover without requeue
    frames = data[i:end]
    for source in numbering.recover():
        if source.ended or not isinstance(source, HiddenChannel):
            continue
        end_of_link = links.close_settled(c, source)
        frames += end_of_link or method_frame(source.number, BASIC_RECOVER, b"\1")
    return frames


def oldest_by_shard(consuming: Consuming, member: Member) -> dict[str, float]:
    """Return by shard when the oldest delivery that a member's client has not settled was made, in monotonic seconds.

    The member may have left.
    """
    its = [each for each in consuming.sources.values() if each.link is not None and each.link.member is member]
    found: dict[str, float] = {}
    for numbering in {each.numbering for each in its}:
        for source, at in numbering.oldest().items():
            if source.link is not None and source.link.member is member and not source.ended:
                found[source.link.shard] = at
    return found
