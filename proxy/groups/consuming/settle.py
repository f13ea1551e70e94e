"""The client's acks, nacks and rejects: each goes to the broker on the channel on which the delivery came."""

# mypyc: compiled

from itertools import islice
from typing import Final

from librt.strings import BytesWriter, write_i32_be, write_i64_be

from proxy.groups.consuming import deliver, links, markers, retries
from proxy.groups.consuming.hidden import Consumer, Consuming, HiddenChannel, Requeued
from proxy.groups.consuming.series import Held, HeldState
from proxy.groups.consuming.tags import Delivery, Numbering, TaggedSource, numbering_of
from proxy.groups.model import LinkState, Member
from proxy.session import closing
from proxy.session.channel import Channel
from proxy.session.state import ChannelState
from proxy.wire.arguments import Arguments
from proxy.wire.frames import (
    BASIC_ACK,
    BASIC_NACK,
    BASIC_RECOVER,
    BASIC_REJECT,
    END,
    MULTIPLE,
    PRECONDITION_FAILED,
    REJECT_REQUEUE,
    REQUEUE,
    SYNTAX_ERROR,
    U32,
    U64,
    Fault,
    method_frame,
    u64,
)

_out: Final = BytesWriter()
"""The buffer in which an answer is put together: one for all sessions, since nothing else runs meanwhile."""

_TAKES: Final = LinkState.OPEN.value
_LEAVING: Final = LinkState.LEAVING.value
_OPEN: Final = ChannelState.OPEN.value

MOST_AT_ONCE: Final = 4096
"""The most deliveries that are settled, or go back to the broker, in one go, since other sessions wait meanwhile."""

_FEW: Final = 16
"""The most deliveries that go back to the broker behind one answer of the client's."""

REJECTED: Final = "rejected"
REQUEUED: Final = "requeued"
"""The errors of spans whose deliveries the client has rejected, or returned."""

_LEAST: Final = 21
"""The number of bytes of a whole frame with basic.ack, basic.nack or basic.reject."""


def settle(g: Consuming, channel: Channel, method: int, data: bytes, i: int, end: int) -> bytes | None:
    """Take the client's basic.ack, basic.nack or basic.reject.

    Returns what the broker gets instead; None if it gets the frame as it is. Raises Fault for a frame that is too
    short.
    """
    numbering = numbering_of(channel)
    if numbering is None or channel.state != _OPEN:
        return None
    if end - i < _LEAST:
        raise Fault(SYNTAX_ERROR, "an answer to a delivery stops early", method)
    number, bits = u64(data, i + 11), data[i + 19]
    takes_many = method in (BASIC_ACK, BASIC_NACK)
    multiple = takes_many and bool(bits & MULTIPLE)
    requeued = method != BASIC_ACK and bool(bits & (REQUEUE if takes_many else REJECT_REQUEUE))
    if multiple:
        return _many(g, channel, numbering, number, method, bits, requeued)
    if not numbering.started or number <= numbering.base:
        numbering.settle_own(number)
        return None
    if numbering.spans:
        numbering.end_spans(number, number, _error(method, requeued))
    delivery = numbering.settle_one(number)
    if delivery is None:
        return _unknown(g, channel, number, method)
    source = delivery.source
    if delivery.held is not None and isinstance(source, HiddenChannel):
        return _in_series(g, source, delivery.held, method, bits, requeued) + _end(g, source)
    if requeued and isinstance(source, HiddenChannel) and source.link is not None and not source.ended:
        # The client may be about to cancel, as pika is that rejects all it has not looked at. If the broker got them
        # back now, it would deliver them once more, behind later ones, and keep that order as the link ends.
        source.keep(delivery.tag, method)
        _await_return(g, source)
        return _end(g, source)
    answer = _answer(g, source, delivery.tag, method, bits, requeued)
    if source.returning:
        answer += _released(g, source)
    return answer + _end(g, source)


def _error(method: int, requeued: bool) -> str:
    """Return the error that a delivery's span ends with; empty for an ack."""
    return "" if method == BASIC_ACK else REQUEUED if requeued else REJECTED


def _many(
    g: Consuming, channel: Channel, numbering: Numbering, number: int, method: int, bits: int, requeued: bool
) -> bytes | None:
    """Take the client's ack or nack of all deliveries up to a number; 0 stands for all that there are.

    Returns what the broker gets instead; None if it gets the frame as it is. An answer to very many is taken in parts,
    between which other sessions have a turn.
    """
    if not numbering.started or 0 < number <= numbering.base:
        numbering.settle_all_own(number or numbering.last)
        return None
    if number and number not in numbering.unacked:
        return _unknown(g, channel, number, method)
    if numbering.spans:
        numbering.end_spans(0, number or numbering.last, _error(method, requeued))
    answers: list[bytes] = []
    sources: dict[TaggedSource, None] = {}
    in_series: list[Delivery] = []
    number = number or numbering.last
    for source, tag, many, other in numbering.settle_all(number, MOST_AT_ONCE, in_series):
        sources[source] = None
        if other:
            answers.append(_give_back(source, tag, other))
        else:
            answers.append(_answer(g, source, tag, method, bits if many else bits & ~MULTIPLE, requeued))
    if in_series:
        answers += _many_in_series(g, in_series, sources, method, bits, requeued)
    for source in sources:
        # A link ends behind the last answer to its deliveries, of which there may be several.
        answers += _released(g, source) if source.returning else b"", _end(g, source)
    if numbering.reaches(number):
        g.c.again = method_frame(channel.id, method, U64.pack(number) + bytes((bits,)))
        g.c.to_broker.more = True
    return b"".join(answers)


def _many_in_series(
    g: Consuming,
    deliveries: list[Delivery],
    sources: dict[TaggedSource, None],
    method: int,
    bits: int,
    requeued: bool,
) -> list[bytes]:
    """Take the client's answer to each of several messages in series; return what the broker gets.

    The links that may end now are added to `sources`.
    """
    answers: list[bytes] = []
    for delivery in deliveries:
        source = delivery.source
        if delivery.held is not None and isinstance(source, HiddenChannel):
            if answer := _in_series(g, source, delivery.held, method, bits, requeued):
                answers.append(answer)
            if source.link is not None and source.link.state == _LEAVING:
                sources[source] = None
    return answers


def _in_series(g: Consuming, hidden: HiddenChannel, held: Held, method: int, bits: int, requeued: bool) -> bytes:
    """Take the client's answer to one message of a member in series; return what the broker gets at once, or b"".

    The broker gets no requeue: it would deliver the message behind later ones of its key. `answers` has the acks.
    """
    window = held.window
    if not window.answered:
        window.answered = True
        g.answered.append(hidden)
    if method == BASIC_ACK:
        window.acked.append(held.tag)
    if not requeued:
        retries.settled(hidden, held)
        if method == BASIC_ACK:
            return b""
        bits = bits & ~MULTIPLE if method != BASIC_REJECT else bits
        return _answer(g, hidden, held.tag, method, bits, requeued)
    link = hidden.link
    if link is not None and link.state == _TAKES and not hidden.consumer.leaving:
        retries.returned(g, hidden, held)
    else:
        window.series.settle(held)  # the link's end returns it
    return b""


def gathered(g: Consuming) -> bytes:
    """Return the acks of links in series that are due after a read of the client's, empty for none.

    The client is sent what it may have now. One ack may stand for many then, and one look at a member is enough for all
    that it has answered.
    """
    frames: list[bytes] = []
    consumers: dict[Consumer, None] = {}
    for hidden in g.answered:
        frames.append(hidden.take_acks() + markers.end_if_drained(g, hidden))
        consumers[hidden.consumer] = None
        if hidden.window is not None:
            hidden.window.answered = False
    g.answered = []
    for consumer in consumers:
        _go_on(g, consumer)
    return b"".join(frames)


def _go_on(g: Consuming, consumer: Consumer) -> None:
    """Send the client of a member in series what it has room for now."""
    frames, busy = deliver.pass_on(g, consumer), consumer.numbering.busy
    if not frames:
        return
    if busy is not None and busy.is_hidden and busy.left < 0:
        # The client has got nothing of that content, which gets its delivery tag with its header: these are lower ones.
        g.c.to_client.insert(frames)
    else:
        links.tell(g, consumer.numbering, frames)


def go_on_by_turns(g: Consuming) -> None:
    """Have the timer look at the members of a client that gets suspects one by one, and so not only what it answers."""
    hands = g.hands
    if hands.holds_back:
        hands.holds_back = bool(hands.suspects)
        for consumer in g.consumers.values():
            series = consumer.series
            if series is not None and series.is_ready and not consumer.numbering.full:
                g.retrying[consumer] = None


def try_again(g: Consuming) -> None:
    """Have the messages of members in series tried again that are due, and others sent for which there was no turn.

    Those beyond `MOST_AT_ONCE` stay for the next call, which is due at once.
    """
    room = MOST_AT_ONCE
    for consumer in list(g.retrying):
        del g.retrying[consumer]
        series = consumer.series
        if series is None or consumer.leaving or consumer.channel.state != _OPEN:
            continue
        if room <= 0:
            g.retrying[consumer] = None
            continue
        count, ended = series.release(g.c.now, deliver.MOST_PASSED)
        room -= max(count, deliver.MOST_PASSED if series.is_ready else 0)
        for held in ended:
            retries.exhausted(g, held)
        _go_on(g, consumer)  # which notes the member again where more is ready than goes out at once
        if series.due is not None:
            g.retrying[consumer] = None


def dead_lettered(g: Consuming, held: Held, *, is_confirmed: bool) -> None:
    """Have the broker get an ack for a message whose dead letter is confirmed; else publish it again later.

    Where its link ends, the message is left to the broker.
    """
    source = g.sources.get(held.window.number)
    if not isinstance(source, HiddenChannel) or source.window is not held.window or held.state != HeldState.DEAD:
        if held.state == HeldState.DEAD:
            held.window.series.settle(held)  # its link is gone, and the broker delivers it again
        return
    link, consumer = source.link, source.consumer
    assert link is not None
    link.unacked -= 1
    frames = b""
    if is_confirmed:
        retries.settled(source, held)
        frames = _answer(g, source, held.tag, BASIC_ACK, 0, requeued=False)
    elif link.state == _TAKES and not consumer.leaving:
        held.window.series.fail(held, g.c.now)
        g.retrying[consumer] = None
    else:
        held.window.series.settle(held)  # the link's end returns it
    g.c.to_broker.insert(frames + _end(g, source) + markers.end_if_drained(g, source))
    _go_on(g, consumer)
    g.c.to_broker.flush()


def skip(g: Consuming, hidden: HiddenChannel, held: Held) -> None:
    """Have the broker get an ack for a message that no client works on: it is lost, and its key goes on."""
    retries.settled(hidden, held)
    answer = _answer(g, hidden, held.tag, BASIC_ACK, 0, requeued=False)
    g.c.to_broker.insert(answer + markers.end_if_drained(g, hidden))


def _await_return(g: Consuming, source: HiddenChannel) -> None:
    """Have what the client has returned of a link given back to the broker in a moment."""
    kept = g.requeued
    before = kept.get(source)
    kept[source] = Requeued(before.first if before is not None else g.c.now, g.c.now)


def _released(g: Consuming, source: TaggedSource) -> bytes:
    """Return the frames that give back what the client returned of a link before, and that waits for none now.

    Each answer of the client's gives a few back, and the timer gives back the others, so that no answer takes long.
    """
    link = source.link
    if not isinstance(source, HiddenChannel) or link is None or link.state == _LEAVING or source.ended:
        return b""
    frames = b"".join([_give_back(source, tag, method) for tag, method in source.take_returned(_FEW)])
    if source.may_return and source not in g.requeued:
        _await_return(g, source)
    return frames


def _answer(g: Consuming, source: TaggedSource, tag: int, method: int, bits: int, requeued: bool) -> bytes:
    """Return the frame with the client's ack, nack or reject for one channel; empty if the broker is not to have it."""
    if source.ended:
        return b""
    source.answers += 1
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
    if link is None or link.state != _LEAVING:
        return answer
    if requeued:
        # The link's end returns it, with what was withheld behind it: returned alone it would come out of order. Until
        # then the broker counts it as unacked, so no ack of all up to a later one may take it in.
        source.keep(tag, method)
        return b""
    return answer


def _give_back(source: TaggedSource, tag: int, method: int) -> bytes:
    """Return the frame by which the broker gets a delivery back that the client has returned by this method."""
    bits = REQUEUE if method == BASIC_NACK else REJECT_REQUEUE
    source.answers += 1
    return source.settle_start + U32.pack(method) + U64.pack(tag) + bytes((bits, END))


def hand_back(g: Consuming, last: float, first: float) -> None:
    """Give the broker back what the client has returned of links that have not ended and whose member has not left.

    They are the links of which the client returned nothing after the time `last`, or something before the time `first`,
    both in monotonic seconds. Deliveries beyond `MOST_AT_ONCE` stay for the next call, which is due at once.
    """
    kept = g.requeued
    room = MOST_AT_ONCE
    for source, at in list(kept.items()):
        if at.last > last and at.first > first:
            continue
        if source.link is None or source.link.state == _LEAVING or source.ended:
            del kept[source]
            continue
        taken = source.take_returned(room)
        g.c.to_broker.insert(b"".join([_give_back(source, tag, method) for tag, method in taken]))
        room -= len(taken)
        if source.may_return:
            break
        del kept[source]


def _end(g: Consuming, source: TaggedSource) -> bytes:
    """Return the channel.close of a link whose member has left and of which nothing is unacked; empty otherwise."""
    link = source.link
    if link is None or link.state != _LEAVING or not isinstance(source, HiddenChannel):
        return b""
    return links.settled(g, source, link)


def _unknown(g: Consuming, channel: Channel, number: int, method: int) -> bytes:
    """Refuse an ack of an unknown or settled delivery tag: close the channel with 406, as the broker does."""
    return closing.refusal(g.c, channel, PRECONDITION_FAILED, f"unknown delivery tag {number}", method)


def recover(g: Consuming, channel: Channel, method: int, data: bytes, i: int, end: int) -> bytes | None:
    """Take the client's basic.recover: all unacked deliveries of its channel are made again, those of links as well.

    Returns what the broker gets instead; None if it gets the frame as it is.
    """
    numbering = numbering_of(channel)
    requeued = Arguments(data, i, end).bits() & 1
    if numbering is None or channel.state != ChannelState.OPEN or not requeued:
        return None  # the broker refuses a recover without requeue
    frames = data[i:end]
    numbering.end_spans(0, numbering.last, REQUEUED)
    for source in numbering.recover():
        if isinstance(source, HiddenChannel) and source.window is not None:
            frames += _recover_in_series(g, source)
            continue
        if source.ended or not isinstance(source, HiddenChannel) or source.link is None:
            continue
        end_of_link = links.settled(g, source, source.link)
        frames += end_of_link or method_frame(source.number, BASIC_RECOVER, b"\1")
    return frames


def _recover_in_series(g: Consuming, hidden: HiddenChannel) -> bytes:
    """Have all that the client held of a link in series come again; return what the broker gets, or b"".

    If the link is about to end, or has ended, the broker delivers them again, to the next member.
    """
    window, link = hidden.window, hidden.link
    assert window is not None
    assert link is not None
    goes_on = link.state == _TAKES and not hidden.ended
    for held in list(window.held.values()):
        if held.state == HeldState.CLIENT and goes_on:
            window.series.recover(held, g.c.now)
        elif held.state in (HeldState.CLIENT, HeldState.STALE):
            window.series.settle(held)
    g.retrying[hidden.consumer] = None
    return b"" if hidden.ended else links.settled(g, hidden, link)


def oldest_by_shard(g: Consuming, member: Member) -> dict[str, float]:
    """Return by shard when the oldest delivery that a member's client has not settled was made, in monotonic seconds.

    The member may be leaving. In series that is the broker's oldest delivery, whether the client has got it or not.
    """
    found: dict[str, float] = {}
    for link in member.links.values():
        source = g.sources.get(link.channel)
        if not isinstance(source, HiddenChannel) or source.link is not link or source.ended:
            continue
        if source.window is not None:
            found.update((link.shard, held.at) for held in islice(source.window.held.values(), 1))
        elif source.first is not None:
            found[link.shard] = source.first.at
    return found
