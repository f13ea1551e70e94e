"""The actions on a session's members that the groups call for: links are opened, raised and given away."""

import time
from collections.abc import Callable

from proxy.groups.member import Member
from proxy.session import closing, links
from proxy.session.connection import Connection
from proxy.session.hidden import Consumer, Consuming
from proxy.session.numbering import MOST_UNACKED
from proxy.session.settling import oldest_by_shard
from proxy.session.state import ChannelState
from proxy.wire.frames import BASIC_CONSUME, RESOURCE_ERROR


class GroupActions:
    """The actions of one session on its members; it lives as long as the session."""

    def __init__(self, connection: Connection, then: Callable[[], None]) -> None:
        """`then` is called after each action, and writes the frames that the action made to both peers."""
        self._connection, self._hand_on = connection, then

    def _then(self) -> None:
        links.flush(self._connection)
        self._hand_on()

    def _consumer(self, member: Member) -> Consumer | None:
        """Return the session's consumer of a member; None if it has ended."""
        c = self._connection
        c.now = time.monotonic()  # it may be long since a peer has sent anything
        consumer = c.consuming.consumers.get(member) if c.consuming is not None and c.running else None
        if consumer is None or consumer.leaving or consumer.channel.state != ChannelState.OPEN:
            return None
        return consumer

    def start(self, member: Member, shards: list[str]) -> None:
        """Let a member that asked to join begin: open a link of the lowest priority to each shard."""
        c, consumer = self._connection, self._consumer(member)
        if consumer is None or c.consuming is None:
            return
        if text := _too_many(c.consuming, consumer, len(shards)):
            self.refuse(member, RESOURCE_ERROR, f"group '{member.exchange}': {text}")
            return
        joining = consumer.numbering.joining
        if joining is not None and joining.member is member:
            joining.decided = joining.is_group = True
        consumer.numbering.start()
        for shard in shards:
            links.subscribe(c, consumer, shard, 0)
        if not shards and (answer := links.consume_ok(consumer)):
            links.tell(c, consumer.numbering, answer)
        self._then()

    def refuse(self, member: Member, code: int, text: str) -> None:
        """Close the client's channel, since the member cannot join."""
        if (consumer := self._consumer(member)) is not None:
            closing.refuse_channel(self._connection, consumer.channel, code, text, BASIC_CONSUME)
            self._then()

    def subscribe(self, member: Member, shard: str, priority: int, *, is_probe: bool = False) -> None:
        """Open a link, or a probe, to a shard with this priority in place of the older one, if there is one.

        One of another priority ends before the next one is opened, and the member has none in between.
        Nothing happens where the member has ended, or where its link holds unacked messages.
        """
        if (consumer := self._consumer(member)) is not None:
            links.subscribe(self._connection, consumer, shard, priority, is_probe=is_probe)
            self._then()

    def widen(self, member: Member, shard: str) -> None:
        """Replace a member's probe, which has got its message, with an ordinary link of the next higher priority.

        The broker then gets the client's answer to that message. If there is none by then, the message comes again.
        """
        if (consumer := self._consumer(member)) is not None:
            links.widen(self._connection, consumer, shard)
            self._then()

    def hand_over(self, member: Member, shard: str) -> None:
        """End a member's link once the client has acked what it has got; until then it gets no more by that link."""
        if (consumer := self._consumer(member)) is not None:
            links.hand_over(self._connection, consumer, shard)
            self._then()

    def release(self, member: Member, shard: str) -> None:
        """End a member's links to a shard even if messages are unacked, and then open one of the lowest priority."""
        if (consumer := self._consumer(member)) is not None:
            links.release(self._connection, consumer, shard)
            self._then()

    def oldest_unacked(self, member: Member) -> dict[str, float]:
        """Return by shard when the oldest delivery that the client has not settled was made, in monotonic seconds.

        The member may have left.
        """
        c = self._connection
        return oldest_by_shard(c.consuming, member) if c.consuming is not None and c.running else {}


def _too_many(consuming: Consuming, consumer: Consumer, shards: int) -> str:
    """Return why a member cannot have links to so many shards; empty if it can."""
    if consumer.numbering.unsure:
        return consumer.numbering.unsure
    free, most = len(consuming.free) + consuming.closing, consuming.most
    if shards >= free:
        # A link is opened again only while a number is free, and a probe's successor before the probe ends.
        return f"{shards} shards take {shards + 1} hidden channels, and {free} of the connection's {most} are free"
    same = [each.member for each in consuming.consumers.values() if each.channel is consumer.channel]
    room = max(MOST_UNACKED - sum(member.held_at_most * len(member.links) for member in same), 0)
    prefetch = consumer.member.held_at_most
    if prefetch * shards > room:
        instead = f"set one of {room // shards} at most" if room >= shards else "use another channel"
        return (
            f"a prefetch of {prefetch} for each of {shards} shards is more than the {room} further messages that the"
            f" channel may hold without an ack; {instead}"
        )
    return ""
