"""The states of a session, of a channel and of the content on it, each with the table of its transitions.

`Connection.enter` and `Channel.enter` are the only ways from one phase or channel state to the next, and look into
their tables. The loop over the client's frames sets `expect` itself; tests hold it to `CONTENT_TRANSITIONS`.
"""

# mypyc: compiled

from collections.abc import Mapping
from enum import IntEnum
from typing import Final


class Phase(IntEnum):
    """How far a session has come, from the client's first bytes to its last socket."""

    HEADER = 0
    """The client's protocol header is due (AMQP section 4.2.2)."""
    DIALLING = 1
    """A connection to a broker is being opened."""
    HANDSHAKE = 2
    """Client and broker agree, from connection.start to connection.open-ok; `handshake.STEPS` has its steps."""
    RUNNING = 3
    """The connection is open."""
    DRAINING = 4
    """The connection is open, and nothing more is taken of the client, since this proxy shuts down."""
    LEAVING = 5
    """The client has sent connection.close, which waits until no published message can come back any more."""
    CLOSING = 6
    """The broker has got the client's connection.close: what the client sends passes unread."""
    CLOSED = 7
    """The broker has sent connection.close or connection.close-ok: what either side sends passes unread."""
    REFUSING = 8
    """This proxy has sent connection.close to both sides, of which only Close and Close-Ok count from now on."""
    OVER = 9
    """Both sockets are closed."""


_CUT: Final = frozenset({Phase.CLOSED, Phase.REFUSING, Phase.OVER})
"""The phases in which a session can end from any phase in which the broker takes frames."""

TRANSITIONS: Final[Mapping[Phase, frozenset[Phase]]] = {
    Phase.HEADER: frozenset({Phase.DIALLING, Phase.OVER}),
    Phase.DIALLING: frozenset({Phase.HANDSHAKE, Phase.OVER}),
    Phase.HANDSHAKE: _CUT | {Phase.RUNNING},
    Phase.RUNNING: _CUT | {Phase.DRAINING, Phase.LEAVING, Phase.CLOSING},
    # Frames from before the drain may wait in a backlog, the client's connection.close too.
    Phase.DRAINING: _CUT | {Phase.LEAVING, Phase.CLOSING},
    Phase.LEAVING: frozenset({Phase.CLOSING, Phase.CLOSED, Phase.OVER}),
    Phase.CLOSING: frozenset({Phase.CLOSED, Phase.OVER}),
    Phase.CLOSED: frozenset({Phase.OVER}),
    Phase.REFUSING: frozenset({Phase.OVER}),
    Phase.OVER: frozenset(),
}
"""By phase of a session, the phases that may follow it."""


class ChannelState(IntEnum):
    """Whether a channel is open, and who has closed it (AMQP section 1.5.2.5)."""

    OPEN = 0
    CLOSING = 1
    """The client has sent channel.close, and the broker's close-ok is due."""
    CLOSED = 2
    """The broker has sent channel.close, and the client's close-ok is due."""
    REFUSING = 3
    """This proxy closes the channel: the broker's close-ok is due, and what the client sends is dropped."""
    REFUSED = 4
    """The broker has sent close-ok; the client's frames are dropped until the client has sent close-ok, too."""
    CUT = 5
    """The broker has closed the channel, which is opened again unseen once the content under way is through."""
    ABANDONED = 6
    """Both sides have got this proxy's channel.close, and neither has answered; what else they send is dropped."""
    VACATED = 7
    """The client has answered, the broker has not: its frames are dropped until then, and the number is taken."""
    GONE = 8
    """The channel is no more, and its number is free or belongs to another one."""


CHANNEL_TRANSITIONS: Final[Mapping[int, frozenset[int]]] = {
    ChannelState.OPEN: frozenset(
        {
            ChannelState.CLOSING,
            ChannelState.CLOSED,
            ChannelState.REFUSING,
            ChannelState.CUT,
            ChannelState.GONE,
        },
    ),
    # Both sides may close a channel at once. A number that is opened again meanwhile may wait too long for the broker.
    ChannelState.CLOSING: frozenset(
        {ChannelState.CLOSING, ChannelState.CLOSED, ChannelState.ABANDONED, ChannelState.GONE},
    ),
    ChannelState.CLOSED: frozenset(
        {ChannelState.CLOSING, ChannelState.CLOSED, ChannelState.ABANDONED, ChannelState.GONE},
    ),
    # The broker's channel.close counts while this proxy's waits for the end of a content.
    ChannelState.REFUSING: frozenset({ChannelState.REFUSED, ChannelState.CLOSED, ChannelState.ABANDONED}),
    ChannelState.REFUSED: frozenset({ChannelState.CLOSED, ChannelState.GONE}),
    ChannelState.CUT: frozenset({ChannelState.OPEN, ChannelState.CLOSED}),
    ChannelState.ABANDONED: frozenset({ChannelState.REFUSED, ChannelState.VACATED}),
    ChannelState.VACATED: frozenset({ChannelState.ABANDONED, ChannelState.GONE}),
    ChannelState.GONE: frozenset(),
}
"""By state of a channel, the states that may follow it."""

EXPECT_METHOD: Final = 0
EXPECT_HEADER: Final = 1
EXPECT_BODY: Final = 2
"""A plain integer, for the hot loop, that says what the client must send next on a channel: see `Channel.expect`."""

CONTENT_TRANSITIONS: Final[Mapping[int, frozenset[int]]] = {
    EXPECT_METHOD: frozenset({EXPECT_HEADER}),
    # A body may be empty; and a publish that waits for its content header is forgotten if its channel is refused.
    EXPECT_HEADER: frozenset({EXPECT_BODY, EXPECT_METHOD}),
    EXPECT_BODY: frozenset({EXPECT_METHOD}),
}
"""The values of `Channel.expect` that may follow each value of it (AMQP section 4.2.6)."""
