"""The delivery tags of one channel on which a client consumes from groups. This module does no I/O.

A member's deliveries come over hidden channels, one for each shard, and each of them counts its delivery tags from 1.
The client knows one channel only. So every delivery gets the next number of that channel, and an ack of a number goes
to the channel and the delivery tag that the number stands for.
"""

from collections import deque
from typing import Final

from proxy.groups.member import Link, Member
from proxy.wire.frames import BODY, FRAME, METHOD, U16, UNEXPECTED_FRAME, Fault

MOST_UNACKED: Final = 1 << 18
"""The most unacked deliveries of one channel with members: enough for the default prefetch of as many shards as there
may be. Each takes some 200 bytes."""

MOST_OUT_OF_ORDER: Final = 1 << 16
"""The most acks of one channel that may come out of order before the first member."""

MOST_HELD: Final = 1 << 24
"""The most bytes of the broker that may wait until one content is sent whole on a client's channel."""

_NONE: Final = 1 << 62
"""A delivery tag above all others."""

_ACK_SIZE: Final = 13
"""Bytes of the payload of basic.ack, basic.nack and basic.reject: method, delivery tag, bits."""


class Source:
    """One channel of the broker connection whose deliveries go to a client's channel: that channel, or a hidden one."""

    __slots__ = ("body_start", "ended", "left", "link", "number", "numbering", "returning", "settle_start")

    def __init__(self, number: int, numbering: "Numbering", link: Link | None = None) -> None:
        """`link` is the link of a hidden channel; None for the client's channel, and for a channel without link."""
        self.number, self.numbering, self.link = number, numbering, link
        self.settle_start = FRAME.pack(METHOD, number, _ACK_SIZE)
        """The first bytes of a frame that acks, nacks or rejects a delivery of this channel."""
        self.body_start = bytes((BODY,)) + U16.pack(numbering.number)
        """The first bytes of a body frame on the client's channel, up to the payload's size."""
        self.left = 0
        """Bytes still to come of the body of the content under way; -1 before its content header."""
        self.returning: list[int] = []
        """The broker's tags of deliveries that the client has returned and the broker has yet to hear of.

        They wait for those before them, or, once the member has left, for the end of the link.
        """
        self.ended = False
        """Whether the channel takes no acks any more, as its messages have gone back to their queue."""


class Delivery:
    """One delivery that the client has not settled."""

    __slots__ = ("at", "source", "tag")

    def __init__(self, source: Source, tag: int, at: float) -> None:
        """`tag` is the broker's delivery tag on the channel of `source`; `at` is the time, monotonic."""
        self.source, self.tag, self.at = source, tag, at


class Joining:
    """A client's basic.consume on a name that the setting `groups` has, until it shows whether that is a queue's."""

    __slots__ = ("decided", "is_group", "member", "refusal")

    def __init__(self, member: Member, refusal: tuple[int, str] | None) -> None:
        """`refusal` is the reply code and text that the member gets if the name is a group's; None for none."""
        self.member, self.refusal = member, refusal
        self.decided = False
        """Whether the frame that waits may go on."""
        self.is_group = False
        """Whether the member has joined; else the name is a queue's, and the broker gets the frame."""


class Question:
    """The question whether a name is a queue's or a group's, asked for a method other than basic.consume."""

    __slots__ = ("consumers", "decided", "is_group", "left", "messages", "method", "name", "step")

    def __init__(self, name: str, method: int) -> None:
        """The frame of `method` waits for the answer."""
        self.name, self.method = name, method
        self.step = 0
        """The step that the question is at: a `Step` of proxy/session/pseudo_queue.py, as an integer."""
        self.decided = False
        """Whether the frame that waits may go on."""
        self.is_group = False
        """Whether the name is a group's; else the broker gets the frame."""
        self.left: deque[str] = deque()
        """The shards whose passive queue.declare the broker has yet to answer."""
        self.messages = self.consumers = 0
        """The messages and consumers of all shards for which the broker has answered so far."""


class Numbering:
    """The delivery tags of one channel of a client's, from its first basic.consume, basic.get or basic.qos to its end.

    Until the first member comes, deliveries pass with the broker's tags, and it is only noted which are settled.
    """

    __slots__ = (
        "_above", "_low", "base", "busy", "cancelled", "gets", "held", "held_size", "joining", "last", "number", "own",
        "prefetch", "question", "requests", "started", "tags", "told", "unacked", "unsure",
    )  # fmt: skip

    def __init__(self, number: int) -> None:
        """Start without deliveries. `number` is that of the client's channel."""
        self.number = number
        self.own = Source(number, self)
        """The client's own channel."""
        self.started = False
        """Whether the channel has had a member, so that this proxy numbers its deliveries."""
        self.last = 0
        """The number of the last delivery."""
        self.base = 0
        """The last number that is the broker's own delivery tag on the client's channel."""
        self.unacked: dict[int, Delivery] = {}
        """The deliveries above `base` that the client has not settled, by number, ascending."""
        self._low = 0
        self._above: set[int] = set()
        # All numbers up to _low, and those in _above, are settled; of numbers up to `base` only.
        self.unsure = False
        """Whether so many acks came out of order that it is not known which numbers up to `last` are settled."""
        self.prefetch = 0
        """The prefetch for links of members that join from now on; 0 if the client has not set one."""
        self.tags: dict[bytes, bool] = {}
        """The tags of the channel's ordinary consumers, with whether they consume without acks."""
        self.cancelled: set[bytes] = set()
        """The tags of ordinary consumers without acks that the client has cancelled, until their last delivery."""
        self.requests: deque[bool] = deque()
        """For each unanswered basic.consume with an empty tag, the oldest first: whether it is without acks."""
        self.joining: Joining | None = None
        """The basic.consume on the name of a group that waits to be let in; None if none does."""
        self.question: Question | None = None
        """The question about a name for which a method of the client's waits; None if none does."""
        self.gets: deque[bool] = deque()
        """Whether each unanswered basic.get is without acks, the oldest first."""
        # The content under way to the client.
        self.busy: Source | None = None
        """The channel whose content the client is getting; None between two contents."""
        self.held: list[bytes] = []
        """Frames of the broker's for the client's channel that wait for the end of the content."""
        self.held_size = 0
        """The number of bytes in `held`."""
        self.told: list[bytes] = []
        """Frames of this proxy's for the client's channel that wait for the end of the content."""

    def start(self) -> None:
        """Give every delivery from now on a number of this proxy's, since a member comes."""
        if not self.started:
            self.started, self.base = True, self.last

    def add(self, source: Source, tag: int, now: float) -> int:
        """Return the number of a delivery that the client is to settle; call it only once members have come."""
        self.last += 1
        self.unacked[self.last] = Delivery(source, tag, now)
        return self.last

    def add_settled(self) -> int:
        """Return the number of a delivery without acks; call it only once members have come."""
        self.last += 1
        return self.last

    def pass_delivery(self, tag: int, *, settled: bool) -> None:
        """Note a delivery of the client's own channel that passes with its tag, while there are no members."""
        self.last = tag
        if settled:
            self._settle_own(tag)

    @property
    def full(self) -> bool:
        """Whether the client holds as many deliveries without an ack as it may."""
        return len(self.unacked) >= MOST_UNACKED

    def settle_one(self, number: int) -> Delivery | None:
        """Take the client's answer to one delivery above `base`, and return it; None if none without an answer."""
        delivery = self.unacked.get(number)
        if delivery is not None:
            del self.unacked[number]
            link = delivery.source.link
            if link is not None:
                link.unacked -= 1
        return delivery

    def settle(self, number: int, multiple: bool, requeue: bool = False) -> list[tuple[Source, int, bool]] | None:
        """Take the client's ack or reject of a delivery, or of all up to it (`multiple`).

        Returns for each channel the broker's delivery tag to settle, and whether with all before it; None if the number
        belongs to no unacked delivery. If the client returns a delivery of a link (`requeue`) while earlier ones of the
        link are unacked, it waits for them in `Source.returning`: if the link ended first, the next member would get it
        before them.
        """
        if not multiple:
            if number <= self.base or not self.started:
                self._settle_own(number)
                return [(self.own, number, False)]
            delivery = self.settle_one(number)
            if delivery is None:
                return None
            if requeue and delivery.source.link is not None and self._lowest(delivery.source) < delivery.tag:
                delivery.source.returning.append(delivery.tag)
                return []
            return [(delivery.source, delivery.tag, False)]
        if not self.started or 0 < number <= self.base:
            self._settle_all_own(number or self.last)
            return [(self.own, number, True)]
        if number and number not in self.unacked:
            return None
        return self._settle_all(number or self.last, requeue)

    def _lowest(self, source: Source) -> int:
        """Return the lowest of a channel's delivery tags that the client has not settled; a high number for none."""
        for delivery in self.unacked.values():
            if delivery.source is source:
                return delivery.tag
        return _NONE

    def take_returned(self, source: Source) -> list[int]:
        """Return the broker's tags of returned deliveries that wait for none before them any more, ascending."""
        lowest = self._lowest(source)
        taken = sorted(tag for tag in source.returning if tag < lowest)
        source.returning = [tag for tag in source.returning if tag > lowest]
        return taken

    def _settle_all(self, number: int, requeue: bool) -> list[tuple[Source, int, bool]]:
        highest: dict[Source, int] = {}
        single: list[tuple[Source, int, bool]] = []
        below = self._highest_own()
        if below:
            highest[self.own] = below
            self._settle_all_own(self.base)
        settled: list[int] = []
        for each, delivery in self.unacked.items():
            if each > number:
                break
            settled.append(each)
            if delivery.source.returning and not requeue:
                # One answer for all would take in those that are returned.
                single.append((delivery.source, delivery.tag, False))
            else:
                highest[delivery.source] = delivery.tag
            link = delivery.source.link
            if link is not None:
                link.unacked -= 1
        for each in settled:
            del self.unacked[each]
        for source, tag in highest.items():
            if source.returning:
                source.returning = [other for other in source.returning if other > tag]
        return [(source, tag, True) for source, tag in highest.items()] + single

    def recover(self) -> list[Source]:
        """Forget all deliveries, since the broker will deliver them again; return the channels that they were on."""
        sources: dict[Source, None] = {}
        for delivery in self.unacked.values():
            sources[delivery.source] = None
            delivery.source.returning = []
            link = delivery.source.link
            if link is not None:
                link.unacked -= 1
        self.unacked.clear()
        self._settle_all_own(self.base if self.started else self.last)
        return list(sources)

    def oldest(self) -> dict[Source, float]:
        """Return by channel when its oldest unacked delivery was made, in monotonic seconds."""
        found: dict[Source, float] = {}
        for delivery in self.unacked.values():
            found.setdefault(delivery.source, delivery.at)
        return found

    def _settle_own(self, tag: int) -> None:
        """Note that a delivery with the broker's own tag is settled."""
        if tag != self._low + 1:
            if tag > self._low:
                self._above.add(tag)
                if len(self._above) > MOST_OUT_OF_ORDER:
                    self._above.clear()
                    self.unsure = True
            return
        self._low = tag
        while self._above and self._low + 1 in self._above:
            self._low += 1
            self._above.discard(self._low)

    def _settle_all_own(self, tag: int) -> None:
        if tag > self._low:
            self._low = tag
            self._above = {each for each in self._above if each > tag}
            while self._low + 1 in self._above:
                self._low += 1
                self._above.discard(self._low)

    def _highest_own(self) -> int:
        """Return the highest number up to `base` that is not settled; 0 if all are."""
        number = self.base
        while number > self._low and number in self._above:
            number -= 1
        return number if number > self._low else 0

    def hold(self, frame: bytes) -> None:
        """Keep a frame of the broker's until the content under way has ended. Raises Fault if too much waits.

        RabbitMQ writes each content in one piece, so it is rare that anything waits.
        """
        self.held.append(frame)
        self.held_size += len(frame)
        if self.held_size > MOST_HELD:
            raise Fault(UNEXPECTED_FRAME, f"more than {MOST_HELD} bytes amidst one content of channel {self.number}")

    @property
    def waits(self) -> bool:
        """Whether anything waits for the end of the content under way."""
        return bool(self.told or self.held)

    def take_told(self) -> list[bytes]:
        """Return the frames of this proxy's that have waited, and forget them."""
        told, self.told = self.told, []
        return told

    def take_held(self) -> bytes:
        """Return the frames of the broker's that have waited, and forget them."""
        held, self.held, self.held_size = b"".join(self.held), [], 0
        return held
