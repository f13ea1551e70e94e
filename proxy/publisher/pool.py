"""The broker connections that publish for this sidecar: a few for each virtual host and user, kept up while in use."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping

from proxy.publisher.connection import BrokerConnection, Socket
from proxy.publisher.protocol import PublisherProtocol
from proxy.routing.routes import RouteTable

FORGET_AFTER = 30.0
"""Seconds without a publish after which connections that cannot be made, or are another user's, are given up."""

GUEST_AGE = 60.0
"""Seconds after which another user has to log in anew: the password may have changed, or a permission."""

MOST_GUESTS = 64
"""Users other than this sidecar's own that the broker has let in, each virtual host counting for itself."""

MOST_LOGINS = 64
"""Logins of such users that the broker has not answered yet. Apart, as anyone may try to log in."""

_LAST_WORDS = 0.2

Login = tuple[str, str]
"""A user and a password."""


class Unavailable(Exception):  # noqa: N818 - the caller turns it into an outcome
    """Nothing was sent; the message says why."""


class LoginRefused(Unavailable):
    """The broker does not let this user in, or not into this virtual host."""

    def __init__(self, message: str, code: int) -> None:
        """`code` is the broker's reply code."""
        super().__init__(message)
        self.code = code


class TooManyGuests(Exception):  # noqa: N818 - a limit, not an error
    """There is no room for one more user other than this sidecar's own; the message says of what there is too much."""


class ConnectionGroup:
    """The connections of one user to one virtual host; publishes of one slot share one, which keeps their order."""

    def __init__(self, vhost: str, connections: tuple[BrokerConnection, ...], guest: bool) -> None:
        """A `guest` is a user other than this sidecar's own."""
        self.vhost, self.connections, self.guest = vhost, connections, guest
        self.kept = False
        """Never given up."""
        self.over = False
        """Given up, all connections together: one that ended alone would be missed."""
        self.renewed = False
        """They follow others of the same user, whom the broker had let in."""
        self.begun_at = self.wanted_at = time.monotonic()
        """When a publish last asked for them."""
        self.table: RouteTable | None = None
        """The routes of the virtual host, for whoever publishes."""
        self.task: asyncio.Task[None] | None = None

    @property
    def connection(self) -> BrokerConnection:
        """One that is up, if any is."""
        return next((c for c in self.connections if c.protocol is not None), self.connections[0])

    @property
    def protocols(self) -> list[PublisherProtocol]:
        """The protocols of those connections that are up."""
        return [c.protocol for c in self.connections if c.protocol is not None]

    @property
    def let_in(self) -> bool:
        """Whether the broker has taken the user's login, on these."""
        return any(connection.connects for connection in self.connections)

    def wanted(self, connected: bool) -> bool:
        """Whether a connection is to stay, or, where it is lost, to be made again.

        A guest's never is made again: at the next request the broker judges anew.
        """
        recent = time.monotonic() - self.wanted_at < FORGET_AFTER
        if self.guest:
            self.over = self.over or not (connected and recent)
        else:
            connected = connected or bool(self.protocols)
            self.over = self.over or not (connected or self.kept or recent)
        return not self.over


class Publisher:
    """All the connections."""

    def __init__(
        self,
        dial: Callable[[Callable[[], Socket]], Awaitable[Socket]],
        login: Callable[[], Login],
        *,
        connections: int,
        connect_timeout: float,
        confirm_timeout: float,
    ) -> None:
        """`login` is this sidecar's own; `connections` for each virtual host. Times in seconds."""
        self._dial, self._login, self._connections = dial, login, connections
        self._connect_timeout, self._confirm_timeout = connect_timeout, confirm_timeout
        self._groups: dict[tuple[str, Login | None], ConnectionGroup] = {}
        self._running: set[ConnectionGroup] = set()
        """Those, and such as go on only for what is in flight."""
        self._connects = 0
        """Of connections that were given up since."""

    def group(self, vhost: str, login: Login | None = None) -> ConnectionGroup:
        """The connections to a virtual host, begun where there are none yet; as this sidecar's own user by default.

        Raises TooManyGuests.
        """
        key = vhost, login
        group = self._groups.get(key)
        if group is None or group.over:
            if login is not None:
                self._check_room(key)
            group = self._groups[key] = self._begun(vhost, login)
        elif group.guest and group.let_in and time.monotonic() - group.begun_at > GUEST_AGE:
            # They go on for what is in flight on them; the password may have changed.
            group = self._groups[key] = self._begun(vhost, login)
            group.renewed = True
        group.wanted_at = time.monotonic()
        return group

    def _check_room(self, key: tuple[str, Login | None]) -> None:
        """Whether a user may try to log in. Raises TooManyGuests."""
        guests = [group for other, group in self._groups.items() if group.guest and other != key]
        inside = sum(group.renewed or group.let_in for group in guests)
        if inside >= MOST_GUESTS:
            raise TooManyGuests(f"{MOST_GUESTS} users other than this sidecar's own are logged in")
        if len(guests) - inside >= MOST_LOGINS:
            raise TooManyGuests(
                f"{MOST_LOGINS} logins of users other than this sidecar's own await the broker's answer"
            )

    def _begun(self, vhost: str, login: Login | None) -> ConnectionGroup:
        asked = self._login if login is None else lambda: login
        connections = tuple(
            BrokerConnection(
                self._dial, asked, vhost, open_timeout=self._connect_timeout, confirm_timeout=self._confirm_timeout
            )
            for _ in range(self._connections if login is None else 1)
        )
        group = ConnectionGroup(vhost, connections, login is not None)
        self._running.add(group)
        group.task = asyncio.create_task(self._run(group, (vhost, login)))
        return group

    async def _run(self, group: ConnectionGroup, key: tuple[str, Login | None]) -> None:
        """Until nobody wants them any more: a virtual host may have been deleted."""
        try:
            await asyncio.gather(*(connection.run(group.wanted) for connection in group.connections))
        finally:
            self._running.discard(group)
            self._connects += sum(connection.connects for connection in group.connections)
            if self._groups.get(key) is group:
                del self._groups[key]

    def connect(self, vhost: str) -> None:
        """Starts connecting to a virtual host as this sidecar's own user, and stays connected for good."""
        self.group(vhost).kept = True

    async def cleared(self, connection: BrokerConnection, within: float) -> None:
        """Returns once a publish may be sent. Raises Unavailable after so many seconds, or where there is no hope."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                await connection.settled()
        if not connection.clear:
            code, why = connection.login_refused, connection.why
            raise LoginRefused(why, code) if code else Unavailable(why)

    def faults(self) -> Mapping[str, str]:
        """By virtual host: why this sidecar's own connections are down; empty where they are up."""
        return {vhost: "" if group.connection.protocol else group.connection.fault for vhost, group in self._own()}

    def blocked(self) -> Mapping[str, str]:
        """By virtual host whose connections are up: why the broker takes no publishes; empty where it does."""
        return {
            vhost: next((protocol.blocked for protocol in group.protocols if protocol.blocked), "")
            for vhost, group in self._own()
            if group.connection.protocol
        }

    def refusals(self, vhost: str) -> list[str]:
        """Why the broker refused the last publish to some exchanges of a virtual host."""
        group = self._groups.get((vhost, None))
        return sorted({why for protocol in group.protocols for why in protocol.refused}) if group else []

    def cluster(self, vhost: str) -> tuple[str | None, float]:
        """The name of the cluster that a virtual host's connection last reached, and when it was told, monotonic.

        None before a broker was reached, and where it gives its cluster no name.
        """
        group = self._groups.get((vhost, None))
        return (group.connection.cluster, group.connection.cluster_told_at) if group else (None, 0.0)

    def serves(self, vhost: str) -> bool:
        """Whether this sidecar's own user is connected to a virtual host."""
        group = self._groups.get((vhost, None))
        return group is not None and group.connection.protocol is not None

    def _own(self) -> Iterator[tuple[str, ConnectionGroup]]:
        return ((vhost, group) for (vhost, login), group in list(self._groups.items()) if login is None)

    @property
    def connects(self) -> int:
        """Connections that came up, since the start."""
        return self._connects + sum(connection.connects for connection in self._all_connections())

    @property
    def in_flight(self) -> int:
        """Messages sent whose confirm is awaited."""
        return sum(protocol.in_flight for group in list(self._running) for protocol in group.protocols)

    def _all_connections(self) -> Iterator[BrokerConnection]:
        return itertools.chain.from_iterable(group.connections for group in list(self._running))

    def abandon(self) -> None:
        """Ends the wait for every confirm: each publish in flight is `unknown`."""
        for connection in self._all_connections():
            connection.abandon("this sidecar ended before the confirm came")

    async def aclose(self) -> None:
        """Closes every connection, in good order where the broker answers at once; what is in flight is unknown."""
        tasks = [group.task for group in self._running if group.task is not None]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS):
                await asyncio.gather(*(connection.aclose() for connection in self._all_connections()))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
