"""What one session knows of its two legs: plain state that the rewriting and the rarer frames share. No I/O."""

from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from proxy.routing.counters import CounterTable
from proxy.routing.routes import Route, RouteTable, Unread
from proxy.session.channel import Channel
from proxy.session.confirms import MOST_UNSETTLED
from proxy.session.parked import Parking
from proxy.topology.declarations import Declaration
from proxy.topology.table import Name
from proxy.wire.frames import Piece
from ring.destination import Destination

if TYPE_CHECKING:
    from proxy.session.republish import Reroutes

HANDSHAKE_FRAME_MAX = 1 << 17
"""Bytes of a frame taken before tune-ok; the broker has a limit of its own."""

MOST_FRAME_MAX = 1 << 24
"""Bytes of a method or header frame where the peers agree on no limit. Bodies are never held."""


class Phase(IntEnum):
    """How far a session has come."""

    HANDSHAKE = 0
    """Until the broker's connection.open-ok."""
    RUNNING = 1
    LEAVING = 2
    """The client has sent connection.close; the broker gets it once nothing can come back any more."""
    ENDING = 3
    """One side has sent the other connection.close: all passes as it is."""
    REFUSING = 4
    """We have sent connection.close: only Close and Close-Ok count, to either side."""


class Step(IntEnum):
    """How far the handshake of a session has come; `handshake.STEPS` says what leads from one step to the next."""

    STARTING = 0
    """The broker's start is due."""
    LOGIN = 1
    """The client's start-ok is due."""
    JUDGED = 2
    """The broker looks at what the client said: its secure or tune is due."""
    CHALLENGED = 3
    """The client's secure-ok is due."""
    TUNING = 4
    """The client's tune-ok is due."""
    TUNED = 5
    """The client's open is due."""
    OPENING = 6
    """The broker's open-ok is due."""
    OPENED = 7
    """The broker has let the client in."""
    LEFT = 8
    """The client has sent close: the broker's answer is due."""


BROKERS_TURN: Final = frozenset((Step.STARTING, Step.JUDGED, Step.OPENING, Step.LEFT))
"""Steps at which the broker speaks next, so that nothing is taken of the client."""


class Declared(NamedTuple):
    """The broker's -ok to a declaration is about to reach the client."""

    declaration: Declaration


class Stale(NamedTuple):
    """A publish came back, or closed its channel: the ring of that exchange no longer fits."""

    name: Name
    destination: Destination | None
    """What is gone, as far as is known."""


class Refused(NamedTuple):
    """We closed the connection, or a channel, for a reason that is worth a word."""

    code: int
    text: str
    channel: Channel | None = None
    """The channel that the broker has yet to close for it; None where there is none."""


Event = Declared | Stale | Refused


class Connection:
    """The state of one session, for `rewrite.from_client` and `rewrite.from_broker`."""

    __slots__ = (
        "allowed_mechanisms", "broker_done", "broker_dropping", "broker_frames", "broker_lost",
        "broker_phase", "broker_rest", "broker_skip", "channel_max", "channels", "client_body", "client_done",
        "client_dropping", "client_frames", "client_rest", "client_skip", "cluster", "cluster_told_at", "confirmed",
        "crowded", "events", "for_broker", "for_client", "forced", "frame_max", "framing_lost", "gathering", "goodbye",
        "heartbeat", "held", "now", "offered", "offered_frame_max", "opened", "parked", "phase", "released", "reread",
        "reroutes", "routes", "spare", "stalled", "step", "table", "tables", "to_broker", "to_client", "user", "vhost",
        "waiting", "withheld", "without_spare",
    )  # fmt: skip

    def __init__(
        self,
        tables: Callable[[str, str | None], RouteTable],
        confirmed: Callable[[float], None],
        allowed_mechanisms: frozenset[bytes],
    ) -> None:
        """`confirmed` takes the seconds of each sampled confirm."""
        self.tables, self.confirmed, self.allowed_mechanisms = tables, confirmed, allowed_mechanisms
        self.phase = self.broker_phase = Phase.HANDSHAKE
        """The broker's leg is not ENDING before the broker itself has sent or answered connection.close."""
        self.step = Step.STARTING
        """How far the handshake has come."""
        self.to_broker: list[Piece] = []
        self.to_client: list[Piece] = []
        """What to write next, in order."""
        self.events: list[Event] = []
        self.channels: dict[int, Channel] = {}
        self.crowded: Channel | None = None
        """A channel with so many publishes without an answer that nothing more is taken of the client."""
        # Per leg: the beginning of a frame that is not complete, or the bytes of a body frame still to stream.
        self.client_rest = self.broker_rest = b""
        self.client_skip = self.broker_skip = 0
        self.client_body = 0
        """The channel of that body frame."""
        self.client_dropping = self.broker_dropping = False
        """The rest of that body frame goes nowhere."""
        self.for_client = b""
        self.for_broker: list[bytes] = []
        """Frames of ours that wait for a frame boundary: for the broker also messages that came back."""
        self.client_frames = self.broker_frames = 0
        self.held: Unread | None = None
        """What the frame that is just looked at must wait for; its channel's backlog keeps both."""
        self.forced: Route | None = None
        """The route of the frames that are just taken from a backlog, where it was found for those alone."""
        self.waiting: dict[int, Channel] = {}
        """The channels that have a backlog, by number, in the order in which they came to wait."""
        self.withheld = 0
        """Bytes of all backlogs."""
        self.stalled = False
        """The first frame of `client_rest` must wait until a channel goes on, and the client is not read meanwhile.

        So it is where the backlogs are too large together, and at the client's connection.close, which may not
        overtake what the client has sent before it. A frame that has begun is read to its end before that, since
        nothing that waits can go on in the midst of it.
        """
        self.parked = Parking()
        """Messages that came back and wait for a reading."""
        self.reread: dict[Stale, float] = {}
        """When that was last read again for any message that came back; monotonic."""
        self.reroutes: Reroutes | None = None
        """Our channel, where something came back."""
        self.gathering = 0
        """Contents under way whose body frames must be whole: they go elsewhere than to the client as they come."""
        self.released: list[Channel] = []
        """Channels whose late answers are due."""
        self.goodbye = b""
        """The client's connection.close, until the broker gets it."""
        self.now = 0.0
        """Monotonic time, as of the last bytes."""
        # Agreed on in the handshake.
        self.frame_max = HANDSHAKE_FRAME_MAX
        self.offered = self.offered_frame_max = 0
        """The broker's channel_max and frame_max; 0 for no limit."""
        self.channel_max = 0
        """The client's highest channel number; one more is kept for us."""
        self.spare = 0
        """The number of that channel; 0 where there is none."""
        self.user = b""
        """Who has logged in, as far as it is seen: by PLAIN."""
        self.without_spare: dict[tuple[str, bytes], float] = {}
        """Virtual hosts and users whose limit of channels our channel would break, and until when; of all sessions."""
        self.heartbeat = 0
        self.vhost = ""
        self.cluster: str | None = None
        """The name by which the broker's cluster goes: the one that it gave, or a newer one of the same cluster."""
        self.cluster_told_at = 0.0
        """When the broker gave it, monotonic."""
        self.opened = False
        """The broker has sent open-ok."""
        self.table: RouteTable | None = None
        self.routes: dict[bytes, Route] = {}
        """The table's, which `route` adds to."""
        # The end.
        self.framing_lost = self.client_done = self.broker_done = self.broker_lost = False

    def route(self, exchange: bytes) -> Route | None:
        """The route of an exchange; None where it must be looked up first: `held` then says which."""
        forced = self.forced
        if forced is not None and forced.name[1] == exchange.decode(errors="replace"):
            return forced
        found = self.table.find(exchange) if self.table is not None else None
        if isinstance(found, Route):
            return found
        self.held = found
        return None

    @property
    def ahead(self) -> bool:
        """Whether the client has sent more in the handshake than the broker has answered."""
        return self.phase is Phase.HANDSHAKE and self.step in BROKERS_TURN and bool(self.client_rest)

    @property
    def paused(self) -> bool:
        """Whether the client is not to be read until the broker has sent more, or a channel that waits goes on."""
        if self.stalled and not self.client_skip and self.running:
            return True
        return self.ahead or (self.crowded is not None and self.running)

    def still_crowded(self) -> bool:
        """Return whether a channel still has too many publishes without an answer: more than half of the most."""
        channel = self.crowded
        if channel is not None and channel.confirms.unsettled <= MOST_UNSETTLED // 2:
            channel = self.crowded = None
        return channel is not None

    @property
    def running(self) -> bool:
        """Whether the session is open, and nobody closes it."""
        return self.phase is Phase.RUNNING

    def expire(self) -> None:
        """Forgets routes that are too old to serve."""
        if self.table is not None and self.table.expires < self.now:
            self.table.clear()

    def renamed(self, cluster: str) -> None:
        """Goes on by another name of the broker's cluster."""
        self.cluster = cluster
        self.table = self.tables(self.vhost, cluster)
        self.routes = self.table.routes

    @property
    def counter_table(self) -> CounterTable:
        """Where publishes count; only once the session is open."""
        if self.table is None:
            raise RuntimeError("no virtual host is open yet")
        return self.table.counter_table

    def tell_client(self, frame: bytes) -> None:
        """Sends the client a frame of ours, at the next frame boundary."""
        if self.broker_skip:
            self.for_client += frame
        else:
            self.to_client.append(frame)

    def tell_broker(self, frame: bytes) -> None:
        """Sends the broker a frame of ours, at the next frame boundary."""
        if self.client_skip:
            self.for_broker.append(frame)
        else:
            self.to_broker.append(frame)
