"""The delivery tags of one channel on which a client consumes from groups. This module does no I/O.

A member's deliveries come over hidden channels, one for each shard, and each of them counts its delivery tags from 1.
The client knows one channel only. Every delivery therefore gets the next number of that channel, and an ack of a number
goes to the channel and the delivery tag that the number stands for.

A client may hold hundreds of thousands of deliveries and answer them in any order, one by one. No answer may therefore
look through them. Each delivery knows its neighbours in two orders: among all of the client's channel, for an answer to
all up to a number, and among those of its source, whose first is the oldest. A delivery holds the one after it as an
object and the one before it as a number: with objects both ways the memory of all would wait for the collector.
"""

# mypyc: compiled

from collections import deque
from heapq import heappop, heappush
from itertools import takewhile
from typing import Final

from proxy.groups.consuming.questions import Joining, Question
from proxy.groups.consuming.series import Held, Window
from proxy.groups.model import Link, LinkState
from proxy.session.channel import Channel
from proxy.session.merging import Merge, Source
from proxy.tracing.tracer import Span
from proxy.wire.frames import BASIC_NACK, BASIC_REJECT, FRAME, METHOD

MOST_UNACKED: Final = 1 << 18
"""The most unacked deliveries of one channel with members: enough for the default prefetch of as many shards as there
may be. Each takes some 200 bytes."""

MOST_OUT_OF_ORDER: Final = 1 << 16
"""The most acks of one channel that may come out of order before the first member."""

MOST_TAGS: Final = 4096
"""The most ordinary consumers of one session that are remembered. Each takes up to 400 bytes."""

UNSETTLED: Final = "unsettled"
"""The error of a span whose delivery the broker makes again, since the client's answer did not come or came late."""

_LEAVING: Final = LinkState.LEAVING.value

_ACK_SIZE: Final = 13
"""Bytes of the payload of basic.ack, basic.nack and basic.reject: method, delivery tag, bits."""


class TaggedSource(Source):
    """One channel of the broker connection whose deliveries go to a client's channel: that channel, or a hidden one."""

    __slots__ = ("answers", "ended", "final", "first", "link", "numbering", "returning", "settle_start", "window")

    def __init__(self, number: int, numbering: "Numbering", link: Link | None = None) -> None:
        """`link` is the link of a hidden channel; None for the client's channel, and for a channel without link."""
        super().__init__(number, numbering)
        self.numbering, self.link = numbering, link
        self.settle_start = FRAME.pack(METHOD, number, _ACK_SIZE)
        """The first bytes of a frame that acks, nacks or rejects a delivery of this channel."""
        self.first: Delivery | None = None
        """The oldest delivery that the client has not settled; None if there is none."""
        self.final: Delivery | None = None
        """The newest delivery that the client has not settled; None if there is none."""
        self.returning: list[int] = []
        """A heap of the deliveries that the client has returned and the broker has yet to hear of.

        Each is the broker's tag times two, plus one if the client has returned it by basic.nack, else by basic.reject.
        They wait for those before them and for a moment or, once the member has left, for the end of the link.
        """
        self.window: Window | None = None
        """The messages of a link in series that are not settled; None for any other channel.

        In series an answer of the client's to all up to a delivery is an answer to each.
        """
        self.answers = 0
        """How many frames that ack, nack or reject deliveries the broker has got on this channel, or is about to."""
        self.ended = False
        """Whether the channel takes no acks any more, as its messages have gone back to their queue."""

    def keep(self, tag: int, method: int) -> None:
        """Keep a delivery that the client has returned by basic.reject or basic.nack, until the broker may have it."""
        heappush(self.returning, tag << 1 | (method == BASIC_NACK))

    @property
    def may_return(self) -> bool:
        """Whether a returned delivery waits for none before it any more.

        If it went back while the client holds earlier ones and the link ended then, the next member would get it before
        them.
        """
        first = self.first
        return bool(self.returning) and (first is None or self.returning[0] >> 1 < first.tag)

    def take_returned(self, most: int) -> list[tuple[int, int]]:
        """Return the tags and methods of returned deliveries that wait for none before them, ascending; `most` of them.

        Each method is BASIC_NACK or BASIC_REJECT, as the client has it: RabbitMQ 4.3 counts only the latter towards a
        queue's delivery limit.
        """
        taken: list[tuple[int, int]] = []
        while len(taken) < most and self.may_return:
            taken.append(returned(heappop(self.returning)))
        return taken


def returned(kept: int) -> tuple[int, int]:
    """Return the tag and the method of an element of `TaggedSource.returning`."""
    return kept >> 1, BASIC_NACK if kept & 1 else BASIC_REJECT


class Delivery:
    """One delivery that the client has not settled."""

    __slots__ = ("after", "after_in_source", "at", "before", "before_in_source", "held", "number", "source", "tag")

    def __init__(self, source: TaggedSource, tag: int, number: int, at: float, held: Held | None = None) -> None:
        """`tag` is the broker's delivery tag on the channel of `source`; `at` is the time, monotonic.

        `held` is the message if it is of a link in series.
        """
        self.held = held
        self.source, self.tag, self.number, self.at = source, tag, number, at
        self.before = self.before_in_source = 0
        """The numbers of the unsettled deliveries before this one, of the client's channel and of the source; 0 for
        none."""
        self.after: Delivery | None = None
        """The next unsettled delivery of the client's channel; None if this is the newest."""
        self.after_in_source: Delivery | None = None
        """The next unsettled delivery of the source; None if this is the newest."""


class Tags:
    """The number of tags of ordinary consumers that all channels of one session remember: each takes memory here."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Numbering(Merge):
    """The delivery tags of one channel of a client's, from its first basic.consume, basic.get or basic.qos to its end.

    Until the first member comes, deliveries pass with the broker's tags, and it is only noted which are settled.
    """

    __slots__ = (
        "_above",
        "_final",
        "_first",
        "_lost",
        "_low",
        "_session",
        "_top",
        "asked",
        "base",
        "cancelled",
        "crowded",
        "gets",
        "joining",
        "last",
        "own",
        "prefetch",
        "question",
        "requests",
        "spans",
        "started",
        "tags",
        "unacked",
    )  # fmt: skip

    def __init__(self, number: int, tags: Tags | None = None) -> None:
        """Start without deliveries. `number` is that of the client's channel, `tags` the count of its session."""
        super().__init__(number)
        self._session = tags or Tags()
        self.own = TaggedSource(number, self)
        """The client's own channel."""
        self.started = False
        """Whether the channel has had a member, so that this proxy numbers its deliveries."""
        self.last = 0
        """The number of the last delivery."""
        self.base = 0
        """The last number that is the broker's own delivery tag on the client's channel."""
        self.unacked: dict[int, Delivery] = {}
        """The deliveries above `base` that the client has not settled, by number."""
        self.spans: dict[int, Span] = {}
        """The spans of those deliveries that are traced, by number."""
        self._first: Delivery | None = None
        self._final: Delivery | None = None
        # The oldest and the newest of `unacked`.
        self._low = self._top = 0
        self._above: set[int] = set()
        self._lost = False
        # These three hold for numbers up to `base` only: all up to _low, those in _above, and those above _top are
        # settled. Once there are too many in _above, they are lost.
        self.prefetch = 0
        """The prefetch for links of members that join from now on; 0 if the client has not set one."""
        self.asked = 0
        """The prefetch as the client has set it; 0 for no limit, or if it has not set one."""
        self.crowded = False
        """Whether the session had so many ordinary consumers that those of this channel are not remembered."""
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

    @property
    def is_ordinary(self) -> bool:
        """Whether the channel has no hidden channel that is not closed, or about to be, and never had a member."""
        return not self.started and self.joining is None and self.question is None

    @property
    def unsure(self) -> str:
        """Why it is not known which deliveries of the channel up to `last` are settled; empty where it is known."""
        if self.crowded:
            return f"the connection has over {MOST_TAGS} ordinary consumers; use another connection"
        if self._lost or (not self.started and self.last - self._low > MOST_OUT_OF_ORDER):
            return (
                f"over {MOST_OUT_OF_ORDER} deliveries of ordinary consumers on this channel lack an ack, or were acked"
                " out of order; use another channel"
            )
        return ""

    def remember(self, tag: bytes, no_ack: bool) -> bool:
        """Remember an ordinary consumer; return False if the session has too many, so that none is remembered here."""
        if tag not in self.tags:
            if self._session.count >= MOST_TAGS:
                self.forget_tags()
                self.crowded = True
                return False
            self._session.count += 1
        self.tags[tag] = no_ack
        return True

    def cancel(self, tag: bytes, *, answered: bool) -> None:
        """Forget an ordinary consumer that the client cancels; one without acks once its cancel is `answered`."""
        no_ack = self.tags.pop(tag, None)
        if no_ack and answered and tag not in self.cancelled:
            self.cancelled.add(tag)
        elif no_ack is not None:
            self._session.count -= 1

    def end_cancelled(self, tag: bytes) -> None:
        """Forget a consumer that the client has cancelled, and that has got its last delivery."""
        if tag in self.cancelled:
            self.cancelled.discard(tag)
            self._session.count -= 1

    def forget(self, tag: bytes) -> None:
        """Forget an ordinary consumer that the broker has cancelled."""
        self.end_cancelled(tag)
        if self.tags.pop(tag, None) is not None:
            self._session.count -= 1

    def forget_tags(self) -> None:
        """Forget all ordinary consumers, since the channel is no more or the session has too many."""
        self._session.count -= len(self.tags) + len(self.cancelled)
        self.tags.clear()
        self.cancelled.clear()
        self.requests.clear()

    def start(self) -> None:
        """Give every delivery from now on a number of this proxy's, since a member comes; not while it is `unsure`."""
        if not self.started:
            self.started, self.base = True, self.last
            self._top = self.base

    def add(self, source: TaggedSource, tag: int, now: float, held: Held | None = None) -> int:
        """Note that the client gets a delivery and is to settle it; return its tag on the client's channel.

        `tag` is the broker's, `source` what it came from, and `held` the message if it came in series. Call this only
        once the channel has had a member.
        """
        number = self.last = self.last + 1
        delivery = self.unacked[number] = Delivery(source, tag, number, now, held)
        final, final_in_source = self._final, source.final
        if final is None:
            self._first = delivery
        else:
            final.after, delivery.before = delivery, final.number
        if final_in_source is None:
            source.first = delivery
        else:
            final_in_source.after_in_source, delivery.before_in_source = delivery, final_in_source.number
        self._final = source.final = delivery
        return number

    def _remove(self, delivery: Delivery) -> None:
        """Take a settled delivery out of both lists of unacked ones: that of the channel, and that of its source."""
        unacked, source, link = self.unacked, delivery.source, delivery.source.link
        del unacked[delivery.number]
        before = unacked[delivery.before] if delivery.before else None
        after, delivery.after = delivery.after, None
        if before is None:
            self._first = after
        else:
            before.after = after
        if after is None:
            self._final = before
        else:
            after.before = delivery.before
        before = unacked[delivery.before_in_source] if delivery.before_in_source else None
        after, delivery.after_in_source = delivery.after_in_source, None
        if before is None:
            source.first = after
        else:
            before.after_in_source = after
        if after is None:
            source.final = before
        else:
            after.before_in_source = delivery.before_in_source
        if link is not None:
            link.unacked -= 1

    def add_settled(self) -> int:
        """Return the number of a delivery without acks; call it only once members have come."""
        self.last += 1
        return self.last

    def end_spans(self, first: int, last: int, error: str) -> None:
        """End the spans of all deliveries from one number to another, that the client answers with this error or none.

        An answer to a delivery of a link that has ended does not reach the broker, which delivers the message again.
        """
        spans = self.spans
        # The spans are in the order of their numbers, and many may be under way behind the last one.
        numbers = (first,) if first == last else [n for n in takewhile(lambda n: n <= last, spans) if n >= first]
        for number in numbers:
            if (span := spans.pop(number, None)) is not None:
                delivery = self.unacked.get(number)
                span.end(UNSETTLED if delivery is None or delivery.source.ended else error)

    def pass_delivery(self, tag: int, *, settled: bool) -> None:
        """Note a delivery of the client's own channel that passes with its tag, while there are no members."""
        self.last = tag
        if settled:
            self.settle_own(tag)

    @property
    def full(self) -> bool:
        """Whether the client holds as many deliveries without an ack as it may."""
        return len(self.unacked) >= MOST_UNACKED

    def settle_one(self, number: int) -> Delivery | None:
        """Take the client's answer to one delivery above `base`, and return it; None if none without an answer."""
        delivery = self.unacked.get(number)
        if delivery is not None:
            self._remove(delivery)
        return delivery

    def settle_all(
        self, number: int, most: int, in_series: list[Delivery]
    ) -> list[tuple[TaggedSource, int, bool, int]]:
        """Take the client's answer to all deliveries up to a number above `base`, but to no more than `most` of them.

        `reaches` says whether any are left. Returns for each channel, in the order in which the broker is to get them,
        the broker's delivery tag, whether the answer is to all up to it, and the method; 0 stands for the client's own.
        Deliveries that the client returned before go back in their place among them, but for a link whose member has
        left. Those of links in series are not in the result: they are added to `in_series`.
        """
        answers: list[tuple[TaggedSource, int, bool, int]] = []
        highest: dict[TaggedSource, int] = {}
        if below := self._highest_own():
            highest[self.own] = below
            self.settle_all_own(self.base)
        delivery = self._first
        while delivery is not None and delivery.number <= number and most:
            source, tag, delivery_ = delivery.source, delivery.tag, delivery
            most -= 1
            self._remove(delivery)
            delivery = self._first
            if source.window is not None:
                in_series.append(delivery_)
                continue
            if source.returning and source.returning[0] >> 1 < tag:
                # One answer for all would take in what was returned.
                if source.link is not None and source.link.state == _LEAVING:
                    answers.append((source, tag, False, 0))
                    continue
                if source in highest:
                    answers.append((source, highest[source], True, 0))
                while source.returning and source.returning[0] >> 1 < tag:
                    each, method = returned(heappop(source.returning))
                    answers.append((source, each, False, method))
            highest[source] = tag
        answers += [(source, tag, True, 0) for source, tag in highest.items()]
        return answers

    def reaches(self, number: int) -> bool:
        """Return whether a delivery above `base` and up to a number is not settled."""
        return self._first is not None and self._first.number <= number

    def recover(self) -> list[TaggedSource]:
        """Forget all deliveries, since the broker will deliver them again; return the channels that they were on."""
        sources: dict[TaggedSource, None] = {}
        while (delivery := self._first) is not None:
            sources[delivery.source] = None
            delivery.source.returning = []
            self._remove(delivery)
        self.settle_all_own(self.base if self.started else self.last)
        return list(sources)

    def settle_own(self, tag: int) -> None:
        """Note that a delivery with the broker's own tag, up to `base`, is settled."""
        if tag == self._low + 1:
            self._rise(tag)
        elif tag > self._low:
            self._above.add(tag)
            if len(self._above) > MOST_OUT_OF_ORDER:
                self._above.clear()
                self._lost = True

    def settle_all_own(self, tag: int) -> None:
        """Note that all deliveries with the broker's own tags up to one, itself up to `base`, are settled."""
        if tag <= self._low:
            return
        if tag - self._low < len(self._above):
            self._above.difference_update(range(self._low + 1, tag + 1))
        else:
            self._above = {each for each in self._above if each > tag}
        self._rise(tag)

    def _rise(self, tag: int) -> None:
        self._low = tag
        while self._above and self._low + 1 in self._above:
            self._low += 1
            self._above.discard(self._low)

    @property
    def may_hold_own(self) -> bool:
        """Whether the client may hold a delivery that is not in `unacked`, with the broker's own tag."""
        if self.crowded or self._lost:
            return True
        return self._highest_own() > 0 if self.started else self.last - self._low > len(self._above)

    def _highest_own(self) -> int:
        """Return the highest number up to `base` that is not settled; 0 if all are."""
        while self._top > self._low and self._top in self._above:
            self._above.discard(self._top)
            self._top -= 1
        return self._top if self._top > self._low else 0


def numbering_of(channel: Channel) -> Numbering | None:
    merge = channel.merge
    return merge if isinstance(merge, Numbering) else None
