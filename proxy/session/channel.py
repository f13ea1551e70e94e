"""One incarnation of a channel number: its state, the content under way, the requests and publishes without answer."""

import secrets
from collections import deque
from typing import Final, NamedTuple

from mypy_extensions import i64

from proxy.session.backlog import Backlog
from proxy.session.confirms import Confirms, Kept
from proxy.session.state import CHANNEL_TRANSITIONS, EXPECT_METHOD, ChannelState
from proxy.wire.frames import HEADER, METHOD, U16

KEPT: Final = 1024
"""Publishes remembered on a channel where the broker answers none, so that nothing tells when one is done with."""

_NUMBER: Final = (1 << 32) - 1
_ASKED: Final = 1 << 32
_HAD_HEADERS: Final = 1 << 33
_NONCE: Final = 34


class RingId(NamedTuple):
    """What an x-ring-id of this channel's says."""

    number: int
    asked: bool
    """The client asked for mandatory."""
    had_headers: bool
    """The client's content header had a headers table."""


def ring_id_of(number: int, ring_id: int) -> RingId:
    """What the flags of that publish's id say."""
    return RingId(number, bool(ring_id & _ASKED), bool(ring_id & _HAD_HEADERS))


class Pending(NamedTuple):
    """A request whose -ok means something here."""

    ok: int
    """The method number of the -ok."""
    swallow: bool = False
    """The client asked for none."""
    method: int = 0
    """Of a declaration: which; 0 for one that changes nothing."""
    names: tuple[bytes, ...] = ()
    plain: bool = True
    """It has no arguments table, or an empty one."""
    number: int = 0
    """Of tx.commit and tx.rollback: the last publish before it."""


class Channel:
    """Belongs to one incarnation: a number that is opened again gets a new one."""

    __slots__ = (
        "away", "backlog", "bits", "coming", "confirms", "declaring", "exchange", "expect", "frame", "header_start",
        "id", "key", "last_queue", "late", "left", "method_start", "nonce", "owed_close_ok", "pending", "refusal",
        "routed", "sampled", "sampled_at", "state", "transactional", "withheld",
    )  # fmt: skip

    def __init__(self, number: int) -> None:
        """`number` is the channel's."""
        self.id = number
        self.method_start, self.header_start = (bytes((kind,)) + U16.pack(number) for kind in (METHOD, HEADER))
        """How its frames begin, up to their size."""
        self.state: int = ChannelState.OPEN
        """A `ChannelState`, as a plain integer for the hot loop."""
        self.refusal = b""
        """The channel.close that the client gets once the broker has closed the channel."""
        self.owed_close_ok = False
        """The client has sent channel.close meanwhile."""
        # The content under way.
        self.expect = EXPECT_METHOD
        self.left = 0
        """Bytes of its body still to come."""
        self.withheld = False
        """Its method waits for the content header: `frame`, with these arguments."""
        self.exchange = self.key = self.frame = b""
        self.bits = 0
        self.backlog: Backlog | None = None
        """The frames of the client's on this channel that wait; None where the channel does not wait."""
        # Requests and publishes without an answer.
        self.pending: deque[Pending] | None = None
        """The requests without an -ok, in order; made with the first, since an empty one takes half of a channel."""
        self.declaring = 0
        """How many of them may change where the next publish goes."""
        self.last_queue = b""
        """What an empty queue name stands for."""
        self.confirms = Confirms()
        self.transactional = self.routed = False
        self.nonce: i64 = secrets.randbits(63 - _NONCE) << _NONCE
        self.away = 0
        """How many of its publishes came back and are on their way again."""
        self.coming = 0
        """Bytes of a content's body that the broker has yet to send the client, -1 before its content header.

        Known only while a message of the channel waits for a reading: nothing may be told in the midst of a content.
        """
        self.late: list[bytes] = []
        """Answers of the broker that the client gets once that is over: what they say depends on it."""
        self.sampled = 0
        """The publish whose confirm is timed; 0 for none."""
        self.sampled_at = 0.0

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

    def __repr__(self) -> str:
        """Its number."""
        return f"<channel {self.id}>"

    def select(self, *, transactional: bool) -> None:
        """Confirm mode, or transactions, begin."""
        if not self.confirms.answered:
            self.confirms.start()
            self.transactional = transactional

    def awaits(self, inside: bool) -> bool:
        """Whether the broker will answer a publish without another word of the client; `inside`: of a body frame."""
        if self.transactional:
            return any(request.number > self.confirms.low for request in self.pending or ())
        begun = inside or (self.expect != EXPECT_METHOD and not self.withheld)
        return self.confirms.unsettled > begun

    def next_id(self, asked: int, had_headers: int) -> i64:
        """The next publish's id: 29 bits of this incarnation's nonce, two flags, 32 bits of the publish's number.

        Into 16 bits of the nonce the mark of where it goes is mixed before it is sent (`routes.mark`).
        """
        number: i64 = (self.confirms.number + 1) & _NUMBER
        if asked:
            number |= _ASKED
        if had_headers:
            number |= _HAD_HEADERS
        return self.nonce | number

    def read_id(self, ring_id: int) -> RingId | None:
        """What a ring id says; None where the message that came back is a copy, which a client has forwarded.

        That is one of another channel, or of a publish that the broker has answered, as a return comes before its ack,
        or of one that came back already.
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

    def keep(self, kept: Kept) -> None:
        """Remembers of the last publish what its return will not say."""
        confirms = self.confirms
        confirms.kept[confirms.number] = kept
        if not confirms.answered and len(confirms.kept) > KEPT:
            del confirms.kept[next(iter(confirms.kept))]
