"""The router's entries of one virtual host, made ready for the hot loop: bytes in, bytes and integers out."""

from collections.abc import Callable
from math import inf
from weakref import WeakValueDictionary
from zlib import crc32

from mypy_extensions import i64, mypyc_attr

from proxy.journal.buffer import MESSAGE_ID, Journal, Record
from proxy.routing.counters import NOWHERE, Counters, CounterTable
from proxy.settings.patterns import Mode, Selection
from proxy.topology.bindings import RING_TYPES
from proxy.topology.declarations import leads_to
from proxy.topology.table import MAX_HOPS, Entry, Name, PassReason, Router, Unread
from proxy.wire import content
from proxy.wire.frames import BASIC_PUBLISH, U32, shorted
from ring.destination import Destination
from ring.hashed import HashedValue
from ring.hashing import index_at, slot_of

MOST_ROUTES = 10_000
"""Routes of one table, at most; a limit is needed since clients choose the names."""

MOST_BEHIND = 1 << 17
"""Exchanges behind the rings of one virtual host that are remembered, at most, beside those of the last ring."""

MOST_TRIES = 5
"""How often one message that came back is published again, over AMQP or HTTP, before it counts as unroutable."""

MARK = content.UNMARKED - 16
"""The lowest of the 16 bits of a ring id that a mark changes, just below the bits that are the nonce's alone."""

MOST_EXCHANGES = 1 << 16
"""The most exchanges that one process publishes from through lanes, in its whole life: ring ids have 16 bits for them.

So many rings at a time would not fit into memory; it takes a program that makes exchanges under ever new names.
"""

PUBLISH = U32.pack(BASIC_PUBLISH) + b"\0\0"
"""The payload of basic.publish up to the exchange: class, method, and the reserved short (AMQP, basic.publish)."""


def mark(exchange: bytes, key: bytes) -> int:
    """Return the bits of a ring id that stand for where its message was sent.

    A copy that a client sends elsewhere, with all headers, does not match its mark there.
    """
    return (crc32(exchange or key) & 0xFFFF) << MARK


class Target:
    """One destination of a route's ring, with the first bytes of a publish to it; it lives as long as the route."""

    __slots__ = (
        "behind", "destination", "exchange", "is_lane", "is_queue", "keeps_key", "key", "mark", "method", "sent_as",
        "unread",
    )  # fmt: skip

    def __init__(self, destination: Destination, lane: str | None = None) -> None:
        """Take a destination, and the lane that leads to it, if one does.

        The target's route links it to the ring behind it afterwards.
        """
        self.destination = destination
        self.is_queue = destination.kind == "queue"
        self.is_lane = lane is not None
        self.sent_as = destination if lane is None else Destination("exchange", lane)
        """The destination that a publish names, and its return as well: the lane, if there is one."""
        name = self.sent_as.name.encode()
        self.exchange = b"" if self.sent_as.kind == "queue" else name
        """The exchange that is published to; empty for the default exchange, which delivers to a queue by its name."""
        self.keeps_key = self.sent_as.kind != "queue"
        """Whether a publish has the message's own routing key, as one to another exchange than the default one has."""
        self.key = b"" if self.exchange else name
        """The routing key of a publish to the default exchange; empty for other exchanges, which get the message's."""
        self.mark: i64 = mark(self.exchange, self.key)
        self.method = PUBLISH + shorted(self.exchange) + (b"" if self.exchange else shorted(name))
        """The payload of basic.publish, up to the bits for the default exchange, else up to the routing key."""
        self.behind: Route | None = None
        """The route of a destination that is an exchange with a ring of its own; None for every other destination."""
        self.unread: Unread | None = None
        """Why nothing may be published there yet; None if something may."""


class Choice:
    """The place that rings chose for one message, and how: the target, the last ring on the way, and its slot."""

    __slots__ = ("by", "by_message_id", "missing", "slot", "target", "value")

    def __init__(
        self, target: Target, by: "Route", slot: int, value: bytes | None, missing: bool, by_message_id: bool
    ) -> None:
        """Take the choice of the last ring on the way, `by`, which hashed `value`; None if the message lacks it.

        `missing` says that some ring on the way hashes a header or property that the message lacks, `by_message_id`
        that some ring on the way hashes the message id.
        """
        self.target, self.by, self.slot, self.value = target, by, slot, value
        self.missing, self.by_message_id = missing, by_message_id

    def tell(self, record: Record, destination: Destination | None) -> None:
        """Tell a record of the journal where the message went: `destination`, or None if it was passed."""
        known = self.by.known
        assert known is not None  # a ring chose
        record.placed(known, destination, self.slot, self.value, self.by_message_id)


class Route:
    """The way of publishes to one exchange: through its ring, or passed on unchanged; valid until anything changes."""

    __slots__ = (
        "counters",
        "fingerprint",
        "fixed",
        "hashed",
        "hashed_name",
        "hashes_message_id",
        "journal",
        "known",
        "mark",
        "name",
        "owners",
        "plain",
        "reason",
        "shadowed",
        "stamp",
        "targets",
    )  # fmt: skip

    def __init__(self, name: Name, counters: Counters, reason: PassReason | None, entry: Entry | None = None) -> None:
        """Make a route by the ring of `entry` if `reason` is None, else a route that passes its publishes.

        With the reason SHADOW an entry with a ring is given too, if one is known, for the counts.
        """
        self.name, self.counters, self.reason = name, counters, reason
        self.shadowed = entry is not None and entry.passed is PassReason.SHADOW
        """Whether publishes pass, and count by the destination to which the ring would have sent them."""
        self.targets: tuple[Target, ...] = ()
        """The destinations of the ring; empty without a ring."""
        self.owners = b""
        """The index in `targets` of each slot's owner, as `ring.hashing.index_at` reads it."""
        self.stamp = b""
        """The first bytes of the stamps of the route's publishes; empty if the exchange has no ring."""
        self.mark: i64 = 0
        """The bits of a ring id that stand for the route's exchange, if the message goes out through a lane.

        Through a lane a message has no other stamp than its ring id (`RouteTables.exchange_of`).
        """
        if entry is not None and entry.known is not None:
            self.targets = tuple(Target(d, entry.lanes.get(d)) for d in entry.known.ring.destinations)
            self.owners = entry.known.ring.owner_index
            self.stamp = content.stamp_of_exchange(name[1].encode())
        known = self.known = entry.known if entry else None
        self.journal: Journal | None = None
        """The journal that records its publishes; None without a journal or a ring."""
        self.fingerprint = known.fingerprint if known is not None else ""
        by_key = known is not None and known.hashed.source == "routing_key" and not self.shadowed
        self.fixed = reason in (PassReason.SHADOW, PassReason.MODE_PASS)
        """Whether the settings alone say where publishes go, so that no declaration changes it."""
        self.plain = by_key and all(target.is_queue for target in self.targets)
        """Whether the routing key alone leads to a queue, so that no header need be read."""
        self.hashed: HashedValue | None = None
        """The header or property that the ring hashes; None for the routing key, and without a ring."""
        self.hashed_name = b""
        if known is not None and known.hashed.source != "routing_key":
            self.hashed, self.hashed_name = known.hashed, known.hashed.name.encode()
        self.hashes_message_id = self.hashed == MESSAGE_ID

    def choose(self, key: bytes, header: bytes, start: int, end: int) -> Choice | None:
        """Return where a message goes, following rings behind rings; None if they form a cycle.

        `header` holds its content header's payload from `start` to `end`. An empty `header` stands for no message:
        then `key` is what every ring on the way hashes. Raises Fault for a header that cannot be read. Nothing may be
        published to a target that is `unread`: once its exchange is read, there is a new route to ask.
        """
        route = self
        missing = by_message_id = False
        for _ in range(MAX_HOPS):
            value: bytes | None = key
            if route.hashed is not None and header:
                value = content.hashed_value(route.hashed, route.hashed_name, header, start, end)
                missing |= value is None
                by_message_id |= route.hashes_message_id
            slot = slot_of(value or b"")
            target = route.targets[index_at(route.owners, slot)]
            if target.behind is None:
                return Choice(target, route, slot, value, missing, by_message_id)
            route = target.behind
        return None

    def leads_through(self) -> set[Name]:
        """Return the exchanges that messages may go through on this route, its own exchange among them."""
        found, todo = {self.name}, [self]
        while todo:
            for target in todo.pop().targets:
                name = (self.name[0], target.destination.name)
                if not target.is_queue and name not in found:
                    found.add(name)
                    todo += [target.behind] if target.behind is not None else []
        return found


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
        self.behind: set[bytes] = set()
        """The exchanges that the rings of this virtual host lead to or have led to, but for the very oldest."""
        self._seen: dict[Name, int] = {}
        """How many publishes each exchange had at the last `touch`."""
        self.expires = inf
        """When the first ring among the routes gets too old to serve, on the router's clock."""

    def clear(self) -> None:
        """Forget every route, since what they were made from has changed."""
        self.routes.clear()
        self._seen.clear()
        self.expires = inf

    def find(self, exchange: bytes) -> Route | Unread:
        """Return the route of an exchange, or why there is none yet."""
        route = self.routes.get(exchange)
        return route if route is not None else self._make(exchange)

    def once(self, exchange: bytes, asked: float) -> Route | Unread:
        """Return the route of one publish that has waited since `asked`: later declarations do not hold it up."""
        table = RouteTable(self._vhost, self.cluster, self._tables, asked)
        table.behind = self.behind
        return table.find(exchange)

    def absent(self, exchange: bytes) -> Route:
        """Return a route on which a publish to an exchange that does not exist passes, for the broker to refuse."""
        name = (self._vhost, exchange.decode(errors="replace"))
        return Route(name, self._tables.counter_table.of(NOWHERE, PassReason.ABSENT), PassReason.ABSENT)

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

    def exchange_of(self, marks: int) -> bytes | None:
        """Return the exchange that a message was published to, by the marks in its ring id; None for another's id.

        `marks` is the ring id of a message that came back from a lane, without its lane's mark and its channel's nonce.
        """
        return self._tables.exchange_of(marks)

    def touch(self) -> None:
        """Tell the router which exchanges were published to since the last call."""
        for route in self.routes.values():
            if self._seen.get(route.name) != route.counters.published:
                self._seen[route.name] = route.counters.published
                self.use(route)

    def use(self, route: Route) -> None:
        """Tell the router that an exchange is in use, and with it every exchange that its messages may go through."""
        router = self._tables.router
        for name in route.leads_through() & router.entries.keys():
            router.used_at[name] = router.clock()

    def _make(self, exchange: bytes) -> Route | Unread:
        router, counters = self._tables.router, self._tables.counter_table.of
        try:
            name = (self._vhost, exchange.decode())
        except UnicodeDecodeError:
            return self.absent(exchange)  # no exchange has such a name
        if not exchange:
            return self._put(exchange, Route(name, counters(name, PassReason.TYPE), PassReason.TYPE))
        mode = self._tables.selection.mode(*name)
        if mode is Mode.PASS:
            known = name if name in router.entries else NOWHERE
            return self._put(exchange, Route(name, counters(known, PassReason.MODE_PASS), PassReason.MODE_PASS))
        if mode is Mode.SHADOW:
            return self._shadowed(exchange, name)
        entry = router.look(name, self._asked)
        if isinstance(entry, Unread):
            return entry
        if entry.exchange_type in RING_TYPES and (why := self._tables.mismatch(self.cluster)):
            return Unread(name, why, other_cluster=True)
        self.expires = min(self.expires, router.fresh_until(entry))
        if entry.internal or entry.passed or entry.known is None:
            reason = PassReason.INTERNAL if entry.internal else entry.passed or PassReason.NO_BINDINGS
            return self._put(exchange, Route(name, counters(name, reason), reason))
        return self._routed(exchange, name, entry)

    def _routed(self, exchange: bytes, name: Name, entry: Entry) -> Route | Unread:
        """Return the route of an exchange that its ring routes."""
        route = Route(name, self._tables.counter_table.of(name, None), None, entry)
        if any(target.exchange for target in route.targets):
            index = self._tables.index_of(exchange)
            if index is None:
                return Unread(name, f"more than {MOST_EXCHANGES} exchanges have led through lanes", refused=True)
            route.mark = index << MARK
        if len(self.behind) > MOST_BEHIND:
            self.behind.clear()
        self.behind.update(target.exchange for target in route.targets if target.exchange)
        # Put before its targets are linked: rings may form a cycle.
        self._put(exchange, route)
        for target in route.targets:
            if not target.is_queue:
                self._link(target)
        return route

    def _shadowed(self, exchange: bytes, name: Name) -> Route:
        """Return the route of a shadowed exchange, which gets its publishes itself whatever is known of it.

        Nothing is waited for: while the ring is not known, publishes are not counted by destination.
        """
        router, shadow = self._tables.router, PassReason.SHADOW
        entry = router.entries.get(name)
        if entry is None:
            self._tables.want(name)
            # Not kept: each publish asks anew for a reading that failed. Clients may choose the names.
            known = name if self._tables.selection.names(name[1]) else NOWHERE
            return Route(name, self._tables.counter_table.of(known, shadow), shadow)
        router.used_at[name] = router.clock()
        reason = PassReason.INTERNAL if entry.internal else entry.passed or shadow
        is_ours = not self._tables.mismatch(self.cluster)
        ring = entry if entry.known is not None and reason is shadow and is_ours else None
        return self._put(exchange, Route(name, self._tables.counter_table.of(name, reason), reason, ring))

    def _put(self, exchange: bytes, route: Route) -> Route:
        if len(self.routes) >= MOST_ROUTES:
            self.clear()
        if route.known is not None:
            route.journal = self._tables.journal
        self.routes[exchange] = route
        return route

    def _link(self, target: Target) -> None:
        """Link a target to the ring behind it; an exchange that is passed gets the messages and routes them itself."""
        router, name = self._tables.router, (self._vhost, target.destination.name)
        if self._tables.selection.mode(*name) is not Mode.ROUTE:
            return
        entry = router.look(name, self._asked)
        if isinstance(entry, Unread):
            target.unread = entry
            return
        self.expires = min(self.expires, router.fresh_until(entry))
        if entry.passed is None and entry.known is not None:
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
    ) -> None:
        """Take what routes are made from. `want` has an exchange read for which nobody waits.

        `mismatch` returns why a broker whose cluster has the given name is not the one whose bindings are read; empty
        if it is.
        """
        self.router, self.selection, self.counter_table, self.mismatch = router, selection, counter_table, mismatch
        self.want, self.journal = want, journal
        self._exchanges: list[bytes] = []
        """The exchanges whose rings lead on through exchanges, in the order in which ring ids number them."""
        self._index: dict[bytes, int] = {}
        """The number of each exchange in `_exchanges`."""
        self._tables: WeakValueDictionary[tuple[str, str | None], RouteTable] = WeakValueDictionary()
        router.on_change.append(self._changed)

    def table(self, vhost: str, cluster: str | None) -> RouteTable:
        """Return the table of a virtual host, which is kept only while a caller holds it."""
        table = self._tables.get((vhost, cluster))
        if table is None:
            table = self._tables[vhost, cluster] = RouteTable(vhost, cluster, self)
        return table

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
