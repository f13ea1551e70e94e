"""The routes of each virtual host: made from the router's entries when first asked for, and forgotten at a change."""

# mypyc: compiled

from collections.abc import Callable
from math import inf
from weakref import WeakValueDictionary

from mypy_extensions import mypyc_attr

from proxy.journal.buffer import Journal
from proxy.routing.counters import NOWHERE, CounterTable
from proxy.routing.route import MARK, Route, Target
from proxy.settings.patterns import Mode, Selection
from proxy.topology.bindings import RING_TYPES
from proxy.topology.declarations import leads_to
from proxy.topology.table import NEVER, Entry, Name, PassReason, Router, Unread
from proxy.tracing.tracer import Tracer
from ring.destination import Destination
from ring.hashing import SLOTS

MOST_ROUTES = 10_000
"""Routes of one table, at most; a limit is needed since clients choose the names."""

MOST_BEHIND = 1 << 17
"""Exchanges behind the rings of one virtual host that are remembered, at most, beside those of the last ring."""

MOST_EXCHANGES = 1 << 16
"""The most exchanges that one process publishes from through lanes, in its whole life: ring ids have 16 bits for them.

The rings of so many exchanges at a time would not fit into memory; it takes a program that makes exchanges under ever
new names.
"""


@mypyc_attr(native_class=False)  # those take no weak references
class RouteTable:
    """The routes of one virtual host of one cluster, made when first asked for and forgotten when anything changes.

    A table lives while a session or a group of HTTP's connections holds it.
    """

    def __init__(self, vhost: str, cluster: str | None, tables: "RouteTables", asked: float = inf) -> None:
        """Make an empty table. `cluster` is the name of these sessions' broker, None if it gives none.

        `asked` is the time, on the router's clock, from which on declarations do not concern these routes.
        """
        self._vhost, self.cluster, self._tables, self._asked = vhost, cluster, tables, asked
        self.routes: dict[bytes, Route] = {}
        """The routes made so far, by exchange. The hot loop keeps this dict, so it is never replaced by another."""
        self._internal: dict[bytes, Route] = {}
        """The routes of the internal exchanges behind upstream exchanges, by exchange: no client publishes to these."""
        self.behind: set[bytes] = set()
        """The exchanges that the rings of this virtual host lead to or have led to, but for the very oldest."""
        self._seen: dict[Name, int] = {}
        """How many publishes each exchange had at the last `touch`."""
        self.expires = inf
        """When the first ring among the routes gets too old to serve, on the router's clock."""

    def clear(self) -> None:
        """Forget every route, since what they were made from has changed."""
        self.routes.clear()
        self._internal.clear()
        self._seen.clear()
        self.expires = inf

    def find(self, exchange: bytes) -> Route | Unread:
        """Return the route of an exchange, or why there is none yet."""
        route = self.routes.get(exchange)
        return route if route is not None else self._make(exchange)

    def found_since(self, exchange: bytes, asked: float) -> Route | Unread:
        """Return the route of an exchange, by a reading that began since `asked` even if more was declared after it."""
        found = self.find(exchange)
        return self.once(exchange, asked) if isinstance(found, Unread) else found

    def read_at(self, name: Name) -> float:
        """Return when the last good reading of an exchange began, in monotonic seconds; NEVER if none is in force."""
        entry = self._tables.router.entries.get(name)
        return entry.read_at if entry is not None else NEVER

    def once(self, exchange: bytes, asked: float) -> Route | Unread:
        """Return the route of one publish that has waited since `asked`: later declarations do not hold it up."""
        table = RouteTable(self._vhost, self.cluster, self._tables, asked)
        table.behind = self.behind
        return table.find(exchange)

    def absent(self, exchange: bytes) -> Route:
        """Return a route on which a publish to an exchange that does not exist passes, for the broker to refuse."""
        name = (self._vhost, exchange.decode(errors="replace"))
        route = Route(name, self._tables.counter_table.of(NOWHERE, PassReason.ABSENT), PassReason.ABSENT)
        route.is_behind = exchange in self.behind
        return route

    @property
    def counter_table(self) -> CounterTable:
        """The counters of the ingress whose publishes these routes serve."""
        return self._tables.counter_table

    def rings_to(self, exchange: str) -> list[Name]:
        """Return the exchanges whose rings lead to another exchange, off the router: routes may be forgotten meanwhile.

        The other exchange is a destination of these rings, or a lane to one.
        """
        entries = self._tables.router.entries.items()
        here = [(name, entry) for name, entry in entries if name[0] == self._vhost and entry.passed is None]
        return [name for name, entry in here if leads_to(entry, Destination("exchange", exchange))]

    def ways_to(self, missing: str, exchange: bytes) -> set[Name]:
        """Return the exchanges to read again once it shows that `missing` is gone, to which messages to `exchange` may
        lead: `exchange` itself, and those on the way that have it as a destination.
        """
        route = self.find(exchange)
        through = route.leads_through() if isinstance(route, Route) else set()
        return {(self._vhost, exchange.decode()), *through.intersection(self.rings_to(missing))}

    def entry_of(self, exchange: str) -> Entry | None:
        """Return what the router knows of an exchange; None if nothing."""
        return self._tables.router.entries.get((self._vhost, exchange))

    def exchange_of(self, marks: int) -> bytes | None:
        """Return the exchange that a message was published to, by the marks in its ring id; None for another's id.

        `marks` is the ring id of a message that came back from a lane, without its lane's mark and its channel's nonce.
        """
        return self._tables.exchange_of(marks)

    def touch(self) -> None:
        """Tell the router which exchanges were published to since the last call."""
        for route in self.routes.values():
            if self._seen.get(route.name) != route.published:
                self._seen[route.name] = route.published
                self.use(route)

    def use(self, route: Route) -> None:
        """Tell the router that an exchange is in use, and with it every exchange that its messages may go through."""
        router = self._tables.router
        for name in route.leads_through() & router.entries.keys():
            router.used_at[name] = router.clock()

    def _make(self, exchange: bytes) -> Route | Unread:
        """Return a new route to an exchange, made of its entry; or what must be read first."""
        router, counters = self._tables.router, self._tables.counter_table.of
        try:
            name = (self._vhost, exchange.decode())
        except UnicodeDecodeError:
            return self.absent(exchange)  # no exchange has such a name
        if not exchange:
            return self._put(exchange, Route(name, counters(name, PassReason.TYPE), PassReason.TYPE))
        mode = self._tables.selection.mode(*name)
        if mode is Mode.PASS:
            self._tables.passes(name)
            known = name if name in router.entries else NOWHERE
            return self._put(exchange, Route(name, counters(known, PassReason.MODE_PASS), PassReason.MODE_PASS))
        if mode is Mode.SHADOW:
            return self._shadowed(exchange, name)
        entry = router.look(name, self._asked)
        if isinstance(entry, Unread):
            return entry
        if (entry.exchange_type in RING_TYPES or entry.upstream is not None) and (
            why := self._tables.mismatch(self.cluster)
        ):
            return Unread(name, why, other_cluster=True)
        self.expires = min(self.expires, router.fresh_until(entry))
        if entry.internal or entry.passed or (entry.known is None and entry.upstream is None):
            reason = PassReason.INTERNAL if entry.internal else entry.passed or PassReason.NO_BINDINGS
            return self._put(exchange, Route(name, counters(name, reason), reason))
        return self._routed(exchange, name, entry, self.routes)

    def _routed(self, exchange: bytes, name: Name, entry: Entry, routes: dict[bytes, Route]) -> Route | Unread:
        """Return the route of an exchange that its ring routes, or the rings behind it, which is put into `routes`."""
        native, routed_slots = self._native(name, entry), self._tables.selection.routed_slots
        route = Route(name, self._tables.counter_table.of(name, None), None, entry, native, routed_slots)
        if any(target.exchange for target in route.targets):
            index = self._tables.index_of(exchange)
            if index is None:
                return Unread(name, f"more than {MOST_EXCHANGES} exchanges have led through lanes", refused=True)
            route.mark = index << MARK
        if len(self.behind) > MOST_BEHIND:
            self.behind.clear()
        for target in route.targets:
            # Nothing is published to the exchanges behind an upstream exchange themselves.
            if target.exchange and route.matcher is None:
                self.behind.add(target.exchange)
                if (made := self.routes.get(target.exchange)) is not None:
                    made.is_behind = True
        # Put before its targets are linked: rings and upstream exchanges may form a cycle.
        self._put(exchange, route, routes)
        for target in route.targets:
            if not target.is_queue:
                self._link(target, of_upstream=route.matcher is not None)
        if not all(target.is_queue for target in route.targets):
            route.settle_digest()
        return route

    def _native(self, name: Name, entry: Entry) -> Route | None:
        """Return the route of the slots that the ring of an exchange does not route yet; None if it routes all."""
        if self._tables.selection.routed_slots == SLOTS or entry.known is None:
            return None
        return Route(name, self._tables.counter_table.of(name, PassReason.SHARE), PassReason.SHARE, entry)

    def _shadowed(self, exchange: bytes, name: Name) -> Route:
        """Return the route of a shadowed exchange, which gets its publishes itself whatever is known of it.

        Nothing is waited for: while the ring is not known, publishes are not counted by destination.
        """
        router, shadow = self._tables.router, PassReason.SHADOW
        entry = router.entries.get(name)
        if entry is None:
            self._tables.passes(name)
            self._tables.want(name)
            # Not kept: each publish asks anew for a reading that failed. Clients may choose the names.
            known = name if self._tables.selection.names(name[1]) else NOWHERE
            route = Route(name, self._tables.counter_table.of(known, shadow), shadow)
            route.is_behind = exchange in self.behind
            return route
        router.used_at[name] = router.clock()
        reason = PassReason.INTERNAL if entry.internal else entry.passed or shadow
        is_ours = not self._tables.mismatch(self.cluster)
        # An entry from before a reload says how the exchange was routed until then: nothing is counted by that.
        ring = entry if entry.passed is shadow and reason is shadow and is_ours else None
        return self._put(exchange, Route(name, self._tables.counter_table.of(name, reason), reason, ring))

    def _put(self, exchange: bytes, route: Route, routes: dict[bytes, Route] | None = None) -> Route:
        """Keep a route, by its exchange, and return it; all others are dropped first if there are too many."""
        if len(self.routes) + len(self._internal) >= MOST_ROUTES:
            self.clear()
        for each in (route, route.native) if route.native is not None else (route,):
            if each.known is not None or each.matcher is not None:
                each.journal = self._tables.journal
            each.tracer = self._tables.tracer
        route.is_behind = exchange in self.behind
        (self.routes if routes is None else routes)[exchange] = route
        return route

    def _link(self, target: Target, *, of_upstream: bool) -> None:
        """Link a target to the ring behind it; an exchange that is passed gets the messages and routes them itself.

        Behind an upstream exchange there may be another one, and either may be internal: nothing is published to these
        exchanges themselves.
        """
        router, name = self._tables.router, (self._vhost, target.destination.name)
        if self._tables.selection.mode(*name) is not Mode.ROUTE:
            return
        entry = router.look(name, self._asked)
        if isinstance(entry, Unread):
            target.unread = entry
            return
        self.expires = min(self.expires, router.fresh_until(entry))
        if entry.passed is not None or (entry.known is None and entry.upstream is None):
            target.passed = entry.passed or PassReason.NO_BINDINGS
        elif entry.known is not None or of_upstream:
            # A client that publishes to an internal exchange itself gets the broker's 403: that route is another one.
            if of_upstream and entry.internal:
                behind = self._internal.get(target.exchange) or self._routed(
                    target.exchange, name, entry, self._internal
                )
            else:
                behind = self.find(target.exchange)
            # One that has become internal has no targets: the next reading of the ring before it passes that ring.
            if isinstance(behind, Route) and behind.targets:
                target.behind = behind


class RouteTables:
    """The tables of all virtual hosts in use, for one ingress; all sessions of a virtual host and cluster share one."""

    def __init__(
        self,
        router: Router,
        selection: Selection,
        counter_table: CounterTable,
        mismatch: Callable[[str | None], str],
        want: Callable[[Name], None],
        journal: Journal | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """Take what routes are made from. `want` has an exchange read for which nobody waits.

        `mismatch` returns why a broker whose cluster has the given name is not the one whose bindings are read; empty
        if it is.
        """
        self.router, self.selection, self.counter_table, self.mismatch = router, selection, counter_table, mismatch
        self.want, self.journal, self.tracer = want, journal, tracer
        self._exchanges: list[bytes] = []
        """The exchanges whose rings lead on through exchanges, in the order in which ring ids number them."""
        self._index: dict[bytes, int] = {}
        """The number of each exchange in `_exchanges`."""
        self.passed: set[Name] = set()
        """The exchanges whose publishes have passed because the settings do not route them, but for the very oldest."""
        self._tables: WeakValueDictionary[tuple[str, str | None], RouteTable] = WeakValueDictionary()
        router.on_change.append(self._changed)

    def table(self, vhost: str, cluster: str | None) -> RouteTable:
        """Return the table of a virtual host, which is kept only while a caller holds it."""
        table = self._tables.get((vhost, cluster))
        if table is None:
            table = self._tables[vhost, cluster] = RouteTable(vhost, cluster, self)
        return table

    def passes(self, name: Name) -> None:
        """Note that publishes to an exchange pass because the settings do not route them."""
        if len(self.passed) >= MOST_ROUTES:
            self.passed.clear()
        self.passed.add(name)

    def index_of(self, exchange: bytes) -> int | None:
        """Return the number by which ring ids name an exchange, for good; None if there are `MOST_EXCHANGES` others."""
        index = self._index.get(exchange)
        if index is None and len(self._exchanges) < MOST_EXCHANGES:
            index = self._index[exchange] = len(self._exchanges)
            self._exchanges.append(exchange)
        return index

    def exchange_of(self, marks: int) -> bytes | None:
        """Return the exchange whose number stands in a ring id's marks; None if they say something else, too."""
        index = marks >> MARK
        return self._exchanges[index] if 0 <= index < len(self._exchanges) else None

    def vhosts(self) -> set[str]:
        """Return the virtual hosts whose tables are in use."""
        return {vhost for vhost, _ in list(self._tables)}

    def touch(self) -> None:
        """Tell the router which exchanges were published to since the last call, in every table."""
        for table in list(self._tables.values()):
            table.touch()

    def _changed(self) -> None:
        for table in list(self._tables.values()):
            table.clear()
