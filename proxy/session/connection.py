"""The plain state of one session and its two peers, which the loops over frames and the handlers share. No I/O."""

# mypyc: compiled

from collections.abc import Callable
from math import inf

from proxy.routing.counters import CounterTable
from proxy.routing.route import Route
from proxy.routing.routes import RouteTable
from proxy.session.channel import Channel
from proxy.session.direction import Direction
from proxy.session.events import Event
from proxy.session.handshake import BROKERS_TURN, Handshake
from proxy.session.interceptor import Interceptor
from proxy.session.publishing.confirms import MOST_UNSETTLED
from proxy.session.publishing.republishing import Republishing
from proxy.session.state import TRANSITIONS, Phase
from proxy.session.waiting import Waiting


class Connection:
    """The state of one session, from the client's first bytes to its last socket."""

    __slots__ = (
        "again", "channels", "confirmed", "crowded", "events", "frame_max", "goodbye", "handshake", "interceptor",
        "now", "phase", "republishing", "routes", "table", "tables", "to_broker", "to_client", "turn_ends", "waiting",
    )  # fmt: skip

    def __init__(
        self,
        tables: Callable[[str, str | None], RouteTable],
        confirmed: Callable[[float], None],
        allowed_mechanisms: frozenset[bytes],
    ) -> None:
        """`tables` gives the routes of a virtual host and a cluster; `confirmed` takes a sampled confirm's seconds."""
        self.tables, self.confirmed = tables, confirmed
        self.phase = Phase.HEADER
        """How far the session has come; `enter` changes it."""
        self.handshake = Handshake(allowed_mechanisms)
        """The handshake of the two peers: its step, and the results so far."""
        self.to_broker = Direction()
        """The direction from the client to the broker."""
        self.to_client = Direction()
        """The direction from the broker to the client."""
        self.waiting = Waiting()
        """The client's frames that wait."""
        self.republishing = Republishing()
        """The messages that came back."""
        self.interceptor: Interceptor | None = None
        """The part that takes methods out of the client's stream, set before the client's first bytes; None if none."""
        self.events: list[Event] = []
        """The events that the session has not been told of yet."""
        self.channels: dict[int, Channel] = {}
        """The client's channels, by number."""
        self.crowded: Channel | None = None
        """A channel with so many publishes without an answer that nothing more is taken of the client; else None."""
        self.goodbye = b""
        """The client's connection.close while it waits, in the phase LEAVING; else empty."""
        self.now = 0.0
        """The time of the last bytes, monotonic."""
        self.again = b""
        """A frame of the client's that took a part of its effect, and is to be taken again in the next turn."""
        self.turn_ends = inf
        """The time from which on no further frame of a read is taken before other sessions have had a turn, monotonic.

        A loop that stops for this keeps the other frames in `Direction.rest`, and sets `Direction.more`.
        """
        self.frame_max = self.handshake.frame_max
        """The most bytes of a frame of the client's, as the handshake has it, without the slack that brokers allow."""
        self.table: RouteTable | None = None
        """The routes of the session's virtual host; None before the broker has sent connection.open-ok."""
        self.routes: dict[bytes, Route] = {}
        """The routes of `table` that have been made so far, by exchange; `route` makes others."""

    def enter(self, phase: Phase) -> None:
        """Go on to a phase. Raises RuntimeError for one that may not follow the present one."""
        if phase not in TRANSITIONS[self.phase]:
            raise RuntimeError(f"a session from {self.phase.name} to {phase.name}")
        self.phase = phase

    def open(self, cluster: str | None) -> None:
        """Take the routes of the session's virtual host.

        Hash exchanges wait if `cluster`, the name of the broker's, is not the one whose bindings are read. Called at
        connection.open-ok, and again once the cluster is renamed.
        """
        self.handshake.cluster = cluster
        self.table = self.tables(self.handshake.vhost, cluster)
        self.routes = self.table.routes
        self.frame_max = self.handshake.frame_max

    def route(self, exchange: bytes) -> Route | None:
        """Return the route of an exchange; None if an exchange must be looked up first, which `waiting.held` names."""
        forced = self.waiting.forced
        if forced is not None and forced.name[1] == exchange.decode(errors="replace"):
            return forced
        found = self.table.find(exchange) if self.table is not None else None
        if isinstance(found, Route):
            return found
        self.waiting.held = found
        return None

    @property
    def ahead(self) -> bool:
        """Whether the client has sent more in the handshake than the broker has answered."""
        return self.phase is Phase.HANDSHAKE and self.handshake.step in BROKERS_TURN and len(self.to_broker.rest) > 0

    @property
    def paused(self) -> bool:
        """Whether the client is not to be read until the broker has sent more, or a channel that waits goes on."""
        if self.waiting.stalled and not self.to_broker.body_left and self.running:
            return True
        return self.ahead or (self.crowded is not None and self.running)

    def recheck_crowded(self) -> bool:
        """Forget `crowded` once half of its MOST_UNSETTLED publishes have their answer; return whether it stays."""
        channel = self.crowded
        if channel is not None and channel.confirms.unsettled <= MOST_UNSETTLED // 2:
            channel = self.crowded = None
        return channel is not None

    @property
    def opened(self) -> bool:
        """Whether the broker has sent connection.open-ok."""
        return self.table is not None

    @property
    def running(self) -> bool:
        """Whether the connection is open, and neither peer nor this proxy closes it."""
        return self.phase is Phase.RUNNING or self.phase is Phase.DRAINING

    @property
    def vhost(self) -> str:
        """The virtual host that the client asked for; empty before it has asked."""
        return self.handshake.vhost

    def drop_old_routes(self) -> None:
        """Forget routes that are too old to serve."""
        if self.table is not None and self.table.expires < self.now:
            self.table.clear()

    @property
    def counter_table(self) -> CounterTable:
        """The counters of publishes. Raises RuntimeError before the broker has sent connection.open-ok."""
        if self.table is None:
            raise RuntimeError("no virtual host is open yet")
        return self.table.counter_table
