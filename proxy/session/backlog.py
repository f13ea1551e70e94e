"""The frames of one channel that wait, while the client's other channels go on, and what they wait for. Pure state."""

# mypyc: compiled

from enum import Enum
from typing import Final

from proxy.routing.route import Route
from proxy.topology.table import Unread

MOST_WITHHELD: Final = 1 << 18
"""Bytes that the channels of a session may keep waiting, together, before the client is not read any further."""


class Wait(Enum):
    """An answer of the broker for which a frame waits; no reading brings it. The value says why, for a reply text."""

    UNANSWERED = "the broker has not answered a declaration that was sent before it"
    """A publish behind a declaration on its channel waits for the -ok."""
    BEING_CLOSED = "the broker has not closed the channel's number yet"
    """A channel.open waits for the close-ok of the channel that has its number."""
    OTHER_RING = "the publishes before it have no answer yet, and may go by another ring"
    """A publish waits so that none of its key which comes back would be behind it (`publishing.order`)."""
    INTERCEPTED = "it is not known yet what the name stands for"
    """A method on a queue's name waits until the interceptor knows what the name stands for."""


Awaited = Unread | Wait
"""The things that a client's frame may wait for: an exchange to be read, or an answer of the broker."""


class Backlog:
    """The frames that a client has sent on one channel since one of them must wait; it lives as long as that one waits.

    The methods of one channel take effect in the order in which they were sent, so the whole channel waits.
    """

    __slots__ = ("awaited", "forced", "pieces", "seen", "size")

    def __init__(self, awaited: Awaited) -> None:
        """`awaited` is what the first frame waits for; no frame is here yet."""
        self.awaited: Awaited | None = awaited
        """The answer or reading that the first frame waits for; None once it need not wait any more."""
        self.pieces: list[bytes] = []
        """The frames in order, as they came; the last one may not be whole yet."""
        self.size = 0
        """Bytes of all frames."""
        self.forced: Route | None = None
        """The route of the first frame's publish, if a look-up found one for only the publishes that came before it."""
        self.seen = 0
        """How many pieces had come when the look-up for `forced` began; it may not show what later ones need."""

    def add(self, data: bytes) -> None:
        """Add a frame, or the next part of one."""
        self.pieces.append(data)
        self.size += len(data)
