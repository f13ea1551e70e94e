"""The members of a group and their links to shards, as plain state that the session and the groups share."""

from enum import IntEnum
from typing import Final, Protocol

from proxy.groups.redelivered import Redelivered

DEFAULT_PREFETCH: Final = 200
"""The most unacknowledged messages of one link where the client has set no prefetch."""


QUIET: Final = 1.0
"""Seconds without a delivery after which a link that is no longer the active consumer gets none any more: until then
messages that the broker has sent before it was raised over may be on their way."""


class LinkState(IntEnum):
    """How far one link has come, from its channel.open to the end of its channel."""

    OPENING = 0
    """The broker has yet to answer the link's basic.consume."""
    OPEN = 1
    """The broker delivers to the link whenever the link is the active consumer of its shard."""
    PROBING = 2
    """The link is open, and is a probe: see `Link.is_probe`."""
    LEAVING = 3
    """Further deliveries are dropped, and the link ends once the client has acked those that it got.

    So the broker can give them to the next member in order. The member has left, or hands the shard over.
    """
    CLOSING = 4
    """The link's channel.close is sent: the broker puts what was not acked back in order."""
    ENDED = 5
    """The link's channel is closed, and its number is free."""


class Link:
    """One member's consumer on one shard, on a channel that the client does not know of."""

    __slots__ = (
        "behind", "channel", "delivered", "delivered_at", "is_probe", "is_safe", "member", "opened_at", "priority",
        "raised_over_at", "shard", "state", "unacked", "withheld",
    )  # fmt: skip

    def __init__(self, member: "Member", shard: str, channel: int, priority: int, opened_at: float = 0.0) -> None:
        """The link's channel.open and basic.consume, with `priority` as x-priority, are about to be sent.

        `opened_at` is the time, in monotonic seconds.
        """
        self.member, self.shard, self.channel, self.priority = member, shard, channel, priority
        self.opened_at = opened_at
        self.state: int = LinkState.OPENING
        """A `LinkState`, as a plain integer for the hot loop."""
        self.delivered = 0
        """How many deliveries the client has got by this link."""
        self.delivered_at = 0.0
        """When the client last got a delivery by this link, in monotonic seconds; 0 for never."""
        self.unacked = 0
        """How many deliveries of this link the client has neither acked nor rejected."""
        self.raised_over_at = 0.0
        """When another member was raised over the link, in monotonic seconds; 0 if none was."""
        self.is_probe = False
        """Whether the broker gives the link one message only, since a consumer that is gone may hold earlier ones.

        A message that comes for the first time shows that none does: it goes back, and an ordinary link gets it. Any
        other goes to the client, and the broker gets the client's answer once all such consumers have lost theirs.
        """
        self.withheld = b""
        """Of a probe: the frame with the answer to its message that the broker is to get; empty if there is none."""
        self.is_safe = False
        """Of a probe: whether no other consumer holds earlier messages, so that the broker may have the answer."""
        self.behind: Link | None = None
        """The probe in whose place this link comes, until this link is open."""

    @property
    def is_open(self) -> bool:
        """Whether the broker has confirmed the link's consumer, and the link has not begun to end."""
        return self.state in (LinkState.OPEN, LinkState.PROBING)

    def gives_way(self, now: float) -> bool:
        """Return whether the link holds messages, and surely gets no more, since another member was raised over it.

        It is not sure right after the claim, as the broker may not have the raise yet. Nor is it where messages came
        later, or come to a link that was opened later: the other member may be gone.
        """
        was_active = self.delivered_at > 0 and self.opened_at < self.raised_over_at
        holds = self.unacked > 0 or self.state == LinkState.LEAVING
        is_sure = self.delivered_at - QUIET < self.raised_over_at < now - QUIET
        return was_active and holds and is_sure


class Member:
    """One consumer that a client has started on a group's name, until it is cancelled or its channel ends."""

    __slots__ = (
        "channel", "client", "exchange", "id", "leaving", "links", "no_ack", "prefetch", "redelivered", "since",
        "tag", "vhost",
    )  # fmt: skip

    def __init__(self, member_id: str, vhost: str, exchange: str, channel: int, tag: bytes) -> None:
        """The client's consumer `tag` on its channel `channel`; `member_id` is the member's own in all sidecars."""
        self.id, self.vhost, self.exchange, self.channel, self.tag = member_id, vhost, exchange, channel, tag
        self.links: dict[str, Link] = {}
        """The links that are not LEAVING, CLOSING or ENDED, by shard."""
        self.leaving: list[Link] = []
        """The links by which the client held unacked messages when the member left, or handed the shard over."""
        self.redelivered: dict[str, Redelivered] = {}
        """The redeliveries to the member by shard, of those shards that had any."""
        self.prefetch = DEFAULT_PREFETCH
        """The most unacknowledged messages of each link."""
        self.no_ack = False
        """Whether the broker counts a message as acked once it is sent."""
        self.since = 0.0
        """When the member joined, in seconds since 1970."""
        self.client = ""
        """The client's address, and its connection's name if it gave one, for reports."""

    def redelivered_of(self, shard: str) -> Redelivered:
        """Return the count of a shard's redeliveries to the member."""
        found = self.redelivered.get(shard)
        if found is None:
            found = self.redelivered[shard] = Redelivered()
        return found

    @property
    def held(self) -> list[Link]:
        """The links by which the client still holds unacked messages though it gets no more by them."""
        return [link for link in self.leaving if link.state == LinkState.LEAVING and link.unacked]

    @property
    def held_at_most(self) -> int:
        """The most messages of one link that come back together when it ends; 0 for a member without acks."""
        return 0 if self.no_ack else self.prefetch


class Actions(Protocol):
    """The session of a member, as the groups use it; every function returns at once, on the event loop."""

    def start(self, member: Member, shards: list[str]) -> None:
        """Let a member that asked to join begin: open a link of the lowest priority to each shard."""

    def refuse(self, member: Member, code: int, text: str) -> None:
        """Close the client's channel, since the member cannot join."""

    def subscribe(self, member: Member, shard: str, priority: int, *, is_probe: bool = False) -> None:
        """Open a link, or a probe, to a shard with this priority in place of the older one, if there is one.

        One of another priority ends before the next one is opened, and the member has none in between.
        A priority of 0 stands for one that is below those of all present members.
        Nothing happens where the member has ended, or where its link holds unacked messages.
        """

    def widen(self, member: Member, shard: str) -> None:
        """Replace a member's probe, which has got its message, with an ordinary link of the next higher priority.

        The broker then gets the client's answer to that message. If there is none yet, the message comes again.
        """

    def hand_over(self, member: Member, shard: str) -> None:
        """End a member's link once the client has acked what it has got; until then it gets no more by that link."""

    def release(self, member: Member, shard: str) -> None:
        """End a member's links to a shard even if messages are unacked, and then open one of the lowest priority."""

    def oldest_unacked(self, member: Member) -> dict[str, float]:
        """Return by shard when the oldest delivery that the client has not settled was made, in monotonic seconds.

        A shard of which the client holds nothing unacked is left out. The groups ask for it every few seconds, also
        for a member that has left.
        """
