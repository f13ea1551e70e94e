"""The members of a group, their links to shards, and the table of a link's states. This module does no I/O.

A link is one member's consumer on one shard, on a hidden channel of the member's session. For each member and shard
there is at most one, and `TABLE` says what becomes of it: by the link's state and by the event, the next state and
what the broker is sent. `Link.enter` is the one function that changes a state.

A link ends by a bare channel.close. The broker then puts what is not acked back where it was, and the next consumer
gets it in order. After a basic.cancel with messages unacked the next consumer would get later messages first (measured:
50 to 99 before 0 to 49). Only a member without acks, which holds nothing, is cancelled first, so that all that the
broker has sent still reaches the client.

A channel.close right behind many acks loses some of them. A channel of RabbitMQ has `MOST_UNDER_WAY` acks and rejects
under way to a quorum queue, keeps later ones back until the queue's leader has taken those, and forgets them when it
ends. The next consumer then gets messages that were acked: of 200 acks in one write 33 took effect (measured on 3.10.8
and 4.3.6). A basic.cancel of the link's consumer would send the others, but put messages out of order. Therefore a link
on whose channel more have gone out is FLUSHING before it closes, and subscribes a second consumer there. The leader
takes that behind the acks under way, and tells the channel of those first, which sends the others. Once
basic.consume-ok is here, a channel.close comes behind all acks. The second consumer waits behind the first, and is
cancelled with it, so it never gets a message. Nothing may cancel it earlier: RabbitMQ ends the connection where a
basic.cancel comes before that basic.consume-ok. A channel.close in between would gain nothing, since the broker takes
it behind the basic.consume, even where a queue without a leader makes that wait.

A link with fewer acks closes at once, which a queue without a leader cannot hold up. The count is of the channel's
whole life, since nobody tells when the leader has taken an ack. Links that are given up, and those of clients that are
lost, close at once, too: the last acks may not count, and their messages come again.
"""

# mypyc: compiled

import logging
from collections.abc import Collection
from enum import IntEnum
from typing import Final, NamedTuple, Protocol

from proxy.groups.attempts import Attempts
from proxy.groups.blocked import Backlog, BlockedKey
from proxy.groups.operators import Order
from proxy.groups.redelivered import Redelivered
from proxy.groups.timing import COUNT_AGAIN, FIRST_LINK_PAUSE, LONGEST_CONSUMED, LONGEST_ENDING, LONGEST_LINK_PAUSE

log = logging.getLogger(__name__)

MOST_UNDER_WAY: Final = 32
"""The acks and rejects that a channel of RabbitMQ has under way to a quorum queue before it keeps any back.

The broker's setting `quorum_commands_soft_limit` may be lower (docs/explanation/broker-faults.md).
"""

DEFAULT_PREFETCH: Final = 200
"""The most unacknowledged messages of one link where the client has set no prefetch."""


class LinkState(IntEnum):
    """How far a link has come."""

    NONE = 0
    """The link is not there: its channel is not open yet, or not any more, and its number is free."""
    OPENING = 1
    """The broker has yet to answer the link's basic.consume."""
    OPEN = 2
    """The broker delivers to the link, or has it wait behind the consumer that is active."""
    LEAVING = 3
    """The client gets no more by the link, which ends once the client has settled what it got.

    For a member without acks, the broker has yet to answer the basic.cancel, and the client gets what comes until then.
    """
    FLUSHING = 4
    """The client has settled all, and the broker has yet to answer the basic.consume behind the acks."""
    CLOSING = 5
    """The broker has yet to answer the link's channel.close."""


class LinkEvent(IntEnum):
    """An event in the life of a link."""

    WANT = 0
    """The group's decision is that the member should consume the shard."""
    CONSUMING = 1
    """The broker has sent basic.consume-ok."""
    LET_GO = 2
    """The member gives the shard up: another one waits for it, or the member leaves its group."""
    SETTLED = 3
    """The client holds nothing of the link, and no ack is kept back: all is acked, or basic.cancel is answered."""
    GIVE_UP = 4
    """The link is to end with messages unacked: they were not acked in time, or their acks cannot come any more."""
    CANCELLED = 5
    """The broker has cancelled the consumer."""
    REFUSED = 6
    """The broker has closed the channel."""
    CLOSED = 7
    """The broker has sent channel.close-ok."""
    LOST = 8
    """The session has ended, and its connection to the broker with it."""
    ACKED = 9
    """The client holds nothing of the link, and the broker's channel may keep acks of it back."""


class LinkAction(IntEnum):
    """The methods that the broker is sent when a link enters another state."""

    NOTHING = 0
    SUBSCRIBE = 1
    """channel.open, basic.qos and basic.consume."""
    CANCEL = 2
    """basic.cancel, of a member without acks; nothing of any other."""
    CLOSE = 3
    """channel.close."""
    FLUSH = 4
    """basic.consume of a second consumer."""
    FINISH = 5
    """basic.cancel of the second consumer, and channel.close."""


_S, _E, _A = LinkState, LinkEvent, LinkAction

TABLE: Final[dict[tuple[LinkState, LinkEvent], tuple[LinkState, LinkAction]]] = {
    (_S.NONE, _E.WANT): (_S.OPENING, _A.SUBSCRIBE),
    (_S.OPENING, _E.CONSUMING): (_S.OPEN, _A.NOTHING),
    (_S.OPENING, _E.LET_GO): (_S.LEAVING, _A.CANCEL),
    (_S.OPENING, _E.GIVE_UP): (_S.CLOSING, _A.CLOSE),
    (_S.OPENING, _E.CANCELLED): (_S.CLOSING, _A.CLOSE),
    (_S.OPENING, _E.REFUSED): (_S.NONE, _A.NOTHING),
    (_S.OPENING, _E.LOST): (_S.NONE, _A.NOTHING),
    (_S.OPEN, _E.LET_GO): (_S.LEAVING, _A.CANCEL),
    (_S.OPEN, _E.GIVE_UP): (_S.CLOSING, _A.CLOSE),
    (_S.OPEN, _E.CANCELLED): (_S.CLOSING, _A.CLOSE),
    (_S.OPEN, _E.REFUSED): (_S.NONE, _A.NOTHING),
    (_S.OPEN, _E.LOST): (_S.NONE, _A.NOTHING),
    (_S.LEAVING, _E.CONSUMING): (_S.LEAVING, _A.NOTHING),
    (_S.LEAVING, _E.LET_GO): (_S.LEAVING, _A.NOTHING),
    (_S.LEAVING, _E.SETTLED): (_S.CLOSING, _A.CLOSE),
    (_S.LEAVING, _E.ACKED): (_S.FLUSHING, _A.FLUSH),
    (_S.LEAVING, _E.GIVE_UP): (_S.CLOSING, _A.CLOSE),
    (_S.LEAVING, _E.CANCELLED): (_S.CLOSING, _A.CLOSE),
    (_S.LEAVING, _E.REFUSED): (_S.NONE, _A.NOTHING),
    (_S.LEAVING, _E.LOST): (_S.NONE, _A.NOTHING),
    (_S.FLUSHING, _E.CONSUMING): (_S.CLOSING, _A.FINISH),
    (_S.FLUSHING, _E.LET_GO): (_S.FLUSHING, _A.NOTHING),
    (_S.FLUSHING, _E.GIVE_UP): (_S.FLUSHING, _A.NOTHING),
    (_S.FLUSHING, _E.CANCELLED): (_S.FLUSHING, _A.NOTHING),
    (_S.FLUSHING, _E.REFUSED): (_S.NONE, _A.NOTHING),
    (_S.FLUSHING, _E.LOST): (_S.NONE, _A.NOTHING),
    (_S.CLOSING, _E.LET_GO): (_S.CLOSING, _A.NOTHING),
    (_S.CLOSING, _E.GIVE_UP): (_S.CLOSING, _A.NOTHING),
    (_S.CLOSING, _E.REFUSED): (_S.NONE, _A.NOTHING),
    (_S.CLOSING, _E.CLOSED): (_S.NONE, _A.NOTHING),
    (_S.CLOSING, _E.LOST): (_S.NONE, _A.NOTHING),
}
"""The next state of a link and what the broker is sent, by present state and event; a pair that is not here cannot
come."""

entered: dict[tuple[LinkState, LinkEvent], int] = dict.fromkeys(TABLE, 0)
"""How often links of this process have taken each row of `TABLE`, for reports and for tests that count rows."""


class Link:
    """One member's consumer on one shard, from its basic.consume to the end of its channel."""

    __slots__ = (
        "changed_at", "channel", "delivered", "delivered_at", "is_cancelled", "is_marked", "member", "shard", "since",
        "state", "unacked",
    )  # fmt: skip

    def __init__(self, member: "Member", shard: str) -> None:
        self.member, self.shard = member, shard
        self.channel = 0
        """The number of its hidden channel; 0 before it has one."""
        self.state: int = LinkState.NONE
        """A `LinkState`, as a plain integer for the hot loop."""
        self.changed_at = 0.0
        """When the link entered its state, in monotonic seconds."""
        self.since = 0.0
        """When the link was opened, in seconds since 1970; 0 before. The earlier one is the owner's."""
        self.delivered = 0
        """How many deliveries the client has got by this link."""
        self.delivered_at = 0.0
        """When the client last got a delivery by this link, in monotonic seconds; 0 for never."""
        self.unacked = 0
        """How many deliveries of this link the client has neither acked nor rejected."""
        self.is_marked = False
        """Whether a marker has come by the link: the generation of its shard ends."""
        self.is_cancelled = False
        """Whether the broker has cancelled the consumer, most likely since the queue is being deleted."""

    @property
    def may_end_its_shard(self) -> bool:
        """Whether the queue may be deleted at present, so that nobody should consume it."""
        return self.is_marked or self.is_cancelled

    def enter(self, event: LinkEvent, now: float) -> LinkAction:
        """Go on to the state that `TABLE` names for an event; return what the broker is to be sent.

        `now` is in monotonic seconds. Raises RuntimeError for an event that cannot come in the present state.
        """
        row = (LinkState(self.state), event)
        if row not in TABLE:
            raise RuntimeError(f"link to {self.shard!r}: {event.name} in the state {row[0].name}")
        entered[row] += 1
        log.debug("%s, shard %r: %s in %s", self.member.client or self.member.id, self.shard, event.name, row[0].name)
        state, action = TABLE[row]
        if state != self.state:
            self.state, self.changed_at = state, now
        self.is_cancelled = self.is_cancelled or event == LinkEvent.CANCELLED
        if state == LinkState.NONE:
            self.member.links.pop(self.shard, None)
            self.member.rest(self, now)
            for shard, pause in self.member.pauses.items():
                if pause.lacked_room:
                    self.member.pauses[shard] = pause._replace(until=now)
        if action == LinkAction.CANCEL and not self.member.no_ack:
            return LinkAction.NOTHING
        return action


class Pause(NamedTuple):
    """The pause before a member's next try to open a link that was refused."""

    since: float
    """When the first of the refusals in a row came, in monotonic seconds."""
    until: float
    """In monotonic seconds."""
    length: float
    """In seconds."""
    why: str
    """The broker's reply code and text, or why this sidecar could not ask."""
    lacked_room: bool = False
    """Whether the session had no room for one link more; the pause is over as soon as a link of the member ends.

    Else a shard that the broker refuses could take the last channel number at each try, and another one, with pauses of
    the same lengths, would find none each time.
    """


class Ending(NamedTuple):
    """The wait of a member for a shard that it let go at a marker, as its generation ends, and that it may get back.

    The command that put the marker is the shard's consumer next, and deletes its queue. RabbitMQ ends the connection of
    a client that consumes meanwhile, with 541 (4.3.6). No link is opened as long as the broker counts a consumer, until
    it has counted none twice: one count may come just after the queue's last member, or during the deletion. Beats tell
    of the link that has ended as LEAVING meanwhile, and until another one is open, so that no other member opens one
    either.

    A cancel by the broker tells of a deletion, too. It begins a wait that nobody counts in, and that is over by itself.
    """

    until: float
    """When the shard's consumers are to be counted next, in monotonic seconds."""
    length: float
    """The pause until then, in seconds."""
    since: float
    """When the link was opened that has ended, in seconds since 1970."""
    unconsumed_since: float = 0.0
    """Since when the broker has counted no consumer each time, in monotonic seconds; 0 if it has counted one last."""
    is_over: bool = False
    """Whether the shard may have a link again."""
    at: float = 0.0
    """When the link ended, in monotonic seconds."""


class Member:
    """One consumer that a client has started on a group's name, until all its links have ended."""

    __slots__ = (
        "attempts", "channel", "client", "crashes", "ending", "endings", "exchange", "group", "id", "in_series",
        "leaving", "links", "no_ack", "pauses", "prefetch", "redelivered", "returns", "since", "stalled_until",
        "starved", "strange", "tag", "vhost",
    )  # fmt: skip

    def __init__(self, member_id: str, vhost: str, exchange: str, channel: int, tag: bytes) -> None:
        """The client's consumer `tag` on its channel `channel`; `member_id` is the member's own in all sidecars."""
        self.id, self.vhost, self.exchange, self.channel, self.tag = member_id, vhost, exchange, channel, tag
        self.group = exchange
        """The name that the client consumes: the exchange's, or that of one of its groups, such as `orders/audit`.

        Until the member joins, `exchange` has the same name."""
        self.links: dict[str, Link] = {}
        """The links that are there, by shard."""
        self.pauses: dict[str, Pause] = {}
        """By shard, the pause after a refusal, also one that is over, until a link is open."""
        self.ending: frozenset[str] | None = None
        """The shards whose generation ends, as the bindings say: markers in others are none. None if not known."""
        self.strange: set[str] = set()
        """The shards in which markers have come that are none, as was logged."""
        self.endings: dict[str, Ending] = {}
        """By shard that the member let go at a marker, the wait after that, also one that is over.

        It outlives the next link if that ends at a marker as well.
        """
        self.redelivered: dict[str, Redelivered] = {}
        """The redeliveries by shard to all members of its group at this sidecar, of those shards that had any."""
        self.attempts = Attempts()
        """The tries of the group's messages that clients in series have returned; its group has one for all members."""
        self.returns = 0
        """How often the client has returned a message in series since the group last looked."""
        self.crashes = 0
        """How often the client was lost with a message of an earlier crash since the group last looked."""
        self.leaving = False
        """Whether the client has cancelled the consumer, so that links only end."""
        self.stalled_until = 0.0
        """Until when, in monotonic seconds, the member gets no shard while others may, as its client did not ack."""
        self.starved: dict[str, float] = {}
        """By shard of which RabbitMQ brought the member nothing, until when others get it rather, in monotonic seconds.
        """
        self.prefetch = DEFAULT_PREFETCH
        """The most unacknowledged messages of each link."""
        self.no_ack = False
        """Whether the broker counts a message as acked once it is sent."""
        self.in_series = False
        """Whether the client works on one message of a key at a time."""
        self.since = 0.0
        """When the member joined, in seconds since 1970."""
        self.client = ""
        """The client's address, and its connection's name if it gave one, for reports."""

    @property
    def held_at_most(self) -> int:
        """The most messages of one link that come back together when it ends; 0 for a member without acks."""
        return 0 if self.no_ack else self.prefetch

    def redelivered_of(self, shard: str) -> Redelivered:
        found = self.redelivered.get(shard)
        if found is None:
            found = self.redelivered[shard] = Redelivered()
        return found

    def refused(self, shard: str, why: str, now: float, *, lacked_room: bool = False) -> bool:
        """Note that a link to a shard was refused, so that the next try waits; return whether the reason is news."""
        before = self.pauses.get(shard)
        length = FIRST_LINK_PAUSE if before is None else min(2 * before.length, LONGEST_LINK_PAUSE)
        since = now if before is None else before.since
        self.pauses[shard] = Pause(since, now + length, length, why, lacked_room)
        return before is None or before.why != why

    def rest(self, link: Link, now: float) -> None:
        """Have the shard of a link that has ended at a marker, or by a cancel, left alone until nobody consumes it.

        The pause until that is looked at doubles as long as links bring nothing but markers.
        """
        if not link.may_end_its_shard:
            self.endings.pop(link.shard, None)
            return
        before = None if link.delivered else self.endings.get(link.shard)
        length = FIRST_LINK_PAUSE if before is None else min(2 * before.length, LONGEST_ENDING)
        # After a cancel the pause is enough: the deletion that it told of takes no longer.
        self.endings[link.shard] = Ending(now + length, length, link.since, is_over=not link.is_marked, at=now)

    def counted(self, shard: str, consumers: int | None, now: float) -> None:
        """Note how many consumers the broker counts of a shard that was let go at a marker; None if it does not tell.

        The pause doubles as long as somebody consumes it, up to a limit of time.
        """
        if (ending := self.endings.get(shard)) is None or ending.is_over:
            return
        if consumers == 0:
            since = ending.unconsumed_since or now
            is_over = now - since >= COUNT_AGAIN
            self.endings[shard] = ending._replace(until=now + COUNT_AGAIN, unconsumed_since=since, is_over=is_over)
        else:
            length, is_over = min(2 * ending.length, LONGEST_ENDING), now - ending.at >= LONGEST_CONSUMED
            self.endings[shard] = ending._replace(
                until=now + length, length=length, unconsumed_since=0.0, is_over=is_over
            )

    def forget(self, shard: str) -> None:
        """Forget the pauses of a shard that is no more."""
        self.pauses.pop(shard, None)
        self.endings.pop(shard, None)
        self.starved.pop(shard, None)
        self.strange.discard(shard)


class Actions(Protocol):
    """The session of a member, as the groups use it; every function returns at once, on the event loop."""

    def start(self, member: Member) -> None:
        """Let a member that asked to join begin: its client gets basic.consume-ok."""

    def refuse(self, member: Member, code: int, text: str) -> None:
        """Close the client's channel, since the member cannot join."""

    def open(self, member: Member, shard: str) -> str:
        """Open a link; return why that cannot be, and an empty string where it is OPENING."""

    def let_go(self, member: Member, shard: str) -> None:
        """Have a link end once the client has settled what it got; until then the client gets no more by it."""

    def give_up(self, member: Member, shard: str) -> None:
        """Have a link end at once, though its client holds messages."""

    def oldest_unacked(self, member: Member) -> dict[str, float]:
        """Return by shard when the oldest delivery that the client has not settled was made, in monotonic seconds.

        A shard of which the client holds nothing unacked is left out.
        """

    def backlog(self, member: Member) -> Backlog | None:
        """Return how much the keys of a member in series wait; None for any other member, and one that has ended."""

    def blocked_keys(self, member: Member, shard: str) -> list[BlockedKey]:
        """Return the keys of a shard that wait for one message; empty for a member that is not in series."""

    def operate(self, member: Member, order: Order) -> str:
        """Do an operator's order; return why it was not done, and an empty string where it was."""

    def has_nothing(self, member: Member, shard: str) -> bool:
        """Return whether a member with acks has nothing unsettled of a shard, be it at its client or kept back here."""

    def is_with_client(self, member: Member, shard: str) -> bool:
        """Return whether the client has the oldest delivery of a shard, which in series may wait in the sidecar."""

    def hangs_since(self, member: Member) -> float:
        """Return since when a client has no room but for links that have ended, in monotonic seconds; 0 if it has."""

    def fingerprints(self, member: Member, shard: str) -> Collection[str]:
        """Return the fingerprints of those messages of a shard that are here and have a record of tries."""
