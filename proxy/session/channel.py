"""One incarnation of a channel number: its state, the content under way, the requests and publishes without answer."""

# mypyc: compiled

import secrets
from collections import deque
from typing import Final, NamedTuple

from mypy_extensions import i64

from proxy.session.backlog import Backlog
from proxy.session.merging import Merge
from proxy.session.publishing.confirms import Confirms, PublishNote
from proxy.session.publishing.order import Order
from proxy.session.state import CHANNEL_TRANSITIONS, EXPECT_METHOD, ChannelState
from proxy.wire.frames import HEADER, METHOD, QUEUE_DECLARE_OK, U16

MOST_NOTES: Final = 1024
"""The most publishes with a note on a channel on which the broker answers no publish, so no answer ends a note."""

_NUMBER: Final = (1 << 32) - 1
_ASKED: Final = 1 << 32
_HAD_HEADERS: Final = 1 << 33
_NONCE: Final = 34


class RingId(NamedTuple):
    """The facts about a publish that are encoded in the x-ring-id of its message."""

    number: int
    """The publish's number on its channel."""
    asked: bool
    """Whether the client asked for mandatory."""
    had_headers: bool
    """Whether the client's content header had a headers table."""


def ring_id_of(number: int, ring_id: int) -> RingId:
    """Return a ring id decoded; `number` is that of its publish, of which the ring id has only the last 32 bits."""
    return RingId(number, bool(ring_id & _ASKED), bool(ring_id & _HAD_HEADERS))


class Pending(NamedTuple):
    """A request of the client's whose -ok means something to this proxy."""

    ok: int
    """The method number of the -ok."""
    swallow: bool = False
    """Whether the client asked for no -ok, so that the -ok must not reach it."""
    method: int = 0
    """The method's id, if the request is a declaration that changes something; else 0."""
    names: tuple[bytes, ...] = ()
    """The declaration's short strings, in their order."""
    plain: bool = True
    """Whether the declaration has no arguments table, or an empty one."""
    number: int = 0
    """The number of the last publish before the request, if the request ends a transaction; else 0."""


class Channel:
    """One channel of a client's, from channel.open to the last close-ok; a number opened again gets a new one."""

    __slots__ = (
        "backlog", "bits", "body_left_to_client", "confirms", "declaring", "deferred", "exchange", "expect", "frame",
        "has_other_state", "header_start", "id", "key", "last_queue", "left", "merge", "method_start", "naming",
        "nonce", "order", "owed_close_ok", "pending", "refusal", "reopening", "routed", "sampled", "sampled_at",
        "state", "transactional", "unsettled_returns", "withheld",
    )  # fmt: skip

    def __init__(self, number: int) -> None:
        """The client has just sent channel.open for that number."""
        self.id = number
        self.method_start, self.header_start = (bytes((kind,)) + U16.pack(number) for kind in (METHOD, HEADER))
        """The first bytes of the channel's method and header frames, up to the payload's size."""
        self.state: int = ChannelState.OPEN
        """A `ChannelState`, as a plain integer for the hot loop."""
        self.refusal = b""
        """The channel.close that the client gets once the broker has closed the channel, in the state REFUSING."""
        self.owed_close_ok = False
        """Whether the client has sent channel.close in the state REFUSING."""
        # The content under way.
        self.expect = EXPECT_METHOD
        self.left = 0
        """Bytes still to come of the body that the client is sending."""
        self.withheld = False
        """Whether the basic.publish under way waits for its content header, in `frame`."""
        self.exchange = self.key = self.frame = b""
        """The exchange, routing key and whole frame of the basic.publish that waits."""
        self.bits = 0
        """The mandatory and immediate bits of the basic.publish that waits."""
        self.backlog: Backlog | None = None
        """The frames of the client's on this channel that wait; None if the channel does not wait."""
        # Requests and publishes without an answer.
        self.pending: deque[Pending] | None = None
        """The requests without an -ok, in order; made with the first, since an empty one takes half of a channel."""
        self.declaring = 0
        """How many of the pending requests may change the destination of the next publish."""
        self.naming = 0
        """How many of the pending requests are a queue.declare, which changes `last_queue`."""
        self.last_queue = b""
        """The queue that an empty queue name stands for: the last one declared (AMQP section 1.7.2.1)."""
        self.confirms = Confirms()
        """The publishes, and the broker's answers to them."""
        self.order = Order()
        """The rings that the unsettled publishes went by."""
        self.transactional = False
        """Whether publishes take effect at tx.commit."""
        self.has_other_state = False
        """Whether the client has used the channel for more than publishes, declarations and confirms.

        A publish of its own to an exchange behind a ring, such as a lane, counts as more.
        """
        self.reopening = 0
        """How many channel.open-ok are due for this proxy's own channel.open (`publishing/channel_reopening.py`)."""
        self.routed = False
        """Whether a publish of the channel went to a ring's destination, and may come back with stamps."""
        self.nonce: i64 = secrets.randbits(63 - _NONCE) << _NONCE
        """The upper bits of the channel's ring ids, by which they differ from those of all other channels."""
        self.unsettled_returns = 0
        """How many publishes of the channel came back and have no final answer: they are parked, or published again."""
        self.body_left_to_client = 0
        """Bytes still to come of the body that the broker is sending the client; -1 before its content header.

        It is known only while a message of the channel waits for a reading: no frame may stand amidst a content.
        """
        self.deferred: list[bytes] = []
        """The broker's -oks that wait until no message is on its way again, since their meaning depends on it."""
        self.merge: Merge | None = None
        """The contents that come together on the channel, where an interceptor may send some of its own; else None."""
        self.sampled = 0
        """The number of the publish whose confirm is timed; 0 for none."""
        self.sampled_at = 0.0
        """The monotonic time at which the sampled publish went out."""

    def enter(self, state: ChannelState) -> None:
        """Change the channel's state. Raises RuntimeError for a change that no table has."""
        if state not in CHANNEL_TRANSITIONS[self.state]:
            raise RuntimeError(f"channel {self.id} from {ChannelState(self.state).name} to {state.name}")
        self.state = state

    def ask(self, request: Pending) -> None:
        """Remember a request whose -ok is due."""
        if self.pending is None:
            self.pending = deque()
        self.pending.append(request)
        self.naming += request.ok == QUEUE_DECLARE_OK

    def __repr__(self) -> str:
        """Return the channel's number, for the log."""
        return f"<channel {self.id}>"

    def select(self, *, transactional: bool) -> None:
        """Begin confirm mode or transactions; the first of the two stays.

        A channel on which this is asked for again is not opened again behind a close: the answer would be lost.
        """
        if self.confirms.answered:
            self.has_other_state = True
        else:
            self.confirms.start()
            self.transactional = transactional

    def awaits(self, inside: bool) -> bool:
        """Return whether the broker will answer a publish without another word of the client's.

        `inside` says that the client is in the midst of a body frame of the channel.
        """
        if self.transactional:
            return any(request.number > self.confirms.low for request in self.pending or ())
        begun = inside or (self.expect != EXPECT_METHOD and not self.withheld)
        return self.confirms.unsettled > begun

    def next_id(self, asked: int, had_headers: int) -> i64:
        """Return the next publish's ring id: 29 bits of the channel's nonce, two flags, 32 bits of its number.

        Before it is sent, the mark of its destination is mixed into 16 bits of the nonce (`route.mark`).
        """
        number: i64 = (self.confirms.number + 1) & _NUMBER
        if asked:
            number |= _ASKED
        if had_headers:
            number |= _HAD_HEADERS
        return self.nonce | number

    def read_id(self, ring_id: int) -> RingId | None:
        """Return what a ring id says; None if the message that came back is a copy that a client has forwarded.

        A copy's id is of another channel, or of a publish that the broker has answered, since a return comes before
        its ack, or of a publish that came back already.
        """
        last = self.confirms.number
        number = last - (last - ring_id & _NUMBER)
        confirms = self.confirms
        nonce: int = self.nonce  # anybody's ring id may have 64 bits
        if ring_id >> _NONCE != nonce >> _NONCE or number < 1:
            return None
        if confirms.settled(number) or number in confirms.returned:
            return None
        return ring_id_of(number, ring_id)

    def note(self, note: PublishNote) -> None:
        """Remember of the last publish what its return will not say."""
        confirms = self.confirms
        confirms.notes[confirms.number] = note
        if not confirms.answered and len(confirms.notes) > MOST_NOTES:
            del confirms.notes[next(iter(confirms.notes))]
