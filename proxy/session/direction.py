"""One direction of a session: where its bytes stand within a frame, and what is to be written. Pure state."""

from proxy.wire.frames import Piece


class Direction:
    """The way from one peer to the other; it lives as long as the session, which has one to each peer."""

    __slots__ = ("body_of", "cut_off", "dropping", "ended", "frames", "garbled", "out", "own", "rest", "skip")

    def __init__(self) -> None:
        """Nothing has been read or written yet."""
        self.rest = b""
        """The beginning of a frame that has not come whole yet, or what the sender has sent ahead of its turn."""
        self.skip = 0
        """Bytes still to come of a body frame whose beginning has been taken; 0 at the boundary of a frame."""
        self.dropping = False
        """Whether the `skip` bytes to come are dropped, because the beginning of their frame was not sent on either."""
        self.body_of = 0
        """The channel of the body frame that `skip` counts; known only for frames of the client."""
        self.out: list[Piece] = []
        """The pieces to be written next, in order."""
        self.own: list[bytes] = []
        """Frames of this proxy's that wait until the frame under way has gone out whole."""
        self.frames = 0
        """Frames that the sender has sent since the session began."""
        self.ended = False
        """Whether the sender has sent its last: the end of its stream, or a Close or Close-Ok."""
        self.garbled = False
        """Whether the sender has sent what is no frame, so that nothing behind it can be read."""
        self.cut_off = False
        """Whether the receiver can take no more method: it is in the midst of a frame, or of the handshake."""

    def insert(self, frame: bytes) -> None:
        """Send a frame of this proxy's at the next boundary of a frame: at once if none is under way."""
        if self.skip:
            self.own.append(frame)
        else:
            self.out.append(frame)
