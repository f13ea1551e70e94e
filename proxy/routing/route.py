"""The way of a publish to one exchange: the ring's destinations as bytes, and the choice of one for a message."""

# mypyc: compiled

from zlib import crc32

from mypy_extensions import i64

from proxy.journal.buffer import MESSAGE_ID, Journal, Record
from proxy.routing.counters import Counters, Tally
from proxy.topology.matching import NO_RING, Matcher
from proxy.topology.table import MAX_HOPS, Entry, Name, PassReason, Unread
from proxy.tracing.tracer import Tracer
from proxy.wire import content
from proxy.wire.frames import BASIC_PUBLISH, U32, shorted
from ring.destination import Destination
from ring.hashed import HashedValue
from ring.hashing import SLOTS, index_at, slot_of
from ring.share import rank_of

MARK = content.UNMARKED - 16
"""The lowest of the 16 bits of a ring id that a mark changes, just below the bits that are the nonce's alone."""

PASSED = "passed: "
"""The beginning of the digest of a route that passes its publishes."""

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
        "behind", "copied", "destination", "exchange", "is_lane", "is_queue", "keeps_key", "key", "mark", "method",
        "passed", "sent_as", "tally", "unread",
    )  # fmt: skip

    def __init__(self, destination: Destination, lane: str | None = None, copied: bool = False) -> None:
        """Take a destination, and the lane that leads to it, if one does; `copied` says whether to several groups.

        The target's route links it to the ring behind it afterwards.
        """
        self.destination = destination
        self.is_queue = destination.kind == "queue"
        self.tally = Tally()
        """The count of publishes that the ring has sent there."""
        self.is_lane = lane is not None
        self.copied = copied
        """Whether a message goes to a queue of each of several groups, of which one alone may refuse it."""
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
        self.passed: PassReason | None = None
        """The reason for which the exchange behind an upstream exchange is passed; None if it is not."""


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
        "digest",
        "fingerprint",
        "fixed",
        "hashed",
        "hashed_name",
        "hashes_message_id",
        "is_behind",
        "journal",
        "known",
        "mark",
        "matcher",
        "name",
        "native",
        "owners",
        "plain",
        "reason",
        "routed_slots",
        "shadowed",
        "stamp",
        "targets",
        "tracer",
    )  # fmt: skip

    def __init__(
        self,
        name: Name,
        counters: Counters,
        reason: PassReason | None,
        entry: Entry | None = None,
        native: "Route | None" = None,
        routed_slots: int = SLOTS,
    ) -> None:
        """Make a route by the ring of `entry`, or by the rings behind it, if `reason` is None.

        With any other reason the route passes its publishes. With the reasons SHADOW and SHARE an entry with a ring is
        given too, if one is known, for the counts.

        With a route in `native` the ring has the slots of the `routed_slots` lowest ranks only.
        """
        self.name, self.counters, self.reason = name, counters, reason
        self.shadowed = entry is not None and reason is not None
        """Whether publishes pass, and count by the destination to which the ring would have sent them."""
        self.native = native
        """The route by the exchange itself, as in shadow, of the slots that the ring does not route yet; None if the
        ring routes all."""
        self.routed_slots = routed_slots
        """The number of slots that the ring routes, those of the lowest ranks."""
        self.is_behind = False
        """Whether rings of the virtual host lead to the exchange, or have led to it."""
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
            copied = entry.copied
            self.targets = tuple(Target(d, entry.lanes.get(d), d.name in copied) for d in entry.known.ring.destinations)
            for target in self.targets:
                target.tally = counters.tally(target.destination)
            self.owners = entry.known.ring.owner_index
            self.stamp = content.stamp_of_exchange(name[1].encode())
        self.matcher: Matcher | None = None
        """Finds the target of a message to an upstream exchange; None where a ring does."""
        if entry is not None and entry.upstream is not None and reason is None:
            self.matcher = entry.upstream.matcher
        if self.matcher is not None:
            self.targets = tuple(Target(d) for d in self.matcher.rings)
            self.stamp = content.stamp_of_exchange(name[1].encode())
        known = self.known = entry.known if entry else None
        self.journal: Journal | None = None
        """The journal that records its publishes; None without a journal or a ring."""
        self.tracer: Tracer | None = None
        """The tracer of its publishes; None where none are traced."""
        self.fingerprint = known.fingerprint if known is not None else ""
        by_key = known is not None and known.hashed.source == "routing_key" and not self.shadowed and native is None
        ways = hash(tuple(target.sent_as for target in self.targets))
        ring = f"{self.fingerprint} {ways:x} {routed_slots} {name[1]}"
        self.digest = ring if reason is None else f"{PASSED}{name[1]}"
        """A digest of the exchange, and of where its messages go: two routes with the same one send all of them alike.

        It begins with PASSED if the route passes its publishes. `settle_digest` completes it once the targets are
        linked. The `native` route has that of the whole: which of the two a message takes, its slot alone decides.
        """
        if native is not None:
            native.digest = self.digest
        self.fixed = reason in (PassReason.SHADOW, PassReason.MODE_PASS)
        """Whether the settings alone say where publishes go, so that no declaration changes it."""
        self.plain = by_key and all(target.is_queue for target in self.targets)
        """Whether every message goes to a queue by its routing key alone, so that no header need be read."""
        self.hashed: HashedValue | None = None
        """The header or property that the ring hashes; None for the routing key, and without a ring."""
        self.hashed_name = b""
        if known is not None and known.hashed.source != "routing_key":
            self.hashed, self.hashed_name = known.hashed, known.hashed.name.encode()
        self.hashes_message_id = self.hashed == MESSAGE_ID

    def choose(self, key: bytes, header: bytes, start: int, end: int) -> Choice | None:
        """Return where a message goes, following rings behind rings and behind upstream exchanges.

        The result is None if they form a cycle, or if no ring behind an upstream exchange gets the message
        (`why_passed`).

        `header` holds its content header's payload from `start` to `end`. An empty `header` stands for no message:
        then `key` is what every ring on the way hashes. Raises Fault for a header that cannot be read. Nothing may be
        published to a target that is `unread`: once its exchange is read, there is a new route to ask.

        If the ring does not route the message's slot yet, the choice is the `native` route's. If a ring behind another
        does not, the message goes to the exchange of that ring; behind an upstream exchange, the result is None.
        """
        route = self
        before: Choice | None = None
        missing = by_message_id = False
        for _ in range(MAX_HOPS):
            if route.matcher is not None:
                before = None
                at = route.matcher.find(key) if not header or not content.has_copies(header, start, end) else NO_RING
                if at == NO_RING:
                    return None
                target = route.targets[at]
                if target.behind is None:
                    return Choice(target, route, 0, None, missing, by_message_id) if target.unread is not None else None
                route = target.behind
                continue
            value: bytes | None = key
            if route.hashed is not None and header:
                value = content.hashed_value(route.hashed, route.hashed_name, header, start, end)
                missing |= value is None
                by_message_id |= route.hashes_message_id
            slot = slot_of(value or b"")
            if route.native is not None and rank_of(slot) >= route.routed_slots:
                if route is not self:
                    return before
                route = route.native  # leads to no further ring
            target = route.targets[index_at(route.owners, slot)]
            choice = Choice(target, route, slot, value, missing, by_message_id)
            if target.behind is None:
                return choice
            before, route = choice, target.behind
        return None

    def why_passed(self, key: bytes, header: bytes, start: int, end: int) -> PassReason:
        """Return the reason to pass a message for which `choose` returns None, although the route has targets."""
        route = self
        for _ in range(MAX_HOPS):
            if route.matcher is None:
                choice = route.choose(key, header, start, end)
                if choice is not None and choice.by is route.native:
                    return PassReason.SHARE
                break  # rings lead on to rings only: they form a cycle
            if header and content.has_copies(header, start, end):
                return PassReason.COPIES
            at = route.matcher.find(key)
            if at == NO_RING:
                return PassReason.NO_RING
            target = route.targets[at]
            if target.behind is None:
                return target.passed or PassReason.NO_RING
            route = target.behind
        return PassReason.CYCLE

    def settle_digest(self) -> None:
        """Have the digest tell of the rings behind the targets as well, now that these are linked."""
        found, todo, facts = {self.name}, [self], [self.digest]
        while todo:
            route = todo.pop()
            if route.matcher is not None:
                facts.append(f"matcher {route.matcher.number}")
            for target in route.targets:
                behind = target.behind
                if behind is not None and behind.name not in found:
                    found.add(behind.name)
                    todo.append(behind)
                    facts.append(behind.digest)
                elif not target.is_queue:
                    facts.append(f"{target.destination.name} {target.passed}")
        self.digest = " ".join(facts)
        if self.native is not None:
            self.native.digest = self.digest

    @property
    def published(self) -> int:
        """How many publishes went on this route, by its ring or natively."""
        return self.counters.published + (self.native.counters.published if self.native is not None else 0)

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
