"""The door of a session: what it asks of something that has channels of its own beside the client's.

A session carries a client's channels to the broker, and rewrites publishes on the way. All other work on a channel's
methods stands behind two objects of each session, and the session knows nothing of what they do:

- An `Interceptor` is asked by the loops over frames. It does no I/O: frames go in, and what goes on in their place
  comes out. The name is that of RabbitMQ's own hook for the methods of a channel.
- Its `Attendant` (`attendant.py`) is asked by the session, and has the timers and tasks that the work needs.

The questions are six:

- What becomes of a client's method? `from_client`, `gathered`, and `may_go_on` and `refuse` for one that waits.
- What becomes of a broker's frame? `from_broker` for methods; for contents `deliveries`, `hidden_frame`, `own_frame`.
- What follows from the end of a channel or of the connection? `channel_ends`, `channel_gone`, `connection_ends`.
- What goes out before a close? Whatever `channel_ends` has put into `Direction.due`.
- May the session close? `Attendant.may_close`.
- How many channel numbers are kept back from the client? `Attendant.kept_back`.

An interceptor writes what it makes itself into `Direction.due`, or by `Direction.insert`, and nothing else of the
session's, but for these: `Waiting.held` has a frame of the client's wait. `Channel.merge` has contents come together on
a channel, and `Channel.last_queue` is the queue that it has declared for the client. `Connection.again`, with
`Direction.more`, has a frame taken once more in the next turn, since it took a part of its effect. `Connection.now` is
the time, for what happens without a read.

Bodies and publishes stream past: the loops ask only at methods, and at frames of channels in `Interceptor.sources`.
"""

# mypyc: compiled

from abc import ABC, abstractmethod

from proxy.session.channel import Channel
from proxy.session.merging import Source


class Interceptor(ABC):
    """The part of a session that takes methods out of the client's stream, and has channels of its own."""

    __slots__ = ("sources",)

    def __init__(self) -> None:
        self.sources: dict[int, Source] = {}
        """By number, the hidden channels, and those channels of the client that get contents of hidden ones, or may."""

    @abstractmethod
    def opened(self, first: int, count: int) -> None:
        """Take the channel numbers that the handshake has kept back: `count` of them, from `first` on."""

    @abstractmethod
    def from_client(self, channel: Channel, method: int, data: bytes, i: int, end: int) -> bytes | None:
        """Take a client's method on a channel that this proxy does not close, from `i` to `end` of `data`.

        Returns what goes on in its place; None for the session to go on with it. If `Waiting.held` is set, the frame
        waits, with all that follows on its channel.
        """

    @property
    @abstractmethod
    def awaits_answers(self) -> bool:
        """Return whether the broker has yet to answer on a hidden channel something that a connection.close undoes."""

    @property
    @abstractmethod
    def is_idle(self) -> bool:
        """Return whether the broker knows of no hidden channel."""

    @abstractmethod
    def gathered(self) -> bytes:
        """Return what the broker gets for methods that `from_client` has taken one by one, all of one read together.

        It is asked behind the frames of each read, and before the client's connection.close.
        """

    @abstractmethod
    def from_broker(self, channel: Channel, method: int, data: bytes, i: int, end: int) -> bytes | None:
        """Take a broker's method on a client's channel that is in `sources`; return what goes on, or None for it as is.

        Methods that the session itself looks at do not come here.
        """

    @abstractmethod
    def deliveries(self, source: Source, data: bytes, i: int, size: int) -> tuple[int, int, bytes]:
        """Take the contents at `i` that begin with one of a hidden channel, in one pass, as far as they are whole.

        Returns the offset behind them, their number of frames, and what the client gets in their place. Everything but
        an ordinary content of few bytes is left to `hidden_frame`: the offset is the one where that begins.
        """

    @abstractmethod
    def hidden_frame(self, source: Source, kind: int, data: bytes, i: int, end: int) -> bytes:
        """Take a frame of a hidden channel; return what the client gets in its place.

        A body frame comes here only if it is dropped. Raises Fault for a content that is interrupted.
        """

    @abstractmethod
    def own_frame(
        self, source: Source, kind: int, replaced: bytes | None, data: bytes, i: int, end: int
    ) -> bytes | None:
        """Take a frame of the broker's on a client's channel in `sources`; return what the client gets.

        `replaced` is what the client was to get in its place so far; None stands for the frame as it is, here and in
        the result.
        """

    @abstractmethod
    def may_go_on(self, channel: Channel) -> bool:
        """Return whether the frame that `from_client` has had wait need not wait any more."""

    @abstractmethod
    def refuse(self, channel: Channel, why: str) -> None:
        """Close the channel of a frame that `from_client` has had wait, since what it waits for does not come."""

    @abstractmethod
    def channel_ends(self, channel: Channel) -> None:
        """Note that the client, the broker or this proxy closes a client's channel."""

    @abstractmethod
    def channel_gone(self, channel: Channel) -> None:
        """Note that a client's channel is no more, and its number is free."""

    @abstractmethod
    def connection_ends(self, code: int, text: bytes) -> None:
        """Note that the broker closes the connection, with this reply code and text."""
