"""The state that all sessions of a listener share: their counts, and their access to the management API's readings."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from math import inf

from proxy.routing.route import Route
from proxy.routing.routes import RouteTables
from proxy.session.attendant import Attendant
from proxy.session.backlog import Backlog
from proxy.session.channel import Channel
from proxy.session.connection import Connection
from proxy.session.events import NoQueue, Reopened, Stale
from proxy.session.kept import KeptConnections
from proxy.session.publishing.publish import held_publish
from proxy.session.sockets import PeerSocket
from proxy.settings.missing_right import MissingRight
from proxy.topology.lookups import Absent, NotReadable, VhostAbsent
from proxy.topology.readings import Readings
from proxy.topology.table import Name, Unread
from ring.destination import Destination

log = logging.getLogger(__name__)

TELL_EVERY = 1.0
"""Seconds in which at most one line of the log tells of a virtual host's channels that were opened again."""

MOST_NAMED = 1_000
"""The most names of missing queues that are remembered."""

MOST_LACKING = 20
"""The most missing rights that are remembered."""

MEANT_EVERY = 60.0
"""Seconds in which an exchange that a client may have meant by a missing queue's name is read once at most."""


_RETURNED = "a message was returned"
"""Why a ring is read again, as the log has it."""


Attend = Callable[[Connection, Callable[[], str], Callable[[Callable[[], None]], None], Callable[[], None]], Attendant]
"""A function that makes the attendant of a new session, out of its connection and three functions.

The first returns the client's address. The second calls a function, and ends the session if that raises. The third is
to be called after each act of the attendant's own: it writes to both peers, and takes up what has waited.
"""


@dataclass
class Shared:
    """The state that all sessions of a listener share; it lives as long as the listener."""

    tables: RouteTables
    readings: Readings
    dial: Callable[[Callable[[], PeerSocket]], Awaitable[PeerSocket]]
    """Connects a socket to a broker; raises OSError with the reason if none can be reached."""
    allowed_mechanisms: frozenset[bytes]
    confirmed: Callable[[float], None]
    """A function that takes the seconds of a sampled confirm."""
    answer_timeout: float
    """Seconds that the broker may take to answer a declaration, or to close a channel, before a publish or a
    channel.open that waits for that is refused."""
    kept: KeptConnections | None = None
    """The broker connections that wait for another client; None if none are kept."""
    attend: Attend | None = None
    """A function that gives each session its attendant; None where no session has an interceptor."""
    client_bytes: int = 0
    broker_bytes: int = 0
    client_frames: int = 0
    broker_frames: int = 0
    refusals: Counter[int] = field(default_factory=Counter)
    """How often this proxy has closed a connection or a channel, by reply code."""
    lacking: dict[MissingRight, float] = field(default_factory=dict)
    """The last rights that clients lacked, each with the monotonic time of its last refusal; the oldest first."""
    under_way: set[tuple[Name, Destination | None]] = field(default_factory=set)
    without_spare: dict[tuple[str, bytes], float] = field(default_factory=dict)
    """By virtual host and user: the monotonic time before which no session opens a channel to publish on again.

    It is set when the broker has closed a connection because such a channel was one too many for the user
    (`Republishing.barred`).
    """
    tasks: set["asyncio.Task[None]"] = field(default_factory=set)
    _meant: dict[Name, float] = field(default_factory=dict)
    """By virtual host and name of a missing queue, the oldest first: when an exchange of that name was last to be read,
    in monotonic seconds."""
    _told: dict[str, tuple[float, int]] = field(default_factory=dict)
    """By virtual host: when a line of the log last told of a channel that was opened again, in monotonic seconds, and
    the number of channels that were opened again since."""

    def tell_reopened(self, vhost: str, client: str, event: Reopened) -> None:
        """Log that a client's channel was opened again unseen: a deleted lane may end very many channels at once."""
        now = time.monotonic()
        told_at, others = self._told.get(vhost, (now - TELL_EVERY, 0))
        if now - told_at < TELL_EVERY:
            self._told[vhost] = told_at, others + 1
            return
        self._told[vhost] = now, 0
        log.warning(
            "client %s, virtual host %r: channel %d is opened again, and %d publishes without an answer are"
            " nacked: %s%s",
            client,
            vhost,
            event.channel.id,
            event.unanswered,
            event.text,
            f" (so were {others} other channels since the last such line)" if others else "",
        )

    def note_lacking(self, right: MissingRight) -> None:
        """Remember that a client was refused for want of a right."""
        self.lacking.pop(right, None)
        if len(self.lacking) >= MOST_LACKING:
            del self.lacking[next(iter(self.lacking))]
        self.lacking[right] = time.monotonic()

    def want(self, vhost: str, event: NoQueue) -> None:
        """Have an exchange read that a client may have meant by a queue's name, so that the next try can be told.

        Each name is read once in MEANT_EVERY at most: clients choose the names, and may try for ever.
        """
        name, now = (vhost, event.name), time.monotonic()
        if now - self._meant.get(name, -inf) < MEANT_EVERY:
            return
        self._meant.pop(name, None)
        if len(self._meant) >= MOST_NAMED:
            del self._meant[next(iter(self._meant))]
        self._meant[name] = now
        self.readings.scheduler.want(name)

    def have_read_again(self, name: Name, gone: Destination | None) -> None:
        """Have a ring read again that a return has shown to be stale; many returns at once ask once."""
        if (name, gone) in self.under_way:
            return
        self.under_way.add((name, gone))
        task = asyncio.create_task(self.readings.scheduler.read_again(name, _RETURNED, {gone} if gone else ()))
        self.tasks.add(task)

        def done(task: "asyncio.Task[None]") -> None:
            self.tasks.discard(task)
            self.under_way.discard((name, gone))

        task.add_done_callback(done)

    async def reread(self, c: Connection, wanted: Stale | Unread) -> bool:
        """Read what a message that came back waits for; return whether that ended within `lookup_timeout`."""
        if isinstance(wanted, Stale):
            return await self.readings.read_again((wanted.name,), _RETURNED, wanted.destination)
        try:
            async with asyncio.timeout(self.readings.lookup_timeout):
                since = time.monotonic()
                if wanted.other_cluster:
                    await self._same_cluster(c, since)
                else:
                    await self.readings.look_up(wanted.name, since)
        except (TimeoutError, NotReadable):
            return False
        except Absent:
            pass  # which is an answer, too
        return True

    async def resolve(self, c: Connection, channel: Channel, backlog: Backlog, unread: Unread, asked: float) -> str:
        """Read the exchange that a channel's publish has waited for since `asked`, monotonic.

        Returns why that failed, or an empty string. Where the route was found for what has come by now alone, the
        backlog says so from then on.
        """
        exchange = held_publish(channel)
        backlog.seen = len(backlog.pieces)
        if unread.refused or self.readings.left(asked) <= 0:
            return unread.why
        if unread.other_cluster:
            return "" if await self._same_cluster(c, asked) else unread.why
        try:
            await self.readings.look_up(unread.name, asked)
        except VhostAbsent as error:
            return str(error)  # the broker has opened it, so it is the management user who may not see it
        except Absent:
            if c.table is None:
                return unread.why  # the session has ended
            if unread.name[1].encode() == exchange:
                backlog.forced = c.table.absent(exchange)
            else:
                missing = unread.name[1]
                await self.readings.read_ways_again(c.table.ways_to(missing, exchange), missing, asked)
        except NotReadable as error:
            return str(error)
        else:
            route = c.table.once(exchange, asked) if c.table is not None else unread
            backlog.forced = route if isinstance(route, Route) else None
        return ""

    async def _same_cluster(self, c: Connection, since: float) -> bool:
        """Return whether the management API's cluster is the session's after all: it was renamed, or was asked late."""
        name = await self.readings.confirmed(c.handshake.cluster, c.handshake.cluster_told_at, since)
        if name is not None and c.running:
            c.open(name)
        return name is not None

    def is_outdated(self, c: Connection) -> bool:
        """Return whether a new session may learn another name of the broker's cluster than this one did as it began."""
        return c.handshake.cluster_told_at < self.readings.identity.named_at
