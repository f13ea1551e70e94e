"""The channels of one session that wait, each with its backlog. Pure state."""

# mypyc: compiled

from proxy.routing.route import Route
from proxy.session.backlog import MOST_WITHHELD, Awaited, Backlog, Wait
from proxy.session.channel import Channel
from proxy.session.interceptor import Interceptor
from proxy.session.state import ChannelState


class Waiting:
    """The backlogs of a session; it lives as long as the session."""

    __slots__ = ("channels", "forced", "held", "size", "stalled")

    def __init__(self) -> None:
        """Start with no channel waiting."""
        self.channels: dict[int, Channel] = {}
        """The channels that have a backlog, by number, in the order in which they came to wait."""
        self.size = 0
        """Bytes of all backlogs."""
        self.held: Awaited | None = None
        """The answer or reading that the frame being looked at must wait for; None if the frame may go on."""
        self.forced: Route | None = None
        """The route for the frames being taken from a backlog, if it was found for these frames only; else None."""
        self.stalled = False
        """Whether the next frame of the client's must wait until a channel goes on, with the client not read meanwhile.

        It must if the backlogs are too large together, and at the client's connection.close, which may not overtake
        the frames that the client sent before. A frame that has begun is read to its end first, since nothing that
        waits can go on in the midst of a frame.
        """

    def withhold(self, channel: Channel, piece: bytes) -> None:
        """Put a frame, or the beginning of a body frame, into its channel's backlog, which begins where `held` says so.

        A withheld frame is not sent, and not counted until it is taken again; its channel has a backlog or `held` is
        set.
        """
        if self.held is not None:
            channel.backlog, self.held = Backlog(self.held), None
            self.channels[channel.id] = channel
        self._add(channel.backlog, piece)

    def withhold_more(self, number: int, piece: bytes) -> None:
        """Add the next part of a body frame to the backlog with its beginning; drop it if the beginning was dropped."""
        channel = self.channels.get(number)
        if channel is not None and channel.backlog is not None:
            self._add(channel.backlog, piece)

    def _add(self, backlog: Backlog | None, piece: bytes) -> None:
        assert backlog is not None
        backlog.add(piece)
        self.size += len(piece)
        self.stalled = self.stalled or self.size > MOST_WITHHELD

    def remove(self, channel: Channel) -> None:
        """Take a channel's backlog away, if it has one."""
        backlog, channel.backlog = channel.backlog, None
        if backlog is not None:
            del self.channels[channel.id]
            self.size -= backlog.size

    def drop(self) -> None:
        """Forget every backlog: nothing that waits goes on any more."""
        for channel in self.channels.values():
            channel.backlog = None
        self.channels.clear()
        self.size, self.stalled, self.held = 0, False, None


def may_go_on(channel: Channel, backlog: Backlog, interceptor: Interceptor | None) -> bool:
    """Return whether what a channel's backlog waits for has come: an answer, the channel's end, or the interceptor."""
    if backlog.awaited is Wait.UNANSWERED:
        return not (channel.declaring and channel.state == ChannelState.OPEN)
    if backlog.awaited is Wait.BEING_CLOSED:
        return channel.state == ChannelState.GONE
    if backlog.awaited is Wait.OTHER_RING:
        return channel.order.is_settled(channel.confirms) or channel.state != ChannelState.OPEN
    if backlog.awaited is Wait.INTERCEPTED:
        return channel.state != ChannelState.OPEN or interceptor is None or interceptor.may_go_on(channel)
    return backlog.awaited is None
