"""Messages that came back are published again, on a confirm channel of our own of the same connection to the broker.

Its number was kept back in the handshake: so the user is the same, no delivery tag of the client's changes, and nothing
of ours stands between a client's method and its content, or in its transaction (docs/architecture.md, "One return").
"""

from collections.abc import Collection, Iterator
from itertools import takewhile

from proxy.outcome import Outcome
from proxy.routing.routes import PUBLISH, Choice, Route, Target, Unread
from proxy.session.channel import Channel, RingId, State
from proxy.session.confirms import Fate, Told
from proxy.session.parked import Parked
from proxy.session.state import Connection, Phase, Stale
from proxy.topology.table import Name, PassReason
from proxy.wire import content
from proxy.wire.content import STAMP_ID_ENTRY, STAMPS, STAMPS_AND_COPIES
from proxy.wire.frames import (
    BASIC_ACK,
    BASIC_NACK,
    BODY,
    CHANNEL_OPEN,
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
    method_frame,
    shorted,
)
from ring.destination import Destination

MOST_TRIES = 5
"""Times that one message is published again: queues that go one after the other."""

RECENT = 1.0
"""Seconds for which a ring that was read again for a return needs no other reading, though it names the same queue."""

_ID = frozenset({content.STAMP_ID})

_PASSED = frozenset({PassReason.NO_BINDINGS, PassReason.TYPE, PassReason.MODE_PASS, PassReason.SHADOW})
"""Why an exchange without a ring gets what its ring had before: the broker routes it, or its alternate exchange."""


class Rerouted:
    """A publish that came back, on its way again."""

    __slots__ = (
        "channel", "choice", "chosen_by", "exchange", "key", "known", "passed", "put_back", "ring_id", "sent_to",
        "since", "tag", "tries",
    )  # fmt: skip

    def __init__(self, channel: Channel, known: RingId, stamps: content.Stamps, put_back: bytes, since: float) -> None:
        """`put_back` are the entries cut from its headers; `since` is when it came back, monotonic."""
        self.channel, self.known, self.put_back, self.since = channel, known, put_back, since
        self.exchange, self.key, self.ring_id = stamps.exchange, stamps.routing_key, stamps.ring_id
        self.sent_to: Destination | None = None
        """Where it came back from."""
        self.choice: Choice | None = None
        """By which it goes out next."""
        self.chosen_by: Name | None = None
        """The exchange whose ring names that still, where this is another: with rings behind rings."""
        self.passed = False
        """It went out to the client's own exchange, with no stamp but its id."""
        self.tries = 0
        self.tag = 0
        """Its delivery tag on our channel; 0 for none."""

    def stale(self, c: Connection) -> Stale:
        """What it shows by having come back: the queue is gone, or nothing behind the exchange takes it."""
        gone = self.sent_to if self.sent_to is not None and self.sent_to.kind == "queue" else None
        return Stale(self.chosen_by or (c.vhost, self.exchange.decode(errors="replace")), gone)


class _Content:
    """Frames that wait until the content before them has gone out whole."""

    __slots__ = ("frames", "whole")

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.whole = False
        """Its last frame is among them."""


class Reroutes:
    """Our channel of one session, and what is under way on it."""

    def __init__(self, number: int) -> None:
        """Not open yet; `number` is the channel's."""
        self.number = number
        self.is_open = self.answered = False
        """Whether it has been opened; and whether the broker has said so."""
        self.tag = 0
        """Of the last publish."""
        self.under_way: dict[int, Rerouted] = {}
        """By delivery tag."""
        self.by_id: dict[int, Rerouted] = {}
        """By ring id."""
        self.frame: bytes = b""
        """A basic.return on our channel whose content header is due."""
        self.left = 0
        """Bytes of its body still to come,"""
        self.back: Rerouted | None = None
        """which is published again,"""
        self.home: list[bytes] = []
        """or goes to the client, once it is whole; else it is dropped."""
        self.ends: Rerouted | None = None
        """Whose client has to be told once that is done."""
        self.parked: Parked | None = None
        """The message on this channel that waits for a reading while its body is still coming; else None."""
        self._sending: Rerouted | None = None
        self._behind: dict[Rerouted, _Content] = {}

    @property
    def since(self) -> float | None:
        """When the first of those under way came back, monotonic; None where there is none."""
        return min((came.since for came in self.under_way.values()), default=None)

    def excuse(self, since: float, now: float) -> None:
        """The broker's answers were not read in that time, which does not count as theirs."""
        for came in self.under_way.values():
            came.since += now - max(came.since, since)

    def send(self, c: Connection, came: Rerouted, frames: bytes, *, last: bool) -> None:
        """Sends a part of a content, or keeps it back: contents follow each other whole, though they came mingled."""
        if not came.tag:
            return  # our channel was closed meanwhile
        if self._sending not in (None, came):
            behind = self._behind.setdefault(came, _Content())
            behind.frames.append(frames)
            if last:
                behind.whole = True
            return
        c.tell_broker(frames)
        self._sending = None if last else came
        while self._sending is None and self._behind:
            following, behind = next(iter(self._behind.items()))
            del self._behind[following]
            c.tell_broker(b"".join(behind.frames))
            self._sending = None if behind.whole else following

    def put(self, came: Rerouted) -> None:
        """It is about to be published."""
        self.tag += 1
        came.tag = self.tag
        came.tries += 1
        came.channel.away += 1
        self.under_way[came.tag] = came
        self.by_id[came.ring_id] = came

    def take(self, came: Rerouted) -> None:
        """It is under way no more."""
        if self.under_way.pop(came.tag, None) is came:
            came.channel.away -= 1
            self.by_id.pop(came.ring_id, None)
        came.tag = 0

    def closed(self) -> list[Rerouted]:
        """The broker has closed our channel: those that were under way on it, of which nobody knows."""
        lost = list(self.under_way.values())
        for came in lost:
            self.take(came)
        self.is_open, self.answered, self.tag = False, False, 0
        self._sending, self._behind = None, {}
        self.frame, self.left, self.back, self.home, self.ends, self.parked = b"", 0, None, [], None, None
        return lost


Read = Stale | Unread
"""What must be read before a message that came back can be placed."""


def placed(
    c: Connection, came: Rerouted, tried: Collection[Stale | Name], data: bytes, start: int, stop: int
) -> Target | Route | Read | None:
    """Return where a message that came back goes now: a ring's destination, its own exchange, or None for nowhere.

    Returns what must be read first where that is not known, but for what was tried for this message already. Its
    content header's payload stands in `data` from `start` to `stop`.
    """
    if not _may_go_out(c) or came.tries >= MOST_TRIES or c.table is None:
        return None
    c.expire()
    found = c.table.find(came.exchange)
    if isinstance(found, Unread):
        return _unless_tried(tried, found)
    if not found.stamp or found.shadowed:
        return found if not came.passed and (found.shadowed or found.reason in _PASSED) else None
    try:
        choice = found.choose(came.key, data, start, stop)
    except Fault:
        return None
    if choice is None:
        return None
    if choice.target.unread is not None:
        return _unless_tried(tried, choice.target.unread)
    if came.sent_to is None or choice.target.destination != came.sent_to:
        came.choice = choice
        return choice.target
    if came.sent_to.kind == "queue":
        # (What an exchange of the ring does not deliver is no news.)
        came.chosen_by = choice.by.name
        if not is_recent(c, came.stale(c)):
            return _unless_tried(tried, came.stale(c))
    return None


def _may_go_out(c: Connection) -> bool:
    """Whether there is a channel for it."""
    barred = bool(c.without_spare) and c.now < c.without_spare.get((c.vhost, c.user), 0.0)
    return c.spare > 0 and not barred and c.phase <= Phase.LEAVING


def is_recent(c: Connection, stale: Stale) -> bool:
    """Whether the ring was read again for that just now."""
    return c.now - c.reread.get(stale, -RECENT) < RECENT


def _unless_tried(tried: Collection[Stale | Name], what: Read) -> Read | None:
    if isinstance(what, Unread):
        return None if what.refused or what.name in tried else what
    return None if what in tried else what


def publish(c: Connection, came: Rerouted, to: Target | Route, data: bytes, start: int, stop: int) -> bool:
    """Sends method and content header of a message to a place that it was not sent to before; whether they fit."""
    own = c.reroutes = c.reroutes or Reroutes(c.spare)
    header = own_words(came, data, start, stop)
    cut, entries = _ID, STAMP_ID_ENTRY + U64.pack(came.ring_id)
    if isinstance(to, Target):
        cut = STAMPS_AND_COPIES if to.is_queue else STAMPS
        entries = content.stamp_of_exchange(came.exchange) + U32.pack(len(came.key)) + came.key + entries
        method = to.method if to.is_queue else to.method + shorted(came.key)
    else:
        method = PUBLISH + shorted(came.exchange) + shorted(came.key)
    header, put_back = content.stamped(header, 0, len(header), entries, cut)
    if len(header) > c.frame_max - OVERHEAD:
        return False
    own.take(came)
    came.put_back, came.passed = put_back, not isinstance(to, Target)
    if (record := came.channel.confirms.records.get(came.known.number)) is not None:
        if isinstance(to, Target) and came.choice is not None:
            came.choice.tell(record, to.destination)
        else:
            record.destination = None
    own.put(came)
    opening = b""
    if not own.is_open:
        own.is_open = True
        opening = method_frame(own.number, CHANNEL_OPEN, b"\0") + method_frame(own.number, CONFIRM_SELECT, b"\0")
    c.counter_table.of((c.vhost, came.exchange.decode(errors="replace")), None).rerouted += 1
    if not isinstance(to, Target):
        to.counters.published += 1
    frames = (
        opening,
        FRAME.pack(METHOD, own.number, len(method) + 1),
        method,
        bytes((MANDATORY, END)),
        FRAME.pack(HEADER, own.number, len(header)),
        header,
        b"\xce",
    )
    own.send(c, came, b"".join(frames), last=not U64.unpack_from(data, start + 4)[0])
    return True


def own_words(came: Rerouted, data: bytes, start: int, stop: int) -> bytes:
    """The content header of a message that came back, as its client sent it."""
    stamps = _ID if came.passed else STAMPS
    return content.unstamped(data, start, stop, came.put_back, came.known.had_headers, stamps)


def more(c: Connection, came: Rerouted, data: bytes, i: int, end: int, *, last: bool) -> None:
    """The next body frame of a message that goes out again."""
    own = c.reroutes
    assert own is not None
    own.send(c, came, FRAME.pack(BODY, own.number, end - i - OVERHEAD) + data[i + 7 : end], last=last)


def resolved(c: Connection, came: Rerouted, fate: Fate) -> bytes:
    """What the client is told, now that it is known what became of a message that came back."""
    if c.reroutes is not None:
        c.reroutes.take(came)
    channel = came.channel
    confirms = channel.confirms
    if not hears(c, channel):
        return b""
    if not channel.away and channel.late:
        c.released.append(channel)
    if not confirms.answered or came.known.number <= confirms.base:
        if fate.outcome is not Outcome.CONFIRMED:
            c.counter_table.of((c.vhost, came.exchange.decode(errors="replace")), None).add(fate.outcome)
        return b""
    told = confirms.decide(came.known.number, fate)
    return answers(channel, told)


def hears(c: Connection, channel: Channel) -> bool:
    """Whether the client may still be told something on a channel."""
    return c.channels.get(channel.id) is channel and channel.state != State.CLOSED


def answers(channel: Channel, told: list[Told]) -> bytes:
    """Acks and nacks for a client; numbers are the channel's publishes."""
    base = channel.confirms.base
    return b"".join(
        method_frame(channel.id, BASIC_ACK if ack else BASIC_NACK, U64.pack(n - base) + bytes((several,)))
        for n, several, ack in told
    )


def confirmed(c: Connection, tag: int, multiple: bool, acked: bool) -> Iterator[bytes]:
    """The broker's answer to a publish on our channel, or to all up to it: what clients are told."""
    own = c.reroutes
    assert own is not None
    # Tags ascend.
    tags = list(takewhile(lambda n: n <= tag, own.under_way)) if multiple else [tag] if tag in own.under_way else []
    for came in [own.under_way[n] for n in tags]:
        yield resolved(c, came, Fate(Outcome.CONFIRMED if acked else Outcome.NACKED, acked))
