"""The broker connections on which HTTP's messages go out: a group for each virtual host and user, while in use."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping

from proxy.publisher.channel import ConfirmChannel
from proxy.publisher.connection import BrokerConnection, Socket
from proxy.publisher.protocol import PublisherProtocol
from proxy.routing.routes import RouteTable
from proxy.settings.missing_right import MissingRight

FORGET_AFTER = 30.0
"""Seconds without a publish after which connections that cannot be made, or are another user's, are given up."""

GUEST_AGE = 60.0
"""Seconds after which another user has to log in anew: the password may have changed, or a permission."""

MOST_GUESTS = 64
"""Guests that the broker has let in, at most; a user counts once for each virtual host."""

MOST_LOGINS = 64
"""Logins of guests that the broker has not answered yet, at most; a limit apart, since anyone may try to log in."""

_CLOSE_TIMEOUT = 0.2
"""Seconds for the broker to answer connection.close when this sidecar ends."""

Login = tuple[str, str]
"""A user and a password."""


class Unavailable(Exception):  # noqa: N818 - the caller turns it into an outcome
    """No connection takes publishes, so nothing was sent; the message says why."""


class LoginRefused(Unavailable):
    """The broker does not let this user in, or not into this virtual host."""

    def __init__(self, message: str, code: int) -> None:
        """Keep the broker's reply code, 403 or 530, beside the message."""
        super().__init__(message)
        self.code = code


class TooManyGuests(Exception):  # noqa: N818 - a limit, not an error
    """One more guest would be too many; the message says which limit is reached."""


class ConnectionGroup:
    """The connections of one user to one virtual host, from the first request for them until they are given up.

    Publishes of one slot share a connection, which keeps their order. A guest is a user other than this sidecar's own.
    """

    def __init__(self, vhost: str, connections: tuple[BrokerConnection, ...], guest: bool) -> None:
        """Take the connections, which the publisher runs."""
        self.vhost, self.connections, self.guest = vhost, connections, guest
        self.kept = False
        """Whether the group is never given up."""
        self.over = False
        """Whether the group is given up: all its connections end together, since each slot is tied to one of them."""
        self.renewed = False
        """Whether the group replaces an older one whose user the broker had let in."""
        self.begun_at = self.wanted_at = time.monotonic()
        """When the group was made, and when a publish last asked for it, in monotonic seconds."""
        self.table: RouteTable | None = None
        """The routes of the virtual host, kept here by those who publish; None before the first publish."""
        self.task: asyncio.Task[None] | None = None
        """The task that runs the connections."""

    @property
    def connection(self) -> BrokerConnection:
        """The first connection that is up, or the first of all if none is up."""
        return next((c for c in self.connections if c.protocol is not None), self.connections[0])

    @property
    def protocols(self) -> list[PublisherProtocol]:
        """The protocols of those connections that are up."""
        return [c.protocol for c in self.connections if c.protocol is not None]

    @property
    def let_in(self) -> bool:
        """Whether the broker has accepted the user's login on a connection of this group."""
        return any(connection.connects for connection in self.connections)

    def wanted(self, connected: bool) -> bool:
        """Return whether a connection is to stay if it is `connected`, or to be made again if it is not.

        A guest's connection is never made again: at the next request the broker judges the login anew.
        """
        recent = time.monotonic() - self.wanted_at < FORGET_AFTER
        if self.guest:
            self.over = self.over or not (connected and recent)
        else:
            connected = connected or bool(self.protocols)
            self.over = self.over or not (connected or self.kept or recent)
        return not self.over


class Publisher:
    """All connections of this process on which HTTP's messages go out."""

    def __init__(
        self,
        dial: Callable[[Callable[[], Socket]], Awaitable[Socket]],
        login: Callable[[], Login],
        *,
        connections: int,
        connect_timeout: float,
        confirm_timeout: float,
        opened: Callable[[Socket, Login], Awaitable[None]] | None = None,
        refused: Callable[[str], None] | None = None,
    ) -> None:
        """Take how to connect; nothing is dialled yet. Times are in seconds.

        `login` gives this sidecar's own user, which gets `connections` for each virtual host; a guest gets one.
        `opened` is told each socket by which this sidecar's own user has logged in, and `refused` each password by
        which it could not.
        """
        self._opened, self._refused = opened, refused
        self._dial, self._login, self._connections = dial, login, connections
        self._connect_timeout, self._confirm_timeout = connect_timeout, confirm_timeout
        self._groups: dict[tuple[str, Login | None], ConnectionGroup] = {}
        self._running: set[ConnectionGroup] = set()
        """The groups in use, and those that go on only for what is in flight on them."""
        self._connects = 0
        """Successful handshakes of the connections that were given up."""

    def group(self, vhost: str, login: Login | None = None) -> ConnectionGroup:
        """Return the connections to a virtual host, which need not be up, and note that they are wanted.

        A group is begun if there is none yet, as this sidecar's own user if `login` is None. Raises TooManyGuests.
        """
        key = vhost, login
        group = self._groups.get(key)
        if group is None or group.over:
            if login is not None:
                self._check_room(key)
            group = self._groups[key] = self._begun(vhost, login)
        elif group.guest and group.let_in and time.monotonic() - group.begun_at > GUEST_AGE:
            # The old ones go on for what is in flight on them, but the password may have changed since they logged in.
            group = self._groups[key] = self._begun(vhost, login)
            group.renewed = True
        group.wanted_at = time.monotonic()
        return group

    def _check_room(self, key: tuple[str, Login | None]) -> None:
        """Check that one more guest may try to log in. Raises TooManyGuests if a limit is reached."""
        guests = [group for other, group in self._groups.items() if group.guest and other != key]
        inside = sum(group.renewed or group.let_in for group in guests)
        if inside >= MOST_GUESTS:
            raise TooManyGuests(f"{MOST_GUESTS} users other than this sidecar's own are logged in, which is the limit")
        if len(guests) - inside >= MOST_LOGINS:
            raise TooManyGuests(
                f"{MOST_LOGINS} logins of users other than this sidecar's own wait for the broker, which is the limit"
            )

    def _begun(self, vhost: str, login: Login | None) -> ConnectionGroup:
        """Return a new group of connections that begin to connect, for a user's login or for the sidecar's own."""
        asked, opened, refused = (
            (self._login, self._opened, self._refused) if login is None else (lambda: login, None, None)
        )
        connections = tuple(
            BrokerConnection(
                self._dial,
                asked,
                vhost,
                open_timeout=self._connect_timeout,
                confirm_timeout=self._confirm_timeout,
                opened=opened,
                refused=refused,
            )
            for _ in range(self._connections if login is None else 1)
        )
        group = ConnectionGroup(vhost, connections, login is not None)
        self._running.add(group)
        group.task = asyncio.create_task(self._run(group, (vhost, login)))
        return group

    async def _run(self, group: ConnectionGroup, key: tuple[str, Login | None]) -> None:
        """Run a group's connections until nobody wants them (a virtual host may be deleted); then forget it."""
        try:
            await asyncio.gather(*(connection.run(group.wanted) for connection in group.connections))
        finally:
            self._running.discard(group)
            self._connects += sum(connection.connects for connection in group.connections)
            if self._groups.get(key) is group:
                del self._groups[key]

    def connect(self, vhost: str) -> None:
        """Start to connect to a virtual host as this sidecar's own user, and stay connected for good."""
        self.group(vhost).kept = True

    async def cleared(self, connection: BrokerConnection, within: float) -> None:
        """Return once a publish may be sent. Raises Unavailable after `within` seconds, or LoginRefused before."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                await connection.settled()
        if not connection.clear:
            code, why = connection.login_refused, connection.why
            raise LoginRefused(why, code) if code else Unavailable(why)

    def faults(self) -> Mapping[str, str]:
        """Return why this sidecar's own connections are down, by virtual host; empty if one is up."""
        return {vhost: "" if group.connection.protocol else group.connection.fault for vhost, group in self._own()}

    def blocked(self) -> Mapping[str, str]:
        """Return why the broker takes no publishes, by virtual host with a connection; empty if it takes them."""
        return {
            vhost: next((protocol.blocked for protocol in group.protocols if protocol.blocked), "")
            for vhost, group in self._own()
            if group.connection.protocol
        }

    def refusals(self, vhost: str) -> list[str]:
        """Return the reasons for which the broker does not permit publishes to some exchanges of a virtual host."""
        group = self._groups.get((vhost, None))
        return sorted({why for protocol in group.protocols for why in protocol.refused}) if group else []

    def lacking(self) -> dict[MissingRight, bool]:
        """Return the rights for want of which publishes are refused, each with whether a guest lacks it."""
        groups = list(self._groups.values())
        return {right: group.guest for group in groups for protocol in group.protocols for right in protocol.lacking}

    def cluster(self, vhost: str) -> tuple[str | None, float]:
        """Return the name of the cluster that a virtual host's connection last reached, and when the broker gave it.

        The name is None before a broker was reached, and if its cluster has none. The time is in monotonic seconds.
        """
        group = self._groups.get((vhost, None))
        return (group.connection.cluster, group.connection.cluster_told_at) if group else (None, 0.0)

    def serves(self, vhost: str) -> bool:
        """Return whether this sidecar's own user is connected to a virtual host."""
        group = self._groups.get((vhost, None))
        return group is not None and group.connection.protocol is not None

    def _own(self) -> Iterator[tuple[str, ConnectionGroup]]:
        return ((vhost, group) for (vhost, login), group in list(self._groups.items()) if login is None)

    @property
    def connects(self) -> int:
        """How many handshakes have succeeded since the start of this process."""
        return self._connects + sum(connection.connects for connection in self._all_connections())

    @property
    def in_flight(self) -> int:
        """How many messages were published whose result is not known yet."""
        return sum(protocol.in_flight for group in list(self._running) for protocol in group.protocols)

    def unsettled(self, vhost: str) -> list[ConfirmChannel]:
        """Return the channels of a virtual host's connections with publishes that the broker may yet take."""
        protocols = [each for group in list(self._running) if group.vhost == vhost for each in group.protocols]
        for protocol in protocols:
            protocol.pack()
        channels = [channel for protocol in protocols for channel in protocol.channels.values()]
        return [channel for channel in channels if channel.pending or channel.unanswered]

    def _all_connections(self) -> Iterator[BrokerConnection]:
        return itertools.chain.from_iterable(group.connections for group in list(self._running))

    def abandon(self) -> None:
        """End the wait for every confirm: each publish in flight becomes UNKNOWN."""
        for connection in self._all_connections():
            connection.abandon("this sidecar ended before the confirm came")

    async def aclose(self) -> None:
        """Close every connection, in good order if the broker answers at once; what is in flight becomes UNKNOWN."""
        tasks = [group.task for group in self._running if group.task is not None]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                await asyncio.gather(*(connection.aclose() for connection in self._all_connections()))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
