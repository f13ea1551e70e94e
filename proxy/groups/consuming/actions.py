"""The actions on a session's members that the groups call for: links are opened, let go and given up."""

import time
from collections.abc import Callable
from itertools import islice

from proxy.groups.blocked import Backlog, BlockedKey
from proxy.groups.consuming import links
from proxy.groups.consuming.blocked import backlog, blocked_keys
from proxy.groups.consuming.hidden import Consumer, Consuming, HiddenChannel
from proxy.groups.consuming.operating import operate
from proxy.groups.consuming.series import HeldState
from proxy.groups.consuming.settle import oldest_by_shard
from proxy.groups.consuming.tags import MOST_UNACKED, TaggedSource
from proxy.groups.model import Member
from proxy.groups.operators import Order
from proxy.session import closing
from proxy.session.state import ChannelState
from proxy.wire.frames import BASIC_CONSUME


class GroupActions:
    """The actions of one session on its members; it lives as long as the session."""

    def __init__(self, consuming: Consuming, then: Callable[[], None]) -> None:
        """`then` is called after each action, and writes the frames that the action made to both peers."""
        self._consuming, self._hand_on = consuming, then

    def _then(self) -> None:
        self._consuming.c.to_broker.flush()
        self._hand_on()

    def _consumer(self, member: Member) -> Consumer | None:
        """Return the session's consumer of a member; None if it has ended, or leaves."""
        c = self._consuming.c
        c.now = time.monotonic()  # it may be long since a peer has sent anything
        consumer = self._consuming.consumers.get(member) if c.running else None
        if consumer is None or consumer.leaving or consumer.channel.state != ChannelState.OPEN:
            return None
        return consumer

    def start(self, member: Member) -> None:
        """Let a member that asked to join begin: its client gets basic.consume-ok."""
        consumer = self._consumer(member)
        if consumer is None:
            return
        joining = consumer.numbering.joining
        if joining is not None and joining.member is member:
            joining.decided = joining.is_group = True
        consumer.numbering.start()
        if answer := links.consume_ok(consumer):
            links.tell(self._consuming, consumer.numbering, answer)
        self._then()

    def refuse(self, member: Member, code: int, text: str) -> None:
        """Close the client's channel, since the member cannot join."""
        if (consumer := self._consumer(member)) is not None:
            closing.refuse_channel(self._consuming.c, consumer.channel, code, text, BASIC_CONSUME)
            self._then()

    def open(self, member: Member, shard: str) -> str:
        """Open a link; return why that cannot be, and an empty string where it is OPENING, or the member has ended."""
        consumer = self._consumer(member)
        if consumer is None:
            return ""
        if consumer.numbering.unsure:
            return consumer.numbering.unsure
        same = [each.member for each in self._consuming.consumers.values() if each.channel is consumer.channel]
        # The messages that all links of the channel may bring, with this one, have to fit.
        may_hold = sum(each.held_at_most * len(each.links) for each in same) + member.held_at_most
        if may_hold > MOST_UNACKED:
            return f"the channel may hold {MOST_UNACKED} messages without an ack, and its prefetch is for more"
        why = links.open_link(self._consuming, consumer, shard)
        self._then()
        return why

    def let_go(self, member: Member, shard: str) -> None:
        """Have a link end once the client has settled what it got; until then the client gets no more by it."""
        if self._consumer(member) is not None:
            links.let_go(self._consuming, member, shard)
            self._then()

    def give_up(self, member: Member, shard: str) -> None:
        """Have a link end at once, though its client holds messages; the member may be leaving."""
        c = self._consuming.c
        c.now = time.monotonic()
        if c.running:
            links.give_up(self._consuming, member, shard)
            self._then()

    def oldest_unacked(self, member: Member) -> dict[str, float]:
        """Return by shard when the oldest delivery that the client has not settled was made, in monotonic seconds.

        The member may be leaving.
        """
        return oldest_by_shard(self._consuming, member) if self._consuming.c.running else {}

    def backlog(self, member: Member) -> Backlog | None:
        """Return how much the keys of a member in series wait; None for any other member, and one that has ended."""
        consumer = self._consuming.consumers.get(member)
        return backlog(consumer) if consumer is not None else None

    def blocked_keys(self, member: Member, shard: str) -> list[BlockedKey]:
        """Return the keys of a shard that wait for one message; empty for a member that is not in series."""
        link = member.links.get(shard)
        source = self._consuming.sources.get(link.channel) if link is not None else None
        return blocked_keys(source) if isinstance(source, HiddenChannel) else []

    def operate(self, member: Member, order: Order) -> str:
        """Do an operator's order; return why it was not done, and an empty string where it was."""
        g = self._consuming
        g.c.now = time.monotonic()
        link = member.links.get(order.shard)
        source = g.sources.get(link.channel) if link is not None and g.c.running else None
        if not isinstance(source, HiddenChannel):
            return "its shard is about to move"
        why = operate(g, source, order)
        self._then()
        return why

    def has_nothing(self, member: Member, shard: str) -> bool:
        """Return whether a member with acks has nothing unsettled of a shard, be it at its client or kept back here."""
        link = member.links.get(shard)
        source = self._consuming.sources.get(link.channel) if link is not None else None
        if link is None or link.unacked or member.no_ack or not isinstance(source, TaggedSource):
            return False
        return self._consuming.c.running and (source.window is None or not source.window.held)

    def is_with_client(self, member: Member, shard: str) -> bool:
        """Return whether the client has the oldest delivery of a shard, which in series may wait in the sidecar."""
        link = member.links.get(shard)
        source = self._consuming.sources.get(link.channel) if link is not None else None
        if not isinstance(source, TaggedSource) or source.window is None:
            return True
        return all(held.state == HeldState.CLIENT for held in islice(source.window.held.values(), 1))

    def hangs_since(self, member: Member) -> float:
        """Return when the client got the oldest message it holds, in monotonic seconds, if it takes no other.

        The result is 0 as long as the client of a member in series has room, or holds a message of a link that goes on.
        """
        consumer = self._consuming.consumers.get(member)
        series = consumer.series if consumer is not None else None
        if consumer is None or series is None or series.room > 0:
            return 0.0
        since = 0.0
        for delivery in consumer.numbering.unacked.values():
            held = delivery.held
            if held is not None and held.window.series is series:
                if held.state != HeldState.STALE:
                    return 0.0
                since = since or delivery.at
        return since

    def fingerprints(self, member: Member, shard: str) -> set[str]:
        """Return the fingerprints of those messages of a shard that are here and have a record of tries."""
        link = member.links.get(shard)
        source = self._consuming.sources.get(link.channel) if link is not None else None
        if not isinstance(source, TaggedSource) or source.window is None:
            return set()
        return {held.fingerprint for held in source.window.held.values() if held.fingerprint}
