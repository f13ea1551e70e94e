"""Holds the frames of a channel that wait, while the client's other channels go on. Pure state."""

from typing import Final

from proxy.routing.routes import Route, Unread

MOST_WITHHELD: Final = 1 << 18
"""Bytes that the channels of a session may keep waiting, together, before the client is not read any further."""


class Backlog:
    """All that a client has sent on a channel, from the frame on that must wait; lives as long as that frame waits.

    The methods of one channel take effect in the order in which they were sent, so the whole channel waits.
    """

    __slots__ = ("forced", "pieces", "seen", "size", "unread")

    def __init__(self, unread: Unread) -> None:
        """`unread` is what the first frame waits for; no frame is here yet."""
        self.unread: Unread | None = unread
        """None once the first frame need not wait any more, until it is taken again."""
        self.pieces: list[bytes] = []
        """The frames in order, as they came; the last one may not be whole yet."""
        self.size = 0
        """Bytes of them all."""
        self.forced: Route | None = None
        """The route of the first frame's publish, where a look-up found one for publishes that came before it alone."""
        self.seen = 0
        """How many of the pieces had come when that look-up began: later ones may need what it does not show."""

    def add(self, data: bytes) -> None:
        """Adds a frame, or the next part of one."""
        self.pieces.append(data)
        self.size += len(data)
