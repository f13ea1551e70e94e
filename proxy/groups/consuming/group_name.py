"""Methods on the name of a group as if it were a queue: queue.declare and its kin, and basic.get.

Most programs declare a queue before they consume from it. On a group's name that would make a queue, which would then
win over the group for everybody. A method on a name that the setting `groups` has therefore waits, with all that
follows on its channel, until it is known what the name is. One hidden channel asks the broker: whether a queue has the
name, then whether an exchange has it; the groups then tell its shards, of which the broker is asked for the totals.
"""

from collections.abc import Sequence
from enum import IntEnum
from itertools import islice
from typing import Final

from proxy.groups.consuming import consumer, links
from proxy.groups.consuming.events import DeclaredGroup, Shadowed, ShardsAsked
from proxy.groups.consuming.hidden import Consumer, Consuming, HiddenChannel
from proxy.groups.consuming.questions import Question
from proxy.groups.consuming.tags import numbering_of
from proxy.groups.model import Member
from proxy.session import closing
from proxy.session.backlog import Wait
from proxy.session.channel import Channel
from proxy.session.events import Lacks
from proxy.session.publishing import requests
from proxy.session.state import ChannelState
from proxy.settings.missing_right import missing_right
from proxy.settings.rights import to_shards
from proxy.wire.arguments import Arguments
from proxy.wire.frames import (
    ACCESS_REFUSED,
    BASIC_GET,
    CHANNEL_CLOSE,
    CHANNEL_CLOSE_OK,
    DECLARE_NOWAIT,
    EMPTY_TABLE,
    EXCHANGE_DECLARE,
    EXCHANGE_DECLARE_OK,
    INTERNAL_ERROR,
    NOT_FOUND,
    PASSIVE,
    PRECONDITION_FAILED,
    QUEUE_BIND,
    QUEUE_DECLARE,
    QUEUE_DECLARE_OK,
    QUEUE_DELETE,
    QUEUE_PURGE,
    QUEUE_UNBIND,
    RESOURCE_ERROR,
    RESOURCE_LOCKED,
    U32,
    channel_open,
    method_frame,
    shorted,
)

_AT_ONCE: Final = 32
"""The most shards of which the broker is asked ahead of its answers. It drops what stands behind a shard that it does
not tell of, so each such shard costs as many questions again."""

_LONGEST_PATTERN: Final = 100
"""The most characters of a pattern that a reply text names; the text has 255 bytes."""

_MOST: Final = 0xFFFFFFFF
"""The largest count that queue.declare-ok can tell."""

_REFUSALS: Final = {
    QUEUE_BIND: "cannot be bound as if it were a queue; bind a queue to the exchange, or use exchange.bind",
    QUEUE_UNBIND: "cannot be unbound as if it were a queue; unbind a queue from the exchange, or use exchange.unbind",
    QUEUE_PURGE: "cannot be purged as if it were a queue; purge its shards",
    QUEUE_DELETE: "cannot be deleted as if it were a queue; delete its shards, or the exchange with exchange.delete",
    BASIC_GET: "takes no basic.get, as one consumer at a time gets the messages of a shard; use basic.consume",
}
"""By method, the reason why the name of a group does not take it."""


_STORED: Final = frozenset({QUEUE_DECLARE, QUEUE_BIND, QUEUE_UNBIND, QUEUE_DELETE})
"""The methods whose names RabbitMQ changes before it looks for the queue (`requests.stored`)."""


class Step(IntEnum):
    """The steps of a question about a name; each one is named after the answer that is awaited."""

    QUEUE = 0
    """The broker is to tell whether there is a queue of that name."""
    SHADOWED = 1
    """There is a queue of that name; the broker is to tell whether there is an exchange as well, for the log only."""
    EXCHANGE = 2
    """There is no queue of that name; the broker is to tell whether there is an exchange."""
    SHARDS = 3
    """There is an exchange of that name; the groups are to tell its shards."""
    TOTALS = 4
    """The broker is to tell how many messages and consumers each shard has."""


# Requests of the client


def take(g: Consuming, channel: Channel, method: int, data: bytes, i: int, end: int) -> bytes | None:
    """Take a method on a queue: if its name is a group's it is answered here; None is returned for any other."""
    if channel.state != ChannelState.OPEN:
        return None
    arguments = Arguments(data, i, end, at=2)
    name = arguments.short_string()
    numbering = numbering_of(channel)
    question = numbering.question if numbering is not None else None
    if numbering is not None and question is not None:
        numbering.question = None
        if not question.is_group:
            _pass(g, channel, method, data, i, end)
            return None
        if method == QUEUE_DECLARE:
            answer = _declared(g, channel, question)
            if not arguments.bits() & DECLARE_NOWAIT:
                links.tell(g, numbering, answer)
            return b""
        return closing.refusal(g.c, channel, *_refusal(question.name, method), method)
    if method != QUEUE_DECLARE:
        name = requests.meant(channel, name)
    if method in _STORED:
        name = requests.stored(name)
    group = consumer.group_named(g, name) if name else ""
    if not group:
        _pass(g, channel, method, data, i, end)
        return None
    if not g.free:
        text = f"group '{group}': all {g.most} hidden channels of the connection are in use"
        return closing.refusal(g.c, channel, RESOURCE_ERROR, text, method)
    _ask(g, channel, Question(group, method, _exchange_of(g, group)))
    return None


def _pass(g: Consuming, channel: Channel, method: int, data: bytes, i: int, end: int) -> None:
    """Let a method pass that is no group's business; the answer to a basic.get will have a delivery tag."""
    if method == BASIC_GET:
        consumer.get(g, channel, method, data, i, end)


def _declared(g: Consuming, channel: Channel, question: Question) -> bytes:
    """Return queue.declare-ok with the group's totals; the client's arguments mean nothing, since no queue is made."""
    name = question.name.encode()
    channel.last_queue = name
    g.events.append(DeclaredGroup(question.name))
    counts = U32.pack(min(question.messages, _MOST)) + U32.pack(min(question.consumers, _MOST))
    return method_frame(channel.id, QUEUE_DECLARE_OK, shorted(name) + counts)


def _refusal(group: str, method: int) -> tuple[int, str]:
    """Return the reply code and text for a method that the name of a group does not take."""
    code = RESOURCE_LOCKED if method == BASIC_GET else PRECONDITION_FAILED
    return code, f"'{group}' is a sharded exchange and no queue: it {_REFUSALS[method]}"


def _ask(g: Consuming, channel: Channel, question: Question) -> None:
    """Have the client's method wait, and ask the broker what the name is."""
    numbering = consumer.begin_numbering(g, channel)
    numbering.question = question
    g.c.waiting.held = Wait.INTERCEPTED
    # Nobody joins with this consumer, which only has the hidden channel that asks.
    asking = Consumer(Member("", g.c.vhost, question.name, channel.id, b""), channel, numbering, b"")
    asking.leaving, asking.question = True, question
    number = g.take(asking, None).number
    g.due += (
        channel_open(number),
        consumer.passive_queue(number, question.name),
        _passive_exchange(number, question.exchange),
    )


def _exchange_of(g: Consuming, group: str) -> str:
    """Return the exchange that may have a group of this name: the part before the last slash, or all of the name."""
    exchange = group.rpartition("/")[0]
    return exchange if exchange and g.match(g.c.vhost, exchange) else group


def _passive_queues(number: int, question: Question) -> list[bytes]:
    """Return the questions about the next shards; each answer to one brings one more, so that as many are under way."""
    return [consumer.passive_queue(number, shard) for shard in islice(question.left, _AT_ONCE)]


def _passive_exchange(number: int, name: str) -> bytes:
    names = shorted(name.encode()) + shorted(b"direct")
    return method_frame(number, EXCHANGE_DECLARE, b"\0\0" + names + bytes((PASSIVE,)) + EMPTY_TABLE)


# Answers of the broker on the hidden channel


def answered(
    g: Consuming, hidden: HiddenChannel, question: Question, method: int, data: bytes, i: int, end: int
) -> None:
    """Take a method of the broker's on the hidden channel that asks a question."""
    if method == CHANNEL_CLOSE:
        _closed(g, hidden, question, data, i, end)
    elif method == QUEUE_DECLARE_OK and question.step == Step.QUEUE:
        question.step, question.decided = Step.SHADOWED, True
    elif method == EXCHANGE_DECLARE_OK and question.step == Step.SHADOWED:
        g.events.append(Shadowed(question.name))
        links.close(g, hidden)
    elif method == EXCHANGE_DECLARE_OK and question.step == Step.EXCHANGE:
        question.step = Step.SHARDS
        g.events.append(ShardsAsked(hidden.consumer.channel, question.name))
    elif method == QUEUE_DECLARE_OK and question.step == Step.TOTALS:
        arguments = Arguments(data, i, end)
        arguments.short_string()
        question.messages += arguments.long()
        question.consumers += arguments.long()
        question.left.popleft()
        if len(question.left) >= _AT_ONCE:
            g.due.append(consumer.passive_queue(hidden.number, question.left[_AT_ONCE - 1]))
        elif not question.left:
            _decide(g, hidden, question, is_group=True)


def _closed(g: Consuming, hidden: HiddenChannel, question: Question, data: bytes, i: int, end: int) -> None:
    """Take the broker's channel.close, by which it says that something is not there."""
    arguments = Arguments(data, i, end)
    code, due = arguments.short(), g.due
    due.append(method_frame(hidden.number, CHANNEL_CLOSE_OK))
    again = channel_open(hidden.number)
    if question.step == Step.QUEUE and code == NOT_FOUND:
        question.step = Step.EXCHANGE
        due += (again, _passive_exchange(hidden.number, question.exchange))
        return
    if question.step == Step.EXCHANGE and code == NOT_FOUND and question.exchange != question.name:
        question.exchange = question.name
        due += (again, _passive_exchange(hidden.number, question.exchange))
        return
    if question.step == Step.QUEUE and code == ACCESS_REFUSED and question.method == QUEUE_DECLARE:
        # The client's own queue.declare would be refused as well, for want of `configure`, which nobody should grant.
        text = arguments.short_string().decode(errors="replace")
        links.closed_by_broker(g, hidden)
        text = not_permitted(g, question.name, text)
        closing.refuse_channel(g.c, hidden.consumer.channel, code, text, question.method)
        return
    if question.step == Step.TOTALS:
        # This shard is gone, another connection's own, or the user has no right on it and RabbitMQ 4.3 does not tell.
        # The broker has dropped what was asked behind it.
        question.left.popleft()
        if question.left:
            due.append(again)
            due += _passive_queues(hidden.number, question)
            return
        question.is_group = True
    elif question.step == Step.SHARDS:
        text = arguments.short_string().decode(errors="replace")
        links.closed_by_broker(g, hidden)
        closing.refuse_channel(g.c, hidden.consumer.channel, code, text, question.method)
        return
    # Else neither a queue nor an exchange has the name, or the broker will say the same to the client.
    question.decided = True
    links.closed_by_broker(g, hidden)


def _decide(g: Consuming, hidden: HiddenChannel, question: Question, *, is_group: bool) -> None:
    question.decided, question.is_group = True, is_group
    links.close(g, hidden)


def not_permitted(g: Consuming, group: str, text: str) -> str:
    """Return the reply text for a client whose user lacks a right for a group, and note the right as the event Lacks.

    `text` is the broker's own.

    It names a right of which the client knows nothing: `configure`, where this proxy has asked whether there is a queue
    with the group's name, or `read` on one of the shards.
    """
    _, of, user = text.rpartition(" refused for user ")
    whose = f"user {user}" if of else "the user"
    exchange = _exchange_of(g, group)
    entry = g.c.table.entry_of(exchange) if g.c.table is not None else None
    ring = entry.known.ring if entry is not None and entry.known is not None else None
    shards = [each.name for each in ring.destinations if each.kind == "queue"] if ring is not None else []
    if entry is not None and entry.groups:
        shards = entry.queues_of(group)
    needed = to_shards(group, shards)
    if len(needed) > _LONGEST_PATTERN:
        needed = f"such as '{shards[0]}'"  # nobody could use a pattern that is cut short
    if lacking := missing_right(text):
        wanted = f"the exchange's name and its shards, {needed}"
        g.c.events.append(Lacks(lacking._replace(right="read", resource=f"group {group!r}", wanted=wanted)))
    return (
        f"ACCESS_REFUSED - group '{group}' refused for {whose}: "
        f"grant read on the exchange's name and on its shards, {needed}"
    )


# Input from the groups


def found(g: Consuming, channel: Channel, shards: Sequence[str] | None, why: str = "") -> None:
    """Go on with the question of a channel now that the shards are known.

    None says that the exchange is no hash exchange or, with `why`, that it could not be read.
    """
    numbering = numbering_of(channel)
    question = numbering.question if numbering is not None else None
    if question is None or question.step != Step.SHARDS or question.decided or channel.state != ChannelState.OPEN:
        return  # the client has gone on, or its channel has ended
    hidden = _hidden(g, question)
    if hidden is None:
        return
    if why:
        not_found(g, channel, question, why)
    elif shards and question.method == QUEUE_DECLARE:
        question.step = Step.TOTALS
        question.left.extend(shards)
        g.due.extend(_passive_queues(hidden.number, question))
    else:
        _decide(g, hidden, question, is_group=shards is not None)
    g.c.to_broker.flush()


def not_found(g: Consuming, channel: Channel, question: Question, why: str) -> None:
    """Close the client's channel: if its method passed, it might make a queue that wins over a group."""
    text = f"it is not known whether '{question.name}' is a group: {why}"
    closing.refuse_channel(g.c, channel, INTERNAL_ERROR, text, question.method)


def _hidden(g: Consuming, question: Question) -> HiddenChannel | None:
    """Return the hidden channel on which a question is asked; None if it is closed."""
    for source in g.sources.values():
        if isinstance(source, HiddenChannel) and source.consumer.question is question and not source.closing:
            return source
    return None
