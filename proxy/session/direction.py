"""One direction of a session: the position of its bytes within a frame, and the bytes to write. Pure state."""

# mypyc: compiled

from proxy.wire.frames import Piece


class Direction:
    """The bytes from one peer to the other peer; a session has two directions, which live as long as it does."""

    __slots__ = (
        "body_left", "body_of", "cut_off", "dropping", "due", "ended", "frames", "garbled", "more", "out", "queued",
        "rest",
    )  # fmt: skip

    def __init__(self) -> None:
        """Start at a frame boundary, with nothing read or written."""
        self.rest = b""
        """The beginning of a frame that has not come whole yet, or what the sender has sent ahead of its turn."""
        self.more = False
        """Whether `rest` begins with whole frames that are to be taken in the session's next turn."""
        self.body_left = 0
        """Bytes still to come of a body frame whose beginning has been taken; 0 at the boundary of a frame."""
        self.dropping = False
        """Whether the `body_left` bytes are dropped, because the beginning of their frame was not sent on either."""
        self.body_of = 0
        """The channel of the body frame that `body_left` counts; known only for frames of the client."""
        self.out: list[Piece] = []
        """The pieces to be written next, in order."""
        self.queued: list[bytes] = []
        """Frames of this proxy's that wait until the frame under way has gone out whole."""
        self.due: list[bytes] = []
        """Frames of this proxy's that are made while a frame of the sender's is taken, and go out right behind it."""
        self.frames = 0
        """Frames that the sender has sent since the session began."""
        self.ended = False
        """Whether the sender has sent its last: the end of its stream, or a Close or Close-Ok."""
        self.garbled = False
        """Whether the sender has sent bytes that are no frame, so that nothing behind them can be read."""
        self.cut_off = False
        """Whether the receiver can take no more method: it is in the midst of a frame, or of the handshake."""

    def insert(self, frame: bytes) -> None:
        """Send a frame of this proxy's at the next boundary of a frame: at once if none is under way."""
        if self.body_left:
            self.queued.append(frame)
        else:
            self.out.append(frame)

    def take_due(self) -> bytes:
        """Return the frames that are due, and forget them."""
        due, self.due[:] = b"".join(self.due), []
        return due

    def flush(self) -> None:
        """Send the frames that are due at the next boundary of a frame.

        The loop over the sender's frames must not call it: that loop may be in the midst of a frame, and sends the due
        frames itself behind that frame.
        """
        if self.due:
            self.insert(self.take_due())
