"""The hidden channels of one session, and the members of groups that its client has. This module does no I/O.

A hidden channel is a channel of the session's broker connection that the client does not know of. Its number was kept
back in the handshake.
"""

# mypyc: compiled

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from proxy.groups.consuming.events import GroupEvent
from proxy.groups.consuming.questions import Question
from proxy.groups.consuming.rules import Rules
from proxy.groups.consuming.series import Hands, Series, Window
from proxy.groups.consuming.tags import Numbering, TaggedSource, Tags
from proxy.groups.model import Link, LinkState, Member
from proxy.session.channel import Channel
from proxy.session.connection import Connection
from proxy.session.interceptor import Interceptor
from proxy.tracing.tracer import Tracer
from proxy.wire.frames import BASIC_ACK, BASIC_DELIVER, END, MULTIPLE, U32, U64, shorted
from ring.hashed import HashedValue

_TAKES: Final = LinkState.OPEN.value
_ACK: Final = U32.pack(BASIC_ACK)
_ONE: Final = bytes((0, END))
"""The last bytes of a frame that acks one delivery."""
_ALL: Final = bytes((MULTIPLE, END))
"""The last bytes of a frame that acks all deliveries up to one."""


class Requeued(NamedTuple):
    """When the client returned deliveries of one link that the broker has yet to get back, in monotonic seconds."""

    first: float
    last: float


class HiddenChannel(TaggedSource):
    """One hidden channel, from its channel.open to its close-ok. It serves one link, or one question about a name."""

    __slots__ = ("bodies", "closing", "consumer", "frame", "head", "header")

    def __init__(self, number: int, consumer: "Consumer", link: Link | None) -> None:
        """`link` is None for a channel that only asks whether a queue has the name of the consumer's group."""
        super().__init__(number, consumer.numbering, link)
        self.consumer = consumer
        self.closing = False
        """Whether this proxy has sent channel.close."""
        self.frame = b""
        """The basic.deliver whose content header is due; empty otherwise."""
        self.head = U32.pack(BASIC_DELIVER) + shorted(consumer.member.tag)
        """The payload of basic.deliver up to the delivery tag, as the client gets it."""
        if link is not None and consumer.series is not None:
            self.window = Window(consumer.series, number)
        self.header = b""
        """The content header of a message that is gathered for a member in series; empty between two of them."""
        self.bodies: list[bytes] = []
        """The body frames of that message that have come."""

    def take_acks(self) -> bytes:
        """Return the frames that ack what the client has acked of a link in series; empty for none."""
        window, link = self.window, self.link
        if window is None or not window.acked:
            return b""
        if link is None or link.state != _TAKES or self.consumer.leaving or self.ended:
            # Messages that were not with the client are not here any more, and stay unacked.
            upto, (single, window.acked) = 0, (window.acked, [])
            if self.ended:
                return b""
        else:
            upto, single = window.take_acked()
        start = self.settle_start + _ACK
        frames = [start + U64.pack(tag) + _ONE for tag in single]
        if upto:
            frames.insert(0, start + U64.pack(upto) + _ALL)
        self.answers += len(frames)
        return b"".join(frames)


class Consumer:
    """One member of the session's client, from its basic.consume until all its hidden channels are closed."""

    __slots__ = (
        "arguments",
        "channel",
        "consumes",
        "hashed",
        "hidden",
        "joined",
        "leaving",
        "member",
        "numbering",
        "owes_cancel_ok",
        "owes_ok",
        "question",
        "series",
        "shown",
        "shown_of",
    )  # fmt: skip

    def __init__(self, member: Member, channel: Channel, numbering: Numbering, arguments: bytes) -> None:
        """`arguments` are the fields of the consumer's arguments table, as the client sent them."""
        self.member, self.channel, self.numbering, self.arguments = member, channel, numbering, arguments
        self.hidden: dict[HiddenChannel, None] = {}
        """The hidden channels that are not closed yet, in the order in which they were opened."""
        self.owes_ok = False
        """Whether the client has yet to get its basic.consume-ok."""
        self.owes_cancel_ok = False
        """Whether the client has yet to get its basic.cancel-ok, once the broker has sent all that it will."""
        self.question: Question | None = None
        """The question about the group's name, for a method such as queue.declare; None for a basic.consume."""
        self.hashed: HashedValue | None = None
        """The part of a message that the exchange hashes; None before the first message of a member in series."""
        self.series: Series | None = None
        """The deliveries of a member that works on one message of a key at a time; None for any other."""
        self.consumes = False
        """Whether the broker has let a link of the member consume, ever: the client may read shards."""
        self.joined = False
        """Whether the groups know of the member."""
        self.leaving = False
        """Whether the member takes no further deliveries, apart from a content that is half sent to the client."""
        self.shown_of: object = None
        """The router's entry from which `shown` was made."""
        self.shown: dict[bytes, bytes] = {}
        """By exchange that RabbitMQ names in a delivery, the exchange that the client sees."""


def _never(vhost: str, name: str) -> bool:
    return False


class Consuming(Interceptor):
    """The hidden channels and group members of one session; it lives as long as the session."""

    __slots__ = (
        "answered",
        "by_tag",
        "c",
        "closing",
        "consumer_timeout",
        "consumers",
        "draining",
        "due",
        "events",
        "flushing",
        "free",
        "hands",
        "is_serial",
        "match",
        "most",
        "requeued",
        "retrying",
        "rules",
        "tags",
        "tracer",
        "untimed",
    )  # fmt: skip

    def __init__(
        self,
        connection: Connection,
        match: Callable[[str, str], bool],
        consumer_timeout: int = 0,
        is_serial: Callable[[str, str], bool] = _never,
        rules: Rules = Rules(),  # noqa: B008 - it cannot be changed
        tracer: Tracer | None = None,
    ) -> None:
        """`match` says of a virtual host and a name whether clients may consume from the name as a group.

        `consumer_timeout` is the x-consumer-timeout of links, in milliseconds; 0 leaves it to the broker. It is longer
        than `groups_ack_timeout`, so that this sidecar ends such a link first. `is_serial` says as `match` whether the
        members of a group consume in series though they do not ask for it, and `rules` holds for all that do.
        """
        super().__init__()
        self.c, self.match, self.consumer_timeout = connection, match, consumer_timeout
        self.is_serial, self.rules = is_serial, rules
        self.tracer = tracer
        """The tracer of deliveries; None where none are traced."""
        self.answered: list[HiddenChannel] = []
        """The channels of links in series that the client has answered messages of in the read that is taken now."""
        self.hands = Hands()
        """All that the client may hold in series."""
        self.retrying: dict[Consumer, None] = {}
        """The members in series that have messages to be tried again."""
        self.free: deque[int] = deque()
        """The numbers of hidden channels that are free."""
        self.most = 0
        """How many hidden channels there may be."""
        self.closing = 0
        """How many numbers come back as soon as the broker has answered a channel.close."""
        self.flushing = 0
        """How many links are FLUSHING."""
        self.consumers: dict[Member, Consumer] = {}
        """The members that have not left."""
        self.by_tag: dict[tuple[int, bytes], Consumer] = {}
        """The members that have not left, by the client's channel and consumer tag."""
        self.tags = Tags()
        """How many ordinary consumers the channels remember."""
        self.untimed: set[str] = set()
        """The shards whose queues take no consumer timeout: classic ones on RabbitMQ 4.3."""
        self.requeued: dict[HiddenChannel, Requeued] = {}
        """The channels of links of which the client has returned a delivery that the broker has yet to get back."""
        self.due = connection.to_broker.due
        """Frames of hidden channels that the broker gets at the next boundary of a frame."""
        self.events: list[GroupEvent] = []
        """The events that the attendant has not been told of yet."""
        self.draining = False
        """Whether all members have been told to leave, as this proxy shuts down."""

    def opened(self, first: int, count: int) -> None:
        """Take the numbers that the handshake has kept back."""
        self.most = count
        self.free.extend(range(first, first + count))

    def take(self, consumer: Consumer, link: Link | None) -> HiddenChannel:
        """Return a hidden channel that is not open yet; call it only while a number is free."""
        number = self.free.popleft()
        hidden = HiddenChannel(number, consumer, link)
        if link is not None:
            link.channel = number
        self.sources[number] = hidden
        consumer.hidden[hidden] = None
        return hidden

    def gone(self, hidden: HiddenChannel) -> None:
        """Take a hidden channel's number back: both sides have closed it."""
        del self.sources[hidden.number]
        self.closing -= hidden.closing
        self.c.republishing.gathering -= bool(hidden.header) and hidden.left > 0
        self.requeued.pop(hidden, None)
        hidden.consumer.hidden.pop(hidden, None)
        self.free.append(hidden.number)

    @property
    def has_room(self) -> bool:
        """Whether a link may be opened. The last number is for a question about a name, as long as others come back."""
        return bool(self.free) and not (len(self.free) == 1 and (self.closing or self.flushing))

    @property
    def is_idle(self) -> bool:
        return len(self.free) == self.most and not self.consumers

    @property
    def awaits_answers(self) -> bool:
        """Whether acks of a link may not have reached its queue."""
        return self.flushing > 0

    @property
    def unacked(self) -> int:
        """The number of deliveries of members that the client has not settled.

        A link without acks counts as one from its end until the broker has sent all of it, and so does a link whose
        acks may not have reached its queue.
        """
        held = 0
        for source in self.sources.values():
            if isinstance(source, HiddenChannel) and source.link is not None:
                link = source.link
                if link.state == LinkState.FLUSHING or (link.member.no_ack and link.state == LinkState.LEAVING):
                    held += 1
                elif not source.ended:
                    held += link.unacked
        return held
