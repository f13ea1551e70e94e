"""The contents of several broker channels on their way to one channel of a client's. Pure state.

AMQP has a method, a content header and bodies follow each other on a channel, with nothing between them (section
4.2.6). Where an interceptor sends a client's channel what comes on channels of its own, two contents may come to it at
once. Then the first goes on, and all else that is for the client's channel waits for its end.
"""

# mypyc: compiled

from typing import Final

from proxy.wire.frames import BODY, U16, UNEXPECTED_FRAME, Fault

MOST_HELD: Final = 1 << 24
"""The most bytes of the broker that may wait until one content is sent whole on a client's channel."""


class Source:
    """One channel of the broker connection whose contents go to a client's channel: that channel, or a hidden one."""

    __slots__ = ("body_start", "is_hidden", "left", "merge", "number", "passing")

    def __init__(self, number: int, merge: "Merge") -> None:
        """`number` is that of the broker's channel, and `merge` is the client's channel that it goes to."""
        self.number, self.merge = number, merge
        self.is_hidden = number != merge.number
        """Whether the client does not know of the channel."""
        self.body_start = bytes((BODY,)) + U16.pack(merge.number)
        """The first bytes of a body frame on the client's channel, up to the payload's size."""
        self.left = 0
        """Bytes still to come of the body of the content under way; -1 before its content header."""
        self.passing = False
        """Whether the content under way goes to the client; else it is dropped. It is true of hidden channels only."""

    def body(self, length: int) -> None:
        """Take so many bytes of a body. Raises Fault if they are more than the content header has said."""
        if not 0 <= length <= self.left:
            raise Fault(UNEXPECTED_FRAME, f"a body frame of channel {self.number} that is longer than announced")
        self.left -= length
        if not self.left:
            self.end()

    def end(self) -> None:
        """Note that a content has come to its end."""
        self.passing = False
        if self.merge.busy is self:
            self.merge.busy = None


class Merge:
    """One channel of a client's, as the place where contents of several broker channels come together."""

    __slots__ = ("busy", "held", "held_size", "number", "told")

    def __init__(self, number: int) -> None:
        """`number` is that of the client's channel."""
        self.number = number
        self.busy: Source | None = None
        """The channel whose content the client is getting; None between two contents."""
        self.held: list[bytes] = []
        """Frames of the broker's for the client's channel that wait for the end of the content."""
        self.held_size = 0
        """The number of bytes in `held`."""
        self.told: list[bytes] = []
        """Frames of this proxy's for the client's channel that wait for the end of the content."""

    def hold(self, frame: bytes) -> None:
        """Keep a frame of the broker's until the content under way has ended. Raises Fault if too much waits.

        RabbitMQ writes each content in one piece, so it is rare that anything waits.
        """
        self.held.append(frame)
        self.held_size += len(frame)
        if self.held_size > MOST_HELD:
            raise Fault(UNEXPECTED_FRAME, f"more than {MOST_HELD} bytes amidst one content of channel {self.number}")

    @property
    def waits(self) -> bool:
        """Whether anything waits for the end of the content under way."""
        return bool(self.told or self.held)

    def take_told(self) -> list[bytes]:
        """Return the frames of this proxy's that have waited, and forget them."""
        told, self.told = self.told, []
        return told

    def take_held(self) -> bytes:
        """Return the frames of the broker's that have waited, and forget them."""
        held, self.held, self.held_size = b"".join(self.held), [], 0
        return held
